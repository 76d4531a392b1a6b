"""A context in which new tensors are float32 on the CPU, whatever defaults the program has set.

It changes nothing of the process, so other threads are not affected.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

FLOAT32_ON_CPU: dict[str, Any] = {
    "dtype": torch.float32,
    "device": "cpu",
}  # for random numbers: asked for directly, so that none are drawn twice


class _Float32OnCPU(TorchFunctionMode):
    """Repeats an operation whose result took its dtype or device from the program's defaults, not from an argument.

    A mode belongs to one thread. `torch.set_default_dtype` and `torch.device` as a context do not.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not isinstance(result, torch.Tensor):
            return result
        given = list(_tensors([*args, *kwargs.values()]))
        changes: dict[str, Any] = {}
        if not given and result.device.type != "cpu" and kwargs.get("device") is None:
            changes["device"] = "cpu"
        if _is_by_default(result) and kwargs.get("dtype") is None:
            if not given:
                changes["dtype"] = torch.float32
            elif not any(each.is_floating_point() or each.is_complex() for each in given):
                args = [each.to(torch.float32) if isinstance(each, torch.Tensor) else each for each in args]
                return func(*args, **kwargs)
        return func(*args, **{**kwargs, **changes}) if changes else result


def _is_by_default(result: Any) -> bool:
    return result.is_floating_point() and result.dtype != torch.float32 and result.dtype == torch.get_default_dtype()


def _tensors(values: Iterable[Any]) -> Iterator[Any]:
    for each in values:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from _tensors(each)


@contextmanager
def float32_on_cpu() -> Iterator[None]:
    """Make new tensors float32 on the CPU, without autocast and without recording gradients."""
    with _Float32OnCPU(), torch.no_grad(), torch.autocast("cpu", enabled=False):
        yield
