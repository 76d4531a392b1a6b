"""Tensors that are more, or less, than their numbers: the plain tensor's result, or an error that names the kind."""

import numpy as np
import pytest
import torch
from refusals import CALLS, assert_plain_results, cases, subclasses
from torch.masked import masked_tensor

CASES = cases(CALLS)
# A tensor may be asked for its device alone.
OF_DATA = [case for case in CASES if case[1] != "like"]


class Named(torch.Tensor):
    """A subclass that sees every operation and lets it through."""


def semi_structured(x):
    """Of a kind that no processor makes: nothing but the class is looked at."""
    kind = torch.sparse.SparseSemiStructuredTensorCUTLASS
    return torch.Tensor._make_wrapper_subclass(kind, x.shape, dtype=x.dtype)


def nested(layout):
    return lambda x: torch.nested.nested_tensor([x.reshape(-1), x.reshape(-1)], layout=layout)


REFUSED = {
    "nested tensor, strided": (nested(torch.strided), "nested tensor"),
    "nested tensor, jagged": (nested(torch.jagged), "nested tensor"),
    "sparse_coo": (lambda x: x.to_sparse(), "layout torch.sparse_coo"),
    "sparse_csr": (lambda x: x.reshape(1, -1).to_sparse_csr(), "layout torch.sparse_csr"),
    "sparse_bsr": (lambda x: x.reshape(1, -1).to_sparse_bsr((1, 1)), "layout torch.sparse_bsr"),
    "mkldnn": (lambda x: x.float().reshape(1, -1).to_mkldnn(), "layout torch._mkldnn"),
    "quantized": (lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8), "quantized tensor"),
    "MaskedTensor": (lambda x: masked_tensor(x, x > 0), "MaskedTensor"),
    "UninitializedParameter": (lambda x: torch.nn.UninitializedParameter(), "UninitializedParameter"),
    "UninitializedBuffer": (lambda x: torch.nn.UninitializedBuffer(), "UninitializedBuffer"),
    "semi-structured": (semi_structured, "SparseSemiStructuredTensorCUTLASS"),
}


ACCEPTED = {
    "Parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
    "Buffer": torch.nn.Buffer,
    "a subclass": lambda x: x.as_subclass(Named),
    "strided": lambda x: x[..., None].expand(*x.shape, 3).clone()[..., 1],
    "negated lazily": lambda x: torch._neg_view(-x) if x.dtype != torch.bool else x,
}


def make(values):
    return torch.from_numpy(np.array(values))


def numbers(x):
    return x.as_subclass(torch.Tensor).resolve_neg().numpy()


@pytest.mark.filterwarnings("ignore")  # of prototypes
@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_more_than_numbers_is_refused(kind):
    of, said = REFUSED[kind]
    for _, argument, plain, call in OF_DATA:
        given, message = of(make(plain)), rf"^[\w.]+: ({argument}|array 2) must be .*; got .*{said}$"
        with pytest.raises(TypeError, match=message):
            call(given, make)


@pytest.mark.parametrize("kind", ACCEPTED)
def test_what_is_numbers_gives_the_plain_result(kind):
    # Another kernel, and other tables, within 2e-7 of the truth as well, for numbers below 8.
    atol = 8 * (2.0**-23 + 4e-7)
    assert_plain_results(CASES, lambda plain: ACCEPTED[kind](make(plain)), make, atol, numbers)


def test_every_subclass_of_torch_is_decided_on():
    refused = {"MaskedTensor", "NestedTensor", "UninitializedParameter", "UninitializedBuffer"}
    refused |= {f"SparseSemiStructuredTensor{each}" for each in ("", "CUTLASS", "CUSPARSELT")}
    accepted = {"Parameter", "Buffer", "FakeTensor", "FunctionalTensor", "TwoTensor"}
    accepted |= {"DTensor", "AsyncCollectiveTensor"}  # tests/distributed
    accepted |= {"LoggingTensor", "LoggingTensorReentrant"}  # of torch's own tests
    # Of torch's own machinery, which lets through the operations that it knows.
    accepted |= {"ExpandedWeight", "FlatParameter", "LocalTensor", "ShardedTensor", "ShardedTensorBase"}
    theirs = {kind.__name__ for kind in subclasses(torch.Tensor) if kind.__module__.partition(".")[0] == "torch"}
    assert refused <= theirs <= refused | accepted
