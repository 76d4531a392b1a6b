"""The rotation compiled by numba, for host memory: NumPy arrays, and torch tensors on the CPU.

Each row is read once and written once, for any strides. Results equal the reference bit for bit, because no operation
is fused or reordered. Numba caches the compiled kernels on disk. They run without the GIL and in several threads
(`rope_xp._core.backends.threads`).
"""

# Pyright does not know the types that functions have inside numba kernels.
# pyright: reportMissingImports=false, reportCallIssue=false, reportPrivateImportUsage=false

from array import array
from collections.abc import Sequence
from functools import cache, lru_cache
from math import prod
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from rope_xp._core import backends
from rope_xp._core.backends import memory, threads
from rope_xp._core.kernels.numba_jobs import WORDS_PER_JOB, compiled_entry, fetch_and_add, numba_threads, pointer_to
from rope_xp._core.kernels.pair_rotation import Rotation, Tables

Axes = tuple[int, ...]

MEMORY_KINDS = ("host memory",)
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
# A kernel gets a number of each dtype as a tag. Integers stand for 16-bit dtypes: numba has no bfloat16 and only partly
# supports float16.
_HALF, _BFLOAT16 = types.int16, types.uint16
_TAGS: dict[str, Any] = {
    "float32": np.float32(0),
    "bfloat16": np.uint16(0),
    "float16": np.int16(0),
    "float64": np.float64(0),
}
# The size of the parts that threads take, in bytes of x.
BYTES_PER_PART = 2**18


def rotate_all(xs: Sequence[Any], tables: Tables, rotation: Rotation, inplace: bool = False) -> list[Any]:
    """`reference.rotate_all`, bit for bit. A new array has the memory order of its input."""
    outs = [x if inplace else memory.empty_like(x) for x in xs]
    for x, (sin, cos), out in zip(xs, tables, outs):
        if rotation.blocks == 1:
            _rotate_block(x, sin, cos, out, rotation)
            continue
        for block in rotation.by_block(x, sin, cos, out):
            _rotate_block(*block, rotation._replace(first_channel=0, blocks=1))
    return outs


def self_test(x: Any) -> bool:
    """Compile the kernel for the dtype of `x`, or load it from disk; raise if neither is possible."""
    _entry(backends.dtype_name(x.dtype))
    return True


def _rotate_block(x: Any, sin: Any, cos: Any, out: Any, rotation: Rotation) -> None:
    sin, cos = memory.with_contiguous_rows(sin), memory.with_contiguous_rows(cos)
    kind, in_bytes = backends.dtype_name(x.dtype), backends.is_host(x)
    addresses, strides = memory.addresses_and_strides(x, out, sin, cos)
    parts, geometry = _geometry(kind, rotation, x.shape, sin.shape, strides, in_bytes)
    if not parts:
        return
    job = array("q", (0, *addresses)) + geometry
    count = 1 if parts == 1 else min(parts, memory.threads(x) or numba_threads())
    threads.run(_entry(kind), job.buffer_info()[0], parts, count, job, x, out, sin, cos)


@lru_cache(maxsize=256)  # all layers and all decoding steps have the same arguments
def _geometry(
    kind: str,
    rotation: Rotation,
    shape: Axes,
    table_shape: Axes,
    strides: tuple[Axes, ...],
    in_bytes: bool,
) -> tuple[int, array]:
    """The number of parts, and the numbers of a job that follow the addresses (see `_rotate_rows`).

    Shapes are checked here, because with wrong shapes a kernel would read or write the memory of others.
    """
    if not (
        len(shape) == len(table_shape)
        and all(given in (1, size) for given, size in zip(table_shape[:-1], shape))
        and rotation.first_channel + 2 * table_shape[-1] <= shape[-1]
    ):
        raise ValueError(f"rotate: tables must broadcast against x of shape {shape}; got {table_shape}")
    rows = prod(shape[:-1])
    unit, table_unit = (BYTES[kind], BYTES["float64" if kind == "float64" else "float32"]) if in_bytes else (1, 1)
    parts = min(rows, 1 + rows * shape[-1] * BYTES[kind] // BYTES_PER_PART)
    numbers = [
        *(parts, rows),
        *(rotation.read == "half", rotation.write == "half", rotation.first_channel, rotation.inverse),
        *(unit, table_unit, table_shape[-1], len(shape), *shape, *table_shape),
    ]
    return parts, array("q", [*numbers, *(stride for axes in strides for stride in axes)])


@intrinsic
def _load(context: Any, tag: Any, address: Any, index: Any) -> Any:
    """Load element `index` of the array at an address, in the dtype of the tag. 16-bit numbers become float32."""

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
    """Store element `index` of the array at an address, rounded to the dtype of the tag: to nearest, ties to even."""

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
def _copy(context: Any, tag: Any, source: Any, index: Any, target: Any, target_index: Any) -> Any:
    """Copy one element bit for bit. Conversion to float32 and back would change a signalling NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, source, index, target, target_index = arguments
        pointer = _in_memory(tag).as_pointer()
        number = builder.load(builder.gep(builder.inttoptr(source, pointer), [index]))
        builder.store(number, builder.gep(builder.inttoptr(target, pointer), [target_index]))
        return context.get_dummy_value()

    return types.void(tag, types.intp, types.intp, types.intp, types.intp), generate


def _arithmetic(tag: Any) -> Any:
    return types.float64 if tag == types.float64 else types.float32


def _in_memory(tag: Any) -> Any:
    known = {types.float64: ir.DoubleType(), types.float32: ir.FloatType(), _HALF: ir.HalfType()}
    return known.get(tag, ir.IntType(16))


@numba.njit(error_model="numpy")
def _axes(shape, table_shape, strides, unit, table_unit):
    """For each axis of rows: its size and its strides in x, y, sin and cos. Strides of x decrease."""
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
            is_broadcast = each > 1 and table_shape[axis] == 1
            axes[place, 1 + each] = 0 if is_broadcast else strides[each, axis] // (unit if each < 2 else table_unit)
        found += 1
    return axes[: max(found, 1)]


@numba.njit(error_model="numpy")
def _rotate_rows(tag, wide, job, start, stop):
    """Rotate the rows from `start` to `stop`, counted in the memory order of x.

    All pairs of a row are read before the first is written, so that y may be x. A loop compiles to vector instructions
    only if its strides are constants. So the same loop is written several times, for different strides.
    """
    x, y, sin, cos = job[1], job[2], job[3], job[4]
    read_halves, write_halves, first_channel, inverse = job[7] != 0, job[8] != 0, job[9], job[10]
    unit, table_unit, width, ndim = job[11], job[12], job[13], job[14]
    shape, table_shape = job[15 : 15 + ndim], job[15 + ndim : 15 + 2 * ndim]
    strides = job[15 + 2 * ndim : 15 + 6 * ndim].reshape(4, ndim)
    axes = _axes(shape, table_shape, strides, unit, table_unit)
    innermost = axes[-1]
    dim, x_step, y_step = shape[-1], strides[0, ndim - 1] // unit, strides[1, ndim - 1] // unit
    first = np.empty(width, dtype=np.asarray(wide).dtype)
    second = np.empty_like(first)
    sign = first.dtype.type(-1 if inverse else 1)
    end = first_channel + 2 * width
    while start < stop:
        # The offsets of the row `start`. The loop below continues along the innermost axis.
        x_row, y_row, sin_row, cos_row = 0, 0, 0, 0
        rest = start
        for axis in range(len(axes) - 1, -1, -1):
            index = rest % axes[axis, 0]
            rest //= axes[axis, 0]
            x_row += index * axes[axis, 1]
            y_row += index * axes[axis, 2]
            sin_row += index * axes[axis, 3]
            cos_row += index * axes[axis, 4]
        rows = min(innermost[0] - start % innermost[0], stop - start)
        start += rows
        for _ in range(rows):
            if x != y:
                for j in range(first_channel):
                    _copy(tag, x, x_row + j * x_step, y, y_row + j * y_step)
                for j in range(end, dim):
                    _copy(tag, x, x_row + j * x_step, y, y_row + j * y_step)
            at = x_row + first_channel * x_step
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
                partner, step = (width * x_step, x_step) if read_halves else (x_step, 2 * x_step)
                for j in range(width):
                    first[j] = _load(tag, x, at + j * step)
                    second[j] = _load(tag, x, at + partner + j * step)
            at = y_row + first_channel * y_step
            if y_step == 1 and write_halves:
                for j in range(width):
                    s, c = sign * _load(wide, sin, sin_row + j), _load(wide, cos, cos_row + j)
                    _store(tag, y, at + j, first[j] * c - second[j] * s)
                    _store(tag, y, at + width + j, second[j] * c + first[j] * s)
            elif y_step == 1:
                for j in range(width):
                    s, c = sign * _load(wide, sin, sin_row + j), _load(wide, cos, cos_row + j)
                    _store(tag, y, at + 2 * j, first[j] * c - second[j] * s)
                    _store(tag, y, at + 2 * j + 1, second[j] * c + first[j] * s)
            else:
                partner, step = (width * y_step, y_step) if write_halves else (y_step, 2 * y_step)
                for j in range(width):
                    s, c = sign * _load(wide, sin, sin_row + j), _load(wide, cos, cos_row + j)
                    _store(tag, y, at + j * step, first[j] * c - second[j] * s)
                    _store(tag, y, at + partner + j * step, second[j] * c + first[j] * s)
            x_row, y_row = x_row + innermost[1], y_row + innermost[2]
            sin_row, cos_row = sin_row + innermost[3], cos_row + innermost[4]


@cache
def _entry(kind: str) -> Any:
    """The C function that rotates arrays of one dtype, given the address of a job. Cached on disk if possible."""
    tag, wide = _TAGS[kind], np.float64(0) if kind == "float64" else np.float32(0)

    def rotate(address):
        """Rotate parts until none is left, and return how many. Several threads may call this at the same time."""
        job = numba.carray(pointer_to(address, np.int64(0)), WORDS_PER_JOB)
        parts, rows = job[5], job[6]
        done = 0
        part = fetch_and_add(address)
        while part < parts:
            _rotate_rows(tag, wide, job, rows * part // parts, rows * (part + 1) // parts)
            done += 1
            part = fetch_and_add(address)
        return done

    return compiled_entry(rotate)
