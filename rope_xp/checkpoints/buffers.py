"""Read the frequencies that old checkpoints have as a buffer, and find the base that they follow from."""

import struct
from math import exp, inf, log
from typing import NamedTuple

from rope_xp.checkpoints.safetensors_file import Tensor
from rope_xp.configs.readers.files import opened

MAX_PAIRS = 2**14
# By dtype: the format of `struct`, and the error of a frequency, relative and absolute. A float32 frequency is the
# power of a rounded exponent, and is wrong by at most 32 units in the last place. Small float16 numbers are subnormal.
DTYPES = {
    "F64": ("d", 2.0**-19, 0.0),
    "F32": ("f", 2.0**-19, 0.0),
    "F16": ("e", 2.0**-10, 2.0**-25),
    "BF16": ("f", 2.0**-8, 0.0),
}


class Buffer(NamedTuple):
    inv_freq: tuple[float, ...]  # in radians per token
    relative: float  # the error of its dtype
    absolute: float
    base: float | None  # from which these frequencies follow

    def first_difference(self, expected: tuple[float, ...]) -> int | None:
        """The first pair whose frequency differs by more than the error, or the end of the shorter one, or None."""
        for pair, (found, wanted) in enumerate(zip(self.inv_freq, expected)):
            if abs(found - wanted) > self.relative * wanted + self.absolute:
                return pair
        lengths = len(self.inv_freq), len(expected)
        return None if lengths[0] == lengths[1] else min(lengths)


def read_frequencies(tensor: Tensor) -> Buffer | None:
    """The frequencies in a buffer; None if it has another shape or dtype, or values that are not positive."""
    if len(tensor.shape) != 1 or not 1 <= tensor.shape[0] <= MAX_PAIRS or tensor.dtype not in DTYPES:
        return None
    code, relative, absolute = DTYPES[tensor.dtype]
    with opened(tensor.path) as file:
        file.seek(tensor.start)
        data = file.read(tensor.length)
    if tensor.dtype == "BF16":  # the upper half of a float32
        data = b"".join(b"\0\0" + data[at : at + 2] for at in range(0, len(data), 2))
    values = struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data)
    if len(values) != tensor.shape[0] or not all(0.0 <= value < inf for value in values) or values[0] == 0.0:
        return None
    return Buffer(values, relative, absolute, _base(values, relative, absolute))


def _base(values: tuple[float, ...], relative: float, absolute: float) -> float | None:
    """The base with the fewest digits whose powers are these frequencies, or None."""
    pairs, last = len(values), values[-1]
    if pairs < 2 or not 0.0 < last < 1.0:
        return None
    found = [(pair, -log(value)) for pair, value in enumerate(values) if pair and value > 64 * absolute]
    weight = sum(pair * pair for pair, _ in found)
    if not weight:
        return None
    fitted = exp(min(pairs * sum(pair * minus_log for pair, minus_log in found) / weight, 700.0))  # least squares
    for digits in range(7):
        base = float(f"{fitted:.{digits}e}")
        expected = tuple(base ** (-pair / pairs) for pair in range(pairs))
        if Buffer(values, relative, absolute, None).first_difference(expected) is None:
            return base
    return None
