"""The README's snippets run, each where its library is tested; and every public name is there."""

import re
from pathlib import Path

import rope_xp

README = (Path(__file__).parent.parent / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
IMPORTS = {"jax": "import jax", "torch": "import torch"}


def library_of(snippet):
    return next((name for name, line in IMPORTS.items() if line in snippet), "numpy")


def pytest_generate_tests(metafunc):
    if "snippet" in metafunc.fixturenames:
        here = [snippet for snippet in SNIPPETS if library_of(snippet) in metafunc.config.libraries]
        metafunc.parametrize("snippet", here, ids=range(len(here)))


def test_there_is_a_snippet_for_each():
    assert {library_of(snippet) for snippet in SNIPPETS} == {"numpy", "jax", "torch"}


def test_snippet_runs(snippet):
    names = {}
    exec(compile(snippet, "README.md", "exec"), names)
    rotated = names.get("q", names.get("y"))
    if rotated is None:
        assert isinstance(names["rope"], rope_xp.RotaryEmbedding)
        return
    assert type(rotated).__module__.partition(".")[0].removesuffix("lib") == library_of(snippet)
    assert tuple(rotated.shape) in {
        (2, 5, 32, 128),
        (2, 32, 5, 128),
        (2, 5, 8, 128),
        (5, 3, 14),
        (2, 5, 3, 64),
        (1, 5, 64),
        (7, 4, 128),
    }


def test_every_public_name_is_there():
    for name in (*rope_xp.__all__, "sincos", "rotate", "shift", "describe", "to_config"):
        assert name in README
    for name in rope_xp.positions.__all__:
        assert re.search(rf"`{name}[(`]", README)
