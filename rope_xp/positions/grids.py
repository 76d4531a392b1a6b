"""Positions of the cells of grids: images and videos in vision towers and diffusion models.

Four ideas are enough for every scheme below:

- Positions along an axis of the grid are equidistant (`start`, and `step` or `last`) or are given as coordinates.
- Cells are in row-major order, or in row-major order of blocks (`block`).
- The rows of the result are axes of the grid, which may be reordered, left out or repeated (`axes`).
- `join` concatenates grids and other tokens. Tokens that are not rotated have position 0 on every axis.

Vision towers:

Qwen2-VL to Qwen3.5, GLM-4V to GLM-5, Ernie 4.5 VL, EXAONE 4.5, Cohere Compass, which merge m x m patches: (h, w)
    ``join(*(grid(*thw, block=(1, m, m), axes=(1, 2)) for thw in grid_thw))``
VideoLLaMA3, which merges images and videos differently
    ``join(*(grid(*thw, block=(1, m, m), axes=(1, 2)) for thw, m in zip(grid_thw, merge_sizes)))``
MiniMax-M3: (t, h, w)
    ``join(*(grid(*thw, block=(1, m, m)) for thw in grid_thw))``
PaddleOCR-VL, Step 3.7, Kimi K2.5 in transformers: (h, w)
    ``join(*(grid(*thw, axes=(1, 2)) for thw in grid_thw))``
Kimi-VL, MoonViT: (w, h)
    ``join(*(grid(*thw, axes=(2, 1)) for thw in grid_thw))``
Muse Glimmer, before cells are ordered by window: (w, h) from 1
    ``join(*(grid(*thw, start=1, axes=(2, 1)) for thw in grid_thw))``
Pixtral, Mistral Small 3: images of (h, w)
    ``join(*(grid(*hw) for hw in sizes))``
MLCD (after a class token with learned angles), DUSt3R, CroCo, EVA: (h, w)
    ``grid(h, w)``
VGGT: n camera and register tokens, then (h, w) from 1
    ``join(n, grid(h, w, start=1))``
Gemma 4: (x, y), padded to n
    ``join(grid(h, w, axes=(1, 0)), total=n, padding=-1)``
Llama 4: (x, y) from 1, then the class token
    ``join(grid(h, w, start=1, axes=(1, 0)), 1)``
SAM 2, EdgeTAM, windows of SAM 3, RoPE-ViT: (x, y)
    ``grid(h, w, axes=(1, 0))``
SAM 2, keys: the memories of n frames, then k object pointers
    ``join(*[grid(h, w, axes=(1, 0))] * n, k)``
SAM 3, layers over the whole image
    ``grid(h, w, step=window / w, axes=(1, 0))``
V-JEPA 2: (t, h, w)
    ``grid(t, h, w)``
EfficientLoFTR: (h, w) from 1
    ``grid(h, w, start=1)``
DINOv3, EoMT, Sapiens 2: n class and register tokens, then (h, w) in [-1, 1]
    ``join(n, normalized(h, w))``
timm with ``ref_feat_shape=(r, r)``, the patches of training
    ``grid(h, w, step=(r / h, r / w))``
timm with ``grid_offset=o`` and ``grid_indexing="xy"``, such as Perception Encoder (o = 1)
    ``grid(h, w, start=o, axes=(1, 0))``
timm with ``in_pixels=True``
    ``grid(h, w, start=-1, last=1)``
NeoMME: two tokens, then rows that end in a marker
    ``join(grid(2, axes=(0, 0)), grid(h, w + 1, start=2))``
MiniCPM-V 4.7: h x w tokens on a canvas of H x W, from time s (upstream rounds a few halves differently, in float32)
    ``grid(1, np.rint(np.linspace(0, H - 1, h)).astype(int), np.rint(np.linspace(0, W - 1, w)).astype(int), start=s)``

Image models:

Flux, Chroma, Bria, Krea 2: n tokens of text, then the image
    ``join(n, grid(1, h, w))``
HiDream: the image padded to m, then n tokens of text
    ``join(grid(1, h, w), total=m + n)``
Flux 2: text, image, then reference image i
    ``join(grid(1, 1, 1, n), grid(1, h, w, 1), grid(1, h, w, 1, start=(10 * (i + 1), 0, 0, 0)))``
Ovis Image: text on two axes, then the image
    ``join(grid(1, n, axes=(0, 1, 1)), grid(1, h, w))``
LongCat-Image: text padded to n, then the image
    ``join(grid(1, n, axes=(0, 1, 1)), grid(1, h, w, start=(1, n, n)))``
Lumina 2: text, then the image
    ``join(grid(n, 1, 1), grid(1, h, w, start=(n, 0, 0)))``
Z-Image: text padded to n, then the image
    ``join(grid(n, 1, 1, start=(1, 0, 0)), grid(1, h, w, start=(n + 1, 0, 0)))``
ERNIE-Image: the image, then text of n tokens
    ``join(grid(1, h, w, start=(n, 0, 0)), grid(n, 1, 1))``
Qwen-Image: image i, centred, then text
    ``join(grid(1, h, w, start=(i, h // 2 - h, w // 2 - w)), grid(n, start=max(h // 2, w // 2), axes=(0, 0, 0)))``
CogView 4: stretched over H x W integers
    ``grid([H * row // h for row in range(h)], [W * column // w for column in range(w)])``
PRX, Lumina-Next, GLM-Image, HunyuanImage: (h, w)
    ``grid(h, w)``

Video models, (t, h, w):

Wan, SkyReels, HunyuanVideo, CogVideoX 1.5, Motif
    ``grid(t, h, w)``
FramePack, Helios, ChronoEdit: frames with gaps between them
    ``grid(frames, h, w)``
Cosmos, with `fps` frames per second
    ``grid(t, h, w, step=(24 / fps, 1, 1))``
Kandinsky 5, Allegro: each axis divided by a scale
    ``grid(t, h, w, step=(1 / a, 1 / b, 1 / c))``
CogVideoX 1, EasyAnimate: resized into a box
    ``grid(t, h, w, start=(0, top, left), last=(t - 1, bottom * (h - 1) / h, right * (w - 1) / w))``
LTX-Video, with interpolation scales a, b, c
    ``grid(t, h, w, start=-1, step=(2 * a / 20, 2 * b / 2048, 2 * c / 2048))``
LTX-2, with the midpoint of every frame in seconds
    ``grid(seconds, h, w, start=(-1, 32 / 2048 - 1, 32 / 2048 - 1), step=(2 / 20, 64 / 2048, 64 / 2048))``
Mochi: centred, scaled by s = sqrt(192 * 192 / (h * w))
    ``grid(t, h, w, start=(0, s * (1 - h) / 2, s * (1 - w) / 2), step=(1, s, s))``

`grid_thw` and sizes are Python numbers: use ``grid_thw.tolist()`` for a tensor. If a model reorders or drops patches
afterwards, for windows or masks, index the last axis of the positions in the same way.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from rope_xp.arrays import checks, libraries
from rope_xp.errors import public, wrong_type, wrong_value
from rope_xp.positions.sequence import NUMPY, like_of
from rope_xp.types import Array

Numbers = Sequence[int] | Sequence[float]
# One axis of a grid as `grid` takes it: its size, or its coordinates.
Size: TypeAlias = int | Numbers | Array

# The values of `by` in `normalized`, with their meaning for messages.
SIZES = {
    "separate": "each axis by its own size",
    "min": "all axes by the smallest size",
    "max": "all axes by the largest size",
}


@public("grid")
def grid(
    *sizes: int | Numbers | Array,
    start: float | Numbers = 0,
    step: float | Numbers | None = None,
    last: float | Numbers | None = None,
    block: int | Sequence[int] = 1,
    axes: Sequence[int] | None = None,
    like: Array | None = None,
) -> Any:
    """Positions on a grid, such as the rows and columns of image patches.

    Parameters
    ----------
    *sizes : int, sequence of numbers or array, "size"
        Axes of the grid, for instance height and width, or time, height and width; the last axis varies fastest. An int
        is the size of an axis with coordinates ``0, 1, ..., size - 1``. A sequence or array gives the coordinates.
    start, step : number, or one for each axis
        Positions are ``start + step * coordinate``. The defaults are 0 and 1.
    last : number, or one for each axis, optional
        Position of the last cell, in place of `step`. Positions are then evenly spaced from `start` to `last`.
    block : int, or one for each axis
        Size of blocks. Cells are ordered block by block, and in row-major order within a block. The size of each axis
        must be divisible by the size of its block.
    axes : sequence of int, optional
        The axis of the grid for each row of the result; by default all axes in order. For example, ``(1, 0)`` gives
        (x, y) instead of (row, column), ``(1, 2)`` omits time, and ``(0, 0)`` gives two equal rows.
    like : array, optional
        The result has its library and device; by default those of the coordinates, or NumPy.

    Returns
    -------
    array, "axes cells"
        Position of each cell, one row for each position axis. If all arguments are integers, without `last`, the
        dtype is int32, or int64 if coordinates are an int64 array of a library other than NumPy. Otherwise it is
        float32. Float positions are rounded only once if sizes and coordinates are known on the host.

    Raises
    ------
    ValueError
        If no size or more than 31 are given, a size is negative or not divisible by its block, an entry of `axes` is
        not an axis of the grid, both `step` and `last` are given, coordinates do not have one axis, or positions do not
        fit in int32 or float32.
    TypeError
        If an argument has a wrong type.

    References
    ----------
    Order of blocks: huggingface/transformers, `vision_utils.py`, `get_vision_position_ids`. `last`: `linspace` of
    PyTorch and NumPy.

    Examples
    --------
    >>> grid(2, 3)
    array([[0, 0, 0, 1, 1, 1],
           [0, 1, 2, 0, 1, 2]], dtype=int32)
    >>> grid(2, 4, start=1, block=2, axes=(1, 0))
    array([[1, 2, 1, 2, 3, 4, 3, 4],
           [1, 1, 2, 2, 1, 1, 2, 2]], dtype=int32)
    >>> grid([0, 9], 3, start=(5, -1), step=(1, 0.5))
    array([[ 5. ,  5. ,  5. , 14. , 14. , 14. ],
           [-1. , -0.5,  0. , -1. , -0.5,  0. ]], dtype=float32)
    """
    _check_number_of_axes(sizes)
    if step is not None and last is not None:
        both = f"step={checks.shown(step)} and last={checks.shown(last)}"
        raise wrong_value(f"at most one of step and last may be given; got {both}")
    starts, steps = _per_axis("start", start, sizes), _per_axis("step", 1 if step is None else step, sizes)
    lasts = [None] * len(sizes) if last is None else _per_axis("last", last, sizes)
    for size in filter(_is_array, sizes):
        checks.array("coordinates", size)
    target = like_of(like, sizes)
    axis_positions = [_axis_positions(*numbers, target) for numbers in zip(sizes, starts, steps, lasts)]
    return _cells(axis_positions, block, axes)


@public("normalized")
def normalized(
    *sizes: int,
    by: Literal["separate", "min", "max"] = "separate",
    axes: Sequence[int] | None = None,
    like: Array | None = None,
) -> Any:
    """Positions of the centres of the cells of a grid, in coordinates from -1 to 1.

    Parameters
    ----------
    *sizes : int
        Size of each axis in cells; the last axis varies fastest.
    by : "separate", "min" or "max"
        The size that is scaled to the interval from -1 to 1. All axes start at -1.

        - ``"separate"``: each axis by its own size.
        - ``"min"``: all axes by the smallest size; longer axes end beyond 1.
        - ``"max"``: all axes by the largest size; shorter axes end before 1.
    axes : sequence of int, optional
        Axis of the grid for each row of the result, as in `grid`.
    like : array, optional
        The result has its library and device; by default NumPy.

    Returns
    -------
    array, "axes cells"
        Coordinates, float32.

    Raises
    ------
    ValueError
        If no size or more than 31 are given, a size is less than 1, `by` is unknown, or an entry of `axes` is not an
        axis of the grid.
    TypeError
        If a size or an entry of `axes` is not an integer.

    References
    ----------
    Siméoni et al., DINOv3 (2025), arXiv:2508.10104, section 3.2. facebookresearch/dinov3,
    `dinov3/layers/rope_position_encoding.py`, `normalize_coords`.

    Examples
    --------
    >>> normalized(1, 4)
    array([[ 0.  ,  0.  ,  0.  ,  0.  ],
           [-0.75, -0.25,  0.25,  0.75]], dtype=float32)
    """
    _check_number_of_axes(sizes)
    checks.one_of("by", by, SIZES)
    counts = [checks.count("every size", size, 1) for size in sizes]
    like = NUMPY if like is None else like
    xp = checks.array("like", like)
    lengths = counts if by == "separate" else [min(counts) if by == "min" else max(counts)] * len(counts)
    axis_positions = []
    for size, length in zip(counts, lengths):  # in integers, so that only the division rounds
        axis_positions.append(
            libraries.astype(2 * libraries.arange(size, like=like) + (1 - length), xp.float32) / length
        )
    return _cells(axis_positions, 1, axes)


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
    checks.integer("padding", padding)
    if not -(2**31) <= padding < 2**31:
        raise wrong_value(f"padding must fit in int32; got {padding}")
    arrays = _array_parts(parts, like)
    xp, remaining = libraries.namespace(arrays[0]), iter(arrays)
    dtype = _widest_dtype(xp, arrays)
    counts = [checks.count("a number of tokens", part) if checks.is_int(part) else None for part in parts]
    rows = [next(remaining) if count is None else _constant(0, count, arrays[0]) for count in counts]
    if total is not None:
        tokens = sum(row.shape[-1] for row in rows)
        missing = checks.count("total", total) - tokens
        if missing < 0:
            raise wrong_value(f"total must be at least {tokens}, the number of tokens of the parts; got {total}")
        rows.append(_constant(padding, missing, arrays[0]))
    return xp.concat([libraries.astype(row, dtype) for row in rows], axis=-1)


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


def _check_number_of_axes(sizes: Sequence[Size]) -> None:
    most = checks.MAX_AXES // 2  # an axis in blocks is two axes of NumPy
    if not 1 <= len(sizes) <= most:
        raise wrong_value(f"at least one size is required, and at most {most}; got {len(sizes) or 'none'}")


def _per_axis(name: str, values: Any, sizes: Sequence[Size]) -> list[int | float]:
    """One number for each axis; a single number applies to all axes."""
    if libraries.is_host(values):
        checks.array(name, values)
        values = values.tolist()
    if not isinstance(values, Sequence) or isinstance(values, str):
        values = [values] * len(sizes)
    if len(values) != len(sizes):
        raise wrong_value(f"{name} must be a number, or one for each of {len(sizes)} axes; got {len(values)}")
    return [_number(name, value) for value in values]


def _number(name: str, value: object) -> int | float:
    return checks.plain(value) if checks.is_int(value) else checks.finite(name, value)


def _is_array(size: object) -> bool:
    return not checks.is_int(size) and libraries.namespace(size) is not None


def _axis_positions(size: Size, start: float, step: float, last: float | None, like: Array) -> Array:
    integers = last is None and not isinstance(start, float) and not isinstance(step, float)
    if not checks.is_int(size):
        coordinates = _coordinates(size)
        if last is not None:
            raise wrong_value(f"last must not be given for an axis with coordinates; got {last}")
        if isinstance(coordinates, list):
            return _axis_from_numbers(coordinates, start, step, like)
        return _axis_from_array(coordinates, start, step, integers, like)
    size = checks.count("every size", size)
    if integers:
        if isinstance(size, int) and isinstance(start, int):  # symbolic sizes are not compared
            _check_int32([start, step, start + step * max(size - 1, 0)])
        return libraries.arange(size, like=like) * step + start
    if last is None:
        return _axis_from_numbers(range(size), start, step, like)
    length = checks.finite("last", last) - checks.finite("start", start)
    return _axis_from_numbers([cell / max(size - 1, 1) for cell in range(size)], start, length, like)


def _axis_from_array(coordinates: Array, start: float, step: float, integers: bool, like: Array) -> Array:
    """``start + step * coordinates`` for an array of a library other than NumPy."""
    given = checks.positions("coordinates", coordinates, like=like)
    if integers and not libraries.is_real(given):
        _check_int32([number for number in (start, step) if isinstance(number, int)])
        return given * step + start
    return libraries.astype(given, libraries.namespace(like).float32) * step + start


def _axis_from_numbers(coordinates: Sequence[float], start: float, step: float, like: Array) -> Array:
    """``start + step * coordinate`` for Python numbers: int32 if all of them are integers, else float32."""
    xp = libraries.namespace(like)
    if not any(isinstance(number, float) for number in (start, step, *coordinates)):
        values = [start + step * coordinate for coordinate in coordinates]
        _check_int32(values)
        return libraries.from_numbers(tuple(values), like=like, dtype=xp.int32)
    start, step = checks.finite("start", start), checks.finite("step", step)
    values = [start + step * checks.finite("coordinates", coordinate) for coordinate in coordinates]
    if not all(abs(value) < 2.0**127 for value in values):
        raise wrong_value(f"positions must fit in float32; got {max(values, key=abs)}")
    return libraries.from_numbers(tuple(values), like=like, dtype=xp.float32)


def _coordinates(given: Any) -> list[int | float] | Array:
    if _is_array(given):
        if given.ndim != 1:
            raise wrong_value(f"every size must be an int, or coordinates of one axis; got shape {checks.shape(given)}")
        if not libraries.is_host(given):
            return given
        given = given.tolist()
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise wrong_type(f"every size must be an int, or coordinates; got {type(given).__name__}")
    return [_number("coordinates", coordinate) for coordinate in given]


def _check_int32(values: Sequence[float]) -> None:
    for value in values:
        if not -(2**31) <= value < 2**31:
            raise wrong_value(f"positions must fit in int32; got {value}")


def _cells(axis_positions: Sequence[Array], block: int | Sequence[int], axes: Sequence[int] | None) -> Array:
    counts = [positions.shape[0] for positions in axis_positions]
    blocks = _per_axis("block", block, tuple(counts))
    for count, size in zip(counts, blocks):
        if not isinstance(size, int):
            raise wrong_type(f"block must be an int, or one for each axis; got {checks.shown(size)}")
        if size < 1 or count % size:
            raise wrong_value(f"block must be at least 1 and divide the size of its axis, {count}; got {size}")
    rows = _rows(axes, len(axis_positions))
    xp = libraries.namespace(axis_positions[0])
    dtype = _widest_dtype(xp, [axis_positions[axis] for axis in rows])
    # The cells of the result are in the row-major order of this shape: all blocks, then the cells of a block.
    shape = (*(count // size for count, size in zip(counts, blocks)), *blocks)
    result = []
    for axis in rows:
        sizes = tuple(size if index % len(counts) == axis else 1 for index, size in enumerate(shape))
        row = xp.reshape(libraries.astype(axis_positions[axis], dtype), sizes)
        result.append(xp.reshape(xp.broadcast_to(row, shape), (math.prod(counts),)))
    return xp.stack(result)


def _rows(axes: object, count: int) -> list[int]:
    if axes is None:
        return list(range(count))
    if not isinstance(axes, Sequence) or not all(checks.is_int(axis) for axis in axes):
        raise wrong_type(f"axes must be a sequence of int; got {checks.shown(axes)}")
    if not axes or not all(0 <= axis < count for axis in axes):
        raise wrong_value(f"axes must be axes of the grid, 0 to {count - 1}; got {checks.shown(axes)}")
    return [checks.plain(axis) for axis in axes]


def _array_parts(parts: Sequence[Any], like: Array | None) -> list[Array]:
    arrays = [part for part in parts if not checks.is_int(part)]
    if not arrays:
        raise wrong_value(f"at least one part must be an array of positions; got {checks.shown(parts)}")
    like = like_of(like, arrays)
    arrays = [checks.positions("every part", part, like=like) for part in arrays]
    if not all(array.ndim for array in arrays) or len({checks.shape(array)[:-1] for array in arrays}) > 1:
        shapes = [checks.shape(array) for array in arrays]
        raise wrong_value(
            f"parts must have an axis of tokens and the same axes before it; got shapes {checks.shown(shapes)}"
        )
    return arrays


def _constant(value: int, count: int, like: Array) -> Array:
    row = libraries.arange(count, like=like) * 0 + value
    return libraries.namespace(like).broadcast_to(row, (*like.shape[:-1], count))


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


def _widest_dtype(xp: Any, arrays: Sequence[Array]) -> Any:
    found = {libraries.dtype_name(array.dtype) for array in arrays}
    return getattr(xp, [*(name for name in ("float64", "float32", "int64") if name in found), "int32"][0])
