"""Rotations and tables by operations of NumPy and PyTorch, for machines without a compiled kernel.

Interleaved pairs are complex numbers in memory. Few numbers, as in a decoding step, are rotated at once; more, in
blocks that fit into a core's cache. A position is written in base 256, and its angle is the sum of the angles of its
digits, from float64 tables that are kept. A row does not depend on other rows: the digit 0 changes no bit, and no
operation for tables is fused.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import lru_cache, reduce
from itertools import count, groupby, product
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
FEW = 2**16  # numbers; measured: beyond, more passes over memory cost as much as the calls that they save


class RotationProgram(NamedTuple):
    """A rotation by tables, which are reshaped to be aligned with their arrays."""

    rotation: Rotation
    inplace: bool
    shapes: list[tuple[int, ...]]

    def run(self, xs: Sequence[Array], angles: Angles) -> list[Any]:
        tables = [(sin.reshape(shape), cos.reshape(shape)) for (sin, cos), shape in zip(angles, self.shapes)]
        return rotate_all(xs, tables, self.rotation, self.inplace)


class FewNumbersProgram(NamedTuple):
    """A rotation of few numbers in contiguous rows, by tables that all arrays share, as complex numbers of NumPy."""

    # For few numbers, an operation of NumPy takes half the time of one of PyTorch, and a view of a tensor next to none.

    rotation: Rotation
    inplace: bool
    table_shape: tuple[int, ...]
    shapes: list[tuple[int, ...]]  # of the arrays
    conversions: tuple[memory.Conversion, memory.Conversion] | None  # to float32, and back
    to_host: memory.Conversion
    from_host: memory.Conversion

    def run(self, xs: Sequence[Any], angles: Angles) -> list[Any]:
        sin, cos = angles[0]
        is_complex = self.rotation.read == "interleaved"
        rotate, tables = (self._complex, self._factors) if is_complex else (self._halves, self._signed)
        of_rows = tables(sin, cos)
        if self.conversions is None:
            return [rotate(x, shape, of_rows, self.inplace) for x, shape in zip(xs, self.shapes)]
        widened, narrowed = self.conversions
        rotated = [narrowed(rotate(widened(x), shape, of_rows, True)) for x, shape in zip(xs, self.shapes)]
        if not self.inplace:
            return rotated
        for x, result in zip(xs, rotated):
            x[...] = result
        return list(xs)

    def _factors(self, sin: Array, cos: Array) -> Array:
        sin, cos = self.to_host(sin), self.to_host(cos)
        factors = memory.complex_numbers(cos, -sin if self.rotation.inverse else sin)
        return self.from_host(factors.reshape(self.table_shape))

    def _signed(self, sin: Any, cos: Any) -> tuple[Any, Any]:
        sin, cos = self.to_host(sin), self.to_host(cos)
        signed = (sin, -sin) if self.rotation.inverse else (-sin, sin)
        return np.concatenate(signed, -1).reshape((*self.table_shape[:-2], 2, -1)), cos.reshape(self.table_shape)

    def _complex(self, x: Any, shape: tuple[int, ...], factors: Any, inplace: bool) -> Any:
        numbers = memory.complex_view(x)
        if numbers is None:  # of torch, memory that begins between two numbers
            rotated = self._complex(x.clone(), shape, factors, True)
            return x.copy_(rotated) if inplace else rotated
        if not inplace:
            return (numbers * factors).view(x.dtype)
        numbers *= factors
        return x

    def _halves(self, x: Any, shape: tuple[int, ...], tables: Any, inplace: bool) -> Any:
        (sines, cosines), halves = tables, self.to_host(x).reshape(shape)
        # The halves swapped; the sines of the two have opposite signs.
        products = halves[..., ::-1, :] * sines
        rotated = np.multiply(halves, cosines, halves if inplace else None)
        rotated += products
        return x if inplace else self.from_host(rotated.reshape(x.shape))


def prepare(
    xs: Sequence[Array], angles: Angles, rotation: Rotation, inplace: bool = False
) -> RotationProgram | FewNumbersProgram | None:
    """A program for arrays like these, whose angles are reshaped to the shapes of these; None for rows of tables."""
    if len(angles[0]) > 2:
        return None
    (sin, _), *others = angles
    is_shared = all([each[0] is sin for each in others]) and len({x.dtype for x in xs}) == 1
    if is_shared and all([_are_few_rows(x, sin, rotation) for x in xs]):
        return _prepare_rows(xs, sin, rotation, inplace)
    return RotationProgram(rotation, inplace, [tuple(sin.shape) for sin, _ in angles])


def _prepare_rows(xs: Sequence[Any], sin: Any, rotation: Rotation, inplace: bool) -> FewNumbersProgram:
    shapes = [tuple(x.shape) for x in (sin, *xs)]
    if rotation.read == "half":
        joined = [_joined(shape, sin.shape) for shape in shapes]
        shapes = [(*shape[:-1], shape[-1] // sin.shape[-1], sin.shape[-1]) for shape in joined]
    conversions = None if xs[0].dtype == sin.dtype else memory.to_and_from_float32(xs[0])
    on_host = memory.to_and_from_host(*xs)
    return FewNumbersProgram(rotation, inplace, shapes[0], shapes[1:], conversions, *on_host)


def _joined(shape: Sequence[int], table_shape: Sequence[int]) -> tuple[int, ...]:
    """A shape in which neighbouring axes are one if the table has size 1 on all of them, or on none."""
    axes = groupby(zip(shape[:-1], table_shape[:-1]), lambda sizes: sizes[1] == 1)
    return *[prod([size for size, _ in group]) for _, group in axes], shape[-1]


def rotate_all(xs: Sequence[Array], tables: Tables, rotation: Rotation, inplace: bool = False) -> list[Any]:
    outs = [x if inplace else memory.empty_like(x) for x in xs]
    are_complex = rotation.read == rotation.write == "interleaved"
    for x, (sin, cos), out in zip(xs, tables, outs):
        rotate = _rotate_block if are_complex or prod(x.shape) > FEW else _rotate_few
        for block in rotation.by_block(x, sin, cos, out):
            rotate(*block, rotation)
    return outs


def _rotate_few(x: Any, sin: Array, cos: Array, out: Any, rotation: Rotation) -> None:
    """Rotate all pairs at once, with a few operations. `out` may be `x`."""
    xp, converted = memory.operations(x), x.dtype != sin.dtype
    numbers = memory.empty(x.shape, sin) if converted else x
    if converted:
        numbers[...] = x
    with np.errstate(over="ignore") if converted else nullcontext():  # overflow gives infinity, as in other kernels
        if _are_few_rows(numbers, sin, rotation):
            out[...] = _prepare_rows([numbers], sin, rotation, False).run([numbers], [(sin, cos)])[0]
            return
        first, second = _channels(numbers, rotation.read)
        sine_of_first, sine_of_second = (xp.subtract, xp.add) if not rotation.inverse else (xp.add, xp.subtract)
        one, other = first * cos, second * cos
        sine_of_first(one, second * sin, out=one)
        sine_of_second(other, first * sin, out=other)
        one_out, other_out = _channels(out, rotation.write)
        one_out[...], other_out[...] = one, other


def _are_few_rows(x: Array, sin: Array, rotation: Rotation) -> bool:
    """Whether `x` is few numbers in contiguous rows, all of them rotated within their place."""
    is_whole = rotation.read == rotation.write and rotation.blocks == 1 and x.shape[-1] == 2 * sin.shape[-1]
    return is_whole and memory.is_contiguous(x) and 0 < prod(x.shape) <= FEW


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

    frequencies: exact_phases.Frequencies
    scale: float

    def run(self, positions: Any, like: Any) -> tuple[Any, Any]:
        is_host = isinstance(positions, np.ndarray)
        sin, cos = tables_by_digits(positions if is_host else positions.numpy(), self.frequencies)
        if self.scale != 1.0:
            sin, cos = sin * self.scale, cos * self.scale
        return (sin, cos) if is_host else (memory.from_numpy(sin, positions), memory.from_numpy(cos, positions))


def prepare_tables(positions: Array, frequencies: exact_phases.Frequencies, scale: float) -> TableProgram | None:
    is_integer = libraries.dtype_name(positions.dtype) in ("int32", "int64") and memory.is_native(positions)
    return TableProgram(frequencies, scale) if is_integer and frequencies.is_single_row else None


def tables_by_digits(positions: Any, frequencies: exact_phases.Frequencies) -> tuple[Any, Any]:
    """Exact tables in float32, "*batch seq pairs", of NumPy positions "*batch seq" and floats on one axis."""
    tokens, fractions = integers_and_fractions(positions.ravel())
    shape = (*positions.shape, frequencies.pairs)
    if len(tokens) == 1 and fractions is None:  # a decoding step
        token = int(tokens[0])
        sine, cosine = _angles_of_one(abs(token), frequencies.inv_freq)
        return tuple([each.astype("f4").reshape(shape) for each in (-sine if token < 0 else sine, cosine)])
    sizes = np.abs(tokens).view(f"u{tokens.itemsize}")  # unsigned: the least integer has no positive counterpart
    negative = tokens < 0 if (tokens < 0).any() else None
    lows, (highs, row_of_high) = (sizes & _LARGEST_DIGIT).astype(np.intp), _numbers_and_indices(sizes >> _BITS)
    low_table, high_table = _digit_angles(frequencies.inv_freq, 0), None
    if highs.any():
        high_table = _angles(highs, frequencies.inv_freq, 1)

    sin, cos = (np.empty((len(tokens), frequencies.pairs), dtype=np.float32) for _ in range(2))
    rows = max(1, _NUMBERS_PER_BLOCK // frequencies.pairs)
    for start in range(0, len(tokens), rows):
        block = slice(start, start + rows)
        angles = np.take(low_table, lows[block], axis=1)
        if high_table is not None:
            angles = _added(np.take(high_table, row_of_high[block], axis=1), angles)
        if negative is not None:
            angles = np.where(negative[block, None], -angles[0], angles[0]), angles[1]
        if fractions is not None:  # at most half a token, so that float64 angles are exact enough
            rest = fractions[block, None] * np.asarray(frequencies.inv_freq)
            angles = _added((np.sin(rest), np.cos(rest)), angles)
        sin[block], cos[block] = angles
    return sin.reshape(shape), cos.reshape(shape)


def integers_and_fractions(numbers: Any) -> tuple[Any, Any]:
    """The nearest integers, and the remainders: None for integers, and NaN for numbers too large for `exact_phases`."""
    if numbers.dtype.kind != "f":
        return numbers, None
    known = np.abs(numbers) < (2.0**31 if numbers.itemsize == 4 else 2.0**63)
    whole = np.rint(np.where(known, numbers, 0.0))
    return whole.astype(np.int64), np.where(known, numbers - whole, np.nan).astype(np.float64)


def _angles(numbers: Any, inv_freq: tuple[float, ...], place: int) -> NDArray[np.float64]:
    """Sine and cosine of unsigned numbers whose last digit is at this place, "2 numbers pairs"."""
    low_table = _digit_angles(inv_freq, place)
    if numbers.max(initial=0) <= _LARGEST_DIGIT:
        return np.take(low_table, numbers.astype(np.intp), axis=1)
    highs, row_of_high = _numbers_and_indices(numbers >> _BITS)
    high_table = _angles(highs, inv_freq, place + 1)
    lows = (numbers & _LARGEST_DIGIT).astype(np.intp)
    return np.stack(_added(np.take(high_table, row_of_high, axis=1), np.take(low_table, lows, axis=1)))


def _angles_of_one(number: int, inv_freq: tuple[float, ...]) -> Any:
    digits = number.to_bytes(8, "little").rstrip(b"\0") or b"\0"
    places = range(len(digits))[::-1]
    if not next(_calls(inv_freq)):  # frequencies that follow the length come once: no other digit is needed
        return reduce(_added, _of_digits([*digits[::-1]], np.asarray(places), inv_freq).swapaxes(0, 1))
    angles = _digit_angles(inv_freq, places[0])[:, digits[-1]]
    for place in places[1:]:
        angles = _added(angles, _digit_angles(inv_freq, place)[:, digits[place]])
    return angles


@lru_cache(maxsize=32)  # a counter for each list of frequencies: 0 in the first call
def _calls(_inv_freq: tuple[float, ...]) -> Iterator[int]:
    return count()


def _added(angles: Any, others: Any) -> tuple[Any, Any]:  # an angle is a pair of its sine and its cosine
    (sin, cos), (sin_of_other, cos_of_other) = angles, others
    return sin * cos_of_other + cos * sin_of_other, cos * cos_of_other - sin * sin_of_other


@lru_cache(maxsize=32)  # 256 kB each for 64 pairs
def _digit_angles(inv_freq: tuple[float, ...], place: int) -> NDArray[np.float64]:
    """Sine and cosine of all digits at a place, "2 digits pairs"."""
    table = _of_digits(range(_LARGEST_DIGIT + 1), place, inv_freq)
    table.flags.writeable = False
    return table


def _of_digits(
    digits: Sequence[int], places: int | NDArray[np.int64], inv_freq: tuple[float, ...]
) -> NDArray[np.float64]:
    # Of negative positions, because the last place of 64 bits has no positive ``2**63``.
    positions = -(np.asarray(digits, dtype=np.int64) << _BITS * places)
    sin, cos = exact_phases.exact_tables(positions, exact_phases.Frequencies(inv_freq), np.float64)
    return np.stack([0.0 - sin, cos])


def _numbers_and_indices(numbers: Any) -> tuple[Any, Any]:
    """The range of the given numbers, or these if they are fewer; and the index of each of them there."""
    if len(numbers) > 1:
        least, most = int(numbers.min()), int(numbers.max())
        if most - least < len(numbers):
            return np.arange(least, most + 1, dtype=numbers.dtype), (numbers - least).astype(np.intp)
    return numbers, np.arange(len(numbers))
