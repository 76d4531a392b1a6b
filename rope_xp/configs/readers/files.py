"""Open files, and parse JSON within limits."""

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from rope_xp.errors import wrong, wrong_value
from rope_xp.types import Values

# Limits far above any checkpoint's config. Within them, reading takes at most a second and a few hundred MB.
MAX_BYTES = 2**24
MAX_VALUES = 10**6
MAX_LEVELS = 32
MAX_BITS = 2048  # of an int, so that Python can print it


def opened(path: Path) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as error:
        raise wrong(type(error), f"{path} must be readable; got {error.strerror}") from None


def json_of_file(path: Path, max_bytes: int = MAX_BYTES) -> Any:
    with opened(path) as file:
        text = file.read(max_bytes + 1)
    if len(text) > max_bytes:
        raise wrong_value(f"{path} must have at most {max_bytes} bytes; got more")
    return parsed_json(str(path), text)


def parsed_json(name: str, text: bytes) -> Any:
    """The value that JSON in UTF-8 holds. `name` says in errors where the text comes from."""
    commas_and_brackets = text.count(b",") + text.count(b"[") + text.count(b"{")
    if commas_and_brackets > MAX_VALUES:  # counted first, because an empty list takes 3 bytes of text and 64 of memory
        raise wrong_value(f"{name} must hold at most {MAX_VALUES} values; got more")
    if not text.strip():
        raise wrong_value(f"{name} must be JSON; got no text: it is empty")
    unique, number = partial(_with_unique_keys, name), partial(_int, name)
    try:
        return json.loads(text.decode("utf-8-sig"), object_pairs_hook=unique, parse_int=number)
    except UnicodeDecodeError as error:
        raise wrong_value(f"{name} must be JSON in UTF-8; got {error.reason}") from None
    except json.JSONDecodeError as error:
        if error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated"):
            raise wrong_value(f"{name} must be whole JSON; got text that ends early: it is truncated") from None
        raise wrong_value(
            f"{name} must be JSON; got {error.msg} on line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise wrong_value(f"{name} must have at most {MAX_LEVELS} levels; got more") from None


def _with_unique_keys(name: str, pairs: list[tuple[str, object]]) -> Values:
    """A JSON object in which each key must occur once, because JSON readers treat repeated keys differently."""
    found = dict(pairs)
    if len(found) < len(pairs):
        key, times = Counter(key for key, _ in pairs).most_common(1)[0]
        raise wrong_value(f"every key must occur once in a JSON object of {name}; got {key[:100]!r} {times} times")
    return found


def _int(name: str, digits: str) -> int:
    if len(digits) * 3 > MAX_BITS:  # a digit has more than 3 bits
        raise wrong_value(f"an int of {name} must have at most {MAX_BITS} bits; got {len(digits)} digits")
    return int(digits)
