"""The original modules of a patched model: their attributes cannot be edited, and their buffers follow every cast.

`subclass_of` makes the classes that `patch` gives to modules. `guard` makes a module record its buffers, and
`check_unedited` compares them before `unpatch`.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import copyreg
import types
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import torch
from torch._subclasses import FakeTensor

from rope_xp.errors import wrong_value
from rope_xp.types import Config

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


class GuardedState(NamedTuple):
    """What a guarded module must hold."""

    names: Collection[str]  # of the guarded attributes
    initial: Config  # buffers as computed from the config, before any cast
    values: Config  # buffers bit for bit, on the host; casts of the module are applied to them

    def edited_buffers(self, module: Any) -> list[str]:
        """The names of buffers that are in memory and have other values than expected."""
        return [name for name in self.values if has_values(module, name) and not self._is_unedited(module, name)]

    def after_cast(self, module: Any, edited: Collection[str]) -> "GuardedState":
        """The state after a module was cast or moved.

        Buffers that were `edited` before stay as they are. Other buffers get their values back if the call has lost
        them, as ``to_empty`` does.
        """
        new = self._replace(values={name: each.to(module._buffers[name].dtype) for name, each in self.values.items()})
        for name in new.edited_buffers(module):
            if name not in edited:
                module._buffers[name] = new.values[name].to(module._buffers[name].device, copy=True)
        return new

    def after_load(self, module: Any, names: Collection[str]) -> "GuardedState":
        """The state after some buffers were loaded from a state dict."""
        return self._replace(values={**self.values, **{name: _host_copy(module._buffers[name]) for name in names}})

    def _is_unedited(self, module: Any, name: str) -> bool:
        now, expected = module._buffers[name].detach().cpu(), self.values[name]
        return now.dtype == expected.dtype and torch.equal(now, expected)


def has_values(module: Any, name: str) -> bool:
    buffer = module._buffers[name]
    return not buffer.is_meta and not isinstance(buffer, FakeTensor)


def _host_copy(buffer: Any) -> Any:
    return buffer.detach().cpu().clone()


def guard(module: Any, names: Collection[str], initial: Config) -> None:
    """Record the named attributes of a `GuardedModule`; from now on they cannot be edited."""
    values = {name: _host_copy(buffer) for name, buffer in module._buffers.items() if name in names}
    vars(module)["_guarded_state"] = GuardedState(names, initial, values)


def check_unedited(modules: Iterable[Any]) -> None:
    """Check that the buffers of each module have the expected values."""
    for module in modules:
        state = vars(module)["_guarded_state"]
        faults = [f"its {name} is on the meta device" for name in state.values if not has_values(module, name)]
        faults += [f"its {name} has been edited since" for name in state.edited_buffers(module)]
        if faults:
            raise wrong_value(
                f"every module must have the buffers that it had when it was patched; "
                f"got {class_path(module)}: {faults[0]}"
            )


class ReadOnlyAttributes(torch.nn.Module):
    """A module whose guarded attributes cannot be set or deleted: an edit would not change the exact tables."""

    def _guarded_module(self) -> Any:
        """The module whose attributes are guarded."""
        return self

    def _refuse_if_guarded(self, name: str, access: str = "edited") -> None:
        module = self._guarded_module()
        if name in getattr(vars(module).get("_guarded_state"), "names", ()):
            raise AttributeError(
                f"patch: {name} can only be {access} while the model is not patched; "
                f"got the {name} of {class_path(module)}: unpatch the model first"
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


class GuardedModule(ReadOnlyAttributes):
    """The base class of guarded modules. Their guarded buffers cannot be read. Casts reach them."""

    def __getattr__(self, name: str) -> Any:
        self._refuse_if_guarded(name, "read and edited")  # Python calls this method for buffers and modules only
        return super().__getattr__(name)

    def _replicate_for_data_parallel(self) -> Any:
        replica: Any = super()._replicate_for_data_parallel()
        del vars(replica)["_guarded_state"]  # PyTorch sets attributes of a replica, which exists for one call
        return replica

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        state = self.__dict__["_guarded_state"]
        edited = state.edited_buffers(self)
        super()._apply(fn, recurse)
        self.__dict__["_guarded_state"] = state.after_cast(self, edited)
        return self

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        metadata: Config,
        strict: bool,
        missing: Any,
        unexpected: Any,
        errors: list[str],
    ) -> None:
        state = self.__dict__["_guarded_state"]
        saved = [name for name in state.values if name not in self._non_persistent_buffers_set]
        loaded = [name for name in saved if prefix + name in state_dict]
        for name in loaded:
            if not _is_equal(state_dict[prefix + name], state.initial[name]):
                errors.append(
                    f"patch: {prefix}{name} must have the values of the config; got others: unpatch the model first"
                )
                return
        del self.__dict__["_guarded_state"]  # PyTorch sets the attribute
        try:
            super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)
        finally:
            self.__dict__["_guarded_state"] = state.after_load(self, loaded)


def _is_equal(loaded: Any, initial: Any) -> bool:
    """Whether a buffer of a state dict is the one computed from the config, perhaps after a cast."""
    if loaded.is_meta or loaded.shape != initial.shape:
        return False
    return equal_before_casts(loaded, initial, DEVICE_ROUNDING * initial.abs())


class ReplacedRotary(GuardedModule):
    """The base class of rotary modules that a `Rotary` module replaces."""


def replaced_class(cls: Any) -> Any:
    """The class of a rotary module while it is replaced. Other code that holds the module may still call it."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        # The call gets a copy, because rules that depend on the length set attributes and write to buffers.
        other = object.__new__(cls)
        vars(other).update(vars(self), _buffers={name: buffer.clone() for name, buffer in self._buffers.items()})
        del vars(other)["_guarded_state"]
        return cls.forward(other, *args, **kwargs)

    return subclass_of(cls, ReplacedRotary, forward=forward)
