"""What transformers 5.18 does with some configs that is a mistake, as edits of the config before it is read.

Only ``from_config(..., compat="transformers")`` makes them, so that its tables equal upstream's there too.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rope_xp.config.block import BASE_KEYS, LENGTH_KEYS, ORIGINAL, PARTIAL_KEYS
from rope_xp.config.families import Family
from rope_xp.config.keys import WHO, Keys

# Of whose pairs the two channels turn by angles of different axes.
NO_ROTATION = ("hunyuan_vl_text",)

# Keys beside the block that these families do not read.
NOT_READ = {
    "bamba": ("partial_rotary_factor", "attn_rotary_emb"),
    "cohere2_moe": ("rope_scaling",),
    "dbrx": ("attn_config",),
    "fuyu": ("rope_theta", "rope_scaling"),
    "gpt_neox": ("rope_theta", "partial_rotary_factor"),
    "gpt_neox_japanese": ("rope_theta", "partial_rotary_factor"),
    "minimax_m3_vl_text": ("rotary_dim",),
    "modernbert": ("rope_theta",),
    "modernbert-decoder": ("rope_theta",),
    "step3p5": ("use_rope_layers",),
}

# Rows of the table, which follows 5.23, that are others in 5.18; and frequencies before any training.
ROWS: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {"order": "even_odd", "sizes": (22, 22, 20)},
    "mistral_large4_text": {"weights": None},
    "step3p5_vision": {"axis_of_section": None},
}


def as_upstream(
    given: Mapping[str, Any], model_type: str, family: Family, seq_len: int | None
) -> tuple[dict[str, Any], Family]:
    """The config and the row that make the reader compute what transformers does."""
    if model_type in NO_ROTATION:
        raise ValueError(
            f"{WHO}: compat must be None for {model_type!r}, of which transformers makes no rotation; got transformers"
        )
    for name in ("rope_parameters", "rope_scaling"):
        Keys("config", given).within(name)  # must be mappings
    config: dict[str, Any] = _plain(given)
    for key in NOT_READ.get(model_type, ()):
        config.pop(key, None)
    scaling = config.get("rope_scaling") or {}
    if family.by_layer and "type" in scaling and "rope_type" not in scaling:
        scaling = config["rope_scaling"] = {}  # the default block has a rope_type already
    if scaling:
        config["rope_parameters"] = None  # replaced, not merged
    blocks = _blocks(config)
    _truncate(config, blocks)
    for block in blocks:
        _said_beside(config, block, family)
        _lengths(config, model_type, block, seq_len)
    if not blocks and any(
        "rope_theta" in (row.get("block") or {}) for row in (vars(family), *family.by_layer.values())
    ):
        _drop(config, BASE_KEYS)  # the default block comes as a whole
    if model_type == "step3p5":
        _first_of_each_type(config)
    changed = {"olmo3": {"base_fixed": True}, "dots3_note_text": {"base": 80_000_000.0, "base_keys": BASE_KEYS}}
    if model_type in changed and scaling:
        sliding = {**family.by_layer["sliding_attention"], **changed[model_type]}
        family = replace(family, by_layer={**family.by_layer, "sliding_attention": sliding})
        _drop(config, ("swa_rope_theta",))
    return config, replace(family, clamped=True, **ROWS.get(model_type, {}))


def _plain(value: Any) -> Any:
    """A copy, of plain dicts and lists, that may be edited."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def _blocks(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The rotary blocks of a config: one, or one for each layer type."""
    block = config.get("rope_scaling") or config.get("rope_parameters") or {}
    nested = [value for value in block.values() if isinstance(value, dict)]
    return nested or ([block] if block else [])


def _truncate(config: dict[str, Any], blocks: list[dict[str, Any]]) -> None:
    """`truncate` of a nested block is not read, that beside nested blocks is."""
    parameters = config.get("rope_parameters") or {}
    if any(isinstance(value, dict) for value in parameters.values()):
        beside = parameters.pop("truncate", True)
        for block in blocks:
            if block.get("rope_type") == "yarn" or "truncate" in block:
                block["truncate"] = beside


def _said_beside(config: dict[str, Any], block: dict[str, Any], family: Family) -> None:
    """A base and a share in the block win over those beside it; the length trained on beside it wins."""
    if "rope_theta" in block:
        _drop(config, BASE_KEYS)
        for row in family.by_layer.values():
            _drop(config, row.get("base_keys", ()))
    if "partial_rotary_factor" in block:
        _drop(config, PARTIAL_KEYS)
    if config.get(ORIGINAL) is not None and ORIGINAL in block:
        block[ORIGINAL] = config[ORIGINAL]


def _lengths(config: dict[str, Any], model_type: str, block: dict[str, Any], seq_len: int | None) -> None:
    """Hunyuan forgets `alpha` beyond the longest sequence, Phi-3.5-MoE never reads `long_factor`."""
    length = Keys("config", config).count(LENGTH_KEYS[0])
    if seq_len is not None and length is not None and seq_len > length:
        block.pop("alpha", None)
    if model_type == "phimoe" and "short_factor" in block:
        block["long_factor"] = block["short_factor"]


def _first_of_each_type(config: dict[str, Any]) -> None:
    """Of lists of one number for each layer, the first layer of each type decides for the others."""
    types = config.get("layer_types") or []
    for key in ("rope_theta", "partial_rotary_factors"):
        values = config.get(key)
        if isinstance(values, list) and types:
            config[key] = [values[types.index(kind)] for kind in types]


def _drop(config: dict[str, Any], keys: tuple[str, ...]) -> None:
    for key in keys:
        config.pop(key, None)
