"""Tables of every kernel against those of the reference, for all positions and however positions lie in memory."""

from functools import partial
from itertools import pairwise

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
    """Positions of all sizes, in lists: small, large, about powers of two, and at the limits of the dtype."""
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    each = st.integers(-300, 300) | st.integers(least, most) | st.sampled_from([least, most])
    each |= st.integers(0, bits - 2).flatmap(lambda power: st.sampled_from([2**power - 1, 2**power, -(2**power)]))
    return st.sampled_from([0, 1, 9, 40]).flatmap(partial(lists_of, each))


def tables(xp, positions, inv_freq, kernel):
    rope = RotaryEmbedding(head_dim=2 * np.shape(inv_freq)[-1], layout="half", inv_freq=inv_freq, kernel=kernel)
    sincos = rope.sincos(positions)
    assert all(xp.dtype_of(table) == "float32" for table in sincos)
    return [xp.numpy(table) for table in sincos]


def assert_like_the_reference(xp, positions, inv_freq, kernel):
    """Compiled kernels give its bits, zeros with their signs too. `test_angles.py` compares them with mpmath."""
    found, expected = (tables(xp, positions, inv_freq, each) for each in (kernel, "reference"))
    for table, exact in zip(found, expected, strict=True):
        assert table.shape == exact.shape
        if kernel in ("numba", "triton"):
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
@given(positions=integers(64), cuts=st.lists(st.integers(0, 40), max_size=4), is_real=st.booleans())
@example(positions=[-1, 2, 2**16, -3, 2**62], cuts=[2], is_real=False)  # no other negative
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
        np.testing.assert_array_equal(part, [table[piece] for table in whole])


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
