"""`compare`, `assert_same` and `identify` on programs with planted mistakes: nothing that they say is false.

`tests/tools/planted.py` tries thousands.
"""

import ml_dtypes
import numpy as np
import pytest
from judge import case_of, judge, value_of
from mistakes import KINDS, Case, draw, largest_change, pair

from rope_xp import assert_same, compare

SEED = 0
OF_NAME = {kind.name: kind for kind in KINDS}


def assert_true(case):
    false = judge(case).false
    assert not false, "\n".join(false)


@pytest.mark.parametrize("number", range(len(KINDS)), ids=[f"{kind.step}: {kind.name}" for kind in KINDS])
def test_one_mistake(number):
    assert_true(draw(np.random.default_rng([SEED, number]), (KINDS[number],)))


@pytest.mark.parametrize("number", range(100))
def test_two_mistakes(number):
    rng = np.random.default_rng([SEED, number])
    assert_true(draw(rng, pair(rng)))


@pytest.mark.parametrize("number", range(0, 300, 10))
def test_no_mistake(number):
    """In several styles of writing it."""
    case = case_of(SEED, number)
    assert not case.planted and largest_change(case) < 0.01
    assert_true(case)


@pytest.mark.parametrize(
    "name", ["another base", "relative to the call", "row 0's for all rows", "a table that ends", "positions ignored"]
)
def test_an_assertion_fails(name):
    kind = OF_NAME[name]
    case = Case(planted=((kind, kind.numbers[0]),), shape="batch seq dim", position_axes=(2,))
    with pytest.raises(AssertionError, match=r"^assert_same: the function .* must agree with RotaryEmbedding"):
        assert_same(case.program(), value_of(case.reference), context=case.context, shape=case.shape)


def test_a_function_may_ignore_its_positions_if_that_is_said():
    ignored = (OF_NAME["positions ignored"], 0)
    options = {"shape": "seq dim", "context": 500}
    for planted, is_same in (((ignored,), True), ((ignored, (OF_NAME["another base"], 50.0)), False)):
        program = Case(planted=planted, shape="seq dim").program()
        assert not compare(program, value_of("plain"), **options).same
        assert compare(program, value_of("plain"), positions_ignored=True, **options).same == is_same


def test_there_are_enough_kinds_and_the_oracle_finds_each():
    """In some case that has it: not every number of a kind acts below every context."""
    assert len(OF_NAME) == len(KINDS) >= 60
    for kind in KINDS:
        cases = (draw(np.random.default_rng(seed), (kind,)) for seed in range(40))
        assert any(largest_change(case) > 1e-4 for case in cases), kind.name


# Two mistakes with their numbers, other options of a case, and the causes that must be named.
TOGETHER = {
    "rounded tables and frequencies behind finer results": (
        {"bfloat16 frequencies": 0, "bfloat16 tables": 0},
        {"reference": "linear", "dtype": np.float16, "context": 500},
        {"phase precision"},
    ),
    "an offset of rounded phases": ({"offset": 7, "bfloat16 phases": 0}, {}, {"offset", "phase precision"}),
    "an offset of exchanged tables": (
        {"sines and cosines exchanged": 0, "offset": 7},
        {"reference": "yarn", "dtype": np.float16, "context": 4096},
        {"offset", "sincos order"},
    ),
    "frequencies of exchanged tables": (
        {"sines and cosines exchanged": 0, "YaRN reversed": 0},
        {"reference": "yarn", "dtype": np.float16},
        {"frequencies", "sincos order"},
    ),
    "a shift that no rounding gives": (
        {"another factor of YaRN": 4.1, "one more from a position on": 5000},
        {"reference": "yarn", "dtype": np.float16, "context": 20_000},
        {"unknown"},
    ),
    "small errors of phases": (
        {"float16 phases": 0},
        {"reference": "llama3", "dtype": np.float16, "context": 50},
        {"phase precision"},
    ),
    "the base of rounded angles": (
        {"linear scaling twice": 0, "float16 angles": 0},
        {"reference": "linear", "dtype": ml_dtypes.bfloat16, "context": 20_000},
        {"scaling", "phase precision"},
    ),
    "a frequency that no rule has": (
        {"float16 phases": 0, "one frequency too large": 0.01},
        {"reference": "llama3"},
        {"frequencies", "phase precision"},
    ),
    "frequencies that no rounding of a rule gives": (
        {"float16 frequencies": 0, "float32 phases": 0},
        {"reference": "llama3", "dtype": ml_dtypes.bfloat16, "context": 20_000},
        {"frequencies"},
    ),
    "calls with another number of heads fail": (
        {"the number of the head": 0, "those of the first call of this length": 0},
        {"shape": "heads seq dim", "reference": "linear", "context": 50},
        {"axis"},
    ),
    "short calls are not rotated": (
        {"grouped": 8, "those of the first call with this start": 0},
        {"reference": "wide", "dtype": np.float32, "context": 4096},
        {"calls"},
    ),
    "frequencies that are too slow to be measured": (
        {"from the first row of a table again": 100, "bfloat16 phases": 0},
        {"reference": "wide", "dtype": np.float16, "context": 4096},
        {"unknown"},
    ),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_causes_of_mistakes_together(name):
    planted, options, causes = TOGETHER[name]
    case = Case(planted=tuple((OF_NAME[kind], number) for kind, number in planted.items()), **options)
    assert_true(case)
    assert {*judge(case).report.causes} == causes


def test_phases_beyond_the_largest_float16_number_are_of_that_precision():
    """They have no result, which is no reason of its own, beside others."""
    rounded, of_row_0 = ((OF_NAME[name], 0) for name in ("float16 phases", "row 0's for all rows"))
    for planted, causes in (((rounded,), ("phase precision",)), ((rounded, of_row_0), ("calls",))):
        case = Case(planted=planted, shape="batch seq dim", position_axes=(2,), context=70_000)
        report = compare(case.program(), value_of("plain"), context=case.context, shape=case.shape)
        assert report.causes == causes and "fails from position 65,520 on" in report.summary
        assert report.largest_change is report.attention_moved is None
