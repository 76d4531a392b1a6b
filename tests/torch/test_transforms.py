"""What PyTorch adds: autograd, torch.func, torch.compile, tensors without float64."""

from functools import partial

import numpy as np
import oracle
import pytest
import torch
from compare import assert_same
from libraries import LIBRARIES
from samples import embedding
from torch._dynamo.testing import CompileCounter
from torch.utils._python_dispatch import TorchDispatchMode

from rope_xp import RotaryEmbedding, Sections, XPos, YarnScaling, apply_rotary_pos_emb, fixed_pos_embedding, positions

LAYOUTS = ["half", "interleaved"]
XP = LIBRARIES["torch"]
random = XP.random


def learned(x, inv_freq, where=None, **options):
    rope = RotaryEmbedding(head_dim=14, layout="half", inv_freq=inv_freq)
    return rope(x, positions=where, seq_dim=1, **options)


def of_rows(x, where):
    return embedding()(x, sincos=embedding().sincos(torch.arange(30)), positions=where, seq_dim=1)


def notebook(x, offset=0):
    return apply_rotary_pos_emb(x, fixed_pos_embedding(x, 1, offset=offset), seq_dim=1)


@pytest.mark.parametrize(
    "options",
    [{}, {"layout": "interleaved"}, {"attention_factor": 1.25}, {"xpos": XPos(centre=2), "attention_factor": 0.5}],
    ids=str,
)
def test_gradients_of_the_rotation_and_its_inverse(options):
    """Of the array and of the tables."""
    rope = embedding(rotary_dim=10, **options)
    x = random(1, 3, 2, 14, dtype="float64").requires_grad_()
    role = "query" if rope.xpos is not None else None
    sincos = [table.requires_grad_() for table in rope.sincos(torch.arange(3), like=x, role=role)]
    turn = lambda x, sin, cos, **ways: rope.rotate(x, (sin, cos), seq_dim=1, **ways)  # noqa: E731
    for inverse in (False, True):
        call = partial(turn, inverse=inverse)
        assert torch.autograd.gradcheck(call, (x, *sincos), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(lambda x, call=call: call(x, *sincos), x)


def test_gradients_of_keys_that_change_their_frequencies():
    """Of the keys, of real positions and of the frequencies before and after."""
    k, where = random(3, 2, 14, dtype="float64"), 3 * random(3, seed=2, dtype="float64")
    frequencies = [0.3 * random(7, seed=seed, dtype="float64") for seed in (3, 4)]
    arguments = [each.requires_grad_() for each in (k, where, *frequencies)]

    def changed(k, where, before, after):
        rope, other = (embedding(base=None, inv_freq=w, attention_factor=1.25) for w in (before, after))
        return rope.rerotate(k, where, to=other.replace(attention_factor=0.5), seq_dim=0)

    assert torch.autograd.gradcheck(changed, arguments, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(changed, arguments, fast_mode=True)  # in random directions


@pytest.mark.compile
def test_compiled_gradients_of_learned_frequencies():
    torch._dynamo.reset()
    x, inv_freq = random(2, 5, 3, 14), random(2, 3, 7, seed=1).requires_grad_()
    call = lambda w: learned(x, w, torch.arange(10).reshape(2, 5), heads_dim=2).pow(3).sum()  # noqa: E731
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    assert_same(*(torch.autograd.grad(each(inv_freq), inv_freq) for each in (compiled, call)), atol=1e-3)


def test_gradients_of_tables_whose_rows_are_chosen():
    x, where = random(2, 5, 3, 14, dtype="float64"), torch.tensor([3, 0, 3, -1, 8])
    sincos = [table.requires_grad_() for table in embedding().sincos(torch.arange(9), like=x)]
    call = lambda sin, cos: embedding()(x, sincos=(sin, cos), positions=where, seq_dim=1)[:, [0, 1, 2, 4]]  # noqa: E731
    assert torch.autograd.gradcheck(call, sincos)
    gradient = torch.autograd.grad(call(*sincos).sum(), sincos[0])[0]
    assert gradient[[0, 3, 8]].all() and not gradient[[1, 2, 4, 5, 6, 7]].any()


def test_func_transforms():
    rope, x = embedding(), random(2, 5, 3, 14)
    offsets = torch.tensor([7, 100_000])
    whole = rope(x, positions=positions.consecutive(5, offsets), seq_dim=1)
    rows = torch.func.vmap(lambda x, o: rope(x, positions=positions.consecutive(5, o), seq_dim=0))(x, offsets)
    assert_same(rows, whole)
    gradient = torch.func.grad(lambda w: learned(x, w).sum())(torch.ones(7))
    per_row = torch.func.vmap(torch.func.grad(lambda w, x: learned(x[None], w).sum()), in_dims=(None, 0))
    assert_same(per_row(torch.ones(7), x).sum(0), gradient, atol=1e-4)


YARN = YarnScaling(factor=4.0, original_max_position_embeddings=4096)
ROPE, AXES, SCALED = (
    embedding(),
    embedding(sections=Sections((3, 4), order="axial"), attention_factor=1.25),
    embedding(scaling=YARN),
)
DECAYS = embedding(rotary_dim=12, blocks=2, xpos=XPos())
HALVES = embedding("interleaved_to_half", rotary_dim=8, first_channel=6, phase="float32")
# Each a function of x, which has n tokens, and n.
CALLS = {
    "closed over": lambda x, n: ROPE(x, seq_dim=1),
    "made inside": lambda x, n: embedding("interleaved").replace(scaling=YARN, rotary_dim=10)(x.bfloat16(), seq_dim=1),
    "rows": lambda x, n: of_rows(x, torch.arange(x.shape[1]) + 7),
    "int offset": lambda x, n: notebook(x, n),
    "tensor offset": lambda x, n: notebook(x, torch.tensor(5)),
    "shift": lambda x, n: embedding().shift(x, -3, seq_dim=1),
    "rerotate": lambda x, n: SCALED.rerotate(x, torch.arange(x.shape[1]) + n, to=embedding(), seq_dim=1),
    "learned": lambda x, n: learned(x, torch.ones(7)),
    "mask": lambda x, n: embedding()(x, positions=positions.from_mask(x[..., 0, 0] < 9), seq_dim=1),
    "lengths": lambda x, n: positions.from_lengths([1, 1], x.shape[1], like=x),
    "ranks": lambda x, n: positions.context_parallel(
        8 * x.shape[1], torch.tensor(1), 2, zigzag=True, cu_seqlens=torch.arange(3) * 4 * x.shape[1]
    ),
    "part of a rank": lambda x, n: positions.context_parallel(x.swapaxes(1, 3).tile(4), 0, 2, zigzag=True),
    "inverse of axes": lambda x, n: AXES.rotate(
        x, AXES.sincos(torch.arange(2 * x.shape[1]).reshape(2, -1) + n), seq_dim=1, inverse=True
    ),
    "written in halves, float32 phases": lambda x, n: HALVES(x, seq_dim=1),
    "blocks that decay": lambda x, n: DECAYS(x, x, seq_dim=1)[1],
}


def test_lengths_are_not_read_inside_a_transform():
    """The wrapper of `functionalize` has memory, but not that of the numbers."""
    row = torch.func.functionalize(lambda lengths: positions.from_lengths(lengths, 5))(torch.tensor([9, 2]))
    assert row.tolist() == [*range(5)]


@pytest.mark.compile
@pytest.mark.parametrize("name", CALLS)
def test_compiles_whole_without_a_warning(name):
    """Once for all sizes; a warning would be an error."""
    torch._dynamo.reset()
    call, counter = CALLS[name], CompileCounter()
    compiled = torch.compile(call, fullgraph=True, backend=counter, dynamic=True)
    for n in (3, 21):
        x = random(n + 1, n, n + 2, 14)
        assert_same(compiled(x, n + 3), call(x, n + 3))
    assert counter.frame_count == 1


@pytest.mark.compile
def test_inductor_equals_eager_and_its_tables_are_exact():
    """Step by step, they are the same."""
    torch._dynamo.reset()

    def call(x, half, where):
        ropes = [embedding(layout, rotary_dim=10) for layout in LAYOUTS]
        rotated = [rope(each, positions=where, seq_dim=1) for rope, each in zip(ropes, (x, half))]
        return *embedding().sincos(where), *rotated

    compiled, drawn = torch.compile(call, fullgraph=True, dynamic=True), np.random.default_rng(0)
    where = np.append([0, -7, 131_071, 2**24 + 1, 2**31 - 1], drawn.integers(-(2**31), 2**31, 95)).astype(np.int32)
    x, at = random(2, 100, 3, 14), torch.tensor(where)
    given = x, x.bfloat16(), at
    sin, cos, *rotated = compiled(*given)
    for table, truth in zip((sin, cos), oracle.sin_cos(where, oracle.geometric(10_000.0, 14)), strict=True):
        assert np.abs(table.numpy() - truth).max() <= 2e-7
    for one, truth in zip(rotated, call(*given)[2:], strict=True):
        assert_same(one, truth, atol=1e-6 if truth.dtype == torch.float32 else 0)
    for start, stop in [(0, 17), (17, 19), (19, 100)]:
        parts = compiled(x[:, start:stop].contiguous(), x[:, start:stop].bfloat16().contiguous(), at[start:stop])
        for part, table in zip(parts, (sin, cos)):
            assert torch.equal(part, table[start:stop])


class NoFloat64(TorchDispatchMode):
    """A device without float64, such as Apple's."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        assert not (isinstance(result, torch.Tensor) and result.dtype == torch.float64), f"{function} made float64"
        return result


def test_float64_is_not_needed():
    x = random(2, 5, 3, 14)
    where = torch.tensor([0, 257, -4095, 131_071, 2**31 - 1])
    with NoFloat64():
        for dtype in (torch.float32, torch.bfloat16):
            for given in (where, where.int(), where.float() / 7, where.numpy()):
                embedding()(x.to(dtype), positions=given, seq_dim=1)
            learned(x.to(dtype), torch.ones(7), where)
            notebook(x.to(dtype), 100_000)
        with pytest.raises(AssertionError, match="made float64"):
            torch.ones(1) * torch.ones(1).double()


def test_positions_of_numpy_are_not_compiled():
    """The README says so; when torch learns it, the sentence goes."""
    torch._dynamo.reset()
    call = torch.compile(lambda x: embedding()(x, positions=np.arange(5), seq_dim=1), fullgraph=True, backend="eager")
    with pytest.raises(torch._dynamo.exc.Unsupported):
        call(random(2, 5, 3, 14))


def test_positions_of_another_device_are_refused():
    x = torch.ones(5, 14, device="meta")
    with pytest.raises(ValueError, match="positions must be on device meta, like the other arrays; got cpu"):
        embedding()(x, positions=torch.arange(5), seq_dim=0)
    with pytest.raises(ValueError, match="sin must be on device meta, like the other arrays; got cpu"):
        apply_rotary_pos_emb(x, (torch.zeros(5, 7), torch.ones(5, 7)))


def test_frequencies_that_are_learned_later_get_a_gradient():
    """No signature shows whether frequencies are learned: a plan from before must not drop their gradient."""
    inv_freq = torch.tensor([1.0, 0.1, 0.01])
    rope = RotaryEmbedding(head_dim=6, layout="half", inv_freq=inv_freq)
    fixed = RotaryEmbedding(head_dim=6, layout="half", base=100.0)
    x, where = torch.randn(5, 6, requires_grad=True), torch.arange(5)
    calls = {
        "call": lambda: rope(x, positions=where, seq_dim=0),
        "shift": lambda: rope.shift(x, 3, seq_dim=0),
        "rerotate": lambda: rope.rerotate(x, where, to=fixed, seq_dim=0),
        "rerotate to": lambda: fixed.rerotate(x, where, to=rope, seq_dim=0),
    }
    for call in calls.values():
        call(), call()
    inv_freq.requires_grad_()
    for name, call in calls.items():
        (gradient,) = torch.autograd.grad(call().square().sum() + call().sum(), inv_freq)
        assert gradient.abs().max() > 0.01, name


def test_queries_and_keys_of_xpos_have_their_own_gradients():
    """Kept programs save one pair of angles for all arrays: with xPos, there are two."""
    rope = RotaryEmbedding(head_dim=6, layout="half", base=100.0, xpos=XPos(scale_base=4.0))
    q, k = (torch.randn(5, 6, requires_grad=True) for _ in range(2))
    weights, where = torch.randn(5, 6), torch.arange(5)
    for _ in range(2):  # the second time with a kept plan
        for x, role in zip((q, k), ("query", "key")):
            rotated = rope(q, k, positions=where, seq_dim=0)[0 if x is q else 1]
            (gradient,) = torch.autograd.grad((rotated * weights).sum(), x)
            wanted = rope.rotate(weights, rope.sincos(where, like=x, role=role), seq_dim=0, transpose=True)
            torch.testing.assert_close(gradient, wanted)
