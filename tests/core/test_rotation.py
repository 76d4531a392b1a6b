"""How channels turn, against complex multiplication in float64."""

from functools import partial

import einops
import numpy as np
import oracle
import pytest
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
def apply_rotary_pos_emb(kernel):
    """The function under test, by each kernel: all must pass what the pure expression passes."""
    return partial(rope_xp.apply_rotary_pos_emb, kernel=kernel)


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
@pytest.mark.parametrize("pairs", [1, 3, 5, 7])
def test_every_dtype_is_rounded_once_and_the_rest_stays(xp, layout, pairs, inverse, apply_rotary_pos_emb):
    for dtype in xp.floats:
        x, angles = xp.random(5, 3, 14, dtype=dtype), radians(5, pairs)
        result = apply_rotary_pos_emb(x, xp.tables(angles, dtype), layout=layout, inverse=inverse)
        assert result.dtype == x.dtype
        result, values = xp.numpy(result), xp.numpy(x)
        np.testing.assert_array_equal(result[..., 2 * pairs :], values[..., 2 * pairs :])
        assert_rounded_once(result, expected(values, angles, layout, 0, inverse), dtype, np.abs(values).max() * 2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batched_tables_lie_on_the_leading_axes(xp, layout, apply_rotary_pos_emb):
    x, angles = random(2, 3, 5, 14), radians(2, 5, 4)
    truth = np.stack([expected(row, angle, layout, 1) for row, angle in zip(x, angles, strict=True)])
    given = xp.tables(angles)
    result = xp.numpy(apply_rotary_pos_emb(xp.array(x), given, layout=layout, seq_dim=2))
    assert_rounded_once(result, truth, "float32", np.abs(x).max() * 2)
    as_many_axes = xp.tables(angles[:, None])
    np.testing.assert_array_equal(
        xp.numpy(apply_rotary_pos_emb(xp.array(x), as_many_axes, layout=layout, seq_dim=0)), result
    )


def test_one_row_of_tables_serves_a_batch(xp, apply_rotary_pos_emb):
    x, angles = random(2, 5, 3, 14), radians(1, 5, 7)
    sincos = xp.tables(angles)
    one = xp.tables(angles[0])
    np.testing.assert_array_equal(
        xp.numpy(apply_rotary_pos_emb(xp.array(x), sincos, seq_dim=1)),
        xp.numpy(apply_rotary_pos_emb(xp.array(x), one, seq_dim=1)),
    )


def test_the_notebooks_numpy_tables_go_with_every_library(xp, apply_rotary_pos_emb):
    x, angles = random(5, 3, 14), radians(5, 7)
    result = apply_rotary_pos_emb(xp.array(x), (np.sin(angles), np.cos(angles)))
    own = apply_rotary_pos_emb(xp.array(x), xp.tables(angles))
    assert result.dtype == xp.array(x).dtype
    np.testing.assert_array_equal(xp.numpy(result), xp.numpy(own))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inverse_turns_back_and_is_the_transpose(xp, layout, apply_rotary_pos_emb):
    x, g = random(5, 3, 14), random(5, 3, 14, seed=2)
    angles = radians(5, 6)
    sincos = xp.tables(angles)
    there = apply_rotary_pos_emb(xp.array(x), sincos, layout=layout)
    back = xp.numpy(apply_rotary_pos_emb(there, sincos, layout=layout, inverse=True))
    np.testing.assert_allclose(back, x, rtol=0, atol=1e-6)
    transposed = xp.numpy(apply_rotary_pos_emb(xp.array(g), sincos, layout=layout, inverse=True))
    np.testing.assert_allclose((xp.numpy(there) * g).sum(), (x * transposed).sum(), rtol=1e-5)


def test_sparse_form_equals_the_matrix_form():
    """RoFormer's equation 15: a block-diagonal matrix; and equation 34, which the notebook writes down."""
    x, angles = random(5, 14, dtype="float64"), radians(5, 7)
    result = rope_xp.apply_rotary_pos_emb(x, (np.sin(angles), np.cos(angles)))
    for row, vector, turned in zip(angles, x, result, strict=True):
        matrix = np.zeros((14, 14))
        for pair, angle in enumerate(row):
            block = slice(2 * pair, 2 * pair + 2)
            matrix[block, block] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
        np.testing.assert_allclose(matrix @ vector, turned, rtol=0, atol=1e-14)
    sin, cos = (np.repeat(table, 2, axis=-1) for table in (np.sin(angles), np.cos(angles)))
    np.testing.assert_allclose(x * cos + rotate_every_two(x) * sin, result, rtol=0, atol=1e-14)


def test_layouts_differ_by_a_permutation_of_channels(xp, apply_rotary_pos_emb):
    x, angles = random(5, 3, 14), radians(5, 7)
    order = np.arange(14).reshape(2, 7).T.reshape(-1)  # channel j beside j + 7
    sincos = xp.tables(angles)
    half = xp.numpy(apply_rotary_pos_emb(xp.array(x), sincos, layout="half"))
    neighbours = xp.numpy(apply_rotary_pos_emb(xp.array(x[..., order]), sincos, layout="interleaved"))
    np.testing.assert_array_equal(half[..., order], neighbours)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(0, 3, 14), (5, 0, 14), (0, 0, 14)])
def test_empty_axes_stay_empty(xp, layout, shape, apply_rotary_pos_emb):
    x = np.zeros(shape, dtype=np.float32)
    result = apply_rotary_pos_emb(xp.array(x), xp.tables(np.zeros((shape[0], 5))), layout=layout)
    assert tuple(result.shape) == shape


def test_a_vector_alone_takes_a_row_of_tables(xp, apply_rotary_pos_emb):
    x, angles = random(14), radians(7)
    result = xp.numpy(apply_rotary_pos_emb(xp.array(x), xp.tables(angles)))
    np.testing.assert_allclose(result, oracle.rotate(x, angles, "interleaved"), rtol=0, atol=1e-6)


def test_inputs_are_left_alone():
    x, angles = random(5, 3, 14), radians(5, 7)
    before = x.copy()
    x.flags.writeable = False
    sin, cos = np.sin(angles), np.cos(angles)
    sin.flags.writeable = cos.flags.writeable = False
    result = rope_xp.apply_rotary_pos_emb(x, (sin, cos))
    result += 1
    np.testing.assert_array_equal(x, before)


def test_strides_do_not_matter(xp, apply_rotary_pos_emb):
    x, angles = random(14, 3, 10), radians(5, 7)
    strided = xp.array(x)[:, :, ::2]
    strided = strided.permute(2, 1, 0) if xp.name == "torch" else strided.T if xp.name == "numpy" else None
    values = np.ascontiguousarray(x[:, :, ::2].T)
    strided = xp.array(values) if strided is None else strided
    sincos = xp.tables(angles)
    result = xp.numpy(apply_rotary_pos_emb(strided, sincos))
    assert_rounded_once(result, expected(values, angles, "interleaved", 0), "float32", np.abs(values).max() * 2)
