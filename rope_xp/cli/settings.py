"""What `convert` and `extend` print: the settings for one program, or a page of those for all programs."""

import json
import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import indent, wrap
from typing import Any, NamedTuple, get_args

import click

from rope_xp.cli.every_layer import Group
from rope_xp.cli.options import in_options, with_advice
from rope_xp.configs.writers import REFUSED, TARGETS, Options, Target, Written, with_length
from rope_xp.configs.writers.vllm import flags_of_types
from rope_xp.errors import public, wrong_value
from rope_xp.reports import WIDTH, Report, Section
from rope_xp.types import Values

# Types of layers by which rotary blocks are nested, in transformers and in vLLM (`is_rope_parameters_nested`).
VLLM_TYPES = {"full_attention", "sliding_attention", "chunked_attention"}
# The order in which people ask. Targets that are not listed come last.
ORDER = ("transformers", "transformers4", "vllm", "sglang", "llama.cpp", "gguf", "mlx", "lmdeploy", "axolotl")
ORDER += ("lmstudio", "megatron", "meta")


class Settings(NamedTuple):
    """What `to_config` returns for a program, and what a person must know about it."""

    values: Written
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """Keys as JSON, or arguments as a shell takes them."""
        return json.dumps(self.values, indent=2) if isinstance(self.values, Mapping) else shlex.join(self.values)


def of_rope(rope: Any, target: Target, writing: Options, length: int | None = None) -> Settings:
    """The settings of one embedding, for a length."""

    def written() -> Written:
        values: Written = rope.to_config(target, **writing._asdict())
        return values if length is None else with_length(target, values, length, rope, writing)

    found = _with_notes(written)
    if not rope._provenance.layer_type:
        return found
    chosen = "these are the settings of the chosen layers; other layers of the config differ"
    return found._replace(notes=(*found.notes, chosen))


def _with_notes(write: Callable[[], Written]) -> Settings:
    """What a function returns. Its warnings become notes, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        values = write()
    return Settings(values, tuple(f"warning: {text}" for text in dict.fromkeys(str(each.message) for each in caught)))


@public("convert")
def of_config(groups: Sequence[Group], target: Target, writing: Options) -> Settings:
    """The settings of all chosen layers, by their types if they differ."""
    if len(groups) > 1:
        return _of_groups(groups, target, writing)
    return of_rope(groups[0].rope, target, writing)


def _of_groups(groups: Sequence[Group], target: Target, writing: Options) -> Settings:
    """The settings of layers that differ. The rotary block of transformers is nested by the types of layers."""
    if target == "vllm":
        names = [each.name for each in groups]
        if not VLLM_TYPES.issuperset(names):
            raise wrong_value(
                f"layers must differ by the types {', '.join(sorted(VLLM_TYPES))} for vLLM, whose rotary block is "
                f"nested by them; got {'; '.join(names)}"
            )
        return _with_notes(lambda: flags_of_types({each.name: each.rope for each in groups}, writing))
    chosen = TARGETS[target].layers
    if full := [each for each in groups if each.name == chosen]:  # the others stay as the file has them
        return of_rope(full[0].rope, target, writing)
    found = {each.name: of_rope(each.rope, target, writing) for each in groups}
    notes = tuple(dict.fromkeys(note for each in found.values() for note in each.notes[:-1]))
    values = {name: each.values for name, each in found.items()}
    if not all(each.is_type for each in groups):
        return Settings(values, (*notes, "each of these settings is for the layers that its key names"))
    return Settings(values if target == "transformers" else _joined(target, values), notes)


def _joined(target: str, found: Mapping[str, Any]) -> Values:
    """The keys of all types of layers as one dict. The same key must have one value, or objects that can be joined."""
    joined: Values = {}
    for name, keys in found.items():
        for key, value in keys.items():
            known = joined.setdefault(key, value)
            if isinstance(known, Mapping) and isinstance(value, Mapping) and key != "rope_scaling":
                joined[key] = _joined(target, {"the others": known, name: value})
            elif known != value:
                raise wrong_value(
                    f"layers must differ only in keys that {target} has for each of their types; got {key} of {name} "
                    "beside another one"
                )
    return joined


class Entry(NamedTuple):
    """The settings for one program; or why there are none."""

    target: str
    result: str
    settings: Written | None = None
    notes: tuple[str, ...] = ()
    refused: str = ""


@dataclass(frozen=True)
class Page(Report):
    """What `rope-xp convert --to all` prints."""

    targets: tuple[Entry, ...]

    def sections(self) -> list[Section]:
        found = []
        for each in self.targets:
            title = f"== {each.target}: {'none' if each.refused else each.result} =="
            text = each.refused or _pasted(each.settings or {})
            found.append(Section(title, text if each.refused else _Lines(text)))
            found += [Section("", each.notes)] if each.notes else []
        return found

    def __str__(self) -> str:
        return "\n\n".join(
            "\n".join([section.title, *_lines(section.body)]) if section.title else "\n".join(_lines(section.body))
            for section in self.sections()
        )


class _Lines(str):
    """A text whose lines stay as they are."""


def _lines(body: Any) -> list[str]:
    if isinstance(body, _Lines):
        return [indent(body, "  ")]
    return wrap(body, WIDTH) if isinstance(body, str) else [line for each in body for line in wrap(f"({each})", WIDTH)]


def _pasted(settings: Written) -> str:
    """Settings in lines of `WIDTH` columns that can be pasted: JSON, or a command line with a flag in each line."""
    if isinstance(settings, Mapping):
        lines = {name: each for name, each in settings.items() if isinstance(each, str) and each.startswith("--")}
        if not lines:
            return _folded(settings, WIDTH - 2)
        return "\n".join(f"# {name}\n{_pasted(shlex.split(each))}" for name, each in lines.items())
    flags: list[list[str]] = []
    for word in settings:
        flags += [[word]] if word.startswith("--") else []
        flags[-1] += [] if word.startswith("--") else [word]
    return " \\\n".join("\n".join(wrap(shlex.join(each), WIDTH - 4, break_long_words=False)) for each in flags)


def _folded(value: object, width: int) -> str:
    """JSON in lines of a width. Values that fit stand in one line."""
    line = json.dumps(value)
    if len(line) < width:
        return line
    if isinstance(value, Mapping):
        inner = (f"{json.dumps(name)}: {_folded(each, max(width - len(name) - 6, 1))}" for name, each in value.items())
        return "{\n" + indent(",\n".join(inner), "  ") + "\n}"
    return "\n".join(wrap(line, max(width, 8), break_long_words=False, subsequent_indent=" "))


def page(groups: Sequence[Group], writing: Options) -> Page:
    """The settings for all programs, and for the others why there are none."""
    versions = _versions(writing.engine_version)
    entries = []
    for target in sorted(get_args(Target), key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER)):
        writer = TARGETS[target]
        own = Options(
            writing.architecture if writer.takes_architecture else None,
            versions.get(writer.engine) if writer.engine else None,
        )
        try:
            values, notes = of_config(groups, target, own)
            entries.append(Entry(target, writer.result, values, notes))
        except ValueError as error:
            words = in_options(str(error), click.get_current_context().command)
            entries.append(Entry(target, writer.result, refused=words.partition(": ")[2]))
    none = (Entry(name, "", refused=f"there is no setting: {with_advice(why)}") for name, why in REFUSED.items())
    return Page((*entries, *none))


def _versions(text: str | None) -> dict[str, str]:
    """The versions of engines: ENGINE=VERSION, and several between commas."""
    known = sorted({each.engine for each in TARGETS.values()} - {""})
    found: dict[str, str] = {}
    for each in [] if text is None else text.split(","):
        engine, _, version = each.partition("=")
        if engine not in known or not version:
            raise click.UsageError(
                f"--engine-version must be ENGINE=VERSION with --to all, for {', '.join(known) or 'no engine yet'}; "
                f"got {each!r}"
            )
        found[engine] = version
    return found
