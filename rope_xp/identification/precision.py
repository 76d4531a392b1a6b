"""How exact numbers and phases are: roundings of dtypes, and the precision of phases; for tables see `search.py`."""

from collections.abc import Iterable
from math import pi
from typing import NamedTuple

import numpy as np

from rope_xp.arrays import exact_phases

# The unit roundoff of each dtype: half the distance from 1 to the next number.
SIGNIFICANT_BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
ROUNDOFF = {name: 2.0**-bits for name, bits in SIGNIFICANT_BITS.items()}
# The precisions of a phase, in the order in which they are tried, and their unit roundoff. "exact" includes products in
# float64. The bounds of bfloat16 hold for float16, too.
PRECISIONS = {"exact": ROUNDOFF["float64"], **{name: ROUNDOFF[name] for name in ("float32", "float16", "bfloat16")}}
# The significant bits of the precisions that do not hold all positions of a test.
COARSE_BITS = {name: SIGNIFICANT_BITS[name] for name in ("float16", "bfloat16")}
# Results with this unit roundoff, or a greater one, say little about the precision of phases: their own noise is as
# large. Sines and cosines with it give frequencies at many positions only.
COARSE = ROUNDOFF["float16"]
# What errors of phases have besides, in units of roundoff per token. Angles say frequencies up to whole turns: those
# that a function multiplies may be as large as 1024. float16 has no frequencies between multiples of 2**-24.
BESIDES = {"exact": 5.0 * 1024.0, "float16": 2.0**-14}
# At positions up to it, products with bfloat16 and float16 are seen to be rounded.
SMALL = 8


def rounded_to(bits: int, values: np.ndarray) -> np.ndarray:
    fraction, exponent = np.frexp(values)
    return np.ldexp(np.round(fraction * 2**bits) / 2**bits, exponent)


def in_dtype(name: str, frequencies: np.ndarray) -> np.ndarray:
    # The smallest numbers of float16 are 2**-24 apart.
    are_small = np.abs(frequencies) < (2.0**-14 if name == "float16" else 0.0)
    rounded = rounded_to(SIGNIFICANT_BITS[name], frequencies)
    return np.where(are_small, np.round(frequencies * 2.0**24) / 2.0**24, rounded)


def are_numbers_of(dtype: str, values: np.ndarray, close: np.ndarray) -> bool:
    return bool((np.abs(in_dtype(dtype, values) - values) <= close).all())


def roundings(frequencies: np.ndarray) -> np.ndarray:
    """How many units of roundoff a product of position and frequency may be off."""
    # Position, frequency and product are rounded. An exponent such as -j * log(base), if it is rounded, has an error
    # that grows with it.
    return 5.0 + 3.0 * np.abs(np.log(np.maximum(np.abs(frequencies), 1e-30)))


def errors_of_phases(frequencies: np.ndarray, precision: str) -> np.ndarray:
    """How far a phase of this precision may be off, in radians per position."""
    return (np.abs(frequencies) * roundings(frequencies) + BESIDES.get(precision, 0.0)) * PRECISIONS[precision]


def roundings_of_frequencies(values: np.ndarray, errors: np.ndarray, is_coarse: bool) -> list[np.ndarray]:
    """How far measured frequencies may be off, relative to them: as exact numbers, then as rounded ones."""
    # They may be rounded to another dtype if all have so few bits. A coarse measurement cannot tell for float32.
    found, close = [ROUNDOFF["float64"] * roundings(values)], errors + 4 * ROUNDOFF["float64"] * values
    if is_coarse or (np.abs(rounded_to(24, values) - values) <= close).all():
        found.append(ROUNDOFF["float32"] * roundings(values))
    # float16 holds the numbers of bfloat16 too, but between small ones it has none.
    for name, least in (("bfloat16", 0.0), ("float16", 2.0**-25)):
        rounding, off = np.maximum(ROUNDOFF[name] * values, least), np.abs(in_dtype(name, values) - values)
        if (off <= close).all() and (close < rounding)[values > 0.0].all():
            return [*found, rounding / np.maximum(values, 2.0**-25)]
    return found


def roundoff_of(numbers: np.ndarray) -> float:
    """The unit roundoff of the narrowest dtype that holds all numbers."""
    return max(
        ROUNDOFF[name] for name, bits in SIGNIFICANT_BITS.items() if (rounded_to(bits, numbers) == numbers).all()
    )


def noise(roundoff: float) -> float:
    """How far two results of the same numbers may be apart, relative to the largest, for their unit roundoff."""
    return 8 * roundoff + 64 * min(roundoff, ROUNDOFF["float32"])


def error_of(roundoff: float) -> float:
    """How far the length of a rotated pair, relative to it, and its angle may be off."""
    return 4 * roundoff


def wrapped(angle: np.ndarray) -> np.ndarray:
    return (angle + pi) % (2 * pi) - pi


def within_half_a_turn(frequencies: np.ndarray) -> np.ndarray:
    """Frequencies without the whole turns per token, which act at no whole position and make products less exact."""
    fast = np.abs(frequencies) > pi
    if not fast.any():
        return frequencies
    row = exact_phases.Frequencies(tuple(frequencies[fast].tolist())).rows[0]
    slower = frequencies.copy()
    slower[fast] = 2 * pi * 2.0**-64 * np.array(row.words(64)[1], dtype=np.float64)
    return slower


def exact_angles(positions: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    exact = exact_phases.Frequencies(tuple(map(float, frequencies)))
    sin, cos = exact_phases.exact_tables(positions, exact, np.dtype("float64"))
    return np.arctan2(sin, cos)


class Precision(NamedTuple):
    """The precision of phases, and the largest error at each position, in radians."""

    name: str | None
    errors: np.ndarray
    within: np.ndarray  # whether errors at a position are those of float32 at most
    of_positions: bool  # whether only the rounding of positions is seen

    def is_finer_than(self, name: str) -> bool:
        finest = [*PRECISIONS]
        return self.name in finest[: finest.index(name)]


def precision_of(
    off: np.ndarray, where: np.ndarray, frequencies: np.ndarray, errors: np.ndarray, roundoff: float, given: np.ndarray
) -> Precision:
    """The best precision whose bound holds for errors "positions pairs" of angles. The numbers `given` are rounded."""
    # These are `where`, the positions of the angles, or what they were before an offset was added.
    signed, off, size = off, np.abs(off), np.maximum(np.abs(where), np.abs(given))[:, None]
    known = 2 * error_of(roundoff) + size * errors
    fine = known + size * errors_of_phases(frequencies, "float32")
    within = np.all(off <= fine, axis=1)

    def holds(name: str) -> bool:
        if (off > known + size * errors_of_phases(frequencies, name)).any():
            return False
        bits = COARSE_BITS.get(name, 53)
        # Rounded products and frequencies are off from the first positions on. Else, only rounded positions are.
        is_of_positions = roundoff <= ROUNDOFF["float32"] and bool(within[np.abs(given) <= SMALL].all())
        held = rounded_to(bits, given) == given
        if name in COARSE_BITS and (
            (is_of_positions and not within[held].all())
            or _are_shifted(signed[held & ~within], frequencies, known[held & ~within])
        ):
            return False
        return not (within & _is_visible(given, bits, frequencies, fine)).any()

    name = next(filter(holds, PRECISIONS), None)
    if name == "float16" and holds("bfloat16"):  # at few positions, the bound of float16 holds for both
        name = rounding_of(COARSE_BITS, signed, given, frequencies)
    rounded = rounded_to(COARSE_BITS.get(name or "", 53), given)
    rest = np.abs(wrapped(signed - (rounded - given)[:, None] * frequencies))
    return Precision(name, off.max(axis=1), within, name in COARSE_BITS and bool((rest <= fine).all()))


def rounding_of(names: Iterable[str], off: np.ndarray, where: np.ndarray, frequencies: np.ndarray) -> str:
    """The dtype whose roundings of positions and frequencies, of products, or of all three are most like the errors."""
    exact = where[:, None] * frequencies

    def unlike(name: str) -> float:
        product = in_dtype(name, where)[:, None] * in_dtype(name, frequencies)
        angles = (product, in_dtype(name, exact), in_dtype(name, product))
        return min(float(np.abs(wrapped(off - (each - exact))).mean()) for each in angles)

    return min(names, key=unlike)


def _are_shifted(off: np.ndarray, frequencies: np.ndarray, close: np.ndarray) -> bool:
    """Whether errors at some position are those of a position that is a few tokens away, which no rounding gives."""
    tokens = np.arange(-SMALL, SMALL + 1)
    rest = np.abs(wrapped(off - tokens[:, None, None] * frequencies))
    fits = np.all(rest <= close, axis=2)
    return bool((fits.any(axis=0) & ~fits[SMALL]).any())


def _is_visible(where: np.ndarray, bits: int, frequencies: np.ndarray, fine: np.ndarray) -> np.ndarray:
    """At which positions the rounding of the position to so many bits must be seen in an angle."""
    turned = wrapped((rounded_to(bits, where) - where)[:, None] * frequencies)
    return np.any(np.abs(turned) > 4 * fine, axis=1)
