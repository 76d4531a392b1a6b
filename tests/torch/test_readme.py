"""The README's snippets for PyTorch run."""

import pytest
from readme import run_snippet, snippets_of

SNIPPETS = snippets_of("torch")


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_snippet_runs(snippet):
    run_snippet(snippet)
