"""The formats of configs other than transformers' config.json, and how a mapping shows which one it has.

A reader translates the mapping into keys of transformers and a row like those of `model_types.py`. The rest is as for a
config.json. As there, every key about positions is read, or is an error that names it.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import NamedTuple

from rope_xp.configs.families.family import Family
from rope_xp.configs.keys import Keys, is_about_positions, require_spelling
from rope_xp.types import Config, Values


class Format(NamedTuple):
    """A format of configs."""

    name: str  # its name in errors and in `RotaryEmbedding.describe`
    # The module and the function that read it. Modules are imported when they are first used. A format without a reader
    # has the keys of transformers.
    reader: str = ""

    def as_config(self, keys: Keys, part: str | None) -> tuple[Values, Family] | None:
        """The part that the caller wants as a config of transformers, and its family; None if nothing is rotated."""
        module, name = self.reader.split(".")
        return getattr(import_module(f"rope_xp.configs.readers.{module}"), name)(keys, part)


def with_mlx_rule(config: Config) -> Config:
    """The rule "yarn" of MLX reads `mscale` and `mscale_all_dim` as DeepSeek's program does, not as transformers.

    References
    ----------
    ml-explore/mlx-lm, `models/rope_utils.py`, `YarnRoPE`.
    """
    block = config.get("rope_scaling")
    if not isinstance(block, Mapping) or "yarn" not in (block.get("type"), block.get("rope_type")):
        return config
    others = {key: value for key, value in block.items() if key not in ("type", "rope_type")}
    return {**config, "rope_scaling": {"rope_type": "deepseek_yarn", **others}}


GGUF = Format("metadata of a GGUF file", "gguf_metadata.gguf_metadata_as_config")
META = Format("Meta's params.json", "params_json.meta_as_config")
MISTRAL = Format("Mistral's params.json", "params_json.mistral_as_config")
MEGATRON = Format("arguments of Megatron-LM", "megatron_args.megatron_as_config")
MLX = Format("a config.json of MLX")

PARAMS_KEYS = {"dim", "n_heads"}  # in every params.json
_META_KEYS = {"multiple_of", "ffn_dim_multiplier", "ffn_exp", "use_scaled_rope"}
_MISTRAL_KEYS = {"hidden_dim", "head_dim", "yarn", "llama_4_scaling", "sliding_window", "vision_encoder", "moe"}
# Keys that no other format has.
_MEGATRON_KEYS = {
    "rotary_base",
    "rotary_interleaved",
    "rotary_seq_len_interpolation_factor",
    "use_rotary_position_embeddings",
    "use_rope_scaling",
    "num_query_groups",
    "qk_pos_emb_head_dim",
}


def format_of(config: Config) -> Format | None:
    """The format of a config, or None for a config of transformers."""
    model_type = config.get("model_type")
    if "general.architecture" in config or any(".rope." in str(key) for key in config):
        return GGUF
    if config.keys() >= PARAMS_KEYS and model_type in (None, "transformer"):
        is_mistral = config.keys() & _MISTRAL_KEYS and not config.keys() & _META_KEYS
        return MISTRAL if is_mistral or model_type else META
    if model_type is None and config.keys() & _MEGATRON_KEYS:
        return MEGATRON
    if model_type is None and config.keys() & (PARAMS_KEYS | _META_KEYS | {"yarn"}):
        require_spelling("params.json", config, PARAMS_KEYS)
    quantization = config.get("quantization")
    is_mlx = "rope_traditional" in config or (isinstance(quantization, Mapping) and "bits" in quantization)
    return MLX if is_mlx else None


def is_stated_about_positions(key: object, value: object) -> bool:
    """Whether a key must be read. In these formats, null is the same as no key."""
    return value is not None and is_about_positions(key, value)
