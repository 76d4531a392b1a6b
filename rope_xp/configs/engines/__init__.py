"""What engines read: a table for each engine and version, which `benchmarks/engines.py` makes from its source.

A table is a JSON file `<engine>-<version>.json` of this folder, with these keys:

- `engine` and `version`.
- `readings`: what the engine reads, for the model types that read the same:
    - `models`: the model types, or the architectures of GGUF files.
    - `path`: the keys that lead from the file to where the engine reads rotary keys, such as `["text_config"]`.
    - `keys`: the keys outside the rotary block whose change changes the rotation.
    - `places`: where `rope_theta` and `partial_rotary_factor` are read, `block` or `config`; the first counts first.
    - `rules`: each scaling rule that the engine computes, with the keys of the block that it reads.
    - `defaults`: values of keys that the block does not have.
    - `block`: where the block is, such as `rope_scaling` or `rope_parameters.full_attention`, if not always there.
    - `flat`: whether the keys may also be in the file itself, although `path` leads to another place.
    - `fixed`: what is computed whatever the keys say, such as `{"layout": "half"}`.
    - `nested`: true if there is one block for each type of layers.
    - `by`: the library whose model classes the engine runs, such as `transformers`, if it has none of its own.
    - `layers`: the types of layers that read other keys, each with `keys`, `rules` and `fixed` of its own.
- `facts`, found by hand: `models`, `text` and `source`; some have the rules that `need_head_dim`, `before` a version.
"""

import json
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from rope_xp.errors import wrong_value
from rope_xp.types import Config

# By key of `places`, the name in `fixed` of what is computed where no key changes it.
FIXED = {"rope_theta": "base", "partial_rotary_factor": "rotated"}


class Reading(NamedTuple):
    """What an engine reads for a model type. The attributes are those of the file."""

    path: tuple[str, ...] = ()
    keys: frozenset[str] = frozenset()
    places: Mapping[str, Sequence[str]] = {}
    rules: Mapping[str, frozenset[str]] = {}
    defaults: Mapping[str, float] = {}
    fixed: Mapping[str, Any] = {}
    block: str = ""
    flat: bool = False
    nested: bool = False
    layers: Mapping[str, "Reading"] = {}
    by: str = ""

    def reads(self, key: str, rule: str = "") -> bool:
        return key in self.keys or key in self.rules.get(rule, ())

    @property
    def has_places(self) -> bool:
        """Whether it is known where the base and the rotated fraction are read, also if nowhere."""
        return bool(self.places) or FIXED["rope_theta"] in self.fixed

    def usual(self, key: str) -> float | None:
        return self.fixed.get(FIXED[key], self.defaults.get(key))

    def of_layer(self, layer_type: str) -> "Reading":
        return self.layers.get(layer_type, self)


class Fact(NamedTuple):
    """What was found by hand about some model types."""

    models: Sequence[str]
    text: str
    source: str
    need_head_dim: Sequence[str] = ()
    before: str = ""


class Table(NamedTuple):
    """What one version of an engine reads."""

    engine: str
    version: str
    readings: Mapping[str, Reading]
    facts: tuple[Fact, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.engine} {self.version}"

    def of(self, model: str) -> Reading | None:
        """What the engine reads for a model type; None if the table does not have it."""
        return self.readings.get(model)

    def needs_head_dim(self, model: str, rule: object) -> bool:
        facts = [each for each in self.facts if model in each.models and rule in each.need_head_dim]
        return any(not each.before or _numbers(self.version) < _numbers(each.before) for each in facts)

    def of_text(self, file_type: str, model_type: str, path: tuple[str, ...]) -> tuple[Reading, bool]:
        """What vLLM reads for the text at a path of a file, and whether that is known for the whole file."""
        whole, own = self.of(file_type), self.of(model_type)
        # The reading of "*" is that of `get_rope`, for models that pass their whole block on.
        usual = own or self.readings["*"]
        if whole is not None and not whole.rules:  # a composite with any language model
            return usual._replace(path=whole.path), own is not None
        known = whole or own
        if known is not None and path in ((), known.path):
            return known, True
        return usual._replace(path=path), False  # another part than the language model, or one of an unknown file


@cache
def versions(engine: str) -> tuple[str, ...]:
    names = (each.name for each in files(__name__).iterdir())
    found = [name[len(engine) + 1 : -len(".json")] for name in names if re.fullmatch(rf"{engine}-v?\d.*\.json", name)]
    return tuple(sorted(found, key=_numbers))


def table(engine: str, version: object = None) -> Table:
    """The newest table of an engine, or the newest one that is not newer than a version."""
    known = versions(engine)
    if version is not None and not (
        isinstance(version, str) and re.fullmatch(r"[bv]?\d{1,9}(\.\d{1,9}){0,4}", version)
    ):
        raise wrong_value(f'engine_version must be a version, such as "{known[-1]}"; got {version!r}')
    older = [each for each in known if version is None or _numbers(each) <= _numbers(version)]
    if not older:
        raise wrong_value(
            f"engine_version of {engine} must be {known[0]} or newer, the oldest version whose source was read; "
            f"got {version!r}"
        )
    return _read(f"{engine}-{older[-1]}.json")


@cache
def _read(file: str) -> Table:
    read = json.loads((files(__name__) / file).read_text("utf-8"))
    return Table(
        read["engine"],
        read["version"],
        {model: _reading(each) for each in read["readings"] for model in each["models"]},
        tuple(Fact(**each) for each in read.get("facts", ())),
    )


def _reading(entry: Config) -> Reading:
    found = {key: value for key, value in entry.items() if key != "models"}
    found["path"], found["keys"] = tuple(entry.get("path", ())), frozenset(entry.get("keys", ()))
    found["rules"] = {rule: frozenset(keys) for rule, keys in entry.get("rules", {}).items()}
    found["layers"] = {layer_type: _reading(each) for layer_type, each in entry.get("layers", {}).items()}
    return Reading(**found)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", re.sub(r"(\.0+)+$", "", version))))  # 5.18 is 5.18.0


def warn(text: str) -> None:
    """A warning about settings whose effect in the engine is not known. It names the line that calls the library."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == "rope_xp":
        level, frame = level + 1, frame.f_back
    warnings.warn(text, UserWarning, stacklevel=level + 1)
