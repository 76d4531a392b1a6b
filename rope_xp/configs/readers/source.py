"""Read a config from a file or an object into a mapping, and check its size."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rope_xp.configs.readers.files import MAX_BITS, MAX_LEVELS, MAX_VALUES, json_of_file
from rope_xp.configs.readers.gguf_file import gguf_metadata
from rope_xp.errors import wrong, wrong_type, wrong_value
from rope_xp.types import Config


def mapping_of(config: Config) -> Config:
    """The content of a config."""
    if isinstance(config, Mapping):
        found = config
    elif isinstance(config, (str, os.PathLike)):
        found = _from_file(Path(os.fsdecode(config)))
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
    level, count = [given], 0
    for _ in range(MAX_LEVELS):
        below: list[Any] = []
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


def _from_file(path: Path) -> Any:
    """The config that a path leads to."""
    path = _regular_file(path)
    return gguf_metadata(path) if path.suffix.lower() == ".gguf" else json_of_file(path)


def file_of(config: Config) -> str:
    """The path of the file that is read; empty if the config is no path."""
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
            f"config must be a config.json on this machine, or its folder (download a model of the Hub "
            f"first); got {str(path)!r}, which does not exist",
        )
    if not regular:
        raise wrong_value(f"config must be a regular file; got {str(path)!r}")
    return path
