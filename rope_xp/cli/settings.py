"""What `convert` and `extend` print: the settings for one program, or a page of those for all programs."""

import json
import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill, indent, wrap
from typing import Any, NamedTuple

import click

from rope_xp.cli.options import in_options, with_advice
from rope_xp.configs.every_layer import LayerGroup
from rope_xp.configs.writers import REFUSED, TARGETS, Options, Written, config_for, config_for_layers
from rope_xp.errors import public
from rope_xp.reports import WIDTH, Lines, Report, Section

# Notes on layers that differ.
OF_CHOSEN = "note: these are the settings of the chosen layers; other layers of the config differ"
OF_FULL = "note: these settings are for layers with full attention; other layers differ, and stay as the file has them"
OF_EACH = "note: each of these settings is for the layers that its key names"


class Settings(NamedTuple):
    """What `to_config` returns for a program, and what a person must know about it."""

    values: Written
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        return json.dumps(self.values, indent=2) if isinstance(self.values, Mapping) else shlex.join(self.values)


def of_rope(rope: Any, target: str, writing: Options, of_all: bool = False) -> Settings:
    found = _with_notes(lambda: config_for(rope, target, writing))
    if of_all or not rope._provenance.layers:
        return found
    return found._replace(notes=(*found.notes, OF_CHOSEN))


def _with_notes(write: Callable[[], Written]) -> Settings:
    """What a function returns. Its warnings become notes, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        values = write()
    return Settings(values, tuple(f"warning: {text}" for text in dict.fromkeys(str(each.message) for each in caught)))


@public("convert")
def of_config(groups: Sequence[LayerGroup], target: str, writing: Options) -> Settings:
    if len(groups) == 1:
        return of_rope(groups[0].rope, target, writing, of_all=not groups[0].name)
    ropes = {each.name: each.rope for each in groups if each.rope is not None}
    by_type = all(each.is_type for each in groups)
    found = _with_notes(lambda: config_for_layers(ropes, target, writing, by_type))
    if TARGETS[target].layers in ropes:
        return found._replace(notes=(*found.notes, OF_FULL))
    return found if by_type else found._replace(notes=(*found.notes, OF_EACH))


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
            text = Lines(indent(_pasted(each.settings or {}), "  "))
            found.append(Section(title, each.refused or text))
            notes = Lines("\n".join(fill(f"({note})", WIDTH) for note in each.notes))
            found += [Section("", notes)] if each.notes else []
        return found


def _pasted(settings: Written) -> str:
    """Settings in lines of `WIDTH` columns that can be pasted: JSON, or a command line with a flag in each line."""
    if isinstance(settings, Mapping):
        return _folded(settings, WIDTH - 2)
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
        inner = (f"{json.dumps(name)}: {_folded(each, max(width - len(name) - 6, 8))}" for name, each in value.items())
        return "{\n" + indent(",\n".join(inner), "  ") + "\n}"
    return "\n".join(wrap(line, width, break_long_words=False, subsequent_indent=" "))


def page(groups: Sequence[LayerGroup], writing: Options) -> Page:
    versions = _versions(writing.engine_version)
    entries = []
    for target, writer in TARGETS.items():
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
    known = sorted({each.engine for each in TARGETS.values()} - {""})
    found: dict[str, str] = {}
    for each in [] if text is None else text.split(","):
        engine, _, version = each.partition("=")
        if engine not in known or not version:
            raise click.UsageError(
                f"--engine-version must be ENGINE=VERSION with --to all, for {', '.join(known)}; got {each!r}"
            )
        found[engine] = version
    return found
