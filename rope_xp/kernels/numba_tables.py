"""Tables compiled by numba, for positions in host memory: NumPy arrays, and torch tensors on the CPU.

The operations are those of `exact_phases.exact_tables` in the same order, so results are equal bit for bit.
"""

# Pyright does not know the types that functions have inside numba kernels.
# pyright: reportMissingImports=false, reportCallIssue=false, reportPrivateImportUsage=false

from array import array
from functools import cache, lru_cache
from math import prod
from typing import Any, NamedTuple

import numba
import numpy as np

from rope_xp.arrays import exact_phases, libraries, memory, threads
from rope_xp.kernels.numba_jobs import compiled_entry, fetch_and_add, numba_threads, pointer_to, source_stamp
from rope_xp.types import Array

# The size of the parts that threads take, in bytes of both tables.
BYTES_PER_PART = 2**18

_S0, _S1, _S2, _S3, _S4 = map(np.float32, exact_phases.SINE[32])
_C1, _C2, _C3, _C4, _C5 = map(np.float32, exact_phases.COSINE[32])
_ONE, _LEADING_SINE, _LEADING_COSINE = np.float32(1.0), np.float32(1.5), np.float32(1.25)
_PER_STEP, _PER_UNIT = np.float32(2.0**-11), np.float32(2.0**-30)
# The words of a job: how many parts threads have taken; the addresses of positions, of both tables and of `_words`; the
# numbers of parts, rows and pairs; whether positions are int64; the number of position axes; the scale, as float64.
_TAKEN, _POSITIONS, _SIN, _COS, _WORDS, _PARTS, _ROWS, _PAIRS, _IS_WIDE, _AXES, _SCALE = range(11)
# These tell `pointer_to` the dtype.
_INT32, _INT64, _FLOAT32, _FLOAT64 = np.int32(0), np.int64(0), np.float32(0), np.float64(0)


class TableProgram(NamedTuple):
    """How tables are computed for positions of one dtype and shape."""

    functions: memory.Functions
    shape: tuple[int, ...]  # of each table
    parts: int
    words: Any  # of the frequencies
    numbers: array  # of a job, after its addresses

    def run(self, positions: Any, like: Any = None) -> tuple[Any, Any]:
        positions = self.functions.contiguous(positions)
        sin, cos = self.functions.empty_float32(self.shape), self.functions.empty_float32(self.shape)
        if self.parts:
            job = array("q", (0, *self.functions.addresses((positions, sin, cos)))) + self.numbers
            count = 1 if self.parts == 1 else min(self.parts, memory.threads(positions) or numba_threads())
            threads.run(_entry(), job.buffer_info()[0], self.parts, count, job, positions, sin, cos, self.words)
        return sin, cos


def prepare_tables(positions: Array, frequencies: exact_phases.Frequencies, scale: float = 1.0) -> TableProgram | None:
    """The program for positions of this dtype and shape, whose sines and cosines are multiplied by float32(scale)."""
    # None unless positions are int32 or int64 in native byte order, frequencies are floats, each pair follows one
    # position axis, and all heads have the same frequencies.
    kind, shape = libraries.dtype_name(positions.dtype), frequencies.rows_of(tuple(positions.shape))
    if kind not in ("int32", "int64") or not memory.is_native(positions) or shape is None:
        return None
    functions = memory.functions(positions, 4 * prod(shape) * frequencies.pairs)
    return TableProgram(functions, *_job(frequencies, kind, shape, scale))


def make_ready(positions: Array) -> bool:
    _entry()
    return True


@lru_cache(maxsize=256)  # all decoding steps have the same arguments
def _job(
    frequencies: exact_phases.Frequencies, kind: str, shape: tuple[int, ...], scale: float
) -> tuple[tuple[int, ...], int, Any, array]:
    words, rows, pairs = _words(frequencies), prod(shape), frequencies.pairs
    axes = frequencies.axes if frequencies.axis_of_pair else 1
    parts = min(rows, 1 + 8 * rows * pairs // BYTES_PER_PART)
    scale_bits = int(np.float64(scale).view(np.int64))
    numbers = (words.ctypes.data, parts, rows, pairs, kind == "int64", axes, scale_bits)
    return (*shape, pairs), parts, words, array("q", numbers)


@lru_cache(maxsize=64)
def _words(frequencies: exact_phases.Frequencies) -> Any:
    """For each pair: the first 64 bits of the fraction of its frequency, the next 32, and its axis. They are shared."""
    (row,) = frequencies.rows
    _, high, _, low = row.words(64)
    return np.array([high, low, frequencies.axis_of_pair or [0] * frequencies.pairs], dtype=np.int64)


@numba.njit(error_model="numpy")
def _sin_cos_of_phase(phase):
    """The same as `exact_phases._sin_cos_of_phase` for one phase in units of ``2**-32`` revolutions."""
    quarter = np.int32(np.int32(phase + np.int32(1 << 29)) >> np.int32(30))
    offset = np.int32(phase - np.int32(quarter << np.int32(30)))
    steps = np.int32(np.int32(offset + np.int32(1 << 18)) >> np.int32(19))
    short = np.float32(steps) * _PER_STEP
    remainder = np.float32(np.int32(offset - np.int32(steps << np.int32(19)))) * _PER_UNIT
    u = short + remainder
    square = u * u
    of_sine = (((_S4 * square + _S3) * square + _S2) * square + _S1) * square + _S0
    of_cosine = (((_C5 * square + _C4) * square + _C3) * square + _C2) * square + _C1
    sine = _LEADING_SINE * short + (_LEADING_SINE * remainder + u * of_sine)
    tail = square * of_cosine
    cosine = (_ONE - _LEADING_COSINE * (short * short)) + (tail - _LEADING_COSINE * (remainder * (u + short)))
    sin, cos = (cosine, sine) if quarter & 1 else (sine, cosine)
    return -sin if quarter & 2 else sin, -cos if (quarter + 1) & 2 else cos


@numba.njit(error_model="numpy")
def _phase(position, high, low):
    """The same as `exact_phases._phase` with `round_off`, in units of ``2**-32`` revolutions."""
    upper = ((position >> 31) + 1) >> 1
    return np.int32((position * high + upper * low) >> 32)


@numba.njit(error_model="numpy")
def _make_rows(address, start, stop):
    # Plain pointers compile in half the time of arrays. The phases of a row are stored first, in the place of its
    # cosines, because two loops compile to better vector instructions than one.
    job, scale = pointer_to(address, _INT64), np.float32(pointer_to(address + 8 * _SCALE, _FLOAT64)[0])
    rows, pairs, is_wide, axes = job[_ROWS], job[_PAIRS], job[_IS_WIDE] != 0, job[_AXES]
    narrow, wide = pointer_to(job[_POSITIONS], _INT32), pointer_to(job[_POSITIONS], _INT64)
    high, low = pointer_to(job[_WORDS], _INT64), pointer_to(job[_WORDS] + 8 * pairs, _INT64)
    axis_of_pair = pointer_to(job[_WORDS] + 16 * pairs, _INT64)
    for row in range(start, stop):
        sin, cos = pointer_to(job[_SIN] + 4 * pairs * row, _FLOAT32), pointer_to(job[_COS] + 4 * pairs * row, _FLOAT32)
        phases = pointer_to(job[_COS] + 4 * pairs * row, _INT32)
        if axes == 1:
            position = wide[row] if is_wide else np.int64(narrow[row])
            for j in range(pairs):
                phases[j] = _phase(position, high[j], low[j])
        else:
            for j in range(pairs):
                place = axis_of_pair[j] * rows + row
                phases[j] = _phase(wide[place] if is_wide else np.int64(narrow[place]), high[j], low[j])
        for j in range(pairs):
            s, c = _sin_cos_of_phase(phases[j])
            sin[j], cos[j] = s * scale, c * scale


@cache
def _entry() -> Any:
    stamp = source_stamp()

    def make_tables(address):
        _ = stamp  # the cache of numba compares what a function encloses
        job = pointer_to(address, _INT64)
        parts, rows = job[_PARTS], job[_ROWS]
        done = 0
        part = fetch_and_add(address + 8 * _TAKEN)
        while part < parts:
            _make_rows(address, rows * part // parts, rows * (part + 1) // parts)
            done += 1
            part = fetch_and_add(address + 8 * _TAKEN)
        return done

    return compiled_entry(make_tables, "tables of sines and cosines")
