"""What embeddings do, as values (`Behaviour`) and as numbers (`Map`): by what each pair of channels is multiplied."""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from math import pi
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rope_xp.arrays import libraries
from rope_xp.identification.precision import (
    BESIDES,
    PRECISIONS,
    ROUNDOFF,
    SIGNIFICANT_BITS,
    rounded_to,
    roundings,
    within_half_a_turn,
)
from rope_xp.layouts import READ_WRITE
from rope_xp.types import Embedding

# Roundings in a result: of both tables, of two products, of their sum, and of the attention factor, with some to spare.
ROUNDINGS = 8
# Positions are split at so many bits: factors of both parts are few, and their product takes no sines.
LOW_BITS = 8

Complex: TypeAlias = NDArray[np.complex128]
# The complex factors "positions rows pairs" of a function at integer positions.
Factors: TypeAlias = Callable[[np.ndarray], Complex]


class Pair(NamedTuple):
    """The channels of one pair: those that are read, and those where the result is written."""

    first: int
    second: int
    first_written: int
    second_written: int

    @property
    def is_moved(self) -> bool:
        return self[:2] != self[2:]


class Map(NamedTuple):
    """What an embedding does: at position p, a pair is multiplied by ``size * exp(i (start + step p))``."""

    head_dim: int | None  # None if every width is left as it is
    pairs: tuple[Pair, ...]
    size: np.ndarray  # "pairs"
    # "rows pairs" in radians, and "axes rows pairs" in radians per token. There is a row for each direction of
    # positions and for each head.
    start: np.ndarray
    steps: np.ndarray
    growth: np.ndarray | None = None  # "pairs": how much the logarithm of a query's size changes per token, by `XPos`
    centre: int = 0  # the position at which `growth` changes no size
    # "exact", or a key of `SIGNIFICANT_BITS`: the precision of positions, frequencies and their products. Tables in
    # half precision are not imitated: only a function has them, which is measured.
    phase: str = "exact"
    own_factors: Factors | None = None  # of a function, in place of those that follow from the numbers

    @property
    def step(self) -> np.ndarray:
        return self.steps.sum(axis=0)

    def factors(self, positions: ArrayLike) -> Complex:
        """The complex factors "positions rows pairs" at integer positions."""
        positions = np.asarray(positions)
        if self.own_factors is not None:
            return self.own_factors(positions)
        # The products of a pair that follows several axes are rounded one by one.
        steps = self.steps if (np.count_nonzero(self.steps, axis=0) > 1).any() else self.step[None]
        if self.phase == "exact":
            steps = within_half_a_turn(self.step)[None]
        if self.phase == "exact" and self.growth is None and len(positions) > 4 << LOW_BITS:
            [step] = steps
            upper, number = np.unique(positions >> LOW_BITS, return_inverse=True)
            found = self.size * np.exp(1j * (self.start + (upper << LOW_BITS)[:, None, None] * step))[number]
            lower = np.exp(1j * np.arange(1 << LOW_BITS)[:, None, None] * step)
            found *= lower[positions & ((1 << LOW_BITS) - 1)]
            return found
        positions, rounded = positions[:, None, None], partial(_rounded, precision=self.phase)
        products = [rounded(rounded(positions) * rounded(step)) for step in steps]
        angles = reduce(lambda total, product: rounded(total + product), products)
        size = self.size if self.growth is None else self.size * np.exp((positions - self.centre) * self.growth)
        return size * np.exp(1j * (self.start + angles))

    def error_of(self, positions: np.ndarray, precision: str, roundoff: float) -> np.ndarray:
        """How far factors "positions rows pairs" with phases and tables of this precision are from exact ones."""
        tables = ROUNDOFF[precision.partition(" ")[0]] if precision.endswith("tables") else 0.0
        size, positions = np.maximum(self.size, 1.0), positions[:, None, None]
        phase = "float32" if tables else precision
        of_angle = PRECISIONS[phase] * roundings(self.step) + ROUNDINGS * ROUNDOFF["float64"]  # of a measurement
        of_token = of_angle * np.abs(self.step) + BESIDES.get(phase, 0.0) * PRECISIONS[phase]
        of_phase = of_angle * np.abs(self.start) + (positions + 1) * of_token
        return size * (ROUNDINGS * max(roundoff, tables) + of_phase)

    def rotated(self, x: np.ndarray, positions: np.ndarray, row: int = 0) -> np.ndarray:
        if self.own_factors is not None:
            return self._multiplied(x, self.factors(positions)[:, row])
        alone = self._replace(start=self.start[[row]], steps=self.steps[:, [row]])
        return self._multiplied(x, alone.factors(positions)[:, 0])

    def matrices(self, positions: ArrayLike, head_dim: int) -> np.ndarray:
        """The matrices "positions rows outputs inputs"."""
        of_inputs = self._multiplied(np.eye(head_dim), self.factors(positions)[..., None, :])
        return of_inputs.swapaxes(-1, -2)

    def _multiplied(self, x: np.ndarray, factors: Complex) -> np.ndarray:
        first, second, to_first, to_second = self.channels
        turned = complex_of(x, first, second) * factors
        result = np.broadcast_to(x, (*turned.shape[:-1], x.shape[-1])).copy()
        result[..., to_first], result[..., to_second] = turned.real, turned.imag
        return result

    @property
    def channels(self) -> np.ndarray:
        return np.array(self.pairs, dtype=int).reshape(len(self.pairs), 4).T

    def of_keys(self) -> "Map":
        """The map of keys, which XPos makes as much shorter as it makes queries longer."""
        return self if self.growth is None else self._replace(growth=-self.growth)

    def of_scores(self) -> "Map":
        """The map of scores: of a query at position p with a key at position 0, both rotated."""
        pairs = tuple(Pair(*pair[:2], *pair[:2]) for pair in self.pairs)
        start = np.zeros_like(self.start)
        own_factors = self.own_factors and (lambda positions: self.factors(positions) * self.factors([0]).conj())
        return self._replace(pairs=pairs, size=self.size**2, start=start, centre=0, own_factors=own_factors)

    def over(self, pairs: tuple[Pair, ...]) -> "Map":
        index = {pair: number for number, pair in enumerate(self.pairs)}
        own = [index.get(pair, len(index)) for pair in pairs]

        def columns(values: np.ndarray, of_others: float) -> np.ndarray:
            return np.take(np.concatenate([values, np.full((*values.shape[:-1], 1), of_others)], axis=-1), own, axis=-1)

        return self._replace(
            pairs=pairs,
            size=columns(self.size, 1.0),
            start=columns(self.start, 0.0),
            steps=columns(self.steps, 0.0),
            growth=None if self.growth is None else columns(self.growth, 0.0),
            own_factors=self.own_factors and (lambda positions: columns(self.factors(positions), 1.0)),
        )


def complex_of(x: np.ndarray, first: np.ndarray, second: np.ndarray) -> Complex:
    """Numbers of float64 in pairs of columns, as complex numbers."""
    return np.take(x, np.stack([first, second], axis=-1).ravel(), axis=-1).view(np.complex128)


def _rounded(numbers: np.ndarray, precision: str) -> np.ndarray:
    """Numbers with the significant bits of a precision. Products of two float32 numbers are exact in float64."""
    bits = SIGNIFICANT_BITS.get(precision)
    return numbers if bits is None else rounded_to(bits, np.asarray(numbers, dtype=np.float64))


def aligned(a: Map, b: Map) -> tuple[Map, Map] | None:
    """Two maps over the pairs of both; None if a channel is in different pairs."""
    pairs = tuple(dict.fromkeys((*a.pairs, *b.pairs)))
    channels = [channel for pair in pairs for channel in pair[:2]]
    if len(set(channels)) < len(channels) or any(pair.is_moved for pair in set(a.pairs) ^ set(b.pairs)):
        return None
    return a.over(pairs), b.over(pairs)


class Behaviour(NamedTuple):
    """A value, and what a function may do besides."""

    rope: Embedding | None  # None if nothing is rotated
    attention_factor: float = 1.0
    offset: int | float = 0  # added to all positions, in tokens
    # 1 if sine and cosine are exchanged; -1 if they are exchanged and both have the other sign; else 0.
    exchanged: int = 0
    axis: str = "tokens"  # "tokens", or "heads" if each head is rotated by its number
    # How phases are computed: "exact", "float32", "float16" or "bfloat16", or with which rounding their sines and
    # cosines are: "float16 tables" or "bfloat16 tables".
    precision: str = "exact"
    softmax_scale: float = 1.0  # that goes with a value
    roundoff: float = 0.0  # the unit roundoff of the results of a function, or of its tables if that is greater
    # The rule of the frequencies, in words, if a function changes a rule in a way that no value states.
    change: str = ""
    own_factors: Factors | None = None  # what a function itself computes, if it is not exactly what `rope` does

    @property
    def rotates(self) -> bool:
        return self.rope is not None and bool(frequencies_of(self.rope).any())

    def with_exact_phases(self) -> "Behaviour":
        return self._replace(precision="exact", own_factors=None)

    def map(self, directions: np.ndarray | None = None) -> Map:
        """What it does along one of `directions_of`, by default all axes. Of heads that differ by number: head 1."""
        rope = self.rope
        if rope is None:
            start, steps = np.zeros((1, 0)), np.zeros((1, 1, 0))
            return Map(None, (), np.zeros(0), start, steps, phase=self.precision, own_factors=self.own_factors)
        directions = np.ones((1, rope.axes)) if directions is None else directions
        frequencies = frequencies_of(rope)
        steps = np.einsum("da,ahp->adhp", directions, frequencies).reshape(rope.axes, -1, rope.pairs)
        start = np.tile(self.offset * frequencies.sum(axis=0), (len(directions), 1))
        if self.exchanged:  # sin + i cos is i times the conjugate of cos + i sin
            start, steps = self.exchanged * pi / 2 - start, -steps
        if self.axis == "heads":
            start, steps = start + steps.sum(axis=0), 0.0 * steps
        growth, centre = (None, 0) if rope.xpos is None else (np.array(rope._scale.rates), rope.xpos.centre)
        size = np.full(rope.pairs, self.attention_factor)
        return Map(rope.head_dim, pairs_of(rope), size, start, steps, growth, centre, self.precision, self.own_factors)


def behaviour_of(rope: Embedding | None) -> Behaviour:
    if rope is None:
        return Behaviour(None)
    return Behaviour(rope, rope.attention_factor, precision=rope.phase, softmax_scale=rope.softmax_scale)


def replaced(rope: Any, **arguments: object) -> Any:
    """A value with other arguments; None if they do not fit together, or without a value."""
    try:
        return rope and rope.replace(**arguments)
    except ValueError:
        return None


def directions_of(ropes: Sequence[Embedding | None]) -> np.ndarray | None:
    """How fast each position axis grows, "directions axes": each alone, and together; else only together."""
    axes = {rope.axes for rope in ropes if rope is not None}
    if len(axes) != 1 or axes == {1}:
        return None
    count = axes.pop()
    return np.concatenate([np.ones((1, count)), np.eye(count)])


def frequencies_of(rope: Embedding) -> np.ndarray:
    inv_freq = rope.inv_freq
    if not isinstance(inv_freq, tuple):
        inv_freq = libraries.without_gradient(inv_freq).tolist()
    return np.array(inv_freq, dtype=np.float64).reshape(rope.axes, -1, rope.pairs)


def pairs_of(rope: Embedding) -> tuple[Pair, ...]:
    return pairs_in(rope.layout, rope.first_channel, rope.pairs, rope.blocks)


def pairs_in(layout: str, first_channel: int, pairs: int, blocks: int) -> tuple[Pair, ...]:
    read, written = (_channels_in(pairing, first_channel, pairs, blocks) for pairing in READ_WRITE[layout])
    return tuple(Pair(*one, *other) for one, other in zip(read, written))


def _channels_in(pairing: str, start: int, pairs: int, blocks: int) -> list[tuple[int, int]]:
    if pairing == "interleaved":
        return [(start + 2 * j, start + 2 * j + 1) for j in range(pairs)]
    width = pairs // blocks
    return [(start + j + j // width * width, start + j + j // width * width + width) for j in range(pairs)]
