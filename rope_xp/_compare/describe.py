"""What one of the two does: the behaviour of a value, or the behaviour that reproduces a function."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rope_xp._compare.behaviour import Behaviour, behaviour_of
from rope_xp._compare.changes import behaviours_near
from rope_xp._compare.maps import directions_of
from rope_xp._compare.measure import ACCURATE, Measured, measured_factors, tried
from rope_xp._core.embedding import RotaryEmbedding
from rope_xp._identify import identify

# Results with greater rounding say little about the precision of phases: their own noise is as large.
COARSE = 2.0**-12
FINE = (*ACCURATE, "float16 tables", "bfloat16 tables")


class Subject(NamedTuple):
    """One of the two: a value, or a function with an unknown value."""

    name: str
    rope: RotaryEmbedding | None
    fn: Callable[[Any, Any], Any] | None = None


class Finding(NamedTuple):
    """What a subject does: a behaviour, or the cause why there is none, and what is wrong in words."""

    behaviour: Behaviour | None
    cause: str = ""
    problems: tuple[str, ...] = ()
    measured: Measured | None = None


def finding_of(who: str, subject: Subject, reference: RotaryEmbedding | None, head_dim: int, call: Any) -> Finding:
    """What a subject does. A function is compared with `reference` and with values near it.

    `call` has the options `shape` and `like` of `Probe`.
    """
    if subject.fn is None:
        return Finding(_with_known_base(subject.rope, reference) or behaviour_of(subject.rope))
    if reference is not None and reference.heads is not None:
        raise ValueError(
            f"{who}: a function must be compared with a value whose heads are alike; got heads={reference.heads}"
        )
    directions = directions_of([reference])
    measured = Measured(subject.fn, head_dim, directions, who=who, **call)
    problem = _problem(measured)
    if problem is not None:
        return problem
    words = ("The function ignores positions and counts the rows of x.",) * (measured.probe.follows == "index")
    if measured.length is not None:
        words += (f"The function fails beyond position {measured.length - 1:,}: {measured.problems[-1]}.",)
    found = None
    if reference is not None:
        found = reproducing(measured, reference, directions) or reproducing(measured.near(), reference, directions)
    if directions is None and (found is None or found.precision not in ACCURATE):
        found = _identified(subject.fn, head_dim, measured, call, found)
    cause = "unknown"
    if found is None and reference is not None and directions is not None:
        cause = "sections" if reproducing(measured.of_text(), reference, directions[:1]) else cause
    return Finding(found, "" if found else cause, words, measured)


def _with_known_base(rope: RotaryEmbedding | None, reference: RotaryEmbedding | None) -> Behaviour | None:
    """A value whose frequencies are given as numbers, by the base that explains them; None without one."""
    if rope is None or rope.base is not None or reference is None or reference.base is None or rope.xpos is not None:
        return None
    if (rope.axes, rope.heads, reference.axes, rope.head_dim) != (1, None, 1, reference.head_dim):
        return None
    call = partial(rope, seq_dim=0)
    measured = Measured(lambda x, positions: call(x, positions=positions), rope.head_dim, None, like=np.zeros(1))
    found = reproducing(measured, reference, None)
    if found is None or found.precision not in ACCURATE:  # a value has exact phases
        return None
    return None if found.with_exact_phases() == behaviour_of(reference) else found._replace(precision=rope.phase)


def _identified(
    fn: Callable[[Any, Any], Any], head_dim: int, measured: Measured, call: Any, otherwise: Behaviour | None
) -> Behaviour | None:
    """The behaviour of a function by `identify`.

    Half precision also explains a slightly wrong argument of a scaling rule. Of such a behaviour, `otherwise`, the
    value of `identify` takes the place if it needs no half precision.
    """
    found = identify(fn, head_dim, **call)
    if found.rope is None:
        return otherwise
    behaviour, precision = behaviour_of(found.rope)._replace(offset=int(found.offset or 0)), found.precision or "exact"
    if otherwise is not None:
        precision = measured.precision(behaviour, None) or measured.near().precision(behaviour, None)
        if precision is None or precision not in ACCURATE:
            return otherwise
    return _with_precision(behaviour, precision, measured, None)


def _problem(measured: Measured) -> Finding | None:
    """Why a function cannot be compared position by position."""
    if measured.probe.follows == "nothing" and measured.is_identity():
        return Finding(Behaviour(None), "", (), measured)
    follows, problems = measured.probe.follows, tuple(map(_as_sentence, measured.problems))
    if follows == "nothing":
        words = "The function gives the same result at every position."
        return Finding(None, "rotation", (words, *problems), measured)
    if follows == "first call":
        return Finding(None, "state", ("The function keeps the positions of an earlier call.", *problems), measured)
    if not measured.results:
        return Finding(None, "unknown", problems, measured)
    if not measured.is_linear():
        return Finding(None, "unknown", ("The function is not linear in x, so it is no rotation.", *problems), measured)
    return None


def _as_sentence(problem: str) -> str:
    """A problem of a function as a sentence."""
    problem = re.sub("^it ", "the function ", problem)
    return f"{problem[:1].upper()}{problem[1:]}."


def reproducing(measured: Measured, reference: RotaryEmbedding, directions: Any) -> Behaviour | None:
    """The behaviour nearest to that of a value that reproduces a function; None without one.

    Phases in half precision explain small errors of any kind. They are the explanation only if no other is found.
    """
    found: dict[str, Behaviour] = {}
    for behaviour in behaviours_near(behaviour_of(reference), measured, 2):
        precision = measured.precision(behaviour, directions)
        if precision is not None:
            found.setdefault(precision, behaviour)
        if precision in FINE:
            break
    best = next((name for name in (*FINE, *found) if name in found), None)
    return None if best is None else _with_precision(found[best], best, measured, directions)


def _with_precision(behaviour: Behaviour, precision: str, measured: Measured, directions: Any) -> Behaviour:
    """A behaviour with the precision that was found, and with the phases of the function itself if they matter."""
    probe = measured.probe
    behaviour = behaviour._replace(precision=precision)
    if probe.axis != "seq":
        return behaviour._replace(axis="heads")
    if precision == "exact" or directions is not None or probe.follows != "positions" or probe.eps > COARSE:
        return behaviour
    return behaviour._replace(measured=measured_factors(probe, behaviour))


def confirmed(finding: Finding, directions: Any, context: int, tolerance: float) -> Finding:
    """A finding whose behaviour also explains the function at many positions below `context`."""
    behaviour, measured = finding.behaviour, finding.measured
    if behaviour is None or behaviour.rope is None or measured is None or behaviour.axis != "tokens":
        return finding
    position = measured.first_unlike(behaviour, directions, context, tolerance)
    if position is None:
        return finding
    words = f"At position {position:,}, the function is not the one that it is at other positions."
    return finding._replace(behaviour=None, cause="unknown", problems=(*finding.problems, words))


def first_unlike(findings: list[Finding], head_dim: int, directions: Any, context: int, tolerance: float) -> int | None:
    """The first of many positions below `context` at which the results of two subjects differ; None without one."""
    for row in range(1 if directions is None else len(directions)):
        for positions in tried(context):
            one, other = (_results(each, head_dim, directions, positions, row) for each in findings)
            if one is None or other is None:
                return None
            unlike = (np.abs(one - other) > tolerance).any(axis=1)
            if unlike.any():
                return int(positions[unlike.argmax()])
    return None


def _results(finding: Finding, head_dim: int, directions: Any, positions: Any, row: int) -> Any:
    """What a subject makes of ones, "positions head_dim"; None if it cannot be called."""
    x = np.ones((len(positions), head_dim))
    if finding.behaviour is not None:
        return finding.behaviour.map(directions).rotated(x, positions, row)
    return None if finding.measured is None else finding.measured.probes[row](x, positions)


def matrices_of(finding: Finding, positions: Any, head_dim: int, directions: Any) -> Any:
    """The matrices "positions directions head_dim head_dim" of what a subject does; None if it cannot be called."""
    if finding.behaviour is not None:
        return finding.behaviour.map(directions).matrices(positions, head_dim)
    if finding.measured is None or not finding.measured.results:
        return None
    rows, shape = np.tile(np.eye(head_dim), (len(positions), 1)), (len(positions), head_dim, head_dim)
    results: list[Any] = [probe(rows, np.repeat(positions, head_dim)) for probe in finding.measured.probes]
    if any(y is None for y in results):
        return None
    return np.stack([y.reshape(shape).swapaxes(1, 2) for y in results], axis=1)
