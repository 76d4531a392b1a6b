"""What `identify` finds in other packages, and in ports with one mistake."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import identify_peers


def test_identify_peers(capsys):
    """Every package and every mistake is named; timm is in an environment of its own."""
    results = identify_peers.main()
    missing = {name for name, expected in results.items() if expected is None}
    assert False not in results.values() and missing <= {"timm"} and len(results) == 7 + 11 + 11
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
