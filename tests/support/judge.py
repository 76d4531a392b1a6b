"""What `compare` and `identify` say of a program with planted mistakes, and what of it is false."""

import re
from collections import Counter
from functools import cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from mistakes import KINDS, REFERENCES, Case, Setting, draw, largest_change, packed_calls, pair

import rope_xp
from rope_xp import RotaryEmbedding, compare, identify

# A change near the tolerance is judged neither way: the oracle tries some vectors, not all.
BELOW, ABOVE = 0.5, 1.1


class Verdict(NamedTuple):
    """`false` has what is false, in words; the first word is its kind: "same", "differs", "cause" or "value"."""

    report: Any
    change: float
    false: tuple

    def figures(self, case):
        """For a count over many cases."""
        named, differs = {*self.report.causes}, not self.report.same
        usual = {kind.causes[0] for kind, _ in case.planted}
        return Counter(
            {
                "cases": 1,
                "same": not differs,
                "near the tolerance": BELOW < self.change / self.report.tolerance < ABOVE,
                "exactly the usual causes": differs and named == usual,
                "unknown": differs and "unknown" in named,
                "unknown, where another cause is usual": differs and "unknown" in named - usual,
                **Counter("false: " + words.partition(":")[0] for words in self.false),
            }
        )


def case_of(seed, number):
    """A random case: of ten, one has no mistake, three have one, and six have two."""
    rng = np.random.default_rng([seed, number])
    some = () if number % 10 == 0 else (KINDS[rng.integers(len(KINDS))],) if number % 10 < 4 else pair(rng)
    return draw(rng, some)


def judge(case):
    """The reports on a program, against what the oracle finds."""
    shape = case.shape if case.is_stated else None
    report = compare(case.program(), value_of(case.reference), context=case.context, shape=shape)
    change, false = largest_change(case), []
    if report.same and change - _rounding(case) > ABOVE * report.tolerance:
        false.append(f"same: a call changes by {change:.3g}")
    if not report.same and max(change, largest_change(case, series=packed_calls)) < BELOW * report.tolerance:
        false.append(f"differs: no call changes by more than {change:.3g}")
    foreign = {*report.causes} - causes_of(case, report)
    false += [f"cause: {each.cause} is {each.a} in both" for each in report.differences if each.a == each.b]
    if foreign or not (report.same or report.causes):
        false.append(f"cause: {', '.join(sorted(foreign)) or 'none'}")
    if case.setting.axis is None:  # `identify` knows one position axis
        false += _false_values(case, identify(case.program(), case.setting.dim, shape=shape))
    return Verdict(report, change, tuple(f"{words}; {case}; {report.causes}" for words in false))


def not_rotated(base, width):
    return np.zeros(width // 2)


@cache
def value_of(reference):
    """The value of a reference."""
    s, options = REFERENCES[reference]
    classes = {name: getattr(rope_xp, name)(**arguments) for name, arguments in options.values()}
    options = {key: classes[name] for key, (name, _) in options.items()}
    return RotaryEmbedding(head_dim=s.dim, layout=s.layout, base=s.base, rotary_dim=s.width, **options)


def causes_of(case, report):
    """The causes that may be named."""
    causes = {cause for kind, _ in case.planted for cause in kind.causes}
    if len(case.planted) > 1 and causes & {"base", "scaling", "width", "offset"}:
        causes.add("frequencies")  # those of two rules may have no name
    # Where nothing is rotated below the context, a factor of cosines is one of the channels.
    if (
        "rotation" in report.causes
        and largest_change(case, case.setting._replace(rule=not_rotated)) <= report.tolerance
    ):
        causes.add("rotation")
    if "rotation" in causes & {*report.causes} and any(kind.step == "tables" for kind, _ in case.planted):
        causes.add("attention factor")
    # No behaviour states an offset that is added to rounded positions.
    if "phase precision" in causes and [kind.step for kind, _ in case.planted] == ["positions", "positions"]:
        causes.add("unknown")
    # One behaviour explains no function whose calls differ. Without results there is nothing to explain.
    if {"calls", "state"} & {*report.causes} or not report.comparable or case.setting.axis is not None:
        causes.add("unknown")
    return causes


def _false_values(case, found):
    """A value that is given without a remark for a program that computes something else."""
    rope = found.rope
    if rope is None or found.stateful or (found.axis, found.precision) != ("seq", "exact"):
        return []
    given = Setting(
        rope.head_dim,
        rope.rotary_dim,
        rope.first_channel,
        rope.layout,
        rule=lambda base, width: np.array(rope.inv_freq),
        factor=rope.attention_factor,
    )
    tried = re.search(r"All positions below ([\d,]+) were tried", " ".join(found.reasons))
    most = found.longest + 1 if tried is None else int(tried[1].replace(",", ""))
    change = largest_change(case, given, found.offset, min(case.context, most))
    remarks = _without_numbers(found) - _without_numbers(identify(Case(shape=case.shape).program(), 16))
    if change - _rounding(case) < ABOVE * max(1e-3, 2 * _rounding(case)) or remarks:
        return []
    return [f"value: {rope!r}, which changes by {change:.3g}"]


def _rounding(case):
    """The change of a result by its dtype alone: four roundings."""
    return 2 * float(ml_dtypes.finfo(case.dtype).eps)


def _without_numbers(found):
    return {re.sub(r"[\d.,e+-]+", "#", each) for each in found.reasons}
