"""Read the scaling rule and the base of a rotary block."""

from dataclasses import MISSING, fields, replace
from typing import Any

from rope_xp.arrays import checks
from rope_xp.configs.keys import (
    BASE_KEYS,
    LENGTH_KEYS,
    ORIGINAL,
    Spelling,
    comma_separated,
    consistent_value,
    is_about_positions,
)
from rope_xp.configs.layers import LayerConfig, numbers_of
from rope_xp.errors import wrong_value
from rope_xp.frequencies import RULES, DynamicNTKScaling, LongRopeScaling, NTKScaling, Scaling, YarnScaling
from rope_xp.types import Values

MULTIPLIER = "attn_factor"
# Other names of rules. DeepSeek's YaRN has other defaults.
NAMES: dict[str, type[Scaling]] = {**RULES, "deepseek_yarn": YarnScaling}
ALIASES = {"su": "longrope", "mrope": "default", "axial": "default", "xdrope": "dynamic"}


def base_of(config: LayerConfig) -> float:
    """The base of the frequencies."""
    keys, quirks, default = config.keys, config.family.quirks, config.family.default("rope_theta")
    if not quirks.base_keys:
        return default
    inner, outer = _stated_bases(config)
    if config.block_is_default:
        base = inner if outer is None else outer
    elif inner is not None and {*quirks.redundant_keys} & {*BASE_KEYS, *quirks.base_keys}:
        base = inner
    else:
        base = consistent_value("rope_theta", inner, outer, config.block.name)
    if base is None or (config.block_is_default and outer is None):
        keys.assume("frequencies", quirks.base_keys[0])
    base = default if base is None else base
    if base is None:
        raise wrong_value(f"rope_theta, the base, must be given in {keys.name}; got none")
    return checks.at_least("rope_theta", base, 1.0)


def _stated_bases(config: LayerConfig) -> tuple[Any, Any]:
    """The base that the rotary block states, and the base outside the block. Each may be None."""
    keys, quirks, listed = config.keys, config.family.quirks, config.family.layers.listed
    inner, outer = config.block.get("rope_theta"), keys.get(*quirks.base_keys)
    if quirks.base_in:
        inside = keys.nested(quirks.base_in)
        outer = consistent_value("rope_theta", inside.get("rope_theta"), outer, quirks.base_in)
        inside.require_all_read(is_about_positions)
    if listed is not None and listed.bases and keys.get(listed.key):
        outer, inner = numbers_of(keys, listed, None), None
    return inner, config.number("bases", outer)


def rope_type_of(config: LayerConfig) -> str:
    """The name of a block's rule."""
    block, known = config.block, {**NAMES, **ALIASES, **config.family.quirks.rules}
    names = {name: block.get(name) for name in ("rope_type", "type")}
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
    """The scaling rule, or None."""
    rule: Any = {**NAMES, **config.family.quirks.rules}[rope_type]
    own_length = config.block.get(LENGTH_KEYS[0])
    length = _whole(config.keys.first(*LENGTH_KEYS) if own_length is None else own_length)
    values = _stated_values(config, rule, length)
    if rule is Scaling:
        return None
    if config.block_is_default:
        config.keys.assume("scaling", "rope_parameters")
    if rule is DynamicNTKScaling:
        alpha = _alpha(config, values)
        if alpha is not None:
            return NTKScaling(factor=alpha)
        values[LENGTH_KEYS[0]] = length
    _fill_in(config, rule, values, length)
    values = _require_all_parameters(config, rope_type, rule, values)
    scaling: Any = rule(**values)
    if isinstance(scaling, YarnScaling):
        _check_multiplier(config, scaling)
    if rope_type == "deepseek_yarn":
        scaling = _deepseek_yarn(scaling)
    if isinstance(scaling, YarnScaling) and not (config.family.is_latent and config.family.quirks.scales_softmax):
        return without_softmax_scale(scaling)
    return scaling


def _stated_values(config: LayerConfig, rule: type[Scaling], length: object) -> Values:
    """The values that the config states for the parameters of a rule; None for the other parameters."""
    keys, block = config.keys, config.block
    names = {each.name for each in fields(rule)}
    values = {name: block.get(name) for name in names - {"seq_len", LENGTH_KEYS[0]}}
    outside = keys.get(ORIGINAL)
    if ORIGINAL in values:
        stated = _whole(consistent_value(ORIGINAL, values[ORIGINAL], outside, block.name))
        default = config.family.default(ORIGINAL)
        values[ORIGINAL] = next((each for each in (stated, default, length) if each is not None), None)
        if stated is None:
            keys.assume("scaling", ORIGINAL, "" if default is not None else f"equal to {LENGTH_KEYS[0]}")
    if issubclass(rule, YarnScaling) and block.mapping.get("apply_yarn_scaling") is False:
        # As `to_config("vllm")` writes it: the factor of the tables, without YaRN's own.
        whole = block.get(MULTIPLIER)
        block.ignore("apply_yarn_scaling")
        values["attention_factor"] = consistent_value("attention_factor", values["attention_factor"], whole, block.name)
    if "seq_len" in names:
        values["seq_len"] = config.seq_len
    return values


def _alpha(config: LayerConfig, values: Values) -> Any:
    """The parameter `alpha` that Hunyuan's dynamic rule has in place of a factor, or None."""
    alpha, factor = config.block.get("alpha"), values["factor"]
    if alpha is not None and "factor" not in config.family.quirks.ignored_in_block and factor not in (None, 1):
        raise wrong_value(f"alpha or factor must be given, not both; got {alpha} and {factor}")
    return alpha


def _fill_in(config: LayerConfig, rule: type[Scaling], values: Values, length: object) -> None:
    """Add values that follow from other values, and the family's defaults for a `rope_scaling`."""
    # The default of a factor is the ratio of lengths: in LongRoPE, and in YaRN if the factor is null.
    ratio = rule is LongRopeScaling or (issubclass(rule, YarnScaling) and "factor" in config.block.mapping)
    if ratio and values["factor"] is None and length is not None and values[ORIGINAL] is not None:
        length = checks.positive(LENGTH_KEYS[0], length)
        values["factor"] = length / checks.positive(ORIGINAL, values[ORIGINAL])
    if config.block.name == "rope_scaling":
        for name, value in config.family.quirks.scaling_defaults.items():
            if name in values and values[name] is None:
                values[name] = value
                config.keys.assume("attention factor", name)


def _require_all_parameters(config: LayerConfig, rope_type: str, rule: type[Scaling], values: Values) -> Values:
    """The values that are not None. Parameters without a default must be among them."""
    values = {name: value for name, value in values.items() if value is not None}
    missing = [each.name for each in fields(rule) if each.default is MISSING and each.name not in values]
    if missing:
        raise wrong_value(
            f"{config.block.name} of type {rope_type!r} must have {comma_separated(missing)}; "
            f"got {comma_separated(config.block.mapping)}"
        )
    return values


def _check_multiplier(config: LayerConfig, yarn: YarnScaling) -> None:
    """`attn_factor`, a key of YaRN's own code, must be 1, because its readers differ for other values.

    References
    ----------
    A multiplier of YaRN's attention factor: vLLM 0.8.5 and SGLang 0.5.23, `YaRNScalingRotaryEmbedding`. Not read:
    transformers 5.18, `_compute_yarn_parameters`; vLLM 0.33, `get_rope`.
    """
    value = config.block.get(MULTIPLIER)
    if config.block.mapping.get("apply_yarn_scaling") is False:
        return  # it is the whole factor
    if value is None or checks.positive(MULTIPLIER, value) == 1:
        return
    own = yarn.resolved_attention_factor
    raise wrong_value(
        f"{MULTIPLIER} must be 1, or attention_factor be given in its place, because programs differ: SGLang "
        f"and vLLM 0.8 multiply by it (attention_factor={own * value:g}), and transformers and vLLM 0.33 do not read "
        f"it (attention_factor={own:g}); got {value}"
    )


def without_softmax_scale(yarn: YarnScaling) -> YarnScaling:
    """The same tables without a softmax scale, which only multi-head latent attention has.

    References
    ----------
    transformers, `yarn_apply_mscale` of `modeling_deepseek_v3.py`. Only models with latent attention have it.
    """
    if yarn.softmax_scale == 1.0:
        return yarn
    return replace(yarn, attention_factor=yarn.resolved_attention_factor, mscale=None, mscale_all_dim=None)


def _deepseek_yarn(yarn: YarnScaling) -> YarnScaling:
    """YaRN of DeepSeek: the defaults are 1 for `mscale` and 0 for `mscale_all_dim`. transformers needs both or neither.

    References
    ----------
    DeepSeek, `modeling_deepseek.py`, `DeepseekV3YarnRotaryEmbedding`; vLLM, `deepseek_scaling_rope.py`.
    """
    if yarn.attention_factor is not None:
        return yarn
    mscale = 1.0 if yarn.mscale is None else yarn.mscale
    factor = yarn.get_mscale(mscale) / yarn.get_mscale(yarn.mscale_all_dim or 0.0)
    return yarn if factor == yarn.resolved_attention_factor else replace(yarn, attention_factor=factor)


def _whole(length: object) -> Any:
    """A length as an int, if a config has it as a float such as 4096.0."""
    return int(length) if isinstance(length, float) and length.is_integer() else length
