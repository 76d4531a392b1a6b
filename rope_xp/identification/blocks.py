"""The matrices of a linear function of channels: which channels form pairs, and the 2 x 2 block of each pair.

At the end are the layouts that place such pairs at their channels.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rope_xp.identification.calls import ROUNDOFF

# Entries below this part of the greatest one are zero. The sine of a slow pair is far above it.
ZERO = 2.0**-40


class Channels(NamedTuple):
    """How the channels of a result depend on those of `x`.

    `inputs` and `outputs` are the two channels of each pair, "pairs 2", that are read and written. `kept` are the
    channels that stay as they are. `scaled` are other channels that are alone, multiplied by a constant or moved, as
    those of a pair of frequency 0 may be. `problem` says in words why the channels do not form pairs.
    """

    inputs: np.ndarray
    outputs: np.ndarray
    kept: tuple[int, ...]
    scaled: tuple[int, ...]
    problem: str | None


class Blocks(NamedTuple):
    """The 2 x 2 blocks of the pairs at some positions as a rotation, "positions pairs" each.

    A block is ``length * rotation(angle)`` plus `rest`, the part that no rotation has.
    """

    angle: np.ndarray
    length: np.ndarray
    rest: np.ndarray


def channels_of(matrices: np.ndarray, eps: float) -> Channels:
    """The pairs of matrices "positions outputs inputs", whose entries have the unit roundoff `eps`."""
    pattern = np.abs(matrices).max(axis=0) > ZERO * min(np.abs(matrices).max(), 1.0)
    outputs_of: dict[tuple[int, ...], list[int]] = {}
    for channel, row in enumerate(pattern.tolist()):
        outputs_of.setdefault(tuple(number for number, linked in enumerate(row) if linked), []).append(channel)
    groups = sorted(outputs_of.items())
    pairs = [(read, written) for read, written in groups if len(read) == len(written) == 2]
    alone = [(read[0], written[0]) for read, written in groups if len(read) == len(written) == 1]
    kept = [a for a, b in alone if a == b and np.abs(matrices[:, b, a] - 1.0).max() <= 8 * eps]
    scaled = [a for a, _ in alone if a not in kept]
    changing = [a for a, b in alone if np.ptp(matrices[:, b, a]) > 8 * eps * np.abs(matrices).max()]
    problem = _why_no_pairs(groups, len(pattern)) or (
        alone_in_words(changing or scaled) if changing or not pairs else ""
    )
    inputs, outputs = (np.array([pair[side] for pair in pairs], dtype=int).reshape(-1, 2) for side in (0, 1))
    return Channels(inputs, outputs, tuple(kept), tuple(scaled), problem or None)


def _why_no_pairs(groups: list[tuple[tuple[int, ...], list[int]]], width: int) -> str:
    """Why groups of channels that are read and written are not all pairs or channels alone; empty if they are."""
    used = [channel for read, _ in groups for channel in read]
    unused = sorted({*range(width)} - {*used})
    for read, written in groups:
        if not len(read) == len(written) <= 2:
            of = f"follow from channels {_list(read)}" if read else "are always 0"
            return f"channels {_list(written)} {of}, so channels do not form pairs"
    if unused:
        return f"channels {_list(unused)} of x do not appear in the result"
    return "a channel belongs to several pairs" if len(set(used)) < len(used) else ""


def alone_in_words(channels: Sequence[int]) -> str:
    """What is wrong with channels that are alone; empty if there are none."""
    return (
        f"channels {_list(channels)} are multiplied or moved, but not rotated" if channels else "no channels form pairs"
    )


def probes(channels: Channels, positions: np.ndarray, head_dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Two rows for each position: ones in the first and in the second channels of all pairs."""
    both = np.zeros((2, head_dim))
    for side in (0, 1):
        both[side, channels.inputs[:, side]] = 1.0
    return np.tile(both, (len(positions), 1)), np.repeat(positions, 2)


def blocks_of(channels: Channels, results: np.ndarray) -> np.ndarray:
    """The block of each pair from the results of `probes`, "positions pairs 2 2": output by input."""
    read = results.reshape(-1, 2, results.shape[-1])[..., channels.outputs]  # positions inputs pairs outputs
    return np.moveaxis(read, 1, -1)


def rotations_of(blocks: np.ndarray) -> Blocks:
    """Blocks "positions pairs 2 2" as rotations."""
    cos = (blocks[..., 0, 0] + blocks[..., 1, 1]) / 2
    sin = (blocks[..., 1, 0] - blocks[..., 0, 1]) / 2
    rest = np.hypot((blocks[..., 0, 0] - blocks[..., 1, 1]) / 2, (blocks[..., 1, 0] + blocks[..., 0, 1]) / 2)
    return Blocks(np.arctan2(sin, cos), np.hypot(cos, sin), rest)


def roundoff_of(rotations: Blocks, at_least: float) -> float | None:
    """The unit roundoff of the tables of sines and cosines, from the lengths of blocks; None if they are no rotations.

    The length of a block of rounded numbers is off by at most one unit roundoff of its length.
    """
    length = np.median(rotations.length, axis=0)
    off = np.maximum(np.abs(rotations.length - length), rotations.rest) / np.maximum(length, ZERO)
    return next((each for each in sorted(ROUNDOFF.values()) if each >= at_least and off.max() <= 4 * each), None)


def why_no_rotation(blocks: np.ndarray, pairs: np.ndarray) -> str:
    """What blocks are that are no rotations, in words."""
    cos, sin = (blocks[..., 0, 0] + blocks[..., 1, 1]) / 2, (blocks[..., 1, 0] - blocks[..., 0, 1]) / 2
    rotations = rotations_of(blocks)
    close = 4 * ROUNDOFF["bfloat16"]
    pair = "(" + ", ".join(map(str, pairs[0])) + ")"
    if rotations.rest.max() <= 0.1 * np.ptp(rotations.length):
        factors = _factors(cos, sin)
        if factors is not None:
            return "cos is multiplied by {:.6g}, and sin by {:.6g}; the factor must be the same".format(*factors)
        return f"the length of a pair such as {pair} changes with the position, as XPos does for queries or keys alone"
    rows = np.hypot(blocks[..., 0], blocks[..., 1])
    if np.ptp(rows, axis=0).max() <= close * rows.max():
        if rotations.length.max() <= close * rows.max():
            return f"pairs such as {pair} are reflected, because the sign of one term is wrong"
        first = np.arctan2(-blocks[..., 0, 1], blocks[..., 0, 0])
        second = np.arctan2(blocks[..., 1, 0], blocks[..., 1, 1])
        if np.abs(first + second).max() <= close or np.abs(np.sin(first + second)).max() <= close:
            return f"both channels of pairs such as {pair} get the same sign of sin; one must be negative"
        return (
            f"the two channels of a pair such as {pair} are multiplied by sines and cosines of different angles, "
            "because the tables repeat frequencies in the order of another layout"
        )
    return f"pairs of channels such as {pair} do not keep their length and their angle"


def _factors(cos: np.ndarray, sin: np.ndarray) -> tuple[float, float] | None:
    """Two factors a, b with ``(cos / a)**2 + (sin / b)**2 == 1`` everywhere, by least squares; None without."""
    terms = np.stack([cos.ravel() ** 2, sin.ravel() ** 2], axis=-1)
    squares, *_ = np.linalg.lstsq(terms, np.ones(len(terms)), rcond=None)
    if (squares <= 0.0).any() or np.abs(terms @ squares - 1.0).max() > 2 * ROUNDOFF["bfloat16"]:
        return None
    a, b = 1.0 / np.sqrt(squares)
    return (float(a), float(b)) if abs(a - b) > 1e-3 * a else None


def _list(channels: Iterable[int]) -> str:
    """Some channels, for messages."""
    numbers = [str(each) for each in channels]
    return ", ".join(numbers[:4]) + (f" and {len(numbers) - 4} more" if len(numbers) > 4 else "")


class Place(NamedTuple):
    """A layout, as `RotaryEmbedding` takes it, and the number of each measured pair in it.

    It may have more pairs than were measured: those have frequency 0.
    """

    layout: str
    first_channel: int
    pairs: int
    blocks: int
    numbers: np.ndarray


def places_of(channels: Channels, head_dim: int) -> Iterator[Place]:
    """All layouts that have these pairs, the most usual ones first."""
    inputs, outputs = channels.inputs, channels.outputs
    if not len(inputs):
        return
    first, step = int(inputs[0, 0]), inputs[:, 1] - inputs[:, 0]
    if not (step == step[0]).all():
        return
    same = (inputs == outputs).all()
    if same:
        yield from _half(inputs, first, int(step[0]), head_dim)
    neighbours = (step == 1).all() and ((inputs[:, 0] - first) % 2 == 0).all()
    if neighbours:
        numbers = (inputs[:, 0] - first) // 2
        if same:
            last = max((*channels.scaled, int(inputs[-1, 1])))  # pairs of frequency 0 may follow
            widths = {(last + 1 - first) // 2, (head_dim - first) // 2}
            yield from (Place("interleaved", first, pairs, 1, numbers) for pairs in sorted(widths))
        else:
            pairs = int(outputs[0, 1] - outputs[0, 0])
            if (outputs[:, 0] == first + numbers).all() and (outputs[:, 1] == first + pairs + numbers).all():
                yield Place("interleaved_to_half", first, pairs, 1, numbers)


def _half(inputs: np.ndarray, first: int, step: int, head_dim: int) -> Iterator[Place]:
    """Halves of one block, or of several equal blocks."""
    block, within = np.divmod(inputs[:, 0] - first, 2 * step)
    if (within >= step).any():
        return
    blocks = int(block[-1]) + 1
    if (step == 1 and blocks > 1) or first + 2 * step * blocks > head_dim:
        return
    yield Place("half", first, step * blocks, blocks, block * step + within)
