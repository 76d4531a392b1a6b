"""Pairs of channels in the matrices of a function, and what it does to them: angles, frequencies, offset, layout."""

from collections.abc import Iterable, Iterator, Sequence
from math import inf, pi
from typing import NamedTuple

import numpy as np

from rope_xp.identification.behaviour import Complex, Pair, pairs_in
from rope_xp.identification.precision import (
    COARSE,
    COARSE_BITS,
    PRECISIONS,
    ROUNDOFF,
    SIGNIFICANT_BITS,
    Precision,
    error_of,
    errors_of_phases,
    exact_angles,
    in_dtype,
    noise,
    precision_of,
    wrapped,
)
from rope_xp.identification.rules import simplest_within
from rope_xp.types import Values

# Entries below this part of the greatest one are zero. The sine of a slow pair is far above it.
ZERO = 2.0**-40
# An angle that is off by more, in radians, does not follow from the one before.
JUMP = 0.05
# Lengths to test if longer ones fail.
SHORTER_LENGTHS = tuple(2**k for k in (20, *range(17, 2, -1)))
# Twice as many angles give a frequency where sines and cosines are rounded.
SPREAD = 256
# An offset may turn the slowest pair this often. The angles that it gives must be known to so many radians: the second
# number holds where nothing else explains them.
TURNS, UNKNOWN, MOST_UNKNOWN = 200, 0.25, 1.0


class Channels(NamedTuple):
    """How the channels of a result depend on those of `x`."""

    head_dim: int
    roundoff: float  # of the matrices from which they follow
    inputs: np.ndarray  # "pairs 2": the channels of each pair that are read
    outputs: np.ndarray  # "pairs 2": those that are written
    kept: tuple[int, ...]  # the channels that stay as they are
    # Other channels that are alone, multiplied by a constant or moved, as those of a pair of frequency 0 may be.
    scaled: tuple[int, ...]
    problem: str | None  # why the channels do not form pairs, in words

    @property
    def pairs(self) -> list[Pair]:
        return [Pair(*read, *written) for read, written in zip(self.inputs.tolist(), self.outputs.tolist())]

    def unit_rows(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Two rows for each position: ones in the first and in the second channels of all pairs."""
        both = np.zeros((2, self.head_dim))
        both[[0, 1], self.inputs] = 1.0
        return np.tile(both, (len(positions), 1)), np.repeat(positions, 2)

    def blocks(self, results: np.ndarray) -> np.ndarray:
        read = results.reshape(-1, 2, results.shape[-1])[..., self.outputs]  # positions inputs pairs outputs
        return np.moveaxis(read, 1, -1)


class Fitted(NamedTuple):
    """Frequencies in radians per position, and the largest error of each."""

    values: np.ndarray
    errors: np.ndarray
    start: np.ndarray  # the angles at position 0
    until: int | None  # the first of the growing positions whose angle does not follow; None if all do


class Rotations(NamedTuple):
    """What a function does with pairs at some positions: a complex factor, and what no such factor has."""

    channels: Channels
    positions: np.ndarray  # they begin with 0, 1, and others that grow by half or more, such as `powers`
    blocks: np.ndarray  # "positions pairs 2 2": the matrix of each pair
    factors: Complex  # "positions pairs"
    rest: np.ndarray  # "positions pairs": the length of what the factors leave
    roundoff: float  # of the sines and cosines, from the lengths; infinite if these are no rotations

    @property
    def angle(self) -> np.ndarray:
        return np.angle(self.factors)

    @property
    def length(self) -> np.ndarray:
        return np.abs(self.factors)

    @property
    def magnitude(self) -> float:  # the factor of the lengths
        length = float(np.median(self.length))
        return 1.0 if abs(length - 1.0) <= error_of(self.roundoff) else length

    @property
    def magnitude_error(self) -> float:
        return error_of(self.roundoff) * float(np.median(self.length))

    @property
    def is_rounded(self) -> bool:
        """Whether sines and cosines are numbers of the dtype with their roundoff, times a factor."""
        name = next(name for name, each in ROUNDOFF.items() if each == self.roundoff)
        bits, numbers = SIGNIFICANT_BITS[name], np.unique(np.abs(self.blocks))
        # Divided by the factor, the largest is a number of the dtype from 1/2 to 2.
        mantissas = np.arange(2 ** (bits - 1), 2**bits)
        largest = np.ldexp(np.concatenate([mantissas, 2 * mantissas]), -bits)
        close = 2 * max(self.channels.roundoff, ROUNDOFF["float32"])
        for some in (numbers[-16:], numbers):
            scaled = some * (largest / numbers[-1])[:, None]
            largest = largest[np.all(np.abs(in_dtype(name, scaled) - scaled) <= close * scaled, axis=1)]
        return len(largest) > 0

    def frequencies(self) -> Fitted:
        """Those of the angles at the first positions, as long as these grow by half or more."""
        # The angle at position 1 gives the frequency. Twice the position halves its error, and its turns follow from
        # the angle before.
        count = 1 + int(np.append(self.positions[1:] < 1.5 * self.positions[:-1], True).argmax())
        start, total, last, until = self.angle[0], wrapped(self.angle[1] - self.angle[0]), 1, None
        for position, angle in zip(self.positions[2:count].tolist(), self.angle[2:count]):
            total, last = total * (position / last), position
            rest = wrapped(angle - start - total)
            if np.abs(rest).max() > JUMP:
                until = last
                break
            total = total + rest
        values = total / last
        errors = 2 * error_of(self.roundoff) / last + error_of(ROUNDOFF["float64"]) * np.abs(values)
        return Fitted(values, errors, start, until)

    @property
    def until(self) -> int | None:
        """The first position whose angles do not follow; None if all do, or if not even the first ones do."""
        if self.roundoff == inf:
            return None
        known = self.frequencies()
        if known.until is not None:
            return known.until
        angles = PairAngles(self.positions, wrapped(self.angle - known.start), known, 0, 0, self.roundoff)
        offset, _ = start_of(known, self.roundoff)
        ends = [angles.until, *([angles._replace(values=self.angle, offset=offset).until] if offset else [])]
        return None if None in ends else max(filter(None, ends))


def channels_of(matrices: np.ndarray, roundoff: float) -> Channels:
    greatest = np.abs(matrices).max()
    pattern = np.abs(matrices).max(axis=0) > ZERO * greatest
    outputs_of: dict[tuple[int, ...], list[int]] = {}
    for channel, row in enumerate(pattern.tolist()):
        outputs_of.setdefault(tuple(number for number, linked in enumerate(row) if linked), []).append(channel)
    groups = sorted(outputs_of.items())
    pairs = [(read, written) for read, written in groups if len(read) == len(written) == 2]
    alone = [(read[0], written[0]) for read, written in groups if len(read) == len(written) == 1]
    kept = [a for a, b in alone if a == b and np.abs(matrices[:, b, a] - 1.0).max() <= noise(roundoff)]
    scaled = [a for a, _ in alone if a not in kept]
    changing = [a for a, b in alone if np.ptp(matrices[:, b, a]) > noise(roundoff) * greatest]
    problem = _why_no_pairs(groups, len(pattern))
    if not problem and (changing or not pairs):
        problem = alone_in_words(changing or scaled)
    inputs, outputs = (np.array([pair[side] for pair in pairs], dtype=int).reshape(-1, 2) for side in (0, 1))
    return Channels(len(pattern), roundoff, inputs, outputs, tuple(kept), tuple(scaled), problem or None)


def _why_no_pairs(groups: list[tuple[tuple[int, ...], list[int]]], width: int) -> str:
    """Why groups of channels that are read and written are not all pairs or channels alone; empty if they are."""
    for read, written in groups:
        if not len(read) == len(written) <= 2:
            of = f"follow from channels {_list(read)}" if read else "are always 0"
            return f"channels {_list(written)} {of}, so channels do not form pairs"
    unused = sorted({*range(width)}.difference(*(read for read, _ in groups)))
    return f"channels {_list(unused)} of x do not appear in the result" if unused else ""


def alone_in_words(channels: Sequence[int]) -> str:
    how = "are multiplied or moved, but not rotated"
    return f"channels {_list(channels)} {how}" if channels else "no channels form pairs"


def rotations_of(channels: Channels, positions: np.ndarray, blocks: np.ndarray) -> Rotations:
    # A matrix of two rows multiplies a complex number by one factor, and its conjugate by another one.
    (a, b), (c, d) = np.moveaxis(blocks, (-2, -1), (0, 1))
    factors, rest = (a + d + 1j * (c - b)) / 2, np.abs(a - d + 1j * (c + b)) / 2
    # The length of a block of rounded numbers is off by at most one unit roundoff of its length.
    lengths = np.abs(factors)
    off, least = _changes_of_length(lengths, rest), channels.roundoff
    possible = (each for each in sorted(ROUNDOFF.values()) if each >= least and off.max() <= error_of(each))
    found = Rotations(channels, positions, blocks, factors, rest, next(possible, inf))
    # Errors above those of float16 come from rounding, or one pair or cos alone is multiplied: that is no rotation.
    if found.roundoff in (inf, least) or found.roundoff <= COARSE or found.is_rounded:
        return found
    is_multiplied = _factors(factors, error_of(found.roundoff)) is not None
    of_few_pairs = 2 * np.count_nonzero(off <= error_of(ROUNDOFF["float32"])) >= len(off)
    return found._replace(roundoff=inf) if is_multiplied or of_few_pairs else found


def _changes_of_length(lengths: np.ndarray, rest: np.ndarray) -> np.ndarray:
    length = np.median(lengths, axis=0)
    return np.maximum(np.abs(lengths - length), rest).max(axis=0) / np.maximum(length, ZERO)


def why_no_rotation(rotations: Rotations) -> str:
    # Of the pairs whose lengths are off by more than a dtype rounds: the coarsest one for which there are any.
    off, channels = _changes_of_length(rotations.length, rotations.rest), rotations.channels
    close = next(each for each in map(error_of, sorted(ROUNDOFF.values(), reverse=True)) if off.max() > each)
    pairs = np.flatnonzero(off > close)
    own = {name: getattr(rotations, name)[:, pairs] for name in ("blocks", "factors", "rest")}
    rotations = rotations._replace(channels=channels._replace(inputs=channels.inputs[pairs]), **own)
    blocks = rotations.blocks
    pair = "(" + ", ".join(map(str, rotations.channels.inputs[0])) + ")"
    if rotations.rest.max() <= close * rotations.length.max():
        of_both = _factors(rotations.factors, close)
        if of_both is not None:
            return "cos is multiplied by {:.6g}, and sin by {:.6g}; the factor must be the same".format(*of_both)
        return f"the length of a pair such as {pair} changes with the position, as XPos does for queries or keys alone"
    rows = np.hypot(blocks[..., 0], blocks[..., 1])
    if np.ptp(rows) <= close * rows.max():
        if rotations.length.max() <= close * rows.max():
            return f"pairs such as {pair} are reflected, because the sign of one term is wrong"
        first = np.arctan2(-blocks[..., 0, 1], blocks[..., 0, 0])
        second = np.arctan2(blocks[..., 1, 0], blocks[..., 1, 1])
        if np.abs(np.sin(first + second)).max() <= close:
            return f"both channels of pairs such as {pair} get the same sign of sin; one must be negative"
        return (
            f"the two channels of a pair such as {pair} are multiplied by sines and cosines of different angles, "
            "as where tables repeat frequencies in the order of another layout: neighbouring channels need each one "
            "twice in a row, halves the whole list twice"
        )
    return f"pairs of channels such as {pair} do not keep their length and their angle"


def _factors(factors: Complex, close: float) -> tuple[float, ...] | None:
    """Numbers a, b with ``(real / a)**2 + (imag / b)**2`` close to 1, by least squares; None without."""
    terms = np.stack([factors.real.ravel() ** 2, factors.imag.ravel() ** 2], axis=-1)
    squares, *_ = np.linalg.lstsq(terms, np.ones(len(terms)), rcond=None)
    off = np.abs(terms @ squares - 1.0).max()
    if min(squares) < 0.0 or off > min(close, np.ptp(squares) / 4):  # two equal numbers would do as well
        return None
    return tuple(squares**-0.5)


def _list(channels: Iterable[int]) -> str:
    numbers = [str(each) for each in channels]
    return ", ".join(numbers[:4]) + (f" and {len(numbers) - 4} more" if len(numbers) > 4 else "")


def powers(seq_len: int, offset: int = 0) -> np.ndarray:
    """The positions 0, 1, 2, 4, 8, ... below `seq_len`; with an offset, greater ones are such powers with it added."""
    twos = [2**k for k in range(63)]
    near = [each for each in twos if each <= max(1, 2 * abs(offset))]
    far = [each - offset for each in twos if each - offset >= 1.5 * near[-1]]
    return np.array([0, *(each for each in near + far if each < seq_len)])


def spread(longest: int) -> np.ndarray:
    """Positions from 1 to `longest`, of which half are far."""
    near, far = np.geomspace(1, longest, SPREAD), np.linspace(longest // 2, longest, SPREAD)
    return np.union1d(near.astype(int), far.astype(int))


def start_of(frequencies: Fitted, roundoff: float, unknown: float = UNKNOWN) -> tuple[int | float | None, str]:
    """The offset of positions that explains the angles at position 0, and what these are, in words; None without."""
    start, close = frequencies.start, 2 * error_of(roundoff)
    if np.abs(start).max() <= close:
        return 0, ""
    constant = np.abs(wrapped(start - start[0])).max() <= close and len(start) > 1
    if constant and abs(abs(start[0]) - pi / 2) <= close:
        return None, _swapped_in_words(frequencies)
    offset, error = _offset(frequencies, roundoff, unknown)
    if offset is None and constant:
        return None, f"all pairs are turned by a constant angle of {start[0]:.6g}"
    if offset is None:
        return None, "pairs are turned at position 0 by angles that no single offset of the positions explains"
    whole, error = round(offset), max(error, 1e-6 * abs(offset))
    if abs(offset - whole) > error:
        whole = float(simplest_within(abs(offset), error) * np.sign(offset))
    offset = whole
    return offset, f"positions are shifted: the angle at position p is that of p + {offset}".replace("+ -", "- ")


def _swapped_in_words(frequencies: Fitted) -> str:
    is_more = np.sin(frequencies.start).mean() >= 0.0
    if is_more and (frequencies.values <= frequencies.errors).all():
        return "sin and cos are swapped, so the angle is a quarter turn minus position * frequency"
    return f"sin and cos are swapped, and a sign differs: each angle is a quarter turn {'more' if is_more else 'less'}"


def _offset(frequencies: Fitted, roundoff: float, unknown: float) -> tuple[float | None, float]:
    """The least offset whose angles are those at position 0, and its error; None if there is none."""
    # The slowest pair gives the offset up to whole turns, of which some are tried. Faster pairs make it more exact.
    values, errors, start, _ = frequencies
    order = np.argsort(np.abs(values))
    order = order[np.abs(values[order]) > errors[order]]
    if not len(order):
        return None, inf
    turns = np.arange(-TURNS, TURNS + 1)
    offset = 2 * pi * turns / values[order[0]]
    for w, of_pair in zip(values[order], start[order]):
        offset = offset + wrapped(of_pair - w * offset) / w
    error = error_of(roundoff) / abs(float(values[order[-1]]))
    for name in PRECISIONS:  # of phases
        if name in COARSE_BITS:  # the offset is rounded like a position, and few pairs fit to many
            offset, unknown = offset.round(), UNKNOWN if len(order) > 3 else 0.0
        rest = np.abs(wrapped(start - offset[:, None] * values))
        within = np.abs(offset)[:, None] * (errors + errors_of_phases(values, name)) + noise(roundoff)
        fits = np.flatnonzero((rest <= within).all(axis=1) & (within < unknown).all(axis=1))
        if len(fits):
            # One pair alone leaves many offsets. Someone chose a whole number, and a small one.
            found = min(offset[fits], key=lambda each: (abs(each - round(each)) > error * (1 + abs(each)), abs(each)))
            return float(found), error
    return None, error


class PairAngles(NamedTuple):
    """The angles of pairs, as they are if sine and cosine are not exchanged, and the numbers that explain them."""

    positions: np.ndarray  # above 0
    values: np.ndarray  # "positions pairs", in radians
    frequencies: Fitted
    offset: int | float | None  # None if there is none
    exchanged: int  # as in `Behaviour`
    roundoff: float  # of sines and cosines

    @property
    def where(self) -> np.ndarray:
        return self.positions + (self.offset or 0)

    def off(self, frequencies: np.ndarray) -> np.ndarray:
        return wrapped(self.values - exact_angles(self.where, frequencies))

    def precision_with(self, frequencies: np.ndarray, errors: np.ndarray) -> Precision:
        off, where, positions = self.off(frequencies), self.where, self.positions
        found = before = precision_of(off, where, frequencies, errors, self.roundoff, where)
        if found.name is None and self.offset:  # which may be added to positions that are rounded
            before = precision_of(off, where, frequencies, errors, self.roundoff, positions)
        return before if before.of_positions else found

    @property
    def until(self) -> int | None:
        values, errors = self.frequencies.values, self.frequencies.errors
        whole = self.precision_with(values, errors)
        if whole.name is not None:
            return None
        for length in SHORTER_LENGTHS[:-1]:  # the most positions that one precision explains
            short = self.positions < length
            near = self._replace(positions=self.positions[short], values=self.values[short])
            if near.precision_with(values, errors).name is not None:
                # Of the positions beyond, those with errors of float32 follow too, unless all have such errors.
                unlike = self.positions[~short & ~whole.within]
                return int(min(unlike if len(unlike) else self.positions[~short]))
        return None

    def with_sines_exchanged(self) -> tuple["PairAngles", str]:
        """The angles if sine and cosine are exchanged, and what is exchanged and shifted, in words."""
        # sin + i cos is i times the conjugate of cos + i sin.
        values, errors, start, _ = self.frequencies
        sign = -1 if np.sin(start).mean() < 0.0 else 1
        frequencies = Fitted(-values, errors, wrapped(sign * pi / 2 - start), None)
        offset, shifted = start_of(frequencies, self.roundoff)
        words = "; ".join(filter(None, [_swapped_in_words(self.frequencies), shifted]))
        return PairAngles(self.positions, sign * pi / 2 - self.values, frequencies, offset, sign, self.roundoff), words

    def narrowed(self) -> Fitted:
        """The frequencies with smaller errors, from angles whose sines and cosines were rounded."""
        # Each angle gives an interval of frequencies, and the frequency is in all of them. The rounding of a sine and a
        # cosine changes the tangent by a factor, so angles near a quarter of a revolution are exact.
        known, where, roundoff = self.frequencies, self.where[:, None], self.roundoff
        rest = self.off(known.values)
        phase = np.abs(where) * errors_of_phases(known.values, "float32")
        # The smallest numbers of float16 are as far apart as float32 rounds 1.
        rounding = roundoff * (1.0 + error_of(roundoff)) * np.abs(np.sin(2.0 * self.values)) + ROUNDOFF["float32"]
        for error in (rounding, rounding + phase, 2.0 * rounding + phase):
            ends = np.stack([rest - error, rest + error]) / where
            least, most = ends.min(axis=0).max(axis=0), ends.max(axis=0).min(axis=0)
            if (least <= most).all():
                values = known.values + (least + most) / 2
                errors = (most - least) / 2 + error_of(ROUNDOFF["float64"]) * np.abs(values)
                return known._replace(values=values, errors=errors)
        return known


class Place(NamedTuple):
    """A layout, and the number of each measured pair in it. Pairs that were not measured have frequency 0."""

    head_dim: int
    layout: str
    first_channel: int
    rotary_dim: int
    blocks: int
    numbers: np.ndarray

    @property
    def options(self) -> Values:
        return dict(zip(self._fields[:-1], self))

    def of_all_pairs(self, numbers: np.ndarray) -> np.ndarray:
        # Those "... pairs" of the measured pairs, with 0 for the others.
        result = np.zeros((*numbers.shape[:-1], self.rotary_dim // 2))
        result[..., self.numbers] = numbers
        return result


def places_of(channels: Channels, magnitude: float) -> Iterator[Place]:
    """All layouts that have these pairs, the most usual ones first."""
    measured = channels.pairs
    (first, second, to_first, to_second), head_dim = measured[0], channels.head_dim
    last, step = measured[-1], second - first
    # Pairs of frequency 0 may come before or after, which have the magnitude too.
    end = 1 + max((*channels.scaled, last.second))
    in_a_row = sorted({(each - first) // 2 for each in (end, end if magnitude != 1.0 else head_dim)})
    blocks = (last.first - first) // (2 * step) + 1
    layouts = [
        *([("half", step * blocks, blocks)] if blocks == 1 or step > 1 else []),
        *(("interleaved", pairs, 1) for pairs in in_a_row),
        ("interleaved_to_half", to_second - to_first, 1),
    ]
    for layout, pairs, blocks in layouts:
        start = min(first, head_dim - 2 * pairs)
        number_of = {pair: number for number, pair in enumerate(pairs_in(layout, start, pairs, blocks))}
        if start >= 0 and number_of.keys() >= {*measured}:
            yield Place(head_dim, layout, start, 2 * pairs, blocks, np.array([number_of[each] for each in measured]))
