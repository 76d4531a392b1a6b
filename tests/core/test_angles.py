"""Sines and cosines, against mpmath: at most 2e-7 off at every int32 position, on every library."""

from fractions import Fraction
from itertools import product

import numpy as np
import oracle
import pytest
from compare import assert_numbers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rotations import FOREIGN

from rope_xp import RotaryEmbedding, SinCos, fixed_pos_embedding, sinusoidal_pos_embedding
from rope_xp.arrays import exact_phases, libraries
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
    for kind in ("i8", "i1", "u1", "i2", "u2", "i4", "u4", ">i4"):
        if (plain.astype(kind) == plain).all():
            yield kind, plain.astype(kind)
    yield from ((name, foreign(plain)) for name, foreign in FOREIGN.items())
    mapped = np.memmap(folder / "positions", dtype=plain.dtype, mode="w+", shape=plain.shape)
    mapped[...] = plain
    yield "in a file", mapped


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
    """Of float64 frequencies."""
    for dim, base in [(6, 100.0), (128, 10_000.0), (36, 500_000.0), (96, 77_777.0), (22, 1e8), (22, 10_000.0)]:
        rope, positions = embedding(dim, base), xp.array(INT32, "int32")
        sincos = rope.sincos(positions)
        assert_close(xp, sincos, oracle.sin_cos(INT32, oracle.geometric(base, dim)), 2e-7)


def test_frequencies_of_a_base_and_a_width_are_kept(monkeypatch):
    one, other = np.arange(3), sinusoidal_pos_embedding(np.arange(3), 6, base=77.0)
    monkeypatch.setattr(angles, "geometric", None)
    np.testing.assert_array_equal(sinusoidal_pos_embedding(one, 6, base=77.0), other)
    for dim, base in ((6, 78.0), (8, 77.0)):
        with pytest.raises(TypeError, match="not callable"):
            sinusoidal_pos_embedding(one, dim, base=base)


@pytest.mark.where(lambda xp, bits: f"int{bits}" in xp.integers and f"float{bits}" in xp.floats)
@pytest.mark.parametrize("bits", [32, 64])
def test_phases_are_the_same_integers_everywhere(xp, bits):
    """Of integers, as Python multiplies them; of fractions, within eight units. Arrays have the words of floats."""
    random, unit = np.random.default_rng(bits), 2**bits
    inv_freq = np.float32([*geometric(10_000.0, 14), 3.7, -0.3, 804.25, 65_535.9, *random.uniform(-9.0, 9.0, 300)])
    turns = [oracle.mpmath.mpf(float(w)) / (2 * oracle.mpmath.pi) for w in inv_freq]
    floats, array = (exact_phases.Frequencies(w).rows[0] for w in (tuple(map(float, inv_freq)), xp.array(inv_freq)))
    ends = [0, 1, -1, unit // 2 - 1, -unit // 2, 0xFFFF, 0x10000, -0x8000, unit >> 33, 5 << bits // 2]
    whole = np.concatenate([ends, random.integers(-unit // 2, unit // 2, 40)]).astype(f"int{bits}")[:, None]
    given = xp.array(whole)
    revolutions = floats.revolutions(bits, like=given)
    for one, other in zip(revolutions, array.revolutions(bits, like=given)):
        assert_numbers(xp, one, other)
    words = [int(oracle.mpmath.floor(turn * 2 ** (bits + 32))) for turn in turns]
    for round_off in (False, True)[: 1 + (bits == 32)]:
        found = xp.numpy(exact_phases._phase(given, revolutions, bits, round_off=round_off)).astype(object) % unit
        assert found.tolist() == [[(p * word >> 32) % unit for word in words] for p in whole[:, 0].tolist()]
    real = random.uniform(-1e4, 1e4, (50, 1)).astype(f"float{bits}")
    split = exact_phases._split(libraries.namespace(given), xp.array(real), bits)
    for x, *parts in zip(*(each[:, 0].tolist() for each in (real, *map(xp.numpy, split)))):
        assert Fraction(parts[0]) + Fraction(2 * int(parts[1]), unit) + Fraction(parts[2]) == Fraction(x)
        assert abs(x - parts[0]) <= 0.5 and abs(parts[2]) <= 1 / unit
    found = xp.numpy(exact_phases._phase_of_part(split[1], revolutions, bits)).astype(object)
    part = xp.numpy(split[1])[:, 0].tolist()
    exact = np.asarray([[int(oracle.mpmath.nint(2 * p * turn)) for turn in turns] for p in part], object)
    assert np.abs((found - exact + unit // 2) % unit - unit // 2).max() <= 8


def test_real_positions_out_of_range_are_not_a_number(xp):
    positions = xp.array([np.nan, np.inf, -np.inf, 2.0**31, -(2.0**40)], "float32")
    assert_not_numbers(xp, embedding().sincos(positions))
    if "float64" in xp.floats:
        assert_not_numbers(xp, embedding().sincos(xp.array([2.0**63, np.nan]), like=xp.array(np.zeros(1))))
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
