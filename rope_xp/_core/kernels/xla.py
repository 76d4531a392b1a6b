"""The rotation for JAX: XLA fuses it into one loop that reads and writes each channel once, forward and backward."""

# pyright: reportMissingImports=false

from collections.abc import Sequence
from functools import partial
from math import gcd
from typing import Any

import jax
import jax.numpy as jnp

from rope_xp._core.kernels.pair_rotation import Rotation, Tables
from rope_xp._core.kernels.reference import join_pairs

MEMORY_KINDS = ("jax",)


def rotate_all(xs: Sequence[Any], tables: Tables, rotation: Rotation, inplace: bool = False) -> list[Any]:
    """`reference.rotate_all`. `inplace` is always False, because JAX arrays are immutable."""
    return [rotate(x, sin, cos, rotation) for x, (sin, cos) in zip(xs, tables)]


@partial(jax.jit, static_argnames="rotation", inline=True)
def rotate(x: Any, sin: Any, cos: Any, rotation: Rotation) -> Any:
    """`reference.rotate` in operations that are transposes of each other: split and join, unstack and stack.

    The gradients that JAX derives are therefore rotations by the negated angles, for any order, and only the tables are
    saved. The transpose of indexing would be a sum of padded arrays. It takes three times as long in bfloat16, and
    longer in float16.
    """
    if rotation.inverse:
        sin = -sin
    start, end, dim = rotation.first_channel, rotation.first_channel + 2 * sin.shape[-1], x.shape[-1]
    if end - start == dim:
        return _rotate_pairs(x, sin, cos, rotation)
    # XLA does not fuse a concatenation along a long last axis. So channels are split into short blocks, and the blocks
    # are concatenated along the axis before the last.
    block, leading = gcd(start, end, dim), x.shape[:-1]
    parts = jnp.split(x.reshape(*leading, dim // block, block), [start // block, end // block], axis=-2)
    rotated = _rotate_pairs(parts[1].reshape(*leading, end - start), sin, cos, rotation)
    parts[1] = rotated.reshape(parts[1].shape)
    return jnp.concat(parts, axis=-2).reshape(x.shape)


def _rotate_pairs(x: Any, sin: Any, cos: Any, rotation: Rotation) -> Any:
    first, second = _split_pairs(x.astype(sin.dtype), rotation.read, rotation.blocks)
    rotated = join_pairs(jnp, first * cos - second * sin, second * cos + first * sin, rotation.write, rotation.blocks)
    return rotated.astype(x.dtype)


def _split_pairs(x: Any, layout: str, blocks: int) -> tuple[Any, Any]:
    *leading, dim = x.shape
    pairs = dim // 2
    if layout == "interleaved":
        first, second = jnp.unstack(x.reshape(*leading, pairs, 2), axis=-1)
    else:
        first, second = jnp.unstack(x.reshape(*leading, blocks, 2, pairs // blocks), axis=-2)
    return first.reshape(*leading, pairs), second.reshape(*leading, pairs)
