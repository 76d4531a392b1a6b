"""Rotary embeddings as in the notebook: two functions, x as (seq, heads, dim), plain and under `jax.jit`.

Run: `python notebook_jax.py`.
"""

import jax
import jax.numpy as jnp

from rope_xp import apply_rotary_pos_emb, fixed_pos_embedding


def rotate(x):
    sincos = fixed_pos_embedding(x)
    return apply_rotary_pos_emb(x, sincos)


def rotate_as_gpt_j(x):
    """GPT-J rotates 64 of the 256 channels of a head. The width of the tables gives this number."""
    sincos = fixed_pos_embedding(x[..., :64])
    return apply_rotary_pos_emb(x, sincos)


def main():
    x = jax.random.normal(jax.random.key(0), (512, 16, 256))  # seq heads dim
    differences = {}
    for function in (rotate, rotate_as_gpt_j):
        plain, jitted = function(x), jax.jit(function)(x)
        rotated = int((plain != x).any(axis=(0, 1)).sum())
        differences[rotated] = float(jnp.abs(plain - jitted).max())
        print(f"{rotated} of {x.shape[-1]} channels are rotated; jit changes at most {differences[rotated]:.1e}")
    return differences


if __name__ == "__main__":
    main()
