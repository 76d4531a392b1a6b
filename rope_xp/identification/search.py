"""The steps of `identify`: matrices, pairs, angles, frequencies, and the value that explains them."""

from dataclasses import replace
from math import pi

import numpy as np

from rope_xp.errors import wrong_value
from rope_xp.frequencies import YarnScaling
from rope_xp.identification.behaviour import (
    Behaviour,
    behaviour_of,
    factor_of_scaling,
    frequencies_of,
)
from rope_xp.identification.identification import Identification
from rope_xp.identification.pairs import (
    Channels,
    Fitted,
    Rotations,
    Start,
    alone_in_words,
    blocks_of,
    channels_of,
    fitted,
    narrowed,
    powers,
    rotations_of,
    roundoff_of,
    spread,
    start_of,
    unit_rows,
    why_no_rotation,
)
from rope_xp.identification.precision import (
    COARSE,
    COARSE_BITS,
    PRECISIONS,
    ROUNDOFF,
    SIGNIFICANT_BITS,
    Precision,
    error_of,
    exact_angles,
    noise,
    precision_of,
    rounded_to,
    roundings,
    wrapped,
)
from rope_xp.identification.probe import CHUNK, STRIDES, Probe, irregularity, parts
from rope_xp.identification.rules import attention_in_words, simplest_within
from rope_xp.identification.values import (
    Measured,
    Value,
    in_terms_of,
    rule_in_any_order,
    value_near,
    value_of,
    value_of_numbers,
    with_axes,
)
from rope_xp.types import Embedding

# Positions below it are tried, if nothing else is said.
LONGEST = 2**20 + 1
# Positions of short calls. Differences of positions repeat: 1 - 0 and 5 - 4, 2 - 0 and 4 - 2.
SHORT = np.array([0, 1, 2, 4, 5])
# Lengths to test if longer ones fail.
SHORTER_LENGTHS = tuple(2**k for k in (20, *range(17, 2, -1)))
# Numbers so many times larger than small ones, which float16 holds too. Functions that limit them are not linear.
LOUDER = 256
# All positions below it are tried before a value is said to explain the function.
CONFIRMED_BELOW = 4096
# Positions that are no powers of two, whose products with frequencies are rounded, and which bfloat16 rounds.
ODD = (3, 7, 37, 101, 257, 259, 511, 1001, 2047, 4097, 10_007, 32_771, 65_537, 100_000, 131_071, 1_048_575)


def identification_of(probe: Probe, seq_len: int = LONGEST) -> Identification:
    """The report on a function: what a search finds, if other positions and other calls confirm it."""
    search = Search(probe, seq_len)
    search.run()
    search.confirm()
    reasons = dict.fromkeys([*search.reasons, *probe.problems])
    return replace(search.report, reasons=tuple(each[0].upper() + each[1:] + "." for each in reasons))


class Search:
    """One search, of positions below `seq_len`. `near` is a value that is tried first, and with few changes."""

    # `behaviour` is what the function does, None without a value that explains it; `cause` says why, for `compare`:
    # "unknown", or "sections" if axes alone differ from `near`. A function may compute in another dtype than that of
    # its results: the unit roundoff of its matrices, which have sines and cosines, and of its results follow from the
    # bits of their numbers. That of sines and cosines, `roundoff` below, follows from the lengths of pairs.

    def __init__(self, probe: Probe, seq_len: int = LONGEST, near: Embedding | None = None):
        if not 8 <= seq_len <= 2**31:
            raise wrong_value(f"seq_len must be at least 8 and at most 2**31; got {seq_len}")
        self.probe = probe
        self.seq_len = seq_len
        self.near = near
        self.roundoff_of_matrices = self.roundoff_of_results = probe.roundoff
        self.short, self.longest = SHORT, 0  # 0 until angles are measured
        self.behaviour: Behaviour | None = None
        self.cause = "unknown"
        self.reasons: list[str] = []
        self._why_not_longer: dict[str, str] = {}  # why longer positions were not tested: the last words of each kind
        self.report = Identification(
            shape=probe.shape, axis=probe.axis, library=probe.library or None, dtype=probe.dtype or None
        )

    def run(self) -> None:
        if self._can_be_called():
            with np.errstate(all="ignore"):  # extreme numbers of a function
                self._search()

    def confirm(self) -> None:
        if self.behaviour is None:
            return
        longest = self.longest + 1
        tried = min(CONFIRMED_BELOW, longest)
        unlike = first_unlike(self.probe, self.behaviour, tried)
        if unlike is not None:
            self.conclude(f"at position {unlike:,}, it is not the function that it is at other positions")
        elif self.report.rope is not None:
            far = f", and some up to {self.longest:,}" if tried < longest else ""
            self.conclude(f"all positions below {tried:,} were tried{far}")
        irregular = irregularity(self.probe, longest)
        if irregular:
            self.conclude(f"the result does not follow from the channels and the position alone: {irregular}")
        if unlike is not None or irregular:
            self.conclude(rope=None, confidence=0.0)

    def _search(self) -> None:
        matrices = self._matrices()
        for stride in STRIDES[1:]:
            if matrices is not None and np.ptp(matrices, axis=0).max() <= noise(self.roundoff_of_matrices):
                self.short = SHORT * stride  # small positions are not rotated, or have the position 0 of a group
                matrices = self._matrices()
        if matrices is not None:
            self.roundoff_of_matrices = max(self.probe.roundoff, _roundoff_of(matrices))
            if self._is_linear(matrices):
                self._conclude_pairs(matrices)

    def conclude(self, words: str = "", **known: object) -> None:
        """Add a reason, if there are words, and set fields of the report."""
        self.reasons += [words] if words else []
        self.report = replace(self.report, **known)

    def _can_be_called(self) -> bool:
        """Whether the function can be probed. Says what decides its results, if positions do not."""
        follows, axis = self.probe.follows, self.probe.axis
        self.conclude(positions_ignored=None if follows in (None, "nothing") else follows == "index")
        if follows == "first call":
            words = "it keeps state: a call repeats the positions of the first call with its shape, and ignores its own"
            self.conclude(words, stateful=True)
        elif follows == "nothing":
            words = "not a rotary embedding: the result depends neither on positions nor on the order of rows"
            self.conclude(words, is_rotation=False)
        elif follows == "index":
            words = "" if self.probe.is_stated else "; state `shape` to find out whether that axis holds heads"
            self.conclude(f"it ignores positions: each row is rotated by its index along the axis {axis}{words}")
        if axis == "heads":
            self.conclude("heads are rotated in place of positions: equal rows of different heads get different angles")
        return follows not in (None, "nothing")

    def _matrices(self) -> np.ndarray | None:
        width = self.probe.head_dim
        results = self.probe(np.tile(np.eye(width), (len(SHORT), 1)), np.repeat(self.short, width))
        return None if results is None else results.reshape(len(SHORT), width, width).transpose(0, 2, 1)

    def _is_linear(self, matrices: np.ndarray) -> bool:
        x = _small_integers(len(SHORT), self.probe.head_dim)
        y, louder = self.probe(x, self.short), self.probe(LOUDER * x, self.short)
        if y is None or louder is None:
            return False
        close = noise(self.roundoff_of_matrices) * np.abs(y).max()
        self.roundoff_of_results = max(self.probe.roundoff, _roundoff_of(y))
        if np.abs(louder / LOUDER - y).max() > close:
            times = f"{LOUDER} times x does not give {LOUDER} times the result"
            self.conclude(f"not a rotation: the function is not linear in x; {times}", is_rotation=False)
        elif np.abs(np.einsum("poi,pi->po", matrices, x) - y).max() > close:
            words = "not a rotation: the result of a row is not the sum of the results of its channels"
            self.conclude(words, is_rotation=False)
        else:
            return True
        return False

    def _conclude_pairs(self, matrices: np.ndarray) -> None:
        channels = channels_of(matrices, self.roundoff_of_matrices)
        self.conclude(relative=_are_scores_relative(matrices, self.roundoff_of_matrices))
        pairs = tuple((int(a), int(b)) for a, b in channels.inputs)
        self.conclude(pairs=pairs, kept=channels.kept)
        if channels.problem is not None:
            self.conclude(f"not a rotation: {channels.problem}", is_rotation=False)
        else:
            self._conclude_frequencies(channels, self._rotations(channels, matrices), matrices)

    def _rotations(self, channels: Channels, matrices: np.ndarray) -> Rotations:
        # A shorter call follows if a long one fails, if a long one changes the result of a short position, or if angles
        # do not follow. Then the first call is made again, to find out whether the long ones changed its result.
        blocks = matrices[:, channels.outputs[:, :, None], channels.inputs[:, None, :]]
        found = short = rotations_of(self.short, blocks)
        seq_len = self.seq_len
        row = int(self.short is SHORT)  # of position 1, or of 0
        while seq_len >= SHORTER_LENGTHS[-1]:
            odd = [each for each in (*ODD, seq_len - 1) if each < seq_len]
            long = self._rotations_at(channels, np.concatenate([powers(seq_len), odd]))
            seq_len = next((each for each in SHORTER_LENGTHS if each < seq_len), 0)
            if long is None:
                self._why_not_longer["failure"] = f"with longer ones {self.probe.problems.pop()}"
            elif _differ(long.blocks[row], short.blocks[row], self.roundoff_of_matrices):
                self._why_not_longer["length"] = "the frequencies depend on the largest position of a call"
            else:
                until = _until(long, self.roundoff_of_matrices)
                if until is None or until <= SHORTER_LENGTHS[-1] or row == 0:
                    found = long
                    break
                where = "there" if until in SHORTER_LENGTHS else "before it"
                self._why_not_longer["table"] = f"at {until:,} the angles do not follow: a table may end {where}"
                seq_len = next(each for each in SHORTER_LENGTHS if each <= until)
        self._conclude_state(matrices)
        return found

    def _rotations_at(self, channels: Channels, positions: np.ndarray, axis: int | None = None) -> Rotations | None:
        """Those of one call; with an axis, at positions along it alone. None if the call fails."""
        x, where = unit_rows(channels, positions, self.probe.head_dim)
        if axis is not None:
            where = np.stack([where if each == axis else 0 * where for each in range(self.probe.axes)])
        results = self.probe(x, where)
        return None if results is None else rotations_of(positions, blocks_of(channels, results))

    def _conclude_state(self, matrices: np.ndarray) -> None:
        # A short call may give another result after long ones.
        again = self._matrices()
        if again is not None and not self.report.stateful:
            stateful = _differ(again, matrices, self.roundoff_of_matrices)
            words = "it keeps state: a short call gives another result after a long one"
            self.conclude(words if stateful else "", stateful=stateful)

    def _conclude_frequencies(self, channels: Channels, rotations: Rotations, matrices: np.ndarray) -> None:
        """Frequencies and what the angles at position 0 say; then the value."""
        roundoff = roundoff_of(rotations, self.roundoff_of_matrices)
        longest = self.longest = int(rotations.positions.max())
        self.conclude(longest=longest)
        for words in self._why_not_longer.values():
            self.conclude(f"positions up to {longest:,} are tested: {words}")
        if roundoff is None:
            self.conclude(f"not a rotation: {why_no_rotation(rotations, channels.inputs)}", is_rotation=False)
            return
        self.conclude(is_rotation=True, relative=_are_scores_relative(matrices, roundoff))
        frequencies = fitted(rotations.angle[: len(powers(longest + 1))], roundoff)
        length, error = float(np.median(rotations.length)), error_of(roundoff)
        magnitude = 1.0 if abs(length - 1.0) <= error else length
        self.conclude(magnitude=magnitude)
        if frequencies.until is not None:
            self.conclude("not a rotary embedding: angles are not proportional to positions")
            self.conclude(self._first_rotated(channels, rotations, roundoff))
            return
        start = start_of(frequencies.start, frequencies.values, frequencies.errors, roundoff)
        if start.offset is not None:
            frequencies = self._narrowed(channels, frequencies, start.offset, roundoff)
        self.conclude(offset=start.offset, inv_freq=tuple(frequencies.values.tolist()))
        self.conclude(start.words if start.offset is not None else f"not a rotary embedding: {start.words}")
        exchanged, angle = 0, rotations.angle
        if start.offset is None:  # sin + i cos is i times the conjugate of cos + i sin
            exchanged = -1 if np.sin(frequencies.start).mean() < 0.0 else 1
            angle = exchanged * pi / 2 - angle
            turned = wrapped(exchanged * pi / 2 - frequencies.start)
            frequencies = frequencies._replace(values=-frequencies.values, start=turned)
            start = start_of(turned, frequencies.values, frequencies.errors, roundoff)
        of_axes = self._of_axes(channels, rotations.positions, roundoff, -1.0 if exchanged else 1.0)
        if start.offset is None or of_axes is None:
            return
        of_axes = frequencies.values[None] if self.probe.axes == 1 else of_axes
        direction = _direction(frequencies)
        measured = Measured(
            self.probe.head_dim, channels, frequencies, direction, magnitude, error * length, of_axes, is_coarse=True
        )
        if not exchanged:
            self.conclude(direction=direction)
        self._conclude_embedding(measured, start, rotations.positions[1:], angle[1:], roundoff, exchanged)

    def _narrowed(self, channels: Channels, known: Fitted, offset: float, roundoff: float) -> Fitted:
        """Frequencies from more positions if sines and cosines have few digits."""
        if roundoff < COARSE or self.probe.axes > 1:
            return known
        positions = spread(self.longest)
        positions = positions[positions + offset != 0]
        found = self._rotations_at(channels, positions)
        return known if found is None else narrowed(known, found.angle, positions + offset, roundoff)

    def _first_rotated(self, channels: Channels, rotations: Rotations, roundoff: float) -> str:
        """Which positions have the angles of position 0, and of which others groups follow; in words."""

        def first_turned(angle: np.ndarray) -> int:
            off = np.abs(wrapped(angle - rotations.angle[0])).max(axis=1)
            return int((off > noise(roundoff)).argmax())

        each, number = rotations.positions, first_turned(rotations.angle)
        between = np.arange(each[number - 1] + 1, each[number] + 1)
        near = self._rotations_at(channels, between) if number > 1 else None
        if near is None:
            return ""
        first = int(between[first_turned(near.angle)])
        one, other = (self.probe(np.ones((len(each), self.probe.head_dim)), p) for p in (each, each // first * first))
        if one is not None and other is not None and not _differ(one, other, roundoff):
            return f"positions are divided by {first} and rounded down: {first} neighbours have the same position"
        return f"positions below {first} have the same angles"

    def _of_axes(self, channels: Channels, positions: np.ndarray, roundoff: float, sign: float) -> np.ndarray | None:
        """The frequencies "axes pairs" along each position axis alone; None if angles are not proportional to it."""
        rows = []
        for axis in range(self.probe.axes if self.probe.axes > 1 else 0):
            along = self._rotations_at(channels, positions, axis)
            if along is None:
                return None
            found = fitted(along.angle[: len(powers(int(positions.max()) + 1))], roundoff)
            if found.until is not None:
                self.conclude(f"along position axis {axis} alone, angles are not proportional to positions")
                return None
            rows.append(np.where(np.abs(found.values) <= found.errors, 0.0, sign * found.values))
        return np.array(rows)

    def _conclude_embedding(
        self,
        measured: Measured,
        start: Start,
        positions: np.ndarray,
        angle: np.ndarray,
        roundoff: float,
        exchanged: int,
    ) -> None:
        """The value, the precision of its phases, and how much of the function it explains."""
        frequencies, where = measured.frequencies, positions + (start.offset or 0)

        def precision_with(w: np.ndarray, errors: np.ndarray) -> Precision:
            return precision_of(wrapped(angle - exact_angles(where, w)), where, w, errors, roundoff)

        w, errors = frequencies.values, frequencies.errors
        precision = precision_with(w, errors)
        measured = measured._replace(is_coarse=precision.name != "exact" or roundoff >= COARSE)
        value = value_of(measured) if self.near is None else self._value_near(self.near, measured)
        if value is not None:
            of_value = frequencies_of(value.rope)[:, 0].sum(axis=0)[value.numbers]
            if value.rope.base is not None:  # a rule is as far from the frequencies as they are from angles, or exact
                errors = errors * (0.0 if measured.is_coarse else 2.0)
            with_value = precision_with(of_value, errors)
            if with_value.name is None and precision.name is not None and self.near is None:
                value = value_of_numbers(measured)
            else:
                w, precision = of_value, with_value
        # Such a precision may hide that frequencies are those of `near`.
        if self.near is not None and precision.name in COARSE_BITS:
            wide = PRECISIONS[precision.name] * roundings(frequencies.values) * np.abs(w)
            known = frequencies._replace(errors=frequencies.errors + wide)
            value = value_near(self.near, measured._replace(frequencies=known)) or value
        self._conclude_precision(precision, positions, roundoff)
        if value is None:
            rule = rule_in_any_order(measured)
            of_rule = "" if rule is None else f"; their frequencies are those of {rule.in_words()}, in some order"
            self.conclude(f"no layout has these pairs{of_rule}")
            return
        if precision.name is None:
            return
        behaviour = behaviour_of(value.rope)._replace(offset=start.offset or 0, exchanged=exchanged)
        if self.near is not None:
            factor = _nearest_factor(measured, self.near) / factor_of_scaling(value.rope)
            behaviour = behaviour._replace(factor=factor)
        axis = "heads" if self.probe.axis == "heads" else "tokens"
        name = self.report.precision or precision.name
        change = "" if value.change is None else value.change.in_words()
        self.behaviour = behaviour._replace(precision=name, roundoff=roundoff, axis=axis, change=change)
        if self.near is not None or exchanged:
            return
        self._explain_rule(value, measured.magnitude_error)
        off = np.abs(frequencies.values / np.where(w, w, 1.0) - 1.0)[w != 0.0].max()
        self.conclude(
            f"the frequencies of {len(w)} pairs were measured; those of the value are within {off:.1e} of each"
        )
        explained = self._explained(self.behaviour, positions, precision)
        resolved = float(np.mean(frequencies.errors <= 1e-3 * np.abs(frequencies.values)))
        self.conclude(layout=value.rope.layout, confidence=resolved * explained)
        rope = with_axes(value, measured)
        if rope is None:
            self.conclude("the angles of the axes do not add up to those of equal positions", confidence=0.0)
        elif explained == 1.0:
            self.conclude(rope=rope, magnitude=rope.attention_factor)
        elif measured.channels.scaled:
            self.conclude(alone_in_words(measured.channels.scaled))

    def _value_near(self, near: Embedding, measured: Measured) -> Value | None:
        """The value with the fewest changes of another one; without one, for one position axis, any value."""
        value = value_near(near, measured)
        if value is None and self.probe.axes == 1:
            other = value_of(measured)
            return None if other is None else other._replace(rope=in_terms_of(near, other.rope))
        if value is None:
            alike = value_near(_of_text(near), measured._replace(of_axes=measured.of_axes.sum(axis=0)[None]))
            self.cause = "unknown" if alike is None else "sections"
        return value

    def _conclude_precision(self, precision: Precision, positions: np.ndarray, roundoff: float) -> None:
        """The precision of phases; of tables if only they have so few digits, and other numbers have more."""
        row = int(np.argmax(precision.errors))
        error = f"at position {positions[row]:,} they are off by {precision.errors[row]:.3g} radians"
        if precision.name is None:
            self.conclude(f"angles are not positions times frequencies: {error}")
        elif precision.name != "exact":
            words = "scores there do not depend on relative positions alone"
            self.conclude(f"phases have the precision of {precision.name}: {error}, and {words}")
        rounded = next((name for name in COARSE_BITS if ROUNDOFF[name] == roundoff > self.roundoff_of_results), None)
        if rounded and precision.name in ("exact", "float32"):
            self.conclude(f"sines and cosines are rounded to {rounded}", precision=f"{rounded} tables")
        else:
            self.conclude(precision=precision.name)

    def _explain_rule(self, value: Value, error: float) -> None:
        rope = value.rope
        if value.change is not None:
            self.conclude(f"the frequencies are those of {value.change.in_words()}, and are given as numbers")
        elif rope.base is None:
            self.conclude("no scaling rule explains the frequencies, so they are given as numbers")
        scaling = rope.scaling if value.change is None else value.change.scaling
        if isinstance(scaling, YarnScaling):
            self.conclude(attention_in_words(scaling, rope.attention_factor or 1.0, 2 * error))

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
    first, second, to_first, to_second = exact.channels
    kept = sorted({*range(probe.head_dim)} - {*to_first.tolist(), *to_second.tolist()})
    roundoff = max(behaviour.roundoff, probe.roundoff, ROUNDOFF["float32"] if tolerance else 0.0)
    for direction, x, positions, where in parts(probe, context, directions):
        y = probe(x, where)
        if y is None:
            return int(positions[0])
        for start in range(0, len(positions), CHUNK):  # which is faster than all at once
            some, of_some = positions[start : start + CHUNK], y[start : start + CHUNK]
            factors = exact.factors(some)[:, direction]
            error = 2.0**0.5 * exact.error_of(some, behaviour.precision, roundoff)[:, direction]
            limit = np.maximum(error, tolerance * np.maximum(exact.size, 1.0))
            expected = factors * (x[0, first] + 1j * x[0, second])
            unlike = np.abs(of_some[:, to_first] - expected.real) > limit
            unlike |= np.abs(of_some[:, to_second] - expected.imag) > limit
            wrong = np.abs(of_some[:, kept] - x[0, kept]) > noise(roundoff) + tolerance
            wrong = unlike.any(axis=1) | wrong.any(axis=1)
            if wrong.any():
                return int(some[wrong.argmax()])
    return None


def _small_integers(rows: int, width: int, seed: int = 0) -> np.ndarray:
    """Small whole numbers, which every dtype holds exactly."""
    return np.random.default_rng(seed).integers(-4, 5, size=(rows, width)).astype(np.float64)


def _roundoff_of(numbers: np.ndarray) -> float:
    """The unit roundoff of the narrowest ones that hold all numbers: a function may compute in another dtype."""
    held = [name for name, bits in SIGNIFICANT_BITS.items() if (rounded_to(bits, numbers) == numbers).all()]
    return max(ROUNDOFF[name] for name in held)


def _are_scores_relative(matrices: np.ndarray, roundoff: float) -> bool:
    q, k = (matrices @ _small_integers(matrices.shape[1], 8, seed) for seed in (1, 2))  # positions channels vectors
    scores = np.einsum("pcv,pcv->pv", q[[0, 3, 0, 2]], k[[1, 4, 2, 3]])  # differences of 1, 1, 2 and 2
    return not _differ(scores[::2], scores[1::2], max(roundoff, ROUNDOFF["float32"]))


def _differ(one: np.ndarray, other: np.ndarray, roundoff: float) -> bool:
    return bool(np.abs(one - other).max() > noise(roundoff) * np.abs(other).max())


def _until(rotations: Rotations, at_least: float) -> int | None:
    """The first position whose angles do not follow; None if all do, or if the blocks are no rotations."""
    # Powers of two come first, because the frequencies follow from them.
    positions, roundoff = rotations.positions, roundoff_of(rotations, at_least)
    if roundoff is None:
        return None
    frequencies = fitted(rotations.angle[: len(powers(int(positions.max()) + 1))], roundoff)
    if frequencies.until is not None:
        return frequencies.until
    w, errors = frequencies.values, frequencies.errors
    off = wrapped(wrapped(rotations.angle - rotations.angle[0]) - exact_angles(positions, w))
    of = np.full(len(positions), True)
    within = of
    for length in SHORTER_LENGTHS:  # the most positions that one precision explains
        precision = precision_of(off[of], positions[of], w, errors, roundoff)
        within = precision.within if of.all() else within
        if precision.name is not None:
            rest = positions[~of & ~within]
            return None if of.all() else int(min(rest if len(rest) else positions[~of]))
        of = positions < length
    return 0


def _of_text(rope: Embedding) -> Embedding:
    """An embedding of one axis that is the same where all position axes are equal."""
    if rope.base is not None:
        return rope.replace(sections=None)
    return rope.replace(inv_freq=frequencies_of(rope)[:, 0].sum(axis=0).tolist())


def _nearest_factor(measured: Measured, near: Embedding) -> float:
    found, error, own = measured.magnitude, measured.magnitude_error, near.attention_factor
    error = max(error, 1e-7 * found)
    known = [each for each in (own, 1.0, own * own) if abs(each - found) <= error]
    return known[0] if known else simplest_within(found, error)


def _direction(frequencies: Fitted) -> int | None:
    signs = set(np.sign(frequencies.values[np.abs(frequencies.values) > frequencies.errors]).astype(int).tolist())
    return signs.pop() if len(signs) == 1 else None
