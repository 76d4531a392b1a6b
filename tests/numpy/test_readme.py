"""What README and CONTRIBUTING name exists: links, paths and nox sessions."""

import doctest
import re
import textwrap

import pytest
from pages import README, ROOT

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def sessions():
    """The names of the nox sessions, read from the text of noxfile.py: nox need not be installed."""
    text = (ROOT / "noxfile.py").read_text()
    named = re.findall(r'^@.*\bname="([^"]+)"', text, flags=re.MULTILINE)
    functions = re.findall(r"^@(?!.*\bname=).*\ndef (\w+)\(session", text, flags=re.MULTILINE)
    return {*named, *functions}


@pytest.mark.parametrize("text", [README.read_text(), CONTRIBUTING], ids=["README", "CONTRIBUTING"])
def test_links_paths_and_sessions_exist(text):
    links = re.findall(r"\]\((?!https?:|#)([^)]+)\)", text)
    paths = re.findall(r"(?<![\w/])(?:rope_xp|tests|benchmarks|examples)/[\w./-]*\w/?", text)
    assert paths and [path for path in (*links, *paths) if not (ROOT / path.partition("#")[0]).exists()] == []
    modules = {
        path.as_posix()
        for folder in ("rope_xp", "tests", "docs", "benchmarks", "examples")
        for path in (ROOT / folder).rglob("*.py")
    }
    named = set(re.findall(r"`([\w/]+\.py)`", text)) - {"my_model.py", "noxfile.py", "acme.py"}
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in modules)] == []
    assert set(re.findall(r"nox -s ([\w-]+)", text.replace("\n", " "))) - {"NAME"} <= sessions()


def test_contributing_says_what_each_session_protects():
    table = CONTRIBUTING.partition("## What each session protects")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `([\w-]+)` \|", table, flags=re.MULTILINE)) == sorted(sessions())


def test_the_frequency_rule_of_contributing_runs():
    (snippet,) = re.findall(r"```python\n(.*?)```", CONTRIBUTING, flags=re.DOTALL)
    names = {"__name__": "snippet"}
    exec(compile(textwrap.dedent(snippet), "CONTRIBUTING.md", "exec"), names)
    (examples,) = doctest.DocTestFinder().find(names["SquareRootScaling"], "rule", module=False, globs=names)
    assert doctest.DocTestRunner().run(examples) == (0, 1)
