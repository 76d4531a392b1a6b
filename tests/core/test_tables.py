"""Tables of every kernel against those of the reference, for all positions and however positions lie in memory."""

from functools import partial
from itertools import pairwise

import numpy as np
import oracle
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rope_xp import RotaryEmbedding

EXAMPLES = settings.default.max_examples
# Both tables are at most 5e-8 off.
APART = 1e-7
LARGEST = float(np.nextafter(2.0**16, 0.0))


def lists_of(each, size):
    return st.lists(each, min_size=size, max_size=size)


# Few sizes here and below, because XLA compiles a program for each.
FREQUENCIES = st.sampled_from([1, 7, 70]).flatmap(partial(lists_of, st.floats(-LARGEST, LARGEST)))


def integers(bits):
    """Positions of all sizes, in lists: small, large, about powers of two, and at the limits of the dtype."""
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    each = st.integers(-300, 300) | st.integers(least, most) | st.sampled_from([least, most])
    each |= st.integers(0, bits - 2).flatmap(lambda power: st.sampled_from([2**power - 1, 2**power, -(2**power)]))
    return st.sampled_from([0, 1, 9, 40]).flatmap(partial(lists_of, each))


def tables(xp, positions, inv_freq, kernel, dtype="float32"):
    rope = RotaryEmbedding(head_dim=2 * np.shape(inv_freq)[-1], layout="half", inv_freq=inv_freq, kernel=kernel)
    sincos = rope.sincos(positions, like=xp.array(np.zeros(1), dtype) if dtype == "float64" else None)
    assert all(xp.dtype_of(table) == dtype for table in sincos)
    return [xp.numpy(table) for table in sincos]


def assert_like_the_reference(xp, positions, inv_freq, kernel):
    """Compiled kernels give its bits, zeros with their signs too."""
    found, expected = (tables(xp, positions, inv_freq, each) for each in (kernel, "reference"))
    for table, exact in zip(found, expected, strict=True):
        assert table.shape == exact.shape
        if kernel in ("numba", "triton"):
            np.testing.assert_array_equal(table, exact)
            np.testing.assert_array_equal(np.signbit(table), np.signbit(exact))
        assert np.abs(table - exact).max(initial=0.0) <= APART


@pytest.mark.where(lambda xp, dtype: dtype in (*xp.integers, *xp.floats))
@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
@settings(max_examples=min(30, EXAMPLES), deadline=None)
@given(data=st.data())
def test_tables_lose_nothing_but_one_rounding(xp, kernel, dtype, data):
    """At positions of all sizes, the limits of the dtype with the largest frequencies, a chunk, and on three axes."""
    bits, is_real = int(dtype[-2:]), dtype.startswith("float")
    limits = [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, -1, 0], [0.0, -0.0, LARGEST, -LARGEST, 1.0, -1e-300]
    axes = [[3, 1], [-4, 2**30], [5, 9]], [[0.0, 1.0, 0.0, 0.0], [0.3, 0.0, 0.0, 0.0], [0.0, 0.0, 0.1, 2.0]]
    chunk = range(2**20 + 300, 2**20 + 900), [1.0, 0.3]
    for numbers, inv_freq in ((data.draw(integers(bits)), data.draw(FREQUENCIES)), limits, axes, chunk):
        numbers = np.asarray(numbers, np.int64)
        if is_real:
            numbers = (numbers / data.draw(st.sampled_from([1.5, 7.0, 1e4]))).astype(dtype)
        truths = oracle.sin_cos_of_axes(np.atleast_2d(numbers), np.atleast_2d(inv_freq).tolist())
        positions = xp.array(numbers.astype(dtype))
        if not is_real:
            assert_like_the_reference(xp, positions, inv_freq, kernel)
        cut = 2 * np.pi * 2.0**-96 * np.abs(numbers.astype("d")).max(initial=0.0)  # revolutions have 96 bits
        for kind, bound in {"float32": 5e-8, "float64": 4e-16}.items():
            if kind in xp.floats:
                for table, truth in zip(tables(xp, positions, inv_freq, kernel, kind), truths, strict=True):
                    assert np.abs(table - truth).max(initial=0.0) <= bound + cut


@settings(max_examples=min(30, EXAMPLES), deadline=None)
@given(positions=integers(64), cuts=st.lists(st.integers(0, 40), max_size=4), is_real=st.booleans())
@example(positions=[-1, 2, 2**16, -3, 2**62], cuts=[2], is_real=False)  # no other negative
@example(positions=[0, -1], cuts=[1], is_real=False)  # the sine of 0 has the sign of 0
def test_one_shot_chunks_and_steps_have_the_same_bits(xp, kernel, positions, cuts, is_real):
    """Integers and real numbers, backwards too."""
    wide = "64" if "int64" in xp.integers else "32"
    numbers = np.asarray(positions, np.int64) >> (0 if wide == "64" else 32)
    numbers, dtype = (numbers / 4, "float32") if is_real else (numbers, f"int{wide}")
    bounds = [0, *sorted(min(cut, len(positions)) for cut in cuts), len(positions)]
    pieces = [slice(*pair) for pair in pairwise(bounds)] + [slice(k, k + 1) for k in range(0, len(positions), 13)]
    whole = tables(xp, xp.array(numbers, dtype), [1.0, 0.3, 1e-5], kernel)
    for piece in (slice(None, None, -1), *pieces):
        part = tables(xp, xp.array(numbers[piece].copy(), dtype), [1.0, 0.3, 1e-5], kernel)
        for of_part, table in zip(part, whole, strict=True):
            np.testing.assert_array_equal(of_part.view("i4"), table[piece].view("i4"))


def test_one_position_without_axes(xp, kernel):
    for number in (-3, 2.5):
        position = xp.array(number, "float32" if number % 1 else "int32")
        found = tables(xp, position, [1.0, 0.3], kernel)
        for table, expected in zip(found, (np.sin, np.cos), strict=True):
            np.testing.assert_allclose(table, expected(number * np.array([1.0, 0.3])), rtol=0, atol=2e-7)


@pytest.mark.where(lambda kernel: kernel != "reference")
def test_long_tables_that_threads_share(xp, kernel):
    """An odd number of rows, 2.2 MB in all."""
    positions = xp.array((np.arange(40_003) * 53_687) - 2**30, "int32")
    assert_like_the_reference(xp, positions, [1.0, 0.1, 0.037, -0.01, 1e-3, 1e-4, 1e-5], kernel)


@settings(max_examples=min(30, EXAMPLES), deadline=None)
@given(
    positions=lists_of(st.integers(-(2**22), 2**22), 20),  # of one size, for XLA
    quarters=st.integers(0, 3),
)
def test_real_positions(xp, kernel, positions, quarters):
    """Those that are whole have the bits of integers, next to others too."""
    whole = np.asarray(positions, np.float32)
    inv_freq = [1.0, 0.3, -2.1]
    mixed = xp.array(np.concatenate([whole, whole + quarters / 4, [np.nan, np.inf, 2.0**31]]), "float32")
    found, reference = (tables(xp, mixed, inv_freq, each) for each in (kernel, "reference"))
    integers = tables(xp, xp.array(whole, "int32"), inv_freq, kernel)
    alone = tables(xp, mixed[len(whole) : len(whole) + 1], inv_freq, kernel)
    for table, exact, of_integers, of_one in zip(found, reference, integers, alone, strict=True):
        np.testing.assert_array_equal(table[len(whole)], of_one[0])
        np.testing.assert_array_equal(table[: len(whole)], of_integers)
        np.testing.assert_array_equal(np.isnan(table), np.isnan(exact))
        assert np.isnan(table[-3:]).all() and np.nanmax(np.abs(table - exact)) <= 2 * APART


@pytest.mark.parametrize("dtype, of_tables", [("int64", "float32"), ("float16", "float32"), ("float64", "float64")])
def test_tables_have_the_dtype_in_which_arrays_are_rotated(dtype, of_tables):
    """float32 also where `like` is an array of integers."""
    rope = RotaryEmbedding(head_dim=8, layout="half", base=10_000.0)
    for kernel in ("fastest", "blocked", "reference"):
        sincos = rope.replace(kernel=kernel).sincos(np.arange(3), like=np.ones(2, dtype))
        assert {table.dtype for table in sincos} == {np.dtype(of_tables)}
