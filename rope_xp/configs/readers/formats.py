"""Open a config, whatever it is, and recognize its format, if it is not that of transformers' config.json.

A reader translates the mapping into keys of transformers and a row like those of `model_types.py`.
"""

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from rope_xp.configs.families.family import Family
from rope_xp.configs.keys import Keys, is_about_positions, require_spelling
from rope_xp.configs.readers.files import MAX_BITS, MAX_LEVELS, MAX_VALUES, json_of_file
from rope_xp.configs.readers.gguf_file import metadata_of_file
from rope_xp.errors import wrong, wrong_type, wrong_value
from rope_xp.types import Config, Values


def mapping_of(config: Any) -> Config:
    if isinstance(config, Mapping):
        found = config
    elif isinstance(config, (str, os.PathLike)):
        path = _regular_file(Path(os.fsdecode(config)))
        found = metadata_of_file(path) if path.suffix.lower() == ".gguf" else json_of_file(path)
    elif hasattr(config, "to_dict") and not isinstance(config, type):
        found = config.to_dict()
    else:
        hint = ": pass its config, model.config" if hasattr(config, "config") else ""
        raise wrong_type(
            f"config must be a path, a mapping or an object with to_dict(); got {type(config).__name__}{hint}"
        )
    if not isinstance(found, Mapping):
        raise wrong_type(f"config must hold a mapping; got {type(found).__name__}")
    check_size(found)
    return found


def check_size(given: object) -> None:
    """Raise an error if a value is nested too deeply, is too long, or has an int with too many digits to print."""
    level: Sequence[object] = [given]
    count = 0
    for _ in range(MAX_LEVELS):
        below: list[object] = []
        for value in level:
            if isinstance(value, int) and value.bit_length() > MAX_BITS:
                raise wrong_value(f"an int must have at most {MAX_BITS} bits; got {value.bit_length()} bits")
            if not isinstance(value, (Mapping, list, tuple)):
                continue
            count += len(value)
            if count > MAX_VALUES:
                raise wrong_value(f"config must hold at most {MAX_VALUES} values; got more")
            below.extend(value)
            if isinstance(value, Mapping):
                below.extend(value.values())
        if not below:
            return
        level = below
    raise wrong_value(f"config must have at most {MAX_LEVELS} levels; got more")


def file_of(config: object) -> str:
    if not isinstance(config, (str, os.PathLike)):
        return ""
    try:
        return str(config_path(Path(os.fsdecode(config))))
    except (OSError, ValueError):  # the name is too long, or has a null character
        return os.fsdecode(config)


def config_path(path: Path) -> Path:
    """The file of a config: config.json, params.json or the only GGUF file in a folder, or beside a file of tensors."""
    if path.name.lower().endswith((".safetensors", ".safetensors.index.json")) and path.is_file():
        path = path.parent
    if not path.is_dir():
        return path
    config, params = path / "config.json", path / "params.json"
    if config.exists() or params.exists():
        return config if config.exists() else params
    ggufs = list(path.glob("*.gguf"))
    return ggufs[0] if len(ggufs) == 1 else config


def _regular_file(path: Path) -> Path:
    try:
        path = config_path(path)
        exists, regular, is_link = path.exists(), path.is_file(), path.is_symlink()
    except OSError:  # the name is too long
        exists = regular = is_link = False
    if not exists and is_link:
        raise wrong(
            FileNotFoundError,
            f"config must be a file, or a link to one; got {str(path)!r}, a link to a file that does not exist, "
            "or in a loop of links",
        )
    if not exists:
        raise wrong(
            FileNotFoundError,
            "config must be a config.json, params.json or GGUF file on this machine, or a folder with one (download a "
            f"model of the Hub first); got {str(path)!r}, which does not exist",
        )
    if not regular:
        raise wrong_value(f"config must be a regular file; got {str(path)!r}")
    return path


class Format(NamedTuple):
    name: str  # its name in errors and in `RotaryEmbedding.describe`
    # For each part, the default first, the module and the function that read it. Modules are imported when they are
    # first used. A format without readers has the keys of transformers.
    readers: Mapping[str, str] = {}

    def as_config(self, keys: Keys, part: object) -> tuple[Values, Family] | None:
        place = next((place for name, place in self.readers.items() if part in (None, name)), None)
        if place is None:
            raise wrong_value(f"part must be one of {', '.join(map(repr, self.readers))} or None; got {part!r}")
        module, name = place.split(".")
        return getattr(import_module(f"rope_xp.configs.readers.{module}"), name)(keys)


def with_mlx_rule(config: Config) -> Config:
    """MLX's "yarn" reads `mscale` and `mscale_all_dim` as DeepSeek does (`YarnRoPE` of `models/rope_utils.py`)."""
    block = config.get("rope_scaling")
    if not isinstance(block, Mapping) or "yarn" not in (block.get("type"), block.get("rope_type")):
        return config
    others = {key: value for key, value in block.items() if key not in ("type", "rope_type")}
    return {**config, "rope_scaling": {"rope_type": "deepseek_yarn", **others}}


GGUF = Format("metadata of a GGUF file", {"text": "gguf_metadata.gguf_metadata_as_config"})
META = Format("Meta's params.json", {"text": "params_json.meta_as_config"})
MISTRAL = Format(
    "Mistral's params.json", {"text": "params_json.mistral_as_config", "vision": "params_json.pixtral_as_config"}
)
MEGATRON = Format("arguments of Megatron-LM", {"text": "megatron_args.megatron_as_config"})
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
