"""What reports of `identify` and `compare` say, as text to be recorded: `goldens/reports.json` has it.

Numbers have three digits, and those below a millionth, which are errors of rounding, are 0.
"""

import re

import numpy as np
from configs import in_lines
from judge import case_of, value_of
from mistakes import KINDS, REFERENCES, Case, draw, of_a_table

from rope_xp import LinearScaling, RotaryEmbedding, Sections, XPos, YarnScaling, compare, identify

SHORT = 500  # a context that takes little time
OF_IDENTIFY = "layout kept direction magnitude offset precision longest stateful relative axis shape dtype confidence"
OF_COMPARE = "causes first_position scores_are_same largest_change attention_moved context tolerance comparable sample"
NUMBERS = {"base": None, "scaling": None, "sections": None, "reverse": False}


def text_of(report, whole=False):
    """The summary or the whole text, the reasons, and fields, in lines; of pairs the first and the last."""
    if hasattr(report, "causes"):
        said, fields = str(report).split() if whole else [report.summary], OF_COMPARE
    else:
        said, fields = [report.sections()[0].body, *report.reasons], OF_IDENTIFY
    shown = [f"{name}={getattr(report, name)!r}" for name in fields.split()]
    if getattr(report, "inv_freq", ()):
        ends = [(report.pairs[end], report.inv_freq[end]) for end in (0, -1)]
        shown.append(f"{len(report.pairs)} pairs: {ends}")
    return in_lines(re.sub(r"\d+\.\d+(e[-+]?\d+)?|\d+e[-+]\d+", _short, " ".join([*said, *shown])))


def _yarn(length=64, **options):
    return YarnScaling(factor=4.0, original_max_position_embeddings=length, **options)


def _given(rope, times=1.0, **options):
    """The same frequencies as numbers, times some."""
    return rope.replace(**NUMBERS, inv_freq=np.array(rope.inv_freq) * times, **options)


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


def of_variants(number):
    """The reports on a variant and the first one, and on it and the next one, in both orders."""
    one = VARIANTS[number]
    for other in (VARIANTS[0], VARIANTS[(number + 1) % len(VARIANTS)]):
        yield text_of(compare(one, other), whole=True)
        yield text_of(compare(other, one, context=SHORT), whole=True)


WIDE = RotaryEmbedding(head_dim=32, layout="half", base=10_000.0)
SCALED, OF_500 = (WIDE.replace(**each) for each in ({"scaling": _yarn(attention_factor=1.25)}, {"base": 500.0}))
AXES = WIDE.replace(sections=Sections((8, 8)))
PAIR = np.arange(16)
# A value, and such as differ from it or from the one before in a property or two.
VARIANTS = [
    WIDE,
    WIDE.replace(base=10_010.0, attention_factor=1.02),
    WIDE.replace(base=10_000.001),
    WIDE.replace(attention_factor=1.5),
    WIDE.replace(head_dim=64, attention_factor=1.5),
    SCALED.replace(head_dim=64, layout="interleaved"),
    SCALED,
    _given(WIDE, 1.5),
    WIDE.replace(phase="float32"),
    _given(OF_500, attention_factor=1.2),
    _given(WIDE, np.where(PAIR == 3, 1.001, 1.0)),
    _given(OF_500.replace(scaling=SCALED.scaling), attention_factor=1.25),
    SCALED.replace(base=500.0, layout="interleaved"),
    _given(WIDE, np.where(PAIR == 2, -1.5, 1.5)),
    WIDE.replace(reverse=True),
    _given(WIDE, np.where(PAIR == 2, -1.0, 1.0)),
    _given(WIDE, np.where(PAIR == 8, -1.0, 1.0)),
    _given(WIDE, WIDE.inv_freq[::-1] / np.array(WIDE.inv_freq)),
    WIDE.replace(scaling=LinearScaling(factor=2.0)),
    *(
        WIDE.replace(scaling=_yarn(length, mscale=m, mscale_all_dim=m))
        for length, m in ((64, 0.7), (64, 1.4), (2048, 0.7))
    ),
    *(WIDE.replace(layout=layout) for layout in ("interleaved", "interleaved_to_half")),
    WIDE.replace(blocks=2),
    *(WIDE.replace(rotary_dim=16, first_channel=first) for first in (0, 16)),
    WIDE.replace(xpos=XPos()),
    WIDE.replace(xpos=XPos(centre=9)),
    None,
    WIDE.replace(base=None, inv_freq=(0.0,) * 16),
    *map(value_of, REFERENCES),
    AXES,
    AXES.replace(sections=Sections((8, 8), axis_of_section=(1, 0))),
    *(WIDE.replace(base=None, inv_freq=np.stack([[OF_500.inv_freq] * heads])) for heads in (2, 3)),
]


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
