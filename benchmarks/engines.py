"""Tables of what engines read, from their own source: `rope_xp/configs/engines/<engine>-<version>.json`.

Run: `python benchmarks/engines.py ENGINE [--source PATH]`. PATH is where the engine's source or its build lies, if it
is not an installed package; each module of benchmarks/engine_tables says how to get it. The same source gives the same
bytes. With `--check`, nothing is written, and the script fails if the kept table differs.
"""

import argparse
import importlib
import json
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "rope_xp" / "configs" / "engines"
TABLES = Path(__file__).parent / "engine_tables"
ENGINES = sorted(file.stem for file in TABLES.glob("[!_]*.py"))


def grouped(readings):
    """The readings of single model types as entries: those that are equal share one."""
    groups = {}
    for model, reading in sorted(readings.items()):
        groups.setdefault(json.dumps(reading, sort_keys=True), []).append(model)
    return [{"models": models, **json.loads(reading)} for reading, models in groups.items()]


def text_of(engine, version, readings, facts):
    """The JSON file: one line for each entry."""
    lists = {"readings": grouped(readings), "facts": facts}
    lines = [f'"engine": {json.dumps(engine)}', f'"version": {json.dumps(version)}']
    for name, entries in lists.items():
        rows = ",\n".join(f"  {json.dumps(each, sort_keys=True, ensure_ascii=False)}" for each in entries)
        lines.append(f'"{name}": [\n{rows}\n]' if entries else f'"{name}": []')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--source", type=Path, help="where the engine's source or build lies")
    parser.add_argument("--check", action="store_true", help="fail if the kept table differs; write nothing")
    options = parser.parse_args()
    # Each module has ENGINE, the name in messages and files; `readings(source)`, which gives the version and a dict
    # from a model type to its entry without `models`; and FACTS, a list of what is written by hand.
    module = importlib.import_module(f"engine_tables.{options.engine}")
    version, readings = module.readings(options.source)
    file = FOLDER / f"{module.ENGINE}-{version}.json"
    text = text_of(module.ENGINE, version, readings, module.FACTS)
    if options.check and (not file.exists() or file.read_text("utf-8") != text):
        return f"{file.name} must be what the source of {module.ENGINE} {version} gives; it differs"
    if not options.check:
        file.write_text(text, "utf-8")
    print(f"{file.name}: {len(readings)} model types, {len(module.FACTS)} facts by hand")
    return 0


if __name__ == "__main__":
    sys.exit(main())
