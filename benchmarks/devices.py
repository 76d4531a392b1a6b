"""Communication of rotations on several devices, and how their results differ from those on one device.

Run: `python benchmarks/devices.py [--quick] [--out FILE]`. JAX has eight virtual devices, and its compiled programs are
read. PyTorch has four processes that communicate by gloo on this machine, and CommDebugMode counts their collectives.
It prints a table and writes it to benchmarks/results/devices.md. It fails if a collective is not
needed, or if results differ from those of one device.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")  # before JAX starts
os.environ["JAX_PLATFORMS"] = "cpu"

import json
import re
import tempfile
from datetime import timedelta
from functools import partial
from pathlib import Path

import common
import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.distributed as dist
from common import BASE, LAYOUTS
from jax.sharding import NamedSharding, PartitionSpec
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from rope_xp import RotaryEmbedding, apply_rotary_pos_emb, fixed_pos_embedding

DEVICES, RANKS = 8, 4
BATCH, HEADS, KV_HEADS, DIM = 8, 16, 8, 64
AXES = {"batch": 0, "seq": 1, "heads": 2}
TOLERANCE = 3 * 2.0**-24 * 8  # two products of numbers below 8 and their sum, each rounded once
COLLECTIVES = r" (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("


def with_notebook(rope, q, k, _):
    sincos = fixed_pos_embedding(q, 1)
    return tuple(apply_rotary_pos_emb(x, sincos, layout=rope.layout, seq_dim=1) for x in (q, k))


CALLS = {
    "rope(q, k)": lambda rope, q, k, _: rope(q, k, seq_dim=1),
    "positions=": lambda rope, q, k, positions: rope(q, k, positions=positions, seq_dim=1),
    "sincos=": lambda rope, q, k, positions: rope(q, k, sincos=rope.sincos(positions, like=q), seq_dim=1),
    "fixed_pos_embedding": with_notebook,
}
LEARNED = "learned inv_freq"
# Collectives of a gradient of frequencies. It is a sum over devices; with DTensors that are not sharded as their
# positions, PyTorch sums the gradients of sines and of cosines.
NEEDED = {(framework, axis): 1 for framework in ("JAX", "PyTorch") for axis in AXES}
NEEDED |= {("PyTorch", axis): 2 for axis in ("batch", "heads")}


def learned(inv_freq, x, positions):
    return (RotaryEmbedding(head_dim=DIM, layout="half", inv_freq=inv_freq)(x, positions=positions, seq_dim=1),)


def subjects(q, k, positions, inv_freq):
    """Yield labels, calls, arrays with gradients, other arguments, and cotangents (None: the results)."""
    for label, call in CALLS.items():
        for layout in LAYOUTS:
            rope = RotaryEmbedding(head_dim=DIM, layout=layout, base=BASE)
            yield label, partial(call, rope), (q, k), (positions,), None
    yield LEARNED, learned, (inv_freq,), (q, positions), (q,)


def numbers(seq):
    random = np.random.default_rng(0)
    q, k = (random.standard_normal((BATCH, seq, heads, DIM), dtype=np.float32) for heads in (HEADS, KV_HEADS))
    inv_freq = (BASE ** (-np.arange(0, DIM, 2) / DIM)).astype(np.float32)
    return q, k, np.arange(seq, dtype=np.int32), inv_freq


def difference(label, found, expected):
    """The largest difference of results and gradients from those of one device; NaN if any is NaN.

    A gradient of frequencies is a sum of many products. Its difference is relative to its largest number.
    """
    if label == LEARNED:
        (found,), (expected,) = found[1], expected[1]
        return common.largest_difference(found, expected) / float(np.abs(np.asarray(expected)).max())
    pairs = zip((*found[0], *found[1]), (*expected[0], *expected[1]), strict=True)
    return float(np.max([common.largest_difference(*pair) for pair in pairs]))


def in_jax(seq, axes):
    """Yield the sharded axis, the label, the collectives of the forward pass and of both passes, and the difference."""
    mesh = jax.make_mesh((DEVICES,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
    arrays = [jnp.asarray(x) for x in numbers(seq)]
    for name, axis in axes.items():
        split = PartitionSpec(*["devices" if place == axis else None for place in range(3)])
        specs = (split, split, PartitionSpec("devices" if name == "seq" else None), PartitionSpec())
        sharded = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(arrays, specs)]
        for (label, call, *given), (*_, inputs, others, cotangents) in zip(subjects(*sharded), subjects(*arrays)):
            both = partial(with_gradients, call)
            counts = counted(call, *given[0], *given[1]), counted(both, *given)
            found, expected = jax.jit(both)(*given), jax.jit(both)(inputs, others, cotangents)
            yield name, label, *counts, difference(label, found, expected)


def with_gradients(call, inputs, others, cotangents):
    results, pull = jax.vjp(lambda *inputs: call(*inputs, *others), *inputs)
    return results, pull(cotangents or results)


def counted(function, *arguments):
    return len(re.findall(COLLECTIVES, jax.jit(function).lower(*arguments).compile().as_text()))


def in_torch(rank, folder, seq, axes):
    """The same in one of the processes. The first process writes the rows to a file."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(minutes=5))
    mesh, rows, arrays = init_device_mesh("cpu", (RANKS,)), [], [torch.asarray(x) for x in numbers(seq)]
    for name, axis in axes.items():
        placements = (Shard(axis), Shard(axis), Shard(0) if name == "seq" else Replicate(), Replicate())
        sharded = [distribute_tensor(x, mesh, [placement]) for x, placement in zip(arrays, placements)]
        for (label, *given), (_, *on_one_device) in zip(subjects(*sharded), subjects(*arrays)):
            forward, both, *found = run_in_torch(label, *given)
            rows.append((name, label, forward, both, difference(label, found, run_in_torch(label, *on_one_device)[2:])))
    if rank == 0:
        Path(folder, "rows").write_text(json.dumps(rows))
    dist.destroy_process_group()


def run_in_torch(label, call, inputs, others, cotangents):
    """The collectives of the forward pass and of both passes, and whole results and gradients."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    with CommDebugMode() as forward:
        results = call(*inputs, *others)
    with CommDebugMode() as backward:
        gradients = torch.autograd.grad(results, inputs, cotangents or [y.detach() for y in results])
        if label == LEARNED and isinstance(gradients[0], DTensor):
            gradients = [gradients[0].redistribute(placements=[Replicate()])]
    whole = [[(x.full_tensor() if isinstance(x, DTensor) else x).detach() for x in xs] for xs in (results, gradients)]
    return forward.get_total_counts(), forward.get_total_counts() + backward.get_total_counts(), *whole


def measure(seq, axes):
    """Yield a row for each framework, sharded axis and call: the worst of both layouts."""
    found = [("JAX", *row) for row in in_jax(seq, axes)]
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(in_torch, (folder, seq, axes), nprocs=RANKS)
        found += [("PyTorch", *row) for row in json.loads(Path(folder, "rows").read_text())]
    for key in dict.fromkeys(row[:3] for row in found):
        forward, both, error = np.max([row[3:] for row in found if row[:3] == key], axis=0).tolist()
        row = dict(zip(("framework", "sharded", "call"), key)) | {"forward": int(forward), "collectives": int(both)}
        yield row | {"difference": error, "expected": NEEDED[key[:2]] if key[2] == LEARNED else 0}


def main(argv=None):
    arguments = common.option_parser(__doc__).parse_args(argv)
    seq, axes = (16, {"seq": AXES["seq"]}) if arguments.quick else (512, AXES)
    rows = list(measure(seq, axes))
    cells = [[*row.values()][:6] for row in rows]
    headings = ("", "sharded", "call", "forward", "both passes", "difference")
    table = common.Table(f"{DEVICES} devices of JAX, {RANKS} ranks of PyTorch", headings, cells)
    notes = (
        f"Collectives of rotations of q ({BATCH}, {seq}, {HEADS}, {DIM}) and k ({BATCH}, {seq}, {KV_HEADS}, {DIM}), "
        "float32, both layouts, as the compiled program of JAX has them and CommDebugMode of PyTorch counts them. "
        "Positions are sharded as the sequence is. The difference is the largest from one device, of results and "
        "gradients; for learned frequencies it is relative to the largest gradient. A gradient of frequencies is a sum "
        "over devices and needs one collective, or two (sines, cosines) for a DTensor that is not sharded as positions."
    )
    common.publish(arguments, "devices", "Collectives of rotations", notes, ("jax", "torch"), [table])
    wrong = [row for row in rows if row["collectives"] != row["expected"] or row["forward"]]
    common.fail_if(wrong, "collectives that are not needed")
    common.fail_if([row for row in rows if not row["difference"] <= TOLERANCE], "results differ from one device")
    return rows


if __name__ == "__main__":
    main()
