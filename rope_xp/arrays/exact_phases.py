"""Exact phases: `position * frequency` as a fraction of a revolution, in integers, and its sine and cosine.

Only the fraction of a revolution matters. Frequencies are integers in units of ``2**-64`` revolutions (``2**-96`` at 64
bits), and products wrap at whole revolutions: they are exact and equal everywhere, and no compiler can reorder them. A
float32 product is wrong by up to `position * 2**-24` radians. `bits` is the width of the integers: 32 are enough for
32-bit positions and float32 tables, so no device needs float64 or int64.
"""

from math import factorial, pi
from typing import Any, NamedTuple

from rope_xp.arrays import libraries
from rope_xp.arrays.signature import is_torch_compiling
from rope_xp.types import Array

# Frequencies must be below this, in radians per position.
LIMIT = 2.0**16

# floor(2**256 / (2 pi)). For frequencies below LIMIT its error is less than 2**-239 revolutions; 96 bits are kept.
_PER_RADIAN = 0x28BE60DB9391054A7F09D5F47D4D377036D8A5664F10E4107F9458EAF7AEF158
_PER_RADIAN_BITS = 256
# Of frequencies in base 256, the most digits after the point that are read.
_DIGITS = 15


def _taylor(first: int, terms: int, leading: float) -> tuple[float, ...]:
    """Coefficients of every second power of u in sin(pi/2 u) or cos(pi/2 u), the first one less the `leading` part."""
    powers = range(first, first + 2 * terms, 2)
    coefficients = [(-1) ** (power // 2) * (pi / 2) ** power / factorial(power) for power in powers]
    return coefficients[0] - leading, *coefficients[1:]


# By width of phase, without 3/2 u and 1 - 5/4 u**2. For |u| <= 1/2 the first omitted term is below 2e-9 at 32 bits and
# below 2e-18 at 64 bits.
_TERMS = {32: 5, 64: 9}
SINE = {bits: _taylor(1, terms, 1.5) for bits, terms in _TERMS.items()}
COSINE = {bits: _taylor(2, terms, -1.25) for bits, terms in _TERMS.items()}


class Revolutions(NamedTuple):
    """Frequencies: `whole` revolutions, and a fraction in words of 32, 16 and 16 bits, or of 64, none and 32."""

    whole: Any
    high: Any
    middle: Any
    low: Any


class Frequencies:
    """Frequencies in radians per position, "(axes) (heads) pairs": floats, or an array, converted at each use."""

    def __init__(self, inv_freq: Any):
        self.inv_freq = inv_freq
        self.are_floats = isinstance(inv_freq, tuple)
        shape = _shape(inv_freq) if self.are_floats else tuple(inv_freq.shape)
        self.pairs = shape[-1]
        self.axes = shape[0] if len(shape) > 1 else 1
        self.heads = shape[1] if len(shape) > 2 else None
        self.is_single_row = self.are_floats and len(shape) == 1
        self.axis_of_pair: tuple[int, ...] | None = None
        row_shape = shape[1:] if len(shape) > 1 else shape
        rows = inv_freq if self.are_floats and len(shape) > 1 else (inv_freq,) * self.axes
        if self.are_floats and self.axes > 1 and self.heads is None:
            columns = list(zip(*rows))
            self.axis_of_pair = _axis_of_pair(columns)
            if self.axis_of_pair is not None:
                rows = (tuple(column[axis] for column, axis in zip(columns, self.axis_of_pair)),)
        self.rows = tuple(Row(row, row_shape, axis) for axis, row in enumerate(rows))

    def rows_of(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """The axes of tables before pairs, for positions of this shape. None unless each pair follows one axis."""
        if self.axis_of_pair is not None and shape[:1] == (self.axes,):
            return shape[1:]
        return shape if self.is_single_row else None

    def axes_like(self, positions: Any) -> Any:
        xp = libraries.namespace(positions)  # some libraries accept only int64 indices
        integer = xp.int64 if libraries.has_64_bits(positions) else xp.int32
        return libraries.constant(self, self.axis_of_pair, like=positions, dtype=integer)

    def sizes(self) -> list[float]:
        return [abs(w) for row in self.rows for w in row.inv_freq]

    def of_each_pair(self) -> list[float]:
        """The size of each pair's frequency; none for learned arrays, several heads, or pairs on several axes."""
        has_one_each = self.heads is None and (self.axes == 1 or self.axis_of_pair is not None)
        return self.sizes() if self.are_floats and has_one_each else []

    def terms(self, positions: Any) -> list[tuple[Any, "Row"]]:
        """Pairs of positions and frequencies that broadcast. The angle is the sum of their products."""
        xp = libraries.namespace(positions)
        if self.axis_of_pair is not None:
            of_each_pair = xp.take(positions, self.axes_like(positions), axis=0)
            return [(xp.permute_dims(of_each_pair, (*range(1, positions.ndim), 0)), self.rows[0])]
        of_each_axis = [positions] if self.axes == 1 else [positions[axis, ...] for axis in range(self.axes)]
        new_axes = (..., None) if self.heads is None else (..., None, None)
        return [(of_axis[new_axes], row) for of_axis, row in zip(of_each_axis, self.rows)]


def _axis_of_pair(columns: list[tuple[float, ...]]) -> tuple[int, ...] | None:
    """The position axis that each pair follows; None if a pair follows several axes."""
    if any(sum(frequency != 0.0 for frequency in column) > 1 for column in columns):
        return None
    return tuple(max(range(len(column)), key=lambda axis: abs(column[axis])) for column in columns)


class Row:
    """Frequencies of one position axis, "pairs" or "heads pairs": floats, or one row of an array."""

    def __init__(self, inv_freq: Any, shape: tuple[int, ...], axis: int):
        self.are_floats = isinstance(inv_freq, tuple)
        self.shape = shape
        self._inv_freq: Any = inv_freq
        self._axis = axis
        self._words: dict[int, tuple[tuple[int, ...], ...]] = {}
        if self.are_floats:
            self._inv_freq = tuple(w for head in inv_freq for w in head) if len(shape) > 1 else inv_freq

    @property
    def inv_freq(self) -> Any:
        """All frequencies as one flat row. An array is read at each use, because it may have changed in place."""
        if self.are_floats or self._inv_freq.ndim == 1:
            return self._inv_freq
        return libraries.namespace(self._inv_freq).reshape(self._inv_freq[self._axis, ...], (-1,))

    def revolutions(self, bits: int, *, like: object) -> Revolutions:
        """The frequencies as integers that broadcast against `like`."""
        if self.are_floats:
            xp = libraries.namespace(like)
            dtype = xp.int32 if bits == 32 else xp.int64
            words = libraries.constant(self, self.words(bits), like=like, dtype=dtype)
            return Revolutions(*(self.broadcast_to_rank(words[row, :], like) for row in range(4)))
        return Revolutions(*(self.broadcast_to_rank(word, like) for word in _revolutions_of_array(self.inv_freq, bits)))

    def words(self, bits: int) -> tuple[tuple[int, ...], ...]:
        """The rows of `Revolutions` as numbers. The frequencies must be floats."""
        kept = {} if is_torch_compiling() else self._words
        return kept.get(bits) or kept.setdefault(bits, _revolutions_of_floats(self._inv_freq, bits))

    def values(self, *, like: object, dtype: object) -> Any:
        if self.are_floats:
            return self.broadcast_to_rank(libraries.constant(self, self.inv_freq, like=like, dtype=dtype), like)
        return self.broadcast_to_rank(libraries.astype(self.inv_freq, dtype), like)

    def broadcast_to_rank(self, row: Any, like: Any) -> Any:
        """A row with as many axes as `like`: a user of JAX may have switched off rank promotion."""
        return libraries.namespace(row).reshape(row, (*[1] * (like.ndim - len(self.shape)), *self.shape))


def exact_tables(positions: Array, frequencies: Frequencies, dtype: object) -> tuple[Any, Any]:
    """Sine and cosine, without derivatives, of the sum over axes of `positions * frequencies`."""
    # Positions are integers, float32 below ``2**31`` or float64 below ``2**63``; beyond, and for NaN, the result is
    # NaN.
    xp = libraries.namespace(positions)
    in_float64 = libraries.dtype_name(dtype) == "float64"
    wide = in_float64 or libraries.dtype_name(positions.dtype) in ("int64", "float64")
    bits = 64 if wide else 32
    terms = frequencies.terms(positions)
    phase, rest = _phase_and_rest(*terms[0], bits, dtype)
    for columns, row in terms[1:]:
        next_phase, next_rest = _phase_and_rest(columns, row, bits, dtype)
        phase = phase + next_phase
        rest = None if next_rest is None else next_rest + rest  # all rows have one, or none has
    if wide and not in_float64:
        phase, bits = libraries.astype(phase >> 32, xp.int32), 32
    return _sin_cos_of_phase(xp, phase, rest, bits, dtype)


def difference(positions: Any, origin: int, dtype: Any) -> Any:
    """``positions - origin`` in a float dtype, for an int32 origin. The error is at most two roundings."""
    # Integers are halved before they are subtracted, so that the difference cannot overflow; remainders are added as
    # floats.
    if libraries.is_real(positions):
        if libraries.dtype_name(positions.dtype) != "float64":
            positions = libraries.astype(positions, dtype)
        upper = (origin >> 16) << 16
        return libraries.astype(positions - float(upper) - float(origin - upper), dtype)
    # Not `>>`, which DTensors of torch 2.13 ignore.
    half = libraries.astype(positions // 2 - origin // 2, dtype)
    return 2.0 * half + libraries.astype((positions & 1) - (origin & 1), dtype)


def _phase_and_rest(positions: Array, row: Row, bits: int, dtype: object) -> tuple[Any, Any]:
    """One product: its phase in units of ``2**-bits`` revolutions, and the rest in revolutions (None for zero)."""
    xp = libraries.namespace(positions)
    round_off = libraries.dtype_name(dtype) != "float64"
    revolutions = row.revolutions(bits, like=positions)
    rest = None
    if not row.are_floats:
        rest = row.broadcast_to_rank(_zero_or_nan(row.inv_freq, LIMIT, dtype), positions)
    if libraries.is_real(positions):
        whole, part, remainder = _split(xp, libraries.astype(positions, xp.float64 if bits == 64 else xp.float32), bits)
        phase = _phase(whole, revolutions, bits, round_off=round_off) + _phase_of_part(part, revolutions, bits)
        remainder = libraries.astype(remainder * _approximate(revolutions, bits, remainder.dtype), dtype)
        return phase, remainder if rest is None else remainder + rest
    positions = libraries.astype(positions, xp.int64 if bits == 64 else xp.int32)
    return _phase(positions, revolutions, bits, round_off=round_off), rest


def _phase(positions: Any, revolutions: Revolutions, bits: int, *, round_off: bool) -> Any:
    """``floor(positions * fraction)`` modulo one revolution, in units of ``2**-bits`` revolutions."""
    # With `round_off`, a 64-bit product of a 32-bit position uses only the first 64 bits of the frequency. Its upper
    # half is then equal to the 32-bit product, bit for bit.
    if bits == 64:
        upper = ((positions >> 31) + 1) >> 1  # the multiple of 2**32 nearest to the position; 0 for all of int32
        phase = positions * revolutions.high + upper * revolutions.low
        return phase if round_off else phase + (((positions - (upper << 32)) * revolutions.low) >> 32)
    upper, lower = positions >> 16, positions & 0xFFFF
    # Long multiplication of two digits by two, 16 bits each. Products wrap. Those of `lower` are unsigned, so their
    # right shifts are masked. The carry is the sum of the three low halves.
    lower_middle, upper_low, lower_low = lower * revolutions.middle, upper * revolutions.low, lower * revolutions.low
    carry = (lower_middle & 0xFFFF) + (upper_low & 0xFFFF) + ((lower_low >> 16) & 0xFFFF)
    middle = ((lower_middle >> 16) & 0xFFFF) + (upper_low >> 16) + (carry >> 16)
    return positions * revolutions.high + upper * revolutions.middle + middle


def _split(xp: Any, positions: Array, bits: int) -> tuple[Any, Any, Any]:
    """Real positions as the sum of an integer, an integer multiple of ``2**(1 - bits)``, and a small remainder."""
    limit = 2.0 ** (bits - 1)
    integer = xp.int32 if bits == 32 else xp.int64
    numbers = xp.where(xp.abs(positions) < limit, positions, xp.zeros_like(positions))
    whole = xp.round(numbers)
    scaled = (numbers - whole) * limit
    part = xp.round(scaled)
    rest = (scaled - part) / limit + _zero_or_nan(positions, limit, positions.dtype)
    return libraries.astype(whole, integer), libraries.astype(part, integer), rest


def _zero_or_nan(x: Any, limit: float, dtype: Any) -> Any:
    xp = libraries.namespace(x)
    # NaN is a constant here: a computed NaN triggers NaN detectors even in elements that `where` does not select.
    zero, nan = (libraries.filled(number, x.ndim, like=x, dtype=dtype) for number in (0.0, float("nan")))
    return xp.where(xp.abs(x) < limit, zero, nan)


def _phase_of_part(part: Any, revolutions: Revolutions, bits: int) -> Any:
    """The phase of `part` times the frequency. `part` is a fraction of a position in units of ``2**(1 - bits)``."""
    half = bits // 2
    low_half = (1 << half) - 1
    fraction = _first_bits(revolutions, bits)
    upper, lower = part >> half, part & low_half
    high, low = fraction >> half, fraction & low_half
    return (
        2 * part * revolutions.whole + 4 * upper * high + ((upper * low) >> (half - 2)) + ((lower * high) >> (half - 2))
    )


def _first_bits(revolutions: Revolutions, bits: int) -> Any:
    """The first ``bits - 1`` bits of the fraction of the frequency, as a non-negative integer."""
    return (revolutions.high >> 1) & ((1 << (bits - 1)) - 1)


def _approximate(revolutions: Revolutions, bits: int, dtype: object) -> Any:
    """The frequency in revolutions per position as a float."""
    fraction = libraries.astype(_first_bits(revolutions, bits), dtype)
    return libraries.astype(revolutions.whole, dtype) + fraction * 2.0 ** (1 - bits)


def _sin_cos_of_phase(xp: Any, phase: Any, rest: Any, bits: int, dtype: Any) -> tuple[Any, Any]:
    """Sine and cosine of `phase` (in ``2**-bits``) plus `rest`, in revolutions. The error at 32 bits is 5e-8."""
    # u is the angle from the nearest multiple of 90 degrees, in units of 90 degrees. It is split into a number of few
    # bits, `short`, and a remainder. Products of `short` with the leading coefficients 3/2 and 5/4 are exact, with or
    # without fused multiply-add. All are made from `phase` in few steps, because compilers repeat steps for each use.
    step, unit = bits - 13, 2.0 ** (2 - bits)
    quarter, offset = (phase + (1 << (bits - 3))) >> (bits - 2), (phase << 2) >> 2
    short = libraries.astype((offset + (1 << (step - 1))) >> step, dtype) * 2.0**-11
    remainder = libraries.astype((phase << 13) >> 13, dtype) * unit
    u = libraries.astype(offset, dtype) * unit
    if rest is not None:
        remainder = remainder + 4.0 * rest
        u = short + remainder
    square = u * u
    sine = 1.5 * short + (1.5 * remainder + u * _polynomial(SINE[bits], square))
    tail = square * _polynomial(COSINE[bits], square)
    cosine = (1.0 - 1.25 * (short * short)) + (tail - 1.25 * (remainder * (u + short)))

    odd = (quarter & 1) == 1
    sin, cos = xp.where(odd, cosine, sine), xp.where(odd, sine, cosine)
    return sin * libraries.astype(1 - (quarter & 2), dtype), cos * libraries.astype(1 - ((quarter + 1) & 2), dtype)


def _polynomial(coefficients: tuple[float, ...], x: Any) -> Any:
    result = coefficients[-1] * x + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        result = result * x + coefficient
    return result


def _shape(nested: object) -> tuple[int, ...]:
    return (len(nested), *_shape(nested[0])) if isinstance(nested, tuple) else ()


@libraries.host_constant
def _revolutions_of_floats(inv_freq: tuple[float, ...], bits: int) -> tuple[tuple[int, ...], ...]:
    """Convert floats, exactly, to the rows of `Revolutions`.

    Examples
    --------
    >>> whole, high, middle, low = _revolutions_of_floats((pi / 2,), 32)
    >>> whole, round(high[0] / 2**32, 9)  # a quarter of a revolution per position
    ((0,), 0.25)
    """
    parts = []  # in units of 2**-96 revolutions
    for frequency in inv_freq:
        numerator, denominator = frequency.as_integer_ratio()
        parts.append((numerator * _PER_RADIAN << 96) // denominator >> _PER_RADIAN_BITS)
    if bits == 32:
        words = [(p >> 96, p >> 64, (p >> 48) & 0xFFFF, (p >> 32) & 0xFFFF) for p in parts]
    else:
        words = [(p >> 96, p >> 32, 0, p & 0xFFFFFFFF) for p in parts]
    half = 1 << bits - 1  # signed words
    return tuple(tuple((word + half) % (2 * half) - half for word in row) for row in zip(*words))


def _revolutions_of_array(inv_freq: Any, bits: int) -> Revolutions:
    """Convert floats on their device, exactly: by powers of two, floor, and sums of byte products below ``2**31``."""
    xp = libraries.namespace(inv_freq)
    integer = xp.int32 if bits == 32 else xp.int64
    # `_phase_and_rest` makes the results of all other frequencies NaN.
    inv_freq = xp.where(xp.abs(inv_freq) < LIMIT, inv_freq, xp.zeros_like(inv_freq))
    count = 11 if bits == 32 else _DIGITS  # bytes after the point: those of the words, and three more for the carry
    scales = tuple(256.0**place for place in range(-1, _DIGITS))
    scales = libraries.constant(_per_radian_matrix, scales, like=inv_freq, dtype=inv_freq.dtype)
    scaled = xp.abs(inv_freq)[..., None] * scales[None, : count + 1]
    # In base 256. The first digit is the coefficient of 256.
    digits = libraries.astype(xp.floor(scaled) - 256.0 * xp.floor(scaled * 2.0**-8), xp.int32)
    matrix = libraries.constant(_per_radian_matrix, _per_radian_matrix(), like=inv_freq, dtype=xp.int32)
    products = xp.sum(digits[..., None] * matrix[None, : count + 1, : count + 2], axis=-2)
    products = libraries.astype(products, xp.int32)  # not every library can sum to a given dtype
    # The sign is applied before the carry, so that negative frequencies become two's complement.
    products = xp.where(inv_freq[..., None] < 0.0, -products, products)

    carry = xp.zeros_like(products[..., 0])
    columns = []
    for column in reversed(range(count + 2)):
        total = products[..., column] + carry
        columns.insert(0, libraries.astype(total & 0xFF, integer))
        carry = total >> 8
    whole = _join([libraries.astype(carry, integer), *columns[:2]])
    fraction = columns[2:]
    if bits == 32:
        return Revolutions(whole, _join(fraction[:4]), _join(fraction[4:6]), _join(fraction[6:8]))
    return Revolutions(whole, _join(fraction[:8]), xp.zeros_like(whole), _join(fraction[8:12]))


@libraries.host_constant
def _per_radian_matrix() -> tuple[tuple[int, ...], ...]:
    """The matrix that multiplies base-256 digits by 1 / (2 pi): row r holds its bytes, shifted r bytes to the right."""
    per_radian = _PER_RADIAN.to_bytes(_PER_RADIAN_BITS // 8, "big")
    return tuple((0,) * (row + 1) + tuple(per_radian[: _DIGITS + 1 - row]) for row in range(_DIGITS + 1))


def _join(digits: list[Any]) -> Any:
    number = digits[0]
    for digit in digits[1:]:
        number = (number << 8) | digit
    return number
