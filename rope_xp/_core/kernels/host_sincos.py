"""Float32 tables on the host: short float64 tables of two digits of the position, joined by adding angles.

A row is the sum of two angles, of the multiple of 256 below a position and of what is left, whatever rows are beside
it: sines and cosines of both are exact to float64, and one rounding to float32 comes last. The short tables are in a
core's cache, so that a long table costs no more than its memory.
"""

from typing import Any

import numpy as np

from rope_xp._core import phases

_BITS = 8
_ROWS_OF_BLOCK = 256


def sin_cos(positions: Any, frequencies: phases.Frequencies) -> tuple[Any, Any]:
    """`phases.sin_cos` in float32 of positions of NumPy and frequencies "pairs", given as floats.

    Parameters
    ----------
    positions : array, "*batch seq"
    frequencies : Frequencies

    Returns
    -------
    (array, array), "*batch seq pairs"
    """
    tokens, fractions = _whole_and_rest(positions.reshape(-1))
    high, low = tokens >> _BITS, tokens & ((1 << _BITS) - 1)
    highs, row_of_high = _shared(high)
    lows, row_of_low = _shared(low)
    sines, cosines = phases.sin_cos(np.concatenate([highs << _BITS, lows]), frequencies, np.float64)
    short = cosines + 1j * sines
    of_highs, of_lows = short[: len(highs)], short[len(highs) :]

    sin, cos = (np.empty((len(tokens), frequencies.pairs), dtype=np.float32) for _ in range(2))
    turned, further = np.empty((2, min(_ROWS_OF_BLOCK, len(tokens)), frequencies.pairs), dtype=np.complex128)
    for start in range(0, len(tokens), _ROWS_OF_BLOCK):
        block = slice(start, start + _ROWS_OF_BLOCK)
        rows = slice(len(sin[block]))
        np.take(of_highs, row_of_high[block], axis=0, out=turned[rows], mode="clip")
        np.take(of_lows, row_of_low[block], axis=0, out=further[rows], mode="clip")
        product: Any = np.multiply(turned[rows], further[rows], out=turned[rows])
        if fractions is not None:  # of half a token at most: no angle that float64 could not hold
            angles = fractions[block, None] * np.asarray(frequencies.inv_freq)
            further.real[rows], further.imag[rows] = np.cos(angles), np.sin(angles)
            product *= further[rows]
        sin[block], cos[block] = product.imag, product.real
    shape = (*positions.shape, frequencies.pairs)
    return sin.reshape(shape), cos.reshape(shape)


def _whole_and_rest(numbers: Any) -> tuple[Any, Any]:
    """Integers, and what is left of real numbers; NaN where they are too large, as in `phases`. None of integers."""
    if numbers.dtype.kind != "f":
        return numbers, None
    known = np.abs(numbers) < (2.0**31 if numbers.itemsize == 4 else 2.0**63)
    whole = np.rint(np.where(known, numbers, 0.0))
    return whole.astype(np.int64), np.where(known, numbers - whole, np.nan).astype(np.float64)


def _shared(digits: Any) -> tuple[Any, Any]:
    """Numbers without, if they lie close together, their repetitions, and the place of each digit among them."""
    if len(digits) > 1:
        least, most = int(digits.min()), int(digits.max())
        if most - least < len(digits):
            return np.arange(least, most + 1, dtype=digits.dtype), digits - least
    return digits, np.arange(len(digits))
