"""Times of rotating queries and keys and of computing tables: rope_xp and other installed packages.

Run: `python benchmarks/speed.py [--backend torch] [--workload prefill] [--quick] [--out FILE]`. It prints tables and
writes them as Markdown to benchmarks/results/speed-<machine>. Calls of all candidates alternate within a run,
and a figure is the shortest time. A candidate that raises or gives a wrong result is not timed, and the script exits
with an error at the end. A long time is not an error. head_dim is 128 and the base is 10,000.
"""

import ctypes
import math
import os
import random
import re
import sys
import time
import warnings
from dataclasses import replace

import numpy as np

os.environ.setdefault("JAX_PLATFORMS", "cpu")
import common
import speed_report
from speed_candidates import CANDIDATES, OURS, tables_of
from speed_cases import BACKENDS, TABLES, WORKLOADS, Case, cases

LARGER_THAN_CACHES = np.ones(2**25)  # 256 MiB
# Parameters of `mallopt` in malloc.h of glibc, and their values for each kind of memory. `allocate` says why.
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
ALLOCATION = {
    "new": {MMAP_THRESHOLD: 2**20, MMAP_MAX: 2**16},
    "kept": {TRIM_THRESHOLD: -1, MMAP_MAX: 0},
}


class Bench:
    """The measurements of one run, and the candidates that failed."""

    def __init__(self, quick):
        self.quick, self.rows, self.wrong = quick, [], []

    def run(self, backend, name):
        workload = self.smaller(WORKLOADS[name])
        every = list(cases(backend, workload))
        # One case where each is compiled: with gradients, where a workload has them.
        for case in every[1:2] if self.quick and backend.name in ("torch.compile", "jax") else every:
            if backend.name == "torch.compile":
                backend.functions.compiler.reset()
            allocate(workload.memory)
            arrays = case.draw()
            references = backend.references(arrays)
            for run in references.values():  # so that it is compiled; candidates run once when they are checked
                run()
            times = shortest(workload, references | dict(self.calls(case, arrays)))
            self.rows.append({"backend": backend.name, "workload": name, **case.labels, "us": times})

    def smaller(self, workload):
        """The workload, or with `--quick` one of few tokens, fewer dtypes and one round."""
        if not self.quick:
            return workload
        short = {"seq": min(workload.seq, 256), "rounds": 1, "seconds": 0.0}
        return replace(workload, **short, dtypes=workload.dtypes[:2][-1:], trained=workload.trained[1:])

    def calls(self, case, arrays):
        """Yield the name and the call of each candidate that gives the right result."""
        for one in (one for one in CANDIDATES if one.takes(case)):
            label = ", ".join([one.name, case.backend.name, *case.labels.values()])
            own = case.backend.references(arrays)["clone"]() if one.in_place else arrays
            try:
                function, tables = one.make(case)
                run = case.backend.runner(function, own, tables, case.backward)
                excess = case.excess(arrays, run(), one.pairs or case.layout, one.name.startswith(OURS))
            except Exception as error:  # the other candidates are still measured
                self.wrong.append(f"{label}: {common.message(error)}")
                continue
            if excess <= 1:
                yield one.name, run
            else:
                self.wrong.append(f"{label}: {excess:.1e} times the allowed error")

    def tables(self, backend):
        """Tables of many positions and of few."""
        for workload in TABLES[:2] if self.quick else TABLES:
            case, runs = Case(backend, self.smaller(workload), "heads first", "float32", "half"), {}
            for name, (function, arrays, bound) in tables_of(case).items():
                runs[name] = backend.runner(function, arrays, ())
                error = case.error_of_tables(runs[name]())
                if not error <= bound:
                    self.wrong.append(f"{name}, {backend.name}, tables: {error:.1e} from the truth")
                    return
            figures = shortest(case.workload, runs)
            self.rows.append({"backend": backend.name, "workload": "tables", "seq": workload.seq, "us": figures})


def allocate(memory):
    """Take the memory of each large array from the system, or keep that of arrays that are gone.

    The allocator of glibc does either for arrays of up to 32 MiB, by what was freed before; then one clone takes 1 ms,
    and the next one 20 ms. Other allocators are left as they are.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        for parameter, value in ALLOCATION[memory].items():
            libc.mallopt(parameter, value)


def shortest(workload, runs):
    """The shortest time of each call, in µs. Calls alternate, in a new random order in each round."""
    calls = dict.fromkeys(runs, 1)
    if workload.repeat_seconds:
        calls = {name: max(10, int(workload.repeat_seconds / seconds(run, 10))) for name, run in runs.items()}
    least, order = dict.fromkeys(runs, math.inf), list(runs)
    draw, start, rounds = random.Random(0), time.perf_counter(), 0
    while rounds < workload.rounds or time.perf_counter() - start < workload.seconds:
        rounds += 1
        draw.shuffle(order)
        for name in order:
            least[name] = min(least[name], seconds(runs[name], calls[name]))
    return {name: 1e6 * found for name, found in least.items()}


def seconds(run, calls):
    """The mean time of several calls in a row. A single call begins with cold caches, as in a model."""
    if calls == 1:
        LARGER_THAN_CACHES.max()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def main(argv=None):
    parser = common.option_parser(__doc__)
    workloads = ["tables", *WORKLOADS]
    parser.add_argument("--backend", action="append", choices=BACKENDS, help="repeatable; default: all installed")
    parser.add_argument("--workload", action="append", choices=workloads, help="repeatable; default: all")
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")  # other packages warn
    installed = [name for name in BACKENDS if common.is_installed(name.partition(".")[0])]
    alike = ("long", "longest") if arguments.quick else ()  # where all are short
    chosen = [name for name in workloads if name in (arguments.workload or {*workloads} - {*alike})]
    backends = [BACKENDS[name]() for name in arguments.backend or installed]
    load, bench = os.getloadavg()[0] if hasattr(os, "getloadavg") else math.nan, Bench(arguments.quick)
    for workload in chosen:
        for backend in backends:
            if workload == "tables":
                bench.tables(backend)
            elif backend.name in WORKLOADS[workload].backends:
                bench.run(backend, workload)

    libraries = ("numpy", "ml_dtypes", "numba", "torch", "jax", "jaxlib")
    packages = dict.fromkeys([*libraries, *(one.package for one in CANDIDATES if one.package)])
    arrays = {name: str(bench.smaller(WORKLOADS[name])) for name in chosen if name in WORKLOADS}
    facts = {"load before the run": f"{load:.1f}", "arrays": arrays, "wrong": bench.wrong}
    name = re.sub(r"[^a-z0-9]+", "-", f"speed-cpu-{common.machine()}".lower()).strip("-")
    tables = list(speed_report.tables(bench.rows))
    common.publish(arguments, name, "Speed", speed_report.NOTES, packages, tables, **facts)
    common.fail_if(bench.wrong, "wrong results")


if __name__ == "__main__":
    main()
