"""What this folder shares: classes of `patch`, attributes that cannot be edited, and contexts of comparisons."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import copyreg
import types
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, NoReturn, TypeAlias, TypeGuard

import torch
from torch import Tensor
from torch.nn import Module
from torch.overrides import TorchFunctionMode

from rope_xp.errors import wrong_value
from rope_xp.types import Values

# Relative difference between buffers computed on two devices: a few of the last bits of float32.
DEVICE_ROUNDING = 2.0**-20


Function: TypeAlias = Callable[..., Any]
# What `Module._apply` does to each tensor: a cast, a move.
TensorMap: TypeAlias = Callable[[Tensor], Tensor]


class PatchedType(type):
    """The type of the classes that `patch` makes. They cannot be pickled, because no file contains them."""


def _refuse_pickle(cls: PatchedType) -> NoReturn:
    raise TypeError(f"pickle: a model must not be patched; got a patched {cls.__name__}: unpatch it first")


copyreg.pickle(PatchedType, _refuse_pickle)


def subclass_of(cls: type, *more: type, **changes: object) -> type:
    """A subclass with the same name and with other methods. Its first base is `cls`."""
    # The methods belong to a class, because some kinds of copy lose methods that are set on the module itself.
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return PatchedType(cls.__name__, (cls, *more), names | changes)


def class_path(module: object) -> str:
    """The file and the name of a module's class, for errors: ``llama.modeling_llama.LlamaAttention``."""
    return f"{type(module).__module__.removeprefix('transformers.models.')}.{type(module).__name__}"


def forward_attributes(module: Module) -> list[str]:
    """The attributes of a module that hold the forward of its class. Hooks of accelerate set them."""
    attributes, method = vars(module), type(module).forward
    names = [name for name in ("forward", "_old_forward") if getattr(attributes.get(name), "__func__", None) is method]
    if "forward" in attributes and not names:
        raise ValueError("its forward is not the forward of its class")
    return names


def is_of_transformers(function: object) -> TypeGuard[types.FunctionType]:
    return isinstance(function, types.FunctionType) and function.__module__.startswith("transformers.")


def equal_before_casts(buffer: Tensor, computed: Tensor, tolerance: Tensor) -> bool:
    """Whether a buffer equals the computed values within `tolerance`, perhaps after casts of the model to 16 bits."""
    buffer, low, high = buffer.cpu(), computed - tolerance, computed + tolerance
    if buffer.is_complex():  # casts of a model do not round complex buffers
        return bool(((buffer - computed).abs() <= tolerance).all())
    for one, other in product((buffer.dtype, torch.bfloat16, torch.float16), repeat=2):
        least, most = (bound.to(one).to(other).to(buffer.dtype) for bound in (low, high))
        if bool(((least <= buffer) & (buffer <= most)).all()):
            return True
    return False


def moved(buffer: Tensor, fn: TensorMap) -> Tensor:
    """A buffer with the dtype and device that a cast of its module gives it, and with its own values."""
    # ``to_empty`` and the device "meta" would lose them.
    cast = fn(buffer)
    return buffer.to(buffer.device if cast.is_meta else cast.device, cast.dtype)


class ReadOnlyAttributes(Module):
    """A module with attributes that cannot be set or deleted: an edit would not change the exact tables."""

    def _guarded_names(self) -> Collection[str]:
        raise NotImplementedError

    def _guarded_module(self) -> Module:
        return self

    def _refuse_if_guarded(self, name: str, access: str = "edited") -> None:
        if name in self._guarded_names():
            raise AttributeError(
                f"patch: {name} can only be {access} while the model is not patched; "
                f"got the {name} of {class_path(self._guarded_module())}: unpatch the model first"
            )

    def __setattr__(self, name: str, value: Any) -> None:
        self._refuse_if_guarded(name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self._refuse_if_guarded(name)
        super().__delattr__(name)

    # PyTorch inspects this signature.
    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        self._refuse_if_guarded(name)
        super().register_buffer(name, tensor, persistent)

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None:
        self._refuse_if_guarded(name)
        super().register_parameter(name, param)


# Arguments of functions that draw random numbers. Without them, `float32_on_cpu` would repeat the operation, and the
# generator would advance twice.
FLOAT32_ON_CPU: Values = {"dtype": torch.float32, "device": "cpu"}


class _Float32OnCPU(TorchFunctionMode):
    """Repeats an operation if only the program's defaults decided the dtype or device of its result."""

    # A mode belongs to one thread. `torch.set_default_dtype` changes all threads.

    def __torch_function__(
        self, func: Function, types: object, args: tuple[Any, ...] = (), kwargs: Values | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not isinstance(result, Tensor):
            return result
        has_default_dtype = kwargs.get("dtype") is None and torch.float32 != result.dtype == torch.get_default_dtype()
        given = list(_tensors([*args, *kwargs.values()]))
        if not given:
            changes: Values = {"dtype": torch.float32} if has_default_dtype else {}
            if result.device.type != "cpu" and kwargs.get("device") is None:
                changes["device"] = "cpu"
            return func(*args, **{**kwargs, **changes}) if changes else result
        if has_default_dtype and not any(each.is_floating_point() or each.is_complex() for each in given):
            return func(*(each.to(torch.float32) if isinstance(each, Tensor) else each for each in args), **kwargs)
        return result


def _tensors(values: Iterable[object]) -> Iterator[Tensor]:
    for each in values:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from _tensors(each)


@contextmanager
def naming_errors(requirement: str, module: object) -> Iterator[None]:
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
