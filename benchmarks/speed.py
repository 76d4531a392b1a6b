"""How fast queries and keys are rotated and tables are made, by this package and by installed others.

Run: `python benchmarks/speed.py [--backend torch] [--workload prefill] [--quick] [--out PATH]`. It prints tables and
writes them as Markdown, all figures as JSON and one picture, to benchmarks/results/speed-<device> unless `--out` says
where. Candidates take turns within a run, and a figure is a ratio to copying the same arrays in that run. Who gives a
wrong answer is not timed, and the script then fails; no time makes it fail. head_dim is 128 and the base 10,000.

By default large arrays come from memory that the process keeps: with `--allocator stock` glibc gives it back, and
every new array is paid for with page faults. What needs a GPU (`--backend cuda`) is written but not yet measured.
"""

import argparse
import gc
import importlib.util
import itertools
import json
import os
import random
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent))  # which python -P leaves out
import speed_report as report
from speed_candidates import (
    BACKENDS,
    BASE,
    DIM,
    EPSILON,
    HEADS_FIRST,
    INV_FREQ,
    LAYOUTS,
    OURS,
    Case,
    Workload,
    candidates_of,
)

HERE = Path(__file__).resolve().parent
# numba imports coverage if it can, which must not be the script here.
sys.path[:] = [path for path in sys.path if Path(path).resolve() != HERE]
RESULTS = HERE / "results"
# keep: one heap, never given back. map: every large array is mapped anew, so that resident memory is what is in use.
ALLOCATORS = {
    "keep": {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_ARENA_MAX": "1"},
    "stock": {},
    "map": {"MALLOC_MMAP_THRESHOLD_": str(2**16)},
}
WORKLOADS = {
    "prefill": Workload(1, (32, 8), 2048, trained=("float32", "bfloat16")),
    "long": Workload(1, (8, 2), 131_072, dtypes=("bfloat16",), orders=HEADS_FIRST, rounds=2),
    "decode": Workload(8, (32, 8), 1, first=1000, dtypes=("float32", "bfloat16"), seconds=0.3, lasting=0.001),
    "tables": Workload(1, (0, 0), 131_072),
    "memory": Workload(1, (32, 8), 2048, dtypes=("float32", "bfloat16"), trained=("float32", "bfloat16")),
}
QUICK = {"prefill": 128, "long": 2048, "decode": 1, "tables": 4096, "memory": 128}  # tokens


class Bench:
    """All that one run measures, and what it could not."""

    def __init__(self, quick):
        self.quick = quick
        self.records: list[dict[str, Any]] = []
        self.missing: set[str] = set()
        self.failed: dict[str, str] = {}
        self.wrong: list[str] = []

    def workload(self, name):
        workload = WORKLOADS[name]
        if not self.quick:
            return workload
        trained = workload.trained[1:] if name == "prefill" else ()
        dtypes = {"dtypes": workload.dtypes[1:2] or workload.dtypes, "trained": trained}
        return replace(workload, seq=QUICK[name], rounds=1, seconds=0.0, **dtypes)

    def run(self, backend, name):
        workload = self.workload(name)
        if name == "tables":
            return self.tables(backend, workload)
        candidates = list(candidates_of(backend, self.missing))
        cases = [
            (order, dtype, layout, backward)
            for order, dtype, layout in itertools.product(workload.orders, workload.dtypes, LAYOUTS)
            for backward in ((False, True) if backend.gradients and dtype in workload.trained else (False,))
        ]
        if self.quick and backend.name not in ("numpy", "torch"):
            cases = cases[1::3]  # some of all kinds, as compiling takes most of the time
        for order, dtype, layout, backward in cases:
            case = Case(backend, workload, layout, order, dtype, backward)
            backend.forget()
            measure = self.memory if name == "memory" else self.times
            arrays = case.draw()
            ready = [one for one in candidates if one.takes(case)]
            for record in measure(name, case, arrays, ready):
                self.records.append({"backend": backend.name, "workload": name, **case.labels, **record})
        return None

    def prepared(self, name, case, one, arrays):
        """A candidate's function, tables and call, once it has given the right answer; None where it did not."""
        label = ", ".join([one.name, case.backend.name, name, *case.labels.values()])
        own = [case.backend.copy(x) for x in arrays] if one.in_place else arrays
        try:
            function, tables = one.make(case)
            run = case.backend.runner(function, own, tables, case.backward, one.compiled)
            found = run()
        except Exception as error:
            if one.ours:
                raise
            self.failed[label] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            return None
        epsilon = EPSILON[case.dtype]
        for off, right, largest in case.errors(arrays, found):
            rounded_once = epsilon * np.abs(right) + 1e-6 * largest
            # In the dtype of x throughout, with angles in float32.
            rounded_often = (4 * epsilon + 2.0**-22 * case.positions[-1] + 1e-6) * largest
            if not np.all(np.abs(off) <= (rounded_once if one.ours else rounded_often)):
                self.wrong.append(f"{label}: off by {np.abs(off).max():.1e}")
                return None
        return function, tables, run

    def interleave(self, case, runs):
        """Times of calls that take turns, in an order drawn anew in each round."""
        backend, workload = case.backend, case.workload
        times, order, calls, repeats = {name: [] for name in runs}, list(runs), {}, {}
        for name, run in runs.items():
            few = 10 if workload.lasting else 1  # short calls are never timed alone, with a cold cache
            once = min(backend.seconds(run, few))
            calls[name] = max(few, int(workload.lasting / once))
            repeats[name] = 1 if self.quick else 2 if once > 0.01 else 5  # more where they cost little
        draw, start, rounds = random.Random(0), time.perf_counter(), 0
        while rounds < workload.rounds or time.perf_counter() - start < workload.seconds:
            rounds += 1
            draw.shuffle(order)
            for name in order:
                for _ in range(repeats[name]):
                    times[name] += backend.seconds(runs[name], calls[name])
        return {name: {"min": min(found), "median": statistics.median(found)} for name, found in times.items()}

    def times(self, name, case, arrays, candidates):
        runs, more = {"copy": case.backend.copier(arrays)}, {}
        for one in candidates:
            ready = self.prepared(name, case, one, arrays)
            if ready:
                function, tables, runs[one.name] = ready
                if name == "prefill" and case.backend.library == "jax" and not case.backward:
                    ideal = 2 * sum(x.nbytes for x in arrays) + 2 * 4 * case.angles.size
                    more[one.name] = {"bytes": case.backend.bytes_accessed(function, arrays, tables) / ideal}
        times = self.interleave(case, runs)
        others = {one.name for one in candidates if not one.ours}
        for key, found in times.items():
            ratios = {
                "copies": found["min"] / times["copy"]["min"],
                "copies median": found["median"] / times["copy"]["median"],
                "ours": found["min"] / times[OURS]["min"] if OURS in times else None,
            }
            yield {"name": key, "other": key in others, **found, **ratios, **more.get(key, {})}

    def memory(self, name, case, arrays, candidates):
        gc.disable()  # it would free in a call what is of no concern to that
        for one in candidates:
            ready = case.order == one.orders[0] and self.prepared(name, case, one, arrays)
            peak = peak_memory(case.backend, ready[2]) if ready else None
            if peak is not None:
                yield {"name": one.name, "payloads": peak / sum(x.nbytes for x in arrays[:2])}

    def tables(self, backend, workload):
        """Exact tables beside the product in float32 and its sine and cosine."""
        from rope_xp import RotaryEmbedding

        case = Case(backend, workload, "half", "heads first", "float32")
        rope = RotaryEmbedding(head_dim=DIM, layout="half", base=BASE)
        xp, like = backend.functions, case.array(INV_FREQ)

        def naive(positions, inv_freq):
            angles = positions[:, None] * inv_freq
            return xp.sin(angles), xp.cos(angles)

        def exact(positions):
            return tuple(rope.sincos(positions, like=like))

        functions = {
            "float32": (naive, [case.array(case.positions), like], 2.0**-22 * case.positions[-1]),
            OURS: (exact, [case.array(case.positions, "int32")], 2e-7),
        }
        for compiled in backend.compiles:
            runs = {}
            for name, (function, arrays, bound) in functions.items():
                runs[name] = backend.runner(function, arrays, (), compiled=compiled)
                found = [backend.rows(table, np.arange(workload.seq), 0) for table in runs[name]()]
                off = max(np.abs(table - f(case.angles)).max() for table, f in zip(found, (np.sin, np.cos)))
                if off > bound:
                    self.wrong.append(f"{name}, {backend.name}, tables: off by {off:.1e}")
                    return
            times = self.interleave(case, runs)
            label = f"{backend.name}, compiled" if backend.name == "cuda" and compiled else backend.name
            for name, found in times.items():
                naives = found["min"] / times["float32"]["min"]
                self.records.append({"backend": label, "workload": "tables", "name": name, **found, "naives": naives})


def peak_memory(backend, run):
    """The most bytes that a call has beyond what was there before, its results among them; None where unknown."""
    run()
    if backend.device == "cuda":
        before = backend.torch.cuda.memory_allocated()
        backend.torch.cuda.reset_peak_memory_stats()
        run()
        return backend.torch.cuda.max_memory_allocated() - before
    if backend.library == "jax":
        time.sleep(0.1)  # until what XLA frees in another thread is free
    try:
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # forgets how large it was so far
    except OSError:
        return None
    result = run()
    peak = resident("VmHWM") - before
    del result
    return peak


def resident(name):
    return 1024 * int(re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])


def measured_apart(arguments):
    """What another process measures, whose allocator gives back what is freed."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "memory.md"
        words = [word for name in arguments.backend for word in ("--backend", name)]
        words += ["--quick"] * arguments.quick + ["--workload", "memory", "--allocator", "map", "--out", str(out)]
        flags = ["-P"] if sys.flags.safe_path else []
        subprocess.run([sys.executable, *flags, __file__, *words], check=False, stdout=subprocess.DEVNULL)
        return json.loads(out.with_suffix(".json").read_text())


def parsed(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", action="append", choices=BACKENDS, help="repeatable; what is installed, on a CPU")
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="repeatable; all of them")
    parser.add_argument("--quick", action="store_true", help="small arrays, one round: a test of the script")
    parser.add_argument("--allocator", choices=ALLOCATORS, default="keep", help="what becomes of freed memory")
    parser.add_argument("--out", type=Path, help="Markdown file to write; JSON and PNG go beside it")
    arguments = parser.parse_args(argv)
    libraries = {"numpy": "numpy", "torch": "torch", "torch.compile": "torch", "jax": "jax"}
    arguments.backend = arguments.backend or [b for b, lib in libraries.items() if importlib.util.find_spec(lib)]
    arguments.workload = arguments.workload or list(WORKLOADS)
    return arguments


def main(argv=None):
    arguments = parsed(argv)
    settings = {name for allocator in ALLOCATORS.values() for name in allocator}
    environment = {name: value for name, value in os.environ.items() if name not in settings}
    environment |= ALLOCATORS[arguments.allocator] | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if "cuda" not in arguments.backend:
        environment["JAX_PLATFORMS"] = "cpu"
    if environment != os.environ:  # which libraries read when they load
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    warnings.simplefilter("ignore")  # those of the packages compared with

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    bench, console = Bench(arguments.quick), Console()
    apart = "memory" in arguments.workload and arguments.allocator != "map"
    for name in arguments.backend:
        backend = BACKENDS[name]()
        for workload in arguments.workload:
            if not (apart and workload == "memory"):
                with Console(stderr=True).status(f"{name}: {workload}"):
                    bench.run(backend, workload)
    if apart:
        with Console(stderr=True).status("memory"):
            found = measured_apart(arguments)
        bench.records += found["records"]
        bench.failed |= found["failed"]
        bench.wrong += found["wrong"]

    result = {
        "command": shlex.join(["python", "benchmarks/speed.py", *(sys.argv[1:] if argv is None else argv)]),
        "allocator": arguments.allocator,
        "quick": arguments.quick,
        **report.machine(arguments.backend),
        "load": load,
        "shapes": {name: str(bench.workload(name)) for name in WORKLOADS},
        "missing": sorted(bench.missing),
        "failed": bench.failed,
        "wrong": bench.wrong,
        "goals": list(report.goals(bench.records)),
        "records": bench.records,
    }
    out = arguments.out or RESULTS / ("quick" if arguments.quick else "") / f"speed-{result['slug']}.md"
    out.parent.mkdir(parents=True, exist_ok=True)
    report.show(result, console)
    out.write_text(report.markdown(result, out.with_suffix(".png").name))
    out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    report.picture(result, out.with_suffix(".png"))
    console.print(f"written: {out}", soft_wrap=True)
    if bench.wrong:
        sys.exit("wrong answers:\n" + "\n".join(bench.wrong))


if __name__ == "__main__":
    main()
