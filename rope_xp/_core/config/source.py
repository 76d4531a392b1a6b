"""Read a config from a file or an object into a mapping, and check its size."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rope_xp._core.config.keys import WHO

# Limits far above any checkpoint's config. Within them, reading takes at most a second and a few hundred MB.
MAX_BYTES = 2**24
MAX_VALUES = 10**6
MAX_LEVELS = 32
MAX_BITS = 2048  # of an int, so that Python can print it


def mapping_of(config: Any) -> Mapping[str, Any]:
    """The content of a config."""
    if isinstance(config, Mapping):
        found = config
    elif isinstance(config, (str, os.PathLike)):
        found = _from_file(Path(os.fsdecode(config)))
    elif hasattr(config, "to_dict") and not isinstance(config, type):
        found = config.to_dict()
    else:
        hint = ": pass its config, model.config" if hasattr(config, "config") else ""
        raise TypeError(
            f"{WHO}: config must be a path, a mapping or an object with to_dict(); got {type(config).__name__}{hint}"
        )
    if not isinstance(found, Mapping):
        raise TypeError(f"{WHO}: config must hold a mapping; got {type(found).__name__}")
    check_size(found)
    return found


def check_size(given: Any) -> None:
    """Raise an error if a value is nested too deeply, is too long, or has an int with too many digits to print."""
    level, count = [given], 0
    for _ in range(MAX_LEVELS):
        below: list[Any] = []
        for value in level:
            if isinstance(value, int) and value.bit_length() > MAX_BITS:
                raise ValueError(f"{WHO}: an int must have at most {MAX_BITS} bits; got {value.bit_length()} bits")
            if not isinstance(value, (Mapping, list, tuple)):
                continue
            count += len(value)
            if count > MAX_VALUES:
                raise ValueError(f"{WHO}: config must hold at most {MAX_VALUES} values; got more")
            below.extend(value)
            if isinstance(value, Mapping):
                below.extend(value.values())
        if not below:
            return
        level = below
    raise ValueError(f"{WHO}: config must have at most {MAX_LEVELS} levels; got more")


def _from_file(path: Path) -> Any:
    """The JSON of a file, or of `config.json` in a folder."""
    path = _regular_file(path)
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise type(error)(f"{WHO}: {path} must be readable; got {error.strerror}") from None
    if len(text) > MAX_BYTES:
        raise ValueError(f"{WHO}: {path} must have at most {MAX_BYTES} bytes; got more")
    try:
        return json.loads(text.decode("utf-8-sig"), object_pairs_hook=_with_unique_keys, parse_int=_int)
    except UnicodeDecodeError as error:
        raise ValueError(f"{WHO}: {path} must be JSON in UTF-8; got {error.reason}") from None
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{WHO}: {path} must be JSON; got {error.msg} on line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise ValueError(f"{WHO}: {path} must have at most {MAX_LEVELS} levels; got more") from None


def _regular_file(path: Path) -> Path:
    try:
        path = path / "config.json" if path.is_dir() else path
        exists, regular = path.exists(), path.is_file()
    except OSError:  # the name is too long
        exists = regular = False
    if not exists:
        raise FileNotFoundError(
            f"{WHO}: config must be a config.json on this machine, or its folder (download a model of the Hub "
            f"first); got {str(path)!r}, which does not exist"
        )
    if not regular:
        raise ValueError(f"{WHO}: config must be a regular file; got {str(path)!r}")
    return path


def _with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object in which each key must occur once, because JSON readers treat repeated keys differently."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in found if keys.count(key) > 1)
        raise ValueError(f"{WHO}: every key must occur once in a JSON object; got {twice!r} {keys.count(twice)} times")
    return found


def _int(digits: str) -> int:
    if len(digits) * 3 > MAX_BITS:  # a digit has more than 3 bits
        raise ValueError(f"{WHO}: an int must have at most {MAX_BITS} bits; got {len(digits)} digits")
    return int(digits)
