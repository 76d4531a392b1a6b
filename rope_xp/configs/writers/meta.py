"""Write an embedding as keys of the params.json of Meta's checkpoints."""

from rope_xp.configs.writers import Options
from rope_xp.configs.writers.limits import base_and_rule, require_whole_head, unsupported
from rope_xp.errors import wrong_value
from rope_xp.frequencies import Llama3Scaling
from rope_xp.types import Embedding, Values


def meta_keys(rope: Embedding, options: Options) -> Values:
    """`rope_theta` and `use_scaled_rope`. Only Llama 4's program reads another factor than 8."""
    target = "Meta's params.json"
    require_whole_head(rope, "interleaved", target, 'to_config("meta")')
    base, rule = base_and_rule(rope, target)
    keys: Values = {"rope_theta": base, "use_scaled_rope": rule is not None}
    if rule is None:
        return keys
    if not isinstance(rule, Llama3Scaling):
        raise unsupported(rule, target)
    constants = rule.low_freq_factor, rule.original_max_position_embeddings
    if constants != (1.0, 8192):
        raise wrong_value(
            f"low_freq_factor and original_max_position_embeddings must be 1 and 8192 in {target}; "
            f"got {constants[0]} and {constants[1]}"
        )
    of_llama4 = {"rope_high_freq_factor", "nope_layer_interval"} & {*rope._provenance.stated}
    if of_llama4 or rope._provenance.model_type == "llama4_text":  # whose program has other defaults
        return {**keys, "rope_scaling_factor": rule.factor, "rope_high_freq_factor": rule.high_freq_factor}
    if (rule.factor, rule.high_freq_factor) != (8.0, 4.0):
        raise wrong_value(
            f"factor and high_freq_factor must be 8 and 4 in {target}, unless a config names Llama 4, whose program "
            f"alone reads others; got {rule.factor} and {rule.high_freq_factor}"
        )
    return keys
