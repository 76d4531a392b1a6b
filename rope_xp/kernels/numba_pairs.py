"""What numba compiles for pairs of channels: reading, converting, rotating, rounding and writing them.

Vector instructions are written out here. A compiler uses them by itself only in loops over memory that cannot overlap,
but the result may overwrite its input.
"""

# pyright: reportMissingImports=false, reportCallIssue=false

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from rope_xp.types import Values

# A kernel gets a number of each dtype as a tag. Integers stand for 16-bit dtypes: numba has no bfloat16 and only partly
# supports float16.
_HALF, _BFLOAT16 = types.int16, types.uint16
TAGS: Values = {
    "float32": np.float32(0),
    "bfloat16": np.uint16(0),
    "float16": np.int16(0),
    "float64": np.float64(0),
}


@intrinsic
def read(context: object, tag: object, address: object) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _load(builder, arguments[1], context.get_value_type(tag))

    return tag(tag, types.intp), generate


@intrinsic
def copy(context: object, source: object, target: object, size: object) -> Any:
    """Copy bytes. Numbers of 16 bits are not converted, because that would change a signalling NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, target, size = arguments
        pointer = ir.IntType(8).as_pointer()
        move = builder.module.declare_intrinsic("llvm.memcpy", [pointer, pointer, size.type])
        addresses = [builder.inttoptr(address, pointer) for address in (target, source)]
        builder.call(move, [*addresses, size, ir.IntType(1)(1)])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


@intrinsic(prefer_literal=True)
def rotate_pairs(
    context: Any, tag: Any, lanes: Any, reads: Any, writes: Any, x: Any, y: Any, tables: Any, j: Any, sign: Any
) -> Any:
    """Rotate `lanes` adjacent pairs, from pair `j` on. All are read before the first is written, so that y may be x."""
    # `x` and `y` have the address of a row, the step from pair to pair, and the distance of partners. With `reads` or
    # `writes`, second channels lie in this distance; else, first and second channels alternate. `tables` has the
    # addresses of sines and cosines, and their step.
    count, wide = lanes.literal_value, _IN_MEMORY[_arithmetic(tag)]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        reads, writes, *groups, j, sign = arguments[2:]
        (x, x_step, x_partner), (y, y_step, y_partner), (sin, cos, step) = [
            cgutils.unpack_tuple(builder, group) for group in groups
        ]
        x, y = builder.add(x, builder.mul(j, x_step)), builder.add(y, builder.mul(j, y_step))
        x_partner, y_partner = builder.add(x, x_partner), builder.add(y, y_partner)
        offset = builder.mul(j, step)
        sin, cos = [_load(builder, builder.add(each, offset), ir.VectorType(wide, count)) for each in (sin, cos)]
        signs = builder.insert_element(ir.Constant(sin.type, ir.Undefined), builder.sitofp(sign, wide), _INDEX(0))
        sin = builder.fmul(sin, _shuffle(builder, signs, signs, [0] * count))

        def rotate(reads_halves: bool, writes_halves: bool) -> None:
            pair = _read(builder, _IN_MEMORY[tag], count, x, x_partner if reads_halves else None)
            first, second = [_widen(builder, tag, each) for each in pair]
            rotated = builder.fsub(builder.fmul(first, cos), builder.fmul(second, sin))
            partner = builder.fadd(builder.fmul(second, cos), builder.fmul(first, sin))
            pair = _narrow(builder, tag, rotated, partner)
            _write(builder, tag, pair, y, y_partner if writes_halves else None)

        if count == 1:
            rotate(True, True)
            return context.get_dummy_value()
        with builder.if_else(reads) as branches:
            for branch, reads_halves in zip(branches, (True, False)):
                with branch, builder.if_else(writes) as inner:
                    for each, writes_halves in zip(inner, (True, False)):
                        with each:
                            rotate(reads_halves, writes_halves)
        return context.get_dummy_value()

    return types.void(tag, lanes, types.boolean, types.boolean, x, y, tables, types.intp, types.intp), generate


_INDEX = ir.IntType(32)
_IN_MEMORY = {
    types.float64: ir.DoubleType(),
    types.float32: ir.FloatType(),
    _HALF: ir.HalfType(),
    _BFLOAT16: ir.IntType(16),
}


def _arithmetic(tag: object) -> Any:
    return types.float64 if tag == types.float64 else types.float32


def _load(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=1)


def _read(builder: Any, number: Any, count: int, address: Any, partner: Any) -> list[Any]:
    """The first and the second channels of pairs, which alternate in memory if there is no address of the partner."""
    if partner is not None:
        return [_load(builder, each, ir.VectorType(number, count)) for each in (address, partner)]
    both = _load(builder, address, ir.VectorType(number, 2 * count))
    return [_shuffle(builder, both, both, range(start, 2 * count, 2)) for start in (0, 1)]


def _write(builder: Any, tag: Any, pair: list[Any], address: Any, partner: Any) -> None:
    count = pair[0].type.count
    if partner is not None:
        for each, its in zip(pair, (address, partner)):
            _store(builder, each, its)
    elif tag == _BFLOAT16:  # words of a pair each, on the little-endian machines that numba supports
        words = ir.VectorType(ir.IntType(32), count)
        one, other = [builder.zext(each, words) for each in pair]
        _store(builder, builder.or_(one, builder.shl(other, _all(words, 16))), address)
    else:
        alternating = [lane // 2 + count * (lane % 2) for lane in range(2 * count)]
        _store(builder, _shuffle(builder, *pair, alternating), address)


def _shuffle(builder: Any, one: Any, other: Any, lanes: Sequence[int]) -> Any:
    """The numbers of two vectors that these lanes name. The lanes of the second vector follow those of the first."""
    return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(_INDEX, len(lanes)), list(lanes)))


def _widen(builder: Any, tag: Any, numbers: Any) -> Any:
    """Numbers in the dtype of arithmetic: those of 16 bits become float32."""
    floats = ir.VectorType(ir.FloatType(), numbers.type.count)
    if tag == _HALF:
        return builder.fpext(numbers, floats)
    if tag == _BFLOAT16:
        words = ir.VectorType(ir.IntType(32), numbers.type.count)
        return builder.bitcast(builder.shl(builder.zext(numbers, words), _all(words, 16)), floats)
    return numbers


def _narrow(builder: Any, tag: Any, *pair: Any) -> list[Any]:
    """Results of arithmetic, rounded to the dtype of the tag: to nearest, ties to even."""
    count = pair[0].type.count
    if tag == _HALF:
        return [builder.fptrunc(numbers, ir.VectorType(ir.HalfType(), count)) for numbers in pair]
    if tag == _BFLOAT16:
        # The bits of a NaN cannot be rounded. If one channel of a rotated pair is NaN, the other is NaN or infinite.
        # Both are right without rounding, because arithmetic gives no signalling NaN.
        is_nan = builder.fcmp_unordered("uno", *pair)
        return [_round_bits(builder, numbers, is_nan) for numbers in pair]
    return list(pair)


def _round_bits(builder: Any, numbers: Any, is_nan: Any) -> Any:
    """The bits of float32 numbers rounded to bfloat16. Where `is_nan`, they are cut off instead."""
    words = ir.VectorType(ir.IntType(32), numbers.type.count)
    bits = builder.bitcast(numbers, words)
    last = builder.and_(builder.lshr(bits, _all(words, 16)), _all(words, 1))
    rounded = builder.add(bits, builder.add(last, _all(words, 0x7FFF)))
    bits = builder.lshr(builder.select(is_nan, bits, rounded), _all(words, 16))
    return builder.trunc(bits, ir.VectorType(ir.IntType(16), numbers.type.count))


def _all(words: Any, number: int) -> Any:
    return ir.Constant(words, [number] * words.count)
