"""Reports say what is recorded in `goldens/reports.json`, which `make_reports.py` writes."""

import sys

import pytest
from configs import recorded
from recorded import CALLED, PROGRAMS, VARIANTS, of_calls, of_programs, of_variants, text_of

RECORDED = recorded("reports")


@pytest.fixture(autouse=True)
def no_frameworks(monkeypatch):
    """Functions are called with arrays of the libraries that are imported: here with NumPy's alone."""
    for name in ("torch", "jax"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("first", PROGRAMS[::20])
def test_of_programs(first):
    for number in PROGRAMS[first : first + 20]:
        assert [text_of(each) for each in of_programs(number)] == RECORDED["programs"][str(number)], number


@pytest.mark.parametrize("number", range(len(VARIANTS)))
def test_of_variants(number):
    assert [*of_variants(number)] == RECORDED["variants"][str(number)], VARIANTS[number]


def test_calls():
    """Which `x` and which positions a function gets, in all shapes that are tried."""
    for name, case in CALLED.items():
        assert of_calls(case) == RECORDED["calls"][name], name
