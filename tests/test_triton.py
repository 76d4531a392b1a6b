"""The Triton kernel, on a GPU where one is at hand and else in Triton's interpreter, against complex numbers."""

import io
import math
import os
import subprocess
import sys
import textwrap

import numpy as np
import oracle
import pytest
import torch
from libraries import LIBRARIES, ROUNDOFF
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from triton import knobs

from rope_xp import phases
from rope_xp.kernels import reference
from rope_xp.kernels.turn import Turn

ON_GPU = torch.cuda.is_available()
with knobs.runtime.scope():  # no other kernel of this process is to be interpreted
    knobs.runtime.interpret = not ON_GPU
    from rope_xp.kernels import cuda as kernel
    from rope_xp.kernels import cuda_kernel

DEVICE = "cuda" if ON_GPU else "cpu"
DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}
HALVES, NEIGHBOURS = Turn("half", "half"), Turn("interleaved", "interleaved")
TURNS = [Turn(read, write) for read in ("half", "interleaved") for write in ("half", "interleaved")]
NUMPY = LIBRARIES["torch"].numpy


def random(*shape, seed=0, dtype="float32"):
    return torch.tensor(np.random.default_rng(seed).standard_normal(shape), dtype=DTYPES[dtype], device=DEVICE)


def tables(angles, dtype="float32"):
    wide = "float64" if dtype == "float64" else "float32"
    return tuple(torch.tensor(f(angles), dtype=DTYPES[wide], device=DEVICE) for f in (np.sin, np.cos))


def channels(layout, pairs, blocks):
    """The first and the second channel of each pair."""
    pair = np.arange(pairs)
    if layout == "interleaved":
        return 2 * pair, 2 * pair + 1
    width = pairs // blocks
    first = pair // width * 2 * width + pair % width
    return first, first + width


def expected(x, angles, turn):
    """Complex multiplication; `angles` broadcast against `x`."""
    pairs = angles.shape[-1]
    reads, writes = (
        [turn.first_channel + each for each in channels(way, pairs, turn.blocks)] for way in (turn.read, turn.write)
    )
    result = np.array(x, dtype=np.float64)
    numbers = (result[..., reads[0]] + 1j * result[..., reads[1]]) * np.exp((-1j if turn.inverse else 1j) * angles)
    result[..., writes[0]], result[..., writes[1]] = numbers.real, numbers.imag
    return result


def assert_rounded_once(result, truth, size):
    """Three operations on numbers of a size, and one rounding: Triton's interpreter cuts bfloat16 off instead."""
    dtype = str(result.dtype).removeprefix("torch.")
    arithmetic = 4 * ROUNDOFF["float64" if dtype == "float64" else "float32"] * size
    roundings = 2 if dtype == "bfloat16" and not ON_GPU else 1
    rounding = 0.0 if dtype in ("float32", "float64") else roundings * ROUNDOFF[dtype] * (np.abs(truth) + arithmetic)
    least = 2.0**-25 if dtype == "float16" else 0.0  # below the normal numbers they are 2**-24 apart
    assert result.shape == truth.shape
    assert np.all(np.abs(NUMPY(result) - truth) <= arithmetic + rounding + least)


@pytest.fixture
def launches(monkeypatch):
    """The grids of all launches."""
    grids, launch = [], cuda_kernel.rotate

    class Counting:
        def __getitem__(self, grid):
            grids.append(grid)
            return launch[grid]

    monkeypatch.setattr(cuda_kernel, "rotate", Counting())
    return grids


def strided(rng, shape, dtype):
    """A view of random numbers with its axes in any order, steps and an offset; and all that it is a view of."""
    order = rng.permutation(len(shape)) if rng.random() < 0.7 else np.arange(len(shape))
    steps = rng.integers(1, 4, len(shape)) if rng.random() < 0.5 else np.ones(len(shape), dtype=int)
    offset = int(rng.integers(0, 6))
    sizes = [int(shape[axis] * steps[axis]) for axis in order]
    whole = torch.tensor(rng.standard_normal(math.prod(sizes) + offset), dtype=dtype, device=DEVICE)
    view = whole[offset:].reshape(sizes).permute(*np.argsort(order).tolist())
    return view[tuple(slice(None, None, int(step)) for step in steps)], whole


@pytest.mark.parametrize("seed", range(60))
def test_any_arrays_in_one_launch(seed, launches, monkeypatch):
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(kernel, "PROGRAMS", int(rng.choice([1, 3, 1024])))  # so that programs take several heads
    dtype = str(rng.choice(list(DTYPES)))
    blocks = int(rng.choice([1, 1, 2, 3]))
    read, write = ("half", "half") if blocks > 1 else rng.choice(["half", "interleaved"], 2).tolist()
    turn = Turn(read, write, int(rng.choice([0, 0, 3, 8])), blocks, bool(rng.random() < 0.5))
    pairs = blocks * int(rng.integers(1, 7))
    inplace = bool(rng.random() < 0.4)
    arrays, wholes, sincos, truths, references = [], [], [], [], []
    for _ in range(int(rng.integers(1, 4))):
        axes = tuple(rng.choice([1, 2, 3, 5, 9], int(rng.integers(0, 5))).tolist())
        x, whole = strided(rng, (*axes, turn.first_channel + 2 * pairs + int(rng.choice([0, 0, 1, 20]))), DTYPES[dtype])
        shape = tuple(1 if rng.random() < 0.4 else size for size in axes)
        angles = rng.standard_normal((*shape, pairs))
        wide = DTYPES["float64" if dtype == "float64" else "float32"]
        both = []
        for function in (np.sin, np.cos):
            table, _ = strided(rng, angles.shape, wide)
            both.append(table.copy_(torch.tensor(function(angles))))
        if rng.random() < 0.3:  # broadcast by strides of 0
            both = [table.expand(*axes, pairs) for table in both]
        arrays.append(x)
        wholes.append(whole)
        sincos.append(tuple(both))
        truths.append(expected(NUMPY(x), angles, turn))
        references.append(reference.rotate(x, *both, turn))
    before = [whole.clone() for whole in wholes]
    results = kernel.rotate_all(arrays, sincos, turn, inplace=inplace)
    assert len(launches) == 1
    for x, whole, old, result, truth, other in zip(arrays, wholes, before, results, truths, references, strict=True):
        size = 2 * max(1.0, np.abs(truth).max())
        assert_rounded_once(result, truth, size)
        # Two roundings of numbers that agree but for those of float32 (float64).
        away = 2 * ROUNDOFF[dtype] * np.abs(truth) + 8 * ROUNDOFF["float64" if dtype == "float64" else "float32"] * size
        assert np.all(np.abs(NUMPY(result) - NUMPY(other)) <= away + 2.0**-24)
        passing = torch.ones(x.shape[-1], dtype=torch.bool, device=DEVICE)
        passing[turn.first_channel : turn.first_channel + 2 * pairs] = False
        if inplace:
            assert result is x
            x.fill_(0.0)
            old_view = old.as_strided(x.size(), x.stride(), x.storage_offset())
            assert torch.equal(other[..., passing], old_view[..., passing])
            old_view.fill_(0.0)
        else:
            assert torch.equal(result[..., passing], x[..., passing])
        assert torch.equal(whole, old)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turn", TURNS, ids=lambda turn: f"{turn.read} to {turn.write}")
def test_in_place_equals_out_of_place(turn, dtype):
    """Also where what is written lies where something else is read."""
    q, k = random(2, 3, 5, 42, dtype=dtype), random(2, 5, 5, 42, seed=1, dtype=dtype)
    sincos = tables(np.random.default_rng(2).standard_normal((2, 1, 5, 20)), dtype)
    outs = kernel.rotate_all([q, k], [sincos, sincos], turn)
    for x, out in zip(kernel.rotate_all([q, k], [sincos, sincos], turn, inplace=True), outs, strict=True):
        assert torch.equal(x, out)
    back = kernel.rotate_all([q, k], [sincos, sincos], turn.undone())
    size = ROUNDOFF[dtype] * 16
    for x, seed in zip(back, (0, 1), strict=True):
        assert (x - random(*x.shape, seed=seed, dtype=dtype)).abs().max() <= size


@pytest.mark.parametrize("shape", [(0, 3, 14), (5, 0, 14), (0, 0, 14)])
def test_empty_axes_launch_nothing(shape, launches):
    x, sincos = random(*shape), tables(np.zeros((shape[0], 1, 5)))
    assert kernel.rotate(x, *sincos, HALVES).shape == shape
    kernel.rotate_all([x], [sincos], HALVES, inplace=True)
    assert launches == []
    filled = random(2, 3, 14)
    _, out = kernel.rotate_all([x, filled], [sincos, tables(np.ones((2, 1, 5)))], HALVES)
    assert_rounded_once(out, expected(NUMPY(filled), np.ones((2, 1, 5)), HALVES), 8.0)
    assert len(launches) == 1


def test_a_vector_alone_and_six_axes():
    x, angles = random(14), np.random.default_rng(1).standard_normal(7)
    assert_rounded_once(kernel.rotate(x, *tables(angles), HALVES), oracle.rotate(NUMPY(x), angles, "half"), 8.0)
    x, angles = random(2, 3, 1, 2, 3, 14), np.random.default_rng(1).standard_normal((2, 1, 1, 2, 1, 7))
    truth = oracle.rotate(NUMPY(x), np.broadcast_to(angles, (2, 3, 1, 2, 3, 7)), "interleaved")
    assert_rounded_once(kernel.rotate(x, *tables(angles), NEIGHBOURS), truth, 8.0)


def test_results_lie_like_their_arrays():
    """Those of queries seen through a transposition are written in their order."""
    x = random(2, 5, 3, 14).transpose(1, 2)
    assert kernel.rotate(x, *tables(np.zeros((5, 7))[None, None]), HALVES).stride() == x.stride()
    packed = random(2, 5, 3, 3, 14)[:, :, 0]
    assert kernel.rotate(packed, *tables(np.zeros((1, 5, 1, 7))), HALVES).is_contiguous()


# Rows of a table, and angles from positions.


@pytest.mark.parametrize("integer", kernel.INTEGERS, ids=str)
def test_rows_of_a_table(integer, launches):
    angles = np.random.default_rng(0).standard_normal((100, 7))
    q, k = random(2, 5, 3, 14, dtype="bfloat16"), random(2, 5, 2, 14, seed=1, dtype="bfloat16")
    where = torch.tensor([[0, 99, 7, 7, 50], [1, 2, 3, 4, 98]], device=DEVICE)[..., None].to(integer)
    for inplace in (False, True):
        truths = [expected(NUMPY(x), angles[NUMPY(where).astype(int)], HALVES) for x in (q, k)]
        results = kernel.rotate_by_rows([q, k], tables(angles), [where, where], HALVES, inplace=inplace)
        for result, truth in zip(results, truths, strict=True):
            assert_rounded_once(result, truth, 8.0)
    assert len(launches) == 2


def test_rows_of_a_strided_table_for_some_axes():
    angles = np.random.default_rng(0).standard_normal((10, 14))
    sincos = tuple(table[::2, ::2] for table in tables(angles))
    x, where = random(2, 3, 5, 14), torch.tensor([4, 0, 3, 1, 2], device=DEVICE)
    truth = expected(NUMPY(x), angles[::2, ::2][NUMPY(where).astype(int)], NEIGHBOURS)
    for given in (where[None, None], where[None, None].expand(2, 3, 5), where.repeat_interleave(2)[::2][None, None]):
        assert_rounded_once(kernel.rotate_by_rows([x], sincos, [given], NEIGHBOURS)[0], truth, 8.0)


def test_rows_that_a_table_lacks_are_not_a_number():
    x = random(5, 16)
    where = torch.tensor([0, -1, 3, 2**40, -(2**63)], device=DEVICE)
    (out,) = kernel.rotate_by_rows([x], tables(np.zeros((3, 7))), [where], HALVES)
    missing = torch.tensor([False, True, True, True, True], device=DEVICE)
    assert torch.equal(out[:, :14].isnan(), missing[:, None].expand(5, 14))
    assert torch.equal(out[:, 14:], x[:, 14:]) and torch.equal(out[0], x[0])


FREQUENCIES = tuple(float(w) for w in oracle.geometric(10_000.0, 14))
POSITIONS = [0, 1, -1, 7, 4095, 131_071, -131_071, 2**24 + 1, 2**31 - 1, -(2**31), 123_456_789, -987_654_321]
WIDE = [2**31, -(2**31) - 1, 2**40 + 12_345, 2**62 + 1, -(2**63), 2**63 - 1]


def rows_of(where, dtype, scale=1.0):
    """Sine and cosine that the kernel computes: it turns the pair (0, 1) to (-sin, cos), and (1, 0) to (cos, sin)."""
    row = phases.Row(FREQUENCIES, (7,))
    where = torch.tensor(where, device=DEVICE) if not isinstance(where, torch.Tensor) else where
    unit = torch.zeros(len(where), 14, dtype=DTYPES[dtype], device=DEVICE)
    unit[:, :7] = 1.0
    turns = kernel.turns_of(row, unit)
    (out,) = kernel.rotate_by_positions([unit], turns, [where], HALVES, scale=scale)
    return NUMPY(out[:, 7:]), NUMPY(out[:, :7])


@pytest.mark.parametrize("integer", [torch.int32, torch.int64], ids=str)
def test_computed_tables_are_exact(integer):
    where = POSITIONS + (WIDE if integer == torch.int64 else [])
    found = rows_of(torch.tensor(where, dtype=integer, device=DEVICE), "float32")
    wide = rows_of(torch.tensor(where, dtype=integer, device=DEVICE), "float64")
    frequencies, given = phases.Frequencies(FREQUENCIES), torch.tensor(where, dtype=integer)
    for results, dtype, bound in (
        (found, torch.float32, 5e-8 + 2.0**-25),  # what phases promises, and its rounding
        (wide, torch.float64, 4e-16),
    ):
        cut = 2 * np.pi * 2.0**-96 * np.abs(np.asarray(where, dtype=np.float64))[:, None]  # turns have 96 bits
        host = phases.sin_cos(given, frequencies, dtype)
        for result, table, truth in zip(results, host, oracle.sin_cos(where, FREQUENCIES), strict=True):
            assert np.all(np.abs(result - truth) <= bound + cut)
            # The same bits, but where a GPU fuses products and sums.
            assert np.abs(result - NUMPY(table)).max() <= (2 * torch.finfo(dtype).eps if ON_GPU else 0.0)


def test_computed_tables_are_scaled():
    plain, scaled = rows_of([1, 5, 131_071], "float32"), rows_of([1, 5, 131_071], "float32", scale=1.25)
    for one, other in zip(plain, scaled, strict=True):
        np.testing.assert_allclose(other, 1.25 * one, rtol=2.0**-23)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turn", [*TURNS, HALVES.undone()], ids=str)
def test_positions_give_what_their_tables_give(turn, dtype, launches):
    row = phases.Row(FREQUENCIES, (7,))
    where = torch.tensor([[3, 131_071, -7], [2**31 - 1, 0, 12]], device=DEVICE)[:, None]
    turn_of = 2 * oracle.mpmath.pi
    angles = np.asarray(
        [[float(oracle.mpmath.mpf(p) * w % turn_of) for w in FREQUENCIES] for p in where.ravel().tolist()]
    ).reshape(2, 1, 3, 7)
    q, k = random(2, 5, 3, 20, dtype=dtype), random(2, 1, 3, 20, seed=1, dtype=dtype)
    turns = kernel.turns_of(row, q)
    truths = [expected(NUMPY(x), angles, turn) for x in (q, k)]
    for inplace in (False, True):
        results = kernel.rotate_by_positions([q, k], turns, [where, where], turn, inplace=inplace)
        for result, truth in zip(results, truths, strict=True):
            assert_rounded_once(result, truth, 16.0)
    assert len(launches) == 2


# What torch sees.


def sources(dtype="float64"):
    """A rotation by each source of angles, as a function of q and k, "batch heads seq dim"."""
    angles = np.random.default_rng(2).standard_normal((2, 1, 5, 6))
    sincos = tables(angles, dtype)
    rows = tuple(table.reshape(10, 6) for table in sincos)
    where = torch.arange(10, device=DEVICE).reshape(2, 1, 5)
    turns = kernel.turns_of(phases.Row(FREQUENCIES[:6], (6,)), rows[0])
    turn = Turn("interleaved", "half", first_channel=1)
    return {
        "tables": lambda *xs: kernel.rotate_all(xs, [sincos] * len(xs), turn),
        "rows": lambda *xs: kernel.rotate_by_rows(xs, rows, [where] * len(xs), turn),
        "positions": lambda *xs: kernel.rotate_by_positions(xs, turns, [where] * len(xs), turn, scale=1.5),
    }


SOURCES = ("tables", "rows", "positions")


@pytest.mark.parametrize("source", SOURCES)
def test_gradients(source, launches):
    call = sources()[source]
    q = random(2, 2, 5, 14, dtype="float64").requires_grad_()
    k = random(2, 1, 5, 14, seed=1, dtype="float64").requires_grad_()
    assert torch.autograd.gradcheck(call, (q, k), fast_mode=True)
    assert torch.autograd.gradgradcheck(call, (q, k), fast_mode=True)
    del launches[:]
    outs = call(q, k)
    gradients = torch.autograd.grad(outs, (q, k), [out.detach().sin() for out in outs])
    assert len(launches) == 2
    for x, out, gradient in zip((q, k), outs, gradients, strict=True):  # the rotation is linear
        assert torch.allclose((out.detach().sin() * out).sum(), (gradient * x).sum(), rtol=1e-12)


def test_gradients_of_one_of_two():
    q, k = random(2, 2, 5, 14).requires_grad_(), random(2, 1, 5, 14)
    outs = sources("float32")["tables"](q, k)
    assert outs[0].requires_grad
    (gradient,) = torch.autograd.grad(outs[0].sum(), q)
    alone = sources("float32")["tables"](q)[0]
    assert torch.equal(gradient, torch.autograd.grad(alone.sum(), q)[0])
    k.requires_grad_()
    assert torch.equal(torch.autograd.grad(sources("float32")["tables"](q, k)[0].sum(), k)[0], torch.zeros_like(k))


def test_nothing_is_kept_for_the_gradient_but_tables():
    kept = []
    q = random(2, 2, 5, 14).requires_grad_()
    sincos = tables(np.zeros((2, 1, 5, 7)))
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.data_ptr()) or x, lambda x: x):
        kernel.rotate_all([q], [sincos], HALVES)
    assert sorted(kept) == sorted(table.data_ptr() for table in sincos)


def test_tables_that_require_grad_are_refused():
    x, (sin, cos) = random(5, 14), tables(np.zeros((5, 7)))
    sin.requires_grad_()
    with pytest.raises(NotImplementedError, match="rotate: tables that require grad need kernel='reference'; got one"):
        kernel.rotate(x, sin, cos, HALVES)
    with torch.no_grad():
        kernel.rotate(x, sin, cos, HALVES)


@pytest.mark.parametrize("source", SOURCES)
def test_forward_mode(source):
    call = sources()[source]
    xs = random(2, 2, 5, 14, dtype="float64"), random(2, 1, 5, 14, seed=1, dtype="float64")
    tangents = random(2, 2, 5, 14, seed=2, dtype="float64"), random(2, 1, 5, 14, seed=3, dtype="float64")
    outs, moved = torch.func.jvp(lambda *xs: tuple(call(*xs)), xs, tangents)
    for one, other in zip((*outs, *moved), (*call(*xs), *call(*tangents)), strict=True):
        assert torch.equal(one, other)
    with forward_ad.dual_level():
        dual = call(forward_ad.make_dual(xs[0], tangents[0]), xs[1])
        assert torch.equal(forward_ad.unpack_dual(dual[0]).tangent, moved[0])
        tangent = forward_ad.unpack_dual(dual[1]).tangent
        assert tangent is None or not tangent.any()
    assert torch.autograd.gradcheck(call, [x.requires_grad_() for x in xs], check_forward_ad=True, fast_mode=True)


def test_derivatives_by_tables_are_refused_in_transforms():
    x, (sin, cos) = random(5, 14), tables(np.ones((5, 7)))
    with pytest.raises(NotImplementedError, match="rotate: tables that require grad need kernel='reference'"):
        torch.func.grad(lambda sin: kernel.rotate(x, sin, cos, HALVES).sum())(sin)
    with pytest.raises(NotImplementedError, match="rotate: tables that require grad need kernel='reference'"):
        torch.func.jvp(lambda sin: kernel.rotate(x, sin, cos, HALVES), (sin,), (cos,))
    with forward_ad.dual_level(), pytest.raises(ValueError, match=r"rotate: .* in place must not be differentiated"):
        kernel.rotate_all([x], [(sin, cos)], HALVES, inplace=True)


def arguments(source, inplace):
    angles = np.random.default_rng(2).standard_normal((2, 1, 5, 6))
    sin, cos = tables(angles)
    q, k = random(2, 2, 5, 14), random(2, 5, 1, 14, seed=1).transpose(1, 2)
    where = [torch.arange(10, device=DEVICE).reshape(2, 1, 5)] * 2
    given = {
        "tables": kernel.Angles([sin, sin], [cos, cos]),
        "rows": kernel.Angles([sin.reshape(10, 6)], [cos.reshape(10, 6)], where),
        "positions": kernel.Angles([], [], where, kernel.turns_of(phases.Row(FREQUENCIES[:6], (6,)), q), 1.5),
    }[source]
    if not inplace:
        q.requires_grad_()
        k.requires_grad_()
    return ([q, k], *given, *Turn("half", "interleaved", 2))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("inplace", [False, True])
def test_the_operators_are_registered_as_torch_checks(source, inplace):
    operator = torch.ops.rope_xp.rotate_ if inplace else torch.ops.rope_xp.rotate
    torch.library.opcheck(operator.default, arguments(source, inplace))


@pytest.mark.parametrize("source", SOURCES)
def test_compiles_whole(source):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    call = sources("float32")[source]
    compiled = torch.compile(lambda q, k: call(q, k), fullgraph=True, dynamic=True, backend=counter)
    counts = []
    for heads in (7, 8, 9):
        q, k = random(2, heads, 5, 14), random(2, heads + 4, 5, 14, seed=1)
        for one, other in zip(compiled(q, k), call(q, k), strict=True):
            assert torch.equal(one, other)
        counts.append(counter.frame_count)
    assert counts[0] == counts[-1]
    q.requires_grad_()
    compiled(q, k)[0].sin().sum().backward()
    gradient, q.grad = q.grad, None
    call(q, k)[0].sin().sum().backward()
    assert torch.equal(gradient, q.grad)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_in_place(backend):
    torch._dynamo.reset()
    sincos = tables(np.random.default_rng(2).standard_normal((5, 1, 7)))

    def call(x):
        y = x + 1
        kernel.rotate_all([x, y], [sincos, sincos], HALVES, inplace=True)
        return x * 2, y

    x, other = random(5, 3, 14), random(5, 3, 14)
    results = torch.compile(call, fullgraph=True, backend=backend)(x)
    for one, truth in zip((x, *results), (other, *call(other)), strict=True):
        assert torch.equal(one, truth)


class Rotates(torch.nn.Module):
    def forward(self, q, k, sin, cos):
        return kernel.rotate_all([q, k], [(sin, cos), (sin, cos)], HALVES)


@pytest.mark.parametrize("strict", [True, False])
def test_exports(strict):
    seq = torch.export.Dim("seq", min=2, max=4096)
    sizes = {1: seq}
    q, k = random(2, 5, 3, 14), random(2, 5, 2, 14, seed=1)
    sincos = tables(np.random.default_rng(2).standard_normal((1, 5, 1, 7)))
    program = torch.export.export(
        Rotates(), (q, k, *sincos), dynamic_shapes={"q": sizes, "k": sizes, "sin": sizes, "cos": sizes}, strict=strict
    )
    calls = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert "rope_xp.rotate.default" in calls
    saved = io.BytesIO()
    torch.export.save(program, saved)
    saved.seek(0)
    given = random(2, 9, 3, 14), random(2, 9, 2, 14, seed=1), *tables(np.ones((1, 9, 1, 7)))
    for one, other in zip(torch.export.load(saved).module()(*given), Rotates()(*given), strict=True):
        assert torch.equal(one, other)


def test_fake_tensors():
    with FakeTensorMode() as mode:
        q = mode.from_tensor(random(2, 5, 3, 14).transpose(1, 2))
        sincos = [mode.from_tensor(table) for table in tables(np.ones((1, 1, 5, 7)))]
        out = kernel.rotate(q, *sincos, HALVES)
        assert out.shape == q.shape and out.stride() == q.stride() and out.device == q.device
        assert kernel.rotate_all([q], [sincos], HALVES, inplace=True)[0] is q
        assert kernel.supports(q) is None


class Records(TorchDispatchMode):
    """Whoever watches operations."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def test_modes_and_tracers_see_the_operators():
    x, sincos = random(5, 14), tables(np.ones((5, 7)))
    with Records() as records:
        kernel.rotate(x, *sincos, HALVES)
        kernel.rotate(x, *sincos, HALVES, x)
    assert records.names[:1] == ["rope_xp.rotate.default"] and records.names[-1] == "rope_xp.rotate_.default"
    graph = make_fx(lambda x: kernel.rotate(x, *sincos, HALVES))(x).graph
    assert "rope_xp.rotate.default" in [str(node.target) for node in graph.nodes]


def test_a_place_for_the_result():
    x, sincos, out = random(5, 14), tables(np.ones((5, 7))), torch.zeros(14, 5, device=DEVICE).T
    truth = kernel.rotate(x, *sincos, HALVES)
    assert kernel.rotate(x, *sincos, HALVES, out) is out and torch.equal(out, truth)
    assert kernel.rotate(x, *sincos, HALVES, x) is x and torch.equal(x, truth)


def test_vmap():
    q, k = random(4, 3, 5, 14), random(3, 4, 14, seed=1)  # q "batch heads seq dim", k "heads batch dim"
    angles = np.random.default_rng(2).standard_normal((4, 1, 5, 7))
    sin, cos = tables(angles)
    each = torch.vmap(
        lambda q, k, sin, cos: tuple(kernel.rotate_all([q, k], [(sin, cos), (sin[:, 0], cos[:, 0])], HALVES)),
        in_dims=(0, 1, 0, 0),
        out_dims=(0, 1),
    )
    results = each(q, k, sin, cos)
    assert_rounded_once(results[0], expected(NUMPY(q), angles, HALVES), 8.0)
    assert_rounded_once(results[1], expected(NUMPY(k), angles[:, 0, 0][None], HALVES), 8.0)

    last = torch.vmap(lambda q: kernel.rotate(q, sin[:, :, 0], cos[:, :, 0], HALVES), in_dims=2, out_dims=2)
    assert_rounded_once(last(q[:, :, :3]), expected(NUMPY(q[:, :, :3]), angles[:, :, :1], HALVES), 8.0)
    many = torch.vmap(lambda sin, cos: kernel.rotate(q[0], sin, cos, HALVES))(sin, cos)
    assert_rounded_once(many, expected(np.repeat(NUMPY(q[:1]), 4, axis=0), angles, HALVES), 8.0)
    nested = torch.vmap(torch.vmap(lambda q: kernel.rotate(q, sin[0, 0], cos[0, 0], HALVES)))(q)
    assert_rounded_once(nested, expected(NUMPY(q), angles[:1], HALVES), 8.0)


def test_vmap_over_positions_and_in_place():
    q, where = random(4, 3, 5, 14), torch.arange(20, device=DEVICE).reshape(4, 1, 5)
    angles = np.random.default_rng(2).standard_normal((20, 7))
    rows, truth = tables(angles), expected(NUMPY(q), angles[NUMPY(where).astype(int)], HALVES)
    call = lambda q, where: kernel.rotate_by_rows([q], rows, [where], HALVES)[0]  # noqa: E731
    assert_rounded_once(torch.vmap(call)(q, where), truth, 8.0)
    with pytest.raises(NotImplementedError, match="rotate: positions need tables that vmap does not map over"):
        torch.vmap(lambda sin: kernel.rotate_by_rows([q[0]], (sin, sin), [where[0]], HALVES)[0])(
            torch.zeros(2, 20, 7, device=DEVICE)
        )
    sin, cos = tables(angles[NUMPY(where).astype(int)])
    with pytest.raises(ValueError, match="rotate: tensors written in place must be mapped over by vmap"):
        torch.vmap(lambda sin, cos: kernel.rotate_all([q[0]], [(sin, cos)], HALVES, inplace=True))(sin, cos)
    torch.vmap(lambda q, sin, cos: kernel.rotate_all([q], [(sin, cos)], HALVES, inplace=True))(q, sin, cos)
    assert_rounded_once(q, truth, 8.0)


def test_gradients_under_transforms():
    q, (sin, cos) = random(4, 3, 5, 14), tables(np.random.default_rng(2).standard_normal((4, 1, 5, 7)))
    loss = lambda q, sin, cos: kernel.rotate(q, sin, cos, NEIGHBOURS).pow(3).sum()  # noqa: E731
    each = torch.vmap(torch.func.grad(loss))(q, sin, cos)
    leaf = q.clone().requires_grad_()
    (whole,) = torch.autograd.grad(loss(leaf, sin, cos), leaf)
    (recomputed,) = torch.autograd.grad(
        torch.utils.checkpoint.checkpoint(loss, leaf, sin, cos, use_reentrant=False), leaf
    )
    assert torch.allclose(each, whole) and torch.equal(recomputed, whole)


def test_what_is_written_in_place_is_counted():
    x, leaf, sincos = random(5, 14), random(5, 14).requires_grad_(), tables(np.ones((5, 7)))
    product = leaf * x
    kernel.rotate_all([x], [sincos], HALVES, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    with torch.inference_mode():
        x = random(5, 14)
        kernel.rotate_all([x], [sincos], HALVES, inplace=True)


def test_negated_views():
    x, sincos = torch.view_as_complex(random(5, 14, 2)).conj().imag, tables(np.ones((5, 7)))
    assert x.is_neg()
    assert torch.equal(kernel.rotate(x, *sincos, HALVES), kernel.rotate(x.resolve_neg(), *sincos, HALVES))


# Bad input.

SINCOS = tables(np.zeros((5, 1, 6)))
X = random(5, 3, 14)
WHERE = torch.zeros(5, 1, dtype=torch.int64, device=DEVICE)
ROWS = tuple(table[:, 0] for table in SINCOS)
BAD = {
    "integers": (lambda: kernel.rotate(X.int(), *SINCOS, HALVES), ValueError, "kernel needs float16.*; got int32"),
    "another device": (
        lambda: kernel.rotate(X.to("meta"), *[table.to("meta") for table in SINCOS], HALVES),
        ValueError,
        "kernel needs a CUDA device; got meta",
    ),
    "one axis less": (lambda: kernel.rotate(X, *ROWS, HALVES), ValueError, r"got \(5,\) for \(5, 3\)"),
    "another size": (
        lambda: kernel.rotate(X, *[table[:4] for table in SINCOS], HALVES),
        ValueError,
        r"each of its size or 1; got \(4, 1\) for \(5, 3\)",
    ),
    "unlike tables": (
        lambda: kernel.rotate(X, SINCOS[0], SINCOS[1][:4], HALVES),
        ValueError,
        r"sin and cos must have one shape; got \(5, 1, 6\) and \(4, 1, 6\)",
    ),
    "too wide": (
        lambda: kernel.rotate(X, *SINCOS, Turn("half", "half", 3)),
        ValueError,
        "within the channels from 3 on; got 6 pairs for 14 channels",
    ),
    "unlike pairs": (
        lambda: kernel.rotate_all([X, X], [SINCOS, [table[..., :5] for table in SINCOS]], HALVES),
        ValueError,
        "as many pairs as each other.*; got 5 pairs",
    ),
    "narrow tables": (
        lambda: kernel.rotate(X.double(), *SINCOS, HALVES),
        TypeError,
        "tables for float64 must be float64; got float32 and float32",
    ),
    "half tables": (
        lambda: kernel.rotate(X, *[table.half() for table in SINCOS], HALVES),
        TypeError,
        "tables for float32 must be float32; got float16 and float16",
    ),
    "real positions": (
        lambda: kernel.rotate_by_rows([X], ROWS, [WHERE.float()], HALVES),
        TypeError,
        "positions must be integers; got float32",
    ),
    "requires grad, in place": (
        lambda: kernel.rotate_all([X.clone().requires_grad_()], [SINCOS], HALVES, inplace=True),
        ValueError,
        "tensors that are written in place must not be differentiated; got one that may be",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_anything_is_written(name, launches):
    call, error, message = BAD[name]
    before = X.clone()
    with pytest.raises(error, match=f"^rotate: .*{message}"):
        call()
    assert launches == [] and torch.equal(X, before)


def test_what_is_supported(monkeypatch):
    assert kernel.supports(X) is None and kernel.supports(torch.nn.Parameter(X)) is None
    assert kernel.supports(np.zeros(3)) == "dense torch tensors; got ndarray"
    assert kernel.supports(torch.eye(3).to_sparse()) == "dense torch tensors; got Tensor"
    assert kernel.supports(X.to(torch.complex64)).endswith("; got complex64")
    monkeypatch.setattr(kernel, "INTERPRETED", False)
    assert kernel.supports(torch.zeros(3)) == "a CUDA device; got cpu"


# The compiler, which needs no GPU. The interpreter does not check what it checks.

COMPILES = """
    import sys

    import torch
    import triton
    from triton.backends.compiler import GPUTarget

    from rope_xp.kernels import cuda as kernel
    from rope_xp.kernels import cuda_kernel
    from rope_xp.kernels.turn import Turn

    class Driver:
        def get_current_target(self):
            return GPUTarget("cuda", int(sys.argv[1]), 32)

        def get_current_device(self):
            return 0

        def get_current_stream(self, device):
            return 0

    class Compiling:
        def __getitem__(self, grid):
            return lambda *args, **options: compiled.append(ROTATE.warmup(*args, grid=grid, **options))

    triton.runtime.driver.set_active(Driver())
    kernel.INTERPRETED = True  # so that tensors of the CPU are taken; they are not read
    ROTATE, cuda_kernel.rotate, compiled = cuda_kernel.rotate, Compiling(), []

    def qk(dtype=torch.bfloat16, batch=1, seq=64, dim=128):
        return [torch.empty(batch, heads, seq, dim, dtype=dtype) for heads in (8, 2)]

    def compile_all(turn, dtype=torch.bfloat16, inplace=False, seq=64, batch=1, dim=128):
        table = torch.empty(1, 1, seq, 64, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
        kernel.rotate_all(qk(dtype, batch, seq, dim), [(table, table)] * 2, turn, inplace=inplace)
        return compiled[-1].asm["ptx"]

    def compile_positions(dtype=torch.bfloat16, seq=64):
        where = [torch.empty(1, 1, seq, dtype=torch.int64)] * 2
        turns = torch.empty(2, 64, dtype=torch.int64)
        kernel.rotate_by_positions(qk(dtype, seq=seq), turns, where, Turn("half", "half"), scale=1.5)
        return compiled[-1].asm["ptx"]

    def compile_rows(seq=64):
        table, where = torch.empty(4096, 64), [torch.empty(1, 1, seq, dtype=torch.int64)] * 2
        kernel.rotate_by_rows(qk(seq=seq), (table, table), where, Turn("half", "half"))
        return compiled[-1].asm["ptx"]
"""


def compile_in_another_process(script, tmp_path, capability=90):
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    source = tmp_path / "compiles.py"
    source.write_text(textwrap.dedent(COMPILES) + textwrap.dedent(script))
    run = subprocess.run(
        [sys.executable, str(source), str(capability)], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


def test_compiles_for_gpus(tmp_path):
    script = """
        import re

        for turn in (Turn("half", "half"), Turn("interleaved", "interleaved")):
            text = compile_all(turn)
            accesses = set(re.findall(r"(?:ld|st)\\.global\\S*", text))
            assert accesses == {"ld.global.v4.b32", "st.global.v4.b32"}, accesses  # 16 bytes each
            assert "cvt.rn.bf16" in text and ".local" not in text
        text = compile_all(Turn("interleaved", "half", first_channel=64), inplace=True, dim=192)
        loop = re.findall(r"(ld|st)\\.global|(bar)\\.sync", text[text.rindex("Loop Header") :])
        loop = ["".join(each) for each in loop]
        assert loop[:2] == ["ld", "ld"] and "bar" in loop[: loop.index("st")] and "ld" not in loop[loop.index("st") :]
        for read in ("half", "interleaved"):
            for write in ("half", "interleaved"):
                compile_all(Turn(read, write), inplace=True)
                assert ("ttg.barrier" in compiled[-1].asm["ttgir"]) == (read != write)
        for dtype in (torch.float32, torch.float16, torch.float64):
            compile_all(Turn("half", "interleaved", 0, 1, True), dtype)
        compile_all(Turn("half", "half", blocks=2))
        assert compile_positions().count(".local") == 0
        compile_positions(torch.float64)
        compile_rows()
    """
    compile_in_another_process(script, tmp_path)


def test_compiles_for_older_gpus(tmp_path):
    compile_in_another_process('compile_all(Turn("interleaved", "half"))', tmp_path, capability=80)


def test_lengths_compile_nothing_anew(tmp_path):
    """From decoding to long prefill. What strides are multiples of depends on the width alone, and is kept."""
    script = """
        for seq in (1, 2, 3, 5, 16, 17, 64, 100, 1024, 4097):
            for batch in (1, 2, 16):
                compile_all(Turn("half", "half"), seq=seq, batch=batch)
                compile_all(Turn("half", "half"), seq=seq, batch=batch, dim=136)
            compile_positions(seq=seq)
            compile_rows(seq=seq)
        assert len(ROTATE.device_caches[0][0]) == 4, len(ROTATE.device_caches[0][0])
        assert "st.global.v4.b32" in compile_all(Turn("half", "half"), seq=3, dim=136)
    """
    compile_in_another_process(script, tmp_path)


def test_without_a_c_compiler_the_kernel_cannot_be_imported(tmp_path):
    """Then the choice of the fastest kernel goes on to another, as images for deployment have none."""
    script = """
        import torch

        torch.cuda.is_available = lambda: True
        try:
            import rope_xp.kernels.cuda
        except ImportError as problem:
            assert str(problem).startswith("Triton cannot launch kernels here: "), problem
        else:
            raise AssertionError("imported")
    """
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0", "CC": "/no/compiler"}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
