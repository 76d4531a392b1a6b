"""Reproduce known bugs of transformers 5.18, for ``from_config(..., compat="transformers")``: edit the config first."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from rope_xp.configs.block import ALIASES, MULTIPLIER, blocks_of
from rope_xp.configs.engines import table
from rope_xp.configs.families.family import Axes, Family, LayerType, Quirks, head_dim_of_sliding_latent
from rope_xp.configs.families.indexers import INTERLEAVE_KEY as INDEXER_INTERLEAVE_KEY
from rope_xp.configs.families.model_types import FAMILIES_OF_TRANSFORMERS, NOT_IN_TRANSFORMERS
from rope_xp.configs.keys import BASE_KEYS, INTERLEAVE_KEYS, PARTIAL_KEYS, Keys, comma_separated
from rope_xp.errors import wrong_value
from rope_xp.frequencies import LENGTH, ORIGINAL
from rope_xp.types import Config, Values

# Families without a rotation in transformers, and why. HunYuan-VL rotates the two channels of a pair by angles of
# different position axes.
NO_ROTATION = {
    "hunyuan_vl_text": "its tables in transformers are no rotation",
    "xlm-roberta": "transformers does not rotate it",
    **dict.fromkeys(NOT_IN_TRANSFORMERS, "transformers does not have it"),
}

# Keys outside the block that these families do not read.
NOT_READ = {
    "bamba": ("partial_rotary_factor", "attn_rotary_emb"),
    "cohere2_moe": ("rope_scaling",),
    "dbrx": ("attn_config",),
    "fuyu": ("rope_theta", "rope_scaling"),
    "gpt_neox": ("rope_theta", "partial_rotary_factor"),
    "gpt_neox_japanese": ("rope_theta", "partial_rotary_factor"),
    "mimo_v2_flash": ("swa_rope_theta", "swa_head_dim"),
    "modernbert": ("rope_theta",),
    "modernbert-decoder": ("rope_theta",),
    "step3p5": ("use_rope_layers",),
}
# Families that rotate a fraction of the head. All others ignore `partial_rotary_factor` and rotate the whole head.
_READS_FRACTION = (
    "bamba deepseek_v4 diffusion_gemma_text dots3_note_audio_encoder dots3_note_text efficientloftr glm glm4 glm4_moe "
    "glm4_moe_lite glm4v_moe_text glm4v_text glm_image_text glm_ocr_text glmasr_encoder gpt_neox gpt_neox_japanese "
    "laguna mellum mimo_v2_flash minimax_m2 minimax_m3_vl_text moonshine moonshine_streaming musicflamingo nemotron "
    "nemotron3_5_transcribe_asr_audio neomme persimmon phi phi3 phi4_multimodal qwen3_5_moe_text qwen3_5_text "
    "qwen3_next qwen4_exp_text recurrent_gemma solar_open stablelm step3p5 zaya"
)
READS_FRACTION = frozenset(_READS_FRACTION.split())
# Families with a fraction only in their default blocks, and that of another block with the default rule. With a scaling
# rule, all rotate the whole head.
FRACTION_OF_BLOCK = {
    **dict.fromkeys(("deepseek_v4", "diffusion_gemma_text", "laguna", "mellum", "zaya"), 1.0),
    "mimo_v2_flash": 0.334,
}
# Families that take a `rope_scaling` without types of layers for the blocks of all types, and fail.
FAILS_WITH_SCALING = ("cohere_compass_text", "diffusion_gemma_text", "gemma4_text", "gemma4_unified_text", "laguna")
FAILS_WITH_SCALING += ("mellum", "mimo_v2_flash", "neomme", "zaya")
# Families with a base only in their default block. The base of a block that states none is 10,000.
BASE_IN_DEFAULT = ("higgs_audio_v2", "ministral3", "pe_audio_encoder", "pe_audio_video_encoder", "pe_video_encoder")
# Families whose default blocks have these keys.
DEFAULT_BLOCK_KEYS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("beam", "embedding_gemma2_text", "laguna", "mellum", "mimo_v2_flash", "musicflamingo", "zaya"),
        ("rope_theta", "partial_rotary_factor"),
    ),
    **dict.fromkeys(("moonshine_streaming", "neomme", "step3p5"), ("partial_rotary_factor",)),
}
# Keys outside the block that only these families read.
_GPT_NEOX = ("gpt_neox", "gpt_neox_japanese")
READ_ONLY_BY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*BASE_KEYS[1:], *PARTIAL_KEYS[1:], *INTERLEAVE_KEYS[1:], INDEXER_INTERLEAVE_KEY), ()),
    "rotary_pct": _GPT_NEOX,
    "rotary_emb_base": _GPT_NEOX,
    "rotary_embedding_base": ("seamless_m4t", "wav2vec2-bert", "wav2vec2-conformer"),
    "rotary_dim": ("codegen", "gptj", "minimax_m2"),
}
# The keys of the base outside the block that these families read in place of the usual ones.
BASE_KEYS_READ = {"neomme": (), **dict.fromkeys(READ_ONLY_BY["rotary_embedding_base"], ("rotary_embedding_base",))}
# The table follows 5.23. These rows differ in 5.18, or have the frequencies of an untrained model.
CHANGED_ROWS: dict[str, Values] = {
    "cohere_compass_text": {"axes": Axes("even_odd"), "defaults": {"mrope_section": (22, 22, 20)}},
    "mistral_large4_text": {"quirks": Quirks()},
    "step3p5_vision": {"axes": Axes("axial", 2)},
}
# Sliding layers of a config with a `rope_scaling`. Those of OLMo-3 are the same without a rotary block.
SLIDING_LAYERS = {
    "dots3_note_text": LayerType({"rope_theta": 80_000_000.0}, head_dim_of_sliding_latent),
    "olmo3": LayerType(base_keys=(), scaled=False),
}


def as_transformers(given: Config, model_type: str, family: Family, seq_len: int | None) -> tuple[Values, Family]:
    """The edited config and row, with which the reader computes what transformers computes."""
    why = NO_ROTATION.get(model_type, "" if model_type in FAMILIES_OF_TRANSFORMERS else "no such family is known")
    blocks_of(Keys("config", given), may_differ=True)  # raises an error if one is not a mapping
    config = _plain(given)
    drop(config, _not_read(config, model_type))
    given_scaling = config.get("rope_scaling") or {}
    is_flat = given_scaling and not any(isinstance(each, dict) for each in given_scaling.values())
    if model_type in FAILS_WITH_SCALING and is_flat:
        why = "transformers fails with its rope_scaling"
    if why:
        raise wrong_value(f"compat must be None for {model_type!r}, because {why}; got transformers")
    scaling = _replace_block(config, model_type, family)
    parameters = config.get("rope_parameters") or {}
    nested = [parameters[name] for name in sorted(parameters, key=str) if isinstance(parameters[name], dict)]
    if nested:
        _edit_nested(config, model_type, nested)
    block = config.get("rope_scaling") or parameters
    blocks = nested or ([block] if block else [])
    if _ignores_fraction(model_type, family):
        _drop_fraction(config, model_type, family, blocks)
    base_keys = (*BASE_KEYS, *(family.base_keys if family.layers.by_type else ()))
    for block in blocks:
        if config.get("head_dim") is None and table("transformers", "5.18").needs_head_dim(model_type, _rule(block)):
            raise wrong_value(
                f"compat must be None without head_dim, because {_rule(block)} of transformers fails; got transformers"
            )
        drop(block, (MULTIPLIER,))
        drop_replaced(config, block, base_keys)
        _edit_lengths(config, model_type, block, seq_len)
    drop(config, _replaced_by_default_block(config, model_type, family))
    read = BASE_KEYS_READ.get(model_type, family.base_keys)
    null = [key for key in read if config.get(key, "") is None]
    null += ["rope_theta" for block in blocks if block.get("rope_theta", "") is None]
    if null:
        raise wrong_value(f"compat must be None for {null[0]}=None, because transformers fails; got transformers")
    if model_type == "step3p5":
        drop(config, ("partial_rotary_factors",) if config.get("rope_parameters") else ())
        _first_of_each_type(config)
    sliding = SLIDING_LAYERS.get(model_type) if scaling or (model_type == "olmo3" and not blocks) else None
    drop(config, () if sliding is None else ("swa_rope_theta",))
    return config, _edited_row(family, model_type, bool(blocks), sliding)


def _replace_block(config: Values, model_type: str, family: Family) -> bool:
    """Let a `rope_scaling` replace the `rope_parameters`, and return whether it does. They are not merged."""
    scaling = config.get("rope_scaling") or {}
    if scaling and config.get("rope_parameters") and family.layers.by_type:
        raise wrong_value(
            "compat must be None for rope_scaling beside rope_parameters of several types of layers, which "
            "classes merge in ways that are not known here; got transformers"
        )
    if family.layers.by_type and model_type != "deepseek_v4" and scaling.keys() & {"type", "rope_type"} == {"type"}:
        scaling = config["rope_scaling"] = {}  # the default block has a rope_type already
    if scaling:
        config["rope_parameters"] = None
    return bool(scaling)


def _edited_row(family: Family, model_type: str, has_block: bool, sliding: LayerType | None) -> Family:
    """The edited row. `sliding` replaces the entry for layers with a sliding window."""
    changes: Values = {}
    if has_block and model_type in BASE_IN_DEFAULT:
        changes = {"defaults": {**family.defaults, "rope_theta": 10_000.0}}
    if sliding is not None:
        by_type = {**family.layers.by_type, "sliding_attention": sliding}
        changes["layers"] = replace(family.layers, by_type=by_type)
    changes |= CHANGED_ROWS.get(model_type, {})
    axes = changes.get("axes", family.axes)
    return replace(family, **{**changes, "axes": axes and replace(axes, clamped=True)})


def remarks_on_transformers(config: Config, block: Config, model_type: str, family: Family) -> list[str]:
    names = {*_not_read(config, model_type), *_replaced_by_default_block(config, model_type, family)}
    names = {name for name in names if config[name] is not None}
    found = []
    fraction, rule = _stated_fraction(config, block), _rule(block)
    if _ignores_fraction(model_type, family) and fraction not in (None, 1):
        if rule == "default":
            names.add(PARTIAL_KEYS[0])
        elif rule != "proportional":
            found.append(f"transformers fails with {PARTIAL_KEYS[0]} and rope_type {rule!r} in {model_type!r}")
    if (inside := family.quirks.base_in) in names:
        names = names - {inside} | {f"{inside}.{key}" for key in config[inside] if key == "rope_theta"}
    if names:
        verb = "rotate by" if inside else "read"  # DBRX reads its base, and rotates by another
        found.append(
            f"transformers does not {verb} {', '.join(map(_with_owners, sorted(names)))} in {model_type!r}. rope_xp "
            'does, except with compat="transformers"'
        )
    return found


def _with_owners(name: str) -> str:
    owners = READ_ONLY_BY.get(name)
    return f"{name} (a key of {comma_separated(owners)})" if owners else name


def _not_read(config: Config, model_type: str) -> tuple[str, ...]:
    if model_type not in FAMILIES_OF_TRANSFORMERS:
        return ()
    others = (name for name, families in READ_ONLY_BY.items() if model_type not in families)
    return tuple(name for name in (*NOT_READ.get(model_type, ()), *others) if name in config)


def _replaced_by_default_block(config: Config, model_type: str, family: Family) -> tuple[str, ...]:
    """Top-level keys that the default block of a family replaces, if the config has no block."""
    if config.get("rope_parameters") or config.get("rope_scaling"):
        return ()
    own = {*DEFAULT_BLOCK_KEYS.get(model_type, ())}.union(*_default_blocks(family))
    own -= {PARTIAL_KEYS[0]} if model_type == "diffusion_gemma_text" else set()  # sliding layers have the one outside
    names = [name for keys in (BASE_KEYS, PARTIAL_KEYS) if keys[0] in own for name in keys]
    return tuple(name for name in names if name in config)


def _default_blocks(family: Family) -> list[Values]:
    return [row.defaults.get("rope_parameters") or {} for row in (family, *family.layers.by_type.values())]


def _ignores_fraction(model_type: str, family: Family) -> bool:
    return (
        model_type in FAMILIES_OF_TRANSFORMERS
        and model_type not in READS_FRACTION
        and family.quirks.only_fraction is None
    )


def _rule(block: Config) -> object:
    name = block.get("rope_type") or block.get("type") or "default"
    return ALIASES.get(name, name) if isinstance(name, str) else name


def _stated_fraction(config: Config, block: Config) -> object:
    fraction = block.get(PARTIAL_KEYS[0])
    return config.get(PARTIAL_KEYS[0]) if fraction is None else fraction


def _drop_fraction(config: Values, model_type: str, family: Family, blocks: list[Values]) -> None:
    """Remove the fraction, which the default rule does not read. With most other rules the model would fail."""
    for block in blocks or _default_blocks(family):
        rule, fraction = _rule(block), _stated_fraction(config, block)
        if rule not in ("default", "proportional") and fraction not in (None, 1):
            raise wrong_value(
                f"compat must be None for {PARTIAL_KEYS[0]}={fraction} and rope_type {rule!r} in "
                f"{model_type!r}, because transformers fails; got transformers"
            )
    for block in blocks:
        if _rule(block) == "default":
            drop(block, PARTIAL_KEYS)
    drop(config, PARTIAL_KEYS)


def _edit_nested(config: Values, model_type: str, blocks: list[Values]) -> None:
    """transformers reads `truncate` next to nested blocks, and not within them. A fraction is not always for them."""
    truncate = config["rope_parameters"].pop("truncate", True)
    for block in blocks:
        if block.get("rope_type") == "yarn" or "truncate" in block:
            block["truncate"] = truncate
    if model_type not in FRACTION_OF_BLOCK:
        return
    # The fraction of the config class is read for the first scaling rule, and is left in the blocks after that.
    fraction, of_class = None, config.get(PARTIAL_KEYS[0])
    if model_type == "deepseek_v4":  # it has `main` first, and reads a stated fraction for all blocks
        blocks, fraction = blocks[::-1], of_class
        keys = Keys("config", config)
        width, head_dim = keys.read_count("qk_rope_head_dim"), keys.read_count("head_dim") or 512
        of_class = (64 / 512 if width is None else width / head_dim) if of_class is None else of_class
        if all(PARTIAL_KEYS[0] not in block for block in blocks):  # else, it is an error if they contradict each other
            drop(config, ("qk_rope_head_dim",))
    for block in blocks:
        is_default = _rule(block) == "default"
        fraction = fraction if is_default else of_class
        own = FRACTION_OF_BLOCK[model_type] if is_default else 1.0
        block.setdefault(PARTIAL_KEYS[0], own if fraction is None else fraction)


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def drop_replaced(config: Values, block: Config, base_keys: Iterable[str]) -> None:
    """Base and fraction in the block replace those outside."""
    for key, names in ((BASE_KEYS[0], base_keys), (PARTIAL_KEYS[0], PARTIAL_KEYS)):
        if key in block:
            drop(config, names)


def _edit_lengths(config: Values, model_type: str, block: Values, seq_len: int | None) -> None:
    # The original length outside replaces that in the block. Hunyuan ignores `alpha` beyond the longest sequence.
    # Phi-3.5-MoE never reads `long_factor`.
    if config.get(ORIGINAL) is not None and ORIGINAL in block:
        block[ORIGINAL] = config[ORIGINAL]
    length = Keys("config", config).read_count(LENGTH)
    if seq_len is not None and length is not None and seq_len > length:
        block.pop("alpha", None)
    if model_type == "phimoe" and "short_factor" in block:
        block["long_factor"] = block["short_factor"]


def _first_of_each_type(config: Values) -> None:
    """In lists of one number for each layer, all layers of a type get the number of the first one."""
    types = Keys("config", config).read_list("layer_types")
    firsts = [types.index(kind) for kind in types]
    for key in ("rope_theta", "partial_rotary_factors"):
        values = config.get(key)
        if isinstance(values, list) and types:
            if max(firsts) >= len(values):
                raise wrong_value(f"{key} must have a number for each layer; got {len(values)}")
            config[key] = [values[index] for index in firsts]


def drop(config: Values, keys: Iterable[str]) -> None:
    for key in keys:
        config.pop(key, None)
