"""Whether calls raise what they should, in the form of our messages."""

import re

import pytest

# The form of our messages, and Python's own words for an argument that is missing.
IN_FORM = re.compile(
    r"[\w.]+: .+; got .+"
    r"|(RotaryEmbedding\.__\w+__|permute_projection)\(\) missing 1 required keyword-only argument: '\w+'",
    re.S,
)


def assert_raises(call, error, message):
    with pytest.raises(error, match=message) as raised:
        call()
    assert IN_FORM.fullmatch(str(raised.value)), raised.value


def assert_all_raise(cases):
    """All of them, so that a failure names every call that does not raise as it should."""
    wrong = {}
    for name, case in cases.items():
        try:
            assert_raises(*case)
        except (Exception, pytest.fail.Exception) as failure:
            wrong[name] = str(failure)
    assert not wrong
