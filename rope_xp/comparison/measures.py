"""How much two maps differ: at a position, where by more than a limit for the first time, and in attention."""

from collections.abc import Iterator
from math import acos, ceil, cos, remainder, tau

import numpy as np

from rope_xp.identification.behaviour import Map, aligned
from rope_xp.identification.precision import SIGNIFICANT_BITS

# The largest head whose matrices are compared by all unit vectors. Wider heads, whose singular values take seconds, are
# compared by the unit vectors of single channels.
MAX_WIDTH = 1024
# After so many matrices without a difference, positions are visited in steps that grow. Only frequencies that are whole
# revolutions per token need so many.
MAX_MATRICES = 500
# Where every position is tried, these are all positions of a chunk, up to a limit. The rest is one chunk of positions
# at equal distances.
CHUNK, LAST_TRIED = 8192, 2**20
# One random query for each of `HEADS` heads, at the last position, and random keys at the last positions: `TOKENS` of
# them, or fewer of wide heads. The seed makes the result the same each time.
HEADS, TOKENS, SEED = 32, 4096, 0
MAX_NUMBERS = 2**21


def change_at(a: Map, b: Map, position: int) -> float:
    """The largest change of a unit score at a position: the largest singular value of the difference."""
    both = aligned(a, b)
    if both is None:
        return _change_of_matrices(a, b, position)
    difference = both[0].factors([position]) - both[1].factors([position])
    return float(np.abs(difference).max(initial=0.0))


def first_beyond(a: Map, b: Map, limit: float, context: int, known: int = 0) -> int | None:
    """The first position from `known` to `context` where a unit score changes by more than `limit`; None without."""
    both = aligned(a, b)
    if both is None:
        return _first_of_matrices(a, b, limit, context)
    if a.phase == b.phase == "exact" and not (a.own_factors or b.own_factors) and _grow_alike(*both):
        found = [first for pair in _columns(*both) if (first := _first_of_pair(*pair, limit)) is not None]
        first = min(found, default=context)
        return first if first < context else None
    return _first_of_all(*_pairs_that_may_differ(*both, limit, context), limit, range(known, context))


def _grow_alike(a: Map, b: Map) -> bool:
    if a.growth is None or b.growth is None:
        return a.growth is b.growth
    return a.centre == b.centre and np.array_equal(a.growth, b.growth)


def _columns(a: Map, b: Map) -> Iterator[tuple[float, float, float, float]]:
    """The sizes of each pair in both maps, and the difference of their angles: its start and its step."""
    start, step = np.broadcast_arrays(a.start - b.start, a.step - b.step)
    for row in range(len(start)):
        yield from zip(a.size.tolist(), b.size.tolist(), start[row].tolist(), step[row].tolist())


def _first_of_pair(size: float, other: float, start: float, step: float, limit: float) -> int | None:
    """The first position at which ``size - other * exp(i (start + step p))`` is longer than `limit`."""
    # Its squared length is size**2 + other**2 - 2 size other cos(start + step p). It is too long where the angle is
    # within an interval around half a revolution.
    least = (size * size + other * other - limit * limit) / (2.0 * size * other)
    if least <= -1.0:
        return None
    if cos(start) < least:
        return 0
    step = remainder(step, tau)  # positions are integers
    if step < 0.0:
        start, step = -start, -step
    if step * 2.0**63 < limit:
        return None
    angle, edge = remainder(start, tau), acos(min(least, 1.0))
    position = _entry(angle, edge, step, 0)
    for _ in range(1000):  # an interval that is smaller than a step may be missed
        if cos(start + step * position) < least:
            return position
        position = _entry(angle, edge, step, position)
    return None


def _entry(angle: float, edge: float, step: float, after: int) -> int:
    """The first position behind `after` at or behind the next beginning of the interval."""
    beginning = (angle + step * after - edge) // tau * tau + tau + edge
    return max(ceil((beginning - angle) / step), after + 1)


def _pairs_that_may_differ(a: Map, b: Map, limit: float, context: int) -> tuple[Map, Map]:
    """The maps without the pairs whose difference cannot reach the limit below `context`."""
    if not _grow_alike(a, b) or a.own_factors or b.own_factors:
        return a, b
    fastest = np.maximum(np.abs(a.step), np.abs(b.step)).max(axis=0)
    size = np.maximum(a.size, b.size)
    apart = np.abs(a.size - b.size) + size * np.abs(a.start - b.start).max(axis=0)
    apart += size * np.abs(a.step - b.step).max(axis=0) * context
    if a.phase != b.phase or apart.any():
        # A rounded phase has three roundings: of the position, of the frequency and of their product.
        roundoff = max(2.0 ** -SIGNIFICANT_BITS.get(each.phase, 64) for each in (a, b))
        apart += 4 * size * fastest * context * roundoff
    kept = np.nonzero(apart > limit)[0]
    return a.part(kept), b.part(kept)


def _first_of_all(a: Map, b: Map, limit: float, positions: range) -> int | None:
    if not a.pairs:
        return None
    dense = positions[:LAST_TRIED]
    chunks = [dense[start : start + CHUNK] for start in range(0, len(dense), CHUNK)]
    rest = positions[LAST_TRIED:]
    for tried in [*chunks, *([rest[:: -(-len(rest) // CHUNK)]] if rest else [])]:
        chunk = np.array(tried)
        with np.errstate(over="ignore"):
            change = np.abs(a.factors(chunk) - b.factors(chunk)).max(axis=(1, 2))
        beyond = np.nonzero(change > limit)[0]
        if beyond.size:
            return int(chunk[beyond[0]])
    return None


def _first_of_matrices(a: Map, b: Map, limit: float, context: int) -> int | None:
    # From one position to the next, the change of a unit score grows by at most `speed`. Positions that it cannot reach
    # are skipped.
    speed = sum(float((np.abs(each.step) * each.size).max(initial=0.0)) for each in (a, b))
    grows = a.growth is not None or b.growth is not None
    position = count = 0
    while position < context:
        change = _change_of_matrices(a, b, position)
        if change > limit:
            return position
        count += 1
        skipped = 1 if grows or not speed else ceil((limit - change) / speed)
        position += max(skipped, 1) * (1 if count < MAX_MATRICES else count - MAX_MATRICES + 2)
    return None


def _change_of_matrices(a: Map, b: Map, position: int) -> float:
    head_dim = a.head_dim or b.head_dim or 0
    difference = a.matrices([position], head_dim) - b.matrices([position], head_dim)
    if head_dim > MAX_WIDTH:
        return float(np.linalg.norm(difference, axis=-2).max())
    return float(np.linalg.norm(difference, ord=2, axis=(-2, -1)).max())


def attention_moved(a: Map, b: Map, scales: tuple[float, float], context: int) -> float:
    """The share of attention on other tokens with `b` than with `a`, from 0 to 1: the mean of all heads."""
    # Each map rotates queries at position ``context - 1`` and keys. `scales` are multiples of the usual softmax scale.
    random = np.random.default_rng(SEED)
    head_dim = a.head_dim or b.head_dim or 0
    tokens = max(min(TOKENS, MAX_NUMBERS // max(head_dim, 1)), 1)
    positions = np.arange(max(context - tokens, 0), context)
    q, k = (random.standard_normal((rows, head_dim)) for rows in (HEADS, len(positions)))
    one, other = (_weights(each, scale, q, k, positions) for each, scale in zip((a, b), scales))
    return float(np.abs(one - other).sum(axis=1).mean() / 2)


def _weights(each: Map, scale: float, q: np.ndarray, k: np.ndarray, positions: np.ndarray) -> np.ndarray:
    # XPos makes keys as much shorter as it makes queries longer. Scores do not depend on its centre.
    each = each._replace(centre=int(positions[-1]))
    of_keys = each if each.growth is None else each._replace(growth=-each.growth)
    rotated_q = each.rotated(q, np.full(len(q), positions[-1]))
    scores = rotated_q @ of_keys.rotated(k, positions).T * scale / np.sqrt(q.shape[1])
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)
