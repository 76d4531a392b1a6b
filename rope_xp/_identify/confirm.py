"""Whether a behaviour gives the results of a function at many positions."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from rope_xp._identify.calls import ROUNDOFF
from rope_xp._identify.maps import Behaviour
from rope_xp._identify.probe import Probe

# All positions below it are tried before a function is said to be the same, and so many beyond it, in parts.
ALL_TRIED, CHUNK = 2**15, 2**13


def tried(context: int) -> Iterator[Any]:
    """Positions below `context` in ascending order, in parts: all up to `ALL_TRIED`, then some."""
    some = {context - 1, *(2**power + each for power in range(32) for each in (-1, 0, 1))}
    some |= {*np.random.default_rng(0).integers(0, context, CHUNK).tolist()}
    far = np.array(sorted(each for each in some if ALL_TRIED <= each < context), dtype=int)
    near = np.arange(min(context, ALL_TRIED))
    for positions in (near, far):
        yield from (positions[start : start + CHUNK] for start in range(0, len(positions), CHUNK))


def rows_at(probe: Probe, positions: Any) -> Any:
    """Rows "positions head_dim" of 1 and -1: results of a pair then differ as much as its factors."""
    return np.random.default_rng(int(positions[0])).choice([-1.0, 1.0], (len(positions), probe.head_dim))


def first_unlike(
    probe: Probe, behaviour: Behaviour, context: int, tolerance: float = 0.0, directions: Any = None
) -> int | None:
    """The first position below `context`, of those of `tried`, at which a behaviour does not give the same result.

    None if there is none. With several position axes, positions are those along each direction.
    """
    exact = behaviour.with_exact_phases()._replace(axis="tokens").map(directions)
    first, second, to_first, to_second = exact.channels
    roundoff = max(behaviour.roundoff, probe.eps, ROUNDOFF["float32"] if tolerance else 0.0)
    for row in range(1 if directions is None else len(directions)):
        for positions in [np.arange(context)] if probe.follows == "index" else tried(context):
            x = rows_at(probe, positions)
            where = positions if directions is None else np.outer(directions[row], positions).astype(int)
            y, expected = probe(x, where), exact.rotated(x, positions, row)
            if y is None:
                return int(positions[0])
            limit = np.full(x.shape, 16 * roundoff + tolerance)
            of_pairs = exact.error_of(positions, behaviour.precision, roundoff)[:, row] * 2 + tolerance
            limit[:, to_first] = limit[:, to_second] = of_pairs
            unlike = (np.abs(y - expected) > limit * np.maximum(1.0, np.abs(expected))).any(axis=1)
            if unlike.any():
                return int(positions[unlike.argmax()])
    return None
