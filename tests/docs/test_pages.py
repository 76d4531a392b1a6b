"""Every code block of every page runs, and prints what the page says. `python tests/docs/update.py` writes outputs."""

import re
import runpy
from unittest.mock import Mock

import pages
import pytest
from configs import CONFIGS

import rope_xp
from rope_xp.configs.families.model_types import FAMILIES

FILLED = pages.ROOT / "docs" / "scripts" / "marks.py"
WITH_BLOCKS = [page for page in pages.PAGES if pages.has_blocks(page)]


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: str(page.relative_to(pages.ROOT)))
def test_blocks_print_what_the_page_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    pages.fill(tmp_path)
    for output in pages.outputs(page):
        if difference := output.difference():
            pytest.fail(f"{page}:{output.line}: the block prints something else\n{difference}", pytrace=False)


def test_only_mkdocs_fills_the_pages(monkeypatch):
    """Outside of it, what fills them would overwrite the files of docs."""
    monkeypatch.syspath_prepend(FILLED.parent)
    opened = Mock()
    monkeypatch.setattr("mkdocs_gen_files.open", opened)
    runpy.run_path(str(FILLED), run_name="marks")
    assert not opened.called


PAGE = """
```python
print(x := 1)
```

```text
1
```

=== "indented"

    ```python
    print(x + 1)
    ```

    ```text
    3
    ```

```console
$ rope-xp identify nothing.json
found
$ python -c "print('a', 'b')"
a ... b
```
"""


def test_what_pages_print_is_compared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    first, second, third = pages.outputs(page)
    assert (first.line, first.said, first.printed, first.difference()) == (6, "1\n", "1\n", "")
    assert (second.line, second.said, second.printed) == (16, "3\n", "2\n") and "- 3" in second.difference()
    assert (
        "nothing.json" in third.printed.splitlines()[1] and "a b\n" in third.printed and "- found" in third.difference()
    )


@pytest.mark.parametrize("module", ["numpy", "jax.numpy", "torch"])
def test_the_first_lines_of_the_readme_run_on_every_library(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pages.fill(tmp_path)
    first = pages.python_blocks(pages.README)[0]
    names = {}
    exec(first.replace("import numpy as xp", f"import {module} as xp"), names)
    xp, q = names["xp"], names["q"]
    assert names["rope"] == rope_xp.from_config(CONFIGS["llama-3.1-8b"])
    assert tuple(q.shape) == (2, 5, 32, 128) and isinstance(q, type(xp.ones(1)))


def test_counts_are_those_of_the_results_and_of_the_table_of_families():
    def count(file, words="classes"):
        text = (pages.ROOT / "benchmarks/results" / file).read_text()
        return [int(number) for number in re.search(rf"(\d+) of (\d+) {words}", text).groups()]

    def says(page, words):
        return words in " ".join((pages.ROOT / page).read_text().split())

    equal, known = count("coverage-5.18.md")
    newer, newest = count("coverage-5.23.md")
    patched, modules = count("families.md", "rotary classes can")
    assert says("README.md", f"{equal} of the {known} rotary classes of transformers 5.18")
    assert says("README.md", f"any of {len(FAMILIES)} model types")
    assert says("docs/benchmarks.md", f"{equal} of {known} classes of 5.18, {newer} of {newest} of 5.23")
    of_all = f"Of the {known} rotary classes of transformers 5.18, {patched} can be patched, {modules - patched}"
    assert says(
        "docs/howto/patch-transformers.md",
        f"{of_all} are refused by name, and {known - modules} belong to classes of attention",
    )
