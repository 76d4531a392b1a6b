"""The rotation by operations of NumPy and PyTorch that write into memory at hand, where nothing compiles.

Neighbouring channels are complex numbers in memory, which one multiplication turns. For other pairs, blocks that fit
into a core's cache pass through the arithmetic one after the other.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

from rope_xp import backends
from rope_xp.backends import memory
from rope_xp.kernels.turn import Turn

PLACES = ("memory",)
NUMBERS_OF_BLOCK = 2**16


def rotate(x: Any, sin: Any, cos: Any, turn: Turn, out: Any = None) -> Any:
    """`reference.rotate` into `out`, which may be `x` itself, or into new memory in the order of `x`."""
    out = memory.empty_like(x) if out is None else out
    for block in turn.separately(x, sin, cos, out):
        _rotate_block(*block, turn)
    return out


def _rotate_block(x: Any, sin: Any, cos: Any, out: Any, turn: Turn) -> None:
    xp = memory.operations(x)
    sin = -sin if turn.inverse else sin
    if turn.read == turn.write == "interleaved" and x.dtype == sin.dtype:
        numbers, results = memory.complex_view(x), memory.complex_view(out)
        if numbers is not None and results is not None:
            xp.multiply(numbers, memory.complex_numbers(cos, sin), out=results)
            return
    for part in _parts(tuple(x.shape[:-1]), x.shape[-1]):
        first, second = (backends.astype(channels, sin.dtype) for channels in _pairs(x[part], turn.read))
        c, s = (table[_of_table(part, table)] for table in (cos, sin))
        turned, more = first * c, second * s
        xp.subtract(turned, more, out=turned)
        other = xp.multiply(second, c)
        xp.multiply(first, s, out=more)
        xp.add(other, more, out=other)
        to_first, to_second = _pairs(out[part], turn.write)
        to_first[...] = turned
        to_second[...] = other


def _pairs(x: Any, layout: str) -> tuple[Any, Any]:
    """Views of the first and the second channels of all pairs."""
    if layout == "interleaved":
        return x[..., 0::2], x[..., 1::2]
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


def _parts(shape: tuple[int, ...], width: int) -> Iterator[tuple[slice, ...]]:
    """Slices that cut an array of this shape, and so wide, into parts of some `NUMBERS_OF_BLOCK` numbers."""
    whole = (slice(None),) * len(shape)
    if prod(shape) * width <= NUMBERS_OF_BLOCK or not shape:
        yield whole
        return
    step = NUMBERS_OF_BLOCK // (prod(shape[1:]) * width)
    for start in range(0, shape[0], max(1, step)):
        for rest in [whole[1:]] if step else _parts(shape[1:], width):
            yield (slice(start, start + max(1, step)), *rest)


def _of_table(part: tuple[slice, ...], table: Any) -> tuple[slice, ...]:
    """The same part of a table, whose axes may be 1 wide."""
    return tuple(slice(None) if size == 1 else cut for size, cut in zip(table.shape, part))
