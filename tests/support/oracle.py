"""What is right, by other means than the library's: complex numbers in NumPy float64, and exact angles by mpmath."""

from functools import cache
from typing import NamedTuple

import mpmath
import numpy as np

mpmath.mp.prec = 320


def rotate(x, angles, layout, inverse=False):
    """Rotate the first pairs of channels by these angles, which broadcast against `x`."""
    return rotate_pairs(x, np.sin(angles), np.cos(angles), Span(layout, layout, inverse=inverse))


def sin_cos(positions, frequencies):
    """Sine and cosine of every position times every frequency, each the float64 nearest to the truth."""
    return sin_cos_of_axes([np.asarray(positions).tolist()], [list(frequencies)])


def sin_cos_of_axes(positions, frequencies):
    """The same for positions "axes n" and frequencies "axes pairs", whose products are summed over the axes."""
    places, weights = list(zip(*np.asarray(positions).tolist())), list(zip(*frequencies))
    rows = [[_sin_cos(place, weight) for weight in weights] for place in places]
    sin, cos = np.moveaxis(np.array(rows, dtype=np.float64).reshape(len(rows), len(weights), 2), -1, 0)
    return sin, cos


@cache
def _sin_cos(place, weight):
    cos, sin = mpmath.cos_sin(sum(mpmath.mpf(p) * w for p, w in zip(place, weight)))
    return float(sin), float(cos)


def geometric(base, dim):
    """The default frequencies as exact as mpmath has them."""
    return [mpmath.mpf(base) ** (mpmath.mpf(-2 * j) / dim) for j in range(dim // 2)]


class Span(NamedTuple):
    """Which channels are rotated: how their pairs are read and written, from which channel on, in how many blocks."""

    read: str
    write: str
    first_channel: int = 0
    blocks: int = 1
    inverse: bool = False

    def inverted(self):
        return self._replace(read=self.write, write=self.read, inverse=not self.inverse)


def rotate_pairs(x, sin, cos, span):
    """What a `Span` makes of `x`."""
    x, sin, cos = (np.asarray(array, dtype=np.float64) for array in (x, sin, cos))
    pairs = sin.shape[-1]
    tables = (table.reshape(*table.shape[:-1], span.blocks, pairs // span.blocks) for table in (cos, sin))
    turn = _complex(*tables)
    rotated = _complex(*channels(x, pairs, span.read, span)) * (turn.conj() if span.inverse else turn)
    result = np.array(x, order="C")
    first, second = channels(result, pairs, span.write, span)
    first[...], second[...] = rotated.real, rotated.imag
    return result


def lengths(x, pairs, span):
    """How long the pair of each channel of a result is: 0 for channels that are not rotated."""
    first, second = channels(np.asarray(x, dtype=np.float64), pairs, span.read, span)
    result = np.zeros(np.shape(x))
    for each in channels(result, pairs, span.write, span):
        each[...] = np.hypot(first, second)
    return result


def _complex(real, imaginary):
    numbers = np.empty(np.broadcast_shapes(real.shape, imaginary.shape), dtype=complex)
    numbers.real, numbers.imag = real, imaginary
    return numbers


def channels(x, pairs, layout, span):
    """The first and the second channel of each pair in this layout, as views "... blocks pairs" of `x`."""
    part, lead = x[..., span.first_channel :][..., : 2 * pairs], (*x.shape[:-1], span.blocks)
    if layout == "interleaved":
        return np.moveaxis(part.reshape(*lead, pairs // span.blocks, 2), -1, 0)
    return np.moveaxis(part.reshape(*lead, 2, pairs // span.blocks), -2, 0)
