"""What a function does to a few rows at a few positions, and whether a behaviour reproduces it."""

from collections.abc import Callable, Iterator
from copy import copy
from textwrap import shorten
from typing import Any

import numpy as np

from rope_xp._compare.behaviour import Behaviour
from rope_xp._compare.maps import Map
from rope_xp._core import backends
from rope_xp._identify.calls import ROUNDOFF, call
from rope_xp._identify.phases import COARSE_BITS
from rope_xp._identify.probe import LONGEST_INDEX, Probe
from rope_xp._identify.rules import rounded_to, roundings

NEAR = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55)
# The last position that is tried first, and the next ones if a function fails there.
LAST = (100_003, 65_535, 32_767, 16_383, 8191, 4095, 2047, 1023, 511, 257, 127, NEAR[-1])
POSITIONS = sorted({*NEAR, *LAST})
# Most tables have not ended at it.
NEAR_END = 4095
# All positions below it are tried before a function is said to be the same, and some beyond it, in parts.
ALL_TRIED, CHUNK = 2**15, 2**13
# The unit roundoff of phases and that of sines and cosines, from the best to the worst. Exact phases may be products of
# float64.
PRECISIONS = {
    "exact": (2.0**-50, 0.0),
    "float32": (2.0**-24, 2.0**-24),
    "float16 tables": (2.0**-24, 2.0**-11),
    "bfloat16 tables": (2.0**-24, 2.0**-8),
    "float16": (2.0**-11, 2.0**-11),
    "bfloat16": (2.0**-8, 2.0**-8),
}
# Those whose errors are small.
ACCURATE = ("exact", "float32")
# Roundings in a result: of both tables, of two products, of their sum, and of the attention factor, with some to spare.
ROUNDINGS = 16


class Measured:
    """Small numbers, which all dtypes hold exactly, and what a function makes of them at some positions.

    Parameters
    ----------
    fn : callable
        ``fn(x, positions)``.
    head_dim : int
    directions : array, "directions axes", or None
        How fast each position axis grows. None for one position axis.
    **options
        `shape`, `like` and `who` of `Probe`.

    Attributes
    ----------
    probe, probes : Probe, list of Probe
        The calls with the first direction of positions, and with each.
    positions : array, "rows"
    x : array, "rows head_dim"
    results : list of array, "rows head_dim"
        One for each direction. Empty if the function failed, at far positions and at near ones.
    problems : list of str
        What went wrong, in plain words.
    length : int or None
        The positions that work, if the function fails beyond them.
    width : int
        How many channels change at some position, rounded up to an even number.
    """

    def __init__(self, fn: Callable[[Any, Any], Any], head_dim: int, directions: Any, **options: Any):
        functions = [fn] if directions is None else [_along(fn, direction) for direction in directions]
        self.probe = Probe(functions[0], head_dim, **options)
        others = functions[1:] if self.probe.follows == "positions" else []
        self.probes = [self.probe, *(Probe(each, head_dim, **options) for each in others)]
        x = np.random.default_rng(0).integers(1, 8, (2, head_dim)) / 4.0 * [[1.0], [-1.0]]
        x = np.concatenate([x, x.sum(axis=0, keepdims=True)])
        longest = [last for last in LAST if last < LONGEST_INDEX or self.probe.follows != "index"]
        self.results: list[Any] = []
        while longest and not self.results:
            positions = [position for position in POSITIONS if position <= longest[0]]
            self.x, self.positions = np.tile(x, (len(positions), 1)), np.repeat(np.array(positions), 3)
            results = [each(self.x, self.positions) for each in self.probes]
            self.results = [] if any(each is None for each in results) else results
            longest = longest[1:]
        fails = bool(self.results) and self.positions[-1] < LAST[0] and self.probe.follows != "index"
        self.length = int(self.positions[-1]) + 1 if fails else None
        problems = [problem for each in self.probes for problem in each.problems]
        self.problems = [shorten(problem, 240) for problem in dict.fromkeys(problems)][:2]
        # Tables in float32 are exact enough for results in any dtype.
        eps = max(self.probe.eps, ROUNDOFF["float32"])
        self.rounding = ROUNDINGS * eps * float(np.abs(self.x).max())
        moved = sum((np.abs(y - self.x) > self.rounding).any(axis=0) for y in self.results)
        self.width = 2 * ((int(np.count_nonzero(moved)) + 1) // 2)

    def near(self) -> "Measured":
        """The results at positions at which most tables have not ended."""
        found, rows = copy(self), self.positions <= NEAR_END
        found.x, found.positions, found.results = self.x[rows], self.positions[rows], [y[rows] for y in self.results]
        return found

    def of_text(self) -> "Measured":
        """The results where all position axes are equal."""
        found = copy(self)
        found.results = self.results[:1]
        return found

    def is_identity(self) -> bool:
        """Whether the function, whose results do not follow positions, returns x."""
        x, sizes = self.x[:1], {"batch": 1, "heads": 1, "seq": 1}
        form = self.probe._form
        y = call(self.probe.fn, form, x.reshape(*[1] * len(form.shape[:-1]), -1), sizes, np.array([1])).y
        return bool(np.abs(y - x).max() <= self.rounding)

    def is_linear(self) -> bool:
        """Whether the sum of two rows gives the sum of their results."""
        return all(
            float(np.abs(y[0::3] + y[1::3] - y[2::3]).max()) <= self.rounding * max(1.0, float(np.abs(y).max()))
            for y in self.results
        )

    def factors(self, behaviour: Behaviour, position: int) -> Any:
        """The complex factor of each pair of a behaviour at a position that was measured."""
        row = int(np.nonzero(self.positions == position)[0][0])
        first, second, to_first, to_second = behaviour.map().channels
        x, y = self.x[row], self.results[0][row]
        factors = (y[to_first] + 1j * y[to_second]) / (x[first] + 1j * x[second])
        return 1j * factors.conj() if behaviour.is_swapped else factors

    def frequency(self, behaviour: Behaviour, pair: int) -> float:
        """The frequency of a pair, in radians per token, without its sign. Each position makes it more accurate."""
        start = self.factors(behaviour, 0)[pair]
        found = 0.0
        for position in NEAR[1:]:
            angle = np.angle(self.factors(behaviour, position)[pair] * np.conj(start))
            turns = np.round((found * position - angle) / (2 * np.pi))
            found = float((angle + 2 * np.pi * turns) / position)
        return abs(found)

    def precision(self, behaviour: Behaviour, directions: Any) -> str | None:
        """The precision of phases with which a behaviour reproduces the function; None if it does not.

        Of precisions that allow great errors, only one whose errors are seen where it must have them.
        """
        exact = behaviour.with_exact_phases().map(directions)
        errors = [np.abs(y - exact.rotated(self.x, self.positions, row)) for row, y in enumerate(self.results)]
        for name in PRECISIONS:
            limits = [self._limit(name, exact, self.x, self.positions, row) for row in range(len(errors))]
            if all((error <= limit).all() for error, limit in zip(errors, limits)) and (
                name in ACCURATE or self._is_seen(name, exact, errors[0], behaviour.offset)
            ):
                return name
        return None

    def first_unlike(self, behaviour: Behaviour, directions: Any, context: int, tolerance: float) -> int | None:
        """The first position below `context`, of those of `tried`, at which a behaviour does not give the same result.

        None if there is none. Each channel of x is 1, so that results differ as much as the factors of a pair.
        """
        exact = behaviour.with_exact_phases().map(directions)
        for row, probe in enumerate(self.probes):
            for positions in tried(context if probe.follows == "positions" else min(context, LONGEST_INDEX)):
                x = np.ones((len(positions), probe.head_dim))
                y, expected = probe(x, positions), exact.rotated(x, positions, row)
                limit = self._limit(behaviour.precision, exact, x, positions, row) + tolerance
                unlike = y is None or (np.abs(y - expected) > limit * np.maximum(1.0, np.abs(expected))).any(axis=1)
                if np.any(unlike):
                    return int(positions[np.argmax(unlike)])
        return None

    def _limit(self, name: str, exact: Map, x: Any, positions: Any, row: int) -> Any:
        """The largest error of results "rows head_dim" with phases of this precision."""
        roundoff, of_tables = PRECISIONS[name]
        fixed = max(1.0, float(exact.size.max(initial=1.0))) * (self.rounding + 4 * of_tables * float(np.abs(x).max()))
        return fixed + roundoff * _phase_error(exact, x, positions, row)

    def _is_seen(self, name: str, exact: Map, error: Any, offset: int) -> bool:
        """Whether errors of half precision are seen: of tables at small positions, of positions where they round."""
        limit = self._limit("float32", exact, self.x, self.positions, 0)
        if name not in COARSE_BITS:
            return bool((error > limit)[self.positions <= NEAR[-1]].any())
        rounded = rounded_to(COARSE_BITS[name], self.positions + offset) - offset
        expected = np.abs(exact.rotated(self.x, rounded) - exact.rotated(self.x, self.positions))
        great = expected > 4 * limit
        return bool(((great & (error > limit)).any(axis=1) == great.any(axis=1)).all())


def _phase_error(exact: Map, x: Any, positions: Any, row: int) -> Any:
    """The error of each result if each rounding of a phase, and of its frequency, had a relative error of one."""
    first, second, to_first, to_second = exact.channels
    length = np.abs(x[:, first] + 1j * x[:, second]) * exact.size
    error = np.zeros_like(x)
    angles = np.abs(exact.step[row]) * (positions[:, None] + 1.0)
    error[:, to_first] = error[:, to_second] = roundings(exact.step[row]) * length * angles
    return error


def tried(context: int) -> Iterator[Any]:
    """Positions below `context` in ascending order, in parts: all up to `ALL_TRIED`, then some."""
    some = {context - 1, *(2**power + each for power in range(32) for each in (-1, 0, 1))}
    some |= {*np.random.default_rng(0).integers(0, context, CHUNK).tolist()}
    far = np.array(sorted(each for each in some if ALL_TRIED <= each < context), dtype=int)
    near = np.arange(min(context, ALL_TRIED))
    for positions in (near, far):
        yield from (positions[start : start + CHUNK] for start in range(0, len(positions), CHUNK))


def measured_factors(probe: Probe, behaviour: Behaviour) -> Callable[[Any], Any]:
    """The complex factors "positions 1 pairs" of a function at any positions.

    Where the function fails, they are those of the behaviour.
    """
    first, _, to_first, to_second = behaviour.map().channels
    row = np.zeros(probe.head_dim)
    row[first] = 1.0

    def factors(positions: Any) -> Any:
        y = probe(np.broadcast_to(row, (len(positions), probe.head_dim)), positions)
        if y is None:
            return behaviour._replace(measured=None).map().factors(positions)
        return (y[:, to_first] + 1j * y[:, to_second])[:, None]

    return factors


def _along(fn: Callable[[Any, Any], Any], direction: Any) -> Callable[[Any, Any], Any]:
    """A function of positions of several axes as one of a single axis."""

    def along(x: Any, positions: Any) -> Any:
        return fn(x, backends.namespace(positions).stack([int(speed) * positions for speed in direction]))

    return along
