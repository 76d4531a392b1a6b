"""Helpers of all benchmarks: the command line, the machine, exact rotations, and the output of results."""

import argparse
import importlib.util
import json
import os
import platform
import re
import shlex
import sys
import textwrap
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# Scripts import this file before transformers.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a config that needs a file of the hub fails at once
DIM, BASE = 128, 10_000.0
LAYOUTS = ("half", "interleaved")
RESULTS = Path(__file__).parent / "results"
# Where results are written is no part of the command that results name.
OUT = argparse.ArgumentParser(add_help=False)
OUT.add_argument("--out", type=Path, help="Markdown file to write")


class Table(NamedTuple):
    title: str
    headings: tuple[str, ...]
    rows: list[list[Any]]  # a row of one cell is a heading of the rows below it
    note: str = ""


def option_parser(doc, only=""):
    """A parser of the options that all scripts have, and of `--only` if there is a help text for it."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0], parents=[OUT])
    parser.add_argument("--quick", action="store_true", help="small inputs: a test of the script, not a measurement")
    if only:
        parser.add_argument("--only", action="append", default=[], metavar="NAME", help=only)
    return parser


def message(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def is_installed(package):
    return any(True for _ in distributions(name=package))


def machine():
    """The processor and how many of its cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cpuinfo = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text()) if cpuinfo.exists() else None
    return f"{model[1] if model else platform.processor() or platform.machine()}, {cores} cores"


def run_facts(*packages):
    """How a run was made: the command, the machine and the versions of packages."""
    _, arguments = OUT.parse_known_args()
    return {
        "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *arguments]),
        "machine": f"{machine()}; {platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "packages": {name: version(name) for name in packages if is_installed(name)},
    }


def load_file(package, path):
    """One module of a package that cannot be imported as a whole."""
    found: Any = importlib.util.find_spec(package)
    file = Path(found.origin).parent / path
    spec: Any = importlib.util.spec_from_file_location(f"{package}_{file.stem}", file)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # torch.compile looks it up there
    spec.loader.exec_module(module)
    return module


def llama_rotary():
    """The rotary module of Llama in transformers. A call takes an array, for its dtype, and positions."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = {"rope_type": "default", "rope_theta": BASE}
    return LlamaRotaryEmbedding(LlamaConfig(hidden_size=DIM, num_attention_heads=1, rope_parameters=parameters))


def exact_rotations(positions):
    """cos + i sin of position times frequency, "positions pairs": computed by mpmath, exact in complex128."""
    import mpmath

    with mpmath.workprec(200):
        frequencies = [mpmath.mpf(BASE) ** (mpmath.mpf(-2 * j) / DIM) for j in range(DIM // 2)]
        return np.array([[complex(mpmath.expj(mpmath.mpf(int(p)) * w)) for w in frequencies] for p in positions])


def to_numpy(x):
    """Any library's array as float64."""
    return x.detach().double().cpu().numpy() if hasattr(x, "detach") else np.array(x).astype(np.float64)


def complex_pairs(x, layout):
    """Each pair of channels of any library's array as one complex number."""
    x = to_numpy(x)
    first, second = np.split(x, 2, axis=-1) if layout == "half" else (x[..., ::2], x[..., 1::2])
    return first + 1j * second


def largest_difference(found, expected):
    """The largest difference of real or imaginary parts; NaN if any is NaN."""
    difference = np.asarray(found) - np.asarray(expected)
    return float(np.max([np.abs(difference.real).max(), np.abs(difference.imag).max()]))


def write(arguments, name, *report):
    """Write a report, the arguments of `markdown`, to a file: `name`, if no other is given. Return the text."""
    out = arguments.out or RESULTS / ("quick" if arguments.quick else "") / f"{name}.md"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text := markdown(*report))
    print(f"written: {out}", file=sys.stderr)
    return text


def publish(arguments, name, title, notes, packages, tables, **facts):
    """Print tables, and write them as Markdown. `facts` are texts, lists or dictionaries; empty ones are left out."""
    from rich.console import Console
    from rich.markdown import Markdown

    made_with = run_facts(*packages) | {name: fact for name, fact in facts.items() if fact}
    Console(width=80).print(Markdown(write(arguments, name, title, notes, made_with, tables)))


def fail_if(wrong, why):
    """Exit with an error if there are wrong rows."""
    if wrong:
        sys.exit(f"{why}: {json.dumps(wrong, indent=1)}")


def alignment(cells):
    """The rule below the heading of a column, at the right if each other cell is a number or empty."""
    return "---:" if all(re.fullmatch(r"[\d.e+-]*", cell.strip("*-")) for cell in cells[1:]) else "---"


def shown(cell):
    """The text of a cell. A float is an error."""
    return "-" if cell is None else f"{cell:.1e}" if isinstance(cell, float) else str(cell)


def markdown(title, notes, made_with, tables):
    lines = [f"# {title}", "", *textwrap.wrap(notes, 80), ""]
    for name, fact in made_with.items():
        if isinstance(fact, dict):
            fact = "; ".join(f"{key} {value}" for key, value in fact.items())
        text = f"- {name}: {'; '.join(fact) if isinstance(fact, list) else fact}"
        lines += textwrap.wrap(text, 80, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    for table in tables:
        lines += ["", f"## {table.title}", "", *textwrap.wrap(table.note, 80), *([""] if table.note else [])]
        more = [""] * (len(table.headings) - 1)
        rows = [[f"**{row[0]}**", *more] if len(row) == 1 else list(map(shown, row)) for row in table.rows]
        rule = ["---", *map(alignment, list(zip(table.headings, *rows))[1:])]
        lines += [f"| {' | '.join(row)} |" for row in (table.headings, rule, *rows)]
    return "\n".join([*lines, ""])
