"""Tables of scaling rules, from the classes of rules, their docstrings, and the real configs of the tests."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from reference_tables import first_sentence

from rope_xp import NTKScaling, from_config
from rope_xp.configs.block import ALIASES, RULE_NAMES
from rope_xp.configs.families.family import Family
from rope_xp.configs.families.model_types import FAMILIES
from rope_xp.frequencies import Scaling

CLASSES: list[type[Scaling]] = Scaling.__subclasses__()


def names() -> str:
    """Each rule, by its names in configs."""
    found = defaultdict(list, {NTKScaling: ["`dynamic` with `alpha`"]})
    for name, rule in [*RULE_NAMES.items(), *((name, RULE_NAMES[target]) for name, target in ALIASES.items())]:
        found[rule].append(f"`{name}`")
    lines = ["| `rope_type` | rule |", "|---|---|", f"| {', '.join(found[Scaling])} | none: frequencies stay |"]
    for rule in CLASSES:
        entry = f"[`{rule.__name__}`][rope_xp.frequencies.{rule.__name__}]"
        lines.append(f"| {', '.join(found[rule])} | {entry}. {first_sentence(rule)} |")
    return "\n".join(lines)


def reference() -> str:
    """An entry of the reference for each rule."""
    return "\n\n".join(f"::: rope_xp.frequencies.{rule.__name__}" for rule in CLASSES)


def users(configs: Mapping[str, Any], goldens: list[dict[str, Any]]) -> str:
    """The real configs of the tests that have a rule, folded, and the families that have one by default."""
    rows = defaultdict(dict)
    for golden in goldens:
        choice = {key: value for key, value in golden["kwargs"].items() if key != "seq_len"}
        if golden["rotated"] and choice.get("part") != "vision":
            rule = from_config(configs[golden["config"]], **choice).scaling
            if rule is not None:
                shown = rule.describe().partition(":")[0].replace("original_max_position_embeddings", "original")
                model_type = configs[golden["config"]]["model_type"]
                rows[type(rule)][golden["config"]] = f"| {golden['config']} | `{model_type}` | {shown} |"
    lines = ["| checkpoint | `model_type` | rule |", "|---|---|---|"]
    lines += [row for rule in CLASSES for row in rows[rule].values()]
    lines += ["", "Families with a rule by default:", ""]
    for rule in CLASSES:
        if families := ", ".join(f"`{name}`" for name in _families_with(rule)):
            lines.append(f"- {rule.__name__}: {families}")
    return '??? info "Checkpoints with each rule"\n\n' + "\n".join(f"    {line}".rstrip() for line in lines)


def _families_with(rule: type) -> Iterator[str]:
    """The families whose default rotary block has a rule."""
    for name, family in FAMILIES.items():
        rows = (family, *(family.of_type(label) for label in family.layers.by_type))
        if any(_rule_of(row) is rule for row in rows):
            yield name


def _rule_of(family: Family) -> type:
    block = family.defaults.get("rope_parameters") or {}
    name = block.get("rope_type", "default")
    return RULE_NAMES[ALIASES.get(name, name)]
