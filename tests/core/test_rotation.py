"""How channels turn, against complex multiplication in float64."""

import einops
import numpy as np
import oracle
import pytest
from compare import assert_numbers
from libraries import ROUNDOFF
from samples import radians, random

import rope_xp
from rope_xp import rotate_every_two, rotate_half

LAYOUTS = ["half", "interleaved"]
# Axis sizes are pairwise different, so that no two axes can be mistaken for each other; but once seq == heads.
SHAPES = {
    "seq dim": ((5, 14), 0),
    "seq heads dim": ((5, 3, 14), 0),
    "heads seq dim": ((3, 5, 14), 1),
    "batch seq heads dim": ((2, 5, 3, 14), 1),
    "batch heads seq dim": ((2, 3, 5, 14), -2),
    "seq == heads": ((2, 5, 5, 14), 1),
    "seq == heads, heads first": ((2, 5, 5, 14), 2),
    "six axes": ((2, 7, 5, 3, 4, 14), 2),
}


@pytest.fixture
def apply_rotary_pos_emb(xp, kernel):
    """The function under test, by each kernel: all must pass what the pure expression passes, in place too."""

    def apply(x, sincos, **options):
        result = rope_xp.apply_rotary_pos_emb(x, sincos, **options, kernel=kernel)
        if xp.name in ("numpy", "torch"):
            written = x + 0
            rope_xp.apply_rotary_pos_emb_inplace(written, sincos, **options, kernel=kernel)
            # Both are a rounding of the dtype, and four roundings of the arithmetic on numbers below 6, off at most.
            roundoff = ROUNDOFF[xp.dtype_of(x)]
            atol = 2 * 4 * 6 * min(roundoff, ROUNDOFF["float32"])
            np.testing.assert_allclose(xp.numpy(written), xp.numpy(result), rtol=2 * roundoff, atol=atol)
        return result

    return apply


def expected(x, angles, layout, seq_dim, inverse=False):
    """The oracle on every position, one after the other."""
    x = np.asarray(x, dtype=np.float64)
    seq_dim %= x.ndim
    rows = np.moveaxis(x, seq_dim, 0)
    rows = np.stack([oracle.rotate(row, angle, layout, inverse) for row, angle in zip(rows, angles, strict=True)])
    return np.moveaxis(rows, 0, seq_dim)


def assert_rounded_once(result, truth, dtype, size):
    """Arithmetic of three float32 (float64) operations on numbers of a size, then one rounding to the dtype."""
    arithmetic = 4 * ROUNDOFF["float64" if dtype == "float64" else "float32"] * size
    rounding = 0.0 if dtype in ("float32", "float64") else ROUNDOFF[dtype] * (np.abs(truth) + arithmetic)
    assert np.all(np.abs(result - truth) <= arithmetic + rounding)


@pytest.mark.parametrize("function, pattern", [(rotate_every_two, "(pairs two)"), (rotate_half, "(two pairs)")])
def test_quarter_turn_is_the_notebooks_pattern(xp, function, pattern):
    x = random(2, 5, 3, 14)
    pairs = einops.rearrange(x, f"b s h {pattern} -> two b s h pairs", two=2)
    turned = einops.rearrange(np.stack([-pairs[1], pairs[0]]), f"two b s h pairs -> b s h {pattern}")
    result = function(xp.array(x))
    assert result.shape == x.shape
    np.testing.assert_array_equal(xp.numpy(result), turned)


def test_quarter_turn_keeps_the_dtype(xp):
    for dtype in xp.floats:
        x = xp.random(5, 4, dtype=dtype)
        for function in (rotate_every_two, rotate_half):
            assert function(x).dtype == x.dtype
            np.testing.assert_array_equal(xp.numpy(function(function(x))), -xp.numpy(x))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axes", SHAPES)
def test_equals_complex_multiplication(xp, layout, axes, apply_rotary_pos_emb):
    shape, seq_dim = SHAPES[axes]
    x, angles = random(*shape), radians(shape[seq_dim], 7)
    result = apply_rotary_pos_emb(xp.array(x), xp.tables(angles), layout=layout, seq_dim=seq_dim)
    assert_rounded_once(xp.numpy(result), expected(x, angles, layout, seq_dim), "float32", np.abs(x).max() * 2)


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pairs", [5, 7])
def test_every_dtype_is_rounded_once_and_the_rest_stays(xp, layout, pairs, inverse, apply_rotary_pos_emb):
    for dtype in xp.floats:
        x, angles = xp.random(5, 3, 14, dtype=dtype), radians(5, pairs)
        result = apply_rotary_pos_emb(x, xp.tables(angles, dtype), layout=layout, inverse=inverse)
        assert result.dtype == x.dtype
        result, values = xp.numpy(result), xp.numpy(x)
        np.testing.assert_array_equal(result[..., 2 * pairs :], values[..., 2 * pairs :])
        assert_rounded_once(result, expected(values, angles, layout, 0, inverse), dtype, np.abs(values).max() * 2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batched_tables_are_aligned_with_the_leading_axes(xp, layout, apply_rotary_pos_emb):
    x, angles = random(2, 3, 5, 14), radians(2, 5, 4)
    truth = np.stack([expected(row, angle, layout, 1) for row, angle in zip(x, angles, strict=True)])
    result = apply_rotary_pos_emb(xp.array(x), xp.tables(angles), layout=layout, seq_dim=2)
    assert_rounded_once(xp.numpy(result), truth, "float32", np.abs(x).max() * 2)
    as_many_axes = apply_rotary_pos_emb(xp.array(x), xp.tables(angles[:, None]), layout=layout, seq_dim=0)
    assert_numbers(xp, as_many_axes, result)
    one, of_a_batch = (
        apply_rotary_pos_emb(xp.array(x), xp.tables(table), layout=layout, seq_dim=2)
        for table in (angles[0], angles[:1])
    )
    assert_numbers(xp, one, of_a_batch)


def test_the_notebooks_numpy_tables_go_with_every_library(xp, apply_rotary_pos_emb):
    angles = radians(5, 7)
    for dtype in set(xp.floats) & {"float32", "float64"}:
        x = xp.random(5, 3, 14, dtype=dtype)
        result = apply_rotary_pos_emb(x, (np.sin(angles), np.cos(angles)))
        assert result.dtype == x.dtype
        assert_numbers(xp, result, apply_rotary_pos_emb(x, xp.tables(angles, dtype)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(0, 3, 14), (5, 0, 14), (0, 0, 14)])
def test_empty_axes_stay_empty(xp, layout, shape, apply_rotary_pos_emb):
    result = apply_rotary_pos_emb(xp.array(np.zeros(shape), "float32"), xp.tables(radians(shape[0], 5)), layout=layout)
    assert tuple(result.shape) == shape


def test_a_vector_alone_takes_a_row_of_tables(xp, apply_rotary_pos_emb):
    x, angles = random(14), radians(7)
    result = apply_rotary_pos_emb(xp.array(x), xp.tables(angles))
    assert_numbers(xp, result, oracle.rotate(x, angles, "interleaved"), 1e-6)


def test_inputs_are_left_alone():
    x, angles = random(5, 3, 14), radians(5, 7)
    before, sincos = x.copy(), (np.sin(angles), np.cos(angles))
    for array in (x, *sincos):
        array.flags.writeable = False
    result = rope_xp.apply_rotary_pos_emb(x, sincos)
    result += 1
    np.testing.assert_array_equal(x, before)
