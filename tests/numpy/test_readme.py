"""The README's snippets for NumPy run, and it names everything public.

What README and CONTRIBUTING name exists: links, paths and nox sessions.
"""

import doctest
import re
import textwrap
from pathlib import Path

import pytest
from readme import README, SNIPPETS, library_of, run_snippet, snippets_of

import rope_xp

ROOT = Path(__file__).parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def test_there_is_a_snippet_for_each():
    assert {library_of(snippet) for snippet in SNIPPETS} == {"numpy", "jax", "torch"}


@pytest.mark.parametrize("snippet", snippets_of("numpy"), ids=range(len(snippets_of("numpy"))))
def test_snippet_runs(snippet):
    run_snippet(snippet)


def test_every_public_name_is_there():
    for name in (*rope_xp.__all__, "sincos", "rotate", "shift", "describe", "to_config"):
        assert name in README
    for name in rope_xp.positions.__all__:
        assert re.search(rf"`{name}[(`]", README)


def sessions():
    """The names of the nox sessions, read from the text of noxfile.py: nox need not be installed."""
    text = (ROOT / "noxfile.py").read_text()
    named = re.findall(r'^@.*\bname="([^"]+)"', text, flags=re.MULTILINE)
    functions = re.findall(r'^@(?!.*\bname=).*\ndef (\w+)\(session', text, flags=re.MULTILINE)
    return {*named, *functions}


@pytest.mark.parametrize("text", [README, CONTRIBUTING], ids=["README", "CONTRIBUTING"])
def test_links_paths_and_sessions_exist(text):
    links = re.findall(r"\]\((?!https?:|#)([^)]+)\)", text)
    paths = re.findall(r"\b(?:rope_xp|tests|benchmarks|examples)/[\w./-]*\w/?", text)
    assert paths and [path for path in (*links, *paths) if not (ROOT / path).exists()] == []
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
