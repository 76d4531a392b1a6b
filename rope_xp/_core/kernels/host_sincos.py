"""Float32 tables on the host, made from short float64 tables by the addition of angles.

The absolute value of a position is written in base 256. For each place there is a table of the angles of all digits. It
depends on the frequencies alone, so it is kept. The angle of a position is the sum of the angles of its digits. Sines
and cosines are rounded to float32 once, at the end. A row does not depend on the other rows of the table: adding the
angle of the digit 0 changes no bit, and no operation of this module is fused.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rope_xp._core import backends, phases
from rope_xp._core.backends import memory

_BITS = 8
_LARGEST_DIGIT = (1 << _BITS) - 1
_NUMBERS_PER_BLOCK = 2**12  # float64 arrays of this size stay in the first cache of a core


class Program(NamedTuple):
    """The tables of integer positions, times `scale`."""

    frequencies: phases.Frequencies
    scale: float

    def run(self, positions: Any, like: Any) -> tuple[Any, Any]:
        """Sine and cosine, in the library of the positions."""
        is_host = isinstance(positions, np.ndarray)
        sin, cos = sin_cos(positions if is_host else positions.numpy(), self.frequencies)
        if self.scale != 1.0:
            sin, cos = sin * self.scale, cos * self.scale
        return (sin, cos) if is_host else (memory.from_numpy(sin, positions), memory.from_numpy(cos, positions))


def prepare(positions: Any, frequencies: phases.Frequencies, scale: float) -> Program | None:
    """The program for positions like these; None unless they are integers, and all pairs follow one position axis."""
    is_integer = backends.dtype_name(positions.dtype) in ("int32", "int64") and memory.is_native(positions)
    return Program(frequencies, scale) if is_integer and frequencies.is_single_row else None


def sin_cos(positions: Any, frequencies: phases.Frequencies) -> tuple[Any, Any]:
    """The same as `phases.sin_cos` in float32, for NumPy positions and frequencies given as floats.

    Parameters
    ----------
    positions : array, "*batch seq"
    frequencies : Frequencies
        On one axis, "pairs", in radians per position.

    Returns
    -------
    (array, array), "*batch seq pairs"
        Sine and cosine, float32.
    """
    tokens, fractions = integers_and_fractions(positions.reshape(-1))
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
    shape = (*positions.shape, frequencies.pairs)
    return sin.reshape(shape), cos.reshape(shape)


def integers_and_fractions(numbers: Any) -> tuple[Any, Any]:
    """The nearest integers, and the remainders: None for integers, and NaN for numbers too large for `phases`."""
    if numbers.dtype.kind != "f":
        return numbers, None
    known = np.abs(numbers) < (2.0**31 if numbers.itemsize == 4 else 2.0**63)
    whole = np.rint(np.where(known, numbers, 0.0))
    return whole.astype(np.int64), np.where(known, numbers - whole, np.nan).astype(np.float64)


def _angles(numbers: Any, inv_freq: tuple[float, ...], place: int) -> Any:
    """Sine and cosine of unsigned numbers whose last digit is at this place, "2 numbers pairs"."""
    low_table = _digit_angles(inv_freq, place)
    if numbers.max(initial=0) <= _LARGEST_DIGIT:
        return np.take(low_table, numbers.astype(np.intp), axis=1)
    highs, row_of_high = _numbers_and_indices(numbers >> _BITS)
    high_table = _angles(highs, inv_freq, place + 1)
    lows = (numbers & _LARGEST_DIGIT).astype(np.intp)
    return np.stack(_added(np.take(high_table, row_of_high, axis=1), np.take(low_table, lows, axis=1)))


def _added(angles: Any, others: Any) -> tuple[Any, Any]:
    """Sine and cosine of the sums of angles that are given by sine and cosine."""
    (sin, cos), (sin_of_other, cos_of_other) = angles, others
    return sin * cos_of_other + cos * sin_of_other, cos * cos_of_other - sin * sin_of_other


@lru_cache(maxsize=32)  # 256 kB each for 64 pairs
def _digit_angles(inv_freq: tuple[float, ...], place: int) -> Any:
    """Sine and cosine of all digits at a place, "2 digits pairs".

    The angles are computed for negative positions, because the last place of 64 bits has no positive ``2**63``.
    """
    positions = -(np.arange(_LARGEST_DIGIT + 1, dtype=np.int64) << (_BITS * place))
    sin, cos = phases.sin_cos(positions, phases.Frequencies(inv_freq), np.float64)
    table = np.stack([0.0 - sin, cos])
    table.flags.writeable = False
    return table


def _numbers_and_indices(numbers: Any) -> tuple[Any, Any]:
    """The numbers for which angles are computed, and the index of each given number among them.

    They are the range from the smallest to the largest number, or the numbers themselves if that is shorter.
    """
    if len(numbers) > 1:
        least, most = int(numbers.min()), int(numbers.max())
        if most - least < len(numbers):
            return np.arange(least, most + 1, dtype=numbers.dtype), (numbers - least).astype(np.intp)
    return numbers, np.arange(len(numbers))
