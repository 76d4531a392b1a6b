"""Write an embedding as metadata of a GGUF file, and as arguments of llama.cpp.

llama.cpp multiplies the tables of YaRN by ``1 + 0.1 ln(factor)`` and by `rope.scaling.attn_factor`. DeepSeek's models
have a `rope.scaling.yarn_log_multiplier`, which cancels the first number.
"""

from dataclasses import replace
from math import isclose
from typing import Any

from rope_xp._core.writers import Options
from rope_xp._core.writers import gguf_architectures as gguf
from rope_xp._core.writers.limits import base_and_rule, require_only, require_pairing
from rope_xp.frequencies import LinearScaling, Llama3Scaling, LongRopeScaling, YarnScaling, geometric

TARGET = "llama.cpp"
ORIGINAL = "rope.scaling.original_context_length"
# Metadata for which llama.cpp has an argument.
FLAGS = {
    "rope.freq_base": "--rope-freq-base",
    "rope.scaling.type": "--rope-scaling",
    "rope.scaling.factor": "--rope-scale",
    ORIGINAL: "--yarn-orig-ctx",
    "rope.scaling.yarn_beta_fast": "--yarn-beta-fast",
    "rope.scaling.yarn_beta_slow": "--yarn-beta-slow",
}


def gguf_metadata(who: str, rope: Any, options: Options) -> dict[str, Any]:
    """Metadata by the names of gguf-py, and the values of tensors that divide frequencies."""
    name = _architecture(who, rope, options.architecture)
    if name is None:
        raise ValueError(
            f"{who}: architecture must be given, the general.architecture of the file; got None and an embedding whose "
            "config does not tell it"
        )
    widths = _widths(who, rope, name)
    sections = _sections(who, rope, name)
    values = {**widths, **sections, **_frequencies(who, rope, name)}
    keys = {value if value.endswith(".weight") else f"{name}.{value}": number for value, number in values.items()}
    return {"general.architecture": name, **keys}


def llama_cpp_flags(who: str, rope: Any, options: Options) -> list[str]:
    """Arguments for a file that has the widths, the sections and the layout, and no tensors of factors."""
    name = _architecture(who, rope, options.architecture)
    if name is None:
        _require_order(who, rope.sections)
    else:
        _sections(who, rope, name)
    values = _frequencies(who, rope, name)
    tensors = [value for value in values if value.endswith(".weight")]
    if tensors:
        raise ValueError(
            f"{who}: scaling must be linear or YaRN in arguments of {TARGET}; got {rope.scaling.describe()}: its "
            f"factors belong in the GGUF file, {' and '.join(tensors)}{_way_out(rope.scaling)}"
        )
    flags = [word for value, flag in FLAGS.items() if value in values for word in (flag, _text(values[value]))]
    for value in (value for value in values if value not in FLAGS):
        if name is None:
            raise ValueError(
                f"{who}: architecture must be given to set {value}, for which {TARGET} has no argument; got None"
            )
        flags += ["--override-kv", f"{name}.{value}=float:{_text(values[value])}"]
    return flags


def with_length(flags: list[str], length: int) -> list[str]:
    """The same arguments, with which llama.cpp accepts sequences of this length."""
    return [*flags, "-c", str(length)]


def _way_out(rule: Any) -> str:
    """Who writes the factors of a rule into a file."""
    if isinstance(rule, (Llama3Scaling, LongRopeScaling)):
        return f", where {TARGET}'s converter writes them if config.json has this scaling: then give no argument for it"
    return ' (see to_config("gguf"))'


def _text(value: Any) -> str:
    """A number as llama.cpp parses it."""
    return value if isinstance(value, str) else repr(value).removesuffix(".0")


def _architecture(who: str, rope: Any, given: Any) -> str | None:
    """The architecture that the caller names, or that of the config's family; None if it is unknown."""
    if given is None:
        return gguf.ARCHITECTURE_OF.get(rope._provenance.model_type)
    metadata = {"general.architecture": given}
    if gguf.gguf_layout(metadata) is None:
        raise ValueError(f"{who}: architecture must be one that {TARGET} rotates; got {given!r}")
    own = gguf.LAYERS.get(given)
    if given in gguf.UNKNOWN_LAYERS or (own is not None and own.sliding_base is not None):
        raise ValueError(f"{who}: architecture must have the same frequencies in all layers; got {given!r}")
    return given


def _widths(who: str, rope: Any, name: str) -> dict[str, Any]:
    """The width of a head and of its rotated part, which must be what the architecture can have."""
    require_only(who, rope, "in a GGUF file")
    metadata = {"general.architecture": name}
    if rope.sections is not None:
        metadata[f"{name}.rope.dimension_sections"] = rope.sections.sizes
    layout, call = gguf.gguf_layout(metadata), f'to_config("gguf", architecture={name!r})'
    require_pairing(who, rope, layout or "", f"GGUF files of {name!r}", call)
    if name in gguf.LATENT:
        if rope.rotary_dim != rope.head_dim:
            raise ValueError(
                f"{who}: head_dim must be that of the rotated part, {rope.rotary_dim}, in GGUF files of {name!r}; "
                f"got {rope.head_dim}"
            )
        return {"rope.dimension_count": rope.rotary_dim}
    if name in gguf.WHOLE_HEAD and rope.rotary_dim != rope.head_dim:
        raise ValueError(
            f"{who}: rotary_dim must be head_dim={rope.head_dim} in GGUF files of {name!r}; got {rope.rotary_dim}"
        )
    return {"attention.key_length": rope.head_dim, "rope.dimension_count": rope.rotary_dim}


def _sections(who: str, rope: Any, name: str) -> dict[str, Any]:
    """The pairs of four position axes."""
    sections, order = rope.sections, None
    if sections is not None:
        order = gguf.order_of({"general.architecture": name, f"{name}.rope.dimension_sections": sections.sizes})
    elif name not in gguf.AXES:
        return {}
    found = None if sections is None else sections.order
    if order != found or sections is None or sections.axes > 4 or sections.axis_of_section is not None:
        wanted = f"in order {gguf.AXES[name]!r}" if name in gguf.AXES else "None"
        raise ValueError(f"{who}: sections must be {wanted} in GGUF files of {name!r}; got {sections}")
    _require_order(who, sections)
    return {"rope.dimension_sections": [*sections.sizes, 0, 0, 0, 0][:4]}


def _require_order(who: str, sections: Any) -> None:
    """The order of sections must be one of llama.cpp's."""
    if sections is None or sections.order == "chunked":
        return
    if sections.order != "interleaved":
        raise ValueError(f"{who}: sections must be in an order that {TARGET} has; got {sections}")
    missed = gguf.pairs_without_axis(sections.sizes)
    if missed:
        raise ValueError(
            f"{who}: sections must give each pair j to axis j % 3 in {TARGET}, which rotates other pairs by a fourth "
            f"position; got {sections.sizes}, in which pairs {missed} follow axis 0"
        )


def _frequencies(who: str, rope: Any, name: str | None) -> dict[str, Any]:
    """The base and the scaling rule. Rules that llama.cpp does not have become a divisor of each frequency."""
    require_only(who, rope, f"in {TARGET}", "first_channel", "blocks")
    base, rule = base_and_rule(who, rope, TARGET)
    keys: dict[str, Any] = {"rope.freq_base": base}
    if isinstance(rule, YarnScaling):
        return keys | _of_yarn(who, rope, rule, name)
    if isinstance(rule, LongRopeScaling):
        return keys | _of_longrope(who, rope, rule, name)
    if rope.attention_factor != 1.0:
        raise ValueError(
            f"{who}: attention_factor must be 1 without YaRN or LongRoPE in {TARGET}; got {rope.attention_factor}"
        )
    if rule is None:
        return keys | {"rope.scaling.type": "none"}
    if isinstance(rule, LinearScaling):
        return keys | {"rope.scaling.type": "linear", "rope.scaling.factor": rule.factor}
    _require_tensor(who, rule, name, gguf.FREQS, gguf.MAY_HAVE_FREQS)
    pairs = zip(geometric(base, rope.rotary_dim), rule.frequencies(base, rope.rotary_dim))
    factors = [unscaled / scaled if scaled else gguf.UNROTATED for unscaled, scaled in pairs]
    return keys | {"rope.scaling.type": "none", gguf.FREQS: factors}


def _require_tensor(who: str, rule: Any, name: str | None, tensor: str, names: Any) -> None:
    """Files of the architecture must be able to have the tensor."""
    if name is not None and name not in names:
        raise ValueError(
            f"{who}: architecture must be one whose files may have {tensor}, which {type(rule).__name__} needs; "
            f"got {name!r}"
        )


def _of_longrope(who: str, rope: Any, rule: LongRopeScaling, name: str | None) -> dict[str, Any]:
    """LongRoPE. llama.cpp uses the long factors if the context is longer than the original one."""
    _require_tensor(who, rule, name, gguf.LONG, gguf.MAY_HAVE_LONG)
    if rule.short_mscale != rule.long_mscale and rule.attention_factor is None:
        raise ValueError(
            f"{who}: short_mscale and long_mscale must be equal in {TARGET}; "
            f"got {rule.short_mscale} and {rule.long_mscale}"
        )
    return {
        "rope.scaling.type": "longrope",
        ORIGINAL: rule.original_max_position_embeddings,
        "rope.scaling.attn_factor": rope.attention_factor,
        gguf.LONG: list(rule.long_factor),
        gguf.SHORT: list(rule.short_factor),
    }


def _of_yarn(who: str, rope: Any, rule: YarnScaling, name: str | None) -> dict[str, Any]:
    """YaRN, whose ends of the ramp llama.cpp always rounds."""
    rounded = replace(rule, truncate=True).frequencies(rope.base, rope.rotary_dim)
    if rounded != rule.frequencies(rope.base, rope.rotary_dim):
        raise ValueError(f"{who}: truncate must be True in {TARGET}; got False")
    keys: dict[str, Any] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": rule.factor,
        ORIGINAL: rule.original_max_position_embeddings,
    }
    if (rule.beta_fast, rule.beta_slow) != (32.0, 1.0):
        keys |= {"rope.scaling.yarn_beta_fast": rule.beta_fast, "rope.scaling.yarn_beta_slow": rule.beta_slow}
    if name in gguf.SCALES_SOFTMAX or (name is None and rope.softmax_scale != 1.0):
        return keys | _latent_scale(who, rope, rule, name)
    if rope.softmax_scale != 1.0:
        raise ValueError(
            f"{who}: softmax_scale must be 1 in {TARGET} for architecture {name!r}; got {rope.softmax_scale}"
        )
    factor = rope.attention_factor / rule.get_mscale(1.0)
    return keys if isclose(factor, 1.0, rel_tol=1e-12) else keys | {"rope.scaling.attn_factor": factor}


def _latent_scale(who: str, rope: Any, rule: YarnScaling, name: str | None) -> dict[str, Any]:
    """The multiplier of DeepSeek. From it, llama.cpp computes the attention factor and the softmax scale."""
    multiplier = rule.mscale_all_dim or 0.0
    mscale = 1.0 if name == "mistral4" else multiplier
    computed = rule.get_mscale(mscale) / rule.get_mscale(multiplier)
    if not multiplier or not isclose(rope.attention_factor, computed, rel_tol=1e-12):
        raise ValueError(
            f"{who}: mscale_all_dim must be given, and attention_factor be {computed}, in {TARGET} for architecture "
            f"{name!r}; got {rule.mscale_all_dim} and {rope.attention_factor}"
        )
    return {"rope.scaling.yarn_log_multiplier": multiplier * gguf.LOG_MULTIPLIERS["deepseek2"]}
