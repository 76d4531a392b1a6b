"""The README's snippets for JAX run."""

import pytest
from readme import run_snippet, snippets_of

SNIPPETS = snippets_of("jax")


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_snippet_runs(snippet):
    run_snippet(snippet)
