"""Rotations and tables by operations of NumPy and PyTorch, for machines without a compiled kernel.

Interleaved pairs are complex numbers in memory. Few numbers, as in a decoding step, are rotated at once; more, in
blocks that fit into a core's cache. A position is written in base 256, and its angle is the sum of the angles of its
digits, from float64 tables that are kept. A row does not depend on other rows: the digit 0 changes no bit, and no
operation for tables is fused.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache, reduce
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rope_xp.arrays import exact_phases, libraries, memory, threads
from rope_xp.kernels.reference import Angles, Rotation, Tables, join_pairs
from rope_xp.types import Array

MEMORY_KINDS = ("host memory",)
BYTES_PER_BLOCK = 2**20  # of x, for each thread; measured
MOST_THREADS = 2  # for operations of NumPy: between two of them, each thread waits for the lock of the interpreter
FEW = 2**18  # numbers; measured: beyond, more passes over memory cost as much as the calls that they save


class RotationProgram(NamedTuple):
    """A rotation by tables that all arrays share, which are reshaped to be aligned with them."""

    rotation: Rotation
    inplace: bool
    table_shape: tuple[int, ...]

    def run(self, xs: Sequence[Array], angles: Angles) -> list[Any]:
        sin, cos = [table.reshape(self.table_shape) for table in angles[0]]
        outs = [x if self.inplace else memory.empty_like(x) for x in xs]
        for x, out in zip(xs, outs):
            for block in self.rotation.by_block(x, sin, cos, out):
                _rotate_block(*block, self.rotation)
        return outs


class SeparatePrograms(NamedTuple):
    """Programs for arrays whose tables or dtypes differ."""

    programs: list[Any]

    def run(self, xs: Sequence[Array], angles: Angles) -> list[Any]:
        return [program.run([x], [group])[0] for program, x, group in zip(self.programs, xs, angles)]


class ComplexProgram(NamedTuple):
    """A rotation of few interleaved pairs as complex numbers, by tables that all arrays share."""

    rotation: Rotation
    inplace: bool
    table_shape: tuple[int, ...]
    dtype: Any  # of complex numbers

    def run(self, xs: Sequence[Any], angles: Angles) -> list[Any]:
        sin, cos = angles[0]
        if sin.shape != self.table_shape[-sin.ndim :]:  # else it broadcasts as it is
            sin, cos = sin.reshape(self.table_shape), cos.reshape(self.table_shape)
        factors = memory.complex_numbers(cos, -sin if self.rotation.inverse else sin)
        try:
            numbers = [x.view(self.dtype) for x in xs]
            if not self.inplace:
                return [(each * factors).view(sin.dtype) for each in numbers]
        except (RuntimeError, ValueError):  # rows with gaps; of torch, memory that begins between two numbers
            return RotationProgram(self.rotation, self.inplace, self.table_shape).run(xs, angles)
        for each in numbers:
            each *= factors
        return list(xs)


class RealProgram(NamedTuple):
    """A rotation of few pairs by tables that all arrays share, with operations of NumPy."""

    # For few numbers, an operation of NumPy takes half the time of one of PyTorch, and a view of a tensor next to none.

    rotation: Rotation
    inplace: bool
    table_shape: tuple[int, ...] | None  # None for tables of one row, which broadcast as they are
    shapes: list[tuple[int, ...]]  # of the arrays, with an axis for the two channels of a pair
    signs: Any  # of the sines: of first channels and of second ones
    to_host: memory.Conversion
    from_host: memory.Conversion

    @np.errstate(all="ignore")  # infinity and NaN are no errors, as for other kernels
    def run(self, xs: Sequence[Any], angles: Angles) -> list[Any]:
        sin, cos, *hosts = map(self.to_host, (*angles[0], *xs))
        if self.table_shape is not None:
            sin, cos = sin.reshape(self.table_shape), cos.reshape(self.table_shape)
        sines, rotated = sin * self.signs, []
        for x, shape in zip(hosts, self.shapes):
            pairs = x.reshape(shape) if self.rotation.read == "half" else x.reshape(shape).swapaxes(-1, -2)
            products = pairs[..., ::-1, :] * sines
            if self.inplace:
                pairs *= cos
                pairs += products
            else:
                products += pairs * cos
                products = products if self.rotation.write == "half" else products.swapaxes(-1, -2)
                rotated.append(products.reshape(x.shape))
        return list(xs) if self.inplace else [*map(self.from_host, rotated)]


class PlacedProgram(NamedTuple):
    """A rotation of few numbers by a program for their rows: some channels of the arrays, or all; not of 16 bits."""

    program: ComplexProgram | RealProgram
    inplace: bool
    span: Any  # the index of the channels; None for all
    to_rows: memory.Conversion
    from_rows: memory.Conversion

    def run(self, xs: Sequence[Any], angles: Angles) -> list[Any]:
        rows = xs if self.span is None else [x[self.span] for x in xs]
        rotated = [*map(self.from_rows, self.program.run([*map(self.to_rows, rows)], angles))]
        if self.span is None and not self.inplace:
            return rotated
        outs = xs if self.inplace else [np.array(x) if libraries.is_host(x) else x.clone() for x in xs]
        for out, result in zip(outs, rotated):
            out[... if self.span is None else self.span] = result
        return list(outs)


def prepare(xs: Sequence[Array], angles: Angles, rotation: Rotation, inplace: bool = False) -> Any:
    """A program for arrays like these, whose angles are reshaped to the shapes of these; None for rows of tables."""
    if len(angles[0]) == 3:
        return None
    (sin, _), moves = angles[0], rotation.read != rotation.write
    if not all([group[0] is sin for group in angles]) or len({x.dtype for x in xs}) > 1:
        return SeparatePrograms([prepare([x], [group], rotation, inplace) for x, group in zip(xs, angles)])
    if not all([0 < prod(x.shape) <= FEW and x.ndim < 62 for x in xs]):  # NumPy has at most 64 axes
        return RotationProgram(rotation, inplace, tuple(sin.shape))
    first, width, converted = rotation.first_channel, 2 * sin.shape[-1], xs[0].dtype != sin.dtype
    span = None if all([x.shape[-1] == width for x in xs]) else (..., slice(first, first + width))
    in_place = inplace and not moves and all(map(memory.is_contiguous, xs))
    if span is None and not converted and in_place == inplace:
        return _prepare_rows(xs, sin, rotation, inplace)
    program = _prepare_rows(xs, sin, rotation._replace(first_channel=0), converted and not moves)
    return PlacedProgram(program, inplace, span, *memory.to_and_from_float32(xs[0]))


def _prepare_rows(xs: Sequence[Any], sin: Any, rotation: Rotation, inplace: bool) -> ComplexProgram | RealProgram:
    if rotation.read == rotation.write == "interleaved":
        return ComplexProgram(rotation, inplace, tuple(sin.shape), memory.complex_dtype(sin))
    blocks, pairs = [rotation.blocks] if rotation.blocks > 1 else [], sin.shape[-1] // rotation.blocks
    table_shape = (*sin.shape[:-1], *blocks, 1, pairs) if blocks or prod(sin.shape[:-1]) > 1 else None
    of_row = (*blocks, 2, pairs) if rotation.read == "half" else (pairs, 2)
    shapes = [(*x.shape[:-1], *of_row) for x in xs]
    signs = np.asarray([[1], [-1]] if rotation.inverse else [[-1], [1]], libraries.dtype_name(sin.dtype))
    return RealProgram(rotation, inplace, table_shape, shapes, signs, *memory.to_and_from_host(*xs))


def rotate_all(xs: Sequence[Array], tables: Tables, rotation: Rotation, inplace: bool = False) -> list[Any]:
    return prepare(xs, tables, rotation, inplace).run(xs, tables)


def _channels(x: Array, layout: str) -> tuple[Any, Any]:
    if layout == "interleaved":
        return x[..., ::2], x[..., 1::2]
    width = x.shape[-1] // 2
    return x[..., :width], x[..., width:]


def _rotate_block(x: Array, sin: Array, cos: Array, out: Array, rotation: Rotation) -> None:
    if 0 in x.shape:
        return
    xp, converted = memory.operations(x), x.dtype != sin.dtype
    sin = -sin if rotation.inverse else sin
    factors = memory.complex_numbers(cos, sin) if rotation.read == rotation.write == "interleaved" else None
    if factors is not None and not converted:
        numbers, rotated = memory.complex_view(x), memory.complex_view(out)
        if numbers is not None and rotated is not None:
            xp.multiply(numbers, factors, out=rotated)
            return
    tables = (factors,) if factors is not None and converted else _wide_tables(sin, cos, rotation)
    _rotate_parts(x, tables, sin, out, rotation)


def _wide_tables(sin: Any, cos: Any, rotation: Rotation) -> Any:
    """The cosines and the signed sines of all channels, as one array."""
    tables = memory.empty((2, *cos.shape[:-1], 2 * cos.shape[-1]), cos)
    for table, of_pairs, signs in zip(tables, (cos, sin), ((1, 1), (-1, 1))):
        for channels, sign in zip(_channels(table, rotation.write), signs):
            memory.operations(cos).multiply(of_pairs, sign, out=channels)
    return tables


def _rotate_parts(x: Any, tables: Sequence[Any], like: Any, out: Any, rotation: Rotation) -> None:
    """Rotate parts that stay in the cache. They are converted and swapped in memory with the dtype of `like`."""
    width, size = x.shape[-1], BYTES_PER_BLOCK // x.itemsize * (memory.threads(x) or 1)
    parts = [*_parts(tuple(x.shape[:-1]), tuple(tables[0].shape[:-1]), width, size)]
    workers = min(len(parts), MOST_THREADS, threads.processors()) if memory.threads(x) is None else 1
    # With such tables, numbers below 2**14 in size do not overflow: two products together are below 65,208.
    factors = [table.view(like.dtype) for table in tables] if x.dtype == np.float16 else []
    may_be_small = bool(factors) and all([max(each.max(), -each.min()) < 1.99 for each in factors])
    buffers = [*memory.empty((workers, 2, min(prod(x.shape), max(size, width))), like)]

    def rotate(parts: Iterator[tuple[slice, ...]]) -> None:
        of_thread = buffers.pop()
        for part in parts:
            numbers, rotated = x[part], out[part]
            products, wide = (buffer[: prod(numbers.shape)].reshape(numbers.shape) for buffer in of_thread)
            tables_of_part = [table[_part_of_table(part, table)] for table in tables]
            if x.dtype == like.dtype:
                _rotate_part(numbers, tables_of_part, rotated, products, rotation)
                continue
            are_small = may_be_small and memory.are_small(numbers)
            memory.widen(numbers, wide, are_small)
            _rotate_part(wide, tables_of_part, wide, products, rotation)
            memory.narrow(wide, rotated, products, are_small)

    threads.share(rotate, parts, workers)


def _rotate_part(numbers: Array, tables: Sequence[Any], rotated: Array, products: Array, rotation: Rotation) -> None:
    """Rotate by complex numbers, or by cosines and signed sines. `products` is memory; `rotated` may be `numbers`."""
    xp = memory.operations(numbers)
    if len(tables) == 1:
        xp.multiply(memory.complex_view(numbers), tables[0], out=memory.complex_view(rotated))
        return
    if rotation.read != rotation.write:
        numbers = join_pairs(xp, *_channels(numbers, rotation.read), rotation.write)
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
    for channels, each in zip(_channels(rotated, rotation.write), reversed(_channels(products, rotation.write))):
        xp.subtract(channels, each, out=channels)


def _parts(shape: tuple[int, ...], table_shape: tuple[int, ...], width: int, size: int) -> Iterator[tuple[slice, ...]]:
    """Slices of at most `size` numbers, or one row. Parts with the same part of the tables follow each other."""
    cuts: list[list[slice]] = []
    for length in reversed(shape):
        step = min(length, max(1, size // width))
        cuts.insert(0, [slice(start, start + step) for start in range(0, length, step)])
        width *= length
    outermost_first = sorted(range(len(shape)), key=lambda axis: table_shape[axis] == 1)
    for chosen in product(*[cuts[axis] for axis in outermost_first]):
        of_axis = dict(zip(outermost_first, chosen))
        yield tuple(of_axis[axis] for axis in range(len(shape)))


def _part_of_table(part: tuple[slice, ...], table: Array) -> tuple[slice, ...]:
    return tuple(slice(None) if size == 1 else each for size, each in zip(table.shape, part))


_BITS = 8
_LARGEST_DIGIT = (1 << _BITS) - 1
_NUMBERS_PER_BLOCK = 2**12  # float64 arrays of this size stay in the first cache of a core


class TableProgram(NamedTuple):
    """The tables of integer positions, times `scale`."""

    digits: "DigitAngles"
    scale: float
    to_host: memory.Conversion
    from_host: memory.Conversion

    def run(self, positions: Any, like: Any) -> tuple[Any, Any]:
        sin, cos = tables_by_digits(self.to_host(positions), self.digits)
        if self.scale != 1.0:
            sin, cos = sin * self.scale, cos * self.scale
        return self.from_host(sin), self.from_host(cos)


def prepare_tables(positions: Array, frequencies: exact_phases.Frequencies, scale: float) -> TableProgram | None:
    is_integer = libraries.dtype_name(positions.dtype) in ("int32", "int64") and memory.is_native(positions)
    if not is_integer or not frequencies.is_single_row:
        return None
    return TableProgram(digit_angles(frequencies.inv_freq), scale, *memory.to_and_from_host(positions))


class DigitAngles(dict[int, NDArray[np.float64]]):
    """For each place, the angles of all digits: the negative sines, the sines and the cosines, "3 digits pairs"."""

    def __init__(self, inv_freq: tuple[float, ...]) -> None:
        self.inv_freq, self.is_new = inv_freq, True

    def __missing__(self, place: int) -> NDArray[np.float64]:  # 384 kB for 64 pairs
        return self.setdefault(place, self.of_digits(range(_LARGEST_DIGIT + 1), place))

    def of_digits(self, digits: Sequence[int], places: int | NDArray[np.int64]) -> NDArray[np.float64]:
        # Of negative positions, because the last place of 64 bits has no positive ``2**63``.
        positions = -(np.asarray(digits, dtype=np.int64) << _BITS * places)
        sin, cos = exact_phases.exact_tables(positions, exact_phases.Frequencies(self.inv_freq), np.float64)
        return np.stack([sin, 0.0 - sin, cos])

    def of_number(self, number: int) -> NDArray[np.float64]:
        # The sine and the cosine, "2 pairs".
        digits = number.to_bytes(8, "little").rstrip(b"\0") or b"\0"
        if self.is_new:  # frequencies that follow the length come once: no other digit is needed
            self.is_new = False
            angles = self.of_digits([*digits], np.arange(len(digits))).swapaxes(0, 1)
        else:
            angles = [self[place][:, digit] for place, digit in enumerate(digits)]
        return reduce(_added, angles[-2::-1], angles[-1][1:])

    def of_numbers(self, numbers: Any, place: int) -> NDArray[np.float64]:
        # Of unsigned numbers whose last digit is at this place, "2 numbers pairs".
        if numbers.max(initial=0) <= _LARGEST_DIGIT:
            return np.take(self[place][1:], numbers.astype(np.intp), axis=1)
        highs, row_of_high = _numbers_and_indices(numbers >> _BITS)
        lows = (numbers & _LARGEST_DIGIT).astype(np.intp)
        of_highs = np.take(self.of_numbers(highs, place + 1), row_of_high, axis=1)
        return _added(of_highs, np.take(self[place], lows, axis=1))


digit_angles = lru_cache(maxsize=8)(DigitAngles)  # plans keep theirs


def _added(angles: Any, others: Any) -> Any:  # sines and cosines, and those of others with their negative sines
    products = angles[::-1] * others[1::-1]
    products += angles * others[2]
    return products


def tables_by_digits(positions: Any, digits: DigitAngles) -> tuple[Any, Any]:
    """Exact tables in float32, "*batch seq pairs", of NumPy positions "*batch seq" and floats on one axis."""
    shape = (*positions.shape, len(digits.inv_freq))
    if positions.size == 1 and positions.dtype.kind != "f":  # a decoding step
        token = positions.item()
        sin, cos = digits.of_number(abs(token)).astype("f4").reshape(2, *shape)
        return -sin if token < 0 else sin, cos
    tokens, fractions = integers_and_fractions(positions.ravel())
    sizes = np.abs(tokens).view(f"u{tokens.itemsize}")  # unsigned: the least integer has no positive counterpart
    negative = tokens < 0 if (tokens < 0).any() else None
    lows, (highs, row_of_high) = (sizes & _LARGEST_DIGIT).astype(np.intp), _numbers_and_indices(sizes >> _BITS)
    of_highs = digits.of_numbers(highs, 1) if highs.any() else None

    sin, cos = (np.empty((len(tokens), shape[-1]), dtype=np.float32) for _ in range(2))
    rows = max(1, _NUMBERS_PER_BLOCK // shape[-1])
    for start in range(0, len(tokens), rows):
        block = slice(start, start + rows)
        if of_highs is None:
            angles = np.take(digits[0][1:], lows[block], axis=1)
        else:
            angles = _added(np.take(of_highs, row_of_high[block], axis=1), np.take(digits[0], lows[block], axis=1))
        if negative is not None:
            np.negative(angles[0], out=angles[0], where=negative[block, None])
        if fractions is not None:  # at most half a token, so that float64 angles are exact enough
            rest = fractions[block, None] * np.asarray(digits.inv_freq)
            angles = _added(np.stack([np.sin(rest), np.cos(rest)]), np.stack([-angles[0], *angles]))
        sin[block], cos[block] = angles
    return sin.reshape(shape), cos.reshape(shape)


def integers_and_fractions(numbers: Any) -> tuple[Any, Any]:
    """The nearest integers, and the remainders: None for integers, and NaN for numbers too large for `exact_phases`."""
    if numbers.dtype.kind != "f":
        return numbers, None
    known = np.abs(numbers) < (2.0**31 if numbers.itemsize == 4 else 2.0**63)
    whole = np.rint(np.where(known, numbers, 0.0))
    return whole.astype(np.int64), np.where(known, numbers - whole, np.nan).astype(np.float64)


def _numbers_and_indices(numbers: Any) -> tuple[Any, Any]:
    """The range of the given numbers, or these if they are fewer; and the index of each of them there."""
    if len(numbers) > 1:
        least, most = int(numbers.min()), int(numbers.max())
        if most - least < len(numbers):
            return np.arange(least, most + 1, dtype=numbers.dtype), (numbers - least).astype(np.intp)
    return numbers, np.arange(len(numbers))
