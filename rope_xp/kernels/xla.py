"""The rotation for JAX: XLA fuses it into one loop that reads and writes each channel once, forward and backward."""

# pyright: reportMissingImports=false

from collections.abc import Sequence
from functools import partial
from math import gcd
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rope_xp.arrays import exact_phases
from rope_xp.arrays.alignment import align_angles
from rope_xp.arrays.libraries import materialized
from rope_xp.kernels import reference
from rope_xp.kernels.reference import Angles, Rotation, Tables, join_pairs, split_pairs
from rope_xp.types import Array

MEMORY_KINDS = ("jax",)


class Program(NamedTuple):
    """A rotation outside `jax.jit` by angles that only lack axes of size 1. `alignments` are those of each array."""

    # Inside `jax.jit`, `rotate_all` is called in place of this program. Each array has a compiled function of its own,
    # because arrays may be on different devices. So rows of tables are selected before, and not once for each head.

    alignments: tuple[Any, ...]
    rotation: Rotation

    def run(self, xs: Sequence[Array], angles: Angles) -> list[Any]:
        tables, last = [], None
        for group in angles:  # queries and keys share their angles
            if group is not last:
                last, pair = group, group if len(group) == 2 else _select_rows(*group)
            tables.append(pair)
        arguments = zip(xs, tables, self.alignments)
        return [_rotate_unaligned(x, sin, cos, alignment, self.rotation) for x, (sin, cos), alignment in arguments]


class TableProgram(NamedTuple):
    """Float32 tables of positions outside `jax.jit`."""

    inv_freq: tuple[Any, ...]
    scale: float

    def run(self, positions: Any, like: Any = None) -> tuple[Any, Any]:
        return compiled_tables(positions, self.inv_freq, jnp.float32, self.scale)


def prepare(angles: Angles, alignments: Sequence[Any], rotation: Rotation) -> Program:
    columns = [(sin.shape[-1],) if positions else () for sin, _, *positions in angles]
    return Program(tuple([each._replace(shape=each.shape + more) for each, more in zip(alignments, columns)]), rotation)


def prepare_tables(positions: Array, frequencies: exact_phases.Frequencies, scale: float) -> TableProgram | None:
    return TableProgram(frequencies.inv_freq, scale) if positions.dtype in (jnp.int32, jnp.int64) else None


@partial(jax.jit, static_argnames=("inv_freq", "dtype", "scale"), inline=True)
def compiled_tables(positions: Array, inv_freq: tuple[Any, ...], dtype: Any, scale: float = 1.0) -> tuple[Any, Any]:
    """`exact_phases.exact_tables` times `scale`. Outside `jax.jit`, it is one program, not one for each operation."""
    sin, cos = exact_phases.exact_tables(positions, exact_phases.Frequencies(inv_freq), dtype)
    return (sin, cos) if scale == 1.0 else (sin * scale, cos * scale)


@jax.jit
def _select_rows(sin: Array, cos: Array, positions: Array) -> tuple[Any, Any]:
    return reference.tables_of([(sin, cos, positions)])[0]


@partial(jax.jit, static_argnames=("alignment", "rotation"))
def _rotate_unaligned(x: Any, sin: Any, cos: Any, alignment: Any, rotation: Rotation) -> Any:
    ((sin, cos),) = align_angles([(sin, cos)], [alignment])
    return rotate(x, sin, cos, rotation)


def rotate_all(xs: Sequence[Array], tables: Tables, rotation: Rotation, inplace: bool = False) -> list[Any]:
    return [rotate(x, sin, cos, rotation) for x, (sin, cos) in zip(xs, tables)]


@partial(jax.jit, static_argnames="rotation", inline=True)
def rotate(x: Any, sin: Any, cos: Any, rotation: Rotation) -> Any:
    """`reference.rotate` in operations that are transposes of each other: split and join, unstack and stack."""
    # The gradients that JAX derives are therefore rotations by the negated angles, for any order, and only the tables
    # are saved. The transpose of indexing, a sum of padded arrays, takes three times as long in bfloat16.
    if rotation.inverse:
        sin = -sin
    start, end, dim = rotation.first_channel, rotation.first_channel + 2 * sin.shape[-1], x.shape[-1]
    # Measured: sums of interleaved channels are faster than pairs in float32, if a head is rotated in part.
    of_part = x.dtype == jnp.float32 and end - start < dim
    is_sum = rotation.read == rotation.write and (rotation.read == "half" or of_part)
    if is_sum and rotation.blocks == 1 and _is_step(x, sin):
        rotated = _rotate_token(x[..., start:end], sin, cos, rotation.read)
        return jnp.concat([x[..., :start], rotated, x[..., end:]], axis=-1)
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
    first, second = split_pairs(jnp, x.astype(sin.dtype), rotation.read, rotation.blocks)
    rotated = first * cos - second * sin, second * cos + first * sin
    return join_pairs(jnp, *rotated, rotation.write, rotation.blocks).astype(x.dtype)


def _rotate_token(x: Any, sin: Any, cos: Any, layout: str) -> Any:
    """The rotation of one token, as a sum of two products with a column for each channel."""
    numbers = x.astype(sin.dtype)
    if layout == "half" and x.dtype.itemsize == 2:  # what is faster
        first, second = jnp.split(numbers, 2, axis=-1)
        turned = jnp.concat([-second, first], axis=-1)
    else:
        first, second = split_pairs(jnp, numbers, layout)
        turned = join_pairs(jnp, -second, first, layout)
    wide_sin, wide_cos = [materialized(join_pairs(jnp, table, table, layout)) for table in (sin, cos)]
    return (numbers * wide_cos + turned * wide_sin).astype(x.dtype)


def _is_step(x: Array, sin: Array) -> bool:
    """Whether this may be a step of decoding: an inner axis has size 1, and the first axis alone has several rows."""
    # XLA makes a loop that ends with a stack of pairs slow if an inner axis has size 1: it also permutes axes. It does
    # not fuse a concatenation, which is short for one token.
    return 1 in x.shape[1:-1] and sin.shape[1:-1] == (1,) * (sin.ndim - 2)
