"""How channels turn: every call, by every kernel, multiplies complex numbers in float64, and rounds once."""

import einops
import numpy as np
import oracle
import pytest
from compare import assert_numbers
from rotation_laws import assert_laws
from rotations import ORDERS
from samples import embedding, radians, random

from rope_xp import apply_rotary_pos_emb, rotate_every_two, rotate_half
from rope_xp.kernels import blocked


@pytest.mark.parametrize("function, pattern", [(rotate_every_two, "(pairs two)"), (rotate_half, "(two pairs)")])
def test_quarter_turn_is_the_notebooks_pattern(xp, function, pattern):
    x = random(2, 5, 3, 14)
    pairs = einops.rearrange(x, f"b s h {pattern} -> two b s h pairs", two=2)
    turned = einops.rearrange(np.stack([-pairs[1], pairs[0]]), f"two b s h pairs -> b s h {pattern}")
    result = function(xp.array(x))
    assert result.shape == x.shape
    np.testing.assert_array_equal(xp.numpy(result), turned)
    for dtype in xp.floats:
        x = xp.random(5, 4, dtype=dtype)
        assert function(x).dtype == x.dtype
        np.testing.assert_array_equal(xp.numpy(function(function(x))), -xp.numpy(x))


def test_a_vector_alone_takes_a_row_of_tables_and_shifts(xp, kernel):
    x, angles, rope = random(14), radians(7), embedding(kernel=kernel)
    result = apply_rotary_pos_emb(xp.array(x), xp.tables(angles), kernel=kernel)
    assert_numbers(xp, result, oracle.rotate(x, angles, "interleaved"), 1e-6)
    shifted = rope.shift(xp.array(x), -3, seq_dim=0)
    assert_numbers(xp, shifted, oracle.rotate(x, -3 * np.asarray(rope.inv_freq), "half"), 1e-6)


@pytest.mark.parametrize("is_usual", [True, False], ids=["usual", "any"])
@pytest.mark.parametrize("layout", ORDERS)
def test_every_call_multiplies_complex_numbers(xp, kernel, layout, is_usual):
    few = kernel == "triton" or xp.name not in ("numpy", "strict", "torch")  # which compile or interpret each
    assert_laws(xp, kernel, layout, is_usual, 2 if few else 100)


@pytest.mark.where(lambda kernel: kernel == "blocked")
@pytest.mark.parametrize("layout", ORDERS)
def test_many_numbers_are_rotated_in_blocks(xp, kernel, layout, in_blocks, monkeypatch):
    """Blocks so small that arrays have several."""
    monkeypatch.setattr(blocked, "BYTES_PER_BLOCK", 2**8)
    assert_laws(xp, kernel, layout, False, 100)
