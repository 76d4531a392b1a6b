"""Plans of calls: kept by signature, used for all calls with it, and for no others."""

import copy
import gc
import os
import pickle
import sys
import weakref
from contextlib import nullcontext

import numpy as np
import pytest
from cases import for_each
from compare import assert_same
from rotations import unaligned
from samples import embedding

import rope_xp
from rope_xp import RotaryEmbedding, apply_rotary_pos_emb
from rope_xp.arrays import signature

PLANNED = ("numpy", "torch", "jax")


@pytest.fixture
def planned(xp):
    if xp.name not in PLANNED:
        pytest.skip("calls on this library have no signature")
    return xp


def arrays(xp, *, q="float32", seq=3, tables="float32"):
    """q, k and their tables, for the embedding of `samples`."""
    x = (xp.random(2, seq, 4, 14, dtype=q), xp.random(2, seq, 1, 14, seed=1, dtype=q))
    return x, xp.tables(np.outer(np.arange(seq), embedding().inv_freq), tables)


def transposed(xp, x):
    """The same numbers in another order of memory."""
    return xp.array(np.ascontiguousarray(xp.numpy(x).swapaxes(0, 1)), x.dtype).swapaxes(0, 1)


def result_of(call, rope, within=nullcontext):
    """The results of a call, or its error."""
    try:
        with within():
            return call(rope)
    except (ValueError, TypeError, RuntimeError) as error:
        return repr(error)


def assert_planned_apart(first, second, within=nullcontext):
    """The second call does not use the plan of the first, and is right."""
    rope = embedding()
    result_of(first, rope), result_of(first, rope)
    expected, found = result_of(second, embedding(), within), result_of(second, rope, within)
    if isinstance(expected, str):
        assert found == expected
    else:
        assert_same(found, expected, atol=0.0)


def q_and_k(x, sincos, **options):
    return lambda rope: rope(*x, sincos=sincos, **{"seq_dim": 1, **options})


def members(xp):
    """What a signature must contain, on each library: two calls that differ in it alone."""
    (q, k), sincos = arrays(xp)
    where = [xp.array(np.arange(3), dtype) for dtype in ("int32", "int16")]
    rows = embedding().sincos(xp.array(np.arange(9), "int32"), like=q)
    usual = q_and_k((q, k), sincos)
    yield "dtype", usual, q_and_k(*arrays(xp, q="float16"))
    yield "dtype of one", usual, q_and_k((q, arrays(xp, q="float16")[0][1]), sincos)
    yield "shape", usual, q_and_k(*arrays(xp, seq=2))
    yield "number of arrays", usual, q_and_k((q,), sincos)
    yield "class", usual, q_and_k((q, [k]), sincos)
    yield "shape of tables", usual, q_and_k((q, k), [table[None, :, None, :] for table in sincos])
    yield "one table", usual, q_and_k((q, k), (sincos[0], sincos[1][:2, :]))
    yield "tables of NumPy", usual, q_and_k((q, k), [xp.numpy(table).astype("float32")[None] for table in sincos])
    yield "positions", q_and_k((q, k), rows, positions=where[0]), q_and_k((q, k), rows)
    yield "dtype of positions", q_and_k((q, k), rows, positions=where[0]), q_and_k((q, k), rows, positions=where[1])
    yield "tables", q_and_k((q, k), None, positions=where[0]), q_and_k((q, k), rows, positions=where[0])
    yield "seq_dim", usual, q_and_k((q, k), sincos, seq_dim=-3)
    yield "type of seq_dim", usual, q_and_k((q, k), sincos, seq_dim=True)
    yield "heads_dim", usual, q_and_k((q, k), sincos, heads_dim=2)
    yield "method", usual, lambda rope: (rope.rotate(q, sincos, seq_dim=1), rope.rotate(k, sincos, seq_dim=1))
    forward = lambda rope: rope.rotate(q, sincos, seq_dim=1)  # noqa: E731
    yield "inverse", forward, lambda rope: rope.rotate(q, sincos, seq_dim=1, inverse=True)
    yield "transpose", forward, lambda rope: rope.rotate(q, sincos, seq_dim=1, transpose=True)
    yield "type of inverse", forward, lambda rope: rope.rotate(q, sincos, seq_dim=1, inverse=0)
    yield "role", lambda rope: rope.sincos(where[0]), lambda rope: rope.sincos(where[0], role="query")
    yield "like", lambda rope: rope.sincos(where[0]), lambda rope: rope.sincos(where[0], like=q)
    yield "delta", lambda rope: rope.shift(k, 2, seq_dim=1), lambda rope: rope.shift(k, where[0], seq_dim=1)
    yield from {"numpy": numpy_members, "torch": torch_members, "jax": jax_members}[xp.name](xp, q, k, sincos)


def numpy_members(xp, q, k, sincos):
    usual, read_only = q_and_k((q, k), sincos), q.copy()
    read_only.flags.writeable = False
    yield "strides", usual, q_and_k((transposed(xp, q), k), sincos)
    yield "strides of tables", usual, q_and_k((q, k), (sincos[0], np.asfortranarray(sincos[1])))
    yield "alignment", usual, q_and_k((q, unaligned(k)), sincos)
    yield "byte order", usual, q_and_k((q, k.astype(">f4")), sincos)
    yield "subclass", usual, q_and_k((q, np.ma.masked_array(k)), sincos)

    def in_place(x):
        return lambda rope: rope.rotate_inplace(x, sincos=sincos, seq_dim=1)

    yield "writeable", in_place(q.copy()), in_place(read_only)


def torch_members(xp, q, k, sincos):
    import torch
    from torch.overrides import BaseTorchFunctionMode
    from torch.utils._python_dispatch import BaseTorchDispatchMode

    usual, trained = q_and_k((q, k), sincos), q_and_k((q.clone().requires_grad_(), k), sincos)
    yield "strides", usual, q_and_k((transposed(xp, q), k), sincos)
    yield "strides of tables", usual, q_and_k((q, k), (sincos[0], sincos[1].T.contiguous().T))
    yield "requires_grad", usual, trained
    yield "tables that require grad", usual, q_and_k((q, k), (sincos[0].clone().requires_grad_(), sincos[1]))
    yield "lazy negation", usual, q_and_k((q, torch._neg_view(k)), sincos)
    yield "zero tensor", usual, q_and_k((q, torch._efficientzerotensor(k.shape)), sincos)
    if xp.device == "cpu":
        yield "layout", usual, q_and_k((q, k.to_mkldnn()), sincos)
    yield "sparse", usual, q_and_k((q, k.to_sparse()), sincos)
    yield "device", usual, q_and_k((q, k.to("meta")), sincos)
    yield "parameter", usual, q_and_k((q, torch.nn.Parameter(k)), sincos)
    yield "subclass", usual, q_and_k((q, k.as_subclass(type("Sub", (torch.Tensor,), {}))), sincos)
    yield "grad mode", trained, trained, torch.no_grad
    yield "inference mode", usual, usual, torch.inference_mode
    yield "dispatch mode", usual, usual, BaseTorchDispatchMode
    yield "function mode", usual, usual, BaseTorchFunctionMode
    yield "forward mode", usual, usual, torch.autograd.forward_ad.dual_level
    with torch.inference_mode():
        inferred = k.clone()

    def in_place(x):
        return lambda rope: rope.rotate_inplace(x, sincos=sincos, seq_dim=1)

    yield "inference tensor", in_place(k.clone()), in_place(inferred)

    def mapped(rope):
        return torch.func.vmap(lambda x: rope.rotate(x, sincos, seq_dim=1))(q[None])

    yield "transform", lambda rope: rope.rotate(q, sincos, seq_dim=1), mapped


def jax_members(xp, q, k, sincos):
    import jax

    usual = q_and_k((q, k), sincos)
    wide = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64  # in old versions of JAX
    yield "64 bits", usual, usual, lambda: wide(True)
    yield "tracer", usual, lambda rope: jax.jit(lambda *x: rope(*x, sincos=sincos, seq_dim=1))(q, k)


def test_calls_that_differ_have_plans_of_their_own(planned, subtests):
    for member, *calls in members(planned):
        with subtests.test(member=member):
            assert_planned_apart(*calls)


def test_plans_are_few_and_are_not_copied(planned, monkeypatch):
    monkeypatch.setattr(signature, "MAX_PLANS", 4)
    rope = embedding()
    for length in range(7):
        rope(
            planned.array(np.ones((length, 14), np.float32)),
            positions=planned.array(np.zeros(1, int), "int32"),
            seq_dim=0,
        )
        assert len(rope._plans) <= 4
    assert rope._plans
    for other in (copy.deepcopy(rope), pickle.loads(pickle.dumps(rope)), rope.replace(base=100.0)):
        assert not other._plans


def test_a_wrong_call_is_an_error_each_time(planned):
    (q, k), sincos = arrays(planned)
    rope = embedding()
    for _ in range(3):
        with pytest.raises(ValueError, match="RotaryEmbedding: tables must be"):
            rope(q, k[:, :2], sincos=sincos, seq_dim=1)
        with pytest.raises(ValueError, match="apply_rotary_pos_emb: tables must be"):
            apply_rotary_pos_emb(k[:, :2], sincos, layout="half", seq_dim=1)
    assert not rope._plans


def test_no_array_is_kept(planned):
    rope, ((q, k), sincos) = embedding(), arrays(planned)
    where = planned.array(np.arange(3), "int32")
    for _ in range(2):
        rope(q, k, sincos=sincos, seq_dim=1), rope(q, k, positions=where, seq_dim=1)
    kept = [weakref.ref(each) for each in (q, k, where, *sincos)]
    del q, k, where, sincos
    gc.collect()
    assert [each() for each in kept] == [None] * len(kept)


@for_each(
    "by, layout, given, most",
    [
        *(("fastest", "half", given, 21) for given in ("tables", "rows", "positions")),
        *(("blocked", "half", given, 28) for given in ("tables", "positions")),
        *(("blocked", "interleaved", given, 47) for given in ("tables", "positions")),
    ],
)
@pytest.mark.where(lambda xp: xp.name in PLANNED)
def test_a_planned_call_makes_few_calls_of_functions(xp, by, layout, given, most):
    rope = RotaryEmbedding(head_dim=128, layout=layout, base=10_000.0, kernel=by if by in xp.kernels else "fastest")
    count = {"tables": 1, "rows": 2000, "positions": 0}[given]

    def arguments(seed):
        """Other numbers of the same signature for each seed."""
        q, k = (xp.random(8, heads, 1, 128, seed=seed) for heads in (32, 8))
        sincos = {"sincos": rope.sincos(xp.array(seed + np.arange(count), "int32"), like=q)} if count else {}
        return (q, k), sincos | ({} if given == "tables" else {"positions": xp.array([1000 + seed], "int32")})

    (first, options), (second, others), calls = arguments(0), arguments(1), []
    rope(*first, seq_dim=2, **options)
    package = os.path.dirname(rope_xp.__file__)

    def of_package(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(package):
            calls.append(frame.f_code.co_qualname)

    sys.setprofile(of_package)
    try:
        rope(*second, seq_dim=2, **others)
    finally:
        sys.setprofile(None)
    assert len(calls) <= most, calls
