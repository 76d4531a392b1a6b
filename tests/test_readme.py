"""The README's snippets run, each where its library is tested."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
IMPORTS = {"jax": "import jax", "torch": "import torch"}


def library_of(snippet):
    return next((name for name, line in IMPORTS.items() if line in snippet), "numpy")


def test_the_readme_has_a_snippet_for_each():
    assert {library_of(snippet) for snippet in SNIPPETS} == {"numpy", "jax", "torch"}


@pytest.mark.parametrize("index", range(len(SNIPPETS)))
def test_snippet_runs(xp, index):
    if library_of(SNIPPETS[index]) == xp.name:
        names = {}
        exec(compile(SNIPPETS[index], f"README.md, snippet {index}", "exec"), names)
        assert any(isinstance(getattr(value, "shape", None), tuple) for value in names.values())


def test_every_public_name_is_there():
    import rope_xp

    for name in (*rope_xp.__all__, *(n for n in vars(rope_xp.RotaryEmbedding) if n in ("sincos", "rotate", "shift"))):
        assert name in README
    for name in ("consecutive", "from_mask", "from_lengths", "from_cu_seqlens", "context_parallel", "grid"):
        assert f"`{name}(" in README
