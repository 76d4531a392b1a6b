"""Angles of pairs at several positions: frequencies, the offset of positions, and the precision of their products."""

from math import inf, pi
from typing import Any, NamedTuple

import numpy as np

from rope_xp.arrays import exact_phases as exact
from rope_xp.identification.calls import ROUNDOFF, SIGNIFICANT_BITS
from rope_xp.identification.rules import rounded_to, roundings, simplest

# The precisions of a phase, in the order in which they are tried, and their unit roundoff. "exact" includes products in
# float64. Errors where bfloat16 rounds are not those of float16.
PRECISIONS = {"exact": ROUNDOFF["float64"], **{name: ROUNDOFF[name] for name in ("float32", "bfloat16", "float16")}}
# The significant bits of the precisions that do not hold all positions of a test.
COARSE_BITS = {name: SIGNIFICANT_BITS[name] for name in ("float16", "bfloat16")}

# How many angles give a frequency where sines and cosines are rounded.
SPREAD = 512
# At positions up to it, products with bfloat16 and float16 are seen to be rounded.
SMALL = 8

# An offset may turn the slowest pair this often.
TURNS = 200


class Fitted(NamedTuple):
    """Frequencies in radians per position, and the largest error of each. `start` are the angles at position 0.

    `until` is the first of the positions 1, 2, 4, 8, ... whose angles do not follow; None if all do.
    """

    values: np.ndarray
    errors: np.ndarray
    start: np.ndarray
    until: int | None


def wrapped(angle: np.ndarray) -> np.ndarray:
    """Angles between -pi and pi."""
    return (angle + pi) % (2 * pi) - pi


def powers(seq_len: int) -> np.ndarray:
    """The positions 0, 1, 2, 4, 8, ... below `seq_len`."""
    return np.array([0, *(2**k for k in range(63) if 2**k < seq_len)])


def frequencies_of(angle: np.ndarray, roundoff: float) -> Fitted:
    """The frequencies from angles "positions pairs" at the positions of `powers`.

    The angle at position 1 gives the frequency. Each doubling of the position halves its error, and its turns follow
    from the angle before.
    """
    turned = angle[0] + wrapped(angle[1] - angle[0])
    total, last, until = turned - angle[0], 1, None
    noise = 4 * roundoff
    for number, of_position in enumerate(angle[2:], 2):
        position = 2 ** (number - 1)
        rest = wrapped(of_position - angle[0] - 2 * total)
        if np.abs(rest).max() > max(0.05, 8 * noise):
            until = position
            break
        total, last = 2 * total + rest, position
    values = total / last
    errors = 2 * noise / last + 4 * ROUNDOFF["float64"] * np.abs(values)
    return Fitted(values, errors, angle[0], until)


def narrowed(known: Fitted, angle: np.ndarray, where: np.ndarray, roundoff: float) -> Fitted:
    """Frequencies with smaller errors, from angles "positions pairs" whose sines and cosines were rounded.

    Each angle gives an interval of frequencies, and the frequency is in all of them. The rounding of a sine and a
    cosine changes the tangent by a factor, so angles near a quarter of a revolution are exact.
    """
    rest = wrapped(angle - _exact_angles(where, known.values))
    phase = np.abs(where[:, None] * known.values) * roundings(known.values) * ROUNDOFF["float32"]
    rounding = roundoff * (1.0 + 4.0 * roundoff) * np.abs(np.sin(2.0 * angle)) + 8 * ROUNDOFF["float64"]
    if roundoff == ROUNDOFF["float16"]:
        rounding = rounding + 2.0**-24  # its smallest numbers
    for error in (rounding, rounding + phase, 2.0 * rounding + phase):
        ends = np.stack([rest - error, rest + error]) / where[:, None]
        least, most = ends.min(axis=0).max(axis=0), ends.max(axis=0).min(axis=0)
        if (least <= most).all():
            values = known.values + (least + most) / 2
            return known._replace(values=values, errors=(most - least) / 2 + 4 * ROUNDOFF["float64"] * np.abs(values))
    return known


def spread(longest: int) -> np.ndarray:
    """Positions from 1 to `longest`, of which half are far."""
    if longest <= SPREAD:
        return np.arange(1, longest + 1)
    near = np.geomspace(1, longest, SPREAD // 2).astype(int)
    return np.union1d(near, np.linspace(longest // 2, longest, SPREAD // 2 + 1).astype(int))


def _exact_angles(positions: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """Positions times frequencies, "positions pairs", between -pi and pi."""
    sin, cos = exact.sin_cos(positions, exact.Frequencies(tuple(map(float, frequencies))), np.dtype("float64"))
    return np.arctan2(sin, cos)


class Start(NamedTuple):
    """The angles at position 0: the offset of positions that explains them, else words for what they are."""

    offset: int | float | None
    words: str


def start_of(start: np.ndarray, frequencies: np.ndarray, errors: np.ndarray, roundoff: float) -> Start:
    """What the angles at position 0 say. A rotary embedding has none, or those of an offset."""
    close = 8 * roundoff
    if np.abs(start).max() <= close:
        return Start(0, "")
    constant = np.abs(wrapped(start - start[0])).max() <= close and len(start) > 1
    if constant and abs(abs(start[0]) - pi / 2) <= close:
        if start[0] > 0.0 and (frequencies <= errors).all():
            return Start(None, "sin and cos are swapped, so the angle is a quarter turn minus position * frequency")
        more = "more" if start[0] > 0.0 else "less"
        return Start(None, f"sin and cos are swapped, and a sign differs: each angle is a quarter turn {more}")
    offset, error = _offset(start, frequencies, errors, roundoff)
    if offset is None and constant:
        return Start(None, f"all pairs are turned by a constant angle of {start[0]:.6g}")
    if offset is None:
        return Start(None, "pairs are turned at position 0 by angles that no offset of the positions explains")
    whole, error = round(offset), max(error, 1e-6 * abs(offset))
    if abs(offset - whole) > error:
        offset, whole = simplest(abs(offset) - error, abs(offset) + error)[0] * np.sign(offset), None
    offset = float(offset) if whole is None else whole
    return Start(offset, f"positions are shifted: the angle at position p is that of p + {offset}".replace("+ -", "- "))


def _offset(
    start: np.ndarray, frequencies: np.ndarray, errors: np.ndarray, roundoff: float
) -> tuple[float | None, float]:
    """The least offset whose angles are `start`, and its error; None if there is none.

    The slowest pair gives the offset up to whole turns, of which some are tried. Faster pairs make it more exact.
    """
    order = np.argsort(np.abs(frequencies))
    order = order[np.abs(frequencies[order]) > errors[order]]
    if not len(order):
        return None, inf
    turns = np.arange(-TURNS, TURNS + 1)
    offset, error = 2 * pi * turns / frequencies[order[0]], inf
    for w, of_pair in zip(frequencies[order], start[order]):
        if 4 * roundoff / abs(w) < error:
            offset, error = offset + wrapped(of_pair - w * offset) / w, 4 * roundoff / abs(w)
    rest = np.abs(wrapped(start - offset[:, None] * frequencies))
    # Phases may be products in float32.
    allowed = errors + np.abs(frequencies) * ROUNDOFF["float32"] * roundings(frequencies)
    within = np.abs(frequencies) * error + np.abs(offset)[:, None] * allowed + 16 * roundoff
    fits = np.flatnonzero((rest <= within).all(axis=1) & (within < 1.0).all(axis=1))
    if not len(fits):
        return None, error
    # One pair alone leaves many offsets. Someone chose a whole number, and a small one.
    return float(
        min(offset[fits], key=lambda each: (abs(each - round(each)) > error * (1 + abs(each)), abs(each)))
    ), error


class Precision(NamedTuple):
    """The precision of phases, and the largest error at each position, in radians.

    `within` says at which positions errors are those of float32 at most.
    """

    name: str | None
    errors: np.ndarray
    within: np.ndarray


def precision_of(
    angle: np.ndarray,
    positions: np.ndarray,
    frequencies: np.ndarray,
    offset: float,
    errors: np.ndarray,
    roundoff: float,
) -> Precision:
    """The best precision whose error bound holds for angles "positions pairs", without those at position 0."""
    where = positions + offset
    return precision_of_errors(wrapped(angle - _exact_angles(where, frequencies)), where, frequencies, errors, roundoff)


def precision_of_errors(
    off: np.ndarray, where: np.ndarray, frequencies: np.ndarray, errors: np.ndarray, roundoff: float
) -> Precision:
    """The same, from the errors of the angles; `where` are positions with their offset."""
    signed, off = off, np.abs(off)
    known = 8 * roundoff + where[:, None] * errors
    phase = np.abs(where[:, None] * frequencies) * roundings(frequencies)
    fine = known + phase * PRECISIONS["float32"]
    within = np.all(off <= fine, axis=1)

    def holds(name: str) -> bool:
        if (off > known + phase * PRECISIONS[name]).any():
            return False
        bits = COARSE_BITS.get(name, 53)
        # Rounded products and frequencies are off from the first positions on. Else, only rounded positions are.
        is_of_positions = roundoff <= ROUNDOFF["float32"] and bool(within[np.abs(where) <= SMALL].all())
        held = rounded_to(bits, where) == where
        if name in COARSE_BITS and (
            (is_of_positions and not within[held].all())
            or _are_shifted(signed[held & ~within], frequencies, known[held & ~within])
        ):
            return False
        return not (within & _is_visible(where, bits, frequencies, fine)).any()

    return Precision(next(filter(holds, PRECISIONS), None), off.max(axis=1), within)


def _are_shifted(off: np.ndarray, frequencies: np.ndarray, close: np.ndarray) -> bool:
    """Whether errors at some position are those of a position that is a few tokens away, which no rounding gives."""
    tokens = np.array([0, *range(-SMALL, 0), *range(1, SMALL + 1)])
    rest = np.abs(wrapped(off - tokens[:, None, None] * frequencies))
    fits: Any = (rest <= close).all(axis=2)
    return bool((fits[1:].any(axis=0) & ~fits[0]).any())


def _is_visible(where: np.ndarray, bits: int, frequencies: np.ndarray, fine: np.ndarray) -> np.ndarray:
    """At which positions the rounding of the position to so many bits must be seen in an angle."""
    turned = wrapped((rounded_to(bits, where) - where)[:, None] * frequencies)
    return np.any(np.abs(turned) > 4 * fine, axis=1)
