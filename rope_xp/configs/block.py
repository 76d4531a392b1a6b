"""Make a `RotaryEmbedding` from the rotary block of a config and the keys outside the block: its base and its rule."""

from collections.abc import Collection
from dataclasses import MISSING, fields, replace
from typing import Any

from rope_xp.arrays import checks
from rope_xp.configs.families.family import Family
from rope_xp.configs.families.model_types import FAMILIES
from rope_xp.configs.head_channels import head_dim_of, layout_of, rotated_channels_of, sections_of
from rope_xp.configs.keys import (
    BASE_KEYS,
    Keys,
    Spelling,
    comma_separated,
    consistent_value,
    is_about_positions,
    misspelt_first,
    owned_by,
)
from rope_xp.configs.layers import NO_LAYER, Block, LayerConfig, layers_of, nested_by, numbers_of
from rope_xp.configs.writers.limits import LENGTH_KEYS
from rope_xp.embedding import RotaryEmbedding
from rope_xp.errors import wrong_value
from rope_xp.frequencies import LENGTH, ORIGINAL, RULES, NTKScaling, Scaling
from rope_xp.frequencies.by_length import DynamicNTKScaling, LongRopeScaling, YarnScaling
from rope_xp.sections import Sections
from rope_xp.spectrum import frequencies_of_rule
from rope_xp.types import Config, Values

MULTIPLIER = "attn_factor"  # a key of YaRN's own code
# Other names of rules. DeepSeek's YaRN has other defaults.
RULE_NAMES: dict[str, type[Scaling]] = {**RULES, "deepseek_yarn": YarnScaling}
ALIASES = {"su": "longrope", "mrope": "default", "axial": "default", "xdrope": "dynamic"}
# Keys that change nothing in any family: in the block, and outside it if they are null.
IGNORED_IN_BLOCK = ("finetuned",)
IGNORED_IF_NULL = ("rope_scaling", "rope_parameters", "rotary_scaling_factor", "rotary_emb_scale_base")
# Keys outside the block, and the only values that are accepted. They change nothing.
ONLY_VALUES = {"rotary_scaling_factor": 1, "position_embedding_xdrope": False}


def blocks_of(keys: Keys, *, may_differ: bool = False) -> tuple[Config, Config]:
    """What `rope_parameters` and `rope_scaling` have. If both have something, they must be equal."""
    parameters, scaling = keys.read_mapping("rope_parameters").mapping, keys.read_mapping("rope_scaling").mapping
    if parameters and scaling and parameters != scaling and not may_differ:
        raise wrong_value(
            f"rope_parameters and rope_scaling must be equal if both are given; got {dict(parameters)!r:.200} and "
            f"{dict(scaling)!r:.200}: most classes of transformers 5 take rope_scaling"
        )
    return parameters, scaling


def block_of(keys: Keys, family: Family, layer_type: str) -> Block | None:
    """The rotary block of a layer type; None if it is null for that type."""
    parameters, scaling = blocks_of(keys)
    labels, by_type = nested_by(keys, family), family.layers.by_type
    if labels:
        return _nested_block(parameters, labels, layer_type, family.quirks.redundant_keys)
    if by_type:
        _check_label(by_type, layer_type, "layer types differ")
    if parameters and len(by_type) > 1:
        raise wrong_value(
            f"rope_parameters must be nested by layer type, {comma_separated(by_type)}; got {dict(parameters)}"
        )
    if parameters or scaling:
        return Block("rope_parameters" if parameters else "rope_scaling", parameters or scaling)
    default = family.of_type(layer_type).defaults.get("rope_parameters", {})
    return None if default is None else Block("", default, "the family's default")


def _nested_block(parameters: Config, labels: list[str], layer_type: str, redundant: tuple[str, ...]) -> Block | None:
    _check_label(labels, layer_type, "rope_parameters are nested by it")
    outer = {key: value for key, value in parameters.items() if key not in labels and key not in redundant}
    if outer:
        raise wrong_value(
            f"rope_parameters must have only blocks of layer types, {comma_separated(labels)}, or none; "
            f"got both: {outer}"
        )
    block = parameters[layer_type]
    return None if block is None else Block("rope_parameters", block, f"rope_parameters of {layer_type!r}")


def _check_label(labels: Collection[str], layer_type: str, why: str) -> None:
    if layer_type not in labels:
        raise wrong_value(
            f"layer or layer_type must be given, because {why}: {comma_separated(labels)}; "
            f"got layer_type={layer_type or None!r}"
        )


def embedding_of(config: LayerConfig) -> RotaryEmbedding | None:
    with misspelt_first(config.block):
        return _embedding_of(config if _rule_applies(config) else _without_scaling(config))


def _embedding_of(config: LayerConfig) -> RotaryEmbedding | None:
    head_dim, base, rope_type = head_dim_of(config), base_of(config), rope_type_of(config)
    rotary_dim = rotated_channels_of(config, rope_type, head_dim)
    scaling = scaling_of(config, rope_type)
    sections = sections_of(config, rotary_dim)
    _check_switches(config)
    options: Values = {
        "head_dim": head_dim,
        "layout": layout_of(config),
        "blocks": config.family.pairing.blocks,
    }
    _require_known_keys(config)
    if config.family.is_latent and not head_dim:
        return None  # a latent attention without a rotated part
    if rotary_dim < 1:
        raise wrong_value(f"the number of rotated channels must be at least 1; got {rotary_dim} of head_dim={head_dim}")
    if config.family.pairing.last_channels:
        options["first_channel"] = head_dim - rotary_dim
    options |= _frequency_arguments(config, head_dim, base, rotary_dim, rope_type, scaling, sections)
    return RotaryEmbedding(**options)


def _frequency_arguments(
    config: LayerConfig,
    head_dim: int,
    base: float,
    rotary_dim: int,
    rope_type: str,
    scaling: Scaling | None,
    sections: Sections | None,
) -> Values:
    pairing, quirks = config.family.pairing, config.family.quirks
    if quirks.inv_freq is not None and config.layer is not NO_LAYER:
        return {"inv_freq": quirks.inv_freq(config.keys, head_dim, base)}
    if rotary_dim % 2 == 0 and rope_type not in quirks.rules:
        width = rotary_dim if sections is None else 2 * sections.pairs
        return dict(base=base, rotary_dim=width, scaling=scaling, sections=sections, reverse=pairing.reverse)
    # Numbers are needed for a rule of the family, and for an odd width. An odd width is rounded up to whole pairs.
    if sections is not None or pairing.reverse or pairing.last_channels:
        raise wrong_value(f"the number of rotated channels must be even in {config.keys.name}; got {rotary_dim}")
    rule = Scaling() if scaling is None else scaling
    if scaling is not None:
        config.keys.remarks.append(
            f"The frequencies are given as numbers, which include the scaling rule: {scaling.describe()}"
        )
    inv_freq = frequencies_of_rule(rule, base, rotary_dim)
    return {"inv_freq": inv_freq, "attention_factor": rule.resolved_attention_factor}


def _rule_applies(config: LayerConfig) -> bool:
    keys, key = config.keys, config.family.layers.scaled_key
    if not key:
        return config.family.quirks.scaled or config.block.key != "rope_scaling"
    scaled_layers = keys.read_list(key)
    count = layers_of(keys)
    if keys.read(key) is None or config.layer is NO_LAYER or rope_type_of(config) == "default":
        return True
    if isinstance(config.layer, int):
        return config.layer in scaled_layers
    if not scaled_layers or (count is not None and {*range(count)} <= {*scaled_layers}):
        return bool(scaled_layers)
    raise wrong_value(f"layer must be given, because {key} has some layers only; got layer=None")


def _without_scaling(config: LayerConfig) -> LayerConfig:
    """The config of a layer to which the block does not apply. It is read once as if it did, so that it is checked."""
    others = config.keys.fresh()
    try:
        _embedding_of(replace(config, keys=others, layer=NO_LAYER))
    finally:
        config.keys.mark_all_read_by(others)
    block = config.block.mapping
    kept = {"rope_theta": block["rope_theta"]} if config.family.layers.scaled_key and "rope_theta" in block else {}
    return replace(config, block=Block("rope_parameters", kept, "no block"))


def _check_switches(config: LayerConfig) -> None:
    keys = config.keys
    for name, wanted in (("use_rotary_pos_emb", True), ("use_mrope", config.family.axes is not None)):
        stated = keys.read_flag(name)
        if stated not in (None, wanted):
            raise wrong_value(f"{name} must be {wanted} in {keys.name}; got {stated}")


def _require_known_keys(config: LayerConfig) -> None:
    keys, block, quirks = config.keys, config.block, config.family.quirks
    block.mark_as_read(*quirks.ignored_in_block, *IGNORED_IN_BLOCK)
    block.require_all_read(owners=rules_with)
    keys.mark_as_read(*quirks.ignored_keys, *(name for name in IGNORED_IF_NULL if keys.mapping.get(name) is None))
    keys.mark_as_read(*(name for name, value in ONLY_VALUES.items() if keys.mapping.get(name, value) == value))


def rules_with(key: object) -> str:
    if key in ("mrope_section", "mrope_interleaved"):
        families = [name for name, row in FAMILIES.items() if row.axes and row.axes.count == 1]
        return owned_by(key, "model_type", families)
    rules = [name for name, rule in RULE_NAMES.items() if key in {each.name for each in fields(rule)}]
    return owned_by(key, "rope_type", rules)


def base_of(config: LayerConfig) -> float:
    keys, quirks, default = config.keys, config.family.quirks, config.family.default("rope_theta")
    if not quirks.base_keys:
        return default
    inner, outer = _stated_bases(config)
    if not config.block.key:  # a default, which a stated base replaces
        base = inner if outer is None else outer
    elif inner is not None and {*quirks.redundant_keys} & {*BASE_KEYS, *quirks.base_keys}:
        base = inner  # the key outside the block may have another value
    else:
        base = consistent_value("rope_theta", inner, outer, config.block.name)
    if base is None or (not config.block.key and outer is None):
        keys.assume("frequencies", quirks.base_keys[0])
    base = default if base is None else base
    if base is None:
        raise wrong_value(f"rope_theta, the base, must be given in {keys.name}; got none")
    return checks.at_least("rope_theta", base, 1.0)


def _stated_bases(config: LayerConfig) -> tuple[Any, Any]:
    keys, quirks, listed = config.keys, config.family.quirks, config.family.layers.listed
    inner, outer = config.block.read("rope_theta"), keys.read(*quirks.base_keys)
    if quirks.base_in:
        inside = keys.read_mapping(quirks.base_in)
        outer = consistent_value("rope_theta", inside.read("rope_theta"), outer, quirks.base_in)
        inside.require_all_read(is_about_positions)
    if listed is not None and listed.bases and keys.read(listed.key):
        outer, inner = numbers_of(keys, listed, None), None
    return inner, config.number("bases", outer)


def rope_type_of(config: LayerConfig) -> str:
    block, known = config.block, {**RULE_NAMES, **ALIASES, **config.family.quirks.rules}
    names = {name: block.read(name) for name in ("rope_type", "type")}
    given = [name for name in names.values() if name is not None]
    for name in given:
        if not isinstance(name, str) or name not in known:
            like = Spelling(known, shortest=4).similar([name])
            raise wrong_value(f"rope_type must be one of {comma_separated(known)}; got {name!r}{like}")
    if not given and block.mapping.get("factor") is not None:
        raise wrong_value(
            f"{block.name} must have a rope_type in addition to factor; got {comma_separated(block.mapping)}"
        )
    types = {rule if isinstance(rule := known[name], str) else name for name in given}
    if "deepseek_yarn" in types:
        types.discard("yarn")  # older configs have `type` "yarn" in addition to it
    if len(types) > 1:
        raise wrong_value(f"rope_type and type must not contradict each other; got {names}")
    return types.pop() if types else "default"


def scaling_of(config: LayerConfig, rope_type: str) -> Scaling | None:
    rule: Any = {**RULE_NAMES, **config.family.quirks.rules}[rope_type]
    own_length = config.block.read(LENGTH)
    length = _whole(config.keys.read_first(*LENGTH_KEYS) if own_length is None else own_length)
    values = _stated_values(config, rule, length)  # also marks keys as read
    if rule is Scaling:
        return None
    if not config.block.key:
        config.keys.assume("scaling", "rope_parameters")
    if rule is DynamicNTKScaling:
        alpha = _alpha(config, values)
        if alpha is not None:
            return NTKScaling(factor=alpha)
        values[LENGTH] = length
    values = _given_parameters(config, rope_type, rule, _filled_in(config, rule, values, length))
    scaling: Any = rule(**values)
    if isinstance(scaling, YarnScaling):
        _check_multiplier(config, scaling)
    if rope_type == "deepseek_yarn":
        scaling = _deepseek_yarn(scaling)
    if isinstance(scaling, YarnScaling) and not config.family.scales_softmax:
        return without_softmax_scale(scaling)
    return scaling


def _stated_values(config: LayerConfig, rule: type[Scaling], length: object) -> Values:
    keys, block = config.keys, config.block
    names = {each.name for each in fields(rule)}
    values = {name: block.read(name) for name in names - {"seq_len", LENGTH}}
    outside = keys.read(ORIGINAL)
    if ORIGINAL in values:
        stated = _whole(consistent_value(ORIGINAL, values[ORIGINAL], outside, block.name))
        default = config.family.default(ORIGINAL)
        values[ORIGINAL] = next((each for each in (stated, default, length) if each is not None), None)
        if stated is None:
            keys.assume("scaling", ORIGINAL, "" if default is not None else f"equal to {LENGTH}")
        if stated is None and default is None:
            keys.remarks.append(
                f"the config states a scaling rule without {ORIGINAL}, and {LENGTH}, {length}, is used instead: if "
                "that is the extended length, the frequencies are wrong"
            )
    if issubclass(rule, YarnScaling) and block.mapping.get("apply_yarn_scaling") is False:
        # As `to_config("vllm")` writes it: the factor of the tables, without YaRN's own.
        factor = block.read("attention_factor", MULTIPLIER)
        block.mark_as_read("apply_yarn_scaling")
        values["attention_factor"] = 1.0 if factor is None else factor
    if "seq_len" in names:
        values["seq_len"] = config.seq_len
    return values


def _alpha(config: LayerConfig, values: Values) -> Any:
    alpha, factor = config.block.read("alpha"), values["factor"]
    if alpha is not None and "factor" not in config.family.quirks.ignored_in_block and factor not in (None, 1):
        raise wrong_value(f"alpha or factor must be given, not both; got {alpha} and {factor}")
    return alpha


def _filled_in(config: LayerConfig, rule: type[Scaling], values: Values, length: object) -> Values:
    """With values that follow from other values, and the family's defaults for a `rope_scaling`."""
    # The default of a factor is the ratio of lengths: in LongRoPE, and in YaRN if the factor is null.
    is_ratio = rule is LongRopeScaling or (issubclass(rule, YarnScaling) and "factor" in config.block.mapping)
    if is_ratio and values["factor"] is None and length is not None:
        length = checks.positive(LENGTH, length)
        ratio = length / checks.positive(ORIGINAL, values[ORIGINAL])
        # LongRoPE's is of tables alone, and never below 1.
        values = {**values, "factor": max(ratio, 1.0) if rule is LongRopeScaling else ratio}
    if config.block.key != "rope_scaling":
        return values
    defaults = config.family.quirks.scaling_defaults.items()
    assumed = {name: value for name, value in defaults if values.get(name, value) is None}
    for name in assumed:
        config.keys.assume("attention factor", name)
    return values | assumed


def _given_parameters(config: LayerConfig, rope_type: str, rule: type[Scaling], values: Values) -> Values:
    values = {name: value for name, value in values.items() if value is not None}
    missing = [each.name for each in fields(rule) if each.default is MISSING and each.name not in values]
    if missing:
        raise wrong_value(
            f"{config.block.name} of type {rope_type!r} must have {comma_separated(missing)}; "
            f"got {comma_separated(config.block.mapping)}"
        )
    return values


def _check_multiplier(config: LayerConfig, yarn: YarnScaling) -> None:
    """`attn_factor` must be 1, because its readers differ for other values."""
    # vLLM 0.8.5 and SGLang 0.5.23 (`YaRNScalingRotaryEmbedding`) multiply YaRN's attention factor by it. transformers
    # 5.18 (`_compute_yarn_parameters`) and vLLM 0.33 (`get_rope`) do not read it.
    value = config.block.read(MULTIPLIER)
    is_whole = config.block.mapping.get("apply_yarn_scaling") is False  # it is no multiplier then
    if value is None or is_whole or checks.positive(MULTIPLIER, value) == 1:
        return
    own = yarn.resolved_attention_factor
    raise wrong_value(
        f"{MULTIPLIER} must be 1, or attention_factor be given in its place, because programs differ: SGLang "
        f"and vLLM 0.8 multiply by it (attention_factor={own * value:g}), and transformers and vLLM 0.33 do not read "
        f"it (attention_factor={own:g}); got {value}"
    )


def without_softmax_scale(yarn: YarnScaling) -> YarnScaling:
    """The same tables without a softmax scale, which only models with multi-head latent attention have."""
    # Source: transformers, `yarn_apply_mscale` of `modeling_deepseek_v3.py`.
    if not yarn.mscale_all_dim:
        return yarn
    plain, factor = replace(yarn, mscale=None, mscale_all_dim=None), yarn.resolved_attention_factor
    return plain if plain.resolved_attention_factor == factor else replace(plain, attention_factor=factor)


def _deepseek_yarn(yarn: YarnScaling) -> YarnScaling:
    """YaRN of DeepSeek: by default `mscale` is 1 and `mscale_all_dim` 0. transformers needs both or neither."""
    # Sources: DeepSeek, `modeling_deepseek.py`, `DeepseekV3YarnRotaryEmbedding`; vLLM, `deepseek_scaling_rope.py`.
    if yarn.attention_factor is not None:
        return yarn
    mscale = 1.0 if yarn.mscale is None else yarn.mscale
    factor = yarn.get_mscale(mscale) / yarn.get_mscale(yarn.mscale_all_dim or 0.0)
    return yarn if factor == yarn.resolved_attention_factor else replace(yarn, attention_factor=factor)


def _whole(length: object) -> Any:
    """A length as an int, if a config has it as a float such as 4096.0."""
    return int(length) if isinstance(length, float) and length.is_integer() else length
