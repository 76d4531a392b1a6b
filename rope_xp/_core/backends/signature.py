"""Signatures of calls: the facts about arrays, and about the state of their library, that a plan may depend on.

Calls with equal signatures take equal decisions. A signature holds no values and no addresses of arrays. A call has no
signature if its decisions may depend on more: while a compiler or exporter traces, with forward-mode derivatives, for
subclasses, and for libraries other than NumPy, PyTorch and JAX.
"""

import sys
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import numpy as np

MAX_PLANS = 256
_OPTIONS = {int, bool, str, type(None)}


# The number of times that a kernel failed. Plans from before the last failure are not used any more.
_failures: list[int] = [0]


class Plans(dict[Hashable, Any]):
    """Plans of calls by signature. When it is full, it starts again. A copy or pickle of it is empty."""

    def add(self, signature: Hashable, plan: Any) -> None:
        """Keep the plan of a call that has a signature."""
        if signature is None:
            return
        if len(self) >= MAX_PLANS:
            self.clear()
        self[signature] = plan

    def __reduce__(self) -> tuple[Any, ...]:
        return Plans, ()


class _Reader(NamedTuple):
    """How the arrays of a library are read."""

    facts: Callable[[Any], tuple[Any, ...]]
    state: Callable[[], tuple[Any, ...] | None]  # the state of the library; None if calls have no signature now


def signature_of(arrays: tuple[Any, ...], *options: Any) -> Hashable:
    """The signature of a call with these arrays, or with None in place of an array; None if it has no signature.

    All arrays belong to NumPy or to the library of the first. The types of options count too: ``True`` is not ``1``.
    """
    if getattr(getattr(sys.modules.get("torch"), "compiler", None), "is_compiling", bool)():
        return None
    kinds, first = tuple([type(each) for each in (*options, *arrays)]), _reader(type(arrays[0]))
    state = None if first is None else first.state()
    if state is None or not _OPTIONS.issuperset(kinds[: len(options)]):
        return None
    readers = [_reader(kind) for kind in kinds[len(options) :]]
    if None in readers:
        return None
    try:
        return kinds, options, _failures[0], state, *[reader.facts(x) for reader, x in zip(readers, arrays)]
    except RuntimeError:  # nested and sparse tensors have no shape or no strides
        return None


def forget_plans() -> None:
    """Let all calls be planned again, because a kernel that plans name has failed."""
    _failures[0] += 1


def _reader(kind: type) -> _Reader | None:
    """The reader of arrays of exactly this class, or of None."""
    return _READERS.get(kind) or _new_reader(kind)


def _new_reader(kind: type) -> _Reader | None:
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if kind in (getattr(torch, "Tensor", None), getattr(getattr(torch, "nn", None), "Parameter", None)):
        return _READERS.setdefault(kind, _torch_reader())
    if issubclass(kind, getattr(jax, "Array", ())) and not issubclass(kind, jax.core.Tracer):
        return _READERS.setdefault(kind, _Reader(lambda x: (x.aval,), lambda: (jax.config.jax_enable_x64,)))
    return None


def _torch_reader() -> _Reader:
    functions, forward_ad = sys.modules["torch"]._C, sys.modules["torch.autograd.forward_ad"]

    def facts(x: Any) -> tuple[Any, ...]:
        # Dispatch keys tell layouts, lazy negation, wrappers of transforms and inference tensors apart.
        keys = functions._dispatch_keys(x).raw_repr()
        return x.dtype, x.shape, x.stride(), keys, x.requires_grad, x.get_device()

    def state() -> tuple[Any, ...] | None:
        if forward_ad._current_level >= 0 or functions._get_tracing_state() is not None:
            return None
        # The thread's dispatch keys tell whether transforms, dispatch modes, autocast and inference mode are active.
        included, excluded = functions._dispatch_tls_local_include_set(), functions._dispatch_tls_local_exclude_set()
        modes = functions._len_torch_function_stack()
        return functions.is_grad_enabled(), modes, included.raw_repr(), excluded.raw_repr()

    return _Reader(facts, state)


_NO_FACTS = ()
_READERS: dict[type, _Reader] = {
    type(None): _Reader(lambda _: _NO_FACTS, lambda: None),
    np.ndarray: _Reader(lambda x: (x.dtype, x.shape, x.strides, x.flags.num), lambda: _NO_FACTS),
}
