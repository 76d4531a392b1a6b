"""The frequencies of an embedding, from a base or given, and the lengths for which it was trained and extended."""

from math import inf, isclose
from typing import Any, NamedTuple

import numpy as np

from rope_xp.arrays import checks, libraries
from rope_xp.arrays.exact_phases import LIMIT, Frequencies
from rope_xp.errors import wrong_type, wrong_value
from rope_xp.frequencies import DynamicNTKScaling, LinearScaling, LongRopeScaling, Scaling, YarnScaling
from rope_xp.layouts import require_pairs
from rope_xp.sections import Sections
from rope_xp.types import Embedding


def checked_frequencies(
    base: object,
    inv_freq: object,
    span: tuple[int, int, int | None],
    scaling: Scaling | None,
    sections: Sections | None,
    reverse: bool,
) -> tuple[float | None, Frequencies]:
    """The checked base, and the frequencies that follow from it or were given. If both are given, they must agree."""
    _, _, rotary_dim = span
    base = None if base is None else checks.at_least("base", base, 1.0)
    expected = None
    if base is not None and rotary_dim is not None:
        expected = _progression(base, rotary_dim, scaling, sections, reverse)
    if inv_freq is None:
        if expected is None:
            raise wrong_value("base or inv_freq must be given; got neither")
        return base, Frequencies(expected)
    frequencies = Frequencies(_check_frequencies(inv_freq))
    require_pairs(frequencies.pairs, *span)
    if base is None and (scaling is not None or sections is not None or reverse):
        raise wrong_value("scaling, sections and reverse must be given with a base; got inv_freq alone")
    if base is not None and not (frequencies.are_floats and frequencies.inv_freq == expected):
        raise wrong_value(
            f"base, scaling and sections must not contradict inv_freq (None computes it from them, and base=None, "
            f"scaling=None and sections=None leave them out); got base={base}"
        )
    return base, frequencies


@libraries.host_constant
def _progression(
    base: float, rotary_dim: int, scaling: Scaling | None, sections: Sections | None, reverse: bool
) -> tuple[float, ...] | tuple[tuple[float, ...], ...]:
    """The frequencies that follow from a base, "pairs" or "axes pairs"."""
    rule = Scaling() if scaling is None else scaling
    sign = -1.0 if reverse else 1.0
    if sections is None:
        return tuple(sign * w for w in frequencies_of_rule(rule, base, rotary_dim))
    if 2 * sections.pairs != rotary_dim:
        raise wrong_value(
            f"sections must have rotary_dim / 2 = {rotary_dim // 2} pairs; got {sections.pairs}, {sections.sizes}"
        )
    columns = sections.columns()
    progressions = {width: frequencies_of_rule(rule, base, width) for width in {column.width for column in columns}}
    return tuple(
        tuple(sign * progressions[c.width][c.index] if c.axis == axis else 0.0 for c in columns)
        for axis in range(sections.axes)
    )


def frequencies_of_rule(rule: Scaling, base: float, rotary_dim: int) -> tuple[float, ...]:
    try:
        frequencies = rule.frequencies(base, rotary_dim)
    except (OverflowError, ZeroDivisionError):
        frequencies = (inf,)
    if not all(abs(w) < LIMIT for w in frequencies):
        raise wrong_value(f"scaling must give frequencies below {LIMIT:g} radians per position; got {rule}")
    return frequencies


def _check_frequencies(inv_freq: Any) -> Any:
    """An array of a library other than NumPy, or nested tuples of floats without a single position axis."""
    if libraries.namespace(inv_freq) is not None:
        checks.floating("inv_freq", inv_freq, ("float32", "float64"))
        if not 1 <= inv_freq.ndim <= 3 or 0 in inv_freq.shape:
            raise wrong_value(
                f"inv_freq must be a non-empty (pairs), (axes, pairs) or (axes, heads, pairs); "
                f"got shape {checks.shape(inv_freq)}"
            )
        if not libraries.is_host(inv_freq):
            return inv_freq
        inv_freq = inv_freq.tolist()
    numbers = _nested_floats(inv_freq, inv_freq)
    rows = numbers if isinstance(numbers[0], tuple) else (numbers,)
    heads = [head for row in rows for head in (row if isinstance(row[0], tuple) else (row,))]
    lengths = {len(row) for row in rows}, {len(head) for head in heads}, {type(row[0]) for row in rows}
    if any(len(each) > 1 for each in lengths):
        raise wrong_value(f"inv_freq must have equally many frequencies for each axis and head; got {inv_freq!r}")
    return rows[0] if len(rows) == 1 and isinstance(rows[0][0], float) else numbers


def _nested_floats(numbers: object, given: object, depth: int = 0) -> Any:
    """Nested sequences as tuples of floats. There must be at least one number, and all must have the same depth."""
    if isinstance(numbers, (tuple, list)) and depth < 3:
        nested = tuple(_nested_floats(number, given, depth + 1) for number in numbers)
        if not nested or len({isinstance(each, tuple) for each in nested}) > 1:
            raise wrong_value(f"inv_freq must hold at least one number, all at the same depth; got {given!r}")
        return nested
    if not depth or not (isinstance(numbers, (float, np.floating)) or checks.is_int(numbers)):
        raise wrong_type(f"inv_freq must be a sequence of floats or an array; got {given!r}")
    try:
        number = float(numbers)  # pyright: ignore[reportArgumentType]
    except OverflowError:  # an int beyond float64
        number = inf
    if not abs(number) < LIMIT:
        raise wrong_value(f"inv_freq must be below {LIMIT:g} radians per position; got {given!r}")
    return number


class Lengths(NamedTuple):
    """Lengths in tokens; None where nothing states them."""

    trained: int | None
    extended: int | None

    @property
    def longest(self) -> int | None:
        return max((length for length in self if length is not None), default=None)


def lengths_of(rope: Embedding, trained_length: int | None = None) -> Lengths:
    """The trained length, which is that before scaling, and the extended one."""
    scaling, stated = rope.scaling, rope._provenance.max_position_embeddings
    trained, extended = stated, stated  # as without scaling
    if isinstance(scaling, DynamicNTKScaling):
        trained, extended = scaling.max_position_embeddings, scaling.seq_len
        extended = extended if extended is not None and extended > trained else None
    elif hasattr(scaling, "original_max_position_embeddings"):
        trained, factor = scaling.original_max_position_embeddings, getattr(scaling, "factor", None)
        by_factor = None if factor is None else whole(factor * trained)
        if stated is None or stated <= trained:
            extended = by_factor
        elif isinstance(scaling, YarnScaling) and by_factor is not None:
            extended = max(stated, by_factor)  # its factor is the ratio of the lengths (section 3.1)
    elif rope.base is None or getattr(scaling, "factor", 1.0) != 1.0:
        # The config does not say which of the two its length is. Given frequencies may be scaled, too.
        trained = rope._provenance.trained_length
    if trained_length is not None:
        trained = checks.length("trained_length", trained_length)
        if scaling is None and (rope.base is not None or extended is None):
            extended = trained
        elif isinstance(scaling, LinearScaling) and (extended is None or extended <= trained):
            extended = whole(scaling.factor * trained)
        elif extended is not None and extended <= trained:
            extended = None
    return Lengths(trained, extended)


def whole(tokens: float) -> int:
    return round(min(tokens, 2.0**63))  # extreme factors give infinite ones


def is_scaled(rope: Embedding) -> bool:
    """Whether a scaling rule changes a frequency of a pair that is rotated, at some length."""
    if rope.scaling is None:
        return False
    if isinstance(rope.scaling, LongRopeScaling):
        return any(divisor != 1.0 for divisor in (*rope.scaling.short_factor, *rope.scaling.long_factor))
    # Dynamic NTK does not at the lengths of training. Other rules stop pairs only, or change the attention factor only.
    sizes = zip(rope._frequencies.sizes(), rope.replace(scaling=None)._frequencies.sizes())
    return any(w and not isclose(w, unscaled, rel_tol=1e-9) for w, unscaled in sizes)
