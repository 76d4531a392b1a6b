"""Write an embedding as keys of a config.json of MLX."""

from dataclasses import fields, replace
from math import log, sqrt
from typing import Any

from rope_xp._core.writers import Options
from rope_xp._core.writers.limits import base_and_rule, mscales, require_attention_factor, require_only, unsupported
from rope_xp._core.writers.transformers import rotated_fraction
from rope_xp.frequencies import DynamicNTKScaling, LongRopeScaling, MixedNTKScaling, ProportionalScaling, YarnScaling

TARGET = "MLX"
RULES = ("linear", "dynamic", "llama3", "yarn", "longrope", "proportional")


def mlx_keys(who: str, rope: Any, options: Options) -> dict[str, Any]:
    """`rope_theta`, `rope_traditional` and, if there is a rule, `rope_scaling`."""
    require_only(who, rope, f"in a config of {TARGET}")
    require_attention_factor(who, rope)
    base, rule = rope.base, rope.scaling
    if not isinstance(rule, DynamicNTKScaling):  # MLX computes it for each length, as the rule does
        base, rule = base_and_rule(who, rope, TARGET)
    keys: dict[str, Any] = {"rope_theta": base, "rope_traditional": rope.layout != "half", "head_dim": rope.head_dim}
    if rope.rotary_dim != rope.head_dim:
        keys["partial_rotary_factor"] = rotated_fraction(rope)
    if rope.sections is not None:
        return keys | {"rope_scaling": _of_sections(who, rope.sections, rule)}
    return keys if rule is None else keys | _of_rule(who, rope, rule)


def _of_sections(who: str, sections: Any, rule: Any) -> dict[str, Any]:
    if sections.order != "chunked" or sections.axes != 3 or rule is not None:
        raise ValueError(
            f"{who}: sections must be three in order 'chunked' and without scaling in {TARGET}; got {sections}, {rule}"
        )
    return {"type": "mrope", "mrope_section": list(sections.sizes)}


def _of_rule(who: str, rope: Any, rule: Any) -> dict[str, Any]:
    if rule.rope_type not in RULES or isinstance(rule, MixedNTKScaling):
        raise unsupported(who, rule, TARGET)
    if isinstance(rule, LongRopeScaling):
        return _of_longrope(who, rope, rule)
    if isinstance(rule, YarnScaling):
        return {"rope_scaling": _of_yarn(who, rope, rule)}
    if isinstance(rule, ProportionalScaling) and rope.rotary_dim != rope.head_dim:
        raise ValueError(f"{who}: rotary_dim must be head_dim with {rule}; got {rope.rotary_dim}")
    values = {each.name: getattr(rule, each.name) for each in fields(rule)}
    length = values.pop("max_position_embeddings", None)
    values.pop("seq_len", None)
    block = {"rope_scaling": {"type": rule.rope_type, **values}}
    return block if length is None else block | {"max_position_embeddings": length}


def _of_yarn(who: str, rope: Any, rule: YarnScaling) -> dict[str, Any]:
    """YaRN. MLX rounds the ends of the ramp, and computes the attention factor from `mscale` and `mscale_all_dim`."""
    if replace(rule, truncate=True).frequencies(rope.base, rope.rotary_dim) != rule.frequencies(
        rope.base, rope.rotary_dim
    ):
        raise ValueError(f"{who}: truncate must be True in {TARGET}; got False")
    block = {
        "type": "yarn",
        "factor": rule.factor,
        "original_max_position_embeddings": rule.original_max_position_embeddings,
        "beta_fast": rule.beta_fast,
        "beta_slow": rule.beta_slow,
    }
    return block | mscales(who, rope, rule, TARGET)


def _of_longrope(who: str, rope: Any, rule: LongRopeScaling) -> dict[str, Any]:
    """LongRoPE. MLX always uses the factors for long sequences, and never the layout "interleaved"."""
    original, factor = rule.original_max_position_embeddings, rule.factor
    if not rule.is_long:
        raise ValueError(
            f"{who}: seq_len of scaling must be greater than {original} in {TARGET}, which always uses long_factor; "
            f"got {rule.seq_len}"
        )
    if rope.layout != "half":
        raise ValueError(f"{who}: layout must be 'half' with LongRoPE in {TARGET}; got {rope.layout!r}")
    if factor is None or rope.attention_factor != sqrt(1.0 + log(factor) / log(original)):
        raise ValueError(
            f"{who}: attention_factor must be that of the factor in {TARGET}; got {rope.attention_factor} for {factor}"
        )
    block = {
        "type": "longrope",
        "short_factor": list(rule.short_factor),
        "long_factor": list(rule.long_factor),
        "original_max_position_embeddings": original,
    }
    return {"rope_scaling": block, "max_position_embeddings": round(factor * original)}
