"""The base and the scaling rule that explain measured frequencies."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import ceil, exp, floor, inf, log, log2, log10, pi
from typing import Any, NamedTuple

import numpy as np

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
from rope_xp.identification.precision import roundings_of_frequencies

# A number of more digits than this, within the error of a measurement, is not taken for the number that someone chose.
FEW_DIGITS = 5
# Lengths, exponents of mixed NTK scaling and bases of published models. They are tried where several are possible.
USUAL_LENGTHS = tuple(1 << k for k in range(9, 21))
USUAL_EXPONENTS = (1.0, *(k / 8 for k in (1, 2, 3, 4, 5, 6, 7, 12, 16)), *(k / 10 for k in (1, 2, 3, 4, 6, 7, 8, 9)))
USUAL_BASES = (10_000.0, 500_000.0, 1_000_000.0, 150_000.0)
USUAL_FACTORS = (*(k / 4 for k in range(5, 40)), *range(10, 65), 100, 128, 256, 512, 1000, 1024)


class Rule(NamedTuple):
    """A base and a scaling, as `RotaryEmbedding` takes them."""

    base: float
    scaling: Scaling | None
    digits: int  # of all its numbers
    # What a function does to the rule, in words, and no `RotaryEmbedding` does: "with its ramp reversed" or "applied
    # twice".
    change: str = ""

    def in_words(self) -> str:
        if self.scaling is None:
            return f"base {self.base:.10g}"
        change = f", {self.change}" if self.change else ""
        return f"base {self.base:.10g} with scaling {self.scaling.describe()}{change}"

    def frequencies(self, rotary_dim: int) -> tuple[float, ...]:
        scaling = self.scaling or Scaling()
        scaled = scaling.frequencies(self.base, rotary_dim)
        if not self.change:
            return scaled
        if isinstance(scaling, Llama3Scaling):
            return tuple(map(scaling._scaled, scaled))
        unscaled = geometric(self.base, rotary_dim)
        if isinstance(scaling, YarnScaling) and self.change == "with its ramp reversed":
            return tuple(w - once + w / scaling.factor for w, once in zip(unscaled, scaled))
        return tuple(once * once / w for w, once in zip(unscaled, scaled))


class Interval(NamedTuple):
    least: float
    most: float

    def widened(self) -> "Interval":
        more = 1e-9 * max(abs(self.least), abs(self.most))
        return Interval(self.least - more, self.most + more)

    @classmethod
    def of_all(cls, ends: np.ndarray) -> "Interval | None":
        ends = ends[:, np.isfinite(ends).all(axis=0)]
        if not ends.size:
            return None
        found = cls(float(ends.min(axis=0).max()), float(ends.max(axis=0).min()))
        return found if found.widened().least <= found.widened().most else None

    def times(self, number: float) -> "Interval":
        return Interval(self.least * number, self.most * number)

    def under(self, number: float) -> "Interval":
        return Interval(*(number / each if each > 0.0 else inf for each in (self.most, self.least)))


class Target(NamedTuple):
    """What a rule must give: the frequencies of all pairs, without sign, within errors, and the attention factor."""

    values: np.ndarray  # 0 is exact: such a pair is not rotated
    errors: np.ndarray
    magnitude: float
    magnitude_error: float
    is_coarse: bool  # whether the phases that were measured are rounded, so that float32 is as exact as the values

    @property
    def rotary_dim(self) -> int:
        return 2 * len(self.values)

    def widened(self, relative: np.ndarray) -> "Target":
        return self._replace(errors=self.errors + self.values * relative)

    def times(self, numbers: float | np.ndarray) -> "Target":
        return self._replace(values=self.values * numbers, errors=self.errors * numbers)

    def is_met_by(self, rule: Rule) -> bool:
        frequencies = np.asarray(rule.frequencies(self.rotary_dim))
        return bool((np.abs(frequencies - self.values) <= self.errors).all())

    def is_explained_by(self, rule: Rule) -> bool:
        """Whether the rule gives the frequencies, and has fewer digits than they have within their errors."""
        attention = getattr(rule.scaling, "attention_factor", None)
        digits = rule.digits - (digits_of(attention) if attention else 0)
        known = np.log10(np.maximum(self.values, self.errors) / self.errors)[np.abs(self.values - 1.0) > self.errors]
        return digits <= max(FEW_DIGITS + 1, known.sum() * 2 / 3) and self.is_met_by(rule)


def rule_of(target: Target) -> Rule | None:
    """The rule with the fewest digits that explains the frequencies; None without."""
    for relative in roundings_of_frequencies(target.values, target.errors, target.is_coarse):
        found = list(_rules_that_fit(target.widened(relative)))
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
        middle = float(f"{round((least + most) / 2 * 10.0**scale)}e{-scale}")
        if least <= middle <= most:
            return middle, digits
    return least, 18


def simplest_within(number: float, error: float) -> float:
    return simplest(number - error, number + error)[0]


def digits_of(number: float) -> int:
    return simplest(number * (1 - 1e-15), number * (1 + 1e-15))[1]


def _rules_that_fit(target: Target) -> Iterator[Rule]:
    values = target.values
    rotated = int(np.count_nonzero(values))
    if rotated < 2 or values[rotated:].any():
        return
    if rotated < len(values):
        yield from filter(target.is_met_by, _progression(target, rotated))
        return
    plain = list(filter(target.is_met_by, _progression(target, rotated)))
    yield from plain
    if any(rule.digits <= FEW_DIGITS for rule in plain):
        return
    yield from filter(target.is_met_by, itertools.chain(_changed_base(target), _mixed(target)))
    yield from _ramps(target)


def _progression(target: Target, rotated: int) -> Iterator[Rule]:
    """A base alone, with all frequencies divided by one factor, or over a width whose first pairs are rotated."""
    factor, digits = _divisor(target)
    base, of_base = simplest(*_interval(target.times(factor), rotated))
    if not (factor >= 1.0 and 1.0 <= base < inf):
        return
    if rotated < len(target.values):
        part = rotated / len(target.values)
        shorter, of_part = simplest(part, (rotated + 1 - 1e-9) / len(target.values))  # it is rounded down to pairs
        part, of_part = (shorter, of_part) if of_part < digits_of(part) else (part, digits_of(part))
        digits += of_base + of_part
        yield Rule(base, ProportionalScaling(partial_rotary_factor=part, factor=factor), digits)
    elif factor == 1.0:
        yield Rule(base, None, of_base)
    else:
        yield Rule(base, LinearScaling(factor=factor), digits + of_base)


def _interval(target: Target, pairs: int) -> tuple[float, float]:
    """The least and the greatest base of the first pairs, of which there are at least two."""
    least, most = _bounds(target)
    return float(least[: pairs - 1].max()), float(most[: pairs - 1].min())


def _bounds(target: Target) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest base of each pair but the first. A frequency may be as small as its error."""
    w, error = target.values[1:], target.errors[1:]
    power = -target.rotary_dim / (2 * np.arange(1, len(w) + 1))
    return (w + error) ** power, np.where(w > error, (w - error) ** power, 1e300)


def _divisor(target: Target) -> tuple[float, int]:
    """The simplest factor that divides the first frequency, and its digits."""
    value, error = target.values[0], target.errors[0]
    return simplest(1.0 / (value + error), 1.0 / (value - error)) if value > error else (inf, 99)


def _changed_base(target: Target) -> Iterator[Rule]:
    width = target.rotary_dim
    least, most = _interval(target, len(target.values))
    for factor in USUAL_FACTORS:
        power = factor ** (width / (width - 2))
        base, digits = simplest(least / power, most / power)
        if digits <= 2 and base >= 100.0:
            yield Rule(base, NTKScaling(factor=float(factor)), digits + digits_of(factor))


def _mixed(target: Target) -> Iterator[Rule]:
    """A simple base and a simple factor of NTK scaling that divides the first pair too, with usual exponents."""
    first, error = target.values[0], target.errors[0]
    if first + error >= 1.0 or first <= error:
        return
    numbers = np.arange(1, len(target.values) + 1, dtype=float)
    for exponent in USUAL_EXPONENTS:
        of_last = float(numbers[-1] ** exponent)
        least, most = (exp(min(-log(each) * of_last, 300.0)) for each in (first + error, first - error))
        factor, digits = simplest(least, most)
        if digits > FEW_DIGITS:
            continue
        unscaled = target.times(np.exp(log(factor) * (numbers / numbers[-1]) ** exponent))
        base, of_base = simplest(*_interval(unscaled, len(numbers)))
        if digits + of_base <= FEW_DIGITS and base >= 1.0:
            scaling = MixedNTKScaling(factor=factor, mixed_b=exponent)
            yield Rule(base, scaling, digits + of_base)


class Ramp(NamedTuple):
    """Frequencies of which the first are kept, the last divided by `factor`, and those between partly divided."""

    base: float
    factor: float
    unscaled: np.ndarray
    kept: np.ndarray  # the part that is not divided, 1 for the first pairs and 0 for the last
    errors: np.ndarray  # of `kept`

    @classmethod
    def of(cls, target: Target, base: float, factor: float) -> "Ramp":
        unscaled = np.asarray(geometric(base, target.rotary_dim))
        removed = 1.0 - 1.0 / factor  # from a frequency that is divided, relative to it
        kept = (target.values / unscaled - 1.0 / factor) / removed
        return cls(base, factor, unscaled, kept, target.errors / unscaled / removed)

    def rule(self, scaling: Scaling, change: str = "") -> Rule:
        return Rule(self.base, scaling, digits_of(self.base) + _digits_of_scaling(scaling), change)

    @property
    def has_ends(self) -> bool:
        # Errors may be so large that every pair may be divided by the whole factor.
        return bool((self.kept >= 1.0 - self.errors).any() and (self.kept > self.errors).any())

    @property
    def ends(self) -> tuple[int, int]:
        """The last pair that is kept, and the first one that is divided by the whole factor."""
        kept, divided_in_part = self.kept >= 1.0 - self.errors, self.kept > self.errors
        return int(np.flatnonzero(kept)[-1]), int(np.flatnonzero(divided_in_part)[-1]) + 1

    def line(
        self, along: np.ndarray, kept_at: float | None = None, divided_at: float | None = None
    ) -> tuple[Interval, Interval] | None:
        """Where the kept part is 1 and where it is 0, if it is linear in these numbers; None if it is not."""
        # Any two pairs between the ends give an interval for each; all of these must agree. An end that is known is a
        # point on the line, as exact as its number.
        first, last = self.ends
        at = slice(first + 1, last)
        measured = zip(along[at], self.kept[at] - self.errors[at], self.kept[at] + self.errors[at])
        points = [(kept_at, 1.0, 1.0), *measured, (divided_at, 0.0, 0.0)]
        x, least, most = np.array([point for point in points if point[0] is not None]).reshape(-1, 3).T
        one, other = np.triu_indices(len(x), 1)
        a, b = np.stack([least, most, least, most])[:, one], np.stack([least, most, most, least])[:, other]
        with np.errstate(divide="ignore"):
            slope = np.where(a > b, (x[other] - x[one]) / (a - b), np.nan)  # a ramp that goes up is none
        kept, divided = x[one] - (1.0 - a) * slope, x[other] + b * slope
        first, last = Interval.of_all(kept), Interval.of_all(divided)
        return (first, last) if first and last else None


def _ramps(target: Target) -> Iterator[Rule]:
    """The rules that keep the frequencies of fast pairs, and divide those of slow ones by a factor."""
    for base in _bases(target):
        found = [rule for ramp in _ramps_of(target, base) for rule in _of_ramp(target, ramp)]
        if found:
            yield from found
            return


def _of_ramp(target: Target, ramp: Ramp) -> Iterator[Rule]:
    """The rules of a ramp. None is simpler than one whose numbers are usual."""
    for scaling in itertools.chain(_llama3(ramp), _yarn(target, ramp)):
        rule = ramp.rule(scaling)
        if target.is_explained_by(rule):
            yield rule
            if rule.digits <= digits_of(ramp.base) + FEW_DIGITS:
                return


def _digits_of_scaling(scaling: Scaling) -> int:
    """The digits of the numbers that someone chose: a length that is a power of two counts as one of one digit."""
    numbers = [value for value in vars(scaling).values() if isinstance(value, (int, float)) and value is not True]
    usual = [value for value in (1.0, 4.0, 32.0) if value in numbers]
    powers = [number for number in numbers if number >= 64 and log2(number).is_integer()]
    others = sum(digits_of(float(number)) for number in numbers if number and number not in powers)
    return len(powers) + others - len(usual) // 2


def _ramps_of(target: Target, base: float) -> Iterator[Ramp]:
    """The ramps of a base: with the simplest factor of as many slow pairs as have one, or with that of YaRN's paper."""
    unscaled = np.asarray(geometric(base, target.rotary_dim))
    least = unscaled / (target.values + target.errors)
    most = unscaled / np.maximum(target.values - target.errors, 1e-300)
    common = _in_common(least[::-1], most[::-1])  # of the slow pairs that one factor explains
    factors = dict.fromkeys(simplest(*common[k]) for k in (len(common) - 1, len(common) // 2))
    of_paper = (target.magnitude + each * target.magnitude_error - 1.0 for each in (-1, 1))
    factors[simplest(*(exp(min(10.0 * each, 300.0)) for each in of_paper))] = None
    for factor, digits in factors:
        if factor > 1.0 and digits <= FEW_DIGITS and (ramp := Ramp.of(target, base, factor)).has_ends:
            yield ramp


def _bases(target: Target, of_last_pairs: bool = False) -> Iterable[float]:
    """The simplest bases of the first pairs, or of the last ones; then other ones and usual bases."""
    if not of_last_pairs and abs(target.values[0] - 1.0) > target.errors[0]:  # the first pairs are kept
        return ()
    # The base of the most pairs that have one of few digits is the first.
    order = slice(None, None, -1 if of_last_pairs else 1)
    least, most = _bounds(target)
    ends = _in_common(least[order], most[order])[::-1]
    # The last two pairs are usually divided by one factor, which their ratio does not have.
    (fast, slow), (of_fast, of_slow) = target.values[-2:], target.errors[-2:]
    if slow > of_slow:
        ratios = (fast - of_fast) / (slow + of_slow), (fast + of_fast) / (slow - of_slow)
        low, high = (float(min(each ** len(target.values), 1e300)) for each in ratios)
        ends.append((low, high))
    simple = [base for base, digits in (simplest(*each) for each in ends) if digits <= FEW_DIGITS and base > 1.0]
    return dict.fromkeys((*simple, *USUAL_BASES))


def _in_common(least: np.ndarray, most: np.ndarray) -> list[tuple[float, float]]:
    """What the first one, two, ... intervals have in common, as long as they have anything in common."""
    least, most = np.maximum.accumulate(least), np.minimum.accumulate(most)
    count = np.count_nonzero(least <= most)
    return [*zip(least[:count].tolist(), most[:count].tolist())]


def _llama3(ramp: Ramp) -> Iterator[Scaling]:
    """The kept part is linear in the frequency. Only the ratios of length and factors matter."""
    first, last = ramp.ends
    turns = ramp.unscaled / (2 * pi)  # per token
    if last == len(turns):  # no pair gives the factor
        return
    low = Interval(float(turns[last]), float(turns[last - 1]))
    found = _whole(*low.under(1.0))
    if last == first + 1:  # a step
        if found:
            yield _llama3_scaling(ramp.factor, 1.0, 1.0, found)
        return
    if last == first + 2:  # one pair gives the length if the factors are the usual ones
        kept, error = ramp.kept[first + 1], ramp.errors[first + 1]
        found = _whole(*(float((1.0 + 3.0 * each) / turns[first + 1]) for each in (kept - error, kept + error)))
    elif ends := ramp.line(turns):
        low = ends[1].widened()
        found = _whole(*low.under(1.0))
    else:
        return
    for length in (found, *USUAL_LENGTHS):
        if length:
            of_low = _near(1.0, low.times(length))
            ends = ramp.line(turns, divided_at=of_low / length)
            of_high = inf if ends is None else _near(4.0, ends[0].widened().times(length))
            if of_low <= of_high < inf:
                yield _llama3_scaling(ramp.factor, of_low, of_high, length)


def _llama3_scaling(factor: float, low: float, high: float, length: int) -> Scaling:
    return Llama3Scaling(
        factor=factor, low_freq_factor=low, high_freq_factor=high, original_max_position_embeddings=length
    )


def _yarn(target: Target, ramp: Ramp) -> Iterator[Scaling]:
    """The divided part is linear in the number of the pair. Its ends follow from the ratios of length and betas."""
    first, last = ramp.ends
    width = target.rotary_dim
    numbers, ends = np.arange(len(ramp.kept), dtype=float), (Interval(first, first), Interval(last, last))
    if last - first > 2:
        ends = ramp.line(numbers)
    elif last - first == 2 and last == len(numbers):  # the ramp may end after the last pair
        ends = ramp.line(numbers, kept_at=first)
    if ends is None:
        return
    start, stop = (each.widened() for each in ends)
    options = {"factor": ramp.factor, "attention_factor": _attention_factor(target, ramp.factor)}
    for begin, end in itertools.product(_integers_in(start), _integers_in(stop)):
        if 0 <= begin < end:
            fast = Interval(float(begin) if begin else -inf, begin + 1 - 1e-9)
            slow = Interval(end - 1 + 1e-9, float(end) if end < width - 1 else inf)
            of_fast, of_slow = (_tokens_per_turn(each, ramp.base, width) for each in (fast, slow))
            for length in _lengths(of_fast, of_slow):
                betas = _near(32.0, of_fast.under(length)), _near(1.0, of_slow.under(length))
                yield from _yarn_scaling(*betas, length, **options)
    if last - first > 2 and start.least < stop.most:
        of_fast, of_slow = (_tokens_per_turn(each, ramp.base, width) for each in (start, stop))
        if start.least <= 0.0:  # a ramp that would begin before the pairs begins with them
            of_fast = of_fast._replace(least=0.0)
        for length in _lengths(of_fast, of_slow):
            fast = _near(32.0, of_fast.under(length))
            begin = width * log(length / (fast * 2 * pi)) / (2 * log(ramp.base)) if fast < inf else 0.0
            ends = ramp.line(numbers, kept_at=max(begin, 0.0))
            if ends is not None:
                slow = _near(1.0, _tokens_per_turn(ends[1].widened(), ramp.base, width).under(length))
                yield from _yarn_scaling(fast, slow, length, truncate=False, **options)


def _tokens_per_turn(pairs: Interval, base: float, width: int) -> Interval:
    """The wavelengths of these numbers of pairs, in tokens."""
    return Interval(*(2 * pi * float(np.exp(2 * each / width * log(base))) for each in pairs))


def _lengths(of_fast: Interval, of_slow: Interval) -> Sequence[int]:
    """The original length for which the betas are those of the paper; without one, usual lengths."""
    paper = _whole(max(32.0 * of_fast.least, of_slow.least), min(32.0 * of_fast.most, of_slow.most))
    return (paper,) if paper else USUAL_LENGTHS


def _yarn_scaling(fast: float, slow: float, length: int, **options: Any) -> Iterator[Scaling]:
    if slow <= fast < inf:
        yield YarnScaling(original_max_position_embeddings=length, beta_fast=fast, beta_slow=slow, **options)


def _near(usual: float, interval: Interval) -> float:
    """The usual number if the interval holds it, else the simplest one of it; inf if there is none."""
    if interval.least <= usual <= interval.most:
        return usual
    return simplest(max(interval.least, 1e-12), min(interval.most, 1e15))[0]


def _integers_in(interval: Interval) -> Iterable[int]:
    """A few whole numbers of an interval, the middle ones if there are more."""
    numbers = range(ceil(interval.least - 1e-6), floor(interval.most + 1e-6) + 1)
    return numbers[max(len(numbers) // 2 - 2, 0) :][:4]


def changed_rule_of(target: Target) -> Rule | None:
    """The rule that explains the frequencies after a usual mistake: its ramp reversed, or the rule applied twice."""
    if len(target.values) < 3 or (target.values <= 0.0).any():
        return None
    exact, *rounded = roundings_of_frequencies(target.values, target.errors, target.is_coarse)
    for relative in (4 * exact, *rounded[:1]):  # a difference of 1 and a small part of it loses digits
        wider = target.widened(relative)
        found = list(filter(wider.is_explained_by, (*_twice(wider), *_reversed(wider))))
        if found:
            return min(found, key=lambda rule: rule.digits)
    return None


def _twice(target: Target) -> Iterator[Rule]:
    """YaRN twice divides by the square of what it divides by; Llama 3's rule sees the frequencies of the first time."""
    for base in _bases(target):
        unscaled = np.asarray(geometric(base, target.rotary_dim))
        once = np.sqrt(target.values * unscaled)
        of_once = target._replace(values=once, errors=target.errors * unscaled / once + 1e-15 * once)
        for ramp in _ramps_of(of_once, base):
            guesses = [
                _llama3_scaling(ramp.factor, 1.0, high, length) for high in (4.0, 2.0, 8.0) for length in USUAL_LENGTHS
            ]
            for scaling in (*_yarn(of_once, ramp), *guesses):
                yield ramp.rule(scaling, "applied twice")


def _reversed(target: Target) -> Iterator[Rule]:
    """YaRN whose fast pairs are divided, and whose slow ones are kept."""
    factor, of_factor = _divisor(target)
    if factor <= 1.0 or of_factor > FEW_DIGITS:
        return
    for base in _bases(target, of_last_pairs=True):
        ramp = Ramp.of(target, base, factor)
        ramp = ramp._replace(kept=1.0 - ramp.kept)
        if ramp.has_ends:
            yield from (ramp.rule(scaling, "with its ramp reversed") for scaling in _yarn(target, ramp))


def _whole(least: float, most: float) -> int:
    """The simplest whole number between two others: a power of two, or the one with the fewest digits; 0 if none."""
    least = max(least, 1.0)
    if not least <= most < 2.0**53 or ceil(least) > most:
        return 0
    power = 1 << (ceil(least) - 1).bit_length()
    if power <= most:
        return power
    return int(simplest(ceil(least), floor(most))[0])


def _attention_factor(target: Target, factor: float) -> float | None:
    """The attention factor to state for YaRN: None if the measured one is the paper's."""
    if abs(0.1 * log(factor) + 1.0 - target.magnitude) <= target.magnitude_error:
        return None
    return simplest_within(target.magnitude, target.magnitude_error)


def attention_in_words(scaling: YarnScaling, factor: float, error: float) -> str:
    """How an attention factor that was measured differs from YaRN's own; empty if it does not."""
    usual = replace(scaling, attention_factor=None).resolved_attention_factor
    if abs(factor - usual) <= error:
        return ""
    if abs(factor - usual**2) <= error:
        return f"the attention factor of YaRN, {usual:.6g}, is applied twice"
    return f"the attention factor is {factor:.6g}; that of YaRN with factor {scaling.factor:g} is {usual:.6g}"
