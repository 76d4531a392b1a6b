"""The rotation as one expression of the array API: on every library, and what every other kernel must equal."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rope_xp._core import backends
from rope_xp._core.kernels.pair_rotation import Angles, Rotation, Tables


def rotate_all(xs: Sequence[Any], tables: Tables, rotation: Rotation, inplace: bool = False) -> list[Any]:
    """Turn the pairs of each array by the angles of its tables; `inplace` writes the results over the arrays.

    Every kernel has such a function. That of all others is right for the arrays of their PLACES.
    """
    rotated = [rotate(x, *own, rotation) for x, own in zip(xs, tables)]
    if inplace:
        for x, y in zip(xs, rotated):
            x[...] = y
    return rotated


def rotate(x: Any, sin: Any, cos: Any, rotation: Rotation) -> Any:
    """Turn the pairs of `x` by the angles of the tables.

    Parameters
    ----------
    x : array, "*axes dim"
        Floating point.
    sin, cos : array, "*axes pairs"
        As many axes as `x`, each of its size or 1; float64 for float64 `x`, else float32.
    turn : Turn

    Returns
    -------
    array, "*axes dim"
    """
    xp = backends.namespace(x)
    if rotation.inverse:
        sin = -sin
    end, dim = rotation.first_channel + 2 * sin.shape[-1], x.shape[-1]
    span = x if rotation.first_channel == 0 and end == dim else x[..., rotation.first_channel : end]
    # Compilers convert halves in the loop that turns them, and 16-bit neighbours faster in a loop of their own.
    halves = rotation.read == "half"
    read = split_pairs(xp, span if halves else backends.astype(span, sin.dtype), rotation.read, rotation.blocks)
    first, second = (backends.astype(each, sin.dtype) for each in read)
    first, second = first * cos - second * sin, second * cos + first * sin
    if halves:
        first, second = (backends.astype(each, x.dtype) for each in (first, second))
    turned = join_pairs(xp, first, second, rotation.write, rotation.blocks)
    parts = [backends.astype(turned, x.dtype)]
    if rotation.first_channel:
        parts.insert(0, x[..., : rotation.first_channel])
    if end < dim:
        parts.append(x[..., end:])
    return parts[0] if len(parts) == 1 else backends.astype(backends.concat(parts), x.dtype)


def tables_of(angles: Angles) -> Tables:
    """Tables, by taking the rows that positions choose; NaN where there is none."""
    if len(angles[0]) == 2:
        return angles  # pyright: ignore[reportReturnType]
    tables: list[tuple[Any, Any]] = []
    for index, (sin, cos, where) in enumerate(angles):
        shared = index and all(one is other for one, other in zip(angles[index], angles[index - 1]))  # as q and k do
        tables.append(tables[-1] if shared else (_rows(sin, where), _rows(cos, where)))
    return tables


def _rows(table: Any, positions: Any) -> Any:
    """Rows of a table "rows pairs", "*axes pairs" for positions "*axes"."""
    xp = backends.namespace(table)
    known = (positions >= 0) & (positions < backends.size_of(table, 0))
    rows = backends.rows(table, xp.where(known, positions, xp.zeros_like(positions)))
    # A constant, as a NaN that is computed trips detectors of NaN even where it is not chosen.
    nan = backends.from_numbers((float("nan"),), like=table, dtype=table.dtype)
    return xp.where(known[..., None], rows, xp.reshape(nan, (1,) * rows.ndim))


def split_pairs(xp: Any, x: Any, layout: str, blocks: int = 1) -> tuple[Any, Any]:
    """The first and the second channels of all pairs."""
    count = x.shape[-1] // 2
    if not backends.knows_sizes(x):
        x = _reordered(xp, x, _order(count, layout, blocks))
        return x[..., :count], x[..., count:]
    if layout == "interleaved":
        return backends.unstack(xp.reshape(x, (*x.shape[:-1], count, 2)), axis=-1)
    if blocks == 1:
        return backends.unstack(xp.reshape(x, (*x.shape[:-1], 2, count)), axis=-2)
    leading = x.shape[:-1]
    first, second = backends.unstack(xp.reshape(x, (*leading, blocks, 2, count // blocks)), axis=-2)
    return xp.reshape(first, (*leading, count)), xp.reshape(second, (*leading, count))


def join_pairs(xp: Any, first: Any, second: Any, layout: str, blocks: int = 1) -> Any:
    """The inverse of `pairs`. Stacking and reshaping is what compilers fuse; concatenating is not."""
    leading, count = first.shape[:-1], first.shape[-1]
    if not backends.knows_sizes(first):
        return _reordered(xp, backends.concat([first, second]), np.argsort(_order(count, layout, blocks)))
    if blocks > 1:
        first, second = (xp.reshape(each, (*leading, blocks, count // blocks)) for each in (first, second))
    x = xp.stack([first, second], axis=-2 if layout == "half" else -1)
    return xp.reshape(x, (*leading, 2 * count))


def _order(count: int, layout: str, blocks: int) -> np.ndarray:
    """The channels that come first in their pairs, and then those that come second: `pairs` where sizes are unknown."""
    grid = np.arange(2 * count).reshape((count, 2, 1) if layout == "interleaved" else (blocks, 2, count // blocks))
    return grid.swapaxes(0, 1).reshape(-1)


def _reordered(xp: Any, x: Any, order: np.ndarray) -> Any:
    return xp.take(x, xp.asarray(order), axis=-1) if (np.diff(order) != 1).any() else x
