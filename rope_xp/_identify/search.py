"""The steps of `identify`: matrices, pairs, angles, frequencies, and the value that explains them."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from rope_xp._core.embedding import RotaryEmbedding
from rope_xp._identify.blocks import (
    Blocks,
    Channels,
    alone_in_words,
    blocks_of,
    channels_of,
    probes,
    rotations_of,
    roundoff_of,
    why_no_rotation,
)
from rope_xp._identify.calls import ROUNDOFF
from rope_xp._identify.identification import Identification
from rope_xp._identify.phases import (
    COARSE_BITS,
    PRECISIONS,
    Frequencies,
    Precision,
    frequencies_of,
    narrowed,
    powers,
    precision_of,
    spread,
    start_of,
    wrapped,
)
from rope_xp._identify.probe import Probe
from rope_xp._identify.rules import attention_in_words, rounded_to, roundings
from rope_xp._identify.values import Rotation, Value, rule_in_any_order, value_of
from rope_xp.frequencies import YarnScaling

# Positions of short calls. Differences of positions repeat: 1 - 0 and 5 - 4, 2 - 0 and 4 - 2.
SHORT = np.array([0, 1, 2, 4, 5])
# Lengths to test if longer ones fail.
LENGTHS = tuple(2**k for k in (20, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3))
# Sines and cosines with this unit roundoff, or a greater one, give frequencies at many positions only.
COARSE = ROUNDOFF["float16"]
# All positions below it are tried before a value is said to explain the function.
TRIED = 4096
# Positions that are no powers of two, whose products with frequencies are rounded, and which bfloat16 rounds.
ODD = (3, 7, 37, 101, 257, 259, 511, 1001, 2047, 4097, 10_007, 32_771, 65_537, 100_000, 131_071, 1_048_575)


class Measurement(NamedTuple):
    """Blocks "positions pairs 2 2" of one long call, whose positions begin with those of `powers`."""

    positions: np.ndarray
    blocks: np.ndarray


class Search:
    """One search. `report` holds what is known so far, and `reasons` the sentences about it."""

    def __init__(self, probe: Probe, seq_len: int):
        self.probe = probe
        self.seq_len = seq_len
        self.eps = self.of_results = probe.eps
        self.reasons: list[str] = []
        self._limits: dict[str, str] = {}  # why longer positions were not tested: the last words of each kind
        self.report = Identification(
            shape=probe.shape, axis=probe.axis, library=probe.library or None, dtype=probe.dtype or None
        )

    def run(self) -> Identification:
        """The report."""
        if self._can_be_called():
            with np.errstate(all="ignore"):  # extreme numbers of a function
                self._search()
        reasons = dict.fromkeys([*self.reasons, *self.probe.problems])
        return replace(self.report, reasons=tuple(each[0].upper() + each[1:] + "." for each in reasons))

    def _search(self) -> None:
        matrices = self._matrices()
        if matrices is not None:
            self.eps = max(self.probe.eps, _roundoff_of(matrices))
            if self._is_linear(matrices):
                self._rotation(matrices)

    def note(self, words: str = "", **known: Any) -> None:
        """Add a reason, and what is known."""
        self.reasons += [words] if words else []
        self.report = replace(self.report, **known)

    def _can_be_called(self) -> bool:
        """Whether the function can be probed. Says what decides its results, if positions do not."""
        follows, axis = self.probe.follows, self.probe.axis
        if follows == "first call":
            words = "it keeps state: a call repeats the positions of the first call with its shape, and ignores its own"
            self.note(words, stateful=True)
        elif follows == "nothing":
            self.note("not a rotary embedding: the result depends neither on positions nor on the order of rows")
            self.note(is_rotation=False)
        elif follows == "index":
            words = "" if self.probe.is_stated else "; state `shape` to find out whether that axis holds heads"
            self.note(f"it ignores positions: each row is rotated by its index along the axis {axis}{words}")
        if axis == "heads":
            self.note("heads are rotated in place of positions: equal rows of different heads get different angles")
        return follows not in (None, "nothing")

    def _matrices(self) -> np.ndarray | None:
        """The matrix of each position of `SHORT`, "positions outputs inputs"."""
        width = self.probe.head_dim
        results = self.probe(np.tile(np.eye(width), (len(SHORT), 1)), np.repeat(SHORT, width))
        return None if results is None else results.reshape(len(SHORT), width, width).transpose(0, 2, 1)

    def _is_linear(self, matrices: np.ndarray) -> bool:
        """Whether the matrices explain the results for other rows."""
        x = _integers(len(SHORT), self.probe.head_dim)
        y, doubled = self.probe(x, SHORT), self.probe(2 * x, SHORT)
        if y is None or doubled is None:
            return False
        close = 64 * self.eps * np.abs(y).max() * self.probe.head_dim**0.5
        self.of_results = max(self.probe.eps, _roundoff_of(y))
        if np.abs(doubled - 2 * y).max() > close:
            self.note("not a rotation: the function is not linear; twice x does not give twice the result")
            self.note(is_rotation=False)
        elif np.abs(np.einsum("poi,pi->po", matrices, x) - y).max() > close:
            self.note("not a rotation: the result of a row is not the sum of the results of its channels")
            self.note(is_rotation=False)
        else:
            return True
        return False

    def _rotation(self, matrices: np.ndarray) -> None:
        """Pairs, then angles."""
        channels = channels_of(matrices, self.eps)
        self.note(relative=_are_scores_relative(matrices, self.eps))
        pairs = tuple((int(a), int(b)) for a, b in channels.inputs)
        self.note(pairs=pairs, kept=channels.kept)
        if channels.problem is not None:
            self.note(f"not a rotation: {channels.problem}", is_rotation=False)
        else:
            self._angles(channels, self._measure(channels, matrices), matrices)

    def _measure(self, channels: Channels, matrices: np.ndarray) -> Measurement:
        """The blocks at positions as long as the function follows.

        A shorter call follows if a long one fails, if a long one changes the result of a short position, or if angles
        do not follow. Then the first call is made again, to find out whether the long ones changed its result.
        """
        found = short = Measurement(SHORT, matrices[:, channels.outputs[:, :, None], channels.inputs[:, None, :]])
        seq_len = self.seq_len
        while seq_len >= LENGTHS[-1]:
            long = self._long(channels, seq_len)
            seq_len = next((each for each in LENGTHS if each < seq_len), 0)
            if long is None:
                self._limits["failure"] = f"with longer ones {self.probe.problems.pop()}"
            elif np.abs(long.blocks[1] - short.blocks[1]).max() > 16 * self.eps * np.abs(short.blocks).max():
                self._limits["length"] = "the frequencies depend on the largest position of a call"
            else:
                until = _until(long, self.eps)
                if until is None or until <= LENGTHS[-1]:
                    found = long
                    break
                where = "there" if until in LENGTHS else "before it"
                self._limits["table"] = f"at {until:,} the angles do not follow: a table may end {where}"
                seq_len = next(each for each in LENGTHS if each <= until)
        self._has_state(matrices)
        return found

    def _long(self, channels: Channels, seq_len: int) -> Measurement | None:
        """The blocks of one call at positions below `seq_len`."""
        positions = np.concatenate([powers(seq_len), [each for each in (*ODD, seq_len - 1) if each < seq_len]])
        results = self.probe(*probes(channels, positions, self.probe.head_dim))
        return None if results is None else Measurement(positions, blocks_of(channels, results))

    def _has_state(self, matrices: np.ndarray) -> None:
        """Whether the same short call gives another result after long ones."""
        again = self._matrices()
        if again is not None and not self.report.stateful:
            stateful = bool(np.abs(again - matrices).max() > 64 * self.eps * np.abs(matrices).max())
            self.note("it keeps state: a short call gives another result after a long one" if stateful else "")
            self.note(stateful=stateful)

    def _angles(self, channels: Channels, measurement: Measurement, matrices: np.ndarray) -> None:
        """Frequencies and what the angles at position 0 say; then the value."""
        rotations = rotations_of(measurement.blocks)
        roundoff = roundoff_of(rotations, self.eps)
        longest = int(measurement.positions.max())
        self.note(longest=longest)
        for words in self._limits.values():
            self.note(f"positions up to {longest:,} are tested: {words}")
        if roundoff is None:
            self.note(f"not a rotation: {why_no_rotation(measurement.blocks, channels.inputs)}", is_rotation=False)
            return
        self.note(is_rotation=True, relative=_are_scores_relative(matrices, roundoff))
        frequencies = frequencies_of(rotations.angle[: len(powers(longest + 1))], roundoff)
        rotation = Rotation(
            self.probe.head_dim, channels, frequencies, _direction(frequencies), *_magnitude(rotations, roundoff)
        )
        self.note(magnitude=rotation.magnitude)
        if frequencies.until is not None:
            self.note("not a rotary embedding: angles are not proportional to positions")
            return
        start = start_of(frequencies.start, frequencies.values, frequencies.errors, roundoff)
        if start.offset is not None:
            frequencies = self._narrowed(channels, frequencies, start.offset, roundoff)
            rotation = rotation._replace(frequencies=frequencies)
        self.note(offset=start.offset, inv_freq=tuple(frequencies.values.tolist()))
        self.note(start.words if start.offset is not None else f"not a rotary embedding: {start.words}")
        if start.offset is not None:
            self.note(direction=rotation.direction)
            self._value(rotation, measurement.positions[1:], rotations.angle[1:], roundoff)

    def _narrowed(self, channels: Channels, known: Frequencies, offset: float, roundoff: float) -> Frequencies:
        """Frequencies from more positions if sines and cosines have few digits."""
        if roundoff < COARSE:
            return known
        positions = spread(self.report.longest or 0)
        positions = positions[positions + offset != 0]
        results = self.probe(*probes(channels, positions, self.probe.head_dim))
        if results is None:
            return known
        return narrowed(known, rotations_of(blocks_of(channels, results)).angle, positions + offset, roundoff)

    def _value(self, rotation: Rotation, positions: np.ndarray, angle: np.ndarray, roundoff: float) -> None:
        """The value, the precision of its phases, and how much of the function it explains."""
        value, w, errors = value_of(rotation), rotation.frequencies.values, rotation.frequencies.errors
        if value is not None:
            w = np.asarray(value.rope.inv_freq)[value.numbers]
            errors = errors if value.rope.base is None else np.zeros(len(w))
        precision = precision_of(angle, positions, w, self.report.offset or 0, errors, roundoff)
        self._note_precision(precision, positions, roundoff)
        if value is None:
            rule = rule_in_any_order(rotation)
            of_rule = "" if rule is None else f"; their frequencies are those of {rule.in_words()}, in some order"
            self.note(f"no layout has these pairs{of_rule}")
            return
        self._note_rule(value, rotation.magnitude_error)
        off = np.abs(rotation.frequencies.values / np.where(w, w, 1.0) - 1.0)[w != 0.0].max()
        self.note(f"the frequencies of {len(w)} pairs were measured; those of the value are within {off:.1e} of each")
        explained = self._explained(value.rope, positions, precision, roundoff)
        resolved = float(np.mean(rotation.frequencies.errors <= 1e-3 * np.abs(rotation.frequencies.values)))
        self.note(layout=value.rope.layout, confidence=resolved * explained)
        unlike = None if precision.name is None else self._first_unlike(value.rope, precision.name, errors, roundoff)
        if unlike is not None:
            words = f"at position {unlike:,}, it is not the function that it is at other positions"
            self.note(words, confidence=0.0)
        elif precision.name is not None and explained == 1.0:
            self.note(rope=value.rope, magnitude=value.rope.attention_factor)
        elif rotation.channels.scaled:
            self.note(alone_in_words(rotation.channels.scaled))

    def _note_precision(self, precision: Precision, positions: np.ndarray, roundoff: float) -> None:
        """The precision of phases; of tables if only they have so few digits, and other numbers have more."""
        row = int(np.argmax(precision.errors))
        error = f"at position {positions[row]:,} they are off by {precision.errors[row]:.3g} radians"
        if precision.name is None:
            self.note(f"angles are not positions times frequencies: {error}")
        elif precision.name != "exact":
            words = "scores there do not depend on relative positions alone"
            self.note(f"phases have the precision of {precision.name}: {error}, and {words}")
        rounded = next((name for name in COARSE_BITS if ROUNDOFF[name] == roundoff > self.of_results), None)
        if rounded and precision.name in ("exact", "float32"):
            self.note(f"sines and cosines are rounded to {rounded}", precision=f"{rounded} tables")
        else:
            self.note(precision=precision.name)

    def _note_rule(self, value: Value, error: float) -> None:
        rope = value.rope
        if value.change is not None:
            self.note(f"the frequencies are those of {value.change.in_words()}, and are given as numbers")
        elif rope.base is None:
            self.note("no scaling rule explains the frequencies, so they are given as numbers")
        scaling = rope.scaling if value.change is None else value.change.scaling
        if isinstance(scaling, YarnScaling):
            self.note(attention_in_words(scaling, rope.attention_factor or 1.0, 2 * error))

    def _explained(self, rope: RotaryEmbedding, positions: np.ndarray, precision: Precision, roundoff: float) -> float:
        """The part of the numbers that the value explains, for other rows than those that were measured.

        A pair of numbers up to 4 has a length below 6. Its angle may be off by as much as the measured one.
        """
        x = _integers(len(positions), self.probe.head_dim)
        y = self.probe(x, positions)
        if y is None:
            return 0.0
        ours = rope.replace(kernel="reference")(x, seq_dim=0, positions=positions + (self.report.offset or 0))
        close = 6.0 * max(self.report.magnitude or 1.0, 1.0) * (precision.errors + 16 * roundoff)
        explained = np.abs(y - ours) <= close[:, None]
        self.note(f"of {explained.size:,} numbers of other rows, the value gives {explained.sum():,} within tolerance")
        return float(explained.mean())

    def _first_unlike(self, rope: RotaryEmbedding, precision: str, errors: np.ndarray, roundoff: float) -> int | None:
        """The first position of many at which the value does not explain the function; None without one."""
        positions = np.arange(min(TRIED, (self.report.longest or 0) + 1))
        x = np.ones((len(positions), self.probe.head_dim))
        y, where = self.probe(x, positions), positions + (self.report.offset or 0)
        ours = rope.replace(kernel="reference")(x, seq_dim=0, positions=where)
        w = np.asarray(rope.inv_freq)
        phase = np.abs(where) * (np.max(errors) + PRECISIONS[precision] * np.max(np.abs(w) * roundings(w)))
        limit = 6.0 * max(self.report.magnitude or 1.0, 1.0) * (phase + 16 * roundoff)
        unlike = y is None or np.abs(y - ours).max(axis=1) > limit
        return int(positions[np.argmax(unlike)]) if np.any(unlike) else None


def _integers(rows: int, width: int, seed: int = 0) -> np.ndarray:
    """Small whole numbers, which every dtype holds exactly."""
    return np.random.default_rng(seed).integers(-4, 5, size=(rows, width)).astype(np.float64)


def _roundoff_of(numbers: np.ndarray) -> float:
    """The unit roundoff of the narrowest ones that hold all numbers: a function may compute in another dtype."""
    held = (2.0**-bits for bits in (8, 11, 24) if (rounded_to(bits, numbers) == numbers).all())
    return next(held, ROUNDOFF["float64"])


def _are_scores_relative(matrices: np.ndarray, roundoff: float) -> bool:
    """Whether scores at equal differences of the positions `SHORT` are equal."""
    width = matrices.shape[1]
    q, k = (matrices @ _integers(width, 8, seed) for seed in (1, 2))  # positions channels vectors
    scores = np.einsum("pcv,pcv->pv", q[[0, 3, 0, 2]], k[[1, 4, 2, 3]])  # differences of 1, 1, 2 and 2
    close = 32 * max(roundoff, ROUNDOFF["float32"]) * width * np.abs(matrices).max() ** 2
    return bool(np.abs(scores[::2] - scores[1::2]).max() <= close)


def _until(measurement: Measurement, eps: float) -> int | None:
    """The first position whose angles do not follow; None if all do, or if the blocks are no rotations.

    Powers of two come first, because the frequencies follow from them.
    """
    rotations, positions = rotations_of(measurement.blocks), measurement.positions
    roundoff = roundoff_of(rotations, eps)
    if roundoff is None:
        return None
    frequencies = frequencies_of(rotations.angle[: len(powers(int(positions.max()) + 1))], roundoff)
    if frequencies.until is not None:
        return frequencies.until
    turned = wrapped(rotations.angle - rotations.angle[0])
    precision = precision_of(turned, positions, frequencies.values, 0, frequencies.errors, 2 * roundoff)
    return None if precision.name else int(positions[~precision.within].min())


def _magnitude(rotations: Blocks, roundoff: float) -> tuple[float, float]:
    """The factor of all lengths, and its error."""
    length, error = float(np.median(rotations.length)), 4 * roundoff
    return (1.0 if abs(length - 1.0) <= error else length), error * length


def _direction(frequencies: Frequencies) -> int | None:
    """The sign of the frequencies that are not zero."""
    signs = set(np.sign(frequencies.values[np.abs(frequencies.values) > frequencies.errors]).astype(int).tolist())
    return signs.pop() if len(signs) == 1 else None
