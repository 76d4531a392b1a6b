"""What is read and written says what is recorded in `goldens/readings.json`, which `make_readings.py` writes."""

import pytest
from readings import of_family, recorded, text_of

from rope_xp.configs.families.model_types import FAMILIES

OF_FAMILIES = recorded()["families"]
RECORDED = {
    (kind, number): text for kind, cases in recorded().items() if kind != "families" for number, text in cases.items()
}


@pytest.mark.parametrize("kind, number", RECORDED)
def test_what_is_said_of_a_case(kind, number):
    assert text_of(kind, number) == RECORDED[kind, number]


@pytest.mark.parametrize("name", FAMILIES)
def test_what_the_defaults_of_a_family_make(name):
    assert of_family(name) == OF_FAMILIES[name]
