"""The Triton kernel, on a GPU where one is at hand and else in Triton's interpreter, against complex numbers."""

import dataclasses
import io
import math
import textwrap

import numpy as np
import oracle
import pytest
import torch
from libraries import LIBRARIES, ROUNDOFF
from programs import run
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

from rope_xp import RotaryEmbedding, XPos
from rope_xp._core import phases
from rope_xp._core.kernels import autograd, cuda_kernel, reference
from rope_xp._core.kernels import cuda as kernel
from rope_xp._core.kernels.pair_rotation import Rotation

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}
HALVES, NEIGHBOURS = Rotation("half", "half"), Rotation("interleaved", "interleaved")
TURNS = [Rotation(read, write) for read in ("half", "interleaved") for write in ("half", "interleaved")]
NUMPY = LIBRARIES["torch"].numpy


def random(*shape, seed=0, dtype="float32"):
    return LIBRARIES["torch"].random(*shape, seed=seed, dtype=dtype).to(DEVICE)


def tables(angles, dtype="float32"):
    return tuple(table.to(DEVICE) for table in LIBRARIES["torch"].tables(angles, dtype))


def rotate(x, sin, cos, rotation):
    return kernel.rotate_all([x], [(sin, cos)], rotation)[0]


def channels(layout, pairs, blocks):
    """The first and the second channel of each pair."""
    pair = np.arange(pairs)
    if layout == "interleaved":
        return 2 * pair, 2 * pair + 1
    width = pairs // blocks
    first = pair // width * 2 * width + pair % width
    return first, first + width


def expected(x, angles, rotation):
    """Complex multiplication; `angles` broadcast against `x`."""
    pairs = angles.shape[-1]
    reads, writes = (
        [rotation.first_channel + each for each in channels(way, pairs, rotation.blocks)]
        for way in (rotation.read, rotation.write)
    )
    result = np.array(x, dtype=np.float64)
    numbers = (result[..., reads[0]] + 1j * result[..., reads[1]]) * np.exp((-1j if rotation.inverse else 1j) * angles)
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


@pytest.fixture(scope="module", autouse=True)
def proven():
    """Each dtype has been met before, as its first call in a process launches more."""
    for dtype in DTYPES:
        ROPE.describe(random(1, 14, dtype=dtype))


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


@pytest.mark.parametrize("draw", range(16))
def test_any_arrays_in_one_launch(draw, launches, monkeypatch):
    """Each dtype with each pair of layouts; the rest is random."""
    rng, dtype, (read, write, *_) = np.random.default_rng(draw), list(DTYPES)[draw % 4], TURNS[(draw + draw // 4) % 4]
    monkeypatch.setattr(kernel, "PROGRAMS", int(rng.choice([1, 3, 1024])))  # so that programs take several heads
    blocks = int(rng.choice([1, 2, 3])) if read == write == "half" else 1
    rotation = Rotation(read, write, int(rng.choice([0, 3, 8])), blocks, inverse=bool(rng.random() < 0.5))
    pairs = blocks * int(rng.integers(1, 7))
    inplace = bool(rng.random() < 0.4)
    arrays, wholes, sincos, truths, references = [], [], [], [], []
    for _ in range(int(rng.integers(1, 4))):
        axes = tuple(rng.choice([1, 2, 3, 5, 9], int(rng.integers(0, 5))).tolist())
        x, whole = strided(
            rng, (*axes, rotation.first_channel + 2 * pairs + int(rng.choice([0, 0, 1, 20]))), DTYPES[dtype]
        )
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
        truths.append(expected(NUMPY(x), angles, rotation))
        references.append(reference.rotate(x, *both, rotation))
    before = [whole.clone() for whole in wholes]
    results = kernel.rotate_all(arrays, sincos, rotation, inplace=inplace)
    assert len(launches) == 1
    for x, whole, old, result, truth, other in zip(arrays, wholes, before, results, truths, references, strict=True):
        size = 2 * max(1.0, np.abs(truth).max())
        assert_rounded_once(result, truth, size)
        # Two roundings of numbers that agree but for those of float32 (float64).
        away = 2 * ROUNDOFF[dtype] * np.abs(truth) + 8 * ROUNDOFF["float64" if dtype == "float64" else "float32"] * size
        assert np.all(np.abs(NUMPY(result) - NUMPY(other)) <= away + 2.0**-24)
        passing = torch.ones(x.shape[-1], dtype=torch.bool, device=DEVICE)
        passing[rotation.first_channel : rotation.first_channel + 2 * pairs] = False
        if inplace:
            assert result is x
            x.fill_(0.0)
            old_view = old.as_strided(x.size(), x.stride(), x.storage_offset())
            assert torch.equal(other[..., passing], old_view[..., passing])
            old_view.fill_(0.0)
        else:
            assert torch.equal(result[..., passing], x[..., passing])
        assert torch.equal(whole, old)


@pytest.mark.parametrize("rotation, dtype", [*zip(TURNS, DTYPES)], ids=str)
def test_in_place_equals_out_of_place(rotation, dtype):
    """Also where what is written lies where something else is read."""
    q, k = random(2, 3, 5, 42, dtype=dtype), random(2, 5, 5, 42, seed=1, dtype=dtype)
    sincos = tables(np.random.default_rng(2).standard_normal((2, 1, 5, 20)), dtype)
    outs = kernel.rotate_all([q, k], [sincos, sincos], rotation)
    for x, out in zip(kernel.rotate_all([q, k], [sincos, sincos], rotation, inplace=True), outs, strict=True):
        assert torch.equal(x, out)
    back = kernel.rotate_all([q, k], [sincos, sincos], rotation.inverted())
    size = ROUNDOFF[dtype] * 16
    for x, seed in zip(back, (0, 1), strict=True):
        assert (x - random(*x.shape, seed=seed, dtype=dtype)).abs().max() <= size


@pytest.mark.parametrize("shape", [(0, 3, 14), (5, 0, 14)])
def test_empty_axes_launch_nothing(shape, launches):
    x, sincos = random(*shape), tables(np.zeros((shape[0], 1, 5)))
    assert rotate(x, *sincos, HALVES).shape == shape
    kernel.rotate_all([x], [sincos], HALVES, inplace=True)
    assert launches == []
    filled = random(2, 3, 14)
    _, out = kernel.rotate_all([x, filled], [sincos, tables(np.ones((2, 1, 5)))], HALVES)
    assert_rounded_once(out, expected(NUMPY(filled), np.ones((2, 1, 5)), HALVES), 8.0)
    assert len(launches) == 1


def test_a_vector_alone_and_six_axes():
    x, angles = random(14), np.random.default_rng(1).standard_normal(7)
    assert_rounded_once(rotate(x, *tables(angles), HALVES), oracle.rotate(NUMPY(x), angles, "half"), 8.0)
    x, angles = random(2, 3, 1, 2, 3, 14), np.random.default_rng(1).standard_normal((2, 1, 1, 2, 1, 7))
    truth = oracle.rotate(NUMPY(x), np.broadcast_to(angles, (2, 3, 1, 2, 3, 7)), "interleaved")
    assert_rounded_once(rotate(x, *tables(angles), NEIGHBOURS), truth, 8.0)


def test_results_lie_like_their_arrays():
    """Those of queries seen through a transposition are written in their order."""
    x = random(2, 5, 3, 14).transpose(1, 2)
    assert rotate(x, *tables(np.zeros((5, 7))[None, None]), HALVES).stride() == x.stride()
    packed = random(2, 5, 3, 3, 14)[:, :, 0]
    assert rotate(packed, *tables(np.zeros((1, 5, 1, 7))), HALVES).is_contiguous()


# Rows of a table, and angles from positions.


INTEGERS = (torch.int32, torch.int64)


def test_rows_of_a_strided_table_for_some_axes():
    angles = np.random.default_rng(0).standard_normal((10, 14))
    sincos = tuple(table[::2, ::2] for table in tables(angles))
    x, where = random(2, 3, 5, 14), torch.tensor([4, 0, 3, 1, 2], device=DEVICE)
    truth = expected(NUMPY(x), angles[::2, ::2][NUMPY(where).astype(int)], NEIGHBOURS)
    for given in (where[None, None], where[None, None].expand(2, 3, 5), where.repeat_interleave(2)[::2][None, None]):
        assert_rounded_once(kernel.rotate_all([x], [(*sincos, given)], NEIGHBOURS)[0], truth, 8.0)


FREQUENCIES = tuple(float(w) for w in oracle.geometric(10_000.0, 14))
POSITIONS = [0, 1, -1, 7, 4095, 131_071, -131_071, 2**24 + 1, 2**31 - 1, -(2**31), 123_456_789, -987_654_321]
WIDE = [2**31, -(2**31) - 1, 2**40 + 12_345, 2**62 + 1, -(2**63), 2**63 - 1]


def rows_of(where, dtype):
    """Sine and cosine that the kernel computes: it turns the pair (0, 1) to (-sin, cos), and (1, 0) to (cos, sin)."""
    unit = torch.zeros(len(where), 14, dtype=DTYPES[dtype], device=DEVICE)
    unit[:, :7] = 1.0
    (out,) = kernel.ByPositions(phases.Frequencies(FREQUENCIES), 1.0).rotate_all([unit], [(where,)], HALVES)
    return NUMPY(out[:, 7:]), NUMPY(out[:, :7])


@pytest.mark.parametrize("integer", INTEGERS, ids=str)
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


@pytest.mark.parametrize("rotation, dtype", [*zip([*TURNS, HALVES.inverted()], [*DTYPES, "bfloat16"])], ids=str)
def test_positions_give_what_their_tables_give(rotation, dtype, launches):
    by_positions = kernel.ByPositions(phases.Frequencies(FREQUENCIES), 1.0)
    where = torch.tensor([[3, 131_071, -7], [2**31 - 1, 0, 12]], device=DEVICE)[:, None]
    turn_of = 2 * oracle.mpmath.pi
    angles = np.asarray(
        [[float(oracle.mpmath.mpf(p) * w % turn_of) for w in FREQUENCIES] for p in where.ravel().tolist()]
    ).reshape(2, 1, 3, 7)
    q, k = random(2, 5, 3, 20, dtype=dtype), random(2, 1, 3, 20, seed=1, dtype=dtype)
    truths = [expected(NUMPY(x), angles, rotation) for x in (q, k)]
    for inplace in (False, True):
        results = by_positions.rotate_all([q, k], [(where,), (where,)], rotation, inplace)
        for result, truth in zip(results, truths, strict=True):
            assert_rounded_once(result, truth, 16.0)
    assert len(launches) == 2


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("source", ["tables", "rows", "positions"])
def test_a_program_rotates_other_arrays_of_its_signature(source, inplace, launches):
    """Bit for bit as without a program, also by angles that lack axes of size one."""
    rotation, where = Rotation("interleaved", "half", first_channel=1), torch.tensor([3, 0, 4, 1, 2], device=DEVICE)

    def arguments(seed):
        random_angles = np.random.default_rng(seed).standard_normal((5, 6))
        sincos, each = tables(random_angles), where.roll(seed)
        angles = {"tables": sincos, "rows": (*sincos, each), "positions": (each,)}[source]
        aligned = [angle[None, :, None] for angle in angles]
        if source == "rows":
            aligned[:2] = sincos
        q, k = random(2, 5, 3, 14, seed=seed).transpose(1, 2).contiguous().transpose(1, 2), random(2, 5, 2, 14)
        return [q, k], [tuple(aligned)] * 2, [angles] * 2

    by = kernel.ByPositions(phases.Frequencies(FREQUENCIES[:6]), 1.25) if source == "positions" else kernel
    program = by.prepare(*arguments(0)[:2], rotation, inplace)
    assert launches == []
    for seed in (0, 1):
        xs, aligned, given = arguments(seed)
        truths = by.rotate_all([x.clone() for x in xs], aligned, rotation)
        results = program.run(xs, given)
        for x, result, truth in zip(xs, results, truths, strict=True):
            assert torch.equal(result, truth) and result.stride() == truth.stride() and (result is x) == inplace
    assert len(launches) == 4


def test_there_is_no_program_where_a_launch_is_not_all():
    """Sines and cosines that must be copied, and arrays of which one may be rotated before the other fails."""
    q, k = random(2, 5, 3, 14), random(2, 5, 2, 14, dtype="float64")
    sin, cos = tables(np.ones((2, 5, 1, 7)))
    wide = tables(np.ones((2, 5, 1, 7)), "float64")
    assert kernel.prepare([q], [(sin, cos.transpose(0, 1).contiguous().transpose(0, 1))], HALVES) is None
    assert kernel.prepare([q, k], [(sin, cos), wide], HALVES, inplace=True) is None
    assert kernel.prepare([q, k], [(sin, cos), wide], HALVES) is not None


def test_calls_decide_once(launches, monkeypatch):
    """By tables, by rows, by positions and in place: later calls do not prepare anything."""
    q, k = qk()
    sincos, where = ROPE.sincos(torch.arange(5, device=DEVICE), like=q), torch.arange(5, device=DEVICE)
    rope = dataclasses.replace(ROPE)
    calls = [
        lambda: rope(q, k, sincos=sincos, seq_dim=1),
        lambda: rope(q, k, sincos=sincos, positions=where, seq_dim=1),
        lambda: rope(q, k, positions=where, seq_dim=1),
        lambda: rope(q, k, seq_dim=1),
        lambda: rope.rotate_inplace(*qk(), sincos=sincos, seq_dim=1),
    ]
    truths = [call() for call in calls]
    monkeypatch.setattr(kernel, "rotate_all", None)
    monkeypatch.setattr(kernel, "prepare", None)
    for call, truth in zip(calls, truths, strict=True):
        assert truth is None or all(map(torch.equal, call(), truth))
    assert len(launches) == 9


# What torch sees.


def sources(dtype="float64"):
    """A rotation by each source of angles, as a function of q and k, "batch heads seq dim"."""
    sincos = tables(np.random.default_rng(2).standard_normal((2, 1, 5, 6)), dtype)
    rows = [table.reshape(10, 6) for table in sincos]
    where = torch.arange(10, device=DEVICE).reshape(2, 1, 5)
    by_positions = kernel.ByPositions(phases.Frequencies(FREQUENCIES[:6]), 1.5)
    rotation = Rotation("interleaved", "half", first_channel=1)
    return {
        "tables": lambda *xs: autograd.rotate_all(xs, [sincos] * len(xs), rotation, kernel),
        "rows": lambda *xs: autograd.rotate_all(xs, [(*rows, where)] * len(xs), rotation, kernel),
        "positions": lambda *xs: autograd.rotate_all(xs, [(where,)] * len(xs), rotation, by_positions),
    }


SOURCES = ("tables", "rows", "positions")


@pytest.mark.parametrize("source", SOURCES)
def test_gradients(source, launches):
    call = sources()[source]
    q = random(2, 2, 5, 14, dtype="float64").requires_grad_()
    k = random(2, 1, 5, 14, seed=1, dtype="float64").requires_grad_()
    assert torch.autograd.gradcheck(call, (q, k), fast_mode=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, (q, k), fast_mode=True)
    del launches[:]
    outs = call(q, k)
    gradients = torch.autograd.grad(outs, (q, k), [out.detach().sin() for out in outs])
    assert len(launches) == 2
    for x, out, gradient in zip((q, k), outs, gradients, strict=True):  # the rotation is linear
        assert torch.allclose((out.detach().sin() * out).sum(), (gradient * x).sum(), rtol=1e-12)


@pytest.mark.parametrize("source", SOURCES)
def test_transforms(source):
    """Where the kernel is blind, what it knows becomes tables."""
    call = sources()[source]
    one = lambda q: call(q)[0]  # noqa: E731
    loss = lambda q: one(q).pow(3).sum()  # noqa: E731
    q = random(3, 2, 2, 5, 14, dtype="float64")
    each = torch.stack([one(x) for x in q])
    derivatives = torch.stack([torch.autograd.grad(loss(x.requires_grad_()), x)[0] for x in q.clone()])
    assert torch.allclose(torch.vmap(one)(q), each, rtol=0, atol=1e-14)
    assert torch.allclose(torch.vmap(torch.vmap(one, 1, 1))(q[:, :, None]), each[:, :, None], rtol=0, atol=1e-14)
    assert torch.allclose(torch.vmap(torch.func.grad(loss))(q), derivatives, rtol=0, atol=1e-13)
    assert torch.allclose(torch.func.jvp(one, (q[0],), (q[1],))[1], each[1], rtol=0, atol=1e-14)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(one(forward_ad.make_dual(q[0], q[1]))).tangent
    assert torch.allclose(tangent, each[1], rtol=0, atol=1e-14)
    rows = torch.autograd.grad(one(x := q[0].clone().requires_grad_()), x, q, is_grads_batched=True)[0]
    assert torch.allclose(rows[1], torch.func.vjp(one, q[0])[1](q[1])[0], rtol=0, atol=1e-14)
    x = q[0]
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert one(mode.from_tensor(x)).shape == x.shape


def test_nothing_is_kept_for_the_gradient_but_positions():
    """A copy of them, as they may change."""
    kept = []
    q, where = random(2, 5, 3, 14).requires_grad_(), torch.arange(5, device=DEVICE)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        ROPE(q, positions=where, seq_dim=1)
    (copy,) = kept
    assert torch.equal(copy.flatten(), where) and copy.data_ptr() != where.data_ptr()


# The public functions.

ROPE = RotaryEmbedding(
    head_dim=14, layout="half", base=10_000.0, rotary_dim=10, first_channel=2, attention_factor=1.25, kernel="triton"
)
REFERENCE = dataclasses.replace(ROPE, kernel="reference")


def qk(dtype="float32", seq=5):
    return random(2, seq, 3, 14, dtype=dtype), random(2, seq, 2, 14, seed=1, dtype=dtype)


def same(one, other):
    return torch.equal(one.nan_to_num(1e3), other.nan_to_num(1e3))


@pytest.mark.parametrize("dtype, integer", [*zip(["bfloat16", "float64"], INTEGERS)], ids=str)
def test_rows_by_hand_are_those_of_the_kernel(dtype, integer, launches):
    """Those that a table lacks are not a number."""
    q, k = qk(dtype)
    sincos = ROPE.sincos(torch.arange(50, device=DEVICE), like=q)
    last = torch.iinfo(integer).max
    for given in ([3, 49, 7, 7, 0], [-1, 50, last, 3, -last - 1]), [3, 49, -7, 7, 0]:
        where = torch.tensor(given, dtype=integer, device=DEVICE)
        truth = ROPE(q, k, sincos=reference.tables_of([(*sincos, where)])[0], seq_dim=1)
        del launches[:]
        results = ROPE(q, k, sincos=sincos, positions=where, seq_dim=1)
        assert all(map(same, results, truth))
        known = ((where >= 0) & (where < 50)).expand(2, 5)
        assert torch.equal(~results[0][..., 2:12].isnan().any(-1).any(-1), known)
        written = [x.clone() for x in (q, k)]
        ROPE.rotate_inplace(*written, sincos=sincos, positions=where, seq_dim=1)
        assert all(map(same, written, truth)) and len(launches) == 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_positions_give_what_tables_give(dtype, launches):
    q, k = qk(dtype)
    for given in (None, [3, 1, 7, 100_003, -(2**31)], [[3, 1, 7, 2**31 - 1, -5], [0, 1, 2, 3, 4]]):
        where = None if given is None else torch.tensor(given, device=DEVICE)
        sincos = ROPE.sincos(torch.arange(5, device=DEVICE) if where is None else where, like=q)
        truth = ROPE(q, k, sincos=sincos, seq_dim=1)
        del launches[:]
        results = ROPE(q, k, positions=where, seq_dim=1)
        assert len(launches) == 1
        for result, other in zip(results, truth, strict=True):
            # Both tables are within 2e-7; then sums of two products, and a rounding, of which the sums may differ.
            size = 1.25 * 2 * float(other.abs().max())
            away = size * (4e-7 if dtype != "float64" else 1e-15) + 2 * ROUNDOFF[dtype] * other.abs().double()
            assert torch.all((result - other).abs() <= away)


def test_tables_are_made_where_the_kernel_makes_no_such_angles(launches):
    q, k = qk()
    sections = {"inv_freq": [[1.0, 0.0], [0.0, 0.5]], "base": None, "rotary_dim": None}
    where = torch.arange(5, device=DEVICE)
    for rope, positions in (
        (dataclasses.replace(ROPE, phase="float32"), where + 100_003),  # where phases differ by 1e-3
        (dataclasses.replace(ROPE, xpos=XPos()), where),
        (dataclasses.replace(ROPE, **sections), torch.stack([where, where])),
        (ROPE, where + 0.5),
    ):
        results = rope(q, k, positions=positions, seq_dim=1)
        truths = dataclasses.replace(rope, kernel="reference")(q, k, positions=positions, seq_dim=1)
        for one, other in zip(results, truths, strict=True):
            assert torch.allclose(one, other, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="heads_dim must be given if"):
        ROPE(q, seq_dim=1, heads_dim=2)


def test_arrays_of_several_dtypes(launches):
    q, k = random(2, 5, 3, 14, dtype="bfloat16"), random(2, 5, 2, 14, dtype="float64")
    sincos, where = ROPE.sincos(np.arange(9), like=k), torch.tensor([1, 8, 3, 0, 2], device=DEVICE)
    for options in ({"sincos": [table[:5] for table in sincos]}, {"sincos": sincos, "positions": where}, {}):
        for x, result in zip((q, k), ROPE(q, k, seq_dim=1, **options), strict=True):
            assert torch.equal(result, ROPE(x, seq_dim=1, **options))
    assert len(launches) == 3 * 4


def test_frequencies_are_copied_once(monkeypatch):
    """No later call waits for the host, and none depends on those before it."""
    x = qk()[0]
    ROPE(x, seq_dim=1)
    other = dataclasses.replace(ROPE, base=500.0, inv_freq=None)
    truth = other(x, seq_dim=1)
    monkeypatch.setattr(phases.Row, "revolutions", None)
    ROPE(x, seq_dim=1)
    assert torch.equal(other(x, seq_dim=1), truth)
    assert not torch.equal(truth, ROPE(x, seq_dim=1))


def test_a_first_call_inside_a_transform_or_a_mode_leaves_no_trace():
    """What is kept for later calls is a plain tensor."""
    x = qk()[0]
    for number, context in enumerate((torch.inference_mode(), torch.device("meta"), forward_ad.dual_level())):
        rope = dataclasses.replace(ROPE, base=100.0 + number, inv_freq=None)
        with context:
            first = rope(x, seq_dim=1)
        leaf = x.clone().requires_grad_()
        rope(leaf, seq_dim=1).sum().backward()
        assert torch.equal(first, rope(x, seq_dim=1))
    rope = dataclasses.replace(ROPE, base=99.0, inv_freq=None)
    torch.func.grad(lambda weight: (rope(x, seq_dim=1) * weight).sum())(torch.ones_like(x))
    torch.vmap(lambda weight: rope(x, seq_dim=1) * weight)(torch.ones(2, 1, device=DEVICE))
    assert all(type(each) is torch.Tensor for each in rope(x, x, seq_dim=1))
    assert torch.autograd.gradcheck(lambda x: rope(x, seq_dim=1), x[:1, :2].double().requires_grad_(), fast_mode=True)


# Compilers.


def arguments(inplace):
    sin, cos = tables(np.random.default_rng(2).standard_normal((2, 1, 5, 6)))
    q, k = random(2, 2, 5, 14), random(2, 5, 1, 14, seed=1).transpose(1, 2)
    xs = [q, k] if inplace else [q.requires_grad_(), k.requires_grad_()]
    return (xs, [sin, sin], [cos, cos], *Rotation("half", "interleaved", 2))


@pytest.mark.parametrize("inplace", [False, True])
def test_the_operators_are_registered_as_torch_checks(inplace):
    operator = torch.ops.rope_xp.rotate_ if inplace else torch.ops.rope_xp.rotate
    torch.library.opcheck(operator.default, arguments(inplace))


def operators(graph):
    return [name for node in graph.nodes if (name := str(node.target)).startswith("rope_xp")]


CALLS = {
    "positions": lambda rope, q, k: rope(q, k, seq_dim=1),
    "tables": lambda rope, q, k: rope(q, k, sincos=rope.sincos(torch.arange(q.shape[1], device=DEVICE)), seq_dim=1),
    "rows": lambda rope, q, k: rope(
        q,
        k,
        sincos=rope.sincos(torch.arange(9, device=DEVICE)),
        positions=torch.arange(q.shape[1], device=DEVICE) % 9,
        seq_dim=1,
    ),
}


@pytest.mark.compile
@pytest.mark.parametrize("name", CALLS)
def test_compiles_whole_to_one_operator(name):
    torch._dynamo.reset()
    counter, call = CompileCounterWithBackend("aot_eager"), CALLS[name]
    compiled = torch.compile(lambda q, k: call(ROPE, q, k), fullgraph=True, dynamic=True, backend=counter)
    for seq in (7, 8):
        q, k = qk(seq=seq)
        for one, other in zip(compiled(q, k), call(ROPE, q, k), strict=True):
            assert torch.allclose(one, other, rtol=0, atol=1e-5)
    assert counter.frame_count == 1
    assert operators(counter.graphs[0].graph) == ["rope_xp.rotate"]
    q.requires_grad_()  # and one of two alone
    compiled(q, k)[0].sin().sum().backward()
    gradient, q.grad = q.grad, None
    call(ROPE, q, k)[0].sin().sum().backward()
    assert torch.allclose(gradient, q.grad, rtol=0, atol=1e-5)


@pytest.mark.compile
def test_compiles_derivatives_that_operators_lack():
    """Of tables that are learned, and of transforms: by the reference."""
    x, inv_freq = qk()[0], torch.linspace(0.1, 1, 5, device=DEVICE)
    learned = lambda inv_freq: dataclasses.replace(  # noqa: E731
        ROPE, base=None, rotary_dim=None, inv_freq=inv_freq
    )(x, seq_dim=1)
    for call, given in (
        (torch.vmap(lambda x: ROPE(x, seq_dim=0)), x),
        (torch.func.grad(lambda x: ROPE(x, seq_dim=1).pow(3).sum()), x),
        (lambda x: torch.func.jvp(lambda x: ROPE(x, seq_dim=1), (x,), (x.cos(),))[1], x),
    ):
        torch._dynamo.reset()
        found = torch.compile(call, fullgraph=True, backend="aot_eager")(given)
        assert torch.allclose(found, call(given), rtol=0, atol=1e-3)
    torch._dynamo.reset()
    gradients = [
        torch.autograd.grad(call(inv_freq.requires_grad_()).pow(3).sum(), inv_freq)[0]
        for call in (learned, torch.compile(learned, fullgraph=True, backend="aot_eager"))
    ]
    assert torch.allclose(*gradients, rtol=0, atol=1e-3)


@pytest.mark.compile
def test_compiles_in_place_what_does_not_overlap():
    """What does is refused: while it is traced if the same tensor comes twice, else when it runs."""
    torch._dynamo.reset()
    x, sincos = qk()[0], ROPE.sincos(np.arange(5), like=qk()[0])
    before = x.tolist()
    for second in (lambda x: x, lambda x: x[:, :, 1:]):
        call = torch.compile(lambda x: ROPE.rotate_inplace(x, second(x), sincos=sincos, seq_dim=1), backend="eager")  # noqa: B023
        with pytest.raises(ValueError, match="x must share no memory"):
            call(x)
        assert x.tolist() == before


def test_operators_stay_within_their_arrays():
    rotate, x = torch.ops.rope_xp.rotate, random(5, 3, 14)
    rotation = ("half", "half", 0, 1, False)
    for sin in (random(5, 1, 9), random(2, 1, 7), random(5, 7)):
        with pytest.raises(ValueError, match=r"^rotate: .*must.*; got"):
            rotate([x], [sin], [sin], *rotation)
    with pytest.raises(ValueError, match="shorter"):
        rotate([x, x], [random(5, 1, 7)], [random(5, 1, 7)], *rotation)


@pytest.mark.parametrize("rows", [False, True])
def test_positions_may_change_before_the_derivative_and_come_from_inference_mode(rows):
    x, where = random(5, 3, 14).requires_grad_(), torch.arange(5, device=DEVICE)
    options = {"sincos": ROPE.sincos(torch.arange(9, device=DEVICE), like=x.detach())} if rows else {}
    (truth,) = torch.autograd.grad(ROPE(x, positions=where, seq_dim=0, **options).sum(), x)
    with torch.inference_mode():
        frozen = where.clone()
    first, second = (ROPE(x, positions=each, seq_dim=0, **options).sum() for each in (where, frozen))
    where.add_(1)
    for rotated in (first, second):
        assert torch.equal(torch.autograd.grad(rotated, x)[0], truth)


@pytest.mark.compile
def test_compiles_in_place():
    torch._dynamo.reset()
    sincos = ROPE.sincos(np.arange(5), like=qk()[0])

    def call(x):
        y = x + 1
        ROPE.rotate_inplace(x, y, sincos=sincos, seq_dim=1)
        return x * 2, y

    x, other = qk()[0], qk()[0]
    graphs = []
    torch.compile(call, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph)(x.clone())
    assert operators(graphs[0].graph) == ["rope_xp.rotate_"]
    torch._dynamo.reset()
    results = torch.compile(call, fullgraph=True, backend="inductor")(x)
    for one, truth in zip((x, *results), (other, *call(other)), strict=True):
        assert torch.equal(one, truth)


class Rotates(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.call = CALLS[name]

    def forward(self, q, k):
        return self.call(ROPE, q, k)


@pytest.mark.compile
@pytest.mark.parametrize("name, strict", [("positions", True), ("rows", False)])
def test_exports(name, strict):
    sizes = {1: torch.export.Dim("seq", min=2, max=4096)}
    program = torch.export.export(Rotates(name), qk(), dynamic_shapes={"q": sizes, "k": sizes}, strict=strict)
    assert operators(program.graph) == ["rope_xp.rotate.default"]
    saved = io.BytesIO()
    torch.export.save(program, saved)
    saved.seek(0)
    given = qk(seq=9)
    for one, other in zip(torch.export.load(saved).module()(*given), Rotates(name)(*given), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-5)


@pytest.mark.compile
def test_the_first_call_of_a_process_may_be_compiled(tmp_path):
    script = """
        import torch
        from rope_xp import RotaryEmbedding
        rope = RotaryEmbedding(head_dim=14, layout="half", base=1e4, kernel="triton")
        x = torch.ones(5, 3, 14, device="DEVICE")
        compiled = torch.compile(lambda x: rope(x, seq_dim=0), fullgraph=True, backend="eager")
        assert torch.allclose(compiled(x), rope(x, seq_dim=0), rtol=0, atol=1e-6)
    """
    run_in_another_process(script.replace("DEVICE", DEVICE), tmp_path, TRITON_INTERPRET=str(int(not ON_GPU)))


def test_what_is_written_in_place_is_counted():
    x, leaf = random(5, 14), random(5, 14).requires_grad_()
    product = leaf * x
    torch.ops.rope_xp.rotate_([x], *([table] for table in tables(np.ones((5, 7)))), *HALVES)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    with torch.inference_mode():
        x = random(5, 14)
        ROPE.rotate_inplace(x, sincos=ROPE.sincos(np.arange(5), like=x), seq_dim=0)


# The compiler, which needs no GPU. The interpreter does not check what it checks.

COMPILES = """
    import os

    import torch
    import triton
    from triton.backends.compiler import GPUTarget

    from rope_xp._core import phases
    from rope_xp._core.kernels import cuda as kernel
    from rope_xp._core.kernels import cuda_kernel
    from rope_xp._core.kernels.pair_rotation import Rotation

    class Driver:
        def get_current_target(self):
            return GPUTarget("cuda", int(os.environ["CAPABILITY"]), 32)

        def get_current_device(self):
            return 0

        def get_current_stream(self, device):
            return 0

    class Compiling:
        def __getitem__(self, grid):
            return lambda *args, **options: compiled.append(ROTATE.warmup(*args, grid=grid, **options))

    triton.runtime.driver.set_active(Driver())
    ROTATE, cuda_kernel.rotate, compiled = cuda_kernel.rotate, Compiling(), []

    def qk(dtype=torch.bfloat16, batch=1, seq=64, dim=128):
        return [torch.empty(batch, heads, seq, dim, dtype=dtype) for heads in (8, 2)]

    def compile_all(turn, dtype=torch.bfloat16, inplace=False, seq=64, batch=1, dim=128):
        table = torch.empty(1, 1, seq, 64, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
        kernel.rotate_all(qk(dtype, batch, seq, dim), [(table, table)] * 2, turn, inplace=inplace)
        return compiled[-1].asm["ptx"]

    def compile_positions(dtype=torch.bfloat16, seq=64):
        where = torch.empty(1, 1, seq, dtype=torch.int64)
        by_positions = kernel.ByPositions(phases.Frequencies((1.0,) * 64), 1.5)
        by_positions.rotate_all(qk(dtype, seq=seq), [(where,), (where,)], Rotation("half", "half"))
        return compiled[-1].asm["ptx"]

    def compile_rows(seq=64):
        table, where = torch.empty(4096, 64), torch.empty(1, 1, seq, dtype=torch.int64)
        kernel.rotate_all(qk(seq=seq), [(table, table, where)] * 2, Rotation("half", "half"))
        return compiled[-1].asm["ptx"]
"""


def run_in_another_process(script, tmp_path, **environment):
    run(tmp_path, textwrap.dedent(script), TRITON_CACHE_DIR=str(tmp_path), **{"TRITON_INTERPRET": "0", **environment})


def compile_in_another_process(script, tmp_path, capability="90"):
    run_in_another_process(textwrap.dedent(COMPILES) + textwrap.dedent(script), tmp_path, CAPABILITY=capability)


@pytest.mark.slow
def test_compiles_for_gpus(tmp_path):
    script = """
        import re

        for turn in (Rotation("half", "half"), Rotation("interleaved", "interleaved")):
            text = compile_all(turn)
            accesses = set(re.findall(r"(?:ld|st)\\.global\\S*", text))
            assert accesses == {"ld.global.v4.b32", "st.global.v4.b32"}, accesses  # 16 bytes each
            assert "cvt.rn.bf16" in text and ".local" not in text
        text = compile_all(Rotation("interleaved", "half", first_channel=64), inplace=True, dim=192)
        loop = re.findall(r"(ld|st)\\.global|(bar)\\.sync", text[text.rindex("Loop Header") :])
        loop = ["".join(each) for each in loop]
        assert loop[:2] == ["ld", "ld"] and "bar" in loop[: loop.index("st")] and "ld" not in loop[loop.index("st") :]
        for read in ("half", "interleaved"):
            for write in ("half", "interleaved"):
                compile_all(Rotation(read, write), inplace=True)
                assert ("ttg.barrier" in compiled[-1].asm["ttgir"]) == (read != write)
        for dtype in (torch.float32, torch.float16, torch.float64):
            compile_all(Rotation("half", "interleaved", 0, 1, True), dtype)
        compile_all(Rotation("half", "half", blocks=2))
        assert compile_positions().count(".local") == 0
        compile_positions(torch.float64)
        compile_rows()
    """
    compile_in_another_process(script, tmp_path)


@pytest.mark.slow
def test_compiles_for_older_gpus(tmp_path):
    compile_in_another_process('compile_all(Rotation("interleaved", "half"))', tmp_path, capability="80")


@pytest.mark.slow
def test_lengths_compile_nothing_anew(tmp_path):
    """From decoding to long prefill. What strides are multiples of depends on the width alone, and is kept."""
    script = """
        for seq in (1, 2, 3, 5, 16, 17, 64, 100, 1024, 4097):
            for batch in (1, 2, 16):
                compile_all(Rotation("half", "half"), seq=seq, batch=batch)
                compile_all(Rotation("half", "half"), seq=seq, batch=batch, dim=136)
            compile_positions(seq=seq)
            compile_rows(seq=seq)
        assert len(ROTATE.device_caches[0][0]) == 4, len(ROTATE.device_caches[0][0])
        assert "st.global.v4.b32" in compile_all(Rotation("half", "half"), seq=3, dim=136)
    """
    compile_in_another_process(script, tmp_path)


def test_without_a_c_compiler_the_kernel_cannot_be_imported(tmp_path):
    """Then the choice of the fastest kernel goes on to another, as images for deployment have none."""
    script = """
        import torch

        torch.cuda.is_available = lambda: True
        try:
            import rope_xp._core.kernels.cuda
        except ImportError as problem:
            assert str(problem).startswith("Triton cannot launch kernels here: "), problem
        else:
            raise AssertionError("imported")
    """
    run_in_another_process(script, tmp_path, CC="/no/compiler")


@pytest.mark.skipif(not ON_GPU, reason="CUDA graphs are recorded on a GPU")
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_replayed_graph_follows_positions(layout):
    rope = RotaryEmbedding(head_dim=14, layout=layout, base=10_000.0)
    q, k = random(2, 5, 6, 14), random(2, 5, 3, 14, seed=1)
    where = torch.arange(5, device=DEVICE)
    beside = torch.cuda.Stream()
    with torch.cuda.stream(beside):  # compiles the kernel and moves the words of frequencies
        rope(q, k, positions=where, seq_dim=1)
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        turned = rope(q, k, positions=where, seq_dim=1)
    for offset in (0, 7, 100_000):
        where.copy_(torch.arange(5, device=DEVICE) + offset)
        graph.replay()
        for one, other in zip(turned, rope(q, k, positions=where.clone(), seq_dim=1), strict=True):
            assert torch.equal(one, other)
