"""Projections between layouts under JAX's transforms, and the kernels of Flax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from samples import random

from rope_xp import RotaryEmbedding
from rope_xp.weights import permute_projection


def permute(w):
    return permute_projection(w, num_heads=2, to="half", rotary_dim=6)


def test_under_transforms_it_is_the_same_and_gathers_nothing():
    w, factors = jnp.asarray(random(3, 28, 5)), jnp.asarray(random(28, 5, seed=1))
    assert "gather" not in str(jax.make_jaxpr(permute)(w[0]))
    np.testing.assert_array_equal(jax.jit(jax.vmap(permute))(w), jnp.stack([permute(each) for each in w]))
    gradient = jax.grad(lambda w: (permute(w) * factors).sum())(w[0])
    back = permute_projection(factors, num_heads=2, to="interleaved", rotary_dim=6)
    np.testing.assert_array_equal(gradient, back)


def whole(key, shape, dtype, **_):
    """Small whole numbers, of which projections are exact."""
    return jax.random.randint(key, shape, -8, 9).astype(dtype)


@pytest.mark.parametrize("to, other", [("half", "interleaved"), ("interleaved", "half")])
def test_attention_of_flax(to, other):
    """Kernels "in heads head_dim" and biases "heads head_dim", of grouped queries."""
    x, scores = whole(jax.random.key(0), (5, 11), jnp.float32), {}
    for layout in (other, to):
        rope = RotaryEmbedding(head_dim=14, layout=layout, base=100.0)
        rotated = []
        for heads in (8, 2):
            linear = nnx.LinearGeneral(11, (heads, 14), kernel_init=whole, bias_init=whole, rngs=nnx.Rngs(heads))
            if layout == to:
                for parameter in (linear.kernel, linear.bias):
                    parameter[...] = permute_projection(parameter[...], num_heads=1, to=to, axis=-1)
            rotated.append(np.asarray(rope(linear(x), seq_dim=0), dtype=np.float64))
        q, k = rotated
        scores[layout] = np.einsum("qhgd,khd->hgqk", q.reshape(5, 2, 4, 14), k)
    # Three roundings in each channel of q and of k, as in tests/core/test_weights.py, in the scores of both layouts.
    length, other_length = (np.linalg.norm(x, axis=-1).max() for x in (q, k))
    atol = 2 * 2 * 3 * 2**0.5 * 2.0**-24 * length * other_length
    np.testing.assert_allclose(scores[to], scores[other], rtol=0, atol=atol)
