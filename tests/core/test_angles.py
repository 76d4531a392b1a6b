"""Sines and cosines, against mpmath: at most 2e-7 off at every int32 position, on every library."""

from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import oracle
import pytest
from compare import assert_numbers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from libraries import ROUNDOFF

from rope_xp import RotaryEmbedding, SinCos, fixed_pos_embedding, sinusoidal_pos_embedding
from rope_xp.arrays import exact_phases
from rope_xp.frequencies import geometric
from rope_xp.kernels import angles

HARD = [0, 1, -1, 255, 257, 2049, 4095, -65537, 131_071, 10**6, 2**24 + 1, -(2**30) - 7, 2**31 - 1, -(2**31)]
INT32 = np.concatenate([HARD, np.random.default_rng(0).integers(-(2**31), 2**31, 200)])
# Exact phases leave only float32's own rounding of the result and of the reduced angle.
ROUNDING = 5e-8
WHERE = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=9)


def containers(values, folder):
    """The same integers in all ways that NumPy holds them, each in the shape of the first."""
    plain = np.asarray(values)
    yield "int64", plain
    for kind in ("i1", "u1", "i2", "u2", "i4", "u4", ">i8", ">i4"):
        if (plain.astype(kind) == plain).all():
            yield kind, plain.astype(kind)
    yield "strided", np.repeat(plain, 3)[1::3]
    yield "backwards", plain[::-1].copy()[::-1]
    yield "read-only", np.frombuffer(plain.tobytes(), plain.dtype)
    yield "unaligned", np.frombuffer(b"x" + plain.tobytes(), "u1")[1:].view(plain.dtype)
    mapped = np.memmap(folder / "positions", dtype=plain.dtype, mode="w+", shape=plain.shape)
    mapped[...] = plain
    yield "in a file", mapped
    yield "broadcast", np.broadcast_to(plain, (2, len(plain)))[1]
    yield "a column", np.asfortranarray(np.stack([plain, plain]))[0]


@settings(max_examples=10, deadline=None)
@given(
    values=WHERE,
    kernel=st.sampled_from(["fastest", "blocked", "reference"]),
    phase=st.sampled_from(["exact", "float32"]),
)
@example(values=[0, 196], kernel="fastest", phase="float32")
@example(values=[0, 1, 100], kernel="fastest", phase="exact")  # in every integer dtype
@example(values=[0, -7, 4096, 2**24, -(2**30), 2**31 - 128], kernel="fastest", phase="exact")
@example(values=[0, -7, 4096, 2**24, -(2**30), 2**31 - 128], kernel="blocked", phase="exact")
def test_the_same_numbers_give_the_same_bits(xp, values, kernel, phase, tmp_path_factory):
    """Whatever holds them, and one at a time."""
    rope, like = embedding(kernel=kernel if kernel in xp.kernels else "fastest", phase=phase), xp.like()
    plain = np.asarray(values, np.int32)
    truth = [xp.numpy(table) for table in rope.sincos(plain, like=like)]
    for name, held in containers(values, tmp_path_factory.getbasetemp()):
        plain_memory = held.dtype.isnative and held.flags.carray and held.strides[0] > 0
        for own in (held, *([xp.array(held)] if plain_memory and held.dtype.name in xp.integers else [])):
            assert_bits(xp, rope.sincos(own, like=like), truth, name)
    for place, value in enumerate(plain[:3]):
        alone = [xp.numpy(table)[0] for table in rope.sincos(plain[place : place + 1], like=like)]
        if phase == "exact":  # the sines of float32 phases are the library's, which may depend on how many there are
            np.testing.assert_array_equal(alone, [table[place] for table in truth])
        for own in (value, np.asarray(value)):  # a scalar of NumPy, and an array without axes
            assert_bits(xp, rope.sincos(own, like=like), alone)
    if (plain.astype(np.float32).astype(np.int64) == plain).all() and plain.min() > -(2**31):
        for dtype in {"float32", "float64"} & set(xp.floats):
            for own in (plain.astype(dtype), xp.array(plain, dtype)):
                assert_bits(xp, rope.sincos(own, like=like), truth)


def embedding(dim=14, base=10_000.0, **options):
    return RotaryEmbedding(head_dim=dim, layout="half", base=base, **options)


def exact_sincos(rope, positions):
    """By mpmath, of the embedding's own frequencies."""
    return oracle.sin_cos(positions, [oracle.mpmath.mpf(w) for w in rope.inv_freq])


def assert_bits(xp, sincos, truth, name=""):
    for table, exact in zip(sincos, truth, strict=True):
        assert_numbers(xp, table, exact, name=name)


def assert_not_numbers(xp, sincos):
    for table in sincos:
        assert np.isnan(xp.numpy(table)).all()


def assert_close(xp, sincos, truth, bound):
    for table, exact in zip(sincos, truth, strict=True):
        assert np.abs(xp.numpy(table) - exact).max() <= bound


def test_positions_of_int32_lose_nothing_but_one_rounding(xp):
    """Of float64 frequencies. In float64 too, where it exists: not in MLX, and in JAX with x64 only (tests/jax)."""
    assert ("float64" in xp.floats) == (xp.name not in ("jax", "mlx"))
    for dim, base in [(6, 100.0), (128, 10_000.0), (36, 500_000.0), (96, 77_777.0), (22, 1e8), (22, 10_000.0)]:
        rope, positions = embedding(dim, base), xp.array(INT32, "int32")
        sincos = rope.sincos(positions)
        assert_close(xp, sincos, oracle.sin_cos(INT32, oracle.geometric(base, dim)), 2e-7)
    exact = exact_sincos(rope, INT32)
    assert_close(xp, sincos, exact, ROUNDING)
    if "float64" in xp.floats:
        sincos = rope.sincos(positions, like=xp.array(np.zeros(1)))
        assert xp.dtype_of(sincos.sin) == "float64"
        assert_close(xp, sincos, exact, 4e-16)


@pytest.mark.parametrize(
    "inv_freq", [((-1.0, 0.5), (0.5, -0.25)), ((0.0, 0.5), (-1.0, 0.0)), ((-0.5, 0.0), (0.0, 1.0))]
)
def test_angles_are_sums_over_axes(xp, inv_freq):
    """Also of negative frequencies, and of pairs that follow one axis each."""
    where = np.asarray([[3, 100, -7, 9], [8, 0, 5, -20]])
    angles = where.T @ np.asarray(inv_freq)
    rope = RotaryEmbedding(head_dim=4, layout="half", inv_freq=inv_freq)
    for kind in ("int32", "float32"):
        sincos = rope.sincos(xp.array(where, kind))
        assert_close(xp, sincos, (np.sin(angles), np.cos(angles)), ROUNDING)


def test_phases_are_the_same_integers_everywhere(xp):
    inv_freq = (*geometric(10_000.0, 14), 3.7, -0.3, 804.25)
    (row,) = exact_phases.Frequencies(inv_freq).rows
    positions = xp.array(INT32[:, None], "int32")
    found = exact_phases._phase(positions, row.revolutions(32, like=positions), 32, round_off=True)
    turns = [int(oracle.mpmath.floor(w / (2 * oracle.mpmath.pi) * oracle.mpmath.mpf(2) ** 64)) for w in inv_freq]
    exact = [[(p * f >> 32) % 2**32 for f in turns] for p in INT32.tolist()]
    np.testing.assert_array_equal(xp.numpy(found).astype(np.int64) % 2**32, exact)


def test_frequencies_of_a_base_and_a_width_are_kept(monkeypatch):
    one, other = np.arange(3), sinusoidal_pos_embedding(np.arange(3), 6, base=77.0)
    monkeypatch.setattr(angles, "geometric", None)
    np.testing.assert_array_equal(sinusoidal_pos_embedding(one, 6, base=77.0), other)
    for dim, base in ((6, 78.0), (8, 77.0)):
        with pytest.raises(TypeError, match="not callable"):
            sinusoidal_pos_embedding(one, dim, base=base)


@pytest.mark.parametrize("kind", ["int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("wide", ["float32", "float64"])
def test_differences_from_a_centre_are_rounded_twice(kind, wide):
    """Real positions are also rounded at a distance of up to 2**16."""
    random, limits = np.random.default_rng(0), (-(2**31), 2**31 - 1)
    for origin in (*limits, -70_001, -1, 0, 65_535, 65_536, 123_456_789):
        near = origin + np.concatenate([np.arange(-3, 4), random.integers(-(2**20), 2**20, 30)])
        positions = np.clip(np.concatenate([near, random.integers(*limits, 30)]) + (kind[0] == "f") / 3, *limits)
        positions = positions.astype(kind)
        found = exact_phases.difference(positions, origin, np.dtype(wide)).tolist()
        for difference, exact in zip(found, [Fraction(x) - origin for x in positions.tolist()]):
            size = 2 * abs(exact) + 2**16 * (kind[0] == "f")
            assert abs(Fraction(difference) - exact) <= size * Fraction(ROUNDOFF[wide])


@pytest.mark.parametrize("bits", [32, 64])
def test_phases_of_both_widths_are_exact(bits):
    """Of integers, as Python multiplies them; of fractions, within eight units. Arrays have the words of floats."""
    random, unit = np.random.default_rng(bits), 2**bits
    inv_freq = np.float32([*geometric(10_000.0, 14), 3.7, -0.3, 804.25, 65_535.9, *random.uniform(-9.0, 9.0, 20)])
    turns = [oracle.mpmath.mpf(float(w)) / (2 * oracle.mpmath.pi) for w in inv_freq]
    floats, array = (exact_phases.Frequencies(w).rows[0] for w in (tuple(map(float, inv_freq)), inv_freq))
    ends = [0, 1, -1, unit // 2 - 1, -unit // 2, 0xFFFF, 0x10000, -0x8000, unit >> 33, 5 << bits // 2]
    whole = np.concatenate([ends, random.integers(-unit // 2, unit // 2, 40)]).astype(f"int{bits}")[:, None]
    revolutions = floats.revolutions(bits, like=whole)
    for one, other in zip(revolutions, array.revolutions(bits, like=whole)):
        np.testing.assert_array_equal(one, other)
    words = [int(oracle.mpmath.floor(turn * 2 ** (bits + 32))) for turn in turns]
    found = exact_phases._phase(whole, revolutions, bits, round_off=False).astype(object) % unit
    assert found.tolist() == [[(p * word >> 32) % unit for word in words] for p in whole[:, 0].tolist()]
    real = random.uniform(-1e4, 1e4, (50, 1)).astype(f"float{bits}")
    integer, part, rest = exact_phases._split(np, real, bits)
    for x, *parts in zip(*(each[:, 0].tolist() for each in (real, integer, part, rest))):
        assert parts[0] + Fraction(2 * parts[1], unit) + Fraction(parts[2]) == Fraction(x)
        assert abs(x - parts[0]) <= 0.5 and abs(parts[2]) <= 1 / unit
    found = exact_phases._phase_of_part(part, revolutions, bits).astype(object)
    exact = np.asarray([[int(oracle.mpmath.nint(2 * p * turn)) for turn in turns] for p in part[:, 0].tolist()], object)
    assert np.abs((found - exact + unit // 2) % unit - unit // 2).max() <= 8


@pytest.mark.where(lambda xp: "int64" in xp.integers)
def test_positions_beyond_int32_where_int64_exists(xp):
    rope, positions = embedding(), np.asarray([2**31, -(2**31) - 1, 2**33 + 5, 2**40 - 1, -(2**45) - 3], dtype=np.int64)
    assert_close(xp, rope.sincos(xp.array(positions)), exact_sincos(rope, positions), ROUNDING)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e6, 1e9])
def test_fractional_positions(xp, scale):
    inv_freq = (*geometric(10_000.0, 14), 3.7, 804.25, -0.3)  # pixel frequencies turn several times per position
    rope = RotaryEmbedding(head_dim=20, layout="half", inv_freq=inv_freq)
    positions = (np.random.default_rng(1).uniform(-2, 2, 60) * scale).astype(np.float32)
    assert_close(xp, rope.sincos(xp.array(positions)), exact_sincos(rope, positions), ROUNDING)


@pytest.mark.where(lambda xp: "float64" in xp.floats)
def test_real_positions_in_float64(xp):
    rope, double = embedding(), xp.array(np.zeros(1))
    positions = np.asarray([1e9 + 0.5, 2.0**40 + 0.25, -3.75, 0.1, -(2.0**33) - 0.125])
    exact = exact_sincos(rope, positions)
    assert_close(xp, rope.sincos(xp.array(positions)), exact, ROUNDING)
    assert_close(xp, rope.sincos(xp.array(positions), like=double), exact, 4e-16)
    assert_not_numbers(xp, rope.sincos(xp.array([2.0**63, np.nan]), like=double))


def test_real_positions_out_of_range_are_not_a_number(xp):
    positions = xp.array([np.nan, np.inf, -np.inf, 2.0**31, -(2.0**40)], "float32")
    assert_not_numbers(xp, embedding().sincos(positions))
    rope = RotaryEmbedding(head_dim=4, layout="half", inv_freq=((1.0, 0.5), (0.5, 0.25)))
    for where in ([[np.nan, 1.0], [0.0, 1.0]], [[0.0, 1.0], [np.nan, 1.0]]):  # on one of two axes
        for table in rope.sincos(xp.array(np.asarray(where), "float32")):
            assert np.isnan(xp.numpy(table)).tolist() == [[True, True], [False, False]]


def test_learned_frequencies_have_the_bits_of_floats(xp):
    inv_freq = np.asarray([*geometric(10_000.0, 14), 3.7, -0.3, 804.25, 0.0, 1e-30, -1e-9], dtype=np.float32)
    fixed, learned = (
        embedding(26, None, inv_freq=w, kernel="reference") for w in (inv_freq.tolist(), xp.array(inv_freq))
    )
    positions = [xp.array(INT32, "int32"), xp.array(INT32 / 7e3, "float32")]
    if "int64" in xp.integers:
        positions.append(xp.array(INT32 * 2**20 + 12_345, "int64"))
    for where, dtype in product(positions, {"float32", "float64"} & set(xp.floats)):
        like = xp.array(np.zeros(1), dtype)
        assert_bits(xp, fixed.sincos(where, like=like), learned.sincos(where, like=like))


def test_learned_frequencies_out_of_range_are_not_a_number(xp):
    if xp.name == "numpy":
        return  # its arrays are read as floats and refused: tests/support/bad_input.py
    inv_freq, integers = [65_535.5, 65_536.0, -1e6, np.nan, np.inf], np.arange(5)
    for where, dtype in product((integers, integers / 3), {"float32", "float64"} & set(xp.floats)):
        rope, kind = embedding(10, None, inv_freq=xp.array(inv_freq, dtype)), "float32" if where[1] % 1 else "int32"
        for table in rope.sincos(xp.array(where, kind), like=xp.array(np.zeros(1), dtype)):
            np.testing.assert_array_equal(np.isnan(xp.numpy(table)), [[False, True, True, True, True]] * 5)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(cuts=st.lists(st.integers(0, 40), max_size=6), start=st.integers(-(2**31), 2**31 - 41))
def test_one_shot_chunks_and_steps_have_the_same_bits(xp, cuts, start):
    rope, positions = embedding(), np.arange(start, start + 40)
    whole = [xp.numpy(table) for table in rope.sincos(xp.array(positions, "int32"))]
    bounds = [0, *sorted(cuts), 40]
    for pieces in ([(a, b) for a, b in pairwise(bounds) if a < b], [(a, a + 1) for a in range(0, 40, 13)]):
        for a, b in pieces:
            assert_bits(xp, rope.sincos(xp.array(positions[a:b], "int32")), [table[a:b] for table in whole])


def test_consecutive_positions_are_told_apart(xp):
    sin, cos = (xp.numpy(table)[:, 0] for table in embedding(6).sincos(xp.array(np.arange(65536), "int32")))
    assert len(np.unique(np.stack([sin, cos]), axis=1).T) == 65536


def test_float32_phases_are_the_naive_product(xp):
    rope = embedding(phase="float32")
    positions = np.asarray([0, 3, 4095, 131_071, 2**24 + 1, -70_000], dtype=np.int32)
    angles = positions.astype(np.float32)[:, None] * np.asarray(rope.inv_freq, dtype=np.float32)
    assert_close(xp, rope.sincos(xp.array(positions)), (np.sin(angles, dtype="d"), np.cos(angles, dtype="d")), 2e-7)
    exact = oracle.sin_cos(positions, oracle.geometric(10_000.0, 14))
    assert np.abs(xp.numpy(rope.sincos(xp.array(positions)).sin) - exact[0]).max() > 1e-4
    if "float64" in xp.floats:
        x = xp.array(np.zeros((1, 14)), "float64")
        sin = fixed_pos_embedding(x, offset=131_071, phase="float32").sin
        assert xp.dtype_of(sin) == "float64" and np.abs(xp.numpy(sin) - exact[0][3]).max() > 1e-4


@pytest.mark.parametrize("seq_dim, shape", [(0, (5, 3, 14)), (1, (2, 5, 3, 14)), (-2, (2, 3, 5, 14))])
def test_fixed_pos_embedding_is_the_notebooks(xp, seq_dim, shape):
    sincos = fixed_pos_embedding(xp.array(np.zeros(shape), "float32"), seq_dim)
    inv_freq = 1.0 / (10_000 ** (np.arange(0, 14, 2) / 14))
    angles = np.einsum("i,j->ij", np.arange(5), inv_freq)
    assert isinstance(sincos, SinCos) and xp.dtype_of(sincos.sin) == "float32"
    assert_close(xp, sincos, (np.sin(angles), np.cos(angles)), ROUNDING)


def test_offset_moves_the_first_position(xp):
    x = xp.array(np.zeros((5, 3, 14)), "float32")
    array = xp.array(np.asarray(100_000), "int32")
    for offset, first in ((100_000, 100_000), (-3, -3), (np.int64(7), 7), (array, 100_000)):
        truth = oracle.sin_cos(np.arange(first, first + 5), oracle.geometric(500_000.0, 14))
        assert_close(xp, fixed_pos_embedding(x, base=500_000.0, offset=offset), truth, 2e-7)


@pytest.mark.parametrize("dim, given", [(8, {}), (14, {"base": 500.0})])
def test_sinusoidal_encoding_is_the_double_loop(xp, dim, given):
    truth, base = np.zeros((7, dim)), given.get("base", 10_000.0)
    for position, i in product(range(7), range(0, dim, 2)):
        truth[position, i : i + 2] = [f(position / base ** (i / dim)) for f in (np.sin, np.cos)]
    result = sinusoidal_pos_embedding(xp.array(np.arange(7), "int32"), dim, **given)
    assert np.abs(xp.numpy(result) - truth).max() <= ROUNDING
    beside = sinusoidal_pos_embedding(np.arange(7), dim, **given, like=xp.like())
    np.testing.assert_array_equal(xp.numpy(beside), xp.numpy(result))


@pytest.mark.parametrize("base, dim", [(100.0, 6), (10_000.0, 128), (500_000.0, 96), (1e8, 80), (1.0, 10)])
def test_frequencies_are_the_nearest_float64(base, dim):
    assert geometric(base, dim) == tuple(float(w) for w in oracle.geometric(base, dim))


def test_a_turn_per_radian():
    exact = oracle.mpmath.mpf(2) ** 256 / (2 * oracle.mpmath.pi)
    assert int(oracle.mpmath.floor(exact)) == exact_phases._PER_RADIAN
