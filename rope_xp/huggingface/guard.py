"""What modules of a patched model have in common: classes that `patch` makes, and attributes that cannot be edited.

`subclass_of` makes the classes. `moved` gives a buffer that `unpatch` puts back the casts of its model.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import copyreg
import types
from collections.abc import Collection
from typing import Any

import torch

# Relative difference between buffers computed on two devices: a few of the last bits of float32.
DEVICE_ROUNDING = 2.0**-20


class PatchedType(type):
    """The type of the classes that `patch` makes. They cannot be pickled, because no file contains them."""


def _refuse_pickle(cls: PatchedType) -> Any:
    raise TypeError(f"pickle: a model must not be patched; got a patched {cls.__name__}: unpatch it first")


copyreg.pickle(PatchedType, _refuse_pickle)


def subclass_of(cls: Any, *more: Any, **changes: Any) -> Any:
    """A subclass with the same name and with other methods. Its `__base__` is `cls`.

    The methods belong to a class, because some kinds of copy lose methods that are set on the module itself.
    """
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return PatchedType(cls.__name__, (cls, *more), names | changes)


def class_path(module: Any) -> str:
    """The file and the name of a module's class, for errors: ``llama.modeling_llama.LlamaAttention``."""
    return f"{type(module).__module__.removeprefix('transformers.models.')}.{type(module).__name__}"


def forward_attributes(module: Any) -> list[str]:
    """The attributes of a module that hold the forward of its class. Hooks of accelerate set them."""
    attributes, method = vars(module), type(module).forward
    names = [name for name in ("forward", "_old_forward") if getattr(attributes.get(name), "__func__", None) is method]
    if "forward" in attributes and not names:
        raise ValueError("its forward is not the forward of its class")
    return names


def is_of_transformers(function: Any) -> bool:
    return isinstance(function, types.FunctionType) and function.__module__.startswith("transformers.")


def equal_before_casts(buffer: Any, computed: Any, tolerance: Any) -> bool:
    """Whether a buffer equals the computed values within `tolerance`, perhaps after a cast of the model to 16 bits."""
    buffer, low, high = buffer.cpu(), computed - tolerance, computed + tolerance
    if buffer.is_complex():  # casts of a model do not round complex buffers
        return bool(((buffer - computed).abs() <= tolerance).all())
    for dtype in (buffer.dtype, torch.bfloat16, torch.float16):
        least, most = (bound.to(dtype).to(buffer.dtype) for bound in (low, high))
        if bool(((least <= buffer) & (buffer <= most)).all()):
            return True
    return False


def moved(buffer: Any, fn: Any) -> Any:
    """A buffer with the dtype and device that a cast of its module gives it.

    It keeps its values where the cast loses them, as ``to_empty`` does, and stays where it is in place of "meta".
    """
    cast = fn(buffer)
    return buffer.to(buffer.device if cast.is_meta else cast.device, cast.dtype)


class ReadOnlyAttributes(torch.nn.Module):
    """A module with attributes that cannot be set or deleted: an edit would not change the exact tables."""

    def _guarded_names(self) -> Collection[str]:
        """The names of these attributes."""
        raise NotImplementedError

    def _guarded_module(self) -> Any:
        """The module of transformers that has the attributes."""
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
    def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None:
        self._refuse_if_guarded(name)
        super().register_buffer(name, tensor, persistent)

    def register_parameter(self, name: str, param: Any) -> None:
        self._refuse_if_guarded(name)
        super().register_parameter(name, param)
