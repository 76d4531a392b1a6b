"""The rotation as one expression of the array API: on every library, and what every other kernel must equal."""

from collections.abc import Sequence
from typing import Any

from rope_xp import backends
from rope_xp.kernels.turn import Tables, Turn


def rotate_all(xs: Sequence[Any], tables: Tables, turn: Turn, inplace: bool = False) -> list[Any]:
    """Turn the pairs of each array by the angles of its tables; `inplace` writes the results over the arrays.

    Every kernel has such a function. That of all others is right for the arrays of their PLACES.
    """
    rotated = [rotate(x, *own, turn) for x, own in zip(xs, tables)]
    if inplace:
        for x, y in zip(xs, rotated):
            x[...] = y
    return rotated


def rotate(x: Any, sin: Any, cos: Any, turn: Turn) -> Any:
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
    if turn.inverse:
        sin = -sin
    end, dim = turn.first_channel + 2 * sin.shape[-1], x.shape[-1]
    span = x if turn.first_channel == 0 and end == dim else x[..., turn.first_channel : end]
    first, second = pairs(xp, backends.astype(span, sin.dtype), turn.read, turn.blocks)
    turned = unpairs(xp, first * cos - second * sin, second * cos + first * sin, turn.write, turn.blocks)
    parts = [backends.astype(turned, x.dtype)]
    if turn.first_channel:
        parts.insert(0, x[..., : turn.first_channel])
    if end < dim:
        parts.append(x[..., end:])
    return parts[0] if len(parts) == 1 else backends.astype(backends.concat(parts), x.dtype)


def pairs(xp: Any, x: Any, layout: str, blocks: int = 1) -> tuple[Any, Any]:
    """The first and the second channels of all pairs."""
    count = x.shape[-1] // 2
    if layout == "interleaved":
        x = xp.reshape(x, (*x.shape[:-1], count, 2))
        return x[..., 0], x[..., 1]
    if blocks == 1:
        x = xp.reshape(x, (*x.shape[:-1], 2, count))
        return x[..., 0, :], x[..., 1, :]
    leading = x.shape[:-1]
    x = xp.reshape(x, (*leading, blocks, 2, count // blocks))
    return xp.reshape(x[..., 0, :], (*leading, count)), xp.reshape(x[..., 1, :], (*leading, count))


def unpairs(xp: Any, first: Any, second: Any, layout: str, blocks: int = 1) -> Any:
    """The inverse of `pairs`. Stacking and reshaping is what compilers fuse; concatenating is not."""
    leading, count = first.shape[:-1], first.shape[-1]
    if blocks > 1:
        first, second = (xp.reshape(each, (*leading, blocks, count // blocks)) for each in (first, second))
    x = xp.stack([first, second], axis=-2 if layout == "half" else -1)
    return xp.reshape(x, (*leading, 2 * count))
