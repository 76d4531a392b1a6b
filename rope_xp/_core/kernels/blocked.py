"""The rotation by operations of NumPy and PyTorch with `out=`, for machines without a compiled kernel.

Interleaved pairs are complex numbers in memory, and one complex multiplication rotates them. Of other pairs, few
numbers, such as those of a decoding step, are rotated at once. More are processed in blocks that fit into the cache of
a core, and so are interleaved pairs of 16 bits.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import product
from math import prod
from typing import Any

import numpy as np

from rope_xp._core.backends import memory
from rope_xp._core.kernels.pair_rotation import Rotation, Tables
from rope_xp._core.kernels.reference import join_pairs, split_pairs

MEMORY_KINDS = ("host memory",)
BYTES_PER_BLOCK = 2**20  # of x, for each thread; measured
FEW = 2**16  # numbers; measured: beyond, more passes over memory cost as much as the calls that they save


def rotate_all(xs: Sequence[Any], tables: Tables, rotation: Rotation, inplace: bool = False) -> list[Any]:
    """The same as `reference.rotate_all`. A new array has the memory order of its input."""
    outs = [x if inplace else memory.empty_like(x) for x in xs]
    are_complex = rotation.read == rotation.write == "interleaved"
    for x, (sin, cos), out in zip(xs, tables, outs):
        rotate = _rotate_block if are_complex or prod(x.shape) > FEW else _rotate_few
        if x.shape[-1] == 2 * sin.shape[-1] and rotation.blocks == 1:
            rotate(x, sin, cos, out, rotation)
            continue
        for block in rotation.by_block(x, sin, cos, out):
            rotate(*block, rotation)
    return outs


def _rotate_few(x: Any, sin: Any, cos: Any, out: Any, rotation: Rotation) -> None:
    """Rotate all pairs at once, with a few operations. `out` may be `x`."""
    xp, converted = memory.operations(x), x.dtype != sin.dtype
    if converted:
        numbers = memory.empty(x.shape, sin)
        numbers[...] = x
    else:
        numbers = x
    first, second = _channels(numbers, rotation.read)
    sine_of_first, sine_of_second = (xp.subtract, xp.add) if not rotation.inverse else (xp.add, xp.subtract)
    one, other = first * cos, second * cos
    sine_of_first(one, second * sin, out=one)
    sine_of_second(other, first * sin, out=other)
    one_out, other_out = _channels(out, rotation.write)
    with np.errstate(over="ignore") if converted else nullcontext():  # overflow gives infinity, as in other kernels
        one_out[...], other_out[...] = one, other


def _channels(x: Any, layout: str) -> tuple[Any, Any]:
    """Views of the first and of the second channels of all pairs."""
    if layout == "interleaved":
        return x[..., ::2], x[..., 1::2]
    width = x.shape[-1] // 2
    return x[..., :width], x[..., width:]


def _rotate_block(x: Any, sin: Any, cos: Any, out: Any, rotation: Rotation) -> None:
    if 0 in x.shape:
        return
    xp, converted = memory.operations(x), x.dtype != sin.dtype
    sin = -sin if rotation.inverse else sin
    angles = memory.complex_numbers(cos, sin) if rotation.read == rotation.write == "interleaved" else None
    if angles is not None and not converted:
        numbers, rotated = memory.complex_view(x), memory.complex_view(out)
        if numbers is not None and rotated is not None:
            xp.multiply(numbers, angles, out=rotated)
            return
    if angles is not None and converted:
        tables = (angles,)
    else:
        tables = (_join_pairs(cos, cos, rotation), _join_pairs(-sin, sin, rotation))
    _rotate_parts(x, tables, sin, out, rotation)


def _rotate_parts(x: Any, tables: Sequence[Any], like: Any, out: Any, rotation: Rotation) -> None:
    """Rotate parts that stay in the cache. They are converted and swapped in memory with the dtype of `like`."""
    width, size = x.shape[-1], BYTES_PER_BLOCK // x.itemsize * (memory.threads(x) or 1)
    count = min(prod(x.shape), max(size, width))
    buffers = memory.empty(count, like), memory.empty(count, like)
    for part in _parts(tuple(x.shape[:-1]), tuple(tables[0].shape[:-1]), width, size):
        numbers, rotated = x[part], out[part]
        products, wide = (buffer[: prod(numbers.shape)].reshape(numbers.shape) for buffer in buffers)
        tables_of_part = [table[_part_of_table(part, table)] for table in tables]
        if x.dtype == like.dtype:
            _rotate_part(numbers, tables_of_part, rotated, products, rotation)
            continue
        wide[...] = numbers
        _rotate_part(wide, tables_of_part, wide, products, rotation)
        with np.errstate(over="ignore"):  # overflow gives infinity, as in the other kernels
            rotated[...] = wide


def _rotate_part(numbers: Any, tables: Sequence[Any], rotated: Any, products: Any, rotation: Rotation) -> None:
    """Rotate by one table of complex numbers, or by a table of cosines and a table of sines with their signs.

    `products` is memory for the products with sines. `rotated` may be `numbers`.
    """
    xp = memory.operations(numbers)
    if len(tables) == 1:
        xp.multiply(memory.complex_view(numbers), tables[0], out=memory.complex_view(rotated))
        return
    if rotation.read != rotation.write:
        numbers = _join_pairs(*split_pairs(xp, numbers, rotation.read), rotation)
    # Each product is one pass over contiguous memory. NumPy copies halves of rows faster than it subtracts them.
    halves = memory.views_as_halves(numbers, products) if rotation.write == "half" else None
    if halves is not None:
        halves[1][..., ::-1] = halves[0]
        xp.multiply(products, tables[1], out=products)
        xp.multiply(numbers, tables[0], out=rotated)
        xp.add(rotated, products, out=rotated)
        return
    xp.multiply(numbers, tables[1], out=products)
    xp.multiply(numbers, tables[0], out=rotated)
    of_partners = reversed(split_pairs(xp, products, rotation.write))
    for channels, each in zip(split_pairs(xp, rotated, rotation.write), of_partners):
        xp.subtract(channels, each, out=channels)


def _join_pairs(first: Any, second: Any, rotation: Rotation) -> Any:
    """A new array of both channels of all pairs, in the layout of the result."""
    return join_pairs(memory.operations(first), first, second, rotation.write)


def _parts(shape: tuple[int, ...], table_shape: tuple[int, ...], width: int, size: int) -> Iterator[tuple[slice, ...]]:
    """Slices that cut an array of shape `(*shape, width)` into parts of at most `size` numbers, or of one row.

    Parts with the same part of the tables follow each other.
    """
    cuts: list[list[slice]] = []
    for length in reversed(shape):
        step = min(length, max(1, size // width))
        cuts.insert(0, [slice(start, start + step) for start in range(0, length, step)])
        width *= length
    outermost_first = sorted(range(len(shape)), key=lambda axis: table_shape[axis] == 1)
    for chosen in product(*[cuts[axis] for axis in outermost_first]):
        of_axis = dict(zip(outermost_first, chosen))
        yield tuple(of_axis[axis] for axis in range(len(shape)))


def _part_of_table(part: tuple[slice, ...], table: Any) -> tuple[slice, ...]:
    """The same part of a table, whose axes may have size 1."""
    return tuple(slice(None) if size == 1 else each for size, each in zip(table.shape, part))
