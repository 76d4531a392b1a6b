"""Write an embedding as arguments of vLLM."""

import json
from math import ceil
from typing import Any

from rope_xp._core.writers import Options
from rope_xp._core.writers.transformers import rope_parameters
from rope_xp.frequencies import DynamicNTKScaling, LongRopeScaling, MixedNTKScaling, YarnScaling

# Rules whose `max_position_embeddings` is the length with scaling. vLLM multiplies that of others by `factor`.
SCALED_LENGTH = ("llama3", "longrope", "yarn")


def vllm_flags(who: str, rope: Any, options: Options) -> list[str]:
    """`--hf-overrides` with the `rope_parameters` of the config."""
    return ["--hf-overrides", json.dumps({"rope_parameters": _block(who, rope)})]


def with_length(flags: list[str], length: int) -> list[str]:
    """The same arguments, with which vLLM accepts sequences of this length.

    No frequency follows from `max_position_embeddings` in vLLM. The attention factor of LongRoPE does: its logarithm
    needs the length with scaling.
    """
    keys = json.loads(flags[1])
    block = keys["rope_parameters"]
    factor = 1.0 if block["rope_type"] in SCALED_LENGTH else block.get("factor", 1.0)
    keys["max_position_embeddings"] = ceil(length / factor)
    return ["--max-model-len", str(length), flags[0], json.dumps(keys)]


def _block(who: str, rope: Any) -> dict[str, Any]:
    rule = rope.scaling
    if isinstance(rule, DynamicNTKScaling) and rule.seq_len != rule.factor * rule.max_position_embeddings:
        raise ValueError(
            f"{who}: seq_len of scaling must be factor * max_position_embeddings in vLLM, which has the same "
            f"frequencies for all lengths; got {rule.describe()}"
        )
    if isinstance(rule, LongRopeScaling) and rope.layout != "half":
        raise ValueError(f"{who}: layout must be 'half' with LongRoPE in vLLM; got {rope.layout!r}")
    if isinstance(rule, MixedNTKScaling):  # transformers does not have it
        block = rope_parameters(who, rope.replace(scaling=None, attention_factor=None))
        return block | {"rope_type": "ntk", "factor": rule.factor, "mixed_b": rule.mixed_b}
    block = rope_parameters(who, rope)
    if block.get("truncate") is True:
        del block["truncate"]  # the default, which older versions do not read
    if isinstance(rule, YarnScaling) and rule.softmax_scale == 1.0 and rule.attention_factor is not None:
        # Versions that do not read `attention_factor` read the other two keys.
        block |= {"attn_factor": rule.attention_factor, "apply_yarn_scaling": False}
    if isinstance(rule, LongRopeScaling) and rule.attention_factor is not None:
        factor = block.pop("attention_factor")
        block |= {"short_mscale": factor, "long_mscale": factor}
    return block
