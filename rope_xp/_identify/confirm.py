"""Whether a behaviour gives the results of a function at many positions."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from rope_xp._identify.calls import ROUNDOFF
from rope_xp._identify.maps import Behaviour
from rope_xp._identify.probe import Probe

# All positions below it are tried before a function is said to be the same, and so many beyond it. The first part is a
# long call; short ones are faster.
ALL_TRIED, BEYOND = 2**15, 2**13
LONG, CHUNK = 2**21, 2**11  # numbers, tokens


def longest_call(head_dim: int) -> int:
    """The tokens of the longest call."""
    return min(max(LONG // head_dim, 4 * CHUNK), ALL_TRIED)


def tried(context: int, head_dim: int) -> Iterator[Any]:
    """Positions below `context` in ascending order, in parts: all below `ALL_TRIED`, then some."""
    long = longest_call(head_dim)
    yield np.arange(min(context, long))
    some = {context - 1, *(2**power + each for power in range(32) for each in (-1, 0, 1))}
    some |= {*np.random.default_rng(0).integers(0, context, BEYOND).tolist()}
    far = np.array(sorted(each for each in some if ALL_TRIED <= each < context), dtype=int)
    for positions in (np.arange(long, min(context, ALL_TRIED)), far):
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
        for positions in [np.arange(context)] if probe.follows == "index" else tried(context, probe.head_dim):
            x = rows_at(probe.head_dim, positions)
            where = positions if directions is None else np.outer(directions[row], positions).astype(int)
            y = probe(x, where)
            if y is None:
                return int(positions[0])
            for start in range(0, len(positions), CHUNK):  # which is faster than all at once
                some, of_some = positions[start : start + CHUNK], y[start : start + CHUNK]
                factors = exact.factors(some)[:, row]
                error = 2.0**0.5 * exact.error_of(some, behaviour.precision, roundoff)[:, row]
                limit = np.maximum(error, tolerance * np.maximum(exact.size, 1.0))
                expected = factors * (x[0, first] + 1j * x[0, second])
                unlike = np.abs(of_some[:, to_first] - expected.real) > limit
                unlike |= np.abs(of_some[:, to_second] - expected.imag) > limit
                wrong = np.abs(of_some[:, kept] - x[0, kept]) > 16 * roundoff + tolerance
                wrong = unlike.any(axis=1) | wrong.any(axis=1)
                if wrong.any():
                    return int(some[wrong.argmax()])
    return None
