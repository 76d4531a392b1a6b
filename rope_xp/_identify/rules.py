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
    """Measured frequencies of all pairs, without sign, the allowed error of each, and the attention factor."""

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
    rotated = int(np.count_nonzero(values > measured.errors))
    if rotated < len(values):
        if (values[rotated:] <= measured.errors[rotated:]).all() and rotated > 1:
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
    j = np.arange(1, pairs)
    w, error = measured.values[1:pairs] * factor, measured.errors[1:pairs] * factor
    if pairs < 2 or (w <= error).any():
        return inf, 99
    power = -measured.rotary_dim / (2 * j)
    least, most = ((w + error) ** power).max(), ((w - error) ** power).min()
    return simplest(float(least), float(most))


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
        scaling = ProportionalScaling(partial_rotary_factor=rotated / len(measured.values), factor=factor)
        yield from _if_it_agrees(measured, Rule(base, scaling, digits + of_base))


def _changed_base(measured: Measured, plain: list[Rule]) -> Iterator[Rule]:
    """A simple base that NTK-aware scaling by a simple factor changed."""
    width = measured.rotary_dim
    for rule in plain:
        if rule.scaling is None and width > 2:
            least, most = _interval(measured)
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


def _interval(measured: Measured) -> tuple[float, float]:
    """The least and the greatest base that explain the frequencies."""
    power = -measured.rotary_dim / (2 * np.arange(1, len(measured.values)))
    w, error = measured.values[1:], measured.errors[1:]
    return float(((w + error) ** power).max()), float(((w - error) ** power).min())


def _ramps(measured: Measured) -> Iterator[Rule]:
    """Fast pairs keep their frequency, slow ones are divided by a factor, with a ramp between them."""
    first, least = None, 2
    for pairs in range(len(measured.values) - 1, least, -1):
        base, digits = _base(measured, 1.0, pairs)
        if digits <= FEW_DIGITS:
            first = base, digits
            break
    if first is None or abs(measured.values[0] - 1.0) > measured.errors[0]:
        return
    base, of_base = first
    unscaled = np.asarray(geometric(base, measured.rotary_dim))
    factor, digits = _quotient(unscaled[-1], measured.values[-1], measured.errors[-1])
    if not 1.0 < factor < inf or digits > FEW_DIGITS:
        return
    kept = (measured.values / unscaled - 1.0 / factor) / (1.0 - 1.0 / factor)
    error = measured.errors / unscaled / (1.0 - 1.0 / factor)
    blended = np.flatnonzero((kept > error + 1e-9) & (kept < 1.0 - error - 1e-9))
    for scaling in (*_llama3(factor, unscaled, kept, blended), *_yarn(measured, base, factor, kept, blended)):
        yield from _if_it_agrees(measured, Rule(base, scaling, of_base + digits + 2))


def _llama3(factor: float, unscaled: np.ndarray, kept: np.ndarray, blended: np.ndarray) -> Iterator[Scaling]:
    """The kept part is linear in the frequency. Only the ratios of length and factors matter: the low factor is 1."""
    if len(blended) >= 2:
        one, other = blended[0], blended[-1]
        slope = (kept[one] - kept[other]) / (unscaled[one] - unscaled[other])
        low = slope * unscaled[one] - kept[one]  # low / (high - low)
        highs = [1.0 + 1.0 / low] if low > 0.0 else []
        lengths = [2 * pi * slope * (high - 1.0) for high in highs]
    else:
        highs = [4.0] * 12
        lengths = [float(1024 << k) for k in range(12)]
    for high, length in zip(highs, lengths):
        for width in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
            high_factor, _ = simplest(high * (1 - width), high * (1 + width))
            original = _whole(length * (1 - width), length * (1 + width))
            if original and high_factor >= 1.0:
                yield Llama3Scaling(
                    factor=factor,
                    low_freq_factor=1.0,
                    high_freq_factor=high_factor,
                    original_max_position_embeddings=original,
                )


def _yarn(measured: Measured, base: float, factor: float, kept: np.ndarray, blended: np.ndarray) -> Iterator[Scaling]:
    """The divided part is linear in the number of the pair. The betas are those of the paper."""
    if len(blended) < 2:
        last = int(np.flatnonzero(kept > 0.5)[-1]) + 1
        ends = [(float(blended[0] if len(blended) else last) - 1.0, float(last) + 1.0)]
    else:
        one, other = int(blended[0]), int(blended[-1])
        slope = (kept[one] - kept[other]) / (other - one)
        start = one - (1.0 - kept[one]) / slope
        ends = [(start, start + 1.0 / slope)]
    width = measured.rotary_dim
    for start, stop in ends:
        lengths = set(_lengths_of_rounded_ends(round(start), round(stop), base, width))
        exact = 2 * pi * base ** (2 * stop / width)
        lengths |= {_whole(exact * (1 - each), exact * (1 + each)) for each in (1e-3, 1e-5)}
        for truncate in (True, False):
            for length in sorted(filter(None, lengths), key=lambda length: (bin(length).count("1"), length)):
                yield YarnScaling(
                    factor=factor,
                    original_max_position_embeddings=length,
                    truncate=truncate,
                    attention_factor=_attention_factor(measured, factor),
                )


def _lengths_of_rounded_ends(start: int, stop: int, base: float, width: int) -> Iterator[int]:
    """Original lengths whose ramp begins and ends at these pairs, after rounding."""
    least = max(
        2 * pi * 32 * base ** (2 * start / width) if start > 0 else 0.0, 2 * pi * base ** (2 * (stop - 1) / width)
    )
    most = min(
        2 * pi * 32 * base ** (2 * (start + 1) / width),
        2 * pi * base ** (2 * stop / width) if stop < width - 1 else inf,
    )
    if ceil(least) < most:
        power = 2 ** ceil(log(max(least, 1.0), 2))
        yield power if power < most else _whole(least, most)


def _whole(least: float, most: float) -> int:
    """The simplest whole number between two others: a power of two, or the one with the fewest digits; 0 if none."""
    if not 1.0 <= most < 2.0**53 or ceil(least) > most:
        return 0
    power = 2 ** ceil(log(max(least, 1.0), 2))
    if power <= most:
        return power
    number = simplest(ceil(least), floor(most))[0]
    return int(number) if number == int(number) else ceil(least)


def _attention_factor(measured: Measured, factor: float) -> float | None:
    """The attention factor to state for YaRN: None if the measured one is the paper's."""
    if abs(0.1 * log(factor) + 1.0 - measured.magnitude) <= measured.magnitude_error:
        return None
    return simplest(measured.magnitude - measured.magnitude_error, measured.magnitude + measured.magnitude_error)[0]
