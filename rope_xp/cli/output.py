"""Print reports: for people as text, for programs as JSON."""

import json
import os
import sys
from functools import partial
from shutil import get_terminal_size

import click

from rope_xp.reports import WIDTH, Report, as_text


def show(report: Report, as_json: bool) -> int:
    """Print a report. The exit code is 1 if it has warnings."""
    if as_json:
        write(json.dumps(report.to_dict(), indent=2))
    elif sys.stdout is not None and sys.stdout.isatty():
        write(as_text(report, min(get_terminal_size().columns, WIDTH), partial(click.style, bold=True)))
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
