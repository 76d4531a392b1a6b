"""`compare`, `assert_same` and `identify` on programs with planted mistakes: nothing that they say is false.

`tests/tools/planted.py` tries thousands.
"""

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


def test_phases_beyond_the_largest_float16_number_are_of_that_precision():
    """They have no result, which is no reason of its own, beside others."""
    rounded, of_row_0 = ((OF_NAME[name], 0) for name in ("float16 phases", "row 0's for all rows"))
    for planted, causes in (((rounded,), ("phase precision",)), ((rounded, of_row_0), ("calls",))):
        case = Case(planted=planted, shape="batch seq dim", position_axes=(2,), context=70_000)
        report = compare(case.program(), value_of("plain"), context=case.context, shape=case.shape)
        assert report.causes == causes and "fails from position 65,520 on" in report.summary
