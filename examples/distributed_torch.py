"""Rotary positions on four processes in PyTorch: DTensors, FSDP and tensor-parallel attention, causal ring attention.

Run: `python distributed_torch.py`. It starts processes that communicate by gloo on this machine, and compares with one
process.
"""

import tempfile
from copy import deepcopy
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F

from rope_xp import RotaryEmbedding
from rope_xp.positions import context_parallel

RANKS, BATCH, SEQ, HEADS, KV_HEADS, HEAD_DIM = 4, 4, 64, 8, 4, 32
AXES = {"batch": 0, "sequence": 1, "heads": 2}  # of q and k; their last axis is the channels

rope = RotaryEmbedding(head_dim=HEAD_DIM, layout="half", base=500_000.0)


class SelfAttention(nn.Module):
    """Attention with grouped queries. Under tensor parallelism, each rank has some of the heads."""

    def __init__(self):
        super().__init__()
        dim = HEADS * HEAD_DIM
        self.wq, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(2))
        self.wk, self.wv = (nn.Linear(dim, KV_HEADS * HEAD_DIM, bias=False) for _ in range(2))

    def forward(self, x, positions):
        q, k, v = (w(x).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q, k = rope(q, k, positions=positions, seq_dim=2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return x + self.wo(y.transpose(1, 2).flatten(2))


class PassOn(torch.autograd.Function):
    """Receive an array from the rank before this one, and send gradients back to it."""

    @staticmethod
    def forward(ctx, x):
        return pass_on(x, by=1)

    @staticmethod
    def backward(ctx, gradient):
        return pass_on(gradient, by=-1)


def pass_on(x, by):
    rank, size, received = dist.get_rank(), dist.get_world_size(), torch.empty_like(x)
    send = dist.P2POp(dist.isend, x.contiguous(), (rank + by) % size)
    receive = dist.P2POp(dist.irecv, received, (rank - by) % size)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()
    return received


def ring_attention(q, k, v):
    """Causal attention to keys and values that move from rank to rank. Axes are batch heads seq dim.

    Each rank has the tokens of `context_parallel(zigzag=True)`, so that all ranks have the same work.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    mine, *others = (
        context_parallel(size * q.shape[2], (rank - step) % size, size, zigzag=True, like=q) for step in range(size)
    )
    q, k = rope(q, k, positions=mine, seq_dim=2)  # once, before keys are sent
    group = q.shape[1] // k.shape[1]
    highest, total, y, kv = torch.tensor(-torch.inf), 0.0, 0.0, torch.stack([k, v])
    for theirs in (mine, *others):
        kv = PassOn.apply(kv) if theirs is not mine else kv
        k, v = kv.repeat_interleave(group, dim=2)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores.masked_fill(theirs > mine[:, None], -torch.inf)
        # Running sums of exponentials, relative to the highest score so far.
        before, highest = highest, torch.maximum(highest, scores.detach().amax(dim=-1, keepdim=True))
        weights, shrink = torch.exp(scores - highest), torch.exp(before - highest)
        total = total * shrink + weights.sum(dim=-1, keepdim=True)
        y = y * shrink + weights @ v
    return y / total


def with_gradients(function, arrays, weights):
    """The results, and the gradients of their sum with these weights."""
    arrays = [x.detach().requires_grad_() for x in arrays]
    y = function(*arrays)
    y = y if isinstance(y, tuple) else (y,)
    return [*y, *torch.autograd.grad(y, arrays, weights)]


def compare(sharded, alone):
    """The largest difference of any numbers, on any rank."""
    sharded = [x.full_tensor() if isinstance(x, DTensor) else x for x in sharded]
    pairs = zip(sharded, alone, strict=True)
    everywhere = torch.stack([(one - other).abs().max() for one, other in pairs]).max().nan_to_num(nan=torch.inf)
    dist.all_reduce(everywhere, dist.ReduceOp.MAX)
    return everywhere.item()


def rotation(axis):
    """Rotate DTensors at positions that are plain tensors, the same on every rank."""

    def rotate(q, k):
        return rope(q, k, positions=torch.arange(100_000, 100_000 + SEQ), seq_dim=1)

    q, k = (torch.randn(BATCH, SEQ, heads, HEAD_DIM) for heads in (HEADS, KV_HEADS))
    mesh = init_device_mesh("cpu", (RANKS,))
    shards = [distribute_tensor(x, mesh, [Shard(axis)]) for x in (q, k)]
    with CommDebugMode() as communication:
        sharded = with_gradients(rotate, shards, shards)
    return communication.get_total_counts(), compare(sharded, with_gradients(rotate, (q, k), (q, k)))


def attention(split):
    """Split a module that contains a rope. `split` returns the rows of the batch that belong to this rank."""
    alone, positions = SelfAttention(), torch.arange(SEQ)
    sharded = deepcopy(alone)
    mine = split(sharded, init_device_mesh("cpu", (RANKS,)))
    x, g = torch.randn(2, BATCH, SEQ, HEADS * HEAD_DIM)
    with CommDebugMode() as communication:
        own, y = with_parameters(sharded, x[mine], positions, g[mine])
    truth, whole = with_parameters(alone, x, positions, g)
    return communication.get_total_counts(), compare([y, *own], [whole[mine], *truth])


def with_parameters(module, x, positions, weights):
    """The gradients of parameters, and the result."""
    y = module(x.requires_grad_(), positions)
    (y * weights).mean().backward()
    return [w.grad for w in module.parameters()], y.detach()


def by_parameters(module, mesh):
    fully_shard(module, mesh=mesh)
    return slice(dist.get_rank(), None, RANKS)


def by_heads(module, mesh):
    of_heads, from_heads = ColwiseParallel(), RowwiseParallel()
    parallelize_module(module, mesh, {"wq": of_heads, "wk": of_heads, "wv": of_heads, "wo": from_heads})
    return slice(None)


def ring():
    """Ring attention. Every rank has its own tokens, as plain tensors."""
    q, k, v, g = (torch.randn(BATCH, heads, SEQ, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS))
    mine = context_parallel(SEQ, dist.get_rank(), RANKS, zigzag=True, like=q)
    with CommDebugMode() as communication:
        sharded = with_gradients(ring_attention, [x[:, :, mine] for x in (q, k, v)], g[:, :, mine])

    def attend(q, k, v):
        return F.scaled_dot_product_attention(*rope(q, k, seq_dim=2), v, is_causal=True, enable_gqa=True)

    alone = with_gradients(attend, (q, k, v), g)
    return communication.get_total_counts(), compare(sharded, [x[:, :, mine] for x in alone])


def on_rank(rank, folder):
    torch.manual_seed(0)  # the same numbers everywhere
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(minutes=1))
    results = {f"rotation, sharded on {name}": rotation(axis) for name, axis in AXES.items()}
    results["attention, FSDP"] = attention(by_parameters)
    results["attention, tensor-parallel"] = attention(by_heads)
    results["ring attention, zigzag"] = ring()
    if rank == 0:
        torch.save(results, f"{folder}/results")
    dist.destroy_process_group()


def main():
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(on_rank, (folder,), nprocs=RANKS)
        results = torch.load(f"{folder}/results")
    print(f"{RANKS} processes compared with one, forward and backward:")
    print(f"{'':<32}{'collectives':>12}{'difference':>14}")
    for name, (count, difference) in results.items():
        print(f"{name:<32}{count:>12}{difference:>14.1e}")
    print("The ring sends messages from rank to rank. They are not collectives.")
    return results


if __name__ == "__main__":
    main()
