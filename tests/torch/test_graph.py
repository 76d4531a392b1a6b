"""Operators that stand for calls in the graphs of `torch.compile`."""

import re

import pytest
import torch
from compare import assert_same
from libraries import LIBRARIES
from samples import embedding
from torch._dynamo.testing import CompileCounterWithBackend

from rope_xp import LinearScaling, fixed_pos_embedding

pytestmark = pytest.mark.compile
ROPE, OTHER, WHERE = embedding(), embedding(base=500.0), torch.arange(5) + 70_000
Q, K = (LIBRARIES["torch"].random(2, 5, heads, 14, seed=heads) for heads in (3, 1))


class Theirs(LinearScaling):
    """A rule of somebody else."""


def nodes_of(call, *arrays, backend="eager", **options):
    """The operators of this library in the one graph of a call, whose numbers are those of the call."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    assert_same(torch.compile(call, fullgraph=True, backend=counter, **options)(*arrays), call(*arrays), atol=1e-5)
    names = [str(node.target) for node in counter.graphs[0].graph.nodes]
    return [name.split(".")[1].rpartition("_")[0] for name in names if name.startswith("rope_xp.")]


class Attention(torch.nn.Module):
    def __init__(self, rope):
        super().__init__()
        self.rope = rope

    def forward(self, q, k, positions):
        return self.rope(q, k, positions=positions, seq_dim=1)


class Layers(torch.nn.Module):
    def __init__(self, count):
        super().__init__()
        self.layers = torch.nn.ModuleList([Attention(embedding(base=500.0 + n)) for n in range(count)])

    def forward(self, q, k, positions):
        for layer in self.layers:
            q, k = layer(q, k, positions)
        return q, k


def test_a_call_has_few_guards_and_few_more_in_each_layer():
    """The usual formula has 17, and 13 in each further layer, most of them of the module."""
    numbers = []

    def keep(guards):
        numbers.append(sum(guard.guard_type != "DUPLICATE_INPUT" for guard in guards))
        return [True] * len(guards)

    for call in (Attention(ROPE), Layers(2), Layers(3)):
        torch._dynamo.reset()
        torch.compile(call, fullgraph=True, backend="eager", options={"guard_filter_fn": keep})(Q, K, WHERE)
    assert 17 < numbers[0] < 40 and numbers[2] - numbers[1] <= 15


def test_each_call_is_one_node():
    tables = ROPE.sincos(WHERE)
    assert nodes_of(lambda q, k: ROPE(q, k, positions=WHERE, seq_dim=1), Q, K) == ["call"]
    assert nodes_of(lambda q: ROPE(q, seq_dim=1), Q) == ["call"]
    assert nodes_of(lambda q, k: ROPE(q, k, sincos=ROPE.sincos(WHERE, like=q), seq_dim=1), Q, K) == ["sincos", "call"]
    assert nodes_of(lambda q: ROPE.rotate(q, tables, seq_dim=1, inverse=True), Q) == ["rotate"]
    assert nodes_of(lambda q: ROPE.rotate(q, tables, seq_dim=1, transpose=True), Q) == ["rotate"]


def test_what_is_no_constant_or_another_class_is_traced():
    learned = lambda w: embedding(base=None, inv_freq=w)(Q, seq_dim=1)  # noqa: E731
    assert nodes_of(learned, torch.linspace(0.1, 1.0, 7)) == []
    assert nodes_of(lambda q: embedding()(q, seq_dim=1), Q) == []
    theirs = embedding(scaling=Theirs(factor=2.0))
    assert nodes_of(lambda q: theirs(q, positions=WHERE, seq_dim=1), Q) == []
    parameter = torch.nn.Parameter(Q)
    assert nodes_of(lambda k: ROPE(parameter, k, seq_dim=1), K) == []


def test_another_embedding_is_another_graph():
    torch._dynamo.reset()
    module = Attention(ROPE)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for rope in (ROPE, OTHER, embedding("interleaved"), ROPE.replace(reverse=True)):
        module.rope = rope
        assert_same(compiled(Q, K, WHERE), rope(Q, K, positions=WHERE, seq_dim=1), atol=1e-5)


# Values that an argument may not have, and a call with one of them.
WRONG = {
    "channels": ([slice(8)], lambda wrong: ROPE(Q[..., wrong], seq_dim=1)),
    "an odd number of channels": ([slice(13)], lambda wrong: fixed_pos_embedding(Q[..., wrong])),
    "delta": ([2**31], lambda wrong: ROPE.shift(Q, wrong, seq_dim=1)),
    "seq_dim": ([None, True, 2**70], lambda wrong: ROPE(Q, seq_dim=wrong)),
    "heads_dim": (["1"], lambda wrong: ROPE(Q, seq_dim=1, heads_dim=wrong)),
    "inverse": ([1], lambda wrong: ROPE.rotate(Q, ROPE.sincos(WHERE), seq_dim=1, inverse=wrong)),
    "transpose": ([0], lambda wrong: ROPE.rotate(Q, ROPE.sincos(WHERE), seq_dim=1, transpose=wrong)),
    "role": ([True], lambda wrong: ROPE.sincos(WHERE, role=wrong)),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input(name):
    """No option is converted to the type that the operator has: the error is that of a call which nobody compiles.

    Python raises it; a graph that must be whole names it.
    """
    values, call = WRONG[name]
    for wrong in values:
        with pytest.raises((TypeError, ValueError)) as right:
            call(wrong)
        _, requirement = str(right.value).split(": ", 1)
        for fullgraph, kind, text in ((False, right.type, str(right.value)), (True, RuntimeError, requirement)):
            torch._dynamo.reset()
            with pytest.raises(kind, match=re.escape(text) if fullgraph else f"^{re.escape(text)}$"):
                torch.compile(call, fullgraph=fullgraph)(wrong)


def test_transforms_inside():
    call = lambda q: ROPE(q, positions=WHERE, seq_dim=1)  # noqa: E731
    loss = lambda q: call(q).pow(3).sum()  # noqa: E731
    many = torch.stack([Q, 2 * Q])
    for transform, given in (
        (torch.vmap(call), many),
        (torch.vmap(torch.func.grad(loss)), many),
        (torch.func.grad(lambda q: torch.vmap(call)(q).pow(3).sum()), many),
        (lambda q: torch.func.jvp(call, (q,), (q.cos(),)), Q),
        (lambda q: torch.utils.checkpoint.checkpoint(call, q, use_reentrant=False), Q),
    ):
        assert set(nodes_of(transform, given, backend="aot_eager")) <= {"call"}
