"""The reference kernel: array API operations that run on every library. All other kernels must equal it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rope_xp._core import backends
from rope_xp._core.kernels.pair_rotation import Angles, Rotation, Tables


def rotate_all(xs: Sequence[Any], tables: Tables, rotation: Rotation, inplace: bool = False) -> list[Any]:
    """Rotate the pairs of each array by the angles of its tables; with `inplace`, results overwrite the arrays.

    Every kernel has a function of this name. The other kernels accept only arrays in one of their MEMORY_KINDS.
    """
    rotated = [rotate(x, sin, cos, rotation) for x, (sin, cos) in zip(xs, tables)]
    if inplace:
        for x, y in zip(xs, rotated):
            x[...] = y
    return rotated


def rotate(x: Any, sin: Any, cos: Any, rotation: Rotation) -> Any:
    """Rotate the pairs of `x` by the angles of the tables.

    Parameters
    ----------
    x : array, "*axes dim"
        Floating point.
    sin, cos : array, "*axes pairs"
        Of the rank of `x`; axes before the last broadcast against those of `x`. float64 for float64 `x`, else float32.
    rotation : Rotation

    Returns
    -------
    array, "*axes dim"
        The dtype of `x`.
    """
    xp = backends.namespace(x)
    if rotation.inverse:
        sin = -sin
    end, dim = rotation.first_channel + 2 * sin.shape[-1], x.shape[-1]
    span = x if rotation.first_channel == 0 and end == dim else x[..., rotation.first_channel : end]
    # With "half", compilers fuse conversion and rotation. Interleaved 16-bit channels are faster if converted first.
    halves = rotation.read == "half"
    read = split_pairs(xp, span if halves else backends.astype(span, sin.dtype), rotation.read, rotation.blocks)
    first, second = (backends.astype(channels, sin.dtype) for channels in read)
    first, second = first * cos - second * sin, second * cos + first * sin
    if halves:
        first, second = (backends.astype(channels, x.dtype) for channels in (first, second))
    rotated = join_pairs(xp, first, second, rotation.write, rotation.blocks)
    parts = [backends.astype(rotated, x.dtype)]
    if rotation.first_channel:
        parts.insert(0, x[..., : rotation.first_channel])
    if end < dim:
        parts.append(x[..., end:])
    return parts[0] if len(parts) == 1 else backends.astype(backends.concat(parts), x.dtype)


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
    """The rows "*axes pairs" of a table "rows pairs" at positions "*axes"."""
    xp = backends.namespace(table)
    known = (positions >= 0) & (positions < backends.size_of(table, 0))
    rows = backends.take_rows(table, xp.where(known, positions, xp.zeros_like(positions)))
    # A constant NaN: a computed NaN triggers NaN detectors, even in rows where it is not selected.
    nan = backends.from_numbers((float("nan"),), like=table, dtype=table.dtype)
    return xp.where(known[..., None], rows, xp.reshape(nan, (1,) * rows.ndim))


def split_pairs(xp: Any, x: Any, layout: str, blocks: int = 1) -> tuple[Any, Any]:
    """The first channels and the second channels of all pairs."""
    count = x.shape[-1] // 2
    if not backends.knows_sizes(x):
        x = _reorder(xp, x, _pair_order(count, layout, blocks))
        return x[..., :count], x[..., count:]
    if layout == "interleaved":
        return backends.unstack(xp.reshape(x, (*x.shape[:-1], count, 2)), axis=-1)
    if blocks == 1:
        return backends.unstack(xp.reshape(x, (*x.shape[:-1], 2, count)), axis=-2)
    leading = x.shape[:-1]
    first, second = backends.unstack(xp.reshape(x, (*leading, blocks, 2, count // blocks)), axis=-2)
    return xp.reshape(first, (*leading, count)), xp.reshape(second, (*leading, count))


def join_pairs(xp: Any, first: Any, second: Any, layout: str, blocks: int = 1) -> Any:
    """The inverse of `split_pairs`. It stacks and reshapes, because compilers do not fuse concatenation."""
    leading, count = first.shape[:-1], first.shape[-1]
    if not backends.knows_sizes(first):
        return _reorder(xp, backends.concat([first, second]), np.argsort(_pair_order(count, layout, blocks)))
    if blocks > 1:
        first, second = (xp.reshape(part, (*leading, blocks, count // blocks)) for part in (first, second))
    x = xp.stack([first, second], axis=-2 if layout == "half" else -1)
    return xp.reshape(x, (*leading, 2 * count))


def _pair_order(count: int, layout: str, blocks: int) -> np.ndarray:
    """The indices of all first channels, then of all second channels. Used if sizes of axes are unknown."""
    grid = np.arange(2 * count).reshape((count, 2, 1) if layout == "interleaved" else (blocks, 2, count // blocks))
    return grid.swapaxes(0, 1).reshape(-1)


def _reorder(xp: Any, x: Any, order: np.ndarray) -> Any:
    return xp.take(x, xp.asarray(order), axis=-1) if (np.diff(order) != 1).any() else x
