"""What is right, by other means than the library's: complex numbers in NumPy float64, and exact angles by mpmath."""

from functools import cache
from typing import NamedTuple

import mpmath
import numpy as np

mpmath.mp.prec = 320


def rotate(x, angles, layout, inverse=False):
    """Multiply each pair of channels, as a complex number, by exp(i angle); `angles` broadcast against `x`."""
    pairs = angles.shape[-1]
    result = np.array(x, dtype=np.float64)
    one, other = np.arange(pairs), np.arange(pairs) + pairs
    if layout == "interleaved":
        one, other = 2 * one, 2 * one + 1
    turned = (result[..., one] + 1j * result[..., other]) * np.exp((-1j if inverse else 1j) * angles)
    result[..., one], result[..., other] = turned.real, turned.imag
    return result


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


def channels(pairs, layout, rotation):
    """The first and the second channel of each pair that a `Span` reads or writes in this layout."""
    pair, width = np.arange(pairs), pairs // rotation.blocks
    block = pair // width * width
    first, second = (2 * pair, 2 * pair + 1) if layout == "interleaved" else (pair + block, pair + block + width)
    return rotation.first_channel + first, rotation.first_channel + second


def rotate_pairs(x, sin, cos, rotation):
    """What a `Span` makes of `x`, and how long the pair of each channel is: 0 for channels that are not rotated."""
    x, sin, cos = (np.asarray(array, dtype=np.float64) for array in (x, sin, cos))
    result, length = x.copy(), np.zeros_like(x)
    first, second = channels(sin.shape[-1], rotation.read, rotation)
    pairs = x[..., first] + 1j * x[..., second]
    rotated = pairs * (cos - 1j * sin if rotation.inverse else cos + 1j * sin)
    first, second = channels(sin.shape[-1], rotation.write, rotation)
    result[..., first], result[..., second] = rotated.real, rotated.imag
    length[..., first] = length[..., second] = np.abs(pairs)
    return result, length
