"""What is read and written says what is recorded in `goldens`, which `make_readings.py` writes.

`readings.json` has random cases, `examples.json` small ones below a sentence that each shows.
"""

import pytest
import sentences
from configs import recorded
from readings import of_family, text_of
from sentences import MAKE

from rope_xp.configs.families.model_types import FAMILIES

KINDS = recorded("readings")
OF_FAMILIES = KINDS.pop("families")
RECORDED = {(kind, number): text for kind, cases in KINDS.items() for number, text in cases.items()}
EXAMPLES = recorded("examples") | recorded("checkpoints")
PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
def test_what_is_said_of_a_case(part):
    """Each part has cases of every kind."""
    cases = [*RECORDED][part::PARTS]
    assert {case: text_of(*case) for case in cases} == {case: RECORDED[case] for case in cases}, MAKE


@pytest.mark.parametrize("part", range(PARTS))
def test_what_the_defaults_of_a_family_make(part):
    names = [*FAMILIES][part::PARTS]
    assert {name: of_family(name) for name in names} == {name: OF_FAMILIES.get(name) for name in names}, MAKE


@pytest.mark.parametrize("sentence", EXAMPLES)
def test_examples(sentence):
    sentences.assert_said(EXAMPLES[sentence])
