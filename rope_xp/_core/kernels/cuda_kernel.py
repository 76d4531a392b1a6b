# type: ignore - Triton's language looks like Python, but has types of its own
"""The Triton kernel of `rope_xp._core.kernels.cuda`: what it is given, and what one program of it does.

Names of what is known while compiling are in capitals. Offsets have 64 bits, as tensors may.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Task(NamedTuple):
    """One array: what it is turned by, its lengths, and strides in elements.

    Triton compiles anew for numbers that are 1, or multiples of 16, or neither. That is right for the strides of
    columns. All other numbers are `packed`, strides after division by their UNIT, as accesses need divisors to be wide.
    """

    x: Any
    out: Any
    table: Any  # sines; frequencies where angles are computed
    other_table: Any  # cosines; frequencies, again
    positions: Any
    programs: int  # up to the last of this array
    x_column: int
    out_column: int
    table_column: int
    table_row: int
    table_rows: int
    rows: int  # the product of the lengths of `axes`
    heads: int  # which turn alike
    heads_of_program: int
    x_head: int
    out_head: int
    axes: tuple  # from the last to the first: length, and stride of `x`, of `out`, and of tables or positions


def packed(number: int) -> int:
    """A number that is odd and not 1."""
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
    """Rotate ROWS rows of one array, in some of its heads."""
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
            here = row < rows

            angles = tl.full((ROWS, 1), 0, tl.int64)
            x_head = _unpacked(task.x_head).to(tl.int64) * UNITS[index][0]
            out_head = _unpacked(task.out_head).to(tl.int64) * UNITS[index][0]
            x = task.x + (angles + head) * x_head
            out = task.out + (angles + head) * out_head
            for axis in tl.static_range(len(task.axes)):
                size = _unpacked(task.axes[axis][0])
                place = (row % size if axis + 1 < len(task.axes) else row).to(tl.int64)
                row = row // size
                x += place * _unpacked(task.axes[axis][1]) * UNITS[index][0]
                out += place * _unpacked(task.axes[axis][2]) * UNITS[index][0]
                angles += place * _unpacked(task.axes[axis][3]) * UNITS[index][1]

            if SOURCE == "tables":
                sin = _columns(task.table + angles, task.table_column, here, 0.0, PAIRS, PADDED)
                cos = _columns(task.other_table + angles, task.table_column, here, 0.0, PAIRS, PADDED)
            else:
                position = tl.load(task.positions + angles, mask=here, other=0).to(tl.int64)
                table_row = _unpacked(task.table_row).to(tl.int64) * UNITS[index][2]
                if SOURCE == "rows":
                    known = (position >= 0) & (position < _unpacked(task.table_rows))
                    angles = position * table_row
                    sin = _columns(task.table + angles, task.table_column, known, float("nan"), PAIRS, PADDED)
                    cos = _columns(task.other_table + angles, task.table_column, known, float("nan"), PAIRS, PADDED)
                else:
                    every = tl.full((1, 1), 1, tl.int1)
                    high = _columns(task.table, task.table_column, every, 0, PAIRS, PADDED)
                    low = _columns(task.table + table_row, task.table_column, every, 0, PAIRS, PADDED)
                    sin, cos = _sin_cos(position, high, low, SINE, COSINE, BITS)
                    sin, cos = sin * SCALE, cos * SCALE
            if INVERSE:
                sin = -sin

            for _ in range(head, tl.minimum(head + heads_of_program, heads)):
                first, second = _read(x, task.x_column, here, READ, FIRST, BLOCKS, PAIRS, PADDED)
                first, second = first.to(sin.dtype), second.to(sin.dtype)
                first, second = first * cos - second * sin, second * cos + first * sin
                if not IN_PLACE:
                    _copy(x, out, task.x_column, task.out_column, here, 0, FIRST, PADDED)
                    _copy(x, out, task.x_column, task.out_column, here, FIRST + 2 * PAIRS, WIDTHS[index], PADDED)
                elif READ != WRITE:
                    tl.debug_barrier()  # as a thread writes what other threads read
                _write(out, task.out_column, first, second, here, WRITE, FIRST, BLOCKS, PAIRS, PADDED)
                x += x_head
                out += out_head


@triton.jit
def _columns(table, step, exists, other, PAIRS: tl.constexpr, PADDED: tl.constexpr):
    """Rows of a table, "rows pairs"."""
    column = tl.arange(0, PADDED)[None, :]
    return tl.load(table + column.to(tl.int64) * step, mask=exists & (column < PAIRS), other=other)


@triton.jit
def _read(
    x,
    step,
    here,
    READ: tl.constexpr,
    FIRST: tl.constexpr,
    BLOCKS: tl.constexpr,
    PAIRS: tl.constexpr,
    PADDED: tl.constexpr,
):
    """The first and the second channels of all pairs, "rows pairs"."""
    if READ == "interleaved":  # both at once, as wide accesses need neighbours
        channel = tl.arange(0, 2 * PADDED)[None, :]
        both = tl.load(x + (FIRST + channel).to(tl.int64) * step, mask=here & (channel < 2 * PAIRS), other=0.0)
        first, second = tl.split(tl.reshape(both, (both.shape[0], PADDED, 2)))
    else:
        pair = tl.arange(0, PADDED)[None, :]
        channel = _first_channel(pair, FIRST, BLOCKS, PAIRS).to(tl.int64)
        first = tl.load(x + channel * step, mask=here & (pair < PAIRS), other=0.0)
        second = tl.load(x + (channel + PAIRS // BLOCKS) * step, mask=here & (pair < PAIRS), other=0.0)
    return first, second


@triton.jit
def _write(
    out,
    step,
    first,
    second,
    here,
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
        tl.store(out + (FIRST + channel).to(tl.int64) * step, both, mask=here & (channel < 2 * PAIRS))
    else:
        pair = tl.arange(0, PADDED)[None, :]
        channel = _first_channel(pair, FIRST, BLOCKS, PAIRS).to(tl.int64)
        tl.store(out + channel * step, first, mask=here & (pair < PAIRS))
        tl.store(out + (channel + PAIRS // BLOCKS) * step, second, mask=here & (pair < PAIRS))


@triton.jit
def _first_channel(pair, FIRST: tl.constexpr, BLOCKS: tl.constexpr, PAIRS: tl.constexpr):
    """The first channel of a pair where blocks are in halves."""
    if BLOCKS > 1:
        pair += pair // (PAIRS // BLOCKS) * (PAIRS // BLOCKS)
    return FIRST + pair


@triton.jit
def _copy(x, out, x_step, out_step, here, BEGIN: tl.constexpr, END: tl.constexpr, PADDED: tl.constexpr):
    """Copy the channels from BEGIN to END."""
    for begin in range(BEGIN, END, PADDED):
        channel = begin + tl.arange(0, PADDED)[None, :]
        exists = here & (channel < END)
        passing = tl.load(x + channel.to(tl.int64) * x_step, mask=exists)
        tl.store(out + channel.to(tl.int64) * out_step, passing, mask=exists)


@triton.jit
def _sin_cos(position, high, low, SINE: tl.constexpr, COSINE: tl.constexpr, BITS: tl.constexpr):
    """`phases.sin_cos` of integers in int64: its phases, bit for bit, and its polynomials for 32 or 64 bits."""
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
