"""The base and the scaling rule that explain measured frequencies."""

from collections.abc import Iterator
from math import ceil, floor, inf, log, log10, pi
from typing import NamedTuple

import numpy as np

from rope_xp._identify.calls import ROUNDOFF
from rope_xp.frequencies import (
    LinearScaling,
    Llama3Scaling,
    MixedNTKScaling,
    NTKScaling,
    ProportionalScaling,
    Scaling,
    YarnScaling,
    geometric,
)

# A number of more digits than this, within the error of a measurement, is not taken for the number that someone chose.
FEW_DIGITS = 5
FACTORS = (*(k / 4 for k in range(5, 40)), *range(10, 65), 100, 128, 256, 512, 1000, 1024)


def roundings(frequencies: np.ndarray) -> np.ndarray:
    """How many units of roundoff a product of position and frequency may be off.

    Position, frequency and product are rounded. An exponent such as -j * log(base), if it is rounded, has an error that
    grows with it.
    """
    return 5.0 + 3.0 * np.abs(np.log(np.maximum(np.abs(frequencies), 1e-30)))


class Rule(NamedTuple):
    """A base and a scaling, as `RotaryEmbedding` takes them. `digits` counts those of all its numbers."""

    base: float
    scaling: Scaling | None
    digits: int

    def in_words(self) -> str:
        return f"base {self.base:g}" + ("" if self.scaling is None else f" with scaling {self.scaling.describe()}")


class Measured(NamedTuple):
    """Measured frequencies of all pairs, without sign, the allowed error of each, and the attention factor.

    The frequency 0 is exact: such pairs are not rotated.
    """

    values: np.ndarray
    errors: np.ndarray
    magnitude: float
    magnitude_error: float

    @property
    def rotary_dim(self) -> int:
        return 2 * len(self.values)

    def agree(self, frequencies: object) -> bool:
        """Whether these frequencies explain the measured ones."""
        return bool((np.abs(np.asarray(frequencies) - self.values) <= self.errors).all())


def rule_of(values: np.ndarray, errors: np.ndarray, magnitude: float, magnitude_error: float) -> Rule | None:
    """The rule with the fewest digits that explains the frequencies; None without.

    Frequencies are first taken as exact, then as rounded to float32, then, if all of them have so few bits, to
    bfloat16.
    """
    off = roundings(values)
    allowed = [ROUNDOFF["float64"] * off, ROUNDOFF["float32"] * off]
    if (np.abs(rounded_to(8, values) - values) <= errors + 4 * ROUNDOFF["float64"] * values).all():
        allowed.append(np.full(len(values), 1.01 * ROUNDOFF["bfloat16"]))
    for relative in allowed:
        measured = Measured(values, errors + values * relative, magnitude, magnitude_error)
        found = list(_candidates(measured))
        if found:
            return min(found, key=lambda rule: rule.digits)
    return None


def simplest(least: float, most: float) -> tuple[float, int]:
    """The number between two positive ones that has the fewest digits, and how many; (inf, 99) if there is none."""
    if not 0.0 < least <= most:
        return inf, 99
    exponent = floor(log10(most))
    for digits in range(1, 18):
        scale = digits - 1 - exponent
        middle = round((least + most) / 2 * 10.0**scale)
        for each in (middle, middle - 1, middle + 1):
            number = float(f"{each}e{-scale}")
            if least <= number <= most:
                return number, digits
    return (least + most) / 2, 18


def digits_of(number: float) -> int:
    """How many digits a number has."""
    return simplest(number * (1 - 1e-15), number * (1 + 1e-15))[1]


def rounded_to(bits: int, values: np.ndarray) -> np.ndarray:
    """Values rounded to so many significant bits."""
    fraction, exponent = np.frexp(values)
    return np.ldexp(np.round(fraction * 2**bits) / 2**bits, exponent)


def _candidates(measured: Measured) -> Iterator[Rule]:
    """All rules that explain the frequencies."""
    values = measured.values
    if len(values) < 2 or (values <= 0.0).all():
        return
    rotated = int(np.count_nonzero(values))
    if rotated < len(values):
        if rotated > 1 and not values[rotated:].any():
            yield from _proportional(measured, rotated)
        return
    plain = list(_geometric(measured))
    yield from plain
    if any(rule.digits <= FEW_DIGITS for rule in plain):
        return
    yield from _changed_base(measured, plain)
    yield from _ramps(measured)


def _geometric(measured: Measured) -> Iterator[Rule]:
    """A base alone, or with all frequencies divided by one factor."""
    factor, digits = _quotient(1.0, measured.values[0], measured.errors[0])
    if abs(measured.values[0] - 1.0) <= measured.errors[0]:
        factor, digits = 1.0, 0
    base, of_base = _base(measured, factor, len(measured.values))
    if factor >= 1.0 and base >= 1.0 and of_base < 99:
        scaling = None if factor == 1.0 else LinearScaling(factor=factor)
        yield from _if_it_agrees(measured, Rule(base, scaling, digits + of_base))


def _base(measured: Measured, factor: float, pairs: int) -> tuple[float, int]:
    """The simplest base of the first pairs, whose frequencies are divided by `factor`, and its digits."""
    return simplest(*_interval(measured, factor, pairs)) if pairs > 1 and factor < inf else (inf, 99)


def _interval(measured: Measured, factor: float, pairs: int) -> tuple[float, float]:
    """The least and the greatest base that explain the first pairs. A frequency may be as small as its error."""
    w, error = measured.values[1:pairs] * factor, measured.errors[1:pairs] * factor
    power = -measured.rotary_dim / (2 * np.arange(1, pairs))
    greatest = np.where(w > error, np.where(w > error, w - error, 1.0) ** power, 1e300)
    return float(((w + error) ** power).max()), float(greatest.min())


def _quotient(of: float, value: float, error: float) -> tuple[float, int]:
    """The simplest ``of / value``, and its digits."""
    return simplest(of / (value + error), of / (value - error)) if value > error else (inf, 99)


def _if_it_agrees(measured: Measured, rule: Rule) -> Iterator[Rule]:
    scaling = Scaling() if rule.scaling is None else rule.scaling
    if measured.agree(scaling.frequencies(rule.base, measured.rotary_dim)):
        yield rule


def _proportional(measured: Measured, rotated: int) -> Iterator[Rule]:
    """A progression over the whole width, of which only the first pairs are rotated."""
    factor, digits = _quotient(1.0, measured.values[0], measured.errors[0])
    base, of_base = _base(measured, factor, rotated)
    if 1.0 <= factor < inf and 1.0 <= base < inf:
        part = rotated / len(measured.values)
        shorter, of_part = simplest(part, (rotated + 1 - 1e-9) / len(measured.values))  # it is rounded down to pairs
        part = shorter if of_part < digits_of(part) else part
        scaling = ProportionalScaling(partial_rotary_factor=part, factor=factor)
        yield from _if_it_agrees(measured, Rule(base, scaling, digits + of_base))


def _changed_base(measured: Measured, plain: list[Rule]) -> Iterator[Rule]:
    """A simple base that NTK-aware scaling by a simple factor changed."""
    width = measured.rotary_dim
    for rule in plain:
        if rule.scaling is None and width > 2:
            least, most = _interval(measured, 1.0, len(measured.values))
            for factor in FACTORS:
                power = factor ** (width / (width - 2))
                base, digits = simplest(least / power, most / power)
                if digits <= 2 and base >= 100.0:
                    yield Rule(base, NTKScaling(factor=float(factor)), digits + 1 + digits_of(factor))
        if isinstance(rule.scaling, LinearScaling):  # the first pair is divided by factor ** (2 / rotary_dim)
            factor = rule.scaling.factor ** (width / 2)
            factor, digits = simplest(factor * (1 - 1e-4), factor * (1 + 1e-4))
            base, of_base = simplest(rule.base / factor * (1 - 1e-4), rule.base / factor * (1 + 1e-4))
            if digits + of_base <= FEW_DIGITS and base >= 1.0:
                scaling = MixedNTKScaling(factor=factor)
                yield from _if_it_agrees(measured, Rule(base, scaling, digits + of_base + 1))


class Ramp(NamedTuple):
    """Frequencies of which the first are kept, the last divided by `factor`, and those between partly divided.

    `kept` is the part that is not divided, 1 for the first pairs and 0 for the last. `blended` are the pairs between.
    """

    base: float
    factor: float
    unscaled: np.ndarray
    kept: np.ndarray
    blended: np.ndarray


def _ramps(measured: Measured) -> Iterator[Rule]:
    """The rules that keep the frequencies of fast pairs, and divide those of slow ones by a factor."""
    base, of_base = _base_of_first_pairs(measured)
    if base == inf or abs(measured.values[0] - 1.0) > measured.errors[0]:
        return
    unscaled = np.asarray(geometric(base, measured.rotary_dim))
    factor, digits = _quotient(unscaled[-1], measured.values[-1], measured.errors[-1])
    if not 1.0 < factor < inf or digits > FEW_DIGITS:
        return
    kept = (measured.values / unscaled - 1.0 / factor) / (1.0 - 1.0 / factor)
    error = measured.errors / unscaled / (1.0 - 1.0 / factor) + 1e-9
    ramp = Ramp(base, factor, unscaled, kept, np.flatnonzero((kept > error) & (kept < 1.0 - error)))
    for scaling in (*_llama3(ramp), *_yarn(measured, ramp)):
        # A factor that is not the rule's own is one more number that someone chose.
        more = 2 + (getattr(scaling, "attention_factor", None) is not None)
        yield from _if_it_agrees(measured, Rule(base, scaling, of_base + digits + more))


def _base_of_first_pairs(measured: Measured) -> tuple[float, int]:
    """The base of as many pairs as have one of few digits, and its digits; (inf, 99) if three have none."""
    for pairs in range(len(measured.values) - 1, 2, -1):
        base, digits = _base(measured, 1.0, pairs)
        if digits <= FEW_DIGITS:
            return base, digits
    return inf, 99


def _llama3(ramp: Ramp) -> Iterator[Scaling]:
    """The kept part is linear in the frequency. Only the ratios of length and factors matter: the low factor is 1."""
    guesses = [(4.0, float(1024 << k)) for k in range(12)]
    if len(ramp.blended) >= 2:
        one, other = ramp.blended[0], ramp.blended[-1]
        slope = (ramp.kept[one] - ramp.kept[other]) / (ramp.unscaled[one] - ramp.unscaled[other])
        low = float(slope * ramp.unscaled[one] - ramp.kept[one])  # 1 / (high - 1)
        guesses = [(1.0 + 1.0 / low, 2 * pi * float(slope) / low)] if low > 0.0 else []
    elif not len(ramp.blended):
        last = int(np.flatnonzero(ramp.kept > 0.5)[-1])
        least, most = (float(2 * pi / w) for w in ramp.unscaled[last : last + 2])
        yield _llama3_scaling(ramp.factor, 1.0, _whole(least, most))
    for high, length in guesses:
        for width in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
            high_factor, _ = simplest(high * (1 - width), high * (1 + width))
            original = _whole(length * (1 - width), length * (1 + width))
            if original and high_factor >= 1.0:
                yield _llama3_scaling(ramp.factor, high_factor, original)


def _llama3_scaling(factor: float, high: float, length: int) -> Scaling:
    return Llama3Scaling(
        factor=factor, low_freq_factor=1.0, high_freq_factor=high, original_max_position_embeddings=max(length, 1)
    )


def _yarn(measured: Measured, ramp: Ramp) -> Iterator[Scaling]:
    """The divided part is linear in the number of the pair. The betas are those of the paper."""
    if len(ramp.blended) < 2:
        stop = float(np.flatnonzero(ramp.kept > 0.5)[-1]) + 2.0
        start = float(ramp.blended[0]) - 1.0 if len(ramp.blended) else stop - 2.0
    else:
        one, other = int(ramp.blended[0]), int(ramp.blended[-1])
        slope = float(ramp.kept[one] - ramp.kept[other]) / (other - one)
        start = one - (1.0 - float(ramp.kept[one])) / slope
        stop = start + 1.0 / slope
    width = measured.rotary_dim
    exact = float(2 * pi * ramp.base ** (2 * stop / width))
    lengths = {
        _length_of_rounded_ends(round(start), round(stop), ramp.base, width),
        *(_whole(exact * (1 - each), exact * (1 + each)) for each in (1e-3, 1e-5)),
    }
    for truncate in (True, False):
        for length in sorted(filter(None, lengths), key=lambda length: (length.bit_count(), length)):
            yield YarnScaling(
                factor=ramp.factor,
                original_max_position_embeddings=length,
                truncate=truncate,
                attention_factor=_attention_factor(measured, ramp.factor),
            )


def _length_of_rounded_ends(start: int, stop: int, base: float, width: int) -> int:
    """The simplest original length whose ramp begins and ends at these pairs, after rounding; 0 if none."""
    least = max(
        2 * pi * 32 * base ** (2 * start / width) if start > 0 else 0.0, 2 * pi * base ** (2 * (stop - 1) / width)
    )
    most = min(
        2 * pi * 32 * base ** (2 * (start + 1) / width),
        2 * pi * base ** (2 * stop / width) if stop < width - 1 else inf,
    )
    return _whole(least, most)


def _whole(least: float, most: float) -> int:
    """The simplest whole number between two others: a power of two, or the one with the fewest digits; 0 if none."""
    least = max(least, 1.0)
    if not least <= most < 2.0**53 or ceil(least) > most:
        return 0
    power = 1 << (ceil(least) - 1).bit_length()
    if power <= most:
        return power
    number = simplest(ceil(least), floor(most))[0]
    return int(number) if number == int(number) else ceil(least)


def _attention_factor(measured: Measured, factor: float) -> float | None:
    """The attention factor to state for YaRN: None if the measured one is the paper's."""
    if abs(0.1 * log(factor) + 1.0 - measured.magnitude) <= measured.magnitude_error:
        return None
    return simplest(measured.magnitude - measured.magnitude_error, measured.magnitude + measured.magnitude_error)[0]
