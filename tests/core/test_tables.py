"""Tables of every kernel against those of the reference, for all positions and however positions lie in memory."""

from functools import partial

import numpy as np
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


# Few sizes, because XLA compiles a program for each.
FREQUENCIES = st.sampled_from([1, 7, 70]).flatmap(partial(lists_of, st.floats(-LARGEST, LARGEST)))


def integers(bits):
    """Positions of all sizes, in lists: small, large and at the limits of the dtype."""
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    each = st.integers(-300, 300) | st.integers(least, most) | st.sampled_from([least, most])
    return st.sampled_from([0, 1, 9, 40]).flatmap(partial(lists_of, each))


def tables(xp, positions, inv_freq, kernel):
    rope = RotaryEmbedding(head_dim=2 * np.shape(inv_freq)[-1], layout="half", inv_freq=inv_freq, kernel=kernel)
    sincos = rope.sincos(positions)
    assert all(xp.dtype_of(table) == "float32" for table in sincos)
    return [xp.numpy(table) for table in sincos]


def assert_like_the_reference(xp, positions, inv_freq, kernel):
    """Numba gives the bits of the reference, zeros with their signs too. `test_angles.py` compares it with mpmath."""
    found, expected = (tables(xp, positions, inv_freq, each) for each in (kernel, "reference"))
    for table, exact in zip(found, expected, strict=True):
        assert table.shape == exact.shape
        if kernel == "numba":
            np.testing.assert_array_equal(table, exact)
            np.testing.assert_array_equal(np.signbit(table), np.signbit(exact))
        assert np.abs(table - exact).max(initial=0.0) <= APART


@pytest.mark.where(lambda xp, kernel, bits: kernel != "reference" and f"int{bits}" in xp.integers)
@pytest.mark.parametrize("bits", [32, 64])
@settings(max_examples=min(30, EXAMPLES), deadline=None)
@given(data=st.data())
def test_integer_positions(xp, kernel, bits, data):
    """Of all sizes, the limits of the dtype with the largest frequencies, and those of three axes."""
    drawn = data.draw(integers(bits)), data.draw(FREQUENCIES)
    limits = [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, -1, 0], [0.0, -0.0, LARGEST, -LARGEST, 1.0, -1e-300]
    axes = [[3, 1], [-4, 2**30], [5, 9]], [[0.0, 1.0, 0.0, 0.0], [0.3, 0.0, 0.0, 0.0], [0.0, 0.0, 0.1, 2.0]]
    for positions, inv_freq in (drawn, limits, axes):
        assert_like_the_reference(xp, xp.array(np.asarray(positions, f"int{bits}")), inv_freq, kernel)


@settings(max_examples=min(30, EXAMPLES), deadline=None)
@given(positions=integers(64), cut=st.integers(0, 40))
@example(positions=[1, 2, 2**16, -3, 2**62], cut=2)
def test_a_row_does_not_depend_on_the_others(xp, kernel, positions, cut):
    numbers = np.asarray(positions, np.int64) if "int64" in xp.integers else np.asarray(positions, np.int64) >> 32
    numbers = xp.array(numbers, "int64" if "int64" in xp.integers else "int32")
    cut = min(cut, len(positions))  # array-api-strict refuses a slice beyond the end
    whole, *parts = (tables(xp, each, [1.0, 0.3, 1e-5], kernel) for each in (numbers, numbers[:cut], numbers[cut:]))
    for table, *pieces in zip(whole, *parts, strict=True):
        np.testing.assert_array_equal(table, np.concatenate(pieces))


@pytest.mark.where(lambda kernel: kernel != "reference")
def test_long_tables_that_threads_share(xp, kernel):
    """An odd number of rows, 2.2 MB in all."""
    positions = xp.array((np.arange(40_003) * 53_687) - 2**30, "int32")
    assert_like_the_reference(xp, positions, [1.0, 0.1, 0.037, -0.01, 1e-3, 1e-4, 1e-5], kernel)


@settings(max_examples=min(30, EXAMPLES), deadline=None)
@given(positions=st.lists(st.integers(-(2**22), 2**22), min_size=1, max_size=20), quarters=st.integers(0, 3))
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
