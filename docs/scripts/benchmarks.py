"""The pages of benchmarks: what a person wrote, if anything, and below it the results of a run.

`docs/benchmarks/NAME.md` gets `benchmarks/results/NAME.md`; results that depend on the machine are NAME-cpu-MACHINE.md.
"""

from pathlib import Path

import mkdocs_gen_files

ROOT = Path(__file__).parents[2]

for results in sorted((ROOT / "benchmarks" / "results").glob("*.md")):
    name = f"{results.stem.partition('-cpu')[0]}.md"
    written = ROOT / "docs" / "benchmarks" / name
    title, _, figures = results.read_text().partition("\n")
    head = f"{written.read_text()}\n## How it was measured\n" if written.exists() else f"{title}\n"
    with mkdocs_gen_files.open(f"benchmarks/{name}", "w") as page:
        page.write(head + figures)
    mkdocs_gen_files.set_edit_path(f"benchmarks/{name}", f"../benchmarks/results/{results.name}")
