"""The rotation by operations of NumPy and PyTorch with `out=`, for machines without a compiled kernel.

Interleaved pairs are complex numbers in memory, and one complex multiplication rotates them. Other pairs and 16-bit
dtypes are processed in blocks that fit into the cache of a core.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from rope_xp._core.backends import memory
from rope_xp._core.kernels.pair_rotation import Rotation, Tables
from rope_xp._core.kernels.reference import join_pairs

MEMORY_KINDS = ("host memory",)
NUMBERS_PER_BLOCK = 2**17


def rotate_all(xs: Sequence[Any], tables: Tables, rotation: Rotation, inplace: bool = False) -> list[Any]:
    """`reference.rotate_all`. A new array has the memory order of its input."""
    outs = [x if inplace else memory.empty_like(x) for x in xs]
    for x, (sin, cos), out in zip(xs, tables, outs):
        for block in rotation.by_block(x, sin, cos, out):
            _rotate_block(*block, rotation)
    return outs


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
    size = NUMBERS_PER_BLOCK * (memory.threads(x) or 1)
    for part in _parts(tuple(x.shape[:-1]), x.shape[-1], size):
        numbers = memory.contiguous_copy(x[part], sin.dtype) if converted else x[part]
        rotated = memory.empty_like(numbers) if converted else out[part]
        _rotate_part(numbers, [table[_part_of_table(part, table)] for table in tables], rotated, rotation)
        if converted:
            with np.errstate(over="ignore"):  # overflow gives infinity, as in the other kernels
                out[part] = rotated


def _rotate_part(numbers: Any, tables: Sequence[Any], rotated: Any, rotation: Rotation) -> None:
    """Rotate by one table of complex numbers, or by a table of cosines and a table of sines with their signs."""
    xp = memory.operations(numbers)
    if len(tables) == 1:
        xp.multiply(memory.complex_view(numbers), tables[0], out=memory.complex_view(rotated))
        return
    # Each product is one pass over contiguous memory; only the partner channels are copied first.
    if rotation.read != rotation.write:
        numbers = _join_pairs(*_split_pairs(numbers, rotation.read), rotation)
    first, second = _split_pairs(numbers, rotation.write)
    partner = _join_pairs(second, first, rotation)
    xp.multiply(partner, tables[1], out=partner)
    xp.multiply(numbers, tables[0], out=rotated)
    xp.add(rotated, partner, out=rotated)


def _join_pairs(first: Any, second: Any, rotation: Rotation) -> Any:
    """A new array of both channels of all pairs, in the layout of the result."""
    return join_pairs(memory.operations(first), first, second, rotation.write)


def _split_pairs(x: Any, layout: str) -> tuple[Any, Any]:
    """Views of the first and the second channels of all pairs."""
    if layout == "interleaved":
        return x[..., 0::2], x[..., 1::2]
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


def _parts(shape: tuple[int, ...], width: int, size: int) -> Iterator[tuple[slice, ...]]:
    """Slices that cut an array of shape `(*shape, width)` into parts of about `size` numbers."""
    whole = (slice(None),) * len(shape)
    if prod(shape) * width <= size or not shape:
        yield whole
        return
    step = size // (prod(shape[1:]) * width)
    for start in range(0, shape[0], max(1, step)):
        for rest in [whole[1:]] if step else _parts(shape[1:], width, size):
            yield (slice(start, start + max(1, step)), *rest)


def _part_of_table(part: tuple[slice, ...], table: Any) -> tuple[slice, ...]:
    """The same part of a table, whose axes may have size 1."""
    return tuple(slice(None) if size == 1 else axis for size, axis in zip(table.shape, part))
