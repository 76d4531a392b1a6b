"""The steps of `identify`: matrices, pairs, angles, frequencies, and the value that explains them."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf, pi
from typing import NamedTuple, TypeAlias

import numpy as np

from rope_xp.errors import wrong_value
from rope_xp.frequencies import ORIGINAL, YarnScaling
from rope_xp.identification.behaviour import Behaviour, behaviour_of
from rope_xp.identification.pairs import (
    MOST_UNKNOWN,
    SHORTER_LENGTHS,
    Channels,
    PairAngles,
    Rotations,
    alone_in_words,
    channels_of,
    places_of,
    powers,
    rotations_of,
    spread,
    start_of,
    why_no_rotation,
)
from rope_xp.identification.precision import COARSE, COARSE_BITS, ROUNDOFF, Precision, noise, roundoff_of, wrapped
from rope_xp.identification.probe import STRIDES, Calls, Probe, irregularity, results_differ
from rope_xp.identification.result import Identification
from rope_xp.identification.rules import attention_in_words, simplest_within
from rope_xp.identification.values import (
    RATIOS,
    Measured,
    Value,
    differs_in_sections,
    rule_in_any_order,
    value_of,
    with_axes,
)
from rope_xp.types import Embedding

# Positions below it are tried, if nothing else is said.
LONGEST = 2**20 + 1
# Positions of short calls. Differences of positions repeat: 1 - 0 and 5 - 4, 2 - 0 and 4 - 2.
SHORT = np.array([0, 1, 2, 4, 5])
# Numbers so many times larger than small ones, which float16 holds too. Functions that limit them are not linear.
LOUDER = 256
# All positions below it are tried before a value is said to explain the function.
CONFIRMED_BELOW = 4096
# Positions that are no powers of two, whose products with frequencies are rounded, and which bfloat16 rounds.
ODD = (3, 7, 37, 101, 257, 259, 511, 1001, 2047, 4097, 10_007, 32_771, 65_537, 100_000, 131_071, 1_048_575)
# The rotations of the longest call whose angles follow, and why those of longer calls do not.
Longest: TypeAlias = tuple[Rotations, list[str]]


class Matrices(NamedTuple):
    """What a function does with all channels at a few positions: matrices "positions outputs inputs"."""

    positions: np.ndarray
    values: np.ndarray
    roundoff: float  # of the sines and cosines in them: a function may compute in another dtype than its results have


class Ended(Exception):
    """The end of a search that finds no value: its last reasons, and what else is known."""

    # Without reasons, an earlier step has concluded why, or a call has failed and `problems` of the probe says why.

    def __init__(self, *reasons: str, **known: object):
        self.reasons, self.known = reasons, known


def _no_rotation(why: str) -> Ended:
    return Ended(f"not a rotation: {why}", is_rotation=False)


def identification_of(probe: Probe, seq_len: int = LONGEST) -> Identification:
    """The report on a function: what a search finds, if other positions and other calls confirm it."""
    search = Search(probe, seq_len)
    behaviour = search.run()
    if behaviour is not None:
        search.confirm(behaviour)
    reasons = dict.fromkeys([*search.report.reasons, *probe.problems])
    return replace(search.report, reasons=tuple(each[0].upper() + each[1:] + "." for each in reasons))


class Search:
    """One search, of positions below `seq_len`. `near` is a value that is tried first, and with few changes."""

    # `cause` is what `compare` reports if no value explains the function: "sections" if it differs from `near` only in
    # the position axis that each pair follows, else "unknown".

    def __init__(self, probe: Probe, seq_len: int = LONGEST, near: Embedding | None = None):
        if not 8 <= seq_len <= 2**31:
            raise wrong_value(f"seq_len must be at least 8 and at most 2**31; got {seq_len}")
        self.probe, self.seq_len, self.near = probe, seq_len, near
        self.cause, self.is_rounded = "unknown", False
        self.measured: Measured | None = None
        self.report = Identification(
            shape=probe.shape, axis=probe.axis, library=probe.library or None, dtype=probe.dtype or None
        )

    def run(self) -> Behaviour | None:
        """What the function does; None without a value that explains it, and the reasons say why."""
        try:
            with np.errstate(all="ignore"):  # extreme numbers of a function
                return self._search()
        except Ended as end:
            self.conclude(*end.reasons, **end.known)
            return None

    def _search(self) -> Behaviour:
        """The steps. Each gives what it found, or ends the search by raising `Ended`."""
        self._require_rotated_rows()
        matrices = self._matrices()
        results = self._linear_results(matrices)
        channels = self._channels(matrices)
        rotations = self._rotations(matrices, channels)
        angles = self._angles(rotations)
        measured = self.measured = self._measured(rotations, angles)
        value, precision = self._value(measured, results)
        behaviour = self._behaviour(measured, value)
        if self.near is None and not behaviour.exchanged:
            self._conclude_value(measured, value, behaviour, precision)
        return behaviour

    def confirm(self, behaviour: Behaviour) -> None:
        tested_below = (self.report.longest or 0) + 1
        tried = min(CONFIRMED_BELOW, tested_below)
        unlike = first_unlike(self.probe, behaviour, tried)
        # Few positions may not show that phases are rounded.
        is_coarse = max(self.probe.roundoff, behaviour.roundoff) >= ROUNDOFF["float32"]
        if unlike is not None and behaviour.precision == "exact" and is_coarse:
            rounded = first_unlike(self.probe, behaviour._replace(precision="float32"), tried)
            if rounded is None:
                words = f"phases have the precision of float32: at position {unlike:,}, the result is not that of exact"
                self.conclude(f"{words} ones", precision="float32")
            unlike = rounded
        if unlike is not None:
            self.conclude(f"at position {unlike:,}, the result is not what the angles at other positions say")
        elif self.report.rope is not None:
            far = f", and some up to {tested_below - 1:,}" if tried < tested_below else ""
            self.conclude(f"all positions below {tried:,} were tried{far}")
        irregular = irregularity(self.probe, tested_below)
        if irregular:
            self.conclude(f"the result does not follow from the channels and the position alone: {irregular}")
        if unlike is not None or irregular:
            found = self.report.rope_in_words
            self.conclude(found and f"other calls gave {found}", rope=None, confidence=0.0)

    def conclude(self, *reasons: str, **known: object) -> None:
        """Add reasons to the report, except empty ones, and set its fields."""
        self.report = replace(self.report, reasons=(*self.report.reasons, *filter(None, reasons)), **known)

    def _require_rotated_rows(self) -> None:
        follows, axis = self.probe.follows, self.probe.axis
        self.conclude(positions_ignored=None if follows in (None, "nothing") else follows == "index")
        if follows == "nothing":
            words = "not a rotary embedding: the result depends neither on positions nor on the order of rows"
            raise Ended(words, is_rotation=False)
        if follows == "first call":
            words = "it keeps state: a call repeats the positions of the first call with its shape, and ignores its own"
            self.conclude(words, stateful=True)
        elif follows == "index":
            words = "" if self.probe.is_stated else "; state `shape` to find out whether that axis holds heads"
            self.conclude(f"it ignores positions: each row is rotated by its index along the axis {axis}{words}")
        if axis == "heads":
            self.conclude("heads are rotated in place of positions: equal rows of different heads get different angles")
        if follows is None:
            raise Ended

    def _matrices(self) -> Matrices:
        # Small positions may all have the same angles, for example if a function divides positions and rounds down. So
        # they are multiplied by each stride until matrices differ. If they never do, the last matrices are kept.
        for stride in STRIDES:
            positions = SHORT * stride
            found = Calls(self.probe).matrices(positions, self.probe.head_dim)
            if found is None:
                raise Ended
            values = found[:, 0]
            if np.ptp(values, axis=0).max() > noise(self.probe.roundoff):
                break
        return Matrices(positions, values, max(self.probe.roundoff, roundoff_of(values)))

    def _linear_results(self, matrices: Matrices) -> np.ndarray:
        # Another x must have the results that follow from the matrices, in a call with as many rows.
        x, width = _small_integers(len(matrices.positions), self.probe.head_dim), self.probe.head_dim
        rows, positions = np.repeat(x, width, axis=0), np.repeat(matrices.positions, width)
        y, louder = (self.probe(each, positions) for each in (rows, LOUDER * rows))
        if y is None or louder is None:
            raise Ended
        y, louder = y[::width], louder[::width]
        if results_differ(louder / LOUDER, y, matrices.roundoff):
            times = f"{LOUDER} times x does not give {LOUDER} times the result"
            raise _no_rotation(f"the function is not linear in x; {times}")
        if results_differ(np.einsum("poi,pi->po", matrices.values, x), y, matrices.roundoff):
            raise _no_rotation("the result of a row is not the sum of the results of its channels")
        return y

    def _channels(self, matrices: Matrices) -> Channels:
        channels = channels_of(matrices.values, matrices.roundoff)
        pairs = tuple(pair[:2] for pair in channels.pairs)
        self.conclude(pairs=pairs, kept=channels.kept, relative=_are_scores_relative(matrices, matrices.roundoff))
        if channels.problem is not None:
            raise _no_rotation(channels.problem)
        return channels

    def _rotations(self, matrices: Matrices, channels: Channels) -> Rotations:
        rotations, why_not_longer = self._longest_rotations(matrices, channels)
        if not self.report.stateful:
            stateful = self.probe.keeps_state()
            words = "it keeps state: a short call gives another result after a long one" if stateful else ""
            self.conclude(words, stateful=stateful)
        longest = int(rotations.positions.max())
        self.conclude(longest=longest)
        for words in why_not_longer:
            self.conclude(f"positions up to {longest:,} are tested: {words}")
        if rotations.roundoff == inf:
            raise _no_rotation(why_no_rotation(rotations))
        self.is_rounded = rotations.roundoff >= COARSE and rotations.is_rounded
        roundoff = rotations.roundoff if self.is_rounded else matrices.roundoff
        relative = _are_scores_relative(matrices, roundoff)
        self.conclude(is_rotation=True, relative=relative, magnitude=rotations.magnitude)
        return rotations

    def _longest_rotations(self, matrices: Matrices, channels: Channels) -> Longest:
        # A shorter call follows if a long one fails, if it gives another result at a position of the short call, or if
        # its angles are proportional to the first positions alone. If not even to those, a shorter call would not help,
        # and a later step ends the search. Half precision holds powers of two, before an offset is added or after it.
        blocks = matrices.values[:, channels.outputs[:, :, None], channels.inputs[:, None, :]]
        short = rotations_of(channels, matrices.positions, blocks)
        offset = start_of(short.frequencies(), short.roundoff)[0] if short.roundoff < inf else None
        ends = (1, 2) if offset else (1,)  # one of the last positions is odd after the offset
        found = [self._rotations_with(channels, short, 0, ends)]
        if found[0][1] and offset and isinstance(offset, int):
            found.append(self._rotations_with(channels, short, offset, ends))
        return max(found, key=lambda each: each[0].positions.max())

    def _rotations_with(self, channels: Channels, short: Rotations, shift: int, ends: Sequence[int]) -> Longest:
        # Both calls have position 0 in row 0. They have position 1 in row 1, unless short positions were multiplied.
        has_position_1 = bool(short.positions[1] == 1)
        row = 1 if has_position_1 else 0
        why: dict[str, str] = {}  # the last words of each kind
        until = self.seq_len  # positions below it may follow
        for seq_len in (self.seq_len, *(each for each in SHORTER_LENGTHS if each < self.seq_len)):
            if seq_len > until:
                continue
            odd = [each for each in (*ODD, *(seq_len - each for each in ends)) if each < seq_len]
            long = self._rotations_at(channels, np.concatenate([powers(seq_len, shift), odd]))
            if long is None:
                why["failure"] = f"with some longer ones {self.probe.problems.pop()}"
            elif results_differ(long.blocks[row], short.blocks[row], channels.roundoff):
                why["length"] = "the frequencies depend on the largest position of a call"
            elif (until := long.until) is None or until <= SHORTER_LENGTHS[-1] or not has_position_1:
                return long, [*why.values()]
            else:
                where = "there" if until in SHORTER_LENGTHS else "before it"
                why["table"] = f"at {until:,} the angles do not follow: a table may end {where}"
        return short, [*why.values()]

    def _rotations_at(self, channels: Channels, positions: np.ndarray, axis: int | None = None) -> Rotations | None:
        """The rotations of one call; with an axis, at positions along it alone. None if the call fails."""
        directions = None if axis is None else np.eye(self.probe.axes)
        results = Calls(self.probe, directions).rotated(*channels.unit_rows(positions), axis or 0)
        return None if results is None else rotations_of(channels, positions, channels.blocks(results))

    def _angles(self, rotations: Rotations) -> PairAngles:
        frequencies = rotations.frequencies()
        if frequencies.until is not None:
            words = "not a rotary embedding: angles are not proportional to positions"
            raise Ended(words, self._equal_positions(rotations))
        offset, words = start_of(frequencies, rotations.roundoff)
        angles = PairAngles(rotations.positions[1:], rotations.angle[1:], frequencies, offset, 0, rotations.roundoff)
        if offset is None:
            exchanged, of_exchanged = angles.with_sines_exchanged()
            if exchanged.offset is None:  # the offset may be far
                offset, words = start_of(frequencies, rotations.roundoff, MOST_UNKNOWN)
            else:
                words = of_exchanged
            angles = exchanged if offset is None else angles._replace(offset=offset)
            words = f"not a rotary embedding: {words}" if offset is None else words
        if angles.offset is not None:
            angles = self._narrowed(rotations.channels, angles)
            frequencies = frequencies if offset is None else angles.frequencies
        self.conclude(words, offset=offset, inv_freq=tuple(frequencies.values.tolist()))
        return angles

    def _equal_positions(self, rotations: Rotations) -> str:
        """Which positions have the same angles, in words: those that begin with 0, or each group; empty if none."""

        def first_unlike_0(angle: np.ndarray) -> int:
            off = np.abs(wrapped(angle - rotations.angle[0])).max(axis=1)
            return int((off > noise(rotations.roundoff)).argmax())

        positions, number = rotations.positions, first_unlike_0(rotations.angle)
        between = np.arange(positions[number - 1] + 1, positions[number] + 1)
        near = self._rotations_at(rotations.channels, between) if number > 1 else None
        if near is None:
            return ""
        first = int(between[first_unlike_0(near.angle)])
        x, first_of_groups = np.ones((len(positions), self.probe.head_dim)), positions // first * first
        one, other = (self.probe(x, each) for each in (positions, first_of_groups))
        if one is not None and other is not None and not results_differ(one, other, rotations.roundoff):
            return f"positions are divided by {first} and rounded down: {first} neighbours have the same position"
        return f"positions below {first} have the same angles"

    def _narrowed(self, channels: Channels, angles: PairAngles) -> PairAngles:
        # Sines and cosines with few digits give frequencies at many positions only.
        if angles.roundoff < COARSE or self.probe.axes > 1:
            return angles
        positions = spread(int(angles.positions.max()))
        found = self._rotations_at(channels, positions)
        if found is not None:
            values = angles.exchanged * pi / 2 - found.angle if angles.exchanged else found.angle
            angles = angles._replace(frequencies=angles._replace(positions=positions, values=values).narrowed())
        return angles

    def _measured(self, rotations: Rotations, angles: PairAngles) -> Measured:
        of_axes = self._of_axes(rotations, angles)  # first, because it may end the search with one more reason
        if angles.offset is None:
            raise Ended  # `_angles` has concluded why
        precision = angles.precision_with(angles.frequencies.values, angles.frequencies.errors)
        magnitude, error = rotations.magnitude, rotations.magnitude_error
        measured = Measured(rotations.channels, angles, of_axes, magnitude, error, precision)
        if not angles.exchanged:
            self.conclude(direction=measured.direction)
        return measured

    def _of_axes(self, rotations: Rotations, angles: PairAngles) -> np.ndarray:
        """The frequencies "axes pairs" along each position axis alone, to which angles must be proportional."""
        if self.probe.axes == 1:
            return angles.frequencies.values[None]
        rows, sign = [], -1.0 if angles.exchanged else 1.0
        for axis in range(self.probe.axes):
            along = self._rotations_at(rotations.channels, rotations.positions, axis)
            if along is None:
                raise Ended
            found = along._replace(roundoff=rotations.roundoff).frequencies()
            if found.until is not None:
                raise Ended(f"along position axis {axis} alone, angles are not proportional to positions")
            rows.append(np.where(np.abs(found.values) <= found.errors, 0.0, sign * found.values))
        return np.array(rows)

    def _value(self, measured: Measured, results: np.ndarray) -> tuple[Value, Precision]:
        value, precision = value_of(measured, self.near)
        self._conclude_precision(precision, measured, results)
        if value is None:
            if self.near is not None and self.probe.axes > 1 and differs_in_sections(self.near, measured):
                self.cause = "sections"
            rule = rule_in_any_order(measured)
            of_rule = "" if rule is None else f"; their frequencies are those of {rule.in_words()}, in some order"
            has_layout = any(True for _ in places_of(measured.channels, measured.magnitude))
            what = "no value near the other one has these frequencies" if has_layout else "no layout has these pairs"
            raise Ended(f"{what}{of_rule}")
        if precision.name is None:
            raise Ended  # `_conclude_precision` has concluded why
        return value, precision

    def _conclude_precision(self, precision: Precision, measured: Measured, results: np.ndarray) -> None:
        """The precision of phases; of tables if only they have so few digits, and other numbers have more."""
        angles, row = measured.angles, int(np.argmax(precision.errors))
        error = f"{precision.errors[row]:.3g} radians, without whole turns"
        at = f"at position {angles.positions[row]:,}"
        if precision.name is None:
            self.conclude(f"angles are not positions times frequencies: {at} they are off by {error}")
        elif measured.precision.is_finer_than(precision.name):
            what = "frequencies" if angles.roundoff < COARSE else "frequencies or phases"
            self.conclude(f"{what} are rounded to {precision.name}: {at} angles are off by {error}")
        elif precision.name != "exact":
            words = f"{at} angles are off by {error}, and scores there do not depend on relative positions alone"
            what = "positions are rounded to" if precision.of_positions else "phases have the precision of"
            self.conclude(f"{what} {precision.name}: {words}")
        of_results = max(self.probe.roundoff, roundoff_of(results))
        rounded = next((name for name in COARSE_BITS if ROUNDOFF[name] == angles.roundoff > of_results), None)
        if rounded and precision.name in ("exact", "float32"):
            as_much = f"are off by at most as much as {rounded} rounds, but are no numbers of {rounded}"
            how = f"are rounded to {rounded}" if self.is_rounded else as_much
            may_hide = "; so few digits may hide float32 phases" if precision.name == "exact" else ""
            known = precision.name if precision.name != "exact" else f"{rounded} tables"
            self.conclude(f"sines and cosines {how}{may_hide}", precision=known)
        else:
            may_hide = precision.name == "exact" and angles.roundoff >= COARSE
            words = "results of so few digits may hide float32 phases" if may_hide else ""
            self.conclude(words, precision=precision.name)

    def _behaviour(self, measured: Measured, value: Value) -> Behaviour:
        angles, behaviour = measured.angles, behaviour_of(value.rope)
        if self.near is not None:
            behaviour = behaviour._replace(attention_factor=_nearest_factor(measured, self.near))
        return behaviour._replace(
            offset=angles.offset,
            exchanged=angles.exchanged,
            axis="heads" if self.probe.axis == "heads" else "tokens",
            precision=self.report.precision,
            roundoff=angles.roundoff,
            change="" if value.change is None else value.change.in_words(),
        )

    def _conclude_value(self, measured: Measured, value: Value, behaviour: Behaviour, precision: Precision) -> None:
        rope, change = value.rope, value.change
        if change is not None:
            self.conclude(f"the frequencies are those of {change.in_words()}, and are given as numbers")
        elif rope.base is None:
            words = "no base and rule of few digits explain the frequencies, so they are given as numbers"
            self.conclude(words if rope.pairs > 1 else "one frequency says no base, so it is given as a number")
        scaling = rope.scaling if change is None else change.scaling
        if isinstance(scaling, YarnScaling):
            self.conclude(attention_in_words(scaling, rope.attention_factor or 1.0, 2 * measured.magnitude_error))
        if ratios := ", ".join(name for name in RATIOS if hasattr(scaling, name)):
            self.conclude(f"only the ratios of {ratios} and {ORIGINAL} act: a config may state other numbers")
        frequencies, w = measured.angles.frequencies, value.frequencies
        off = np.abs(frequencies.values / np.where(w, w, 1.0) - 1.0)[w != 0.0].max()
        measures = f"the frequencies of {len(w)} pairs were measured"
        self.conclude(f"{measures}; those of the value are within {off:.1e} of each")
        explained = self._explained(behaviour, measured.angles.positions, precision)
        resolved = float(np.mean(frequencies.errors <= 1e-3 * np.abs(frequencies.values)))
        self.conclude(layout=rope.layout, confidence=resolved * explained)
        rope = with_axes(value, measured)
        if rope is None:
            self.conclude("the angles of the axes do not add up to those of equal positions", confidence=0.0)
        elif explained == 1.0:
            self.conclude(rope=rope, magnitude=rope.attention_factor)
        elif measured.channels.scaled:
            self.conclude(alone_in_words(measured.channels.scaled))

    def _explained(self, behaviour: Behaviour, positions: np.ndarray, precision: Precision) -> float:
        """The part of the numbers that the value explains, for other rows than those that were measured."""
        x = _small_integers(len(positions), self.probe.head_dim)
        y = self.probe(x, positions)
        if y is None:
            return 0.0
        exact = behaviour.with_exact_phases()._replace(axis="tokens").map()
        # A pair of numbers up to 4 has a length below 6. Its angle may be off by as much as the measured one.
        close = exact.error_of(positions, "exact", behaviour.roundoff)[:, 0] + precision.errors[:, None] * exact.size
        explained = np.abs(y - exact.rotated(x, positions)) <= 6.0 * close.max(axis=1)[:, None]
        count = "all" if explained.all() else f"{explained.sum():,} of"
        self.conclude(f"the value was checked with another x: {count} {explained.size:,} numbers are within tolerance")
        return float(explained.mean())


def first_unlike(
    probe: Probe, behaviour: Behaviour, context: int, tolerance: float = 0.0, directions: np.ndarray | None = None
) -> int | None:
    """The first of many positions, along each direction, below `context` where a behaviour has another result."""
    exact = behaviour.with_exact_phases()._replace(axis="tokens").map(directions)
    _, _, to_first, to_second = exact.channels
    roundoff = max(behaviour.roundoff, probe.roundoff, ROUNDOFF["float32"] if tolerance else 0.0)

    def limit(positions: np.ndarray, direction: int) -> np.ndarray:
        result = np.full((len(positions), probe.head_dim), noise(roundoff) + tolerance)  # of the channels that are kept
        error = 2.0**0.5 * exact.error_of(positions, behaviour.precision, roundoff)[:, direction]
        result[:, to_first] = result[:, to_second] = np.maximum(error, tolerance * np.maximum(exact.size, 1.0))
        return result

    calls = Calls(probe, directions)
    return calls.first_difference(calls, exact, limit, context)


def _small_integers(rows: int, width: int, seed: int = 0) -> np.ndarray:
    # Every dtype holds them exactly.
    return np.random.default_rng(seed).integers(-4, 5, size=(rows, width)).astype(np.float64)


def _are_scores_relative(matrices: Matrices, roundoff: float) -> bool:
    # Queries and keys: positions channels vectors.
    q, k = (matrices.values @ _small_integers(matrices.values.shape[1], 8, seed) for seed in (1, 2))
    near = np.einsum("pcv,pcv->pv", q[[0, 0]], k[[1, 2]])  # of positions 0 and 1, and 0 and 2 (see `SHORT`)
    far = np.einsum("pcv,pcv->pv", q[[3, 2]], k[[4, 3]])  # of positions 4 and 5, and 2 and 4: the same differences
    return not results_differ(near, far, max(roundoff, ROUNDOFF["float32"]))


def _nearest_factor(measured: Measured, near: Embedding) -> float:
    found, own = measured.magnitude, near.attention_factor
    error = max(measured.magnitude_error, 1e-7 * found)
    known = (each for each in (own, own * own) if abs(each - found) <= error)  # it may be applied twice
    return next(known, simplest_within(found, error))
