"""The pages of the documentation, and how their code blocks are run.

Python blocks of a page run in order, in one namespace; `title="NAME.py"` also writes the block to that file. A `text`
block directly after one is what it prints. A `console` block has commands, each with its output. Three dots in an
output stand for anything.
"""

import doctest
import io
import json
import os
import re
import subprocess
import sys
import textwrap
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from configs import CONFIGS

import rope_xp

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)(?P<options>.*)\n(?P<body>(?:.*\n)*?)(?P=indent)```$", re.MULTILINE
)
COMMAND = re.compile(r"^\$ (.*(?:\\\n.*)*)$", re.MULTILINE)
TITLE = re.compile(r'title="([\w.-]+\.\w+)"')


class Output(NamedTuple):
    """A block that says what is printed, the number of its line, and what was printed."""

    block: re.Match
    line: int
    printed: str

    @property
    def said(self):
        return _body(self.block)

    def difference(self):
        """What differs, or an empty text."""
        checker, options = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.REPORT_NDIFF
        if checker.check_output(self.said, self.printed, options):
            return ""
        return checker.output_difference(doctest.Example("", self.said), self.printed, options)


def python_blocks(page):
    """The Python blocks of a page."""
    return [_body(block) for block in BLOCK.finditer(page.read_text()) if block["language"] == "python"]


def has_blocks(page):
    """Whether there is anything to run on a page."""
    return any(block["language"] in ("python", "console") for block in BLOCK.finditer(page.read_text()))


def fill(folder):
    """Write the files that pages may read.

    These are config.json, which is Llama 3.1 8B, NAME/config.json, examples, and tiny-meta with Meta's files.
    """
    import torch

    for name, config in CONFIGS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "config.json").write_bytes((folder / "llama-3.1-8b" / "config.json").read_bytes())
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "tiny-meta").mkdir()
    params = {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "rope_theta": 500_000.0}
    (folder / "tiny-meta/params.json").write_text(json.dumps(params))
    rows = {"wq": 64, "wk": 32, "wv": 32, "wo": 64}
    names = {f"layers.{layer}.attention.{name}.weight": rows[name] for layer in range(2) for name in rows}
    weights = {name: torch.randn(count, 64) for name, count in names.items()}
    torch.save(weights, folder / "tiny-meta/consolidated.00.pth")


def outputs(page):
    """Run the blocks of a page in the current folder, and yield each `Output`."""
    text, module = page.read_text(), ModuleType("__main__")
    printed, end = "", None
    for block in BLOCK.finditer(text):
        line, language = text.count("\n", 0, block.start()) + 1, block["language"]
        if language == "python":
            printed, end = _run(page, line, block, module), block.end()
        elif language == "console":
            yield Output(block, line, "".join(map(_shown, COMMAND.findall(_body(block)))))
        elif language == "text" and end is not None and not text[end : block.start()].strip():
            yield Output(block, line, printed)


def _body(block):
    return textwrap.dedent(block["body"])


def _run(page, line, block, module):
    """What a Python block prints. Tracebacks show the page and its line."""
    source = _body(block)
    if title := TITLE.search(block["options"]):
        Path(title[1]).write_text(source)
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile("\n" * line + source, str(page), "exec"), module.__dict__)
    return printed.getvalue()


def _shown(command):
    """A command, and what it prints in 80 columns and without colours."""
    folders = (Path(sys.executable).parent, os.environ["PATH"])
    environment = {
        **os.environ,
        "COLUMNS": "80",
        "PATH": os.pathsep.join(map(str, folders)),
        "PYTHONPATH": str(Path(rope_xp.__file__).parents[1]),
    }
    # The package that this process has need not be installed.
    program = re.sub(r"\brope-xp (?=\w|-)", "python -P -m rope_xp ", command)
    shell = {"shell": True, "text": True, "env": environment}
    done = subprocess.run(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **shell)
    return f"$ {command}\n{done.stdout}"
