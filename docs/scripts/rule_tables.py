"""Tables of the pages on scaling rules, from the docstrings of rules and from the real configs of the tests."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from inspect import getdoc
from itertools import groupby
from typing import Any

import griffe

from rope_xp import XPos, frequencies, from_config
from rope_xp.configs.block import ALIASES, RULES
from rope_xp.configs.families.family import Family
from rope_xp.configs.families.model_types import FAMILIES
from rope_xp.frequencies import Scaling

PAGES: dict[str, type] = {
    "default": Scaling,
    "linear": frequencies.LinearScaling,
    "ntk": frequencies.NTKScaling,
    "mixed-ntk": frequencies.MixedNTKScaling,
    "dynamic-ntk": frequencies.DynamicNTKScaling,
    "yarn": frequencies.YarnScaling,
    "longrope": frequencies.LongRopeScaling,
    "llama3": frequencies.Llama3Scaling,
    "proportional": frequencies.ProportionalScaling,
    "xpos": XPos,
}


def keys(page: str) -> str:
    """What each key of a rule means: the parameters of its class, which have the names of the keys."""
    rule = PAGES[page]
    defaults = {each.name: each.default for each in fields(rule)}
    lines = ["| key | meaning | default |", "|---|---|---|"]
    for section in _docstring(rule):
        if section.kind is griffe.DocstringSectionKind.parameters:
            for meaning, parameters in groupby(section.value, lambda each: each.description):
                names = [each.name for each in parameters]
                shown = ", ".join(dict.fromkeys(_shown(defaults[name]) for name in names))
                lines.append(f"| `{'`, `'.join(names)}` | {_one_line(meaning)} | {shown} |")
    return "\n".join(lines)


def sources(page: str) -> str:
    """The references of a rule's docstring."""
    text = getdoc(PAGES[page]).split("References\n----------\n")[1].split("\n\n")[0]
    return " ".join(text.split())


def users(page: str, configs: Mapping[str, Any], goldens: list[dict[str, Any]]) -> str:
    """The real configs of the tests that have a rule, and the families that have it by default."""
    rule, found = PAGES[page], {}
    for golden in goldens:
        choice = {key: value for key, value in golden["kwargs"].items() if key != "seq_len"}
        if golden["rotated"] and choice.get("part") != "vision":
            rope = from_config(configs[golden["config"]], **choice)
            if type(rope.scaling or Scaling()) is rule:
                found[golden["config"]] = rope
    lines = ["| checkpoint | `model_type` | rule |", "|---|---|---|"]
    for name, rope in found.items():
        shown = (rope.scaling or Scaling()).describe().partition(", ")[2].partition(":")[0]
        shown = shown.replace("original_max_position_embeddings", "original")
        lines.append(f"| {name} | `{configs[name]['model_type']}` | {shown} |")
    families = ", ".join(f"`{name}`" for name in _families_with(rule))
    return "\n".join(lines) + (f"\n\nFamilies with this rule by default: {families}." if families else "")


def _families_with(rule: type) -> Iterator[str]:
    """The families whose default rotary block has a rule."""
    for name, family in FAMILIES.items():
        if rule is not Scaling and any(_rule_of(row) is rule for row in (family, *_rows_by_type(family))):
            yield name


def _rows_by_type(family: Family) -> list[Family]:
    return [family.of_type(name) for name in family.layers.by_type]


def _rule_of(family: Family) -> type:
    block = family.defaults.get("rope_parameters") or {}
    name = block.get("rope_type", "default")
    return RULES[ALIASES.get(name, name)]


def _docstring(rule: type) -> list[Any]:
    return griffe.Docstring(getdoc(rule), lineno=1).parse("numpy", warnings=False)


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _shown(default: Any) -> str:
    if default is MISSING:
        return "required"
    return "-" if default is None else f"`{str(default).lower() if isinstance(default, bool) else default}`"
