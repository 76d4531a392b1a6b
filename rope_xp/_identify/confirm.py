"""Whether a behaviour gives the results of a function at many positions."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from rope_xp._identify.calls import ROUNDOFF
from rope_xp._identify.maps import Behaviour
from rope_xp._identify.probe import Probe

# All positions below it are tried before a function is said to be the same, and so many beyond it. The first part is a
# long call; shorter ones are faster.
ALL_TRIED, BEYOND = 2**15, 2**13
LONG, CHUNK = 2**13, 2**11


def tried(context: int) -> Iterator[Any]:
    """Positions below `context` in ascending order, in parts: all up to `ALL_TRIED`, then some."""
    some = {context - 1, *(2**power + each for power in range(32) for each in (-1, 0, 1))}
    some |= {*np.random.default_rng(0).integers(0, context, BEYOND).tolist()}
    far = np.array(sorted(each for each in some if ALL_TRIED <= each < context), dtype=int)
    yield np.arange(min(context, LONG))
    for positions in (np.arange(LONG, min(context, ALL_TRIED)), far):
        yield from (positions[start : start + CHUNK] for start in range(0, len(positions), CHUNK))


def rows_at(head_dim: int, positions: Any) -> Any:
    """Rows "positions head_dim" of 1 and -1: results of a pair then differ as much as its factors."""
    return np.broadcast_to(np.random.default_rng(0).choice([-1.0, 1.0], head_dim), (len(positions), head_dim))


def first_unlike(
    probe: Probe, behaviour: Behaviour, context: int, tolerance: float = 0.0, directions: Any = None
) -> int | None:
    """The first position below `context`, of those of `tried`, at which a behaviour does not give the same result.

    None if there is none. With several position axes, positions are those along each direction.
    """
    exact = behaviour.with_exact_phases()._replace(axis="tokens").map(directions)
    first, second, to_first, to_second = exact.channels
    kept = sorted({*range(probe.head_dim)} - {*to_first.tolist(), *to_second.tolist()})
    roundoff = max(behaviour.roundoff, probe.eps, ROUNDOFF["float32"] if tolerance else 0.0)
    for row in range(1 if directions is None else len(directions)):
        for positions in [np.arange(context)] if probe.follows == "index" else tried(context):
            x = rows_at(probe.head_dim, positions)
            where = positions if directions is None else np.outer(directions[row], positions).astype(int)
            y = probe(x, where)
            if y is None:
                return int(positions[0])
            factors = exact.factors(positions)[:, row]
            limit = 2.0 * exact.error_of(positions, behaviour.precision, roundoff)[:, row]
            limit += tolerance * np.maximum(exact.size, 1.0)
            expected = factors * (x[0, first] + 1j * x[0, second])
            unlike = np.abs(y[:, to_first] - expected.real) > limit
            unlike |= np.abs(y[:, to_second] - expected.imag) > limit
            wrong = unlike.any(axis=1) | (np.abs(y[:, kept] - x[:, kept]) > 16 * roundoff + tolerance).any(axis=1)
            if wrong.any():
                return int(positions[wrong.argmax()])
    return None
