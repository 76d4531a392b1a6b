"""What rotations of arrays on many devices communicate, and how far they are from one device.

Run: `python benchmarks/devices.py [--quick]`. Eight virtual devices of JAX, whose compiled programs are read, and four
processes of PyTorch, which talk by gloo on this machine and count what they send. It prints a table, writes it to
benchmarks/results/devices.md and devices.json, and fails where anything is communicated that need not be, or where
results are not those of one device.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")  # before JAX starts
os.environ["JAX_PLATFORMS"] = "cpu"

import argparse
import json
import re
import sys
import tempfile
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.distributed as dist
from jax.sharding import NamedSharding, PartitionSpec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from rope_xp import RotaryEmbedding, apply_rotary_pos_emb, fixed_pos_embedding

DEVICES, RANKS = 8, 4
BATCH, HEADS, KV_HEADS, DIM, BASE = 8, 16, 8, 64, 10_000.0
AXES = {"batch": 0, "seq": 1, "heads": 2}
LAYOUTS = ("half", "interleaved")
APART = 3 * 2.0**-24 * 8  # two products of numbers below 8 and their sum, each rounded once
COLLECTIVES = r" (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
RESULTS = Path(__file__).parent / "results"


def rope_of(layout):
    return RotaryEmbedding(head_dim=DIM, layout=layout, base=BASE)


def by_tables(layout, q, k, positions):
    rope = rope_of(layout)
    return rope(q, k, sincos=rope.sincos(positions, like=q), seq_dim=1)


def by_notebook(layout, q, k, positions):
    sincos = fixed_pos_embedding(q, 1)
    return tuple(apply_rotary_pos_emb(x, sincos, layout=layout, seq_dim=1) for x in (q, k))


# Functions of the layout, q, k and positions.
CALLS = {
    "rope(q, k)": lambda layout, q, k, positions: rope_of(layout)(q, k, seq_dim=1),
    "positions=": lambda layout, q, k, positions: rope_of(layout)(q, k, positions=positions, seq_dim=1),
    "sincos=": by_tables,
    "fixed_pos_embedding": by_notebook,
}


def learned(x, inv_freq, positions):
    return RotaryEmbedding(head_dim=DIM, layout="half", inv_freq=inv_freq)(x, positions=positions, seq_dim=1)


def numbers(seq):
    random = np.random.default_rng(0)
    q, k = (random.standard_normal((BATCH, seq, heads, DIM), dtype=np.float32) for heads in (HEADS, KV_HEADS))
    inv_freq = (BASE ** (-np.arange(0, DIM, 2) / DIM)).astype(np.float32)
    return q, k, np.arange(seq, dtype=np.int32), inv_freq


def largest(results, truths):
    """The largest difference of any numbers; NaN where there is one."""
    pairs = zip(results, truths, strict=True)
    return float(np.max([np.abs(np.asarray(one) - np.asarray(other)).max() for one, other in pairs]))


def worst(found):
    """Of several layouts: collectives forward and in all, and the difference."""
    forward, both, differences = zip(*found)
    return max(forward), max(both), float(np.max(differences))


def in_jax(seq):
    """Yield the sharding, the call, collectives forward and in all, and the largest difference."""
    mesh = jax.make_mesh((DEVICES,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
    q, k, positions, inv_freq = map(jnp.asarray, numbers(seq))
    for name, axis in AXES.items():
        at = NamedSharding(mesh, PartitionSpec(*["devices" if place == axis else None for place in range(3)]))
        of_positions = NamedSharding(mesh, PartitionSpec("devices" if name == "seq" else None))
        arrays = jax.device_put((q, k), at)
        where = jax.device_put(positions, of_positions)
        for label, call in CALLS.items():
            found = []
            for layout in LAYOUTS:

                def forward(q, k, where, call=call, layout=layout):
                    return call(layout, q, k, where)

                def both(q, k, where, forward=forward):
                    y, pull = jax.vjp(lambda q, k: forward(q, k, where), q, k)
                    return *y, *pull(y)

                counts = [counted(function, *arrays, where) for function in (forward, both)]
                found.append((*counts, largest(jax.jit(both)(*arrays, where), jax.jit(both)(q, k, positions))))
            yield name, label, *worst(found)

        def gradient(q, inv_freq, where):
            return jax.vjp(lambda inv_freq: learned(q, inv_freq, where), inv_freq)[1](q)

        given = (arrays[0], jax.device_put(inv_freq, NamedSharding(mesh, PartitionSpec())), where)
        truth, found = jax.jit(gradient)(q, inv_freq, positions), jax.jit(gradient)(*given)
        yield name, LEARNED, counted(learned, *given), counted(gradient, *given), relative(found, truth)


LEARNED = "learned inv_freq"
# A gradient of frequencies is a sum over devices. DTensors that are not sharded as positions are sum those of tables.
LEAST = {(framework, axis): 1 for framework in ("JAX", "PyTorch") for axis in AXES}
LEAST |= {("PyTorch", axis): 2 for axis in ("batch", "heads")}  # one for sin, one for cos


def relative(found, truth):
    """The difference of gradients, which are sums of many products, by the largest of them."""
    return largest(found, truth) / float(np.abs(np.asarray(truth[0])).max())


def counted(function, *arrays):
    return len(re.findall(COLLECTIVES, jax.jit(function).lower(*arrays).compile().as_text()))


def in_torch(rank, folder, seq):
    """The same on one of the processes; the first writes what it found."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(minutes=5))
    mesh, rows = init_device_mesh("cpu", (RANKS,)), []
    q, k, positions, inv_freq = map(torch.asarray, numbers(seq))
    for name, axis in AXES.items():
        arrays = [distribute_tensor(x, mesh, [Shard(axis)]).requires_grad_() for x in (q, k)]
        where = distribute_tensor(positions, mesh, [Shard(0) if name == "seq" else Replicate()])
        for label, call in CALLS.items():
            found = []
            for layout in LAYOUTS:
                with CommDebugMode() as forward:
                    results = call(layout, *arrays, where)
                with CommDebugMode() as backward:
                    gradients = torch.autograd.grad(results, arrays, [y.detach() for y in results])
                alone = [x.clone().requires_grad_() for x in (q, k)]
                truths = call(layout, *alone, positions)
                truths += torch.autograd.grad(truths, alone, [y.detach() for y in truths])
                counts = forward.get_total_counts(), forward.get_total_counts() + backward.get_total_counts()
                found.append((*counts, largest(whole((*results, *gradients)), whole(truths))))
            rows.append((name, label, *worst(found)))
        parameter = distribute_tensor(inv_freq, mesh, [Replicate()]).requires_grad_()
        with CommDebugMode() as forward:
            turned = learned(arrays[0].detach(), parameter, where)
        with CommDebugMode() as backward:
            (gradient,) = torch.autograd.grad(turned, parameter, arrays[0].detach())
            gradient = gradient.redistribute(placements=[Replicate()])
        alone = inv_freq.clone().requires_grad_()
        truth = torch.autograd.grad(learned(q, alone, positions), alone, q)
        counts = forward.get_total_counts(), forward.get_total_counts() + backward.get_total_counts()
        rows.append((name, LEARNED, *counts, relative(whole([gradient]), whole(truth))))
    if rank == 0:
        Path(folder, "rows").write_text(json.dumps(rows))
    dist.destroy_process_group()


def whole(tensors):
    """NumPy's, of all ranks."""
    return [(x.full_tensor() if hasattr(x, "full_tensor") else x).detach().numpy() for x in tensors]


def measure(seq):
    for row in in_jax(seq):
        yield "JAX", *row
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(in_torch, (folder, seq), nprocs=RANKS)
        rows = json.loads(Path(folder, "rows").read_text())
    for row in rows:
        yield "PyTorch", *row


HEADS_OF_TABLE = ("", "sharded on", "call", "forward", "in all", "difference")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short sequences, for a test")
    parser.add_argument("--out", type=Path, help="Markdown file to write, beside JSON")
    arguments = parser.parse_args(argv)
    out = arguments.out or RESULTS / ("quick" if arguments.quick else "") / "devices.md"

    seq = 16 if arguments.quick else 512
    title = f"Collectives of rotations on {DEVICES} devices of JAX and {RANKS} ranks of PyTorch"
    table = Table(title=title, box=SIMPLE_HEAD)
    for head in HEADS_OF_TABLE[:3]:
        table.add_column(head, no_wrap=True)
    for head in HEADS_OF_TABLE[3:]:
        table.add_column(head, justify="right")
    rows, lines = [], [f"| {' | '.join(HEADS_OF_TABLE)} |", "|---|---|---|---:|---:|---:|"]
    for framework, sharded, call, forward, both, difference in measure(seq):
        rows.append(
            {
                "framework": framework,
                "sharded": sharded,
                "call": call,
                "forward": forward,
                "collectives": both,
                "expected": LEAST[framework, sharded] if call == LEARNED else 0,
                "difference": difference,
            }
        )
        cells = (framework, sharded, call, str(forward), str(both), f"{difference:.1e}")
        table.add_row(*cells)
        lines.append(f"| {' | '.join(cells)} |")
    Console(width=80).print(table)
    out.parent.mkdir(parents=True, exist_ok=True)
    versions = {name: version(name) for name in ("jax", "torch")}
    shapes = f"q ({BATCH}, {seq}, {HEADS}, {DIM}) and k ({BATCH}, {seq}, {KV_HEADS}, {DIM}), float32, both layouts"
    made = (
        f"Made by `python benchmarks/devices.py{' --quick' if arguments.quick else ''}` with "
        f"{' and '.join(' '.join(each) for each in versions.items())}: {shapes}; positions are sharded as the sequence "
        "is. Counted are collectives in the compiled program, or seen by CommDebugMode; the difference is the largest "
        "to one device, of results and gradients, and for learned frequencies by the largest gradient. Their gradient "
        "is a sum over devices: the one collective there has to be, or two, of tables, where DTensors are sharded "
        "otherwise than positions.\n"
    )
    out.write_text("\n".join([f"{title}.\n", made, *lines, ""]))
    out.with_suffix(".json").write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n")
    needless = [row for row in rows if row["collectives"] != row["expected"] or row["forward"]]
    if needless:
        sys.exit(f"communicated what need not be: {json.dumps(needless, indent=1)}")
    wrong = [row for row in rows if not row["difference"] <= APART]
    if wrong:
        sys.exit(f"not as on one device: {json.dumps(wrong, indent=1)}")
    return rows


if __name__ == "__main__":
    main()
