"""Write an embedding for LM Studio: the settings with which it loads a GGUF file into llama.cpp."""

from rope_xp.configs.writers import Options
from rope_xp.configs.writers.limits import base_and_rule, require_attention_factor, require_only
from rope_xp.errors import wrong_value
from rope_xp.frequencies import LinearScaling
from rope_xp.types import Embedding, Values

TARGET = "LM Studio"


def lmstudio_keys(rope: Embedding, options: Options) -> Values:
    """The keys of a load config. The file has all else: the layout, the rotated channels, factors of frequencies."""
    require_only(rope, f"in {TARGET}")
    base, rule = base_and_rule(rope, TARGET)
    if rule is not None and not isinstance(rule, LinearScaling):
        raise wrong_value(
            f"scaling must be linear in {TARGET}; got {rule.describe()}: write it into the GGUF file, see "
            'to_config("gguf")'
        )
    if rope.sections is not None or rope.softmax_scale != 1.0:
        name = "sections" if rope.sections is not None else "softmax_scale"
        raise wrong_value(f"{name} must be in the GGUF file for {TARGET}; got {getattr(rope, name)}")
    require_attention_factor(rope)
    scale = {} if rule is None else {"ropeFrequencyScale": 1.0 / rule.factor}
    return {"ropeFrequencyBase": base, **scale}


def with_length(settings: Values, length: int) -> Values:
    return {**settings, "contextLength": length}
