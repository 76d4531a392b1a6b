"""What `speed.py` says of its figures: tables, goals, a picture, and the machine."""

import importlib.util
import itertools
import math
import os
import platform
import re
from pathlib import Path
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table
from speed_candidates import IN_PLACE, LAYOUTS, OURS, installed

PACKAGES = (
    *("numpy", "ml_dtypes", "numba", "torch", "triton", "jax", "jaxlib"),
    *("transformers", "rotary-embedding-torch", "x-transformers", "torchtune", "timm", "equinox"),
    *("flash-attn", "liger-kernel", "transformer-engine"),
)
ALLOCATORS = {
    "keep": "glibc's malloc told to keep what is freed (but for peak memory)",
    "stock": "glibc's malloc as it is, which gives back what is freed",
    "map": "glibc's malloc told to map each large array by itself",
}
ARITHMETIC = (
    "transformers, keras-hub and the notebook compute in them, flash-attn and Liger have tables in them; all others, "
    "rope_xp among them, compute in float32 and round once"
)
COPYING = {"numpy": "np.copyto", "torch": "copy_", "torch.compile": "copy_", "jax": "jitted multiply", "cuda": "copy_"}


class Goal(NamedTuple):
    """The worst of one figure in the records that `where` chooses, and what it should not pass."""

    text: str
    figure: str
    bound: float
    where: dict[str, Any]
    at_least: bool = False


def prefill(backend, dtype=None, name=OURS, **where):
    where |= {"dtype": dtype} if dtype else {}
    return {"workload": "prefill", "pass": "forward", "backend": backend, "name": name, **where}


LOW = ("bfloat16", "float16")
LLAMA_GPTJ = ("transformers Llama", "transformers GPT-J")
COMPILED, EAGER = ("torch.compile", "jax", "cuda, compiled"), ("numpy", "torch", "cuda")
GOALS = (
    Goal("torch, f32: copies", "copies", 1.4, prefill("torch", "float32")),
    Goal("torch, f32: transformers takes", "ours", 5, prefill("torch", "float32", LLAMA_GPTJ), True),
    Goal("torch, 16 bits: copies", "copies", 2, prefill("torch", LOW)),
    Goal("torch, 16 bits: transformers takes", "ours", 3.5, prefill("torch", LOW, LLAMA_GPTJ), True),
    Goal(
        "torch, with backward: transformers takes",
        "ours",
        4,
        prefill("torch", name=LLAMA_GPTJ) | {"pass": "forward + backward"},
        True,
    ),
    Goal("NumPy, f32: copies", "copies", 0.7, prefill("numpy", "float32")),
    Goal("NumPy, f16: copies", "copies", 0.8, prefill("numpy", "float16")),
    Goal("NumPy, bf16: copies", "copies", 1, prefill("numpy", "bfloat16")),
    *(
        Goal(
            f"NumPy without numba, {layout}: copies",
            "copies",
            bound,
            prefill("numpy", "float32", "rope_xp, eager", layout=layout),
        )
        for layout, bound in (("interleaved", 1.1), ("half", 3.6))
    ),
    Goal("jax.jit: of the fewest bytes", "bytes", 1.05, prefill("jax")),
    Goal("jax.jit: copies", "copies", 2, prefill("jax")),
    Goal("torch.compile: copies", "copies", 1.3, prefill("torch.compile")),
    Goal("torch, decode: copies", "copies", 5, prefill("torch") | {"workload": "decode"}),
    Goal("tables, compiled: of naive ones", "naives", 1, {"workload": "tables", "name": OURS, "backend": COMPILED}),
    Goal("tables, eager: of naive ones", "naives", 2, {"workload": "tables", "name": OURS, "backend": EAGER}),
    Goal("GPU, in place: copies", "copies", 1 / 0.9, prefill("cuda", name=IN_PLACE)),
    Goal("GPU: any other takes", "ours", 1, {"workload": "prefill", "backend": "cuda", "other": True}, True),
)
# Columns for each dtype: the head, a record's figure, and what it is multiplied by.
RATIOS = (("min", "copies", 1), ("med.", "copies median", 1), ("ours", "ours", 1))
CALLS = (("µs", "min", 1e6), ("med.", "median", 1e6), ("copies", "copies", 1), ("ours", "ours", 1))
BYTES = ((None, "payloads", 1),)
SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "heads first": "heads", "sequence first": "seq."}
COPIES = "min, med.: in times copying q and k; ours: in times that rope_xp takes"
LEGENDS = {
    "prefill": COPIES,
    "long": COPIES,
    "decode": "µs, med.: of one call; copies: in times copying q and k; ours: in times that rope_xp takes",
    "tables": "float32: position times frequency in float32, its sine and its cosine",
    "memory": "in bytes of q and k, beyond what was there before; results and gradients are counted",
}


class Grid(NamedTuple):
    title: str
    legend: str
    heads: list[str]
    rows: list[list[str]]  # one of a single cell is the headline of those below


def number(value, scale=1):
    if value is None:
        return "-"
    value *= scale
    return f"{value:.0f}" if value >= 99.5 else f"{value:#.3g}".rstrip(".")


def distinct(values):
    return list(dict.fromkeys(values))


def grids(result):
    """All tables of a result, in the order of its records."""
    for workload in distinct(record["workload"] for record in result["records"]):
        records = [record for record in result["records"] if record["workload"] == workload]
        shapes = result["shapes"][workload]
        if workload == "tables":
            rows = [
                [f"{r['backend']}, {r['name']}", *(number(r[k], 1e3) for k in ("min", "median")), number(r["naives"])]
                for r in records
            ]
            yield Grid(f"Tables\n{shapes}", LEGENDS[workload], ["", "ms", "med.", "ratio"], rows)
            continue
        axes = ("backend",) if workload == "memory" else ("backend", "pass", "order")
        for key in distinct(tuple(record[axis] for axis in axes) for record in records):
            chosen = [record for record in records if tuple(record[axis] for axis in axes) == key]
            yield rotations(workload, f"{', '.join((workload.capitalize(), *key))}\n{shapes}", chosen)


def rotations(workload, title, records):
    """One table of rotations: a row for each candidate, below its layout, and columns for each dtype."""
    found, legend = distinct((r["dtype"], r["pass"]) for r in records), LEGENDS[workload]
    figures = {"memory": BYTES, "decode": CALLS}.get(workload, RATIOS)
    columns = [(dtype, passes, *figure) for dtype, passes in found for figure in figures]
    heads = [f"{SHORT[dtype]}\n{head or passes}" for dtype, passes, head, *_ in columns]
    floors = {r["dtype"]: r["min"] for r in records if r["name"] == "copy"}
    if floors:
        times = ", ".join(f"{number(floor, 1e3)} ms ({dtype})" for dtype, floor in floors.items())
        legend += f"; {COPYING[records[0]['backend']]} takes {times}"
    rows = []
    for layout in distinct(r["layout"] for r in records):
        at = {(r["name"], r["dtype"], r["pass"]): r for r in records if r["layout"] == layout}
        rows.append([layout])
        for name in distinct(key[0] for key in at):
            cells = (number(at.get((name, d, p), {}).get(figure), scale) for d, p, _, figure, scale in columns)
            rows.append([name, *cells])
    return Grid(title, legend, ["", *heads], rows)


def goals(records):
    """What is to be reached, what was seen at worst, and where."""
    for goal in GOALS:
        chosen = [
            (record[goal.figure], record)
            for record in records
            if record.get(goal.figure) is not None
            and all(record.get(k) in (v if isinstance(v, tuple) else (v,)) for k, v in goal.where.items())
        ]
        line = {"goal": f"{goal.text} {'≥' if goal.at_least else '≤'} {goal.bound:.3g}", "met": None}
        if chosen:
            worst, record = (min if goal.at_least else max)(chosen, key=lambda pair: pair[0])
            line |= {"figure": worst, "at": place(record)}
            line["met"] = worst >= goal.bound if goal.at_least else worst <= goal.bound
        yield line


def place(record):
    """Where among layouts, orders and dtypes a record is, in few letters; a table has none of them."""
    at = [record[k] for k in ("layout", "order", "dtype") if k in record] or [record["backend"]]
    return ", ".join(SHORT.get(each, each) for each in at)


def faster_grid(result):
    """Where another takes less time than ours, in each table the one that takes least."""
    found = {}
    for r in result["records"]:
        if r.get("other") and r.get("ours") is not None and r["ours"] < 1:
            key = (r["backend"], r["workload"], r["pass"])
            found[key] = min(found.get(key, r), r, key=lambda record: record["ours"])
    rows = [[f"{', '.join(key)}, {place(r)}", r["name"], number(r["ours"])] for key, r in found.items()]
    legend = "from minima, in times that rope_xp takes: for each of the kinds below, the least"
    return Grid("Where another is faster", legend, ["", "who", "takes"], rows)


def goal_grid(result):
    met = {True: "yes", False: "no", None: "-"}
    rows = [[g["goal"], number(g.get("figure")), met[g["met"]], g.get("at", "")] for g in result["goals"]]
    legend = (
        "from minima, at the worst of layouts, orders and dtypes, of prefill if nothing else is said; copies: in times "
        "copying q and k; transformers, others: in times that rope_xp takes"
    )
    if result["quick"]:
        legend += "; of arrays far too small, as with --quick, this says nothing"
    return Grid("To reach", legend, ["goal", "seen", "met", "at worst"], rows)


def machine(backends):
    """What it ran on: a name, the same as a file name, and the versions of packages."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text()) if cpuinfo.exists() else None
    cpu = found[1] if found else platform.processor() or platform.machine()
    name, device = f"{cpu}, {cores} cores", f"cpu {cpu} {cores} cores"
    threads = {}
    if any("torch" in backend or backend == "cuda" for backend in backends):
        import torch

        threads["torch"] = torch.get_num_threads()
        if "cuda" in backends:
            device = torch.cuda.get_device_name()
            name = f"{device}, CUDA {torch.version.cuda}, beside {name}"
    if importlib.util.find_spec("numba"):
        import numba

        threads["numba"] = numba.get_num_threads()
    slug = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return {"machine": name, "slug": slug, "system": system, "threads": threads, "versions": installed(*PACKAGES)}


def header(result):
    packages = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    threads = ", ".join(f"{name} {count}" for name, count in result["threads"].items())
    yield f"Machine: {result['machine']}; {result['system']}; threads: {threads or 'one'}."
    if result["load"] is not None:
        yield f"Load average before the run: {result['load']:.1f}; beside other work, figures mislead."
    yield f"Command: `{result['command']}`."
    yield f"Memory: {ALLOCATORS[result['allocator']]}."
    yield f"Packages: {packages}."
    yield f"16 bits: {ARITHMETIC}."
    if result["missing"]:
        yield f"Not installed, so not compared with: {', '.join(result['missing'])}."
    failed = [f"Failed, so not timed: {label}: {error}." for label, error in result["failed"].items()]
    yield from [*failed, *(f"Wrong, so not timed: {label}." for label in result["wrong"])]


def show(result, console):
    for line in header(result):
        console.print(line, markup=False, highlight=False)
    for grid in [*grids(result), faster_grid(result), goal_grid(result)]:
        table = Table(title=grid.title, caption=grid.legend, box=SIMPLE_HEAD, padding=(0, 0), show_edge=False)
        for n, head in enumerate(grid.heads):
            table.add_column(
                head, justify="right" if n and head not in ("met", "at worst") else "left", no_wrap=not n and not head
            )
        for row in grid.rows:
            table.add_row(*row, style="bold" if len(row) == 1 or row[0] == OURS else None)
        console.print(table, "")


def markdown(result, picture):
    lines = ["# Speed", "", *(f"- {line}" for line in header(result))]
    lines += ["", f"![Prefill, forward, in times copying the same arrays]({picture})"]
    for grid in [goal_grid(result), faster_grid(result), *grids(result)]:
        title, *rest = grid.title.split("\n")
        lines += ["", f"## {title}", "", *rest, grid.legend, ""]
        heads, empty = [" ".join(head.split()) for head in grid.heads], [""] * (len(grid.heads) - 1)
        rows = [[f"**{row[0]}**", *empty] if len(row) == 1 else row for row in grid.rows]
        lines += [f"| {' | '.join(row)} |" for row in (heads, ["---", *["---:" for _ in empty]], *rows)]
    return "\n".join([*lines, ""])


def picture(result, path):
    """Bars for each candidate in prefill, forward: a row of panels for each backend, a column for each layout."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    bars, orders = {}, {}
    for r in sorted(result["records"], key=lambda r: r.get("order") != "heads first"):  # which counts, if it is there
        if (r["workload"], r.get("pass")) == ("prefill", "forward") and r["name"] != "copy":
            panel = r["backend"], r["layout"]
            if orders.setdefault((panel, r["name"]), r["order"]) == r["order"]:
                name = r["name"] + ("" if r["order"] == "heads first" else " (sequence first)")
                bars.setdefault(panel, {}).setdefault(name, {})[r["dtype"]] = r["copies"]
    if not bars:
        return
    backends = distinct(backend for backend, _ in bars)
    heights = [max(len(bars.get((backend, layout), {})) for layout in LAYOUTS) for backend in backends]
    figure, panels = pyplot.subplots(
        len(backends),
        len(LAYOUTS),
        sharex=True,
        squeeze=False,
        layout="constrained",
        figsize=(11, 1.2 + sum(0.28 * height + 0.5 for height in heights)),
        height_ratios=heights,
    )
    for panel, (backend, layout) in zip(panels.flat, itertools.product(backends, LAYOUTS)):
        shown = sorted(bars.get((backend, layout), {}).items(), key=lambda bar: bar[1].get("float32", 0))
        colours = ["tab:orange" if name.startswith(OURS) else "tab:blue" for name, _ in shown]
        for n, (dtype, opacity) in enumerate((("float32", 1.0), ("bfloat16", 0.45))):
            values = [found.get(dtype, math.nan) for _, found in shown]
            places = [place + 0.4 * n for place in range(len(shown))]
            drawn = panel.barh(places, values, height=0.38, color=colours, alpha=opacity)
            panel.bar_label(drawn, [number(v) if v == v else "" for v in values], fontsize=6, padding=2)
        panel.set_yticks([place + 0.2 for place in range(len(shown))], [name for name, _ in shown])
        panel.set_title(f"{backend}, {layout}", fontsize=9, loc="left")
        panel.set_xscale("log")
        panel.margins(x=0.1)
        panel.tick_params(labelsize=8)
        panel.axvline(1, color="black", linewidth=0.7)
        panel.invert_yaxis()
        panel.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("times copying the same arrays; full: float32, pale: bfloat16", fontsize=9)
    figure.suptitle(f"Rotating {result['shapes']['prefill']} on {result['machine']}", fontsize=10)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
