"""What embeddings do, as values (`Behaviour`) and as numbers: pairs of channels, and by what each is multiplied."""

from collections.abc import Callable
from math import pi
from typing import Any, NamedTuple

import numpy as np

from rope_xp.arrays import libraries
from rope_xp.embedding import RotaryEmbedding
from rope_xp.identification.calls import ROUNDOFF, SIGNIFICANT_BITS
from rope_xp.identification.phases import PRECISIONS
from rope_xp.identification.rules import rounded_to, roundings
from rope_xp.types import Array

# Roundings in a result: of both tables, of two products, of their sum, and of the attention factor, with some to spare.
ROUNDINGS = 8
# Positions are split at so many bits: factors of both parts are few, and their product takes no sines.
LOW_BITS = 8


class Pair(NamedTuple):
    """The channels of one pair: those that are read, and those where the result is written."""

    first: int
    second: int
    first_written: int
    second_written: int

    @property
    def is_moved(self) -> bool:
        """Whether the result is written to other channels."""
        return self[:2] != self[2:]


class Map(NamedTuple):
    """What an embedding does: at position p, a pair is multiplied by ``size * exp(i (start + step p))``."""

    head_dim: int | None  # None if every width is left as it is
    pairs: tuple[Pair, ...]
    size: Any  # "pairs"
    # "rows pairs": in radians, and in radians per token. There is a row for each direction of positions and for each
    # head.
    start: Any
    step: Any
    growth: Any = None  # "pairs": how much the logarithm of a query's size changes per token, by `XPos`
    centre: int = 0  # the position at which `growth` changes no size
    # "exact", or a key of `SIGNIFICANT_BITS`: the precision of positions, frequencies and their products. Tables in
    # half precision are not imitated: only a function has them, which is measured.
    phase: str = "exact"
    # The complex factors "positions rows pairs" of a function, in place of those that follow from the numbers.
    measured: Callable[[Any], Any] | None = None

    def factors(self, positions: object) -> Any:
        """The complex factors "positions rows pairs" at integer positions."""
        if self.measured is not None:
            return self.measured(np.asarray(positions))
        positions = np.asarray(positions)
        if self.phase == "exact" and self.growth is None and len(positions) > 4 << LOW_BITS:
            upper, number = np.unique(positions >> LOW_BITS, return_inverse=True)
            found = self.size * np.exp(1j * (self.start + (upper << LOW_BITS)[:, None, None] * self.step))[number]
            lower = np.exp(1j * np.arange(1 << LOW_BITS)[:, None, None] * self.step)
            found *= lower[positions & ((1 << LOW_BITS) - 1)]
            return found
        positions = positions[:, None, None]
        angles = _rounded(_rounded(positions, self.phase) * _rounded(self.step, self.phase), self.phase)
        size = self.size if self.growth is None else self.size * np.exp((positions - self.centre) * self.growth)
        return size * np.exp(1j * (self.start + angles))

    def error_of(self, positions: Array, precision: str, roundoff: float) -> Any:
        """How far factors "positions rows pairs" with phases and tables of this precision are from exact ones."""
        tables = ROUNDOFF[precision.partition(" ")[0]] if precision.endswith("tables") else 0.0
        size = np.maximum(self.size, 1.0)
        of_angle = size * PRECISIONS["float32" if tables else precision] * roundings(self.step)
        of_angle = of_angle + size * ROUNDINGS * ROUNDOFF["float64"]  # of a frequency that was measured
        fixed = size * ROUNDINGS * max(roundoff, tables) + of_angle * (np.abs(self.start) + np.abs(self.step))
        return fixed + np.asarray(positions)[:, None, None] * (of_angle * np.abs(self.step))

    def rotated(self, x: Any, positions: Any, row: int = 0) -> Any:
        """The result "rows head_dim" of rows of x at integer positions, by one row of frequencies."""
        first, second, to_first, to_second = self.channels
        turned = (x[:, first] + 1j * x[:, second]) * self.factors(positions)[:, row]
        result = x.copy()
        result[:, to_first], result[:, to_second] = turned.real, turned.imag
        return result

    @property
    def channels(self) -> Any:
        """The channels "4 pairs" of all pairs, in the order of the fields of `Pair`."""
        return np.array(self.pairs, dtype=int).reshape(-1, 4).T

    def matrices(self, positions: object, head_dim: int) -> Any:
        """The matrices "positions rows head_dim head_dim" that multiply a head, as a column, at integer positions."""
        factors = self.factors(positions)
        first, second, to_first, to_second = self.channels
        result = np.zeros((*factors.shape[:2], head_dim, head_dim))
        channels = np.arange(head_dim)
        result[..., channels, channels] = 1.0
        result[..., first, first] = result[..., second, second] = 0.0
        result[..., to_first, first] = result[..., to_second, second] = factors.real
        result[..., to_second, first], result[..., to_first, second] = factors.imag, -factors.imag
        return result

    def of_scores(self) -> "Map":
        """The map of scores: of a query at position p with a key at position 0, both rotated."""
        pairs = tuple(Pair(*pair[:2], *pair[:2]) for pair in self.pairs)
        start = np.zeros_like(self.start)
        measured = self.measured and (lambda positions: self.factors(positions) * self.factors([0]).conj())
        return self._replace(pairs=pairs, size=self.size**2, start=start, centre=0, measured=measured)


def _rounded(numbers: Array, precision: str) -> Any:
    """Numbers with the significant bits of a precision. Products of two float32 numbers are exact in float64."""
    bits = SIGNIFICANT_BITS.get(precision)
    return numbers if bits is None else rounded_to(bits, np.asarray(numbers, dtype=np.float64))


def map_of(rope: RotaryEmbedding | None, directions: Any = None, offset: int = 0, quarter: int = 0) -> Map:
    """The map of an embedding; without one, the map that leaves everything as it is.

    Parameters
    ----------
    rope : RotaryEmbedding or None
    directions : array, "directions axes", optional
        How fast each position axis grows with p. By default all grow by 1.
    offset : int
        Added to all positions.
    quarter : int
        If not 0, angles are so many quarter turns less themselves: sine and cosine are exchanged.
    """
    if rope is None:
        return Map(None, (), np.ones(0), np.zeros((1, 0)), np.zeros((1, 0)))
    directions = np.ones((1, rope.axes)) if directions is None else directions
    frequencies = frequencies_of(rope)
    step = np.einsum("da,ahp->dhp", directions, frequencies)
    start = np.broadcast_to(offset * frequencies.sum(axis=0), step.shape).reshape(-1, rope.pairs)  # of all axes
    step = step.reshape(-1, rope.pairs)
    if quarter:  # sin + i cos is i times the conjugate of cos + i sin
        start, step = quarter * pi / 2 - start, -step
    found = Map(rope.head_dim, pairs_of(rope), np.full(rope.pairs, rope.attention_factor), start, step)
    if rope.xpos is not None:
        found = found._replace(growth=np.array(rope._scale.rates), centre=rope.xpos.centre)
    return found._replace(phase=rope.phase)


def directions_of(ropes: list[RotaryEmbedding | None]) -> Any:
    """How positions grow where embeddings are compared: each axis alone, and all together.

    Embeddings with different numbers of axes are compared where all axes grow together, as for text.
    """
    axes = {rope.axes for rope in ropes if rope is not None}
    if len(axes) != 1 or axes == {1}:
        return None
    count = axes.pop()
    return np.concatenate([np.ones((1, count)), np.eye(count)])


def frequencies_of(rope: RotaryEmbedding) -> Any:
    """The frequencies "axes heads pairs" in float64."""
    inv_freq = rope.inv_freq
    if not isinstance(inv_freq, tuple):
        inv_freq = libraries.without_gradient(inv_freq).tolist()
    return np.array(inv_freq, dtype=np.float64).reshape(rope.axes, -1, rope.pairs)


def pairs_of(rope: RotaryEmbedding) -> tuple[Pair, ...]:
    """The channels of each pair."""
    rotation = rope._rotation
    read, written = (_channels(rope, layout) for layout in (rotation.read, rotation.write))
    return tuple(Pair(*one, *other) for one, other in zip(read, written))


def _channels(rope: RotaryEmbedding, layout: str) -> list[tuple[int, int]]:
    pairs, start, width = range(rope.pairs), rope.first_channel, rope.pairs // rope.blocks
    if layout == "interleaved":
        return [(start + 2 * j, start + 2 * j + 1) for j in pairs]
    return [(start + j + j // width * width, start + j + j // width * width + width) for j in pairs]


def aligned(a: Map, b: Map) -> tuple[Map, Map] | None:
    """Two maps over the pairs of both; None if a channel is in different pairs."""
    pairs = tuple(dict.fromkeys((*a.pairs, *b.pairs)))
    channels = [channel for pair in pairs for channel in pair[:2]]
    if len(set(channels)) < len(channels) or any(pair.is_moved for pair in set(a.pairs) ^ set(b.pairs)):
        return None
    return _over(a, pairs), _over(b, pairs)


def _over(each: Map, pairs: tuple[Pair, ...]) -> Map:
    """A map over these pairs, which include its own. The others are not rotated."""
    index = {pair: number for number, pair in enumerate(each.pairs)}
    own = [index.get(pair, len(index)) for pair in pairs]

    def columns(numbers: Any, of_others: float = 0.0) -> Any:
        return np.concatenate([numbers, np.full((*numbers.shape[:-1], 1), of_others)], axis=-1)[..., own]

    growth = None if each.growth is None else columns(each.growth)
    size, start, step = columns(each.size, 1.0), columns(each.start), columns(each.step)
    measured = each.measured and (lambda positions: columns(each.factors(positions), 1.0))
    return Map(each.head_dim, pairs, size, start, step, growth, each.centre, each.phase, measured)


def part_of(each: Map, kept: Any) -> Map:
    """The map of some pairs, by their numbers."""
    growth = None if each.growth is None else each.growth[kept]
    pairs = tuple(each.pairs[number] for number in kept)
    size, start, step = each.size[kept], each.start[:, kept], each.step[:, kept]
    measured = each.measured and (lambda positions: each.factors(positions)[..., kept])
    return Map(each.head_dim, pairs, size, start, step, growth, each.centre, each.phase, measured)


class Behaviour(NamedTuple):
    """A value, and what a function may do besides."""

    rope: RotaryEmbedding | None  # None if nothing is rotated
    factor: float = 1.0  # the attention factor, in addition to that of the scaling rule
    offset: int = 0  # added to all positions, in tokens
    # 1 if sine and cosine are exchanged; -1 if they are exchanged and both have the other sign; else 0.
    quarter: int = 0
    axis: str = "tokens"  # "tokens", or "heads" if each head is rotated by its number
    # How phases are computed: "exact", "float32", "float16" or "bfloat16", or with which rounding their sines and
    # cosines are: "float16 tables" or "bfloat16 tables".
    precision: str = "exact"
    roundoff: float = 0.0  # the unit roundoff of the results of a function, or of its tables if that is greater
    # The rule of the frequencies, in words, if a function changes a rule in a way that no value states.
    change: str = ""
    # The complex factors "positions rows pairs" of a function or of given frequencies, if they are not exactly those of
    # `rope`.
    measured: Callable[[Any], Any] | None = None

    @property
    def attention_factor(self) -> float:
        """The factor of sines and cosines."""
        return self.factor * factor_of_scaling(self.rope)

    @property
    def rotates(self) -> bool:
        """Whether some frequency is not 0."""
        return self.rope is not None and bool(frequencies_of(self.rope).any())

    def with_exact_phases(self) -> "Behaviour":
        """The same with exact phases."""
        return self._replace(precision="exact", measured=None)

    def map(self, directions: object = None) -> Map:
        """What it does to pairs of channels. Of heads that are rotated by their number, the map is that of head 1."""
        found = map_of(self.rope, directions, self.offset, self.quarter)
        found = found._replace(phase=self.precision, measured=self.measured)
        if self.axis == "heads":
            found = found._replace(start=found.start + found.step, step=0.0 * found.step)
        return found._replace(size=np.full(len(found.pairs), self.attention_factor))


def behaviour_of(rope: RotaryEmbedding | None) -> Behaviour:
    """What a value does."""
    if rope is None:
        return Behaviour(None)
    factor: Any = rope.attention_factor
    return Behaviour(rope, factor / factor_of_scaling(rope), precision=rope.phase)


def factor_of_scaling(rope: RotaryEmbedding | None) -> float:
    return 1.0 if rope is None or rope.scaling is None else rope.scaling.resolved_attention_factor
