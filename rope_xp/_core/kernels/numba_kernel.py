"""The rotation compiled by numba, on memory of the host: NumPy's, and torch's on the CPU.

Rows are read once and written once, whatever their order in memory, and give the bits of the reference expression:
nothing is fused or reordered. Numba caches the kernels on disk. They run without Python's lock, and in several
threads (`rope_xp._core.backends.threads`).
"""

# Numba's types of what is called inside kernels are not Python's.
# pyright: reportMissingImports=false, reportCallIssue=false, reportPrivateImportUsage=false

from array import array
from collections.abc import Sequence
from functools import cache, lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import registry
from numba.extending import intrinsic

from rope_xp._core import backends
from rope_xp._core.backends import memory, threads
from rope_xp._core.kernels import faults
from rope_xp._core.kernels.pair_rotation import Rotation, Tables

Axes = tuple[int, ...]

PLACES = ("host memory",)
_settings: Any = numba.config
if _settings.DISABLE_JIT:
    raise ImportError("numba must be allowed to compile; got NUMBA_DISABLE_JIT=1")
# Processors of Intel's kind convert float16 since 2012; for others, LLVM calls functions that are not there.
_target: Any = registry.cpu_target.target_context
_machine, _, _features = _target.codegen().magic_tuple()
if "x86" in _machine and "+f16c" not in _features:
    raise ImportError(f"numba must compile for a processor that converts float16; got {_features or 'no features'}")
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
# What stands for 16-bit dtypes in a kernel's arguments: numba has no bfloat16, and float16 in part only.
_HALF, _BFLOAT16 = types.int16, types.uint16
_TAGS: dict[str, Any] = {
    "float32": np.float32(0),
    "bfloat16": np.uint16(0),
    "float16": np.int16(0),
    "float64": np.float64(0),
}
WORDS_PER_JOB = 1 << 16  # at most: of arrays with 10,000 axes
# What a thread takes at a time, in bytes of x.
BYTES_PER_PART = 2**18


def rotate_all(xs: Sequence[Any], tables: Tables, rotation: Rotation, inplace: bool = False) -> list[Any]:
    """`reference.rotate_all`, bit for bit; new memory is in the order of the array."""
    outs = [x if inplace else memory.empty_like(x) for x in xs]
    for x, (sin, cos), out in zip(xs, tables, outs):
        if rotation.blocks == 1:
            _rotate_block(x, sin, cos, out, rotation)
            continue
        for block in rotation.by_block(x, sin, cos, out):
            _rotate_block(*block, rotation._replace(first_channel=0, blocks=1))
    return outs


def prove(x: Any) -> bool:
    """Compile what rotates arrays of the dtype of `x`, or fetch it from the disk; raise where that cannot be."""
    _entry(backends.dtype_name(x.dtype))
    return True


def _rotate_block(x: Any, sin: Any, cos: Any, out: Any, rotation: Rotation) -> None:
    sin, cos = memory.with_rows(sin), memory.with_rows(cos)
    kind, in_bytes = backends.dtype_name(x.dtype), backends.is_host(x)
    addresses, strides = memory.addresses_and_strides(x, out, sin, cos)
    parts, geometry = _geometry(kind, rotation, x.shape, sin.shape, strides, in_bytes)
    if not parts:
        return
    job = array("q", (0, *addresses)) + geometry
    count = 1 if parts == 1 else min(parts, memory.threads(x) or _settings.NUMBA_NUM_THREADS)
    threads.run(_entry(kind), job.buffer_info()[0], parts, count, job, x, out, sin, cos)


@lru_cache(maxsize=256)  # as every layer, and every step of decoding, asks the same
def _geometry(
    kind: str,
    rotation: Rotation,
    shape: Axes,
    shape_of_tables: Axes,
    strides: tuple[Axes, ...],
    in_bytes: bool,
) -> tuple[int, array]:
    """The number of parts, and all of a job (`_rotate_rows`) after the addresses.

    Nothing may be read or written where there is no array, whoever asks.
    """
    if not (
        len(shape) == len(shape_of_tables)
        and all(given in (1, size) for given, size in zip(shape_of_tables[:-1], shape))
        and rotation.first_channel + 2 * shape_of_tables[-1] <= shape[-1]
    ):
        raise ValueError(f"rotate: tables must fit the array of shape {shape}; got {shape_of_tables}")
    rows = prod(shape[:-1])
    unit, unit_of_tables = (BYTES[kind], BYTES["float64" if kind == "float64" else "float32"]) if in_bytes else (1, 1)
    parts = min(rows, 1 + rows * shape[-1] * BYTES[kind] // BYTES_PER_PART)
    numbers = [
        *(parts, rows),
        *(rotation.read == "half", rotation.write == "half", rotation.first_channel, rotation.inverse),
        *(unit, unit_of_tables, shape_of_tables[-1], len(shape), *shape, *shape_of_tables),
    ]
    return parts, array("q", [*numbers, *(stride for axes in strides for stride in axes)])


@intrinsic
def _load(context: Any, tag: Any, address: Any, index: Any) -> Any:
    """Number `index` of the tag's dtype from an address on, as float64 for float64 and as float32 for all else."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, address, index = arguments
        number = builder.load(builder.gep(builder.inttoptr(address, _in_memory(tag).as_pointer()), [index]))
        if tag == _HALF:
            return builder.fpext(number, ir.FloatType())
        if tag == _BFLOAT16:
            word = ir.IntType(32)
            return builder.bitcast(builder.shl(builder.zext(number, word), word(16)), ir.FloatType())
        return number

    return _arithmetic(tag)(tag, types.intp, types.intp), generate


@intrinsic
def _store(context: Any, tag: Any, address: Any, index: Any, number: Any) -> Any:
    """Write a number to an address, rounded to the tag's dtype: to nearest, ties to even."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, address, index, number = arguments
        if tag == _HALF:
            number = builder.fptrunc(number, ir.HalfType())
        elif tag == _BFLOAT16:
            word = ir.IntType(32)
            bits = builder.bitcast(number, word)
            last = builder.and_(builder.lshr(bits, word(16)), word(1))
            rounded = builder.add(bits, builder.add(last, word(0x7FFF)))
            quiet = builder.or_(bits, word(0x400000))
            bits = builder.select(builder.fcmp_unordered("uno", number, number), quiet, rounded)
            number = builder.trunc(builder.lshr(bits, word(16)), ir.IntType(16))
        builder.store(number, builder.gep(builder.inttoptr(address, _in_memory(tag).as_pointer()), [index]))
        return context.get_dummy_value()

    return types.void(tag, types.intp, types.intp, _arithmetic(tag)), generate


@intrinsic
def _copy(context: Any, tag: Any, source: Any, index: Any, target: Any, place: Any) -> Any:
    """Copy one number, bit for bit: rounding would quieten a NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, source, index, target, place = arguments
        pointer = _in_memory(tag).as_pointer()
        number = builder.load(builder.gep(builder.inttoptr(source, pointer), [index]))
        builder.store(number, builder.gep(builder.inttoptr(target, pointer), [place]))
        return context.get_dummy_value()

    return types.void(tag, types.intp, types.intp, types.intp, types.intp), generate


def _arithmetic(tag: Any) -> Any:
    return types.float64 if tag == types.float64 else types.float32


def _in_memory(tag: Any) -> Any:
    known = {types.float64: ir.DoubleType(), types.float32: ir.FloatType(), _HALF: ir.HalfType()}
    return known.get(tag, ir.IntType(16))


@numba.njit(error_model="numpy")
def _axes(shape, of_tables, strides, unit, unit_of_tables):
    """Size and strides, of x, y, sin and cos, of each axis of rows, from that with the largest strides in x on."""
    axes = np.zeros((len(shape), 5), dtype=np.int64)
    axes[0, 0] = 1
    found = 0
    for axis in range(len(shape) - 1):
        if shape[axis] == 1:
            continue
        place = found
        while place > 0 and axes[place - 1, 1] < strides[0, axis] // unit:
            axes[place] = axes[place - 1]
            place -= 1
        axes[place, 0] = shape[axis]
        for each in range(4):
            stands = each > 1 and of_tables[axis] == 1
            axes[place, 1 + each] = 0 if stands else strides[each, axis] // (unit if each < 2 else unit_of_tables)
        found += 1
    return axes[: max(found, 1)]


@numba.njit(error_model="numpy")
def _rotate_rows(tag, wide, job, start, stop):
    """Turn the rows from `start` to `stop`.

    Rows are counted as they lie in memory. The pairs of a row are read into memory of their own before any is written,
    so that y may be x. Strides that the compiler knows become vector instructions: hence the loops that say the same.
    """
    x, y, sin, cos = job[1], job[2], job[3], job[4]
    read_halves, write_halves, first_channel, inverse = job[7] != 0, job[8] != 0, job[9], job[10]
    unit, unit_of_tables, width, ndim = job[11], job[12], job[13], job[14]
    shape, of_tables = job[15 : 15 + ndim], job[15 + ndim : 15 + 2 * ndim]
    strides = job[15 + 2 * ndim : 15 + 6 * ndim].reshape(4, ndim)
    axes = _axes(shape, of_tables, strides, unit, unit_of_tables)
    line = axes[-1]
    dim, x_step, y_step = shape[-1], strides[0, ndim - 1] // unit, strides[1, ndim - 1] // unit
    first = np.empty(width, dtype=np.asarray(wide).dtype)
    second = np.empty_like(first)
    sign = first.dtype.type(-1 if inverse else 1)
    end = first_channel + 2 * width
    while start < stop:
        # The rows of one line along the innermost axis.
        of, to, sine, cosine = 0, 0, 0, 0
        rest = start
        for axis in range(len(axes) - 1, -1, -1):
            index = rest % axes[axis, 0]
            rest //= axes[axis, 0]
            of += index * axes[axis, 1]
            to += index * axes[axis, 2]
            sine += index * axes[axis, 3]
            cosine += index * axes[axis, 4]
        rows = min(line[0] - start % line[0], stop - start)
        start += rows
        for _ in range(rows):
            if x != y:
                for j in range(first_channel):
                    _copy(tag, x, of + j * x_step, y, to + j * y_step)
                for j in range(end, dim):
                    _copy(tag, x, of + j * x_step, y, to + j * y_step)
            at = of + first_channel * x_step
            if x_step == 1 and read_halves:
                for j in range(width):
                    first[j] = _load(tag, x, at + j)
                for j in range(width):
                    second[j] = _load(tag, x, at + width + j)
            elif x_step == 1:
                for j in range(width):
                    first[j] = _load(tag, x, at + 2 * j)
                    second[j] = _load(tag, x, at + 2 * j + 1)
            else:
                apart, step = (width * x_step, x_step) if read_halves else (x_step, 2 * x_step)
                for j in range(width):
                    first[j] = _load(tag, x, at + j * step)
                    second[j] = _load(tag, x, at + apart + j * step)
            at = to + first_channel * y_step
            if y_step == 1 and write_halves:
                for j in range(width):
                    s, c = sign * _load(wide, sin, sine + j), _load(wide, cos, cosine + j)
                    _store(tag, y, at + j, first[j] * c - second[j] * s)
                    _store(tag, y, at + width + j, second[j] * c + first[j] * s)
            elif y_step == 1:
                for j in range(width):
                    s, c = sign * _load(wide, sin, sine + j), _load(wide, cos, cosine + j)
                    _store(tag, y, at + 2 * j, first[j] * c - second[j] * s)
                    _store(tag, y, at + 2 * j + 1, second[j] * c + first[j] * s)
            else:
                apart, step = (width * y_step, y_step) if write_halves else (y_step, 2 * y_step)
                for j in range(width):
                    s, c = sign * _load(wide, sin, sine + j), _load(wide, cos, cosine + j)
                    _store(tag, y, at + j * step, first[j] * c - second[j] * s)
                    _store(tag, y, at + apart + j * step, second[j] * c + first[j] * s)
            of, to, sine, cosine = of + line[1], to + line[2], sine + line[3], cosine + line[4]


@intrinsic
def _pointer(context: Any, address: Any) -> Any:
    """An address as a pointer to 64-bit integers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())

    return types.CPointer(types.int64)(types.intp), generate


@intrinsic
def _take(context: Any, counter: Any) -> Any:
    """The number at an address, which grows by one: no two threads take the same."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, ir.IntType(64)(1), "monotonic")

    return types.intp(types.intp), generate


@cache
def _entry(kind: str) -> Any:
    """The C function, of a job's address, that rotates arrays of one dtype: kept on disk where there is a place."""
    tag, wide = _TAGS[kind], np.float64(0) if kind == "float64" else np.float32(0)

    def rotate(address):
        """Turn rows, a part at a time, until none is left; return how many parts that was. Several threads may call."""
        job = numba.carray(_pointer(address), WORDS_PER_JOB)
        parts, rows = job[5], job[6]
        done = 0
        part = _take(address)
        while part < parts:
            _rotate_rows(tag, wide, job, rows * part // parts, rows * (part + 1) // parts)
            done += 1
            part = _take(address)
        return done

    compiled = numba.cfunc("intp(intp)", cache=True, error_model="numpy")
    try:
        return compiled(rotate).ctypes
    except Exception as problem:  # damaged files, a full disk, nowhere to write
        reason = faults.reason(problem)
    function = numba.cfunc("intp(intp)", error_model="numpy")(rotate).ctypes
    folder = _settings.CACHE_DIR or f"{Path(__file__).parent}/__pycache__"
    faults.warn_once("cache", f"numba compiles in each process, as its files in {folder} cannot be used: {reason}")
    return function
