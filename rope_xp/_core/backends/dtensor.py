"""DTensors of PyTorch, which are spread over the ranks of a mesh of devices, and do not mix with plain tensors."""

import sys
from math import prod
from typing import Any


def is_dtensor(x: Any) -> bool:
    """Whether `x` is a DTensor of PyTorch, spread over a mesh of devices."""
    return isinstance(x, getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ()))


def replicated(x: Any, *, like: Any) -> Any:
    """A plain tensor, the same on every rank, as a DTensor where `like` is one, since they do not mix; else `x`."""
    if not is_dtensor(like) or is_dtensor(x):
        return x
    distributed, mesh = sys.modules["torch.distributed.tensor"], like.device_mesh
    return distributed.DTensor.from_local(x, mesh, [distributed.Replicate()] * mesh.ndim, run_check=False)


def map_local_shards(function: Any, x: Any, parameter: Any, first_axis: int) -> tuple[Any, ...]:
    """Results, "*axes *more", of a function of single numbers of the DTensor `x`, made by each rank of its own.

    The axes of `x` are those of the results from `first_axis` on. What is the same for all numbers, where it is an
    array, is the `parameter`, whose gradient is the sum over ranks. Operations on the DTensor itself would be slow, and
    wrong: torch 2.13 gives `x >> 16` back as `x`.
    """
    distributed, mesh = sys.modules["torch.distributed.tensor"], x.device_mesh
    shard, replicate = distributed.Shard, distributed.Replicate()
    held = [at if at.is_shard() and at.dim >= first_axis else replicate for at in x.placements]
    if parameter is not None:
        parameter = replicated(parameter, like=x).redistribute(placements=[replicate] * mesh.ndim)
        sums = [distributed.Partial() if at.is_shard() else replicate for at in held]
        parameter = parameter.to_local(grad_placements=sums)
    results = []
    for own in function(x.redistribute(placements=held).to_local(), parameter):
        shape = (*x.shape[first_axis:], *own.shape[x.ndim - first_axis :])
        steps = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
        places = [shard(at.dim - first_axis) if at.is_shard() else at for at in held]
        results.append(distributed.DTensor.from_local(own, mesh, places, run_check=False, shape=shape, stride=steps))
    return tuple(results)
