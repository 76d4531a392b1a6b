"""What the words of a command line stand for: configs, functions and lengths."""

import importlib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

import rope_xp
from rope_xp import RotaryEmbedding
from rope_xp.configs.readers.files import MAX_BYTES, parsed_json
from rope_xp.errors import public
from rope_xp.types import Config

UNITS = {"": 1, "k": 2**10, "m": 2**20}
# Array libraries, by the modules that make arrays.
LIBRARIES = {"numpy": "numpy", "torch": "torch", "jax": "jax.numpy", "cupy": "cupy", "mlx": "mlx.core"}


def length(text: str) -> int:
    """A length in tokens: 131072, 128k or 1M. k is 1,024 and M is 1,048,576."""
    found = re.fullmatch(r"(\d{1,15})([km]?)", text.lower())
    if not found or not int(found[1]):
        raise click.BadParameter(f"a length must be a number of tokens, such as 131072 or 128k; got {text!r}")
    return int(found[1]) * UNITS[found[2]]


@public("rope-xp")
def config(file: object) -> Any:
    """What `from_config` reads: a path, or the JSON of standard input for "-". A mapping is returned as it is."""
    if file != "-":
        return file
    text = sys.stdin.buffer.read(MAX_BYTES + 1) if sys.stdin else b""  # a process may have no standard input
    if len(text) > MAX_BYTES:
        raise click.ClickException(f"standard input must have at most {MAX_BYTES} bytes; got more")
    found = parsed_json("standard input", text)
    if not isinstance(found, dict):
        raise click.ClickException(f"standard input must hold a JSON object; got {type(found).__name__}")
    return found


def require_one_stdin(files: Sequence[str]) -> None:
    """Standard input can be read once."""
    if list(files).count("-") > 1:
        raise click.UsageError("- must be given once, because standard input can be read once")


def embedding(config: Config, file: str, **options: Any) -> RotaryEmbedding:
    """The embedding that the config of a file describes."""
    rope = rope_xp.from_config(config, **options)
    if rope is None:
        raise no_embedding(file)
    return rope


def no_embedding(file: str) -> click.ClickException:
    """The error for a file without a rotary embedding."""
    name = "standard input" if file == "-" else file
    return click.ClickException(f"{name} must have a rotary embedding; got a model or a layer without one")


def is_function(text: str) -> bool:
    """Whether the text is `module:function`, and not a file."""
    return bool(re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", text)) and not Path(text).exists()


def function(text: str) -> Callable[..., Any]:
    """The function `module:function`. The folder in which the command runs is searched, too."""
    module, _, name = text.partition(":")
    sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # the module may do anything when it is imported
        raise click.ClickException(
            f"{text} must be a function that can be imported; got {type(error).__name__}: {error}"
        ) from None
    if not callable(found):
        raise click.ClickException(f"{text} must be a function; got {type(found).__name__}")
    return found


def array_of(text: str) -> Any:
    """An array of a library, and of a dtype: torch, torch:bfloat16 or numpy:float16."""
    library, _, dtype = text.partition(":")
    if library not in LIBRARIES:
        raise click.BadParameter(
            f"an array must be LIBRARY or LIBRARY:DTYPE, with one of {', '.join(LIBRARIES)}; got {text!r}",
            param_hint="'--like'",
        )
    try:
        module = importlib.import_module(LIBRARIES[library])
        return module.zeros(1, dtype=getattr(module, dtype or "float32"))
    except Exception as error:  # the library may be missing or broken, or have no such dtype
        raise click.BadParameter(
            f"{text} must be an array that can be made here; got {type(error).__name__}: {error}", param_hint="'--like'"
        ) from None
