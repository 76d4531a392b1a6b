"""Float32 tables on the host, made from two short float64 tables by the addition of angles.

A position is the sum of a multiple of 256 and a remainder. The angles of these two are added. Sines and cosines are
computed in float64 and rounded to float32 once, at the end. A row does not depend on the other rows of the table. The
short tables fit into the cache of a core, so that the time for a long table is the time to write it.
"""

from typing import Any

import numpy as np

from rope_xp._core import phases

_BITS = 8
_ROWS_OF_BLOCK = 256


def sin_cos(positions: Any, frequencies: phases.Frequencies) -> tuple[Any, Any]:
    """`phases.sin_cos` in float32, for NumPy positions and frequencies given as floats.

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
    high, low = tokens >> _BITS, tokens & ((1 << _BITS) - 1)
    highs, row_of_high = _distinct(high)
    lows, row_of_low = _distinct(low)
    sines, cosines = phases.sin_cos(np.concatenate([highs << _BITS, lows]), frequencies, np.float64)
    short = cosines + 1j * sines
    high_table, low_table = short[: len(highs)], short[len(highs) :]

    sin, cos = (np.empty((len(tokens), frequencies.pairs), dtype=np.float32) for _ in range(2))
    rotations, factors = np.empty((2, min(_ROWS_OF_BLOCK, len(tokens)), frequencies.pairs), dtype=np.complex128)
    for start in range(0, len(tokens), _ROWS_OF_BLOCK):
        block = slice(start, start + _ROWS_OF_BLOCK)
        rows = slice(len(sin[block]))
        np.take(high_table, row_of_high[block], axis=0, out=rotations[rows], mode="clip")
        np.take(low_table, row_of_low[block], axis=0, out=factors[rows], mode="clip")
        product: Any = np.multiply(rotations[rows], factors[rows], out=rotations[rows])
        if fractions is not None:  # at most half a token, so that float64 angles are exact enough
            angles = fractions[block, None] * np.asarray(frequencies.inv_freq)
            factors.real[rows], factors.imag[rows] = np.cos(angles), np.sin(angles)
            product *= factors[rows]
        sin[block], cos[block] = product.imag, product.real
    shape = (*positions.shape, frequencies.pairs)
    return sin.reshape(shape), cos.reshape(shape)


def integers_and_fractions(numbers: Any) -> tuple[Any, Any]:
    """The nearest integers, and the remainders: None for integers, and NaN for numbers too large for `phases`."""
    if numbers.dtype.kind != "f":
        return numbers, None
    known = np.abs(numbers) < (2.0**31 if numbers.itemsize == 4 else 2.0**63)
    whole = np.rint(np.where(known, numbers, 0.0))
    return whole.astype(np.int64), np.where(known, numbers - whole, np.nan).astype(np.float64)


def _distinct(digits: Any) -> tuple[Any, Any]:
    """Numbers that include all digits, and the index of each digit in these numbers.

    The numbers are the range from the smallest digit to the largest, or the digits themselves if that is shorter.
    """
    if len(digits) > 1:
        least, most = int(digits.min()), int(digits.max())
        if most - least < len(digits):
            return np.arange(least, most + 1, dtype=digits.dtype), digits - least
    return digits, np.arange(len(digits))
