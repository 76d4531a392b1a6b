"""What is read and written says what is recorded in `goldens/readings.json`, which `make_readings.py` writes."""

import pytest
from readings import of_family, recorded, text_of

from rope_xp.configs.families.model_types import FAMILIES

OF_FAMILIES = recorded()["families"]
RECORDED = {
    (kind, number): text for kind, cases in recorded().items() if kind != "families" for number, text in cases.items()
}
PARTS = 8
MAKE = "if the change should say this: python tests/goldens/make_readings.py, and look at what changes in its file"


@pytest.mark.parametrize("part", range(PARTS))
def test_what_is_said_of_a_case(part):
    """Each part has cases of every kind."""
    cases = [*RECORDED][part::PARTS]
    assert {case: text_of(*case) for case in cases} == {case: RECORDED[case] for case in cases}, MAKE


@pytest.mark.parametrize("part", range(PARTS))
def test_what_the_defaults_of_a_family_make(part):
    names = [*FAMILIES][part::PARTS]
    assert {name: of_family(name) for name in names} == {name: OF_FAMILIES.get(name) for name in names}, MAKE
