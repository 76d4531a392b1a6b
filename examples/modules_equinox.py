"""Rotary embeddings in Equinox: attention with one, learned frequencies, and a replacement for
`equinox.nn.RotaryPositionalEmbedding`.

Run: `python modules_equinox.py`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from rope_xp import RotaryEmbedding


class Attention(eqx.Module):
    """Causal self-attention over x, (seq, dim); `jax.vmap` adds a batch.

    The rotary embedding is a static field without leaves, so casting or training a model does not change it.
    """

    rope: RotaryEmbedding = eqx.field(static=True)
    project: eqx.nn.Linear
    num_heads: int = eqx.field(static=True)

    def __init__(self, dim, num_heads, *, key):
        self.rope = RotaryEmbedding(head_dim=dim // num_heads, layout="half", base=10_000.0)
        self.project = eqx.nn.Linear(dim, 3 * dim, use_bias=False, key=key)
        self.num_heads = num_heads

    def __call__(self, x, positions=None):
        q, k, v = jnp.moveaxis(jax.vmap(self.project)(x).reshape(len(x), 3, self.num_heads, -1), 1, 0)
        q, k = self.rope(q, k, positions=positions, seq_dim=0)
        return jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)


class LearnedRotary(eqx.Module):
    """Learned frequencies: the module holds an array, and each call creates a `RotaryEmbedding` from it."""

    inv_freq: jax.Array

    def __call__(self, x, positions=None):
        rope = RotaryEmbedding(head_dim=x.shape[-1], layout="half", inv_freq=self.inv_freq)
        return rope(x, positions=positions, seq_dim=0)


class RotaryPositionalEmbedding(eqx.Module):
    """Equinox's module: the same arguments, for x of (seq, embedding_size) at positions 0, 1, 2, ...

    It keeps no tables, so modules with different `theta` share nothing. Tables are never rounded to `dtype`, which is
    only there for the same signature.
    """

    embedding_size: int = eqx.field(static=True)
    theta: float = eqx.field(static=True, default=10_000.0)
    dtype: jnp.dtype = eqx.field(static=True, default=jnp.float32)

    def __call__(self, x, *, key=None):
        return RotaryEmbedding(head_dim=self.embedding_size, layout="half", base=self.theta)(x, seq_dim=0)


def main():
    x, shift = jax.random.normal(jax.random.key(0), (16, 64)), 100_000
    attention = Attention(64, 4, key=jax.random.key(1))
    y = eqx.filter_jit(attention)(x)
    moved = float(jnp.abs(attention(x, jnp.arange(16) + shift) - y).max())
    print(f"output: {y.shape}  change when all tokens move by {shift:,}: {moved:.1e}")

    truth = RotaryPositionalEmbedding(64)(x)
    learned, rate = LearnedRotary(jnp.asarray(RotaryEmbedding(head_dim=64, layout="half", base=5_000.0).inv_freq)), 3e-5
    loss = eqx.filter_jit(eqx.filter_value_and_grad(lambda module: ((module(x) - truth) ** 2).sum()))
    losses = []
    for _ in range(20):
        value, gradient = loss(learned)
        losses.append(float(value))
        learned = eqx.apply_updates(learned, jax.tree.map(lambda g: -rate * g, gradient))
    print(f"learning the frequencies of base 10,000 from those of 5,000: loss {losses[0]:.4f} to {losses[-1]:.4f}")
    return moved, losses


if __name__ == "__main__":
    main()
