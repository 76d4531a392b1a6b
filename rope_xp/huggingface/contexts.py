"""Contexts in which `patch` compares its results with those of transformers.

They change no global state, so other threads are not affected.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from rope_xp.errors import wrong_value
from rope_xp.huggingface.guard import class_path
from rope_xp.types import Values

# Arguments of functions that draw random numbers. Without them, `float32_on_cpu` would repeat the operation, and the
# generator would advance twice.
FLOAT32_ON_CPU: Values = {"dtype": torch.float32, "device": "cpu"}


class _Float32OnCPU(TorchFunctionMode):
    """Repeats an operation if only the program's defaults decided the dtype or device of its result.

    A mode belongs to one thread. `torch.set_default_dtype` changes all threads.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not isinstance(result, torch.Tensor):
            return result
        has_default_dtype = _has_default_dtype(result) and kwargs.get("dtype") is None
        given = list(_tensors([*args, *kwargs.values()]))
        if not given:
            changes: Values = {"dtype": torch.float32} if has_default_dtype else {}
            if result.device.type != "cpu" and kwargs.get("device") is None:
                changes["device"] = "cpu"
            return func(*args, **{**kwargs, **changes}) if changes else result
        if has_default_dtype and not any(each.is_floating_point() or each.is_complex() for each in given):
            args = [each.to(torch.float32) if isinstance(each, torch.Tensor) else each for each in args]
            return func(*args, **kwargs)
        return result


def _has_default_dtype(result: object) -> bool:
    return result.is_floating_point() and result.dtype != torch.float32 and result.dtype == torch.get_default_dtype()


def _tensors(values: Iterable[Any]) -> Iterator[Any]:
    for each in values:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from _tensors(each)


@contextmanager
def comparison(requirement: str, module: object) -> Iterator[None]:
    """Run code of transformers with `float32_on_cpu`. Any error becomes a ValueError that names the module."""
    try:
        with float32_on_cpu():
            yield
    except Exception as error:  # unknown code may raise anything
        raise wrong_value(f"{requirement}; got {class_path(module)}: {error}") from error


@contextmanager
def float32_on_cpu() -> Iterator[None]:
    """Make new tensors float32 on the CPU, whatever the program's defaults are, without autocast and gradients."""
    with _Float32OnCPU(), torch.no_grad(), torch.autocast("cpu", enabled=False):
        yield
