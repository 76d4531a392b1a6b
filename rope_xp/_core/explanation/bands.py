"""Bands: pairs that a scaling rule treats alike, and the angles that they had during training."""

from math import ceil, isclose, pi
from typing import Any, NamedTuple

from rope_xp.frequencies import Llama3Scaling, YarnScaling

# A divisor that differs from 1 or from a rule's factor by less is equal to it. Rounding makes 1e-15 of it.
TOLERANCE = 1e-9

Range = tuple[float, float]


class Band(NamedTuple):
    """Pairs that are treated alike.

    Attributes
    ----------
    treatment : str
        "kept", "blended" (between kept and interpolated), "interpolated", "not rotated", or "given" (the frequencies
        were given as numbers).
    pairs : tuple of int
        The numbers of the pairs.
    wavelengths : (float, float) or None
        The shortest and the longest wavelength, in tokens. None if the pairs are not rotated.
    unscaled_wavelengths : (float, float) or None
        The same without scaling. None if this is not known.
    divisors : (float, float) or None
        By how much the rule divides frequencies: the least and the greatest number.
    completes_turn : bool or None
        Whether each pair completes a turn within the trained length, without scaling. Training then showed all its
        angles. None if this is not known.
    """

    treatment: str
    pairs: tuple[int, ...]
    wavelengths: Range | None
    unscaled_wavelengths: Range | None
    divisors: Range | None
    completes_turn: bool | None


class AxisPairs(NamedTuple):
    """The pairs that follow one of several position axes.

    Attributes
    ----------
    axis : int
    pairs : tuple of int
        The numbers of the pairs.
    wavelengths : (float, float) or None
        The shortest and the longest wavelength, in tokens.
    name : str
        The name of the axis, such as "time"; empty if the family has no names.
    """

    axis: int
    pairs: tuple[int, ...]
    wavelengths: Range | None
    name: str


class Pair(NamedTuple):
    """One pair: its frequencies in radians per token. The unscaled one may be unknown."""

    number: int
    frequency: float
    unscaled: float | None

    @property
    def divisor(self) -> float | None:
        """By how much the scaling rule divides the frequency."""
        return None if self.unscaled is None or not self.frequency else self.unscaled / self.frequency

    def treatment(self, factor: float | None) -> str:
        """How the scaling rule treats the pair. `factor` is the greatest divisor of a rule that blends."""
        if not self.frequency:
            return "not rotated"
        if self.divisor is None:
            return "given"
        if isclose(self.divisor, 1.0, rel_tol=TOLERANCE):
            return "kept"
        is_full = factor is None or isclose(self.divisor, factor, rel_tol=TOLERANCE)
        return "interpolated" if is_full else "blended"

    def completes_turn(self, trained: int | None) -> bool | None:
        """Whether the pair completes a turn within the trained length, without scaling."""
        if trained is None or not self.frequency:
            return None
        return 2 * pi / (self.unscaled or self.frequency) <= trained

    def unseen_from(self, trained: int) -> int:
        """The first position at which the pair has the angle that it has at position `trained` without scaling."""
        return ceil(round((self.divisor or 1.0) * trained, 6))


def pairs_of(rope: Any) -> list[Pair]:
    """The pairs of a `RotaryEmbedding`; none if a pair has no single known frequency.

    That is so in a learned array, with several heads, and if one pair follows several position axes.
    """
    scaled = _frequencies(rope)
    unscaled = None if rope.base is None else _frequencies(rope.replace(scaling=None))
    return [Pair(number, w, None if unscaled is None else unscaled[number]) for number, w in enumerate(scaled)]


def _frequencies(rope: Any) -> tuple[float, ...]:
    frequencies = rope._frequencies
    has_one_each = frequencies.axes == 1 or frequencies.axis_of_pair is not None
    if not frequencies.are_floats or frequencies.heads is not None or not has_one_each:
        return ()
    return tuple(abs(w) for w in frequencies.rows[0].inv_freq)


def bands_of(rope: Any, pairs: list[Pair], trained: int | None) -> tuple[Band, ...]:
    """The bands of a `RotaryEmbedding` with these pairs, in the order of their first pairs."""
    factor = rope.scaling.factor if isinstance(rope.scaling, (YarnScaling, Llama3Scaling)) else None
    bands: dict[tuple[str, bool | None], list[Pair]] = {}
    for pair in pairs:
        bands.setdefault((pair.treatment(factor), pair.completes_turn(trained)), []).append(pair)
    return tuple(
        Band(
            treatment,
            tuple(pair.number for pair in alike),
            _wavelengths(pair.frequency for pair in alike),
            _wavelengths(pair.unscaled for pair in alike if pair.frequency),
            _range([pair.divisor for pair in alike if pair.divisor is not None]),
            completes_turn,
        )
        for (treatment, completes_turn), alike in bands.items()
    )


def axes_of(rope: Any, pairs: list[Pair]) -> tuple[AxisPairs, ...]:
    """The pairs of each of several position axes; none if a pair has no single frequency."""
    axis_of_pair = rope._frequencies.axis_of_pair
    if axis_of_pair is None:
        return ()
    of_axes = [[pair for pair in pairs if axis_of_pair[pair.number] == axis] for axis in range(rope.axes)]
    names = rope._provenance.axis_names or ("",) * rope.axes
    return tuple(
        AxisPairs(axis, tuple(pair.number for pair in own), _wavelengths(pair.frequency for pair in own), names[axis])
        for axis, own in enumerate(of_axes)
    )


def unseen_from(pairs: list[Pair], trained: int | None) -> dict[int, int]:
    """For each pair that completes no turn within the trained length: from which position on it has unseen angles."""
    if trained is None:
        return {}
    return {pair.number: pair.unseen_from(trained) for pair in pairs if pair.completes_turn(trained) is False}


def _wavelengths(frequencies: Any) -> Range | None:
    return _range([2 * pi / w for w in frequencies if w])


def _range(numbers: list[float]) -> Range | None:
    return (min(numbers), max(numbers)) if numbers else None
