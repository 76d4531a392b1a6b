"""The tables of `speed.py`: goals, cases in which another package is faster, and all candidates of each backend."""

from typing import Any, NamedTuple

from common import LAYOUTS, Table
from speed_candidates import FORMULA, GPTJ, IN_PLACE, LLAMA, META, OURS, USUAL, WITHOUT_NUMBA
from speed_cases import TABLES, WORKLOADS

NOTES = (
    "Shortest times of calls that alternate within one run, on one machine; figures of a machine with other work are "
    "unreliable. clone and copy: q and k copied to memory of their own, and to existing memory; on JAX, clone is one "
    "multiplication. With the allocator of glibc, each large result is in new memory, which the system has to make "
    "ready page by page; but for kept, in memory of earlier results. All libraries are loaded from the beginning. In "
    "16 bits, transformers, keras-hub, the usual formula and the notebook (mesh-transformer-jax) compute in it; "
    "all others in float32, and round once."
)


class Goal(NamedTuple):
    """A bound on the time of `name`, as a multiple of any of `per`, in all rows that `where` selects."""

    text: str
    bound: float
    name: str
    per: tuple[str, ...]
    where: dict[str, Any]


def rows_of(workload, *dtypes, backend=("numpy", "torch")):
    return {"workload": workload, "pass": "forward", "backend": backend} | ({"dtype": dtypes} if dtypes else {})


MICROSECOND = "1 µs"
TORCH, LENGTHS = {"backend": "torch"}, tuple(workload.seq for workload in TABLES)
F32, LOW = ("prefill", "float32"), ("prefill", "bfloat16", "float16")
KEPT_F32, KEPT_LOW = ("kept", *F32[1:]), ("kept", *LOW[1:])
MANY = {"workload": "tables", "backend": ("numpy", "torch"), "seq": LENGTHS[1:]}
GOALS = (
    Goal("decode / transformers", 0.45, OURS, (LLAMA, GPTJ), rows_of("decode") | TORCH),
    Goal("decode / Meta's product", 1.0, OURS, (META,), rows_of("decode") | TORCH),
    Goal("step without numba, f32 / usual formula", 1.0, WITHOUT_NUMBA, (USUAL,), rows_of("step", "float32") | TORCH),
    Goal("step without numba, bf16 / usual formula", 1.5, WITHOUT_NUMBA, (USUAL,), rows_of("step", "bfloat16") | TORCH),
    Goal(
        "step without numba on NumPy, µs",
        40,
        WITHOUT_NUMBA,
        (MICROSECOND,),
        rows_of("step", "float32", backend="numpy"),
    ),
    Goal("decode on NumPy, µs", 16, OURS, (MICROSECOND,), rows_of("decode", backend="numpy")),
    Goal("positions given, µs", 60, OURS, (MICROSECOND,), rows_of("positions") | TORCH),
    Goal("positions given / Llama", 1.5, OURS, (LLAMA,), rows_of("positions") | TORCH),
    Goal("f32 / clone on NumPy", 0.95, OURS, ("clone",), rows_of(*F32, backend="numpy")),
    Goal("f32 / clone on PyTorch", 0.45, OURS, ("clone",), rows_of(*F32, backend="torch")),
    Goal("f32 kept / clone", 1.15, OURS, ("clone",), rows_of(*KEPT_F32)),
    Goal("f32 / Meta's product", 1.0, OURS, (META,), rows_of(*F32)),
    Goal("f32 in place / copy", 1.0, IN_PLACE, ("copy",), rows_of(*F32)),
    Goal("f32 without numba / clone", 2.5, WITHOUT_NUMBA, ("clone",), rows_of(*F32)),
    Goal("16 bits / clone on PyTorch", 0.7, OURS, ("clone",), rows_of(*LOW, backend="torch")),
    Goal("16 bits kept / clone", 1.5, OURS, ("clone",), rows_of(*KEPT_LOW)),
    Goal("16 bits in place / copy", 1.3, IN_PLACE, ("copy",), rows_of(*LOW)),
    Goal("bf16 without numba / clone", 4.0, WITHOUT_NUMBA, ("clone",), rows_of(*LOW[:2])),
    Goal("long f32 / clone", 1.25, OURS, ("clone",), rows_of(("long", "longest"), "float32")),
    Goal("long f32 in place / copy", 1.05, IN_PLACE, ("copy",), rows_of(("long", "longest"), "float32")),
    Goal("tables / formula", 2.0, OURS, (FORMULA,), MANY),
    Goal("tables without numba / formula", 4.0, WITHOUT_NUMBA, (FORMULA,), MANY),
    Goal("tables of 8 positions, µs", 30, OURS, (MICROSECOND,), MANY | {"seq": 8}),
)
GOALS_NOTE = (
    "The worst of layouts, orders, dtypes and lengths, on NumPy and PyTorch. f32, bf16, 16 bits, kept: prefill; step: "
    "of one sequence, decode: of 8; "
    "positions given: decoding without tables; tables: of 256 positions and more."
)
# Workload, pass and dtype of each column.
COLUMNS = {
    "f32": ("prefill", "forward", "float32"),
    "bf16": ("prefill", "forward", "bfloat16"),
    "backward": ("prefill", "forward + backward", "float32"),
    "kept": ("kept", "forward", "float32"),
    "long": ("long", "forward", "bfloat16"),
    "decode": ("decode", "forward", "float32"),
    "pos.": ("positions", "forward", "float32"),
}
LEGEND = (
    "f32, bf16, backward (f32, forward + backward), kept (f32): prefill, as a multiple of clone (in place: of copy); "
    "long: the same, bf16. decode, pos.: µs of a step in f32, with tables or with positions. *: sequence first; "
    "others: heads first."
)
SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "interleaved": "interl."}
SHORT |= {"forward + backward": "backward", "heads first": "heads", "sequence first": "seq."}


def tables(rows):
    """All tables: goals, cases in which another package is faster, and the candidates of each backend."""
    yield goals(rows)
    yield faster(rows)
    rotations = [row for row in rows if row["workload"] in WORKLOADS]
    for backend in dict.fromkeys(row["backend"] for row in rotations):
        yield candidates(backend, [row for row in rotations if row["backend"] == backend])


def number(value):
    return f"{value:.0f}" if value >= 99.5 else f"{value:#.3g}".rstrip(".")


def short_label(row, *axes):
    """The axes of a row, in a few letters."""
    return ", ".join(SHORT.get(row[axis], str(row[axis])) for axis in axes if row.get(axis, "forward") != "forward")


def selected(row, where):
    return all(row.get(key) in (each if isinstance(each, tuple) else (each,)) for key, each in where.items())


def goals(rows):
    lines = []
    for goal in GOALS:
        found = []
        for row in (row for row in rows if selected(row, goal.where)):
            us = row["us"] | {MICROSECOND: 1.0}
            found += [(us[goal.name] / us[name], row) for name in goal.per if {goal.name, name} <= us.keys()]
        line = ["-", "-", ""]
        if found:
            worst, row = max(found, key=lambda pair: pair[0])
            at = short_label(row, "backend", "seq", "layout", "order", "dtype")
            line = [number(worst), "yes" if worst <= goal.bound else "no", at]
        lines.append([f"{goal.text} ≤ {goal.bound:g}", *line])
    return Table("Goals", ("goal", "measured", "met", "worst case"), lines, GOALS_NOTE)


def faster(rows):
    found = {}
    for row in (row for row in rows if row["workload"] in WORKLOADS):
        for name, time in row["us"].items():
            if OURS in row["us"] and not name.startswith((OURS, "clone", "copy")):
                key, ratio = (row["backend"], row["workload"], row["pass"]), time / row["us"][OURS]
                found[key] = min(found.get(key, (1.0, "", {})), (ratio, name, row), key=lambda each: each[0])
    axes = ("backend", "workload", "pass", "layout", "order", "dtype")
    lines = [[short_label(row, *axes), name, number(ratio)] for ratio, name, row in found.values() if name]
    note = "The fastest for each backend, workload and pass; its time as a multiple of that of rope_xp."
    return Table("Other packages", ("", "fastest", "time"), lines, note)


def candidates(backend, rows):
    lines = []
    for layout in LAYOUTS:
        chosen = [row for row in rows if row["layout"] == layout]
        names = dict.fromkeys(name for row in chosen for name in row["us"] if name != "copy")
        lines += [[layout], *([name, *(cell(chosen, name, *column) for column in COLUMNS.values())] for name in names)]
    return Table(f"All on {backend}", ("", *COLUMNS), lines, LEGEND if backend == "numpy" else "")


def cell(rows, name, *column):
    for row in rows:  # heads first come first
        times = row["us"]
        if (row["workload"], row["pass"], row["dtype"]) == column and name in times:
            reference = "copy" if name == IN_PLACE or "clone" not in times else "clone"
            unit = times[reference] if column[0] in ("prefill", "kept", "long") else 1
            return number(times[name] / unit) + ("" if row["order"] == "heads first" else "*")
    return "-"
