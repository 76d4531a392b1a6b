"""The tests that the page on reliability names exist, and each property names one."""

import re

import pages

PAGE = pages.ROOT / "docs" / "explanation" / "reliability.md"
LINK = re.compile(r'\[\w+\]\((\S+) "(test_\w+)"\)')


def test_each_property_names_tests_that_exist():
    rows = re.findall(r"^\| (\d+) \|(.*)$", PAGE.read_text(), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 16))
    for number, row in rows:
        found = LINK.findall(row)
        assert found, f"property {number} has no test"
        for path, name in found:
            assert f"\ndef {name}(" in (PAGE.parent / path).read_text(), f"property {number}: {path} has no {name}"
