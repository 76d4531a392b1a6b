"""What several processes of PyTorch do at once, and what starts them: they talk by gloo, through a file.

And calls on queries and keys that lie on many devices.
"""

import multiprocessing
import tempfile
import time
import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from rope_xp import RotaryEmbedding, Sections, apply_rotary_pos_emb, fixed_pos_embedding
from rope_xp.positions import consecutive

# Processes are forks of one that has imported PyTorch, where there are forks.
START = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
multiprocessing.set_forkserver_preload(["torch.distributed.tensor.debug", "rope_xp"])

LIMIT = 240  # seconds, as processes that share a core with others import for long

BATCH, SEQ, HEADS, KV_HEADS, DIM = 4, 8, 6, 2, 16
SIZES = (BATCH, SEQ, HEADS, DIM), (BATCH, SEQ, KV_HEADS, DIM)


def on_ranks(size, *calls):
    """Call functions of this file, (function, *arguments), on so many processes; an error in one is raised here."""
    with tempfile.TemporaryDirectory() as folder:
        everything = (size, f"{folder}/store", calls)
        started = torch.multiprocessing.start_processes(_run, everything, size, join=False, start_method=START)
        deadline = time.monotonic() + LIMIT
        while not started.join(timeout=1):
            if time.monotonic() > deadline:
                for process in started.processes:
                    process.kill()
                raise TimeoutError(f"{[call[0].__name__ for call in calls]} did not end within {LIMIT} seconds")


def _run(rank, size, store, calls):
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    store = dist.FileStore(store, size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=LIMIT))
    dist.barrier()  # all are there, and nobody leaves before
    for function, *arguments in calls:
        torch.manual_seed(0)  # the same numbers everywhere
        function(*arguments)
        dist.barrier()
    dist.destroy_process_group()


def failing():
    raise ValueError(f"rank {dist.get_rank()} has failed")


def embedding(layout="half", **options):
    """By the reference, as DTensors are, so that there is no other rounding."""
    return RotaryEmbedding(head_dim=DIM, layout=layout, base=10_000.0, kernel="reference", **options)


def in_two_layers(rope, q, k, sincos):
    q, k = rope(q, k, sincos=sincos, seq_dim=1)
    return rope(q, k, sincos=sincos, seq_dim=1)


def by_notebook(rope, *arrays):
    sincos = [fixed_pos_embedding(x, 1, offset=7) for x in arrays]
    ways = {"layout": rope.layout, "seq_dim": 1, "kernel": rope.kernel}
    return [apply_rotary_pos_emb(x, each, **ways) for x, each in zip(arrays, sincos)]


def calls(arange):
    """Functions of a value, q, k and positions, (seq), for the library that `arange` is of."""

    def at(where):
        return lambda rope, q, k, given: rope(q, k, positions=where(q, given), seq_dim=1)

    def by_rows(rope, q, k, where):
        sincos = rope.sincos(arange(2 * q.shape[1]))
        return rope(q, k, sincos=sincos, positions=arange(q.shape[1]) + 3, seq_dim=1)

    return {
        "counted": lambda rope, q, k, where: rope(q, k, seq_dim=1),
        "positions": at(lambda q, where: where),
        "positions of rows": at(lambda q, where: consecutive(q.shape[1], arange(q.shape[0]) + 100_000)),
        "tables": lambda rope, q, k, where: in_two_layers(rope, q, k, rope.sincos(where, like=q)),
        "rows of tables": by_rows,
        "shift": lambda rope, q, k, where: (rope.shift(q, -3, seq_dim=1), rope.shift(k, where, seq_dim=1)),
        "rerotate": lambda rope, q, k, where: [
            rope.rerotate(x, where, to=rope.replace(base=500.0), seq_dim=1) for x in (q, k)
        ],
        "notebook": lambda rope, q, k, where: by_notebook(rope, q, k),
    }


def dtensors_otherwise():
    """Uneven shards, position axes, offsets, the default kernel, channels or sums apart, memory written over."""
    mesh, rope, x = init_device_mesh("cpu", (2,)), embedding(), torch.randn(3, 7, 5, DIM)

    def shard(array, axis):
        return distribute_tensor(array, mesh, [Replicate() if axis is None else Shard(axis)])

    def rotation(x, where, rope=rope):
        return rope(x, positions=where, seq_dim=1)

    def assert_equal(result, truth, atol=0.0):
        torch.testing.assert_close(result.full_tensor(), truth, rtol=0, atol=atol)

    counted = torch.arange(7)
    for axis in range(3):
        where = shard(counted, 0 if axis == 1 else None)
        assert_equal(rotation(shard(x, axis), where), rotation(x, counted))

    axes, shards = embedding(sections=Sections((3, 5))), shard(x, 0)
    where = torch.stack([torch.arange(21).reshape(3, 7), torch.arange(21).reshape(3, 7) ** 2])
    for axis in range(3):  # the first are the position axes, which are gathered
        assert_equal(rotation(shards, shard(where, axis), axes), rotation(x, where, axes))

    offsets = torch.tensor([3, 70_000, 0])
    decoded = consecutive(7, shard(offsets, 0))
    assert decoded.placements == (Shard(0),)
    assert_equal(rotation(shards, decoded), rotation(x, consecutive(7, offsets)))

    usual = RotaryEmbedding(head_dim=DIM, layout="half", base=10_000.0)
    assert "reference" in usual.describe(shards)
    # Another kernel rounds two products of numbers below 8 otherwise.
    assert_equal(usual(shards, seq_dim=1), usual.rotate(x, usual.sincos(counted), seq_dim=1), 2 * 8 * 2.0**-24)

    channels, neighbours = shard(x, 3), embedding("interleaved")
    assert_equal(neighbours(channels, seq_dim=1), neighbours(x, seq_dim=1))
    with pytest.raises(RuntimeError, match="sharded dimension"):  # whose channels are on another rank
        rope(channels, seq_dim=1)

    parts = DTensor.from_local(x, mesh, [Partial()])
    assert_equal(rotation(parts, counted), rotation(2 * x, counted), 16 * 2.0**-24)
    written = shard(x.clone(), 1)
    rope.rotate_inplace(written, sincos=rope.sincos(counted), seq_dim=1)
    assert_equal(written, rotation(x, counted))


def learned_frequencies():
    """The gradient of frequencies is a sum over ranks, which is one all-reduce, where positions are spread like x.

    Where they are not, every rank makes all tables, whose gradients are gathered, or summed: one for sin, one for cos.
    """
    mesh = init_device_mesh("cpu", (2,))
    x, g, inv_freq = torch.randn(*SIZES[0]), torch.randn(*SIZES[0]), torch.logspace(0, -3, DIM // 2)
    rows = torch.arange(BATCH * SEQ).reshape(BATCH, SEQ)

    def gradient(x, g, inv_freq, where):
        rope = RotaryEmbedding(head_dim=DIM, layout="half", inv_freq=inv_freq)
        return torch.autograd.grad(rope(x, positions=where, seq_dim=1), inv_freq, g)[0]

    truth = gradient(x, g, inv_freq.clone().requires_grad_(), rows)
    for axis in (0, 1):
        spread = [distribute_tensor(each, mesh, [Shard(axis)]) for each in (x, g)]
        for where, expected in ((rows, 2), (distribute_tensor(rows, mesh, [Shard(axis)]), 1)):
            plain = inv_freq.clone().requires_grad_()
            parameter = distribute_tensor(inv_freq, mesh, [Replicate()]).requires_grad_()
            for given in (plain, parameter):
                with CommDebugMode() as communication:
                    found = gradient(*spread, given, where)
                    if given is parameter:
                        found = found.redistribute(placements=[Replicate()]).to_local()
                assert communication.get_total_counts() == expected, (axis, communication.get_comm_counts())
                if expected == 1:
                    assert communication.get_comm_counts()[torch.ops.c10d_functional.all_reduce] == 1
                # A sum of 4 * 8 * 6 products below 5 * 5 * 32, each turned.
                assert (found - truth).abs().max() <= 192 * 800 * 2.0**-24


def compiled():
    """DTensors under `torch.compile`, without a graph break."""
    mesh, rope = init_device_mesh("cpu", (2,)), embedding()
    call = torch.compile(lambda q, k, at: rope(q, k, positions=at, seq_dim=1), backend="aot_eager", fullgraph=True)
    arrays, where = [torch.randn(size) for size in SIZES], torch.arange(SEQ)
    for axis, given in ((0, where), (1, distribute_tensor(where, mesh, [Shard(0)]))):
        results = call(*[distribute_tensor(x, mesh, [Shard(axis)]) for x in arrays], given)
        for result, truth in zip(results, rope(*arrays, positions=where, seq_dim=1), strict=True):
            assert result.placements == (Shard(axis),)
            assert torch.equal(result.full_tensor(), truth)
