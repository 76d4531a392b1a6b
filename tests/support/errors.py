"""Whether calls raise what they should, in the form of our messages."""

import re

import pytest

# The form of our messages, and Python's own words for an argument that is missing.
IN_FORM = re.compile(
    r"[\w.]+: .+; got .+"
    r"|(RotaryEmbedding\.__\w+__|permute_projection)\(\) missing 1 required keyword-only argument: '\w+'",
    re.S,
)


def raising(values, types=()):
    """Calls that must raise ValueError and such that must raise TypeError, each with what it must say, as cases."""
    rows = [(ValueError, row) for row in values] + [(TypeError, row) for row in types]
    return [(call, error, message) for error, (call, message) in rows]


def assert_raises(call, error, message):
    with pytest.raises(error, match=message) as raised:
        call()
    text = str(raised.value)
    assert IN_FORM.fullmatch(text) and len(text) < 1000, text


def assert_all_raise(cases):
    """All of them, so that a failure names every call that does not raise as it should."""
    wrong = {}
    for number, (call, error, message) in enumerate(cases):
        try:
            assert_raises(call, error, message)
        except (Exception, pytest.fail.Exception) as failure:
            wrong[number, message] = str(failure)
    assert not wrong, wrong
