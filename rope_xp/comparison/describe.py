"""What one of the two does, as a value: that of a value itself, or that of a function, which is called."""

import re
from bisect import bisect_left
from collections.abc import Iterator
from textwrap import shorten
from typing import NamedTuple

import numpy as np

from rope_xp.comparison.report import number
from rope_xp.identification.behaviour import (
    Behaviour,
    Complex,
    Map,
    behaviour_of,
    directions_of,
    frequencies_of,
)
from rope_xp.identification.precision import COARSE, COARSE_BITS, ROUNDOFF, precision_of, rounding_of
from rope_xp.identification.probe import (
    ALL_BELOW,
    LONGEST_INDEX,
    SEARCHED_INDEX,
    Calls,
    Function,
    Probe,
    irregularity,
    longest_call,
    positions_to_try,
    results_differ,
)
from rope_xp.identification.search import LONGEST, Search, first_unlike
from rope_xp.identification.values import Measured, nearest, value_of_numbers
from rope_xp.types import Embedding, Values

# The most positions whose phases are measured to find out how they are rounded.
MOST_ROUNDED = 2**13
# Greater phases are infinite in float16.
OVERFLOW = float(np.finfo(np.float16).max)


class Subject(NamedTuple):
    """One of the two: a value, or a function with an unknown value."""

    label: str  # in messages
    given: object
    arguments: Values  # of `from_config`, for a config
    name: str
    rope: Embedding | None
    fn: Function | None = None
    remarks: tuple[str, ...] = ()  # on the flags with which it was read
    place: str = ""  # the file and line of a function, or its module


class Finding(NamedTuple):
    """What a subject does."""

    behaviour: Behaviour | None  # None if no value reproduces a function
    # Why a function is not the same as any value: "length", "calls", "state", "sections" or "unknown".
    causes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()  # what is wrong, in words
    probe: Probe | None = None  # the calls of a function
    length: int | None = None  # the first position without a result; None if there is none below the context
    rotates: bool = True  # false if a function is known not to rotate pairs of channels
    # False if a function is not the same at all positions: what it computes at some does not explain others.
    is_one: bool = True
    measured: Measured | None = None  # what a search saw, whose frequencies are near those of the behaviour

    @property
    def is_counting(self) -> bool:
        return self.probe is not None and self.probe.follows == "index"

    def source(self, directions: np.ndarray | None) -> Map | Calls:
        """What gives its results along directions: its function, if no behaviour reproduces it."""
        if self.behaviour is None and self.probe is not None:
            return Calls(self.probe, directions)
        return (self.behaviour or Behaviour(None)).map(directions)

    def with_cause(self, cause: str, *words: str) -> "Finding":
        causes = self.causes if cause == "unknown" and self.causes else (*self.causes, cause)
        return self._replace(causes=causes, problems=(*self.problems, *words))


def finding_of_value(rope: Embedding | None, reference: Embedding | None) -> Finding:
    """What a value does: if its frequencies are given as numbers, by the base of another one that explains them."""
    given = Finding(behaviour_of(rope))
    if rope is None or rope.base is not None or reference is None or reference.base is None or rope.xpos is not None:
        return given
    if (rope.axes, rope.heads, reference.axes, rope.head_dim) != (1, None, 1, reference.head_dim):
        return given
    rows = frequencies_of(rope)[:, 0]
    options = {name: getattr(rope, name) for name in ("layout", "blocks", "rotary_dim", "first_channel", "phase")}
    found = nearest(reference, options, rows, np.zeros(rope.pairs))
    # Numbers that are rounded to half precision are other frequencies.
    if found is None or not np.allclose(frequencies_of(found)[:, 0], rows, rtol=1e-5, atol=0.0):
        return given
    behaviour = behaviour_of(found)._replace(attention_factor=rope.attention_factor)
    is_reference = behaviour.with_exact_phases() == behaviour_of(reference).with_exact_phases()
    # A scale of the softmax goes with a rule, and not with its numbers.
    own = {"own_factors": behaviour_of(rope).map().factors, "softmax_scale": rope.softmax_scale}
    return given if is_reference else Finding(behaviour._replace(**own))


def finding_of_function(probe: Probe, reference: Embedding | None, context: int, positions_ignored: bool) -> Finding:
    """What a function does below a context. `reference` is what it should do."""
    problems = tuple(_as_sentence(shorten(each, 240)) for each in dict.fromkeys(probe.problems))[:2]
    if probe.follows is None:
        return Finding(None, ("calls",) if probe.irregular else ("unknown",), problems, probe)
    found = Finding(None, probe=probe)
    if probe.follows == "first call":
        return found.with_cause("state", "The function keeps the positions of an earlier call.")
    if probe.axis != "seq" and probe.follows != "nothing" and probe.axes > 1:
        return found.with_cause("axis", "The function rotates along another axis of x than the tokens.")
    if probe.axis == "batch":
        return found.with_cause("calls", "The function rotates each row of a batch by its number in the batch.")
    if probe.follows == "index":
        found = found._replace(problems=("The function ignores positions and counts the rows of x.",))
        if not positions_ignored and probe.axis == "seq":
            found = found.with_cause("calls", "If that is meant, pass positions_ignored=True.")
        if not probe.is_stated and probe.axis == "seq":
            words = f"It was called with x of ({probe.shape}): state `shape` as in your model"
            found = found._replace(problems=(*found.problems, f"{words}, or a wrong axis is not seen."))
        if probe.axes > 1:
            return found if found.causes else found.with_cause("unknown", "It cannot follow several position axes.")
    found = _of_calls(found, probe, context)
    if found.length is not None and found.length < 8:
        return found
    return _of_constant(found, probe) if probe.follows == "nothing" else _of_search(found, probe, reference, context)


def _of_calls(found: Finding, probe: Probe, context: int) -> Finding:
    irregular, length = irregularity(probe, context), _length(probe, context)
    if length < context:
        words = _as_sentence(f"the function fails from position {length:,} on: {shorten(probe.problems[-1], 200)}")
        found = found._replace(length=length).with_cause("length", words)
        irregular = irregularity(probe, length) if length >= 8 else ""
    if irregular:
        words = "The results of the function do not follow from the channels and the positions alone"
        found = found.with_cause("calls", f"{words}: {irregular}.")
    return found


def _of_constant(found: Finding, probe: Probe) -> Finding:
    x = np.arange(1.0, probe.head_dim + 1.0)[None]
    y = probe(x, np.array([1]))
    if y is None or np.abs(y - x).max() > 64 * probe.roundoff * probe.head_dim:
        return found.with_cause("rotation", "The function gives the same result at every position that was tried.")
    return found._replace(behaviour=Behaviour(None))


def _of_search(found: Finding, probe: Probe, reference: Embedding | None, context: int) -> Finding:
    # Calls beyond the context could change what a function that keeps tables does below it.
    length = found.length or context
    longest = SEARCHED_INDEX if probe.follows == "index" else min(max(length, 8), LONGEST)
    search = Search(probe, longest, reference)
    behaviour = search.run()
    found = found._replace(rotates=search.report.is_rotation is not False)
    if search.report.stateful and "calls" not in found.causes:
        found = found.with_cause("state", "The function gives other results for a call after it was called otherwise.")
    if behaviour is None:
        found = found.with_cause("axis") if probe.axis == "heads" and found.rotates else found
        return found.with_cause(search.cause, *map(_as_sentence, search.report.reasons))
    may_overflow = "length" in found.causes and "NaN" in found.problems[0] and behaviour.precision in COARSE_BITS
    if may_overflow and (length * np.abs(behaviour.map().step) >= OVERFLOW).any():
        found = found._replace(causes=tuple(cause for cause in found.causes if cause != "length"))
    return found._replace(behaviour=_as_called(behaviour, probe), measured=search.measured)


def _as_called(behaviour: Behaviour, probe: Probe) -> Behaviour:
    # Half precision adds noise to the factors. But programs round frequencies to float32 in different ways, and tables
    # to fewer digits than their results have.
    if behaviour.roundoff == probe.roundoff >= COARSE and behaviour.precision != "float32":
        return behaviour
    return with_own_factors(behaviour, probe)


def _length(probe: Probe, context: int) -> int:
    """The first position below a context at which a function has no result; the context if it has all."""
    last, row = context - 1, np.ones((2, probe.head_dim))
    if probe.follows == "index":
        probe.longest_index = min(context, LONGEST_INDEX)
        last = probe.longest_index - 1
    if probe.axis == "heads" or probe(row, np.array([0, last])) is not None:  # rows of heads have no positions
        return context
    return bisect_left(range(last), True, lo=1, key=lambda position: probe(row, np.array([0, position])) is None)


def _as_sentence(problem: str) -> str:
    problem = re.sub("^it ", "the function ", problem)
    return f"{problem[:1].upper()}{problem[1:]}."


def with_own_factors(behaviour: Behaviour, probe: Probe) -> Behaviour:
    """A behaviour with the phases of the function itself if they matter."""
    are_exact = behaviour.precision == "exact" and behaviour.rope is not None and behaviour.rope.base is not None
    if are_exact or behaviour.axis != "tokens" or probe.follows != "positions":
        return behaviour
    directions = directions_of([behaviour.rope])
    usual = behaviour.map(directions)

    def factors(positions: np.ndarray) -> Complex:
        found = Calls(probe, directions).factors(positions, usual.channels)
        return usual.factors(positions) if found is None else found

    return behaviour._replace(own_factors=factors)


def confirmed(finding: Finding, directions: np.ndarray | None, context: int, tolerance: float) -> Finding:
    """A finding whose behaviour also explains the function at many positions below the context."""
    behaviour, probe = finding.behaviour, finding.probe
    if behaviour is None or probe is None or behaviour.axis != "tokens":
        return finding
    if behaviour.rope is None:
        directions = None
    context = compared(finding, context)
    position = first_unlike(probe, behaviour, context, tolerance, directions)
    if position is None:
        return finding
    if behaviour.rope is None:
        finding = finding._replace(behaviour=None)
    for each in _others(probe, behaviour, finding.measured, context):
        if first_unlike(probe, each, context, tolerance, directions) is None:
            return finding._replace(behaviour=each)
    count = min(longest_call(probe.head_dim), context)
    if _is_one_of_few(probe, position, count):
        return finding.with_cause("calls", f"A call with {count:,} tokens gives other results than a call with few.")
    words = f"At position {position:,}, the result is not what the angles at other positions say."
    return finding._replace(behaviour=None, is_one=False).with_cause("unknown", words)


def _others(probe: Probe, behaviour: Behaviour, measured: Measured | None, context: int) -> Iterator[Behaviour]:
    """Other behaviours with such angles: with rounded phases, and with the frequencies that were measured."""
    first = np.arange(1, min(MOST_ROUNDED, context))
    some = np.unique(np.geomspace(1, max(context - 1, 1), MOST_ROUNDED).astype(int))
    yield from filter(None, (_with_rounded_phases(probe, behaviour, positions) for positions in (first, some)))
    numbers = value_of_numbers(measured) if measured is not None and probe.axes == 1 else None
    if numbers is not None:
        yield _as_called(behaviour._replace(rope=numbers.rope, own_factors=None), probe)


def _with_rounded_phases(probe: Probe, behaviour: Behaviour, positions: np.ndarray) -> Behaviour | None:
    """A behaviour with rounded phases if they explain the angles at positions, of which few were known before."""
    if behaviour.rope is None or probe.roundoff < COARSE:
        return None
    exact = behaviour.with_exact_phases().map()
    found = Calls(probe).factors(positions, exact.channels)
    if found is None or not exact.pairs:
        return None
    off, w, where = np.angle(found / exact.factors(positions))[:, 0], exact.step[0], positions + behaviour.offset
    name = precision_of(off, where, w, 0.0 * w, behaviour.roundoff, where).name
    if name == "float32":  # programs round frequencies to float32 in different ways
        return with_own_factors(behaviour._replace(precision=name), probe)
    # The bounds of precisions hold for other errors too, and errors that results hide may be roundings.
    name = name and rounding_of(("float64", *COARSE_BITS), off, where, w)
    return behaviour._replace(precision=name) if name in COARSE_BITS else None


def _is_one_of_few(probe: Probe, position: int, count: int) -> bool:
    """Whether a position has another result in a call with few tokens than in one with many."""
    few, many = np.array([position, 0]), np.append(position, np.arange(1, count))
    one, other = (probe(np.ones((len(each), probe.head_dim)), each) for each in (few, many))
    if one is None or other is None:
        return True
    return results_differ(other[0], one[0], max(probe.roundoff, ROUNDOFF["float32"]))


def compared(finding: Finding, context: int) -> int:
    """The number of positions at which a subject has results."""
    context = context if finding.length is None else finding.length
    return min(context, LONGEST_INDEX) if finding.is_counting else context


def sample_of(findings: list[Finding], context: int) -> str:
    count = min(compared(each, context) for each in findings)
    if any(each.is_counting for each in findings):
        return "" if count == context else f"All positions below {number(count)} were tried, and none beyond."
    if count <= ALL_BELOW or all(each.probe is None for each in findings):
        return ""
    head_dim = max(each.probe.head_dim for each in findings if each.probe)
    some = sum(map(len, positions_to_try(count, head_dim))) - ALL_BELOW
    in_calls = f"in calls with at most {number(longest_call(head_dim))} tokens"
    return f"All positions below {number(ALL_BELOW)} were tried, and {number(some)} beyond, {in_calls}."


def first_difference(
    findings: list[Finding], directions: np.ndarray | None, context: int, tolerance: float
) -> int | None:
    calls = next(Calls(each.probe, directions) for each in findings if each.probe is not None)
    one, other = (each.source(directions) for each in findings)
    return calls.first_difference(one, other, lambda positions, row: tolerance, context)
