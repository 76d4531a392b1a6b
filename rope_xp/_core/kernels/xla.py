"""The rotation as XLA fuses it best: one loop that reads and writes every channel once, forward and backward."""

# pyright: reportMissingImports=false

from collections.abc import Sequence
from functools import partial
from math import gcd
from typing import Any

import jax
import jax.numpy as jnp

from rope_xp._core.kernels.pair_rotation import Rotation, Tables
from rope_xp._core.kernels.reference import join_pairs

PLACES = ("jax",)


def rotate_all(xs: Sequence[Any], tables: Tables, rotation: Rotation, inplace: bool = False) -> list[Any]:
    """`reference.rotate_all`, but never in place: that is refused before."""
    return [rotate(x, *own, rotation) for x, own in zip(xs, tables)]


@partial(jax.jit, static_argnames="rotation", inline=True)
def rotate(x: Any, sin: Any, cos: Any, rotation: Rotation) -> Any:
    """`reference.rotate` in operations that are each other's transposes.

    Splitting and joining, unstacking and stacking: so the gradient that JAX derives, of any order, is the rotation by
    the opposite angle in this same form, and keeps nothing but the tables. Reading by index instead has a transpose of
    padded sums, which takes three times as long in bfloat16, and longer in float16.
    """
    if rotation.inverse:
        sin = -sin
    start, end, dim = rotation.first_channel, rotation.first_channel + 2 * sin.shape[-1], x.shape[-1]
    if end - start == dim:
        return _turned(x, sin, cos, rotation)
    # XLA does not fuse what it joins along the last axis, if that is long. Blocks of channels have an axis before it.
    block, leading = gcd(start, end, dim), x.shape[:-1]
    parts = jnp.split(x.reshape(*leading, dim // block, block), [start // block, end // block], axis=-2)
    turned = _turned(parts[1].reshape(*leading, end - start), sin, cos, rotation)
    parts[1] = turned.reshape(parts[1].shape)
    return jnp.concat(parts, axis=-2).reshape(x.shape)


def _turned(x: Any, sin: Any, cos: Any, rotation: Rotation) -> Any:
    first, second = _pairs(x.astype(sin.dtype), rotation.read, rotation.blocks)
    turned = join_pairs(jnp, first * cos - second * sin, second * cos + first * sin, rotation.write, rotation.blocks)
    return turned.astype(x.dtype)


def _pairs(x: Any, layout: str, blocks: int) -> tuple[Any, Any]:
    *leading, dim = x.shape
    pairs = dim // 2
    if layout == "interleaved":
        first, second = jnp.unstack(x.reshape(*leading, pairs, 2), axis=-1)
    else:
        first, second = jnp.unstack(x.reshape(*leading, blocks, 2, pairs // blocks), axis=-2)
    return first.reshape(*leading, pairs), second.reshape(*leading, pairs)
