"""Print reports: for people with rich, for programs as JSON."""

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from rope_xp.reports import WIDTH, Report, Table


def show(report: Report, as_json: bool) -> int:
    """Print a report. The exit code is 1 if it has warnings."""
    if as_json:
        write(json.dumps(report.to_dict(), indent=2))
    elif sys.stdout is not None and sys.stdout.isatty():
        console = Console(highlight=False, emoji=False, markup=False)
        parts = _parts(report, narrow=console.width < WIDTH)
        console.print(*parts, sep="\n", width=min(console.width, WIDTH))
    else:
        write(str(report))
    return 1 if getattr(report, "warnings", ()) else 0


def write(text: str) -> None:
    """Print a text. A reader may close the pipe early, as `head` does: it has what it wants."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        close_pipe()


def close_pipe() -> None:
    """Let what is still to be written to standard output vanish, so that Python does not fail when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _parts(report: Report, narrow: bool) -> Iterator[Any]:
    """What rich prints: bold titles, paragraphs, lists and tables."""
    for number, (title, body) in enumerate(section for section in report.sections() if section.body):
        if number:
            yield ""
        if title:
            yield Text(title, style="bold")
        if isinstance(body, Table):
            yield _table(body, narrow)
        else:
            yield from (
                map(Text, [body]) if isinstance(body, str) else (Padding(Text(each), (0, 0, 0, 2)) for each in body)
            )


def _table(table: Table, narrow: bool) -> RichTable:
    """A table without borders. The last column is wrapped if it must be; on a narrow terminal, all columns are."""
    style, padding = (box.SIMPLE_HEAD, (0, 1, 0, 0)) if table.header else (None, (0, 2, 0, 0))
    found = RichTable(box=style, padding=padding, show_header=bool(table.header), pad_edge=False, show_edge=False)
    *names, last = table.header or [""] * len(table.rows[0])
    for name in names:
        found.add_column(name, no_wrap=not narrow, overflow="fold")
    found.add_column(last, overflow="fold")
    for row in table.rows:
        found.add_row(*map(Text, row))
    return found
