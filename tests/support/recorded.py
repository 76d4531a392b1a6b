"""What reports of `identify` and `compare` say, as text to be recorded: `goldens/reports.json` has it.

Numbers have three digits, and those below a millionth, which are errors of rounding, are 0.
"""

import re
from itertools import combinations_with_replacement

import numpy as np
from configs import in_lines
from judge import case_of, value_of
from mistakes import KINDS, REFERENCES, Case, draw, of_a_table

from rope_xp import compare, identify

SHORT = 500  # a context that takes little time
OF_IDENTIFY = "layout kept direction magnitude offset precision longest stateful relative axis shape dtype confidence"
OF_COMPARE = "causes first_position scores_are_same largest_change attention_moved context tolerance comparable sample"
NUMBERS = {"base": None, "scaling": None, "sections": None, "reverse": False}


def text_of(report):
    """The summary, the reasons, and fields, of pairs and frequencies the first and the last, in lines."""
    if hasattr(report, "causes"):
        said, fields = [report.summary], OF_COMPARE
    else:
        said, fields = [report.sections()[0].body, *report.reasons], OF_IDENTIFY
    shown = [f"{name}={getattr(report, name)!r}" for name in fields.split()]
    if getattr(report, "inv_freq", ()):
        ends = [(report.pairs[end], report.inv_freq[end]) for end in (0, -1)]
        shown.append(f"{len(report.pairs)} pairs: {ends}")
    return in_lines(re.sub(r"\d+\.\d+(e[-+]?\d+)?|\d+e[-+]\d+", _short, " ".join([*said, *shown])))


def _short(number):
    value = float(number[0])
    return f"{value:.3g}" if abs(value) > 1e-6 else "0"


def short_case(number):
    """One of each kind of mistake, and then random ones with two, one or none."""
    if number < len(KINDS):
        cases = (draw(np.random.default_rng([number, each]), (KINDS[number],)) for each in range(100))
    else:
        cases = (case_of(number, each) for each in range(100))
    return next(case for case in cases if case.context <= SHORT)


def of_programs(number):
    """The reports on a program: what it is, and whether it is its reference, also if it may ignore its positions."""
    case = short_case(number)
    shape = case.shape if case.is_stated else None
    options = {"context": case.context, "shape": shape, "positions_ignored": number % 4 == 0}
    yield identify(case.program(), case.setting.dim, shape=shape)
    yield compare(case.program(), value_of(case.reference), **options)
    if number % 8 == 1 and case.setting.axis is None:
        other = short_case(number - 1)
        if other.setting.axis is None and other.setting.dim == case.setting.dim:
            yield compare(case.program(), other.program(), head_dim=case.setting.dim, context=99, shape="seq dim")


def of_values(one, other):
    """The reports on two references, of which the second may also be given by its frequencies."""
    a, b = value_of(one), value_of(other)
    yield compare(a, b, context=2000)
    yield compare(a, b.replace(**NUMBERS, inv_freq=b.inv_freq), context=2000)


def of_calls(case):
    """All calls of a program: of x and of positions the shape and a sum in which each number has another weight."""
    program, calls = case.program(), []

    def fn(x, positions):
        sums = (np.arange(each.size) @ each.ravel() for each in (x, positions))
        calls.append("{0} {2:.4g} at {1} {3}".format(x.shape, positions.shape, *sums))
        return program(x, positions)

    compare(fn, value_of(case.reference), context=case.context, shape=case.shape if case.is_stated else None)
    if case.setting.axis is None:
        identify(fn, case.setting.dim, shape=case.shape if case.is_stated else None)
    return calls


def _planted(name, number=0):
    return tuple((kind, number) for kind in KINDS if kind.name == name)


CALLED = {
    str(case): case
    for case in (
        Case(shape="batch heads seq dim", position_axes=(1, 2)),
        Case(shape="batch seq heads dim", position_axes=(2,), dtype=np.float32, is_stated=True),
        Case(shape="heads seq dim", source=of_a_table, context=500),
        Case(planted=_planted("positions ignored"), context=500),
        Case(planted=_planted("bfloat16 tables"), reference="wide", context=200_000),
        Case(planted=_planted("grouped", 8), context=500),
        Case(planted=_planted("the number of the head"), shape="batch seq heads dim", is_stated=True, context=500),
        Case(reference="axes", shape="batch seq heads dim", position_axes=(2,)),
    )
}
PROGRAMS = range(2 * len(KINDS))
PAIRS = list(combinations_with_replacement(REFERENCES, 2))
