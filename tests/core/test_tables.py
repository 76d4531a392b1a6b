"""Tables of every kernel against those of the reference, for all positions and however positions lie in memory."""

from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rope_xp import RotaryEmbedding
from rope_xp.arrays import exact_phases

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


def tables(xp, positions, inv_freq, kernel, **options):
    inv_freq = [list(row) for row in inv_freq] if np.ndim(inv_freq) > 1 else list(inv_freq)
    pairs = len(inv_freq[0]) if isinstance(inv_freq[0], list) else len(inv_freq)
    rope = RotaryEmbedding(head_dim=2 * pairs, layout="half", inv_freq=inv_freq, kernel=kernel, **options)
    sincos = rope.sincos(positions)
    assert all(xp.dtype_of(table) == "float32" for table in sincos)
    return [xp.numpy(table) for table in sincos]


def assert_like_the_reference(xp, positions, inv_freq, kernel, **options):
    """Numba gives the bits of the reference, zeros with their signs too."""
    if kernel == "reference":  # `test_angles.py` compares it with mpmath
        return
    factor = options.get("attention_factor", 1.0)
    found, expected = (tables(xp, positions, inv_freq, each, **options) for each in (kernel, "reference"))
    for table, exact in zip(found, expected, strict=True):
        assert table.shape == exact.shape
        if kernel == "numba":
            np.testing.assert_array_equal(table, exact)
            np.testing.assert_array_equal(np.signbit(table), np.signbit(exact))
        bound = APART * factor + (factor != 1.0) * 2.0**-23  # both are rounded once more
        assert np.abs(table - exact).max(initial=0.0) <= bound


@settings(max_examples=min(30, EXAMPLES), deadline=None)
@given(positions=integers(32), inv_freq=FREQUENCIES)
@example(positions=[-(2**31), 2**31 - 1, -1, 0], inv_freq=[0.0, -0.0, LARGEST, -LARGEST, 1.0, -1e-300])
def test_positions_of_32_bits(xp, kernel, positions, inv_freq):
    assert_like_the_reference(xp, xp.array(np.asarray(positions, np.int32)), inv_freq, kernel)


@settings(max_examples=min(30, EXAMPLES), deadline=None)
@given(positions=integers(64), inv_freq=FREQUENCIES)
@example(positions=[-(2**63), 2**63 - 1, -1, 0, 2**31, -(2**31) - 1], inv_freq=[0.0, LARGEST, -LARGEST, 1.0, -1e-300])
def test_positions_of_64_bits(xp, kernel, positions, inv_freq):
    if "int64" in xp.integers:
        assert_like_the_reference(xp, xp.array(np.asarray(positions, np.int64)), inv_freq, kernel)


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


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_positions_however_they_lie(xp, kernel, dtype):
    if dtype not in xp.integers or xp.name not in ("numpy", "torch"):  # others have no strides
        return
    numbers = xp.array(np.random.default_rng(0).integers(-(2**31), 2**31, (4, 6, 8)), dtype)
    views = [numbers[1:, ::2, 3], numbers[2, 3, 4], numbers[:, 0:0, :], numbers[0:1, ...], numbers[:, 1, ::3]]
    views += [numbers[..., None][:, 2, :, 0]] + ([numbers.T, numbers[::-1, :, 0]] if xp.name == "numpy" else [])
    for positions in views:
        assert_like_the_reference(xp, positions, [1.0, 0.3, -7.1], kernel)


# Each pair follows one axis; and one pair follows two.
AXES = {
    "in turn": [[1.0, 0.0, 0.0, 0.01, 0.0], [0.0, -0.3, 0.0, 0.0, 0.0], [0.0, 0.0, LARGEST, 0.0, 0.0]],
    "summed": [[1.0, 0.0], [0.5, 0.25]],
}


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("name", AXES)
def test_several_axes(xp, kernel, name, dtype):
    if dtype not in xp.integers:
        return
    axes = len(AXES[name])
    numbers = xp.array(np.random.default_rng(1).integers(-(2**31), 2**31, (5, axes, 2, 7)), dtype)
    for positions in (numbers[1, ...], numbers[1, :, 0, 2], numbers[3, :, :, ::2], numbers[0, :, :, 0:0]):
        assert_like_the_reference(xp, positions, AXES[name], kernel)


def test_long_tables_that_threads_share(xp, kernel):
    """An odd number of rows, 2.2 MB in all."""
    positions = xp.array((np.arange(40_003) * 53_687) - 2**30, "int32")
    assert_like_the_reference(xp, positions, [1.0, 0.1, 0.037, -0.01, 1e-3, 1e-4, 1e-5], kernel)


def test_the_attention_factor_is_one_more_rounding(xp, kernel):
    positions = xp.array(np.arange(-50, 1000), "int32")
    assert_like_the_reference(xp, positions, [1.0, 0.1, 0.037], kernel, attention_factor=1.138629436111989)


@settings(max_examples=min(30, EXAMPLES), deadline=None)
@given(positions=st.lists(st.integers(-(2**22), 2**22), min_size=1, max_size=20), quarters=st.integers(0, 3))
def test_real_positions(xp, kernel, positions, quarters):
    """Those that are whole have the bits of integers, next to others too."""
    whole = np.asarray(positions, np.float32)
    inv_freq = [1.0, 0.3, -2.1]
    mixed = xp.array(np.concatenate([whole, whole + quarters / 4, [np.nan, np.inf, 2.0**31]]), "float32")
    found, reference = (tables(xp, mixed, inv_freq, each) for each in (kernel, "reference"))
    integers = tables(xp, xp.array(whole, "int32"), inv_freq, kernel)
    for table, exact, of_integers in zip(found, reference, integers, strict=True):
        np.testing.assert_array_equal(table[: len(whole)], of_integers)
        np.testing.assert_array_equal(np.isnan(table), np.isnan(exact))
        assert np.isnan(table[-3:]).all() and np.nanmax(np.abs(table - exact)) <= 2 * APART


def test_a_program_may_scale_its_tables():
    """In NumPy: by one rounding after those of the tables."""
    from rope_xp.kernels import numba_sincos

    positions, frequencies = np.arange(-20, 30), exact_phases.Frequencies((1.0, 0.3))
    program = numba_sincos.prepare_tables(positions, frequencies, 1.3862943611198906)
    for table, exact in zip(
        program.run(positions), exact_phases.sin_cos(positions, frequencies, np.float32), strict=True
    ):
        np.testing.assert_array_equal(table, exact * np.float32(1.3862943611198906))


def test_where_there_is_no_program():
    from rope_xp.kernels import numba_sincos

    integers, one_row = np.arange(3), exact_phases.Frequencies((1.0, 0.3))
    assert numba_sincos.prepare_tables(integers, one_row) is not None
    assert numba_sincos.prepare_tables(np.zeros(3, np.float32), one_row) is None
    assert numba_sincos.prepare_tables(np.zeros(3, np.int16), one_row) is None
    of_axes = exact_phases.Frequencies(((1.0, 0.0), (0.0, 0.3)))
    assert numba_sincos.prepare_tables(np.zeros((2, 3), int), of_axes) is not None
    assert numba_sincos.prepare_tables(integers, of_axes) is None  # three axes in place of two
    for nested in (((1.0, 0.5), (0.0, 0.3)), (((1.0, 0.5), (0.2, 0.3)),)):
        assert numba_sincos.prepare_tables(np.zeros((len(nested), 3), int), exact_phases.Frequencies(nested)) is None
    assert numba_sincos.prepare_tables(integers, exact_phases.Frequencies(np.asarray([1.0, 0.3]))) is None
