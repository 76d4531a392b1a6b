"""Changes of positions: concatenation, and random shifts and scales for training."""

import math
from typing import Any

from rope_xp.arrays import checks, libraries
from rope_xp.errors import public, wrong_type, wrong_value
from rope_xp.positions.grids import widest_dtype
from rope_xp.positions.sequence import NUMPY
from rope_xp.types import Array


@public("join")
def join(
    *parts: int | Array,
    total: int | None = None,
    padding: int = 0,
    like: Array | None = None,
) -> Any:
    """Concatenate positions of one sequence: prefix tokens, images one after the other, padding.

    Parameters
    ----------
    *parts : int or array, "*axes cells"
        An array of positions; all arrays have the same axes before the last. An int is a number of tokens that are not
        rotated, such as class and register tokens. Their position is 0 on every axis.
    total : int, optional
        Number of tokens of the result. Tokens after the last part are padding.
    padding : int
        Position of padding on every axis.
    like : array, optional
        The result has its library and device; by default those of the parts.

    Returns
    -------
    array, "*axes total"
        An integer dtype if all parts are integers, otherwise float32 or float64.

    Raises
    ------
    ValueError
        If no part is an array, parts have different axes before the last, a number of tokens is negative, `total` is
        less than the number of tokens of all parts, or `padding` does not fit in int32.
    TypeError
        If a part is neither an int nor an array, or `total` or `padding` is not an integer.

    Examples
    --------
    >>> join(1, grid(1, 2), grid(2, 1, start=5))
    array([[0, 0, 0, 5, 6],
           [0, 0, 1, 5, 5]], dtype=int32)
    >>> join(grid(1, 2), total=4, padding=-1)
    array([[ 0,  0, -1, -1],
           [ 0,  1, -1, -1]], dtype=int32)
    """
    arrays = _array_parts(parts, like)
    xp, remaining = libraries.namespace(arrays[0]), iter(arrays)
    dtype = widest_dtype(xp, arrays)
    counts = [checks.count("a number of tokens", part) if checks.is_int(part) else None for part in parts]
    rows = [next(remaining) if count is None else _constant(0, count, arrays[0]) for count in counts]
    if total is not None:
        tokens = sum(row.shape[-1] for row in rows)
        missing = checks.count("total", total) - tokens
        if missing < 0:
            raise wrong_value(f"total must be at least {tokens}, the number of tokens of the parts; got {total}")
        if not checks.is_int(padding):
            raise wrong_type(f"padding must be an int; got {type(padding).__name__}")
        if not -(2**31) <= padding < 2**31:
            raise wrong_value(f"padding must fit in int32; got {padding}")
        rows.append(_constant(padding, missing, arrays[0]))
    return xp.concat([libraries.astype(row, dtype) for row in rows], axis=-1)


def _array_parts(parts: tuple[Any, ...], like: Array | None) -> list[Array]:
    """The arrays among the parts, in one library and on one device."""
    arrays = [part for part in parts if not checks.is_int(part)]
    if not arrays:
        raise wrong_value(f"at least one part must be an array of positions; got {checks.shown(parts)}")
    for part in arrays:
        checks.array("every part", part)
    if like is None:
        like = next((part for part in arrays if not libraries.is_host(part)), NUMPY)
    arrays = [checks.positions("every part", part, like=like) for part in arrays]
    if not all(array.ndim for array in arrays) or len({checks.shape(array)[:-1] for array in arrays}) > 1:
        shapes = [checks.shape(array) for array in arrays]
        raise wrong_value(
            f"parts must have an axis of tokens and the same axes before it; got shapes {checks.shown(shapes)}"
        )
    return arrays


@public("augment")
def augment(
    positions: Array,
    source: object,
    *,
    shift: float | None = None,
    jitter: float | None = None,
    rescale: float | None = None,
) -> Any:
    """Shift and scale real positions at random, for training. All cells of an axis change in the same way.

    Parameters
    ----------
    positions : array, "axes *batch cells"
        float32 or float64, such as the result of `normalized`.
    source : numpy.random.Generator, torch.Generator or JAX key
        Source of random numbers. A call changes the state of a generator, but not of a key. A NumPy generator works
        with all libraries, but under jit its numbers become constants of the program.
    shift : float, optional
        First, a number from ``-shift`` to ``shift`` is added, one for each axis.
    jitter : float, optional
        Second, positions are multiplied by a log-uniform factor from ``1 / jitter`` to ``jitter``, one for each axis.
    rescale : float, optional
        Third, they are multiplied by a log-uniform factor from ``1 / rescale`` to ``rescale``, one for all axes.

    Returns
    -------
    array, "axes *batch cells"
        It has the library, dtype and device of `positions`. NumPy positions are converted to the library of `source`.

    Raises
    ------
    ValueError
        If `shift` is negative, `jitter` or `rescale` is less than 1, or `positions` has no axes.
    TypeError
        If `positions` is not float32 or float64, or `source` is not a random source of NumPy or of the library of
        `positions`.

    References
    ----------
    Siméoni et al., DINOv3 (2025), arXiv:2508.10104, section 3.2. facebookresearch/dinov3,
    `dinov3/layers/rope_position_encoding.py`, which draws random numbers in the same order.

    Examples
    --------
    >>> import numpy as np
    >>> centres = normalized(2, 2)
    >>> moved = augment(centres, np.random.default_rng(0), shift=0.1)
    >>> bool(np.all(np.abs(moved - centres) <= 0.1))
    True
    """
    checks.floating("positions", positions, ("float32", "float64"))
    if not positions.ndim:
        raise wrong_value("positions must have a position axis first; got shape ()")
    shift = None if shift is None else checks.at_least("shift", shift, 0.0)
    jitter, rescale = (
        None if factor is None else math.log(checks.at_least(name, factor, 1.0))
        for name, factor in (("jitter", jitter), ("rescale", rescale))
    )
    axes = positions.shape[0]
    count = axes * ((shift is not None) + (jitter is not None)) + (rescale is not None)
    moved, numbers = _with_random_numbers(positions, count, source)
    xp, column = libraries.namespace(moved), (axes,) + (1,) * (positions.ndim - 1)
    if shift is not None:
        moved = moved + shift * xp.reshape(numbers[:axes], column)
        numbers = numbers[axes:]
    if jitter is not None:
        moved = moved * xp.exp(jitter * xp.reshape(numbers[:axes], column))
        numbers = numbers[axes:]
    return moved if rescale is None else moved * xp.exp(rescale * numbers[0])


def _with_random_numbers(positions: Array, count: int, source: object) -> tuple[Array, Array]:
    """Positions, and `count` random numbers from -1 to 1; both in one library and dtype."""
    numbers = libraries.uniform(count, source=source)
    if numbers is None:
        wanted = "a numpy.random.Generator, a torch.Generator or a JAX key"
        raise wrong_type(f"source must be {wanted}; got {type(source).__name__}")
    if libraries.is_host(positions):
        positions = checks.convert_like("positions", positions, numbers)
    else:
        numbers = checks.convert_like("numbers of source", numbers, positions)
    return positions, 2 * libraries.astype(numbers, positions.dtype) - 1


def _constant(value: int, count: int, like: Array) -> Array:
    """Positions of `count` tokens with one value on every axis of `like`."""
    row = libraries.arange(count, like=like) * 0 + value
    return libraries.namespace(like).broadcast_to(row, (*like.shape[:-1], count))
