"""DTensors of PyTorch: tensors sharded or replicated over a device mesh. They do not mix with plain tensors."""

import sys
from math import prod
from typing import Any


def is_dtensor(x: Any) -> bool:
    """Whether `x` is a DTensor of PyTorch."""
    return isinstance(x, getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ()))


def replicated(x: Any, *, like: Any) -> Any:
    """A tensor that is equal on every rank, as a replicated DTensor if `like` is a DTensor; otherwise `x` itself."""
    if not is_dtensor(like) or is_dtensor(x):
        return x
    distributed, mesh = sys.modules["torch.distributed.tensor"], like.device_mesh
    return distributed.DTensor.from_local(x, mesh, [distributed.Replicate()] * mesh.ndim, run_check=False)


def map_local_shards(function: Any, x: Any, parameter: Any, first_axis: int) -> tuple[Any, ...]:
    """Apply an elementwise function to the local shard of a DTensor on each rank; the results are DTensors.

    The results of `function(shard, parameter)` have the axes of `x` from `first_axis` on, followed by new axes. Axes
    before `first_axis` are not sharded during the call. `parameter` is None, or an array that is equal on all ranks;
    its gradient is the sum over ranks. Operations on the DTensor itself would be slow, and some are wrong: torch 2.13
    returns `x` for `x >> 16`.
    """
    distributed, mesh = sys.modules["torch.distributed.tensor"], x.device_mesh
    shard, replicate = distributed.Shard, distributed.Replicate()
    placements = [each if each.is_shard() and each.dim >= first_axis else replicate for each in x.placements]
    if parameter is not None:
        parameter = replicated(parameter, like=x).redistribute(placements=[replicate] * mesh.ndim)
        gradients = [distributed.Partial() if each.is_shard() else replicate for each in placements]
        parameter = parameter.to_local(grad_placements=gradients)
    results = []
    for local in function(x.redistribute(placements=placements).to_local(), parameter):
        shape = (*x.shape[first_axis:], *local.shape[x.ndim - first_axis :])
        strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
        shards = [shard(each.dim - first_axis) if each.is_shard() else each for each in placements]
        result = distributed.DTensor.from_local(local, mesh, shards, run_check=False, shape=shape, stride=strides)
        results.append(result)
    return tuple(results)
