"""Positions of the cells of grids: images, videos, and what vision towers make of them."""

from math import prod
from typing import Any

from rope_xp import backends, checks
from rope_xp.arrays import Array
from rope_xp.positions.sequence import NUMPY


def grid(*sizes: int, like: Array | None = None) -> Any:
    """Positions on a grid, such as the rows and columns of image patches.

    Parameters
    ----------
    *sizes : int
        Size of each axis, for instance height and width, or time, height and width. The last runs fastest.
    like : array, optional
        Whose library and device to use; without it, NumPy's.

    Returns
    -------
    array, "axes cells"
        Row a holds the coordinate of every cell on axis a.

    Raises
    ------
    ValueError
        If there is no size, or a negative one.
    TypeError
        If a size is no integer.

    Examples
    --------
    >>> grid(2, 3)
    array([[0, 0, 0, 1, 1, 1],
           [0, 1, 2, 0, 1, 2]], dtype=int32)
    """
    who = "grid"
    if not sizes:
        raise ValueError(f"{who}: at least one size is required; got none")
    sizes = tuple(checks.count(who, "every size", size) for size in sizes)
    like = NUMPY if like is None else like
    xp = checks.array(who, "like", like)
    axes = []
    for axis, size in enumerate(sizes):
        shape = [size if other == axis else 1 for other in range(len(sizes))]
        coordinates = xp.reshape(backends.arange(size, like=like), tuple(shape))
        axes.append(xp.reshape(xp.broadcast_to(coordinates, sizes), (prod(sizes),)))
    return xp.stack(axes)
