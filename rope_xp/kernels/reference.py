"""The reference: array API operations that run on every library. All other kernels must equal it.

`Rotation` says what a kernel must do: which channels form pairs, and in which direction they rotate.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from rope_xp.arrays import libraries
from rope_xp.types import Array

# Sine and cosine for each of several arrays. Both have the rank of their array and broadcast against it. They have one
# column for each pair. Their dtype is float64 for float64 arrays, otherwise float32.
Tables = Sequence[tuple[Any, Any]]
# What says by which angles each of several arrays is rotated. It is not a number of radians, but a group of arrays for
# each array that is rotated. All groups have one of these forms:
# - `(sin, cos)`: tables, so that `Tables` are `Angles` too;
# - `(sin, cos, positions)`: tables "rows pairs", and integer positions, each of which selects a row;
# - `(positions,)`: positions alone, for a kernel that computes the angles.
# Positions broadcast against all axes of the array except the last. In this package, `angles` are all groups, and
# `group` is one of them.
Angles = Sequence[tuple[Any, ...]]


class Rotation(NamedTuple):
    """Which channels form pairs, from `first_channel` on in equal `blocks`; with `inverse`, by negated angles."""

    # `read` is the layout of the input and `write` that of the result. Several blocks require the layout "half".

    read: str
    write: str
    first_channel: int = 0
    blocks: int = 1
    inverse: bool = False

    def inverted(self) -> "Rotation":
        return self._replace(read=self.write, write=self.read, inverse=not self.inverse)

    def by_block(self, x: Any, sin: Any, cos: Any, out: Any) -> Iterator[tuple[Any, Any, Any, Any]]:
        """Views of `x`, `sin`, `cos` and `out` for each block. Channels that are not rotated are copied to `out`."""
        width = sin.shape[-1] // self.blocks
        ends = [self.first_channel + 2 * width * block for block in range(self.blocks + 1)]
        if out is not x:
            for rest in (slice(ends[0]), slice(ends[-1], None)):
                out[..., rest] = x[..., rest]
        for block in range(self.blocks):
            channels = (..., slice(ends[block], ends[block + 1]))
            columns = (..., slice(width * block, width * (block + 1)))
            yield x[channels], sin[columns], cos[columns], out[channels]


def rotate_all(xs: Sequence[Any], tables: Tables, rotation: Rotation, inplace: bool = False) -> list[Any]:
    """Rotate the pairs of each array by the angles of its tables; with `inplace`, results overwrite the arrays."""
    # Every kernel has a function of this name. The others accept only arrays in one of their MEMORY_KINDS.
    rotated = [rotate(x, sin, cos, rotation) for x, (sin, cos) in zip(xs, tables)]
    if inplace:
        for x, y in zip(xs, rotated):
            x[...] = y
    return rotated


def rotate(x: Array, sin: Array, cos: Array, rotation: Rotation) -> Any:
    """Rotate `x`, "*axes dim", by tables "*axes pairs" that broadcast: float64 for float64 `x`, else float32."""
    xp = libraries.namespace(x)
    if rotation.inverse:
        sin = -sin
    end, dim = rotation.first_channel + 2 * sin.shape[-1], x.shape[-1]
    span = x[..., rotation.first_channel : end]
    # With "half", compilers fuse conversion and rotation. Interleaved 16-bit channels are faster if converted first.
    halves = rotation.read == "half"
    read = split_pairs(xp, span if halves else libraries.astype(span, sin.dtype), rotation.read, rotation.blocks)
    first, second = (libraries.astype(channels, sin.dtype) for channels in read)
    first, second = first * cos - second * sin, second * cos + first * sin
    if halves:
        first, second = (libraries.astype(channels, x.dtype) for channels in (first, second))
    rotated = join_pairs(xp, first, second, rotation.write, rotation.blocks)
    parts = [libraries.astype(rotated, x.dtype)]
    if rotation.first_channel:
        parts.insert(0, x[..., : rotation.first_channel])
    if end < dim:
        parts.append(x[..., end:])
    return parts[0] if len(parts) == 1 else libraries.astype(libraries.concat(parts), x.dtype)


def tables_of(angles: Angles) -> Tables:
    """The tables for all angles: positions select rows of tables, and a position without a row gives NaN."""
    if len(angles[0]) == 2:
        return angles  # pyright: ignore[reportReturnType]
    tables: list[tuple[Any, Any]] = []
    for index, (sin, cos, positions) in enumerate(angles):
        # Queries and keys often share their angles.
        shared = index and all(one is other for one, other in zip(angles[index], angles[index - 1]))
        tables.append(tables[-1] if shared else (_select_rows(sin, positions), _select_rows(cos, positions)))
    return tables


def _select_rows(table: Any, positions: Any) -> Any:
    xp = libraries.namespace(table)
    known = (positions >= 0) & (positions < libraries.size_of(table, 0))
    rows = libraries.take_rows(table, xp.where(known, positions, xp.zeros_like(positions)))
    # A constant NaN: a computed NaN triggers NaN detectors, even in rows where it is not selected.
    nan = libraries.filled(float("nan"), rows.ndim, like=table, dtype=table.dtype)
    return xp.where(known[..., None], rows, nan)


def split_pairs(xp: Any, x: Array, layout: str, blocks: int = 1) -> tuple[Any, Any]:
    """The first channels and the second channels of all pairs."""
    leading, count = x.shape[:-1], x.shape[-1] // 2
    if not libraries.knows_sizes(x):
        x = _reorder(xp, x, _pair_order(count, layout, blocks))
        return x[..., :count], x[..., count:]
    if layout == "interleaved":
        return libraries.unstack(xp.reshape(x, (*leading, count, 2)), axis=x.ndim)
    if blocks == 1:
        return libraries.unstack(xp.reshape(x, (*leading, 2, count)), axis=x.ndim - 1)
    first, second = libraries.unstack(xp.reshape(x, (*leading, blocks, 2, count // blocks)), axis=x.ndim)
    return xp.reshape(first, (*leading, count)), xp.reshape(second, (*leading, count))


def join_pairs(xp: Any, first: Array, second: Array, layout: str, blocks: int = 1) -> Any:
    """The inverse of `split_pairs`. It stacks and reshapes, because compilers do not fuse concatenation."""
    leading, count = first.shape[:-1], first.shape[-1]
    if not libraries.knows_sizes(first):
        return _reorder(xp, libraries.concat([first, second]), np.argsort(_pair_order(count, layout, blocks)))
    if blocks > 1:
        first, second = (xp.reshape(part, (*leading, blocks, count // blocks)) for part in (first, second))
    # An axis that is counted from the end misplaces the shards of DTensors of PyTorch 2.11, here and in `split_pairs`.
    x = xp.stack([first, second], axis=first.ndim - 1 if layout == "half" else first.ndim)
    return xp.reshape(x, (*leading, 2 * count))


def _pair_order(count: int, layout: str, blocks: int) -> np.ndarray:
    """The indices of all first channels, then of all second channels. Used if sizes of axes are unknown."""
    grid = np.arange(2 * count).reshape((count, 2, 1) if layout == "interleaved" else (blocks, 2, count // blocks))
    return grid.swapaxes(0, 1).reshape(-1)


def _reorder(xp: Any, x: Array, order: np.ndarray) -> Any:
    return xp.take(x, xp.asarray(order), axis=-1) if (np.diff(order) != 1).any() else x
