"""What is read and written says what is recorded in `goldens/readings.json`, which `make_readings.py` writes."""

import pytest
from readings import recorded, text_of

RECORDED = {(kind, number): text for kind, cases in recorded().items() for number, text in cases.items()}


@pytest.mark.parametrize("kind, number", RECORDED)
def test_what_is_said_of_a_case(kind, number):
    assert text_of(kind, number) == RECORDED[kind, number]
