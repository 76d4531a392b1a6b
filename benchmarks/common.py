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

DIM, BASE = 128, 10_000.0
LAYOUTS = ("half", "interleaved")
RESULTS = Path(__file__).parent / "results"


class Table(NamedTuple):
    title: str
    headings: tuple[str, ...]
    rows: list[list[str]]  # a row of one cell is a heading of the rows below it
    note: str = ""


def option_parser(doc):
    """A parser of the options that all scripts have."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small inputs: a test of the script, not a measurement")
    parser.add_argument("--out", type=Path, help="Markdown file to write; a JSON file of the same name is written too")
    return parser


def is_installed(package):
    return any(True for _ in distributions(name=package))


def machine():
    """The processor and how many of its cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cpuinfo = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text()) if cpuinfo.exists() else None
    return f"{model[1] if model else platform.processor() or platform.machine()}, {cores} cores"


def run_facts(script, argv, *packages):
    """How a run was made: the command, the machine and the versions of packages."""
    arguments = sys.argv[1:] if argv is None else argv
    return {
        "command": shlex.join(["python", f"benchmarks/{Path(script).name}", *arguments]),
        "machine": f"{machine()}; {platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "packages": {name: version(name) for name in packages if is_installed(name)},
    }


def load_file(package, path):
    """One module of a package that cannot be imported as a whole."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise ImportError(f"No module named {package!r}")
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
    """Each pair of channels as one complex number."""
    first, second = np.split(x, 2, axis=-1) if layout == "half" else (x[..., ::2], x[..., 1::2])
    return first + 1j * second


def largest_difference(found, expected):
    """The largest difference of real or imaginary parts; NaN if any is NaN."""
    difference = np.asarray(found) - np.asarray(expected)
    return float(np.max([np.abs(difference.real).max(), np.abs(difference.imag).max()]))


def rounded(value):
    """The same value with its floats cut to three significant digits."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if not isinstance(value, float):
        return value
    return int(float(f"{value:.3g}")) if 100 <= value < 1e15 else float(f"{value:.3g}")


def publish(arguments, name, title, notes, made_with, tables, rows):
    """Print tables, write them as Markdown and `rows` as JSON, one row a line. Return the rounded rows.

    Without `--out`, the files are called `name`. `made_with` has the facts of the run: texts, lists or dictionaries.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    out = arguments.out or RESULTS / ("quick" if arguments.quick else "") / f"{name}.md"
    rows, text = [rounded(row) for row in rows], markdown(title, notes, made_with, tables)
    Console(width=80).print(Markdown(text))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text)
    lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)},\n" for key, value in made_with.items()]
    body = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    out.with_suffix(".json").write_text(f'{{\n{"".join(lines)}"rows": [\n{body}\n]\n}}\n')
    print(f"written: {out}", file=sys.stderr)
    return rows


def is_numeric(table, column):
    """Whether each cell of a column is a number or empty."""
    cells = [row[column].strip("*-") for row in table.rows if len(row) > column]
    return all(re.fullmatch(r"[\d.e+-]*", cell) for cell in cells)


def markdown(title, notes, made_with, tables):
    lines = [f"# {title}", "", *textwrap.wrap(notes, 80), ""]
    for name, fact in made_with.items():
        if isinstance(fact, dict):
            fact = "; ".join(f"{key} {value}" for key, value in fact.items())
        text = f"- {name}: {'; '.join(fact) if isinstance(fact, list) else fact}"
        lines += textwrap.wrap(text, 80, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    for table in tables:
        lines += ["", f"## {table.title}", "", *textwrap.wrap(table.note, 80), *([""] if table.note else [])]
        rule = ["---", *("---:" if is_numeric(table, n + 1) else "---" for n in range(len(table.headings) - 1))]
        for row in (table.headings, rule, *table.rows):
            cells = [f"**{row[0]}**", *[""] * (len(table.headings) - 1)] if len(row) == 1 else row
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])
