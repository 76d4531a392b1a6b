"""The `RotaryEmbedding` that has measured pairs, frequencies and magnitude."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from itertools import permutations, product
from math import exp, inf, log
from typing import NamedTuple

import numpy as np

from rope_xp.embedding import RotaryEmbedding
from rope_xp.frequencies import ORIGINAL, LinearScaling, NTKScaling, Scaling
from rope_xp.identification.behaviour import frequencies_of, replaced
from rope_xp.identification.pairs import Channels, PairAngles, Place, places_of
from rope_xp.identification.precision import (
    COARSE,
    COARSE_BITS,
    ROUNDOFF,
    Precision,
    are_numbers_of,
    errors_of_phases,
    in_dtype,
    roundings,
    roundings_of_frequencies,
)
from rope_xp.identification.rules import Rule, Target, changed_rule_of, digits_of, rule_of, simplest, simplest_within
from rope_xp.modules import with_frequencies
from rope_xp.sections import ORDERS, Column, Sections
from rope_xp.types import Array, Embedding, Values

# Numbers of scaling rules that act by their ratio to the original length.
RATIOS = ("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow")


class Measured(NamedTuple):
    """What calls of a function showed: its pairs, their angles and frequencies, and the factor of their lengths."""

    channels: Channels
    angles: PairAngles
    of_axes: np.ndarray  # the frequencies "axes pairs" of each position axis, whose sums are those of `angles`
    magnitude: float
    magnitude_error: float
    precision: Precision  # of phases with the measured frequencies

    @property
    def direction(self) -> int | None:  # None if the frequencies have both signs
        known = self.angles.frequencies
        signs = {*np.sign(known.values[np.abs(known.values) > known.errors]).astype(int).tolist()}
        return signs.pop() if len(signs) == 1 else None

    @property
    def is_coarse(self) -> bool:
        # Phases are rounded, or sines and cosines so much that this cannot be told.
        return self.precision.name != "exact" or self.angles.roundoff >= COARSE

    def target(self, values: np.ndarray, errors: np.ndarray) -> Target:
        return Target(np.abs(values), errors, self.magnitude, self.magnitude_error, self.is_coarse)


class Value(NamedTuple):
    """An embedding, and the place of the measured pairs in it."""

    rope: RotaryEmbedding
    place: Place
    change: Rule | None = None  # the rule of its frequencies, if a function changes a rule as no embedding states it

    @property
    def frequencies(self) -> np.ndarray:  # of the measured pairs, where all position axes are equal
        return frequencies_of(self.rope)[:, 0].sum(axis=0)[self.place.numbers]


def value_of(measured: Measured, near: Embedding | None) -> tuple[Value | None, Precision]:
    """The value where all position axes are equal, and the precision of phases with it; without one, as measured."""
    # Beside another value, it is that with the fewest changes of it. Without one, for one position axis, any value is.
    value, known = None if near is None else _nearest_value(near, measured), measured.angles.frequencies
    if value is not None and measured.precision.name == "exact":
        off, close = np.abs(known.values - value.frequencies), 2 * ROUNDOFF["float32"] * np.abs(known.values)
        are_rounded = are_numbers_of("float32", known.values, known.errors) or (off <= known.errors + close).all()
        value = value if are_rounded else None  # which is near the numbers
    may_be_any = near is None or len(measured.of_axes) == 1
    if value is None and may_be_any:
        value = _simplest_value(measured)
        if value is not None and near is not None:
            value = value._replace(rope=_in_terms_of(near, value.rope))
    precision = _precision_of(value, measured)
    if value is not None and may_be_any and precision.name is None and measured.precision.name is not None:
        value, precision = value_of_numbers(measured), measured.precision  # only numbers have one
    if near is not None and precision.name in COARSE_BITS:  # which may hide that frequencies are those of `near`
        wide = known._replace(errors=known.errors + errors_of_phases(known.values, precision.name))
        value = _nearest_value(near, measured._replace(angles=measured.angles._replace(frequencies=wide))) or value
    return value, precision


def _precision_of(value: Value | None, measured: Measured) -> Precision:
    if value is None:
        return measured.precision
    errors = measured.angles.frequencies.errors
    if value.rope.base is not None:  # a rule is as far from the frequencies as they are from angles, or exact
        errors = errors * (0.0 if measured.is_coarse else 2.0)
    precision = measured.angles.precision_with(value.frequencies, errors)
    if precision.name in COARSE_BITS and measured.precision.is_finer_than(precision.name):  # only frequencies are
        known = measured.angles.frequencies
        for name in COARSE_BITS:
            if (np.abs(in_dtype(name, value.frequencies) - known.values) <= known.errors).all():
                return precision._replace(name=name)
    return precision


def differs_in_sections(near: Embedding, measured: Measured) -> bool:
    """Whether the frequencies are those of a value near another one where all position axes are equal."""
    given = {"inv_freq": frequencies_of(near)[:, 0].sum(axis=0).tolist()}
    of_text = near.replace(**({"sections": None} if near.base is not None else given))
    return _nearest_value(of_text, measured._replace(of_axes=measured.of_axes.sum(axis=0)[None])) is not None


def _simplest_value(measured: Measured) -> Value | None:
    """The value whose rule has the fewest digits; else, numbers; None if no layout has these pairs."""
    found = min(_rules(measured, rule_of), key=lambda each: each[0].digits, default=None)
    if found is None:
        changed = next(_rules(measured, changed_rule_of), None)
        if changed is None:
            return value_of_numbers(measured)
        rule, place = changed
        inv_freq = np.asarray(rule.frequencies(place.rotary_dim)) * measured.direction
        return _with_numbers(place, inv_freq.tolist(), measured, rule)
    rule, place = found
    rope = RotaryEmbedding(**place.options, base=rule.base, scaling=rule.scaling, reverse=measured.direction == -1)
    if abs((rope.attention_factor or 1.0) - measured.magnitude) > 2 * measured.magnitude_error:  # both may be rounded
        if rule.scaling is not None:
            return _with_numbers(place, rope.inv_freq, measured, rule)
        rope = rope.replace(attention_factor=simplest_within(measured.magnitude, measured.magnitude_error))
    return Value(rope, place)


def _rules(measured: Measured, find: Callable[[Target], Rule | None]) -> Iterator[tuple[Rule, Place]]:
    known = measured.angles.frequencies
    for place in places_of(measured.channels, measured.magnitude) if measured.direction is not None else ():
        rule = find(measured.target(place.of_all_pairs(known.values), place.of_all_pairs(known.errors)))
        if rule is not None:
            yield rule, place


def value_of_numbers(measured: Measured) -> Value | None:
    """The value with the frequencies as measured, in the first of all layouts that have these pairs."""
    known = measured.angles.frequencies
    for place in places_of(measured.channels, measured.magnitude):
        numbers = [
            0.0 if abs(w) <= error else float(np.sign(w)) * simplest_within(abs(w), error)
            for w, error in zip(place.of_all_pairs(known.values), place.of_all_pairs(known.errors))
        ]
        return _with_numbers(place, numbers, measured)
    return None


def _nearest_value(near: Embedding, measured: Measured) -> Value | None:
    for place in places_of(measured.channels, measured.magnitude):
        wanted, errors = (place.of_all_pairs(each) for each in (measured.of_axes, measured.angles.frequencies.errors))
        rope = nearest(near, place.options, wanted, errors)
        if rope is not None:
            return Value(rope, place)
    return None


def nearest(near: Embedding, options: Values, wanted: np.ndarray, errors: np.ndarray) -> RotaryEmbedding | None:
    """The first value near another one that has these channels and the frequencies "axes pairs"; None without one."""
    # They may be rounded to float32, or all to bfloat16 or float16. Exact ones come first, after the value without
    # changes.
    exact, rounded = (ROUNDOFF[name] * roundings(wanted) for name in ("float64", "float32"))
    for name in ("bfloat16", "float16"):
        if are_numbers_of(name, wanted, errors):
            rounded = rounded + ROUNDOFF[name]
            break
    found, options = [], {**options, "attention_factor": None, "xpos": None}
    for changes in _changes_of(near, options, wanted, reverse=bool((wanted <= errors).all())):
        rope = replaced(near, **options, **changes)
        frequencies = None if rope is None else frequencies_of(rope)[:, 0]
        if frequencies is not None and frequencies.shape == wanted.shape:
            off = np.abs(frequencies - wanted) - errors
            if (off <= (exact if found else rounded) * np.abs(wanted)).all():
                return rope
            found.append((rope, off))
    return next((rope for rope, off in found if (off <= rounded * np.abs(wanted)).all()), None)


def _in_terms_of(near: Embedding, rope: RotaryEmbedding) -> RotaryEmbedding:
    """The same value with the original length of another one, if fewer numbers differ then: only ratios act."""
    other, scaling = near.scaling, rope.scaling
    names = [name for name in RATIOS if hasattr(scaling, name)]
    length = getattr(other, ORIGINAL, None)
    if scaling is None or type(scaling) is not type(other) or not length:
        return rope
    times = length / getattr(scaling, ORIGINAL)
    options = [(getattr(other, name), float(f"{times * getattr(scaling, name):.12g}")) for name in names]
    found = [rope]
    for numbers in product(*options):
        with suppress(ValueError):  # the numbers do not fit together
            same = rope.replace(scaling=replace(scaling, **{ORIGINAL: length}, **dict(zip(names, numbers))))
            found += [same] * np.allclose(frequencies_of(same), frequencies_of(rope), rtol=1e-9, atol=0.0)
    return min(
        found, key=lambda each: sum(getattr(each.scaling, k.name) != getattr(other, k.name) for k in fields(other))
    )


def _changes_of(near: Embedding, options: Values, wanted: np.ndarray, reverse: bool) -> Iterator[Values]:
    """What to change of a value beside its channels: nothing, its base, its rule, or both."""
    width = options["rotary_dim"]
    if near.base is None:
        rows = frequencies_of(near)[:, 0]
        yield from ({"inv_freq": (sign * rows).tolist()} for sign in (1.0, -1.0))
        return
    of_axes = () if near.sections is None else _sections_of(np.abs(wanted).argmax(axis=0).tolist(), near.axes)
    for sections in dict.fromkeys((near.sections, *of_axes)):
        same = {"reverse": reverse, "sections": sections}
        yield same
        yield {**same, "scaling": None}
        fastest = np.abs(wanted).max(axis=0)
        if isinstance(near.scaling, NTKScaling) and fastest[-1] > 0.0:
            # A changed base gives every factor of the last pair: one of few digits is meant.
            factor = _round_numbers_near(near.base ** (2.0 / width - 1.0) / float(fastest[-1]))[0]
            if factor >= 1.0 and digits_of(factor) <= 2:
                yield {**same, "scaling": NTKScaling(factor=factor)}
        if (near.scaling is None or isinstance(near.scaling, LinearScaling)) and 0.0 < fastest[0] < 0.99:
            for factor in _round_numbers_near(1.0 / float(fastest[0])):
                yield {**same, "scaling": LinearScaling(factor=factor)}
        for scaling in dict.fromkeys((near.scaling, None)):
            # The last pair gives the base with the least error. The second is one that rules leave as it is.
            for pair in (-1, 1) if width > 2 else ():
                column = Column(0, pair, width) if sections is None else sections.columns()[pair]
                found = inf
                with suppress(ValueError):  # the rule is for another number of pairs
                    found = _base_with(scaling, column, float(fastest[pair]))
                for base in _round_numbers_near(found, 5e-3) if found < 1e15 else ():
                    yield {**same, "scaling": scaling, "base": base}


def _sections_of(axis_of_pair: list[int], axes: int) -> Iterator[Sections]:
    """All sections in which each pair follows this position axis, the usual order of axes first."""
    for order, axis_of_section in product(ORDERS, (None, *permutations(range(axes)))):
        sizes = [axis_of_pair.count(axis) for axis in axis_of_section or range(axes)]
        with suppress(ValueError):  # the sizes do not fit this order
            sections = Sections(sizes, order, axis_of_section)
            if sections.axis_of_pair == (*axis_of_pair,):
                yield sections


def _base_with(scaling: Scaling | None, column: Column, wanted: float) -> float:
    rule = scaling or Scaling()
    low, high = 1e-6, log(1e15)  # YaRN needs a base above 1
    for _ in range(60):
        middle = (low + high) / 2
        found = rule.frequencies(exp(middle), column.width)[column.index]
        low, high = (middle, high) if found > wanted else (low, middle)
    return exp(low)


def _round_numbers_near(number: float, *farther: float) -> tuple[float, ...]:
    """A positive number: the roundest ones that are near, relative to it, and itself."""
    rounded = [simplest(number * (1 - each), number * (1 + each))[0] for each in (*farther, 2e-5, 1e-9)]
    return tuple(dict.fromkeys([*rounded, number]))


def with_axes(value: Value, measured: Measured) -> RotaryEmbedding | None:
    """The embedding of several position axes: with sections, or with numbers; None if axes do not add up."""
    rope: Embedding = value.rope
    if len(measured.of_axes) == 1:
        return value.rope
    inv_freq, rows = np.asarray(rope.inv_freq), value.place.of_all_pairs(measured.of_axes)
    if not np.allclose(rows.sum(axis=0), inv_freq, rtol=1e-4, atol=1e-9):
        return None
    alone = np.count_nonzero(rows, axis=0) == 1
    rows = np.where((rows != 0.0) & alone, inv_freq, rows)  # a pair of one axis: its number has been rounded
    if alone.all():
        axis_of_pair, w = np.argmax(rows != 0.0, axis=0), np.abs(rows).max(axis=0)
        errors = value.place.of_all_pairs(2 * measured.angles.frequencies.errors)  # those of the numbers
        of = measured.target(w, errors)
        allowed = errors + w * roundings_of_frequencies(w, errors, measured.is_coarse)[:2][-1]
        # The axis with the most pairs says most about the base.
        based = _with_base(rope, rows, of, axis_of_pair == np.bincount(axis_of_pair).argmax())
        for sections in _sections_of(axis_of_pair.tolist(), len(rows)):
            found = replaced(based, sections=sections)
            if found is not None and (np.abs(np.asarray(found.inv_freq) - rows) <= allowed).all():
                return found
    return with_frequencies(value.rope, rows.tolist())


def _with_base(rope: Embedding, rows: np.ndarray, of: Target, own: np.ndarray) -> Embedding | None:
    if rope.base is not None:
        return rope
    rule = rule_of(of._replace(values=of.values[own], errors=of.errors[own]))
    if rule is None:
        return None
    reverse = bool((rows <= 0.0).all())
    return replaced(rope, inv_freq=None, base=rule.base, scaling=rule.scaling, reverse=reverse)


def rule_in_any_order(measured: Measured) -> Rule | None:
    """The rule of the frequencies, fastest first, of pairs that no layout has."""
    known = measured.angles.frequencies
    order = np.argsort(-np.abs(known.values))
    return rule_of(measured.target(known.values[order], known.errors[order]))


def _with_numbers(
    place: Place, inv_freq: Sequence[float] | Array | None, measured: Measured, change: Rule | None = None
) -> Value:
    factor = simplest_within(measured.magnitude, measured.magnitude_error)
    return Value(RotaryEmbedding(**place.options, inv_freq=inv_freq, attention_factor=factor), place, change)
