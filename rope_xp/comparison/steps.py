"""The steps of `compare`: it reads its arguments, describes both of them, and makes its report."""

import inspect
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from math import isfinite
from typing import Any

import numpy as np

from rope_xp.arrays import checks
from rope_xp.comparison.causes import (
    BY_CAUSE,
    OF_PRECISION,
    PROPERTIES,
    differ,
    difference,
    explaining,
)
from rope_xp.comparison.describe import (
    Finding,
    Subject,
    compared,
    confirmed,
    finding_of_function,
    finding_of_value,
    first_difference,
    sample_of,
    with_own_factors,
)
from rope_xp.comparison.measures import attention_moved, change_at, first_beyond, first_of_scores
from rope_xp.comparison.report import Comparison
from rope_xp.configs.from_config import from_config
from rope_xp.configs.writers.gguf_architectures import ARCHITECTURE_OF, PERMUTED
from rope_xp.embedding import RotaryEmbedding
from rope_xp.errors import wrong_type, wrong_value
from rope_xp.explanation import Sequences, sequences_of, shown_length
from rope_xp.frequencies import LENGTH
from rope_xp.identification.behaviour import Behaviour, directions_of
from rope_xp.identification.precision import COARSE, COARSE_BITS
from rope_xp.identification.probe import SEARCHED_INDEX, Function, Probe
from rope_xp.modules import RotaryModule
from rope_xp.provenance import Provenance, with_provenance
from rope_xp.reports import short_repr
from rope_xp.spectrum import lengths_of
from rope_xp.types import Embedding, Values

# What counts as the same, at least: a bound for float32 phases at position 8,192 (two roundings of 2**-24).
TOLERANCE = 1e-3
# Without a length in either of the two; and the longest.
CONTEXT, LONGEST_CONTEXT = 4096, 2**31
# Causes are sought up to this position at least. Beyond the context, rounded phases are compared in steps of an odd
# number, because bfloat16 has the multiples of powers of two.
HORIZON, STEP = 2**20, 127
# The change of a unit score that matters.
ONE_PERCENT = 0.01
ADVICE = {cause: each.advice for cause, each in BY_CAUSE.items()} | {
    "head_dim": "Check how many channels a head has (head_dim).",
    "length": "Let the tables be as long as the context, or compute angles from positions, in float32 at least.",
    "calls": "The result of a row must follow from its channels and its position alone: take tables from `positions`. "
    "If it follows from the length of the call by dynamic NTK or LongRoPE, compare below the original length.",
    "state": "Compute the tables from the positions of each call, and keep nothing between calls.",
    "unknown": "Compare the two pair by pair, at a small position. rope_xp.identify says what a function computes.",
}
OF_CALLS = "If the function takes other arrays, say so by `shape` and `like`, or wrap it."
# Where a function that nothing explains is compared.
SOME_POSITIONS = np.array([*range(32), *(2**power for power in range(5, 17))])


@np.errstate(over="ignore", invalid="ignore")  # sizes of XPos, and extreme factors, may be infinite
def comparison(
    given: Values, of_configs: object, head_dim: Any, context: Any, tolerance: Any, positions_ignored: Any, call: Values
) -> Comparison:
    """The comparison of the two that are given by their names in messages, with arguments that are not checked yet."""
    arguments = _arguments_of_configs(of_configs, *given.values())
    if head_dim is not None:
        head_dim = checks.even_size("head_dim", head_dim)
    if context is not None and not 1 <= checks.count("context", context) <= LONGEST_CONTEXT:
        raise wrong_value(f"context must be at least 1 and at most 2**31; got {context}")
    if tolerance is not None:
        tolerance = checks.positive("tolerance", tolerance)
    ignored = checks.boolean("positions_ignored", positions_ignored)
    both = [subject_of(*each, of_config) for each, of_config in zip(given.items(), arguments)]
    bound = _bound(both)
    context = _context(both, bound) if context is None else int(context)
    a, b = _for_sequences(both, context)
    # The value that functions are measured against: that of `a`, unless it has numbers for frequencies, which do not
    # say their base, and `b` has a value.
    reference = b.rope if a.rope is None or (b.rope is not None and a.rope.base is None) else a.rope
    head_dim = _head_dim(a, b, reference, head_dim)
    findings: list[Finding] = []
    for each in (b, a):  # of two functions, what the second computes is what the first should compute
        if each.fn is None:
            found = finding_of_value(each.rope, reference)
        else:
            found = finding_of_function(_probe(each.fn, reference, head_dim, call), reference, context, ignored)
            reference = reference or (found.behaviour and found.behaviour.rope)
        findings.append(found)
    findings.reverse()
    noise = max([0.0, *(8 * each.probe.roundoff for each in findings if each.probe)])
    if tolerance is not None and tolerance < noise:
        raise wrong_value(
            f"tolerance must be at least {noise:.2g}, 8 roundings of the dtype of the results; got {tolerance}"
        )
    tolerance = tolerance or max(TOLERANCE, noise)
    directions = directions_of([reference])
    findings = [confirmed(each, directions, context, tolerance) for each in findings]
    places = (f" of {a.place}", f" of {b.place}") if a.name == b.name and a.place != b.place else ("", "")
    fixed = {"context": context, "tolerance": tolerance, "a": a.name + places[0], "b": b.name + places[1]}
    one, other = (each.behaviour for each in findings)
    if one is None or other is None:
        report = _unexplained(findings, head_dim, directions, fixed)
    else:
        report = _explained(one, other, findings, fixed)
    problems = [problem for each in findings for problem in each.problems]
    problems += [_of_lengths(each, other, context, each.label in bound) for each, other in ((a, b), (b, a))]
    problems = tuple(dict.fromkeys(filter(None, problems)))
    remarks = (*a.remarks, *b.remarks)
    advice = () if remarks else report.advice  # what flags change may be meant
    return replace(report, problems=problems, sample=sample_of(findings, context), remarks=remarks, advice=advice)


def _arguments_of_configs(options: object, a: object, b: object) -> tuple[Values, Values]:
    """The arguments of `from_config` for each of the two. The flags of an engine are those of the second config."""
    given = _checked_arguments({} if options is None else options)
    plain = {name: value for name, value in given.items() if name != "flags"}
    if given.get("flags") is None:
        return plain, plain
    if not (_is_config(a) or _is_config(b)):
        raise wrong_type(f"flags of options must be given with a config; got {type(a).__name__} and {type(b).__name__}")
    return (plain, given) if _is_config(b) else (given, plain)


def _checked_arguments(options: object) -> Values:
    if not isinstance(options, Mapping):
        raise wrong_type(f"options must be a mapping of arguments of from_config; got {type(options).__name__}")
    _, *known = inspect.signature(from_config).parameters  # without `config`
    for name in options:
        if name not in known:
            raise wrong_type(f"options must be arguments of from_config ({', '.join(known)}); got {name!r:.100}")
    return dict(options)


def _is_config(given: object) -> bool:
    return isinstance(given, (str, os.PathLike, Mapping)) or (hasattr(given, "to_dict") and not callable(given))


def subject_of(label: str, given: object, arguments: Values) -> Subject:
    rope = given.rope if isinstance(given, RotaryModule) else given
    if rope is None or isinstance(rope, RotaryEmbedding):
        return Subject(label, given, arguments, "no rotation" if rope is None else short_repr(rope), rope)
    if _is_config(given):
        rope = from_config(given, **arguments)
        has_flags = arguments.get("flags") is not None
        title = os.fsdecode(given) if isinstance(given, (str, os.PathLike)) else "the config" if has_flags else ""
        title += (" with the flags" if has_flags else "") + (": " if title else "")
        found = rope._provenance if has_flags and rope is not None else None
        remarks = () if found is None else (f"{label} was read from {found.format}", *found.remarks)
        name = title + ("no rotation" if rope is None else short_repr(rope))
        return Subject(label, given, arguments, name, rope, remarks=remarks)
    if not callable(given) or isinstance(given, type):
        raise wrong_type(
            f"{label} must be a config (a path, a mapping or an object with to_dict()), a RotaryEmbedding, or a "
            f"function fn(x, positions), or fn(x); got {type(given).__name__}"
        )
    function = given.func if isinstance(given, partial) else given
    code = getattr(inspect.unwrap(function), "__code__", None)
    place = f"{code.co_filename}:{code.co_firstlineno}" if code else getattr(function, "__module__", "")
    name = getattr(function, "__qualname__", None) or type(function).__name__
    return Subject(label, given, arguments, f"the function {name}", None, given, place=place)


def _bound(both: list[Subject]) -> list[str]:
    """The labels of those with frequencies of one length: not configs, nor two values, if none states a length."""
    stating = [each.label for each in both if _states_length(each.rope)]
    if all(_is_config(each.given) for each in both) or (_are_values(both) and not stating):
        return stating
    return [each.label for each in both]


def _are_values(both: list[Subject]) -> bool:
    return all(isinstance(each.given, RotaryEmbedding) for each in both)


def _states_length(rope: Embedding | None) -> bool:
    return rope is not None and getattr(rope.scaling, "seq_len", None) is not None


def _for_sequences(both: list[Subject], context: int) -> Iterator[Subject]:
    """The two for sequences of a length, unless they say for which; a config as a GGUF file of it, beside one."""
    are_values = _are_values(both)
    both = [_at_length(each, context, are_values) for each in both]
    for each, other in zip(both, both[::-1]):
        as_given = not _is_config(each.given) or each.arguments.get("layout") is not None
        yield each if as_given else _as_converted(each, other)


def _as_converted(subject: Subject, other: Subject) -> Subject:
    """A config as llama.cpp's converter writes its GGUF file, if it is compared with one and is permuted there."""
    rope, architecture = subject.rope, "" if other.rope is None else other.rope._provenance.architecture
    if rope is None or architecture not in PERMUTED or rope.layout != "half":
        return subject
    if ARCHITECTURE_OF.get(rope._provenance.model_type) != architecture:
        return subject
    words = f"with the projections of queries and keys permuted, as llama.cpp's converter does for {architecture!r}"
    rope = with_provenance(rope.replace(layout="interleaved"), rope._provenance)
    return subject._replace(name=f"{subject.name}, {words}", rope=rope)


def _at_length(subject: Subject, length: int, are_values: bool) -> Subject:
    """A config that is read for sequences of a length; one of two values, for them; an error if it has others."""
    rope, label = subject.rope, subject.label
    if rope is None or sequences_of(rope).fit(length) or _states_length(rope):
        return subject
    if _is_config(subject.given):
        return subject_of(label, subject.given, {**subject.arguments, "seq_len": length})
    if not are_values:
        raise wrong_value(
            f"the frequencies of {label} must be for sequences of {length} tokens, the context; got those for "
            f"{sequences_of(rope)}: give {label} for that length, as from_config(..., seq_len={length}) does"
        )
    rope = with_provenance(rope.replace(scaling=replace(rope.scaling, seq_len=length)), rope._provenance)
    return subject._replace(name=short_repr(rope), rope=rope)


def _of_lengths(subject: Subject, other: Subject, context: int, is_bound: bool) -> str:
    """For which sequences the frequencies of a value are, where its rule has others that matter here."""
    sequences, of_other = (Sequences() if each.rope is None else sequences_of(each.rope) for each in (subject, other))
    if not sequences.fit(context):
        others = f"at {context:,} tokens, its rule has others"
    elif is_bound and sequences.most == context:
        others = f"its rule has others for {'other lengths' if sequences.least else 'longer ones'}"
    elif not is_bound and Sequences() != sequences != of_other:
        others = "its rule has others for other lengths"
    else:
        return ""
    return f"The frequencies of {subject.label} are for sequences of {sequences}; {others}."


def _probe(fn: Function, reference: Embedding | None, head_dim: int, call: Values) -> Probe:
    if reference is not None and reference.heads is not None:
        words = "a function must be compared with a value whose heads are alike"
        raise wrong_value(f"{words}; got heads={reference.heads}")
    return Probe(fn, head_dim, axes=1 if reference is None else reference.axes, **call)


def _head_dim(a: Subject, b: Subject, reference: Embedding | None, given: int | None) -> int:
    if reference is None:
        if given is None and (a.fn is not None or b.fn is not None):
            of = " for two functions" if a.fn is not None and b.fn is not None else ", because no value states it"
            raise wrong_type(f"head_dim must be given{of}; got None")
        return given or 2
    if given not in (None, reference.head_dim):
        raise wrong_value(f"head_dim must be that of the value, {reference.head_dim}; got {given}")
    return reference.head_dim


def _context(both: list[Subject], bound: list[str]) -> int:
    """The longest length that is known; not beyond that of frequencies of one length, or that an engine serves."""
    known, ends = [], [LONGEST_CONTEXT]
    for label, rope in ((each.label, each.rope) for each in both if each.rope is not None):
        known += filter(None, lengths_of(rope))
        ends += filter(None, [rope._provenance.served])
        if label in bound:
            ends += filter(None, [sequences_of(rope).most])
        elif trained := getattr(rope.scaling, LENGTH, None):
            known.append(int(rope.scaling.factor * trained))
    return min([max(known, default=CONTEXT), *ends])


def _explained(one: Behaviour, other: Behaviour, both: list[Finding], fixed: Values) -> Comparison:
    of_calls = tuple(dict.fromkeys(cause for each in both for cause in each.causes))
    causes = _structural_causes(one, other)
    if causes is not None:
        return _report(one, other, (*causes, *of_calls), {**fixed, "first_position": 0, "scores_are_same": False})
    context, tolerance = min(compared(each, fixed["context"]) for each in both), fixed["tolerance"]
    directions = directions_of([one.rope, other.rope])
    a, b = one.map(directions), other.map(directions)
    # Results in half precision have noise as large as the errors of rounded phases, so only the size of these errors is
    # known. Then the results of calls are compared, not the behaviours.
    rounded = any(each.precision in COARSE_BITS and not each.own_factors for each in (one, other))
    rounded = rounded and one.axis == other.axis == "tokens"
    # Without a behaviour, a finding's function is called.
    called = [each if each.probe is None else each._replace(behaviour=None) for each in both]

    def first_above(limit: float, known: int) -> int | None:
        if not rounded:
            return first_beyond(a, b, limit, context, known)
        # A row of 1 and -1 has a length of the root of 2 in each pair.
        return first_difference(called, directions, context, 2.0**0.5 * limit)

    beyond = first_above(tolerance, 0)
    is_same = beyond is None
    # Changes below this position are within the tolerance, and so within 1 %.
    known = (context if beyond is None else beyond) if tolerance < ONE_PERCENT else 0
    found = {**fixed, "first_position": first_above(ONE_PERCENT, known), "first_beyond_tolerance": beyond}
    causes = _causes(one, other, tolerance, context, is_same)
    are_values = all(each.probe is None for each in both)
    if are_values and (is_same or "scaling" not in causes) and one.softmax_scale != other.softmax_scale:
        causes, is_same = (*causes, "softmax scale"), False
    if of_calls:
        # Phases are those of other calls. What makes calls differ may be what makes phases look rounded.
        unknown = {"phase precision"} if {"calls", "state"} & {*of_calls} else {}
        acting = tuple(cause for cause in causes if not is_same and cause not in unknown)
        return _report(one, other, (*acting, *of_calls), found)
    found |= {"same": is_same, "scores_are_same": first_of_scores(a, b, tolerance, context) is None}
    if context < fixed["context"]:  # the last positions have no result, or were not tried
        return _report(one, other, causes, found)
    if rounded:
        measured = [each if f.probe is None else with_own_factors(each, f.probe) for each, f in zip((one, other), both)]
        a, b = (each.map(directions) for each in measured)
    ropes = [each.rope for each in (one, other) if each.rope is not None]
    if not is_same and not any(rope._provenance.is_latent for rope in ropes):
        # A function does not say which scale of the softmax goes with it.
        scales = (one.softmax_scale, other.softmax_scale) if are_values else (1.0, 1.0)
        windows = [shown_length(rope, None) or context for rope in ropes if rope._provenance != Provenance()]
        keys = min(max(windows, default=context), context)
        moved = attention_moved(a, b, scales, context, keys, 1 if directions is None else len(directions))
        found |= {"attention_moved": moved if isfinite(moved) else None, "window": keys if keys < context else None}
    # Of results in half precision, only the size of their differences is known.
    if not is_same or all(each.probe is None or each.probe.roundoff < COARSE for each in both):
        found["largest_change"] = change_at(a, b, context - 1)
    return _report(one, other, causes, found)


def _causes(one: Behaviour, other: Behaviour, tolerance: float, context: int, is_same: bool) -> tuple[str, ...]:
    """Why two behaviours differ: by the precision of phases if nothing else does, or if it alone would matter."""
    if one.rope is None or other.rope is None:
        if one.rotates != other.rotates:
            return ("rotation",)
        return () if is_same else ("attention factor" if one.attention_factor != other.attention_factor else "layout",)
    causes = explaining(one, other, tolerance, max(context, HORIZON))
    if one.rotates != other.rotates:
        causes = tuple("rotation" if cause == "frequencies" else cause for cause in causes)
    hides_phases = any(each.precision == "exact" and each.roundoff >= COARSE for each in (one, other))
    if one.precision == other.precision or hides_phases:
        otherwise = () if is_same else ("frequencies" if one.precision == "float32" else "phase precision",)
        return causes or otherwise  # all else is equal
    if causes:
        pairs = ((each.map(), each.with_exact_phases().map()) for each in (one, other))
        acts = any(first_beyond(*pair, tolerance, context) is not None for pair in pairs)
        return (*causes, "phase precision") if acts else causes
    if is_same and first_beyond(one.map(), other.map(), tolerance, HORIZON, known=context, step=STEP) is None:
        return ()
    return ("phase precision",)


def _structural_causes(one: Behaviour, other: Behaviour) -> tuple[str, ...] | None:
    if one.rope is None or other.rope is None:
        return None
    if one.rope.head_dim != other.rope.head_dim:
        others = [each.cause for each in PROPERTIES if each.cause != "frequencies" and differ(one, other, each)]
        follows = "attention factor" if "scaling" in others else ""
        return tuple(dict.fromkeys(("width", *(cause for cause in others if cause != follows))))
    heads = {one.rope.heads, other.rope.heads} - {None}
    return ("frequencies",) if len(heads) > 1 else None


def _report(one: Behaviour, other: Behaviour, causes: tuple[str, ...], found: Values) -> Comparison:
    differences = tuple(difference(cause, one, other) for cause in causes if cause in BY_CAUSE)
    found = {"same": False, "causes": causes, "differences": differences, **found}
    if one.rope and other.rope and one.rope.head_dim != other.rope.head_dim:
        causes = ("head_dim", *causes[1:])
    return Comparison(**found, advice=() if found["same"] else _advice(causes, (one.precision, other.precision)))


def _advice(causes: Iterable[str], precisions: Iterable[str] = ()) -> tuple[str, ...]:
    """What to do about causes, where phases have these precisions. Nothing is said twice."""
    of_half = [OF_PRECISION[each] for each in precisions if each in OF_PRECISION]
    found = [of_half if of_half and cause == "phase precision" else [ADVICE[cause]] for cause in causes]
    return tuple(dict.fromkeys(chain(*found)))


def _unexplained(both: list[Finding], head_dim: int, directions: np.ndarray | None, fixed: Values) -> Comparison:
    """The report on functions that no behaviour reproduces. Positions are those of `SOME_POSITIONS`."""
    causes = tuple(dict.fromkeys(cause for each in both for cause in each.causes))
    has_results = all(each.behaviour is not None or (each.probe and each.probe.is_regular) for each in both)
    first, is_same = None, False
    if has_results:
        context, tolerance = min(compared(each, fixed["context"]) for each in both), fixed["tolerance"]
        unlike = first_difference(both, directions, context, tolerance)
        context = min(context, SEARCHED_INDEX) if any(each.is_counting for each in both) else context
        positions = np.union1d(SOME_POSITIONS[context > SOME_POSITIONS], [] if unlike is None else [unlike]).astype(int)
        a, b = (each.source(directions).matrices(positions, head_dim) for each in both)
        if a is not None and b is not None:
            changes = np.linalg.norm(a - b, ord=2, axis=(-2, -1)).max(axis=1)
            first = next((int(position) for position, change in zip(positions, changes) if change > ONE_PERCENT), None)
            is_same = set(causes) <= {"unknown"} and unlike is None and float(changes.max()) <= tolerance
            is_same = is_same and both[0].rotates == both[1].rotates and all(each.is_one for each in both)
    if first is not None and any(each.behaviour is not None and each.behaviour.rope is None for each in both):
        causes = tuple("rotation" if cause == "unknown" else cause for cause in causes)
    is_comparable = has_results or set(causes) != {"unknown"}
    # The advice on "unknown" is to call `identify`, which would say the same problems once more.
    unhelpful = {"unknown"} if any(each.problems for each in both) else set()
    advice = _advice([cause for cause in causes if cause not in unhelpful]) if is_comparable else (OF_CALLS,)
    return Comparison(
        same=is_same,
        comparable=is_comparable,
        causes=() if is_same else causes,
        advice=() if is_same else advice,
        first_position=first,
        **fixed,
    )
