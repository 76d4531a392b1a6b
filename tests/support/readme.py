"""The README's snippets, and how one is run."""

import re
from pathlib import Path

import rope_xp

README = (Path(__file__).parents[2] / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
IMPORTS = {"jax": "import jax", "torch": "import torch"}


def library_of(snippet):
    return next((name for name, line in IMPORTS.items() if line in snippet), "numpy")


def snippets_of(library):
    return [snippet for snippet in SNIPPETS if library_of(snippet) == library]


SHAPES = {(2, 5, 32, 128), (2, 32, 5, 128), (2, 5, 8, 128), (5, 3, 14), (2, 5, 3, 64), (1, 5, 64), (7, 4, 128)}


def run_snippet(snippet):
    """Run a snippet, and check the library and the shape of what it rotates."""
    names = {}
    exec(compile(snippet, "README.md", "exec"), names)
    rotated = names.get("q", names.get("y"))
    if rotated is None:
        assert isinstance(names["rope"], rope_xp.RotaryEmbedding)
        return
    assert type(rotated).__module__.partition(".")[0].removesuffix("lib") == library_of(snippet)
    assert tuple(rotated.shape) in SHAPES
