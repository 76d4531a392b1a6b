"""The whole programme for a GPU: tests of the kernel, times, launch overhead and bandwidth, of PyTorch and of JAX.

Run: `python benchmarks/gpu.py [--dry] [--only PART] [--out FILE]`. It prints tables and writes them to
benchmarks/results/gpu-<device>.md. It fails at the end if a test fails, or if a candidate raises or gives a wrong
result; such a candidate is not timed. With --dry, everything is small, runs on the CPU and, for our kernel, in Triton's
interpreter: then figures have no meaning, and only show that the script works. head_dim is 128, the base is 10,000.
"""

import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "")  # JAX chooses: `speed` would choose the CPU
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # leaves memory to PyTorch
import common
import numpy as np
from common import LAYOUTS, is_installed
from speed import Bench, shortest
from speed_candidates import CANDIDATES, GPTJ, HALF, IN_PLACE, LLAMA, META, OURS, candidate, on_both, ours, rope_of
from speed_cases import HEADS_FIRST, SEQ_FIRST, WORKLOADS, Case, Jax, Torch

ROOT = Path(__file__).resolve().parents[1]
BOTH = ("float32", "bfloat16")
LOADS = {name: replace(WORKLOADS[name], dtypes=BOTH, trained=BOTH) for name in ("prefill", "long", "decode")}
GIVEN = ("tables", "rows", "positions")
OPERATOR = f"{OURS}, operator"
# What is tested: the module that this needs, and the arguments of pytest. With --dry, a few tests of the kernel.
TESTS = {
    "the kernel": ("torch", ["--xp=triton", "tests/triton"]),
    "all calls, PyTorch": ("torch", ["--xp=torch", "--gpu", "tests/core"]),
    "all calls, CuPy": ("cupy", ["--xp=cupy", "tests/core"]),
    "all calls, JAX": ("jax", ["--xp=jax", "tests/core"]),
}
PARTS = ("tests", "torch", "launches", "first call", "jax", "torch.compile")
COMPILERS = {False: "inductor", True: "eager"}  # by whether the run is dry
TEST_SECONDS = 170
FIRST_CALL = """
import time
import torch
from rope_xp import RotaryEmbedding
rope = RotaryEmbedding(head_dim=128, layout="half", base=10_000.0)
for dtype in (torch.float32, torch.bfloat16):
    q = torch.randn(1, 32, 16, 128, device="cuda", dtype=dtype)
    torch.cuda.synchronize()
    start = time.perf_counter()
    rope(q, seq_dim=2)
    torch.cuda.synchronize()
    print(time.perf_counter() - start)
"""
NOTES = (
    "Medians of times on the device in µs, by CUDA events, with cold caches; those of JAX are shortest times of calls "
    "that wait for the device. clone and copy: q and k copied to new memory, and to existing memory. Shares: the "
    "bandwidth that the rotation reaches, as a share of clone's (in place: of copy's). In 16 bits, transformers and "
    "Liger compute in that dtype; all others compute in float32 and round once. Liger writes in place, and is given "
    "views of arrays with the sequence first, as models do. Forward and backward passes are replayed as a CUDA graph, "
    "since Python takes longer than the device; so it does for JAX, where times are of the host. Width 128, 32 heads "
    "of q and 8 of k: prefill is one sequence of 2,048 tokens, long one of 8,192, decode one token of each of 8 "
    "sequences. tables: given; rows: of given tables, selected by positions; positions: alone. "
    'operator: compiled with kernel="triton", which the compiler fuses with nothing.'
)
DRY_NOTE = "A dry run on the CPU in Triton's interpreter: figures have no meaning. "


class Device:
    """Where arrays are and how calls are timed: a GPU with its events, or with `dry` the CPU with its clock."""

    def __init__(self, dry):
        import torch

        if not dry and not torch.cuda.is_available():
            sys.exit("gpu.py: a GPU must be available, or --dry must be given; got none")
        self.torch, self.dry, self.name = torch, dry, "cpu" if dry else "cuda"
        self.rounds, self.calls = (1, 1) if dry else (30, 200)
        self.larger_than_caches = torch.empty(1 if dry else 2**30, device=self.name)  # 4 GiB

    @property
    def title(self):
        return "dry" if self.dry else self.torch.cuda.get_device_name()

    def wait(self):
        if not self.dry:
            self.torch.cuda.synchronize()

    def medians(self, runs):
        """The median time of each call, in µs. Calls alternate, in a new random order in each round."""
        times, order, draw = {name: [] for name in runs}, list(runs), random.Random(0)
        for number in range(-1 if self.dry else -3, self.rounds):  # the first rounds warm up
            draw.shuffle(order)
            events = {name: self.timed(runs[name]) for name in order}
            self.wait()
            for name, (start, stop) in events.items() if number >= 0 else ():
                times[name].append(1e6 * (stop - start) if self.dry else 1e3 * start.elapsed_time(stop))
        return {name: statistics.median(each) for name, each in times.items()}

    def timed(self, run) -> tuple[Any, Any]:
        """The start and the end of a call. Clearing the caches takes the device longer than Python needs to launch."""
        self.larger_than_caches.zero_()
        if self.dry:
            return time.perf_counter(), (run(), time.perf_counter())[1]
        start, stop = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        return start, stop

    def captured(self, run):
        """The replay of a call as a CUDA graph, which takes the time of the device alone. Dry, the call itself."""
        if self.dry:
            return run
        cuda = self.torch.cuda
        own, graph = cuda.Stream(), cuda.CUDAGraph()
        own.wait_stream(cuda.current_stream())
        with cuda.stream(own):  # the first calls compile, and the backward pass needs a stream of its own
            for _ in range(3):
                run()
        cuda.current_stream().wait_stream(own)
        with cuda.graph(graph):
            run()

        def replay():
            graph.replay()

        replay.reads = run  # the graph has only the addresses of the arrays that this holds
        return replay

    def wall(self, run):
        """The time of a call in µs when many follow each other: the shortest of three means."""
        means = []
        for _ in range(3):
            self.wait()
            start = time.perf_counter()
            for _ in range(self.calls):
                run()
            self.wait()
            means.append(1e6 * (time.perf_counter() - start) / self.calls)
        return min(means)


def run_tests(dry, wrong):
    """How many tests passed, failed or were skipped. All run at the same time."""
    known = ["the kernel"] if dry else [name for name, (module, _) in TESTS.items() if is_importable(module)]
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda name: run_test(name, dry, wrong), known))


def run_test(name, dry, wrong):
    # Of pytest's plugins, that for benchmarks warns of xdist, and a warning is an error here.
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:benchmark"]
    command += [*TESTS[name][1], *(["-k", "take_several_heads"] if dry else ["--hypothesis-profile=brief"])]
    command += ["-n", str(max(1, os.cpu_count() // len(TESTS)))] if is_installed("pytest-xdist") and not dry else []
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TEST_SECONDS)
        text, failed = done.stdout, done.returncode != 0
    except subprocess.TimeoutExpired as stopped:
        text, failed = f"{(stopped.stdout or b'').decode()} stopped after {TEST_SECONDS} s", True
    counts = {kind: int(count) for count, kind in re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", text)}
    if failed or not counts.get("passed"):
        wrong.append(f"tests of {name}: {counts}; {' '.join(text.split())[-1500:]}")
    return {"tests": name, **counts}


def select_candidates():
    """Those of `speed.py` that run on a GPU, with our kernel by name, and packages that only run there."""
    kept = {OURS, IN_PLACE, "rope_xp, reference", LLAMA, GPTJ, META}
    for one in CANDIDATES:
        if one.name in (OURS, IN_PLACE):
            one = one._replace(make=partial(by_triton, one.make), given=("tables", "positions")[: 2 - one.in_place])
        if one.name in kept:
            yield one


def by_triton(make, case):
    return make(case, kernel="triton" if case.backend.name == "torch" else "fastest")


def by_rows(case, inplace=False):
    """Ours by rows of a table that positions select."""
    rope, array, options = rope_of(layout=case.layout, kernel="triton"), case.backend.array, {"seq_dim": case.seq_dim}
    positions = array(case.positions, "int64")
    tables = rope.sincos(array(np.arange(case.positions[-1] + 1), "int32"), like=array([0.0], case.dtype))

    def rotate(q, k, *sincos):
        if not inplace:
            return rope(q, k, sincos=sincos, positions=positions, **options)
        rope.rotate_inplace(q, k, sincos=sincos, positions=positions, **options)
        return q, k

    return rotate, tuple(tables)


def liger(case):
    """Its function, which takes views with heads first of arrays with the sequence first, and writes in place.

    Of a decoding step whose memory has heads first, it gives wrong results: it reads the stride of the sequence.
    """
    liger_rotary = import_module("liger_kernel.transformers.rope").liger_rotary_pos_emb

    def rotate(q, k, cos, sin):
        q, k = liger_rotary(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
        return q.transpose(1, 2), k.transpose(1, 2)

    return rotate, tuple(table[None] for table in case.cos_sin(wide=True))


def flash_attn(case):
    rotate = import_module("flash_attn.layers.rotary").apply_rotary_emb
    interleaved = case.layout == "interleaved"
    return on_both(lambda x, cos, sin: rotate(x, cos, sin, interleaved=interleaved)), case.cos_sin()


def is_importable(module):
    try:
        import_module(module)
    except Exception:  # such packages need a GPU, a compiler and the versions that they were built for
        return False
    return True


def register_others(dry):
    candidate(OURS, "torch", given=("rows",))(by_rows)
    candidate(OPERATOR, "torch", compiles=True, is_eager=False)(partial(ours, kernel="triton"))
    candidate(IN_PLACE, "torch", given=("rows",), in_place=True)(partial(by_rows, inplace=True))
    if not dry and is_importable("liger_kernel.transformers.rope"):
        candidate("Liger", "torch", layouts=HALF, orders=SEQ_FIRST, in_place=True)(liger)
    if not dry and is_importable("flash_attn.layers.rotary"):
        candidate("flash-attn", "torch", orders=SEQ_FIRST)(flash_attn)


def cases(backend, dry):
    """The name and the case of all measurements of a backend."""
    is_eager = backend.name == "torch"
    for name, load in LOADS.items() if is_eager else [("prefill", LOADS["prefill"]), ("decode", LOADS["decode"])]:
        if dry:  # the interpreter does not round to bfloat16
            load = replace(load, batch=1, heads=(2, 1), seq=min(load.seq, 3), dtypes=("float32", "float16"))
        load = replace(load, rounds=1, seconds=0.0) if dry else load
        for given in GIVEN if is_eager else GIVEN[:1]:
            if name == "long" and given != "tables":
                continue
            is_trained = given == "tables" and name == "prefill"
            is_usual = given == "tables" and name != "long"
            for order in HEADS_FIRST + SEQ_FIRST if is_eager and is_usual else HEADS_FIRST:
                for dtype in load.dtypes:
                    for layout in LAYOUTS:
                        for backward in (False, True)[: 2 if is_trained else 1]:
                            case = Case(backend, replace(load, given=given), order, dtype, layout, backward)
                            yield name, case


def measure(backend, device, bench, quick):
    """Times of all candidates for all cases; for some cases if `quick`."""
    for name, case in list(cases(backend, device.dry))[:: 7 if quick else 1]:
        if backend.name == "torch.compile":
            backend.functions.compiler.reset()
        arrays = case.draw()
        runs = backend.references(arrays) | dict(bench.calls(case, arrays))
        if case.backward and backend.name != "jax":  # Python takes longer than the device
            runs = {one: device.captured(run) for one, run in runs.items()}
        us = shortest(case.workload, runs) if backend.name == "jax" else device.medians(runs)
        row = {"backend": backend.name, "workload": name, "given": case.workload.given, **case.labels, "us": us}
        moved = 2e-3 * sum(x.nbytes for x in arrays[:2])  # read and written, in KB
        if not case.backward:
            row["GB/s"] = {one: moved / us[one] for one in us}
        bench.rows.append(row)


def overheads(device, backend):
    """Times of a decoding step: calls one after another, the replay of a CUDA graph, and Python's part alone."""
    from rope_xp.kernels import triton

    load = replace(LOADS["decode"], heads=(2, 1) if device.dry else LOADS["decode"].heads)
    for given in GIVEN:
        for backward in (False, True)[: 2 if given == "tables" else 1]:
            case = Case(backend, replace(load, given=given), "heads first", "float32", "half", backward)
            for one in CANDIDATES:
                if not one.takes(case) or one.in_place or "reference" in one.name:
                    continue
                function, tables = one.make(case)
                run = backend.runner(function, case.draw(), tables, backward)
                run()
                row = {"overhead": f"{one.name}, {given}{', forward and backward' * backward}"}
                row["call"] = device.wall(run)
                if not device.dry:
                    row["graph"] = device.wall(device.captured(run))
                if one.name == OURS and not backward:
                    start, triton._start = triton._start, lambda *arguments: None
                    try:
                        row["Python"] = device.wall(run)
                    finally:
                        triton._start = start
                yield row


def first_calls():
    """Seconds of the first calls of a process for two dtypes, with Triton's disk cache empty and then filled."""
    with tempfile.TemporaryDirectory() as folder:
        for state in ("empty", "filled"):
            environment = {
                **os.environ,
                "TRITON_CACHE_DIR": folder,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            }
            command = [sys.executable, "-c", FIRST_CALL]
            printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
            yield [state, *(f"{float(seconds):.2f}" for seconds in printed.split()[-2:])]


def tables(tests, launches, rows, first):
    counts = [[row["tests"], *(str(row.get(kind, 0)) for kind in ("passed", "failed", "skipped"))] for row in tests]
    yield common.Table("Tests on this device", ("", "passed", "failed", "skipped"), counts)
    for backend in dict.fromkeys(row["backend"] for row in rows):
        second, copy = (OPERATOR, "clone") if backend == "torch.compile" else (IN_PLACE, "copy")
        cells = [line(row, second, copy) for row in rows if row["backend"] == backend]
        heading = second.removeprefix(f"{OURS}, ")
        headings = ("", "ours", heading, "clone", "copy", "share", heading, "fastest other", "µs")
        yield common.Table(backend, headings, cells, "Times in µs. s: sequence first; others: heads first.")
    cells = [[row["overhead"], *(number(row.get(kind)) for kind in ("call", "graph", "Python"))] for row in launches]
    note = (
        "µs of a decoding step, float32: calls one after another, a replayed CUDA graph, and calls that do not launch."
    )
    yield common.Table("Launch overhead", ("", "call", "graph", "Python's part"), cells, note)
    note = "Seconds. Each dtype is compared with the reference, in several variants, before it is used."
    yield common.Table("First call of a process", ("Triton's disk cache", "float32", "then bfloat16"), first, note)


def line(row, second, copy):
    """One case: our times, those of copies, our shares of a copy's bandwidth, and the fastest other candidate."""
    us = row["us"]
    others = {name: time for name, time in us.items() if not name.startswith(OURS) and name not in ("clone", "copy")}
    name = ", ".join([row["workload"], row["given"], row["dtype"], row["layout"]])
    name += ", backward" * ("backward" in row["pass"]) + ", s" * row["order"].startswith("s")
    shares = [ratio(us.get("clone"), us.get(OURS)), ratio(us.get(copy), us.get(second))]
    fastest = min(others, key=others.__getitem__, default="")
    times = [number(us.get(one)) for one in (OURS, second, "clone", "copy")]
    return [name, *times, *(shares if "GB/s" in row else ["", ""]), fastest, number(others.get(fastest))]


def number(time):
    return "" if time is None else f"{time:.3g}"


def ratio(one, other):
    return f"{one / other:.2f}" if one and other else ""


def main(argv=None):
    parser = common.option_parser(__doc__, only=f"a part ({', '.join(PARTS)}), may be repeated")
    parser.add_argument("--dry", action="store_true", help="small, on the CPU in Triton's interpreter: a test of this")
    arguments = parser.parse_args(argv)
    arguments.quick |= arguments.dry
    parts = [part for part in PARTS if part in (arguments.only or PARTS)]
    if arguments.dry:  # before Triton and JAX are imported
        os.environ |= {"TRITON_INTERPRET": "1", "JAX_PLATFORMS": "cpu"}
    warnings.simplefilter("ignore")  # other packages warn
    device, bench = Device(arguments.dry), Bench(arguments.dry)
    CANDIDATES[:] = select_candidates()
    register_others(arguments.dry)
    eager = Torch("torch", device.name)
    backends = {"torch": eager, "torch.compile": Torch("torch.compile", device.name, COMPILERS[arguments.dry])}
    name = re.sub(r"[^a-z0-9]+", "-", f"gpu-{device.title}".lower()).strip("-")
    arguments.out = arguments.out or common.RESULTS / ("quick" if arguments.quick else "") / f"{name}.md"
    notes = DRY_NOTE * arguments.dry + NOTES
    packages, facts = ("torch", "triton", "jax", "transformers", "liger-kernel", "flash-attn"), {"device": device.title}
    tests, launches, first = [], [], []
    for part in parts:
        if part == "tests":
            tests = run_tests(arguments.dry, bench.wrong)
        elif part == "launches":
            launches = list(overheads(device, eager))
        elif part == "first call":
            first = [] if arguments.dry else list(first_calls())
        elif part != "jax":
            measure(backends[part], device, bench, arguments.quick)
        elif is_installed("jax") and (arguments.dry or import_module("jax").default_backend() == "gpu"):
            measure(Jax(), device, bench, arguments.quick)
        written = [table for table in tables(tests, launches, bench.rows, first) if table.rows]
        made_with = common.run_facts(*packages) | facts
        common.write(arguments, name, "GPU", notes, made_with, written)  # in case that time runs out
    common.publish(arguments, name, "GPU", notes, packages, written, **facts, wrong=bench.wrong)
    common.fail_if(bench.wrong, "wrong results")


if __name__ == "__main__":
    main()
