"""The rotation compiled by numba, for host memory: NumPy arrays, and torch tensors on the CPU.

Each row is read once and written once, for any strides, without the GIL and in several threads. Results equal the
reference bit for bit, because no operation is fused or reordered.
"""

# Pyright does not know the types that functions have inside numba kernels.
# pyright: reportMissingImports=false, reportCallIssue=false, reportPrivateImportUsage=false

import ctypes
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numba
import numpy as np

from rope_xp.arrays import libraries, memory, threads
from rope_xp.arrays.signature import Plans
from rope_xp.kernels import numba_pairs
from rope_xp.kernels.numba_jobs import call, compiled_entry, fetch_and_add, numba_threads, pointer_to, source_stamp
from rope_xp.kernels.numba_pairs import TAGS, copy, read, rotate_pairs
from rope_xp.kernels.reference import Angles, Rotation
from rope_xp.types import Array

MEMORY_KINDS = ("host memory",)
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
# The size of the parts that threads take, in bytes of x. Large arrays have larger parts, up to four times this size:
# measured, they are faster in memory.
BYTES_PER_PART = 2**18
# How many rows one call of `rotate_run` rotates, at most. Before each call, the other channels of its rows are copied.
_ROWS_PER_RUN = 128

# A job is an array of 64-bit words, all numbers that threads need to rotate. A place is the index of a word in the job.
# The first words are:
# _TAKEN         how many parts threads have taken
# _ALL_PARTS     how many parts there are
# _THREADS       how many threads have begun
# _NANS          the place of a row of NaN: the tables of a position for which there is no row
# _MEMORY        the place of the memory that threads write to
# _MEMORY_WORDS  how many words of this memory each thread has
# _FIRST_RECORD  the place of the first record
# _RUN           the address of the compiled function that rotates rows of the dtype of x
# _SIZE          how many bytes a number of x has
# _ADDRESSES     from here on: for each x, the addresses of x, y, sin, cos and positions (if there are any)
# Then come a record for each x, the row of NaN, and the memory of threads.
_TAKEN, _ALL_PARTS, _THREADS, _NANS, _MEMORY, _MEMORY_WORDS, _FIRST_RECORD, _RUN, _SIZE, _ADDRESSES = range(10)
# A record says how one x is rotated. Strides and steps are in bytes. Its words, counted from its first one, are:
# _PARTS, _LENGTH, _ROWS      how many parts it is divided into; how many words the record has; how many rows x has
# _PLACE                      the place of the address of x
# _READ_HALVES, _WRITE_HALVES, _SIGN  whether layouts are "half"; -1 if the rotation is inverse, else 1
# _DIM, _FIRST                how many channels a row has; the first one that is rotated
# _BLOCKS, _WIDTH             how many blocks of pairs a row has; how many pairs each of them has
# _X_STEP, _Y_STEP            the stride of channels in x and in y
# _INTEGER                    how many bytes a position has; 0 if there are no positions
# _TABLE_ROWS, _SIN_STEP, _COS_STEP  how many rows tables have; the strides of these rows
# _AXES                       how many axes of rows follow
# _RECORD                     from here on: for each axis, its size and its strides in x, y, sin, cos and positions
_PARTS, _LENGTH, _ROWS, _PLACE, _READ_HALVES, _WRITE_HALVES, _SIGN, _DIM, _FIRST = range(9)
_BLOCKS, _WIDTH, _X_STEP, _Y_STEP, _INTEGER, _TABLE_ROWS, _SIN_STEP, _COS_STEP, _AXES, _RECORD = range(9, 19)


class _Launch(NamedTuple):
    """One call of a compiled entry, for all arrays of one dtype."""

    entry: Callable[[int], int]
    job_without_addresses: array
    parts: int
    most_threads: int  # more would not have enough to do
    words_per_thread: int


class Program(NamedTuple):
    """How arrays of one signature are rotated. It holds no array, and several threads may run it at the same time."""

    launches: Sequence[_Launch]
    inplace: bool
    functions: memory.Functions

    def run(self, xs: Sequence[Array], angles: Angles) -> list[Any]:
        """The rotated arrays. Of `angles`, only addresses are read: jobs have the strides of aligned angles."""
        ys = xs if self.inplace else [*map(self.functions.empty_like, xs)]
        arrays: list[Any] = []
        for x, y, group in zip(xs, ys, angles):
            arrays += (x, y, *group)
        addresses = array("q", self.functions.addresses(arrays))
        for entry, job_without_addresses, parts, most_threads, words_per_thread in self.launches:
            job = job_without_addresses[:]
            job[_ADDRESSES : _ADDRESSES + len(addresses)] = addresses
            count = 1 if most_threads == 1 else min(most_threads, memory.threads(xs[0]) or numba_threads())
            if words_per_thread:
                job.frombytes(bytes(8 * words_per_thread * count))
            threads.run(entry, job.buffer_info()[0], parts, count, job, xs, ys, angles)
        return list(ys)


def prepare(xs: Sequence[Any], angles: Angles, rotation: Rotation, inplace: bool = False) -> Program | None:
    """A program for arrays with the dtypes, shapes and strides of these; None if the angles need a conversion first."""
    # Arrays belong to NumPy or to torch on the CPU. Each has tables, or rows of tables and positions (see `Angles`).
    ys = xs if inplace else [memory.functions(x, 0).empty_like(x) for x in xs]  # of these, only strides are read
    kinds = [libraries.dtype_name(x.dtype) for x in xs]
    if not all(_fits(kind, *group) for kind, group in zip(kinds, angles)):
        return None
    records: dict[str, list[list[int]]] = {}
    place = _ADDRESSES
    for kind, x, y, group in zip(kinds, xs, ys, angles):
        records.setdefault(kind, []).append(_record(kind, x, y, group, rotation, place))
        place += 2 + len(group)
    launches = [_launch(kind, of_kind, place, inplace) for kind, of_kind in records.items()]
    return Program(
        [each for each in launches if each.parts], inplace, memory.functions(xs[0], max([x.nbytes for x in xs]))
    )


_programs = Plans()


def rotate_all(xs: Sequence[Array], angles: Angles, rotation: Rotation, inplace: bool = False) -> list[Any]:
    """The same as `reference.rotate_all`, bit for bit. A new array has the memory order of its input."""
    program = _program(xs, angles, rotation, inplace)
    if program is None:
        angles = [_converted(*group) for group in angles]
        program = _program(xs, angles, rotation, inplace)
        assert program is not None
    return program.run(xs, angles)


def _program(xs: Sequence[Array], angles: Angles, rotation: Rotation, inplace: bool) -> Program | None:
    arrays = [(x.dtype, x.shape, memory.strides(x)) for x in (*xs, *[each for group in angles for each in group])]
    key = (libraries.is_host(xs[0]), len(xs), rotation, inplace, *arrays)
    program = _programs.get(key)
    if program is None:
        program = prepare(xs, angles, rotation, inplace)
        _programs.add(key, program)
    return program


def _converted(sin: Array, cos: Array, *positions: Any) -> tuple[Any, ...]:
    tables = [memory.with_contiguous_rows(table) for table in (sin, cos)]
    return (*tables, *[libraries.astype(each, libraries.namespace(each).int64) for each in positions])


def make_ready(x: Array) -> bool:
    """Compile the kernel for the dtype of `x`, or load it from disk; raise if neither is possible."""
    _run_of(libraries.dtype_name(x.dtype))
    _entry()
    return True


def _fits(kind: str, sin: Array, cos: Array, *positions: Any) -> bool:
    return (
        all([memory.has_contiguous_rows(table) for table in (sin, cos)])
        and all([memory.is_native(each) for each in (sin, cos, *positions)])
        and {libraries.dtype_name(table.dtype) for table in (sin, cos)} == {_wide(kind)}
        and {libraries.dtype_name(each.dtype) for each in positions} <= {"int32", "int64"}
    )


def _wide(kind: str) -> str:
    return "float64" if kind == "float64" else "float32"


def _record(kind: str, x: Array, y: Array, group: tuple[Any, ...], rotation: Rotation, place: int) -> list[int]:
    """The record of one x. `place` is that of its address."""
    # Shapes are checked here, because with wrong shapes a kernel would read or write the memory of others.
    sin, cos, *positions = group
    *leading, dim = x.shape
    width, given = sin.shape[-1], (positions[0].shape if positions else sin.shape[:-1])
    if not (
        len(given) == len(leading)
        and all(each in (1, size) for each, size in zip(given, leading))
        and rotation.first_channel + 2 * width <= dim
    ):
        raise ValueError(f"rotate: tables must broadcast against x of shape {tuple(x.shape)}; got {(*given, width)}")
    steps = [memory.steps(each) for each in (x, y, *(positions or (sin, cos)))]
    fixed = (0,) * len(leading)
    of_angles = (fixed, fixed, steps[2]) if positions else (*steps[2:], fixed)
    axes = _axes(leading, given, (*steps[:2], *of_angles))
    rows = prod(leading)
    size = rows * dim * BYTES[kind]
    words = {
        _PARTS: min(rows, 1 + size // BYTES_PER_PART, 8 + size // (4 * BYTES_PER_PART)),
        _ROWS: rows,
        _PLACE: place,
        _READ_HALVES: rotation.read == "half",
        _WRITE_HALVES: rotation.write == "half",
        _SIGN: -1 if rotation.inverse else 1,
        _DIM: dim,
        _FIRST: rotation.first_channel,
        _BLOCKS: rotation.blocks,
        _WIDTH: width // rotation.blocks,
        _X_STEP: steps[0][-1],
        _Y_STEP: steps[1][-1],
        _INTEGER: positions[0].itemsize if positions else 0,
        _TABLE_ROWS: len(sin),
        _SIN_STEP: memory.steps(sin)[0],
        _COS_STEP: memory.steps(cos)[0],
        _AXES: len(axes),
        _LENGTH: _RECORD + 6 * len(axes),
    }
    return [*(int(words[word]) for word in range(_RECORD)), *(number for axis in axes for number in axis)]


def _axes(shape: Sequence[int], given: Sequence[int], steps: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """The size of each axis of rows, and its strides in x (decreasing), y, sin, cos and positions."""
    axes: list[tuple[int, ...]] = []
    for axis in sorted(range(len(shape)), key=lambda axis: -abs(steps[0][axis])):
        if shape[axis] == 1:
            continue
        of_angles = [0 if given[axis] == 1 else of_array[axis] for of_array in steps[2:]]
        found = (shape[axis], steps[0][axis], steps[1][axis], *of_angles)
        if axes and all(outer == inner * found[0] for outer, inner in zip(axes[-1][1:], found[1:])):
            found = (axes.pop()[0] * found[0], *found[1:])
        axes.append(found)
    return axes or [(1, 0, 0, 0, 0, 0)]


def _launch(kind: str, records: list[list[int]], place: int, inplace: bool) -> _Launch:
    parts = sum(record[_PARTS] for record in records)
    size = sum(record[_ROWS] * record[_DIM] for record in records) * BYTES[kind]
    width = max(record[_WIDTH] for record in records)
    is_scratch_needed = inplace and records[0][_READ_HALVES] != records[0][_WRITE_HALVES]
    words = -(-2 * width * BYTES[kind] // 8) if is_scratch_needed else 0
    nans = array("q", np.full(2 * width * records[0][_BLOCKS], np.nan, _wide(kind)).tobytes())
    after = place + sum(map(len, records))
    run: Any = ctypes.cast(_run_of(kind), ctypes.c_void_p).value
    header = (0, parts, 0, after, after + len(nans), words, place, run, BYTES[kind])
    job = array("q", [*header, *(0,) * (place - len(header)), *(word for record in records for word in record)])
    return _Launch(_entry(), job + nans, parts, min(parts, 1 + size // BYTES_PER_PART), words)


@numba.njit(error_model="numpy")
def _copy_channels(size, source, source_step, target, target_step, count):
    if source_step == size and target_step == size:
        copy(source, target, count * size)
    else:
        for channel in range(count):
            copy(source + channel * source_step, target + channel * target_step, size)


@cache
def _run_of(kind: str) -> Any:
    """The function that rotates rows of pairs: as vectors if channels are contiguous, the rest as shorter vectors."""
    tag, size, stamp = TAGS[kind], BYTES[kind], source_stamp(numba_pairs)
    wide = BYTES[_wide(kind)]  # of a number of tables
    lanes = 64 // wide

    def rotate_run(address, record, x, x_step, y, y_step, sin, cos, position, nans, outer, rows):
        _ = stamp  # the cache of numba compares what a function encloses
        job = pointer_to(address, _INT64)
        width, sign = job[record + _WIDTH], job[record + _SIGN]
        contiguous = width if x_step == size and y_step == size else 0
        reads, writes = job[record + _READ_HALVES] != 0, job[record + _WRITE_HALVES] != 0
        integer = job[record + _INTEGER]
        x_partner, x_step = (width * x_step, x_step) if reads else (x_step, 2 * x_step)
        y_partner, y_step = (width * y_step, y_step) if writes else (y_step, 2 * y_step)
        innermost = record + _RECORD + 6 * (job[record + _AXES] - 1)
        around = max(innermost - 6, record + _RECORD)  # the next axis; if there is none, `outer` is 1
        # Read here, because a compiler cannot know that the loops do not write them.
        x_inner, y_inner, sin_inner = job[innermost + 1], job[innermost + 2], job[innermost + 3]
        cos_inner, position_inner = job[innermost + 4], job[innermost + 5]
        for _ in range(outer):
            x_row, y_row, sin_row, cos_row, position_row = x, y, sin, cos, position
            for _ in range(rows):
                if integer:
                    row = read(_INT32, position_row) if integer == 4 else read(_INT64, position_row)
                    sin_row, cos_row = nans, nans
                    if 0 <= row < job[record + _TABLE_ROWS]:
                        sin_row, cos_row = sin + row * job[record + _SIN_STEP], cos + row * job[record + _COS_STEP]
                of_x, of_y = (x_row, x_step, x_partner), (y_row, y_step, y_partner)
                tables, j = (sin_row, cos_row, wide), 0
                while j + lanes <= contiguous:
                    rotate_pairs(tag, lanes, reads, writes, of_x, of_y, tables, j, sign)
                    j += lanes
                if j + 8 <= contiguous:
                    rotate_pairs(tag, 8, reads, writes, of_x, of_y, tables, j, sign)
                    j += 8
                if j + 4 <= contiguous:
                    rotate_pairs(tag, 4, reads, writes, of_x, of_y, tables, j, sign)
                    j += 4
                if j + 2 <= contiguous:
                    rotate_pairs(tag, 2, reads, writes, of_x, of_y, tables, j, sign)
                    j += 2
                while j < width:
                    rotate_pairs(tag, 1, reads, writes, of_x, of_y, tables, j, sign)
                    j += 1
                x_row, y_row, sin_row = x_row + x_inner, y_row + y_inner, sin_row + sin_inner
                cos_row, position_row = cos_row + cos_inner, position_row + position_inner
            x, y, sin = x + job[around + 1], y + job[around + 2], sin + job[around + 3]
            cos, position = cos + job[around + 4], position + job[around + 5]
        return 0

    rotate_run.__qualname__ = f"rotate_run_{kind}"  # a file of the cache for each: two processes may write at once
    return compiled_entry(rotate_run, f"the rotation of {kind}", arguments=12)


@numba.njit(error_model="numpy")
def _rotate_rows(address, record, start, stop, scratch):
    job = pointer_to(address, _INT64)
    place, size, nans = job[record + _PLACE], job[_SIZE], address + 8 * job[_NANS]
    wide = 8 if size == 8 else 4  # of a number of tables
    x_step, y_step = job[record + _X_STEP], job[record + _Y_STEP]
    blocks, width = job[record + _BLOCKS], job[record + _WIDTH]
    first, dim = job[record + _FIRST], job[record + _DIM]
    end = first + 2 * blocks * width
    is_moved = job[place] != job[place + 1]
    axes = record + _RECORD
    innermost = axes + 6 * (job[record + _AXES] - 1)
    x_row, y_row, around = job[innermost + 1], job[innermost + 2], max(innermost - 6, axes)
    needs_scratch = not is_moved and job[record + _READ_HALVES] != job[record + _WRITE_HALVES]
    most = 1 if needs_scratch else _ROWS_PER_RUN
    while start < stop:
        x, y, sin, cos, position = job[place], job[place + 1], job[place + 2], job[place + 3], job[place + 4]
        rest = start
        for axis in range(innermost, axes - 1, -6):
            index = rest % job[axis]
            rest //= job[axis]
            x += index * job[axis + 1]
            y += index * job[axis + 2]
            sin += index * job[axis + 3]
            cos += index * job[axis + 4]
            position += index * job[axis + 5]
        inside = start % job[innermost]
        rows = min(job[innermost] - inside, stop - start, most)
        # Whole rows of the innermost axis continue along the next one.
        outer = 1
        if rows == job[innermost] and around < innermost:
            index = start // rows % job[around]
            outer = max(1, min(job[around] - index, (stop - start) // rows, most // rows))
        start += outer * rows
        if is_moved and end - first < dim:
            for index in range(outer):
                for row in range(rows):
                    source = x + index * job[around + 1] + row * x_row
                    target = y + index * job[around + 2] + row * y_row
                    _copy_channels(size, source, x_step, target, y_step, first)
                    _copy_channels(size, source + end * x_step, x_step, target + end * y_step, y_step, dim - end)
        for block in range(blocks):
            channel = first + 2 * width * block
            source, step, target = x + channel * x_step, x_step, y + channel * y_step
            if needs_scratch:
                _copy_channels(size, source, x_step, scratch, size, 2 * width)
                source, step = scratch, size
            of_block = width * block * wide
            sin_at, cos_at, nans_at = sin + of_block, cos + of_block, nans + of_block
            arguments = (
                address, record, source, step, target, y_step, sin_at, cos_at, position, nans_at, outer, rows
            )  # fmt: skip
            call(job[_RUN], arguments)


_INT32, _INT64 = np.int32(0), np.int64(0)  # these tell `pointer_to` the dtype


@cache
def _entry() -> Any:
    stamp = source_stamp(numba_pairs)

    def rotate(address):
        _ = stamp  # the cache of numba compares what a function encloses
        job = pointer_to(address, _INT64)
        parts = job[_ALL_PARTS]
        scratch = address + 8 * (job[_MEMORY] + job[_MEMORY_WORDS] * fetch_and_add(address + 8 * _THREADS))
        done = 0
        part = fetch_and_add(address + 8 * _TAKEN)
        while part < parts:
            record, index = job[_FIRST_RECORD], part
            while index >= job[record + _PARTS]:
                index -= job[record + _PARTS]
                record += job[record + _LENGTH]
            rows, count = job[record + _ROWS], job[record + _PARTS]
            _rotate_rows(address, record, rows * index // count, rows * (index + 1) // count, scratch)
            done += 1
            part = fetch_and_add(address + 8 * _TAKEN)
        return done

    return compiled_entry(rotate, "the rotation")
