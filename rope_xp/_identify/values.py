"""The `RotaryEmbedding` that has measured pairs, frequencies and magnitude."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rope_xp._core.embedding import RotaryEmbedding
from rope_xp._identify.blocks import Channels
from rope_xp._identify.layouts import Place, places_of
from rope_xp._identify.phases import Frequencies
from rope_xp._identify.rules import Rule, changed_rule_of, rule_of, simplest


class Rotation(NamedTuple):
    """What was measured. `direction` is None if the frequencies have both signs."""

    head_dim: int
    channels: Channels
    frequencies: Frequencies
    direction: int | None
    magnitude: float
    magnitude_error: float


class Value(NamedTuple):
    """An embedding, and the number that each measured pair has in it.

    `change` is the rule of its frequencies if a function changes a rule in a way that no embedding states.
    """

    rope: RotaryEmbedding
    numbers: np.ndarray
    change: Rule | None = None


def value_of(rotation: Rotation) -> Value | None:
    """The value of the layout whose rule has the fewest digits; without a rule, with frequencies as numbers."""
    places = list(places_of(rotation.channels, rotation.head_dim))
    if not places:
        return None
    found = [(rule, place) for place in places if (rule := _rule_at(place, rotation)) is not None]
    if not found:
        for place in places:
            change = _rule_at(place, rotation, changed_rule_of)
            if change is not None:
                inv_freq = np.asarray(change.frequencies(2 * place.pairs)) * rotation.direction
                return Value(
                    _with_numbers(_channels_of(place, rotation), inv_freq.tolist(), rotation), place.numbers, change
                )
        numbers = [_simplest(w, error) for w, error in zip(*_of_all_pairs(places[0], rotation))]
        options = _channels_of(places[0], rotation)
        return Value(_with_numbers(options, numbers, rotation), places[0].numbers)
    rule, place = min(found, key=lambda each: each[0].digits)
    options = _channels_of(place, rotation)
    rope = RotaryEmbedding(**options, base=rule.base, scaling=rule.scaling, reverse=rotation.direction == -1)
    if abs((rope.attention_factor or 1.0) - rotation.magnitude) > 2 * rotation.magnitude_error:  # both may be rounded
        factor = _magnitude(rotation)
        plain = rule.scaling is None
        rope = rope.replace(attention_factor=factor) if plain else _with_numbers(options, rope.inv_freq, rotation)
    return Value(rope, place.numbers)


def rule_in_any_order(rotation: Rotation) -> Rule | None:
    """The rule of the frequencies, fastest first, of pairs that no layout has."""
    values = np.abs(rotation.frequencies.values)
    order = np.argsort(-values)
    return rule_of(values[order], rotation.frequencies.errors[order], rotation.magnitude, rotation.magnitude_error)


def _rule_at(place: Place, rotation: Rotation, rule_of: Callable[..., Rule | None] = rule_of) -> Rule | None:
    if rotation.direction is None:
        return None
    values, errors = _of_all_pairs(place, rotation)
    return rule_of(np.abs(values), errors, rotation.magnitude, rotation.magnitude_error)


def _of_all_pairs(place: Place, rotation: Rotation) -> tuple[np.ndarray, np.ndarray]:
    """The frequencies of all pairs of a layout, and their errors. Pairs that are not rotated have frequency 0."""
    values, errors = np.zeros(place.pairs), np.zeros(place.pairs)
    values[place.numbers], errors[place.numbers] = rotation.frequencies.values, rotation.frequencies.errors
    return values, errors


def _channels_of(place: Place, rotation: Rotation) -> dict[str, Any]:
    """The arguments of `RotaryEmbedding` for its channels."""
    return {
        "head_dim": rotation.head_dim,
        "layout": place.layout,
        "first_channel": place.first_channel,
        "blocks": place.blocks,
        "rotary_dim": 2 * place.pairs,
    }


def _with_numbers(options: dict[str, Any], inv_freq: Any, rotation: Rotation) -> RotaryEmbedding:
    return RotaryEmbedding(**options, inv_freq=inv_freq, attention_factor=_magnitude(rotation))


def _magnitude(rotation: Rotation) -> float:
    """The simplest number within the error of the magnitude."""
    if rotation.magnitude == 1.0:
        return 1.0
    error = rotation.magnitude_error
    return simplest(rotation.magnitude - error, rotation.magnitude + error)[0]


def _simplest(w: float, error: float) -> float:
    """The simplest number within the error of a frequency."""
    return 0.0 if abs(w) <= error else float(np.sign(w)) * simplest(abs(w) - error, abs(w) + error)[0]
