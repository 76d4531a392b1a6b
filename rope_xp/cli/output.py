"""Print reports: for people with rich, for programs as JSON."""

import json
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from rope_xp._core.report import WIDTH, Report, Section, Table


def show(report: Report, as_json: bool) -> int:
    """Print a report. The exit code is 1 if it has warnings."""
    if as_json:
        print(json.dumps(report.to_dict(), indent=2))
    else:
        console = console_of_report()
        sections = [section for section in report.sections() if section.body]
        for number, section in enumerate(sections):
            console.print(*[""] * bool(number), *_parts(section), sep="\n")
    return 1 if getattr(report, "warnings", ()) else 0


def console_of_report() -> Console:
    """A console of 80 columns, or fewer if the terminal has fewer. It has no colour if the output is not a terminal."""
    console = Console(highlight=False, emoji=False, markup=False)
    return Console(highlight=False, emoji=False, markup=False, width=min(console.width, WIDTH))


def _parts(section: Section) -> list[Any]:
    title, body = section
    heading: list[Any] = [Text(title, style="bold")] if title else []
    if isinstance(body, str):
        return [*heading, Text(body)]
    if not isinstance(body, Table):
        return [*heading, *(Padding(Text(each), (0, 0, 0, 2)) for each in body)]
    style = box.SIMPLE_HEAD if body.header else None
    table = RichTable(box=style, show_header=bool(body.header), pad_edge=False, show_edge=False)
    for number in range(len(body.rows[0])):
        is_last = number == len(body.rows[0]) - 1
        name = body.header[number] if body.header else ""
        table.add_column(name, no_wrap=not is_last, overflow="fold")
    for row in body.rows:
        table.add_row(*map(Text, row))
    return [*heading, table]
