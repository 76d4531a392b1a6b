"""Fill pages while the site is built, with figures and tables.

mkdocs-gen-files runs it, into the site. Imported, it fills no page.

A mark ``<!-- build: NAME ARGUMENTS -->`` of a page is replaced by what `BUILDERS[NAME](*ARGUMENTS)` returns. An image
``![...](NAME-{theme}.svg)`` becomes two: light pages show one, dark pages the other. Pages of the reference begin with
a table of what they document.
"""

import json
import re
import tomllib
from os.path import relpath
from pathlib import Path

import engine_tables
import explanation_figures
import family_tables
import layouts_drawing
import mkdocs_gen_files
import reference_tables
import rule_tables
from pictures import publish

from rope_xp import plot
from rope_xp.configs.families.model_types import FAMILIES
from rope_xp.extension import METHODS

ROOT = Path(__file__).parents[2]
TABLE_GOALS = ("tables", "tables without numba")
FIGURES = "explanation/figures"
MARK = re.compile(r"<!-- build: ([\w-]+)((?: [\w.-]+)*) -->")
IMAGE = re.compile(r"(!\[[^\]]*\]\([^)]*)\{theme\}(\.svg)\)")

CONFIGS = {
    name: entry["config"] for name, entry in json.loads((ROOT / "tests/goldens/configs.json").read_text()).items()
}
GOLDENS = json.loads((ROOT / "tests/goldens/goldens.json").read_text())


def figure(name: str) -> str:
    """A figure of the explanation, which is drawn here."""
    draw, alt = explanation_figures.FIGURES[name]
    publish(f"{FIGURES}/{name}", lambda figure: draw(figure, CONFIGS))
    return f"![{alt}]({{figures}}/{name}-{{theme}}.svg)"


def mutants() -> str:
    """How many random mistakes the tests find, from the results of the last full run."""
    text, _, _ = (ROOT / "benchmarks/results/mutants.md").read_text().partition("\n\n|")
    _, made, *_, killed = text.split("\n\n")
    return f"{made} {killed}"


def table_cost() -> str:
    """How long exact tables take, from the results of the speed benchmark."""
    results = next((ROOT / "benchmarks/results").glob("speed-cpu-*.md")).read_text()
    fast, slow = (re.findall(rf"^\| {goal} / formula .*?\| ([\d.]+) ", results, re.M)[0] for goal in TABLE_GOALS)
    return (
        f"On the CPU, exact tables of 256 positions and more take at most {fast} times as long as the plain float32 "
        f"formula with numba, and at most {slow} times as long without it ([speed](../benchmarks.md#speed))."
    )


def oldest(*packages: str) -> str:
    """The oldest version of each package that pyproject.toml allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [f"python{project['requires-python']}", *project["dependencies"]]
    needed += [each for extra in project["optional-dependencies"].values() for each in extra]
    lowest = dict(each.split(">=") for each in needed if ">=" in each)
    return ", ".join(lowest[package] for package in packages)


def results(name: str, number: str) -> str:
    """A table of the results of a benchmark, by its number."""
    (path,) = (ROOT / "benchmarks/results").glob(f"{name}*.md")
    return re.findall(r"(?:^\|.*\n)+", path.read_text(), re.MULTILINE)[int(number)]


def methods() -> str:
    """What papers say about each rule of `extend`."""
    lines = ["| rule | what it does, and trade-offs | fine-tuning | sources |", "|---|---|---|---|"]
    for name, each in METHODS.items():
        text = f"{each.does[0].upper()}{each.does[1:]}. {each.trade_offs}"
        lines.append(f"| `{name}` | {text} | {each.fine_tuning} | {'; '.join(each.sources)} |")
    return "\n".join(lines)


def all_pictures() -> str:
    """What `rope_xp.plot` draws: the pictures that plot_figures.py publishes."""
    rows = []
    for kind, draw in plot.PICTURES.items():
        alt = reference_tables.first_sentence(draw).removeprefix("Draw ").capitalize()
        rows.append(f"`--kind {kind}`: {alt}")
        rows.append(f"![{alt}](figures/{kind}-{{theme}}.svg)")
    return "\n\n".join(rows)


BUILDERS = {
    "figure": figure,
    "rule-names": rule_tables.names,
    "rule-reference": rule_tables.reference,
    "rule-users": lambda: rule_tables.users(CONFIGS, GOLDENS),
    "methods": methods,
    "pictures": all_pictures,
    "layout-users": family_tables.by_layout,
    "layouts": layouts_drawing.drawing,
    "families": family_tables.families,
    "model-types": lambda: str(len(FAMILIES)),
    "composites": family_tables.composites,
    "engine-readings": engine_tables.readings,
    "engine-facts": engine_tables.facts,
    "engine-versions": engine_tables.known,
    "mutants": mutants,
    "table-cost": table_cost,
    "oldest": oldest,
    "results": results,
}


def built(page: Path) -> str:
    """The text of a page with all marks replaced."""
    figures = Path(relpath(FIGURES, page.relative_to(ROOT / "docs").parent)).as_posix()
    text = MARK.sub(lambda mark: BUILDERS[mark[1]](*mark[2].split()).replace("{figures}", figures), page.read_text())
    text = IMAGE.sub("\n".join(rf"\1{theme}\2#only-{theme})" for theme in plot.STYLES), text)
    return reference_tables.completed(text)


def fill() -> None:
    for page in sorted((ROOT / "docs").rglob("*.md")):
        if (text := built(page)) != page.read_text():
            with mkdocs_gen_files.open(page.relative_to(ROOT / "docs").as_posix(), "w") as target:
                target.write(text)


if __name__ == "<run_path>":  # the name that mkdocs-gen-files gives a script; outside of it, `open` writes into docs
    fill()
