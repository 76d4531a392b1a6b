"""What a module of transformers holds for its tables, kept while ours are used: nobody edits it, and casts go along."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import copyreg
from collections.abc import Collection, Iterable, Mapping
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch._subclasses import FakeTensor

# By how much numbers made on another device may differ: a few of the last bits of float32.
LAST_BITS = 2.0**-20


class Ours(type):
    """Classes of the objects that `patch` puts into a model: no other model finds them by name, so none is pickled."""


def _refuse(cls: Ours) -> Any:
    raise TypeError(f"pickle: a model must not be patched; got {cls.__name__} that is: unpatch it first")


copyreg.pickle(Ours, _refuse)


def class_like(cls: Any, *more: Any, **changes: Any) -> Any:
    """A class of the same name for the same objects, with other methods; `__base__` is the class itself.

    A method of the class, and not of each object, goes along with every kind of copy.
    """
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return Ours(cls.__name__, (cls, *more), names | changes)


def named(module: Any) -> str:
    return f"{type(module).__module__.removeprefix('transformers.models.')}.{type(module).__name__}"


def agree(theirs: Any, made: Any, spread: Any) -> bool:
    """Whether numbers are those made here, at most `spread` apart, and rounded by the casts of a model since."""
    theirs, low, high = theirs.cpu(), made - spread, made + spread
    if theirs.is_complex():  # which no cast rounds
        return bool(((theirs - made).abs() <= spread).all())
    for dtype in (theirs.dtype, torch.bfloat16, torch.float16):
        least, most = (bound.to(dtype).to(theirs.dtype) for bound in (low, high))
        if bool(((least <= theirs) & (theirs <= most)).all()):
            return True
    return False


class Kept(NamedTuple):
    """Attributes that stay, and for each buffer of them its numbers on the host, with the dtypes of all casts since."""

    names: Collection[str]
    made: Mapping[str, Any]  # as its config says, before any cast
    values: Mapping[str, Any]
    casts: Mapping[str, tuple[torch.dtype, ...]]

    def right(self, name: str) -> Any:
        """The numbers that a buffer must have now, to the last bit."""
        return reduce(torch.Tensor.to, self.casts[name], self.values[name])

    def edited(self, module: Any) -> list[str]:
        """The buffers in memory that have other numbers."""
        return [name for name in self.values if has_numbers(module, name) and not self._is_right(module, name)]

    def after_cast(self, module: Any, edited: Collection[str]) -> "Kept":
        """What is kept once a module has been cast or moved; buffers that came back without numbers get theirs."""
        casts = {}
        for name, before in self.casts.items():
            dtype = module._buffers[name].dtype
            casts[name] = before if dtype == self.right(name).dtype else (*before, dtype)
        new = self._replace(casts=casts)
        for name in new.edited(module):
            if name not in edited:
                module._buffers[name] = new.right(name).to(module._buffers[name].device, copy=True)
        return new

    def after_load(self, module: Any, names: Collection[str]) -> "Kept":
        """What is kept once some buffers have been loaded."""
        return self._replace(
            values={**self.values, **{name: _on_host(module._buffers[name]) for name in names}},
            casts={**self.casts, **dict.fromkeys(names, ())},
        )

    def _is_right(self, module: Any, name: str) -> bool:
        now, right = module._buffers[name].detach().cpu(), self.right(name)
        return now.dtype == right.dtype and torch.equal(now, right)


def has_numbers(module: Any, name: str) -> bool:
    buffer = module._buffers[name]
    return not buffer.is_meta and not isinstance(buffer, FakeTensor)


def _on_host(buffer: Any) -> Any:
    return buffer.detach().cpu().clone()


def keep(module: Any, names: Collection[str], made: Mapping[str, Any]) -> None:
    """From now on a module, whose class is a `Keeper`, keeps what it has under these names."""
    values = {name: _on_host(buffer) for name, buffer in module._buffers.items() if name in names}
    vars(module)["_kept"] = Kept(names, made, values, dict.fromkeys(values, ()))


def check_kept(who: str, modules: Iterable[Any]) -> None:
    """Modules that have what they had when they were patched."""
    for module in modules:
        kept = vars(module)["_kept"]
        faults = [f"its {name} is on the meta device" for name in kept.values if not has_numbers(module, name)]
        faults += [f"its {name} has been edited since" for name in kept.edited(module)]
        if faults:
            raise ValueError(
                f"{who}: every part must have the tensors that it had when it was patched; "
                f"got {named(module)}: {faults[0]}"
            )


class Guarded(torch.nn.Module):
    """A module with attributes that nobody sets, as nothing would follow."""

    def _keeper(self) -> Any:
        """The module that keeps them."""
        return self

    def _check_name(self, name: str, what: str = "edited") -> None:
        keeper = self._keeper()
        if name in getattr(vars(keeper).get("_kept"), "names", ()):
            raise AttributeError(
                f"patch: {name} must be {what} where a model is not patched; got that of {named(keeper)}: unpatch it "
                "first"
            )

    def __setattr__(self, name: str, value: Any) -> None:
        self._check_name(name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self._check_name(name)
        super().__delattr__(name)

    def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None:  # PyTorch looks at its names
        self._check_name(name)
        super().register_buffer(name, tensor, persistent)

    def register_parameter(self, name: str, param: Any) -> None:
        self._check_name(name)
        super().register_parameter(name, param)


class Keeper(Guarded):
    """What the class of a module gets besides: it keeps its buffers, and does not show them."""

    def __getattr__(self, name: str) -> Any:
        self._check_name(name, "read and edited")  # what gets here is no plain attribute
        return super().__getattr__(name)

    def _replicate_for_data_parallel(self) -> Any:
        replica: Any = super()._replicate_for_data_parallel()
        del vars(replica)["_kept"]  # PyTorch sets the attributes of a replica, which lives for one call
        return replica

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        kept = self.__dict__["_kept"]
        edited = kept.edited(self)
        super()._apply(fn, recurse)
        self.__dict__["_kept"] = kept.after_cast(self, edited)
        return self

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        metadata: Any,
        strict: bool,
        missing: Any,
        unexpected: Any,
        errors: list[str],
    ) -> None:
        kept = self.__dict__["_kept"]
        saved = [name for name in kept.values if name not in self._non_persistent_buffers_set]
        loaded = [name for name in saved if prefix + name in state_dict]
        for name in loaded:
            new, made = state_dict[prefix + name], kept.made[name]
            if new.is_meta or new.shape != made.shape or not agree(new, made, LAST_BITS * made.abs()):
                errors.append(f"patch: {prefix}{name} must be that of the config; got another: unpatch the model first")
                return
        del self.__dict__["_kept"]  # PyTorch sets the attribute
        try:
            super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)
        finally:
            self.__dict__["_kept"] = kept.after_load(self, loaded)


class Aside(Keeper):
    """What the class of a rotary module gets while ours is in its place in the model."""


def aside(cls: Any) -> Any:
    """A class like that of a rotary module, for which others who hold the module may call it as before."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        other = object.__new__(cls)  # where rules that depend on the length set attributes and write to buffers
        vars(other).update(vars(self), _buffers={name: buffer.clone() for name, buffer in self._buffers.items()})
        del vars(other)["_kept"]
        return cls.forward(other, *args, **kwargs)

    return class_like(cls, Aside, forward=forward)
