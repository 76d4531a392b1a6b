"""Write an embedding as arguments of Megatron-LM."""

from rope_xp.configs.writers import Options, limits
from rope_xp.configs.writers.transformers import rotated_fraction
from rope_xp.errors import wrong_value
from rope_xp.frequencies import ORIGINAL, LinearScaling, Llama3Scaling, Scaling, YarnScaling
from rope_xp.types import Config, Embedding, Values

TARGET = "Megatron-LM"


def megatron_arguments(rope: Embedding, options: Options) -> Values:
    limits.require_only(rope, TARGET)
    # Only latent attention writes to the two halves, and only it has a softmax scale.
    is_latent = rope.layout == "interleaved_to_half" or (rope.layout == "interleaved" and rope.softmax_scale != 1.0)
    base, rule = limits.base_and_rule(rope, TARGET)
    arguments: Values = {
        "position_embedding_type": "rope",
        "rotary_base": _whole("base", base),
        "kv_channels": rope.head_dim,
        "rotary_interleaved": rope.layout == "interleaved",
    }
    if rope.rotary_dim != rope.head_dim:
        arguments["rotary_percent"] = rotated_fraction(rope)
    if rope.sections is not None:
        return arguments | _of_sections(rope, rule)
    if is_latent:
        return _latent(rope, rule, arguments)
    limits.require_plain_softmax(rope, TARGET)
    if isinstance(rule, YarnScaling):
        return arguments | _of_yarn(rope, rule)
    limits.require_attention_factor(rope)
    return arguments | _of_rule(rule)


def _whole(name: str, number: float) -> int:
    if not float(number).is_integer():  # which is all that the command line accepts
        raise wrong_value(f"{name} must be a whole number in {TARGET}; got {number}")
    return int(number)


def _of_rule(rule: Scaling | None) -> Values:
    if rule is None:
        return {}
    if isinstance(rule, LinearScaling):
        return {"rotary_seq_len_interpolation_factor": _whole("factor", rule.factor)}
    if not isinstance(rule, Llama3Scaling):
        raise limits.unsupported(rule, TARGET)
    constants = rule.low_freq_factor, rule.high_freq_factor, rule.original_max_position_embeddings
    if constants != (1.0, 4.0, 8192):
        raise wrong_value(
            f"low_freq_factor, high_freq_factor and {ORIGINAL} must be (1.0, 4.0, 8192) in {TARGET}; got {constants}"
        )
    return {"use_rope_scaling": True, "rope_scaling_factor": rule.factor}


def _of_sections(rope: Embedding, rule: Scaling | None) -> Values:
    if rope.sections.order != "chunked" or rope.sections.axes != 3 or rope.layout != "half":
        raise wrong_value(
            f"sections must be three in order 'chunked', and layout 'half', in {TARGET}; "
            f"got {rope.sections} and {rope.layout!r}"
        )
    if rule is not None and not isinstance(rule, LinearScaling):
        raise limits.unsupported(rule, f"{TARGET} with sections")
    limits.require_attention_factor(rope)
    return {"position_embedding_type": "mrope", "mrope_section": list(rope.sections.sizes), **_of_rule(rule)}


def _of_yarn(rope: Embedding, rule: YarnScaling) -> Values:
    if rope.layout != "half" or rope.rotary_dim != rope.head_dim:
        raise wrong_value(
            f"layout must be 'half' and rotary_dim head_dim={rope.head_dim} with YaRN in {TARGET}; "
            f"got {rope.layout!r} and {rope.rotary_dim}"
        )
    # Megatron-core has no default for any of these.
    values = _parameters_of_yarn(rope, rule, {"mscale": 1.0, "mscale_all_dim": 0.0})
    return {
        "position_embedding_type": "yarn",
        **{f"yarn_{name}": value for name, value in values.items()},
        "yarn_correction_range_round_to_int": rule.truncate,
    }


def _parameters_of_yarn(rope: Embedding, rule: YarnScaling, usual: Config) -> Values:
    own = limits.parameters(rule, ORIGINAL, "beta_fast", "beta_slow")
    return {"rotary_scaling_factor": rule.factor, **own, **usual, **limits.mscales(rope, rule, TARGET)}


def _latent(rope: Embedding, rule: Scaling | None, arguments: Values) -> Values:
    arguments |= {"multi_latent_attention": True, "rotary_interleaved": False}
    arguments["qk_pos_emb_head_dim"] = arguments.pop("kv_channels")
    if rule is None:
        limits.require_attention_factor(rope)
        return arguments | {"rope_type": "rope"}
    if not isinstance(rule, YarnScaling) or rope.rotary_dim != rope.head_dim:
        raise limits.unsupported(rule, f"{TARGET} with latent attention")
    limits.require_truncated(rule, f"{TARGET} with latent attention")
    return arguments | {"rope_type": "yarn", **_parameters_of_yarn(rope, rule, {})}
