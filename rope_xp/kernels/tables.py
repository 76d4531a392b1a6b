"""Float32 tables on the host: for integer positions, short float64 tables of two digits, joined by adding angles.

A row is the sum of two angles, of the multiple of 256 below a position and of what is left, whatever rows are beside
it: sines and cosines of both are exact to float64, and one rounding to float32 comes last. The short tables are in a
core's cache, so that a long table costs no more than its memory.
"""

from typing import Any

import numpy as np

from rope_xp import phases

_BITS = 8
_ROWS_OF_BLOCK = 256


def sin_cos(positions: Any, frequencies: phases.Frequencies) -> tuple[Any, Any]:
    """`phases.sin_cos` in float32 of positions of NumPy and frequencies "pairs", given as floats.

    Parameters
    ----------
    positions : array, "*batch seq"
        Integers.
    frequencies : Frequencies

    Returns
    -------
    (array, array), "*batch seq pairs"
    """
    tokens = positions.reshape(-1)
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
        sin[block], cos[block] = product.imag, product.real
    shape = (*positions.shape, frequencies.pairs)
    return sin.reshape(shape), cos.reshape(shape)


def _shared(digits: Any) -> tuple[Any, Any]:
    """Numbers without, if they lie close together, their repetitions, and the place of each digit among them."""
    if len(digits) > 1:
        least, most = int(digits.min()), int(digits.max())
        if most - least < len(digits):
            return np.arange(least, most + 1, dtype=digits.dtype), digits - least
    return digits, np.arange(len(digits))
