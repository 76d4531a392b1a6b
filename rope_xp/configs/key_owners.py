"""Which model families and scaling rules read a key: for errors and remarks about keys that belong to others."""

from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from typing import Any

from rope_xp.arrays import checks
from rope_xp.configs.families.family import Family, Quirks
from rope_xp.configs.families.model_types import FAMILIES
from rope_xp.configs.keys import BASE_KEYS, Keys, comma_separated
from rope_xp.configs.readers.remote import GROK_BLOCK, GROK_FAMILIES, REQUIRED_VALUES
from rope_xp.configs.scaling_rule import NAMES

# Keys that only functions of these families read.
_IN_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "chatglm": ("rope_ratio", "original_rope"),
    "dots3_note_text": ("swa_qk_rope_head_dim", "swa_qk_nope_head_dim"),
    "esmfold2_atom_encoder": ("num_spatial_rope_pairs_per_axis", "num_uid_rope_pairs"),
    "qwen": ("use_dynamic_ntk",),
    **dict.fromkeys(("codegen", "gptj", "internlm"), ("rotary",)),
    **dict.fromkeys(GROK_FAMILIES, ("rope_rotate_half_dims", *GROK_BLOCK)),
}
# Keys that belong to no family. Those for widths may be in any config.
_USUAL = {*BASE_KEYS, *Quirks().rotated_keys, ""}
_USUAL |= {"head_dim", "hidden_size", "num_attention_heads", "n_embd", "n_head", "d_model", "n_heads"}
_SECTIONS = ("mrope_section", "mrope_interleaved")
_MOST_NAMES = 4


def families_with(key: Any) -> str:
    """For an error: the families that read a key outside the rotary block, or an empty string."""
    return _owners(key, "model_type", _readers().get(key, []))


def rules_with(key: object) -> str:
    """For an error: the scaling rules or the families that read a key of the rotary block, or an empty string."""
    if key in _SECTIONS:
        return _owners(key, "model_type", [name for name, row in FAMILIES.items() if row.axes and row.axes.count == 1])
    return _owners(key, "rope_type", [name for name, rule in NAMES.items() if key in {f.name for f in fields(rule)}])


def remarks_on_widths(keys: Keys, family: Family, head_dim: int) -> list[str]:
    """Sentences about keys for the width of a head that this family does not read, and that state another width."""
    others = {name: keys.mapping.get(name) for name in sorted(_widths() - {*_keys_of(family), *keys.found()})}
    return [
        f"{name}={value} is not read, and head_dim is {head_dim}{families_with(name)}"
        for name, value in others.items()
        if checks.is_int(value) and value != head_dim
    ]


@cache
def _readers() -> dict[str, list[str]]:
    """The families that read each key outside the rotary block, if not all families do."""
    readers: dict[str, list[str]] = {}
    for name, row in FAMILIES.items():
        for key in {*_IN_FUNCTIONS.get(name, ()), *REQUIRED_VALUES.get(name, ()), *_keys_of(row)} - _USUAL:
            readers.setdefault(key, []).append(name)
    return readers


@cache
def _widths() -> frozenset[str]:
    """The keys that are the width of a head in some families."""
    return frozenset(way for row in FAMILIES.values() for way in _ways_to_width(row) if "/" not in way) - _USUAL


def _keys_of(row: Family) -> Iterator[str]:
    """The keys outside the rotary block that the row of a family names."""
    quirks, layers = row.quirks, row.layers
    yield from (key for way in _ways_to_width(row) for key in way.split("/"))
    yield from (*quirks.base_keys, *quirks.rotated_keys, *quirks.ignored_keys)
    yield from (quirks.base_in, layers.scaled)
    yield from (key for of_type in layers.by_type.values() for key in of_type.base_keys or ())
    yield from () if layers.listed is None else (layers.listed.key,)
    yield from (layers.only_if or ())[:1]


def _ways_to_width(row: Family) -> Iterator[str]:
    """The keys, and the quotients of keys, for the width of a head in all types of layers."""
    for rule in (row.head_dim, *(of_type.head_dim for of_type in row.layers.by_type.values())):
        yield from rule.split(" | ") if isinstance(rule, str) else ()


def _owners(key: object, kind: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"; {key} is a key of {kind} {comma_separated(names[:_MOST_NAMES])}{more}"
