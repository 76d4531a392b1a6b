"""How much two maps differ: at a position, where by more than a limit for the first time, and in attention."""

from collections.abc import Iterator
from itertools import product
from math import asin, ceil, inf, remainder, sin, sqrt, tau
from typing import Any

import numpy as np

from rope_xp.identification.behaviour import Complex, Map, aligned
from rope_xp.identification.precision import within_half_a_turn

# The largest head whose matrices are compared by all unit vectors. Wider heads, whose singular values take seconds, are
# compared by the unit vectors of single channels.
MAX_WIDTH = 1024
# After so many matrices without a difference, positions are visited in steps that grow. Only changes that stay near the
# limit need so many.
MAX_MATRICES = 500
# Where every position is tried, these are all positions of a chunk, up to a limit. The rest is one chunk of positions
# at equal distances.
CHUNK, LAST_TRIED = 8192, 2**20
# One random query for each of `HEADS` heads, at the last position, and `TOKENS` random keys, or fewer of wide heads, at
# equal distances. The seed makes the result the same each time.
HEADS, TOKENS, SEED = 32, 4096, 0
MAX_NUMBERS = 2**21


def change_at(a: Map, b: Map, position: int) -> float:
    """The largest change of a unit score at a position: the largest singular value of the difference."""
    return max(_change_of_role(*each, position) for each in _roles(a, b))


def first_beyond(a: Map, b: Map, limit: float, context: int, known: int = 0, step: int = 1) -> int | None:
    """The first position from `known` to `context` where a unit score changes by more than `limit`; None without."""
    # Where no formula gives the position, it is the first of those after each `step`.
    found = [_first_of_role(*each, limit, range(known, context, step)) for each in _roles(a, b)]
    return min((first for first in found if first is not None), default=None)


def first_of_scores(a: Map, b: Map, limit: float, context: int) -> int | None:
    """The first position where the score of a query with a key at position 0 changes by more; None without."""
    return _first_of_role(a.of_scores(), b.of_scores(), limit, range(context))


def _roles(a: Map, b: Map) -> Iterator[tuple[Map, Map]]:
    yield a, b
    if a.growth is not None or b.growth is not None:
        yield a.of_keys(), b.of_keys()


def _change_of_role(a: Map, b: Map, position: int) -> float:
    a, b = _with_equal_rows(a, b)
    both = aligned(a, b)
    if both is None:
        return _change_of_matrices(a, b, position)
    if _are_equal(*both):
        return 0.0
    return float(_changes(*(each.factors([position]) for each in both))[0])


def _first_of_role(a: Map, b: Map, limit: float, positions: range) -> int | None:
    a, b = _with_equal_rows(a, b)
    both = aligned(a, b)
    if both is None:
        return _first_of_matrices(a, b, limit, positions)
    if _are_equal(*both):
        return None
    if any(each.phase != "exact" or each.own_factors or each.growth is not None for each in both):
        return _first_of_all(*both, limit, positions)
    # The difference of the angles of each pair grows by the same step from each position to the next.
    one, other = both
    step = within_half_a_turn(one.step) - within_half_a_turn(other.step)
    columns = np.broadcast_arrays(one.size, other.size, one.start - other.start, step)
    numbers = np.transpose([each.ravel() for each in columns]).tolist()
    found = [first for each in numbers if (first := _first_of_pair(*each, limit=limit)) is not None]
    first = min(found, default=positions.stop)
    return first if first < positions.stop else None


def _with_equal_rows(a: Map, b: Map) -> Iterator[Map]:
    # There is a row for each head.
    rows = max(len(a.start), len(b.start))
    for each in (a, b):
        times = rows // len(each.start)
        yield each._replace(start=np.repeat(each.start, times, axis=0), steps=np.repeat(each.steps, times, axis=1))


def _first_of_pair(size: float, other: float, start: float, step: float, limit: float) -> int | None:
    """The first position at which ``size - other * exp(i (start + step p))`` is longer than `limit`."""
    # Its squared length is (size - other)**2 + 4 size other sin((start + step p) / 2)**2. It is too long where the
    # angle is within an interval around half a revolution. The interval begins at `edge`, once in each revolution.
    if size + other <= limit:
        return None
    if size + other == inf:
        return 0
    if not 1e-200 < size * other < 1e200:
        size, other, limit = (each / max(size, other) for each in (size, other, limit))
    off = abs(size - other)
    least = (limit - off) * (limit + off) / max(4.0 * (size * other), 1e-200)
    edge, step = 2.0 * asin(sqrt(min(max(least, 0.0), 1.0))), remainder(step, tau)  # positions are integers
    angle = remainder(start if step > 0.0 else -start, tau)
    step = abs(step)
    if step < 1e-300:
        return 0 if sin(angle / 2.0) ** 2 > least else None
    for revolution in range(-1, 1000):  # an interval that is smaller than a step may be missed
        entry = ceil((edge + tau * revolution - angle) / step)
        for position in (max(entry, 0), max(entry + 1, 0)):  # the first may be too early by rounding
            if sin((angle + step * position) / 2.0) ** 2 > least:
                return position
    return None


def _first_of_all(a: Map, b: Map, limit: float, positions: range) -> int | None:
    dense, rest = positions[:LAST_TRIED], positions[LAST_TRIED:]
    chunks = [dense[start : start + CHUNK] for start in range(0, len(dense), CHUNK)]
    for tried in [*chunks, *([rest[:: ceil(len(rest) / CHUNK)]] if rest else [])]:
        chunk = np.array(tried)
        one, other = a.factors(chunk), b.factors(chunk)
        beyond = np.nonzero(_changes(one, other) > limit)[0]
        if beyond.size:
            return int(chunk[beyond[0]])
        if (np.abs(one[-1]) + np.abs(other[-1])).max() <= limit:  # both have decayed
            return None
    return None


def _are_equal(a: Map, b: Map) -> bool:
    fields: list[tuple[Any, Any]] = [*zip(a, b)]
    return all(np.array_equal(*each) for each in fields)


def _changes(one: Complex, other: Complex) -> np.ndarray:
    # Where both are infinite, as those of XPos may be, they differ infinitely.
    changes = np.abs(one - other).max(axis=(1, 2), initial=0.0)
    return np.where(np.isnan(changes), inf, changes)


def _first_of_matrices(a: Map, b: Map, limit: float, positions: range) -> int | None:
    # From one position to the next, the change of a unit score grows by at most `speed`. Positions that it cannot reach
    # are skipped.
    steps = (np.abs(within_half_a_turn(each.step)) * each.size for each in (a, b))
    speed = max(sum(float(each.max(initial=0.0)) for each in steps), 1e-300)
    if a.growth is not None or b.growth is not None:
        speed = inf
    position, count = positions.start, 0
    while position < positions.stop:
        change = _change_of_matrices(a, b, position)
        if change > limit:
            return position
        count += 1
        reached = ceil(min((limit - change) / speed, positions.stop))
        position += max(reached, 1) * max(count - MAX_MATRICES, 1)
    return None


def _change_of_matrices(a: Map, b: Map, position: int) -> float:
    head_dim = _head_dim(a, b)
    difference = a.matrices([position], head_dim) - b.matrices([position], head_dim)
    if not np.isfinite(difference).all():
        return inf
    if head_dim > MAX_WIDTH:
        return float(np.linalg.norm(difference, axis=-2).max())
    return float(np.linalg.norm(difference, ord=2, axis=(-2, -1)).max())


def _head_dim(a: Map, b: Map) -> int:
    return max(filter(None, (a.head_dim, b.head_dim)))


def attention_moved(a: Map, b: Map, scales: tuple[float, float], context: int, keys: int, directions: int) -> float:
    """The share of attention on other tokens with `b` than with `a`, from 0 to 1: the mean of all heads."""
    # Of several directions of positions, that with the most. Each map rotates queries at position ``context - 1``, and
    # keys at the last `keys` positions. `scales` are multiples of the usual softmax scale.
    random = np.random.default_rng(SEED)
    head_dim = _head_dim(a, b)
    tokens = min(TOKENS, ceil(MAX_NUMBERS / head_dim))
    positions = np.unique(np.linspace(context - keys, context - 1, min(tokens, keys)).round().astype(int))
    q, k = (random.standard_normal((rows, head_dim)) for rows in (HEADS, len(positions)))
    # Each row of a direction is a head, and rotates some of the queries. Of more heads than queries, some do.
    a, b = _with_equal_rows(a, b)
    heads, found = len(a.start) // directions, np.zeros((directions, HEADS))
    rotating = min(heads, HEADS)
    for direction, head in product(range(directions), range(rotating)):
        row, of_head = direction * heads + head * heads // rotating, slice(head, None, rotating)
        one, other = (_weights(each, row, scale, q[of_head], k, positions) for each, scale in zip((a, b), scales))
        found[direction, of_head] = np.abs(one - other).sum(axis=1) / 2
    return float(found.mean(axis=1).max())


def _weights(each: Map, row: int, scale: float, q: np.ndarray, k: np.ndarray, positions: np.ndarray) -> np.ndarray:
    each = each._replace(centre=int(positions[-1]))  # on which scores do not depend
    rotated_q = each.rotated(q, np.full(len(q), positions[-1]), row)
    scores = rotated_q @ each.of_keys().rotated(k, positions, row).T * scale / np.sqrt(q.shape[1])
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)
