"""Reports say what is recorded in `goldens/reports.json`, which `make_reports.py` writes."""

import sys

import pytest
from configs import recorded
from recorded import CALLED, PAIRS, PROGRAMS, of_calls, of_programs, of_values, text_of

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


def test_of_values():
    for one, other in PAIRS:
        assert [text_of(each) for each in of_values(one, other)] == RECORDED["values"][f"{one}, {other}"], (one, other)


def test_calls():
    """Which `x` and which positions a function gets, in all shapes that are tried."""
    for name, case in CALLED.items():
        assert of_calls(case) == RECORDED["calls"][name], name
