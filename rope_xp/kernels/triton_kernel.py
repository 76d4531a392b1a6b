# type: ignore - Triton's language looks like Python, but has types of its own
"""The Triton kernels of `rope_xp.kernels.triton`. Parameters in capitals are compile-time constants."""
# Offsets have 64 bits, because large tensors need them.

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Task(NamedTuple):
    """One array, its angles, its sizes, and its strides in elements."""

    # Triton compiles a variant for integers that are 1, one for multiples of 16, and one for all others. Column strides
    # need these variants. All other numbers are `packed`, so that they cause no more compilations. All other strides
    # are first divided by a constant, their UNIT: the compiler must know a divisor of strides to make wide accesses.

    x: Any
    out: Any
    table: Any  # sines; if angles are computed, the first 64 bits of frequencies
    other_table: Any  # cosines, or the next 32 bits
    positions: Any  # or 0
    programs: int  # of this array and all arrays before it
    x_column: int
    out_column: int
    table_column: int
    table_row: int
    table_rows: int
    rows: int  # the product of the sizes of `axes`
    heads: int  # they have the same angles
    heads_of_program: int
    x_head: int
    out_head: int
    axes: tuple  # from the last to the first: size, and the strides of `x`, of `out`, and of tables or positions


def packed(number: int) -> int:
    """A number as an odd number that is not 1, so that Triton compiles no variant for it."""
    return 2 * number + 3


@triton.jit
def _unpacked(number):
    return (number >> 1) - 1


@triton.jit
def rotate(
    tasks,
    WIDTHS: tl.constexpr,
    UNITS: tl.constexpr,
    SOURCE: tl.constexpr,
    SCALE: tl.constexpr,
    SINE: tl.constexpr,
    COSINE: tl.constexpr,
    BITS: tl.constexpr,
    READ: tl.constexpr,
    WRITE: tl.constexpr,
    FIRST: tl.constexpr,
    BLOCKS: tl.constexpr,
    INVERSE: tl.constexpr,
    IN_PLACE: tl.constexpr,
    PAIRS: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
):
    program = tl.program_id(0)
    for index in tl.static_range(len(tasks)):
        task = tasks[index]
        begin = _unpacked(tasks[index - 1].programs) if index > 0 else 0
        if (program >= begin) & (program < _unpacked(task.programs)):
            heads, heads_of_program = _unpacked(task.heads), _unpacked(task.heads_of_program)
            parts = (heads + heads_of_program - 1) // heads_of_program
            head = (program - begin) % parts * heads_of_program
            rows = _unpacked(task.rows)
            row = (((program - begin) // parts).to(rows.dtype) * ROWS + tl.arange(0, ROWS))[:, None]
            row_exists = row < rows

            offset = tl.full((ROWS, 1), 0, tl.int64)
            x_head = _unpacked(task.x_head).to(tl.int64) * UNITS[index][0]
            out_head = _unpacked(task.out_head).to(tl.int64) * UNITS[index][0]
            x = task.x + (offset + head) * x_head
            out = task.out + (offset + head) * out_head
            for axis in tl.static_range(len(task.axes)):
                size = _unpacked(task.axes[axis][0])
                index_on_axis = (row % size if axis + 1 < len(task.axes) else row).to(tl.int64)
                row = row // size
                x += index_on_axis * _unpacked(task.axes[axis][1]) * UNITS[index][0]
                out += index_on_axis * _unpacked(task.axes[axis][2]) * UNITS[index][0]
                offset += index_on_axis * _unpacked(task.axes[axis][3]) * UNITS[index][1]

            if SOURCE == "tables":
                sin = _columns(task.table + offset, task.table_column, row_exists, 0.0, PAIRS, PADDED)
                cos = _columns(task.other_table + offset, task.table_column, row_exists, 0.0, PAIRS, PADDED)
            else:
                position = tl.load(task.positions + offset, mask=row_exists, other=0).to(tl.int64)
                if SOURCE == "rows":
                    table_row = _unpacked(task.table_row).to(tl.int64) * UNITS[index][2]
                    known = (position >= 0) & (position < _unpacked(task.table_rows))
                    offset = position * table_row
                    sin = _columns(task.table + offset, task.table_column, known, float("nan"), PAIRS, PADDED)
                    cos = _columns(task.other_table + offset, task.table_column, known, float("nan"), PAIRS, PADDED)
                else:
                    always = tl.full((1, 1), 1, tl.int1)
                    high = _columns(task.table, task.table_column, always, 0, PAIRS, PADDED)
                    low = _columns(task.other_table, task.table_column, always, 0, PAIRS, PADDED)
                    sin, cos = _sin_cos(position, high, low, SINE, COSINE, BITS)
                    sin, cos = sin * SCALE, cos * SCALE
            if INVERSE:
                sin = -sin

            for _ in range(head, tl.minimum(head + heads_of_program, heads)):
                first, second = _read(x, task.x_column, row_exists, READ, FIRST, BLOCKS, PAIRS, PADDED)
                first, second = first.to(sin.dtype), second.to(sin.dtype)
                first, second = first * cos - second * sin, second * cos + first * sin
                if not IN_PLACE:
                    _copy(x, out, task.x_column, task.out_column, row_exists, 0, FIRST, PADDED)
                    _copy(x, out, task.x_column, task.out_column, row_exists, FIRST + 2 * PAIRS, WIDTHS[index], PADDED)
                elif READ != WRITE:
                    tl.debug_barrier()  # a thread overwrites channels that other threads read
                _write(out, task.out_column, first, second, row_exists, WRITE, FIRST, BLOCKS, PAIRS, PADDED)
                x += x_head
                out += out_head


@triton.jit
def make_tables(
    positions,
    high,
    low,
    axis_of_pair,
    sin,
    cos,
    rows,
    SCALE: tl.constexpr,
    SINE: tl.constexpr,
    COSINE: tl.constexpr,
    HAS_AXES: tl.constexpr,
    PAIRS: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
):
    # Tables "rows pairs" in float32, of positions "rows", or "axes rows". Everything is contiguous.
    rows = _unpacked(rows).to(tl.int64)
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column, always = tl.arange(0, PADDED)[None, :], tl.full((1, 1), 1, tl.int1)
    place = row
    if HAS_AXES:
        place += _columns(axis_of_pair, 1, always, 0, PAIRS, PADDED) * rows
    position = tl.load(positions + place, mask=row < rows, other=0).to(tl.int64)
    high, low = _columns(high, 1, always, 0, PAIRS, PADDED), _columns(low, 1, always, 0, PAIRS, PADDED)
    sines, cosines = _sin_cos(position, high, low, SINE, COSINE, 32)
    exists = (row < rows) & (column < PAIRS)
    tl.store(sin + row * PAIRS + column, sines * SCALE, mask=exists)
    tl.store(cos + row * PAIRS + column, cosines * SCALE, mask=exists)


@triton.jit
def _columns(table, step, exists, other, PAIRS: tl.constexpr, PADDED: tl.constexpr):
    column = tl.arange(0, PADDED)[None, :]
    return tl.load(table + column.to(tl.int64) * step, mask=exists & (column < PAIRS), other=other)


@triton.jit
def _read(
    x,
    step,
    row_exists,
    READ: tl.constexpr,
    FIRST: tl.constexpr,
    BLOCKS: tl.constexpr,
    PAIRS: tl.constexpr,
    PADDED: tl.constexpr,
):
    if READ == "interleaved":  # both in one load: wide accesses need adjacent channels
        channel = tl.arange(0, 2 * PADDED)[None, :]
        both = tl.load(x + (FIRST + channel).to(tl.int64) * step, mask=row_exists & (channel < 2 * PAIRS), other=0.0)
        first, second = tl.split(tl.reshape(both, (both.shape[0], PADDED, 2)))
    else:
        pair = tl.arange(0, PADDED)[None, :]
        channel = _first_channel(pair, FIRST, BLOCKS, PAIRS).to(tl.int64)
        first = tl.load(x + channel * step, mask=row_exists & (pair < PAIRS), other=0.0)
        second = tl.load(x + (channel + PAIRS // BLOCKS) * step, mask=row_exists & (pair < PAIRS), other=0.0)
    return first, second


@triton.jit
def _write(
    out,
    step,
    first,
    second,
    row_exists,
    WRITE: tl.constexpr,
    FIRST: tl.constexpr,
    BLOCKS: tl.constexpr,
    PAIRS: tl.constexpr,
    PADDED: tl.constexpr,
):
    first, second = first.to(out.dtype.element_ty), second.to(out.dtype.element_ty)
    if WRITE == "interleaved":
        channel = tl.arange(0, 2 * PADDED)[None, :]
        both = tl.reshape(tl.join(first, second), (first.shape[0], 2 * PADDED))
        tl.store(out + (FIRST + channel).to(tl.int64) * step, both, mask=row_exists & (channel < 2 * PAIRS))
    else:
        pair = tl.arange(0, PADDED)[None, :]
        channel = _first_channel(pair, FIRST, BLOCKS, PAIRS).to(tl.int64)
        tl.store(out + channel * step, first, mask=row_exists & (pair < PAIRS))
        tl.store(out + (channel + PAIRS // BLOCKS) * step, second, mask=row_exists & (pair < PAIRS))


@triton.jit
def _first_channel(pair, FIRST: tl.constexpr, BLOCKS: tl.constexpr, PAIRS: tl.constexpr):
    if BLOCKS > 1:
        pair += pair // (PAIRS // BLOCKS) * (PAIRS // BLOCKS)
    return FIRST + pair


@triton.jit
def _copy(x, out, x_step, out_step, row_exists, BEGIN: tl.constexpr, END: tl.constexpr, PADDED: tl.constexpr):
    for begin in range(BEGIN, END, PADDED):
        channel = begin + tl.arange(0, PADDED)[None, :]
        exists = row_exists & (channel < END)
        passing = tl.load(x + channel.to(tl.int64) * x_step, mask=exists)
        tl.store(out + channel.to(tl.int64) * out_step, passing, mask=exists)


@triton.jit
def _sin_cos(position, high, low, SINE: tl.constexpr, COSINE: tl.constexpr, BITS: tl.constexpr):
    """As `exact_phases.exact_tables`, of int64 positions: equal phases bit for bit, and equal polynomials."""
    upper = ((position >> 31) + 1) >> 1
    phase = position * high + upper * low
    if BITS == 32:
        phase = (phase >> 32).to(tl.int32)
    else:
        phase += ((position - (upper << 32)) * low) >> 32
    dtype: tl.constexpr = tl.float32 if BITS == 32 else tl.float64

    quarter = (phase + (1 << (BITS - 3))) >> (BITS - 2)
    offset = phase - (quarter << (BITS - 2))
    steps = (offset + (1 << (BITS - 14))) >> (BITS - 13)
    short = steps.to(dtype) * 2.0**-11
    remainder = (offset - (steps << (BITS - 13))).to(dtype) * 2.0 ** (2 - BITS)
    u = short + remainder
    square = u * u
    sine = 1.5 * short + (1.5 * remainder + u * _polynomial(square, SINE))
    tail = square * _polynomial(square, COSINE)
    cosine = (1.0 - 1.25 * (short * short)) + (tail - 1.25 * (remainder * (u + short)))

    odd = (quarter & 1) == 1
    sin, cos = tl.where(odd, cosine, sine), tl.where(odd, sine, cosine)
    return tl.where((quarter & 2) == 2, -sin, sin), tl.where(((quarter + 1) & 2) == 2, -cos, cos)


@triton.jit
def _polynomial(x, COEFFICIENTS: tl.constexpr):
    result = COEFFICIENTS[len(COEFFICIENTS) - 1] * x + COEFFICIENTS[len(COEFFICIENTS) - 2]
    for index in tl.static_range(3, len(COEFFICIENTS) + 1):
        result = result * x + COEFFICIENTS[len(COEFFICIENTS) - index]
    return result
