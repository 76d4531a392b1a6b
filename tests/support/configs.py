"""Real configs and what a person read in them, and how one of their keys is found, left out or changed."""

import copy
import json
import re
from pathlib import Path

import rope_xp

HERE = Path(__file__).parents[1] / "goldens"


def recorded(name):
    return json.loads((HERE / f"{name}.json").read_text())


def record(name, found):
    (HERE / f"{name}.json").write_text(laid_out(found) + "\n")


def laid_out(found, depth=1):
    """JSON: one line, or one for each item where it is longer than a line."""
    text = json.dumps(found)
    if len(text) < 110 - depth or not isinstance(found, (dict, list, tuple)):
        return text
    if isinstance(found, dict):
        rows, ends = [f"{json.dumps(key)}: {laid_out(each, depth + 1)}" for key, each in found.items()], "{}"
    else:
        rows, ends = [laid_out(each, depth + 1) for each in found], "[]"
    begin = "\n" + " " * depth
    return ends[0] + begin + f",{begin}".join(rows) + begin[:-1] + ends[1]


def in_lines(text):
    """A text cut after its lines, or its sentences and its parts, and at spaces where these are long."""
    parts = text.splitlines(keepends=True) if "\n" in text else re.split(r"(?<= \| )|(?<=[.;] )", text)
    return [line for part in parts for line in re.findall(r".{1,109}(?: |\Z)|\S+ *", part, re.S)]


CONFIGS = {name: entry["config"] for name, entry in recorded("configs").items()}
GOLDENS = recorded("goldens")
# Tables of tests, by what they show: small configs and what they mean, what is refused and why. One row a line.
ROWS = recorded("rows")
# Files of other formats as mappings, by name, and all files together.
FILES = {row["name"]: row["keys"] for row in ROWS["files of other formats"]}
ALL = CONFIGS | FILES


# A power in float64 is not rounded alike on every platform.
DIGITS = re.compile(r"\d+\.\d+(e-?\d+)?")


def with_12_digits(text):
    return DIGITS.sub(lambda number: f"{float(number[0]):.12g}", text)


def value_of(text):
    """The value that a row writes as Python does: an embedding, a part of one, or None."""
    return None if text is None else eval(text, dict(vars(rope_xp)))


def at(config, path):
    """What a config has at a path of keys and indices."""
    for key in path:
        config = config[key]
    return config


def paths_of(value, path=()):
    """The path of each value of a config; of a list, those of the first two."""
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(min(len(value), 2)):
            yield (*path, key)
            yield from paths_of(value[key], (*path, key))


def without(name, path):
    """A copy of a config that lacks one of its keys."""
    config = copy.deepcopy(ALL[name])
    del at(config, path[:-1])[path[-1]]
    return config


def changed(name, path, value):
    """A copy of a config with a value at a path, which may be new."""
    config = copy.deepcopy(ALL[name])
    at(config, path[:-1])[path[-1]] = value
    return config
