"""The rotation by operations of NumPy and PyTorch that write into memory at hand, where nothing compiles.

Neighbouring channels are complex numbers in memory, which one multiplication turns. Other pairs, and numbers of 16
bits, pass through the arithmetic in blocks that fit into a core's cache.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from rope_xp._core.backends import memory
from rope_xp._core.kernels.pair_rotation import Rotation, Tables
from rope_xp._core.kernels.reference import join_pairs

PLACES = ("host memory",)
NUMBERS_PER_BLOCK = 2**17


def rotate_all(xs: Sequence[Any], tables: Tables, rotation: Rotation, inplace: bool = False) -> list[Any]:
    """`reference.rotate_all`; new memory is in the order of the array."""
    outs = [x if inplace else memory.empty_like(x) for x in xs]
    for x, own, out in zip(xs, tables, outs):
        for block in rotation.by_block(x, *own, out):
            _rotate_block(*block, rotation)
    return outs


def _rotate_block(x: Any, sin: Any, cos: Any, out: Any, rotation: Rotation) -> None:
    if 0 in x.shape:
        return
    xp, converted = memory.operations(x), x.dtype != sin.dtype
    sin = -sin if rotation.inverse else sin
    angles = memory.complex_numbers(cos, sin) if rotation.read == rotation.write == "interleaved" else None
    if angles is not None and not converted:
        numbers, turned = memory.complex_view(x), memory.complex_view(out)
        if numbers is not None and turned is not None:
            xp.multiply(numbers, angles, out=turned)
            return
    tables = (
        (angles,) if angles is not None and converted else (_joined(cos, cos, rotation), _joined(-sin, sin, rotation))
    )
    size = NUMBERS_PER_BLOCK * (memory.threads(x) or 1)
    for part in _parts(tuple(x.shape[:-1]), x.shape[-1], size):
        numbers = memory.contiguous_copy(x[part], sin.dtype) if converted else x[part]
        turned = memory.empty_like(numbers) if converted else out[part]
        of_part = [table[_of_table(part, table)] for table in tables]
        if len(of_part) == 1:
            xp.multiply(memory.complex_view(numbers), of_part[0], out=memory.complex_view(turned))
        else:  # every product in one run over memory, for which only the partners are moved
            own = numbers if rotation.read == rotation.write else _joined(*_pairs(numbers, rotation.read), rotation)
            first, second = _pairs(own, rotation.write)
            partner = _joined(second, first, rotation)
            xp.multiply(partner, of_part[1], out=partner)
            xp.multiply(own, of_part[0], out=turned)
            xp.add(turned, partner, out=turned)
        if converted:
            with np.errstate(over="ignore"):  # infinite, as everywhere
                out[part] = turned


def _joined(first: Any, second: Any, rotation: Rotation) -> Any:
    """New memory with both channels of all pairs, in the layout that is written."""
    return join_pairs(memory.operations(first), first, second, rotation.write)


def _pairs(x: Any, layout: str) -> tuple[Any, Any]:
    """Views of the first and the second channels of all pairs."""
    if layout == "interleaved":
        return x[..., 0::2], x[..., 1::2]
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


def _parts(shape: tuple[int, ...], width: int, size: int) -> Iterator[tuple[slice, ...]]:
    """Slices that cut an array of this shape, and so wide, into parts of some `size` numbers."""
    whole = (slice(None),) * len(shape)
    if prod(shape) * width <= size or not shape:
        yield whole
        return
    step = size // (prod(shape[1:]) * width)
    for start in range(0, shape[0], max(1, step)):
        for rest in [whole[1:]] if step else _parts(shape[1:], width, size):
            yield (slice(start, start + max(1, step)), *rest)


def _of_table(part: tuple[slice, ...], table: Any) -> tuple[slice, ...]:
    """The same part of a table, whose axes may be 1 wide."""
    return tuple(slice(None) if size == 1 else cut for size, cut in zip(table.shape, part))
