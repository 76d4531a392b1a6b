"""Reports: results that people read as text or Markdown, and programs as a dict."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import zip_longest
from math import isfinite
from textwrap import wrap
from typing import NamedTuple

from rope_xp.types import Values

WIDTH = 80


class Table(NamedTuple):
    header: Sequence[str]  # empty for none: the first column then names the row
    rows: Sequence[Sequence[str]]


class Lines(NamedTuple):
    text: str  # whose lines stay as they are


class Section(NamedTuple):
    title: str  # may be empty
    body: str | Lines | Table | Sequence[str]  # a paragraph, lines, a table, or a list of sentences


@dataclass(frozen=True)
class Report:
    """The base of reports, which are frozen dataclasses. `str` gives text of 80 columns.

    Subclasses define `sections`, what the text says; `to_dict` has the fields.
    """

    def sections(self) -> list[Section]:
        """What the report says, in order."""
        raise NotImplementedError

    def __str__(self) -> str:
        return as_text(self)

    def to_markdown(self) -> str:
        """The report as Markdown.

        Returns
        -------
        str
        """
        return "\n\n".join(_as_markdown(section) for section in self.sections() if section.body) + "\n"

    def to_dict(self) -> Values:
        """The fields as numbers, strings, lists and dicts, ready for JSON. A number that is not finite is null.

        Returns
        -------
        dict
        """
        return {each.name: json_value(getattr(self, each.name)) for each in fields(self)}

    def _repr_markdown_(self) -> str:  # what notebooks show
        return self.to_markdown()


def json_value(value: object) -> object:
    """A value that JSON can hold. A dataclass that is no report is given as its repr, as rope values are."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Report):
        return value.to_dict()
    if is_dataclass(value):
        return repr(value)
    if isinstance(value, Mapping):
        return {str(name): json_value(each) for name, each in value.items()}
    if isinstance(value, tuple) and (names := getattr(value, "_fields", ())):
        return json_value(dict(zip(names, value)))
    assert isinstance(value, (list, tuple))
    return [json_value(each) for each in value]


def short_repr(value: object) -> str:
    text = re.sub(r", \w+=None", "", repr(value))
    return re.sub(r"\((?:[-+.\de]+,? ?){9,}\)", lambda found: f"({len(found[0].split())} numbers)", text)


def as_text(report: Report, width: int = WIDTH, title: Callable[[str], str] = str) -> str:
    return "\n\n".join(_as_lines(section, width, title) for section in report.sections() if section.body)


def _as_lines(section: Section, width: int, title: Callable[[str], str]) -> str:
    body = section.body
    if isinstance(body, str):
        lines = wrap(body, width)
    elif isinstance(body, Lines):
        lines = [body.text]
    elif isinstance(body, Table):
        lines = _table_lines(body, width)
    else:
        lines = [line for each in body for line in wrap(each, width, initial_indent="- ", subsequent_indent="  ")]
    return "\n".join([*map(title, wrap(section.title, width)), *lines])


def _table_lines(table: Table, width: int) -> list[str]:
    """The rows in columns. The last column is wrapped, and others only where lines would be too long without."""
    rows = [list(row) for row in ([table.header] if table.header else []) + list(table.rows)]
    widths = [max(map(len, column)) for column in list(zip(*rows))[:-1]]
    room = width - 2 * len(widths)
    while widths and sum(widths) > room - min(20, room // (len(widths) + 1)):
        widths[widths.index(max(widths))] -= 1
    widths.append(room - sum(widths))
    lines = []
    for row in rows:
        cells = [wrap(text, max(column, 1)) for text, column in zip(row, widths)]
        lines += [
            "  ".join(f"{text:<{column}}" for text, column in zip(parts, widths)).rstrip()
            for parts in zip_longest(*cells, fillvalue="")
        ]
    return lines


def _as_markdown(section: Section) -> str:
    title, body = section
    if isinstance(body, str):
        text = body
    elif isinstance(body, Lines):
        text = f"```\n{body.text}\n```"
    elif isinstance(body, Table):
        header = body.header or ("",) * len(body.rows[0])
        rows = [header, ["---"] * len(header), *body.rows]
        text = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
    else:
        text = "\n".join(f"- {each}" for each in body)
    return f"## {title}\n\n{text}" if title else text
