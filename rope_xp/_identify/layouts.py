"""The layouts that place measured pairs at their channels."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rope_xp._identify.blocks import Channels


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
