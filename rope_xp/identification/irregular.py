"""More calls of a function: at many positions, and calls that look different from others.

`confirmed` compares them with a behaviour. In irregular calls, a rotary embedding gives the same results for the same
rows.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rope_xp.identification.calls import ROUNDOFF
from rope_xp.identification.maps import Behaviour
from rope_xp.identification.probe import Probe, noise

# All positions below it are tried before a function is said to be the same, and so many beyond it. The first part is a
# long call; short ones are faster.
ALL_TRIED, BEYOND = 2**15, 2**13
NUMBERS, CHUNK = 2**21, 2**11  # of the longest call; tokens of a part


def longest_call(head_dim: int) -> int:
    """The tokens of the longest call."""
    return min(max(NUMBERS // head_dim, 4 * CHUNK), ALL_TRIED)


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


# The most batch rows, heads and tokens of a call.
BATCH, HEADS, LONG = 3, 33, 257


class Call(NamedTuple):
    """The number of heads and the positions "batch seq" of a call, and what is special about it, in words."""

    words: str
    heads: int
    positions: np.ndarray


def irregularity(probe: Probe, longest: int) -> str:
    """On what the result of a row depends besides its channels and its position, in words; empty if on nothing.

    Positions are below `longest`. Each row of each call must have the result that it has in one call with all of them.
    """
    if (probe.follows, probe.axis) != ("positions", "seq"):
        return ""
    rng = np.random.default_rng(2)
    calls = list(_calls(probe, longest, rng))
    rows = [rng.integers(-4, 5, (len(each.positions), each.heads, each.positions.shape[1], 1)) for each in calls]
    spread = rng.integers(1, 5, probe.head_dim) * rng.choice([-1.0, 1.0], probe.head_dim)
    xs = [each * spread + rng.permutation(spread) for each in rows]
    where = [np.broadcast_to(each.positions[:, None], x.shape[:-1]) for each, x in zip(calls, xs)]
    expected = probe(
        np.concatenate([x.reshape(-1, probe.head_dim) for x in xs]), np.concatenate([p.ravel() for p in where])
    )
    if expected is None:
        return f"a call with positions in any order fails: {probe.problems.pop()}"
    ends = np.cumsum([p.size for p in where])
    for each, x, of_call in zip(calls, xs, np.split(expected, ends[:-1])):
        y = probe.together(x, each.positions)
        if y is None:
            return f"{each.words} fails: {probe.problems.pop()}"
        close = noise(probe.eps) * max(1.0, np.abs(of_call).max())
        wrong: Any = (np.abs(y - of_call.reshape(x.shape)) > close).any(axis=-1)
        if wrong.any():
            return _in_words(each, wrong)
    return ""


def _in_words(each: Call, wrong: Any) -> str:
    """What the wrong results "batch heads seq" of a call have in common."""
    for axis, name in ((1, "head"), (0, "batch row")):
        of_axis: Any = wrong.any(axis=tuple({0, 1, 2} - {axis}))
        if len(of_axis) > 1 and not of_axis.all():
            wrong_one, right_one = of_axis.argmax(), of_axis.argmin()
            return f"it depends on the {name}: {name} {wrong_one} gets another result than {name} {right_one}"
    at = np.argwhere(wrong)[0]
    return (
        f"{each.words} gives another result at position {each.positions[at[0], at[2]]:,} than a call with more tokens"
    )


def _calls(probe: Probe, longest: int, rng: np.random.Generator) -> Iterator[Call]:
    """The calls. Each of the first is special in one way; the last ones are so in several."""
    last = longest - 1
    batch = BATCH if "batch" in probe.widest.shape else 1
    heads = HEADS if "heads" in probe.widest.shape else 1

    def random(*size: int) -> np.ndarray:
        return rng.integers(0, longest, size)

    def of_rows(positions: np.ndarray) -> np.ndarray:
        return positions if "batch" in probe.widest.position_axes else np.broadcast_to(positions[:1], positions.shape)

    for first in dict.fromkeys((min(5, max(last - 5, 0)), max(last - 5, 0))):
        yield Call("a call whose positions do not begin with 0", 1, np.arange(first, min(first + 6, longest))[None])
    for position in dict.fromkeys((min(3, last), last)):
        yield Call("a call with one token alone", 1, np.array([[position]]))
    shuffled = random(1, 7)
    yield Call("a call with positions in any order", 1, shuffled)
    yield Call("a second call with the same positions and another x", 1, shuffled)
    for again in (
        shuffled[:, [0, 5, 4, 3, 2, 1, 6]],
        np.concatenate([shuffled[:, :1], random(1, 5), shuffled[:, 6:]], 1),
    ):
        yield Call("a second call with as many tokens", 1, again)
    yield Call("a long call", 1, np.arange(min(longest, LONG))[None])
    if batch > 1:
        yield Call("a call with several batch rows", 1, of_rows(random(batch, 3)))
    if heads > 1:
        yield Call("a call with many heads", heads, random(1, 3))
        yield Call("a call with several heads and many tokens", 4, random(1, LONG // 2))
    yield Call("a call with one token and many heads", heads, of_rows(random(batch, 1)))
    yield Call("a call with many heads and batch rows", heads, of_rows(random(batch, 2)))
