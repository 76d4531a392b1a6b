"""Calls that look different from others, in which a rotary embedding gives the same results for the same rows."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rope_xp._identify.probe import Probe, noise

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
