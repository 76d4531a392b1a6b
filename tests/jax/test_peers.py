"""Equal to the packages people use on JAX, at small positions, where float32 phases are still right."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rope_xp import RotaryEmbedding


def test_equinox():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((50, 3, 16)), dtype=jnp.float32)
    peer = eqx.nn.RotaryPositionalEmbedding(16, theta=500.0)
    theirs = jax.vmap(peer, in_axes=1, out_axes=1)(x)
    ours = RotaryEmbedding(head_dim=16, layout="half", base=500.0)(x, seq_dim=0)
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=0, atol=5e-5)
