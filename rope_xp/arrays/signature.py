"""Signatures of calls: the facts about arrays, and about the state of their library, that a plan may depend on.

A signature holds no values and no addresses. A call has none if its decisions may depend on more: while a compiler
traces, with forward-mode derivatives, for subclasses, and for libraries other than NumPy, PyTorch and JAX.
"""

import sys
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

MAX_PLANS = 256
_OPTIONS = {int, bool, str, type(None), np.int64}


# How often `forget_plans` was called. The number is a part of each signature, so plans that were made before the last
# call of `forget_plans` are not found any more.
_generation = 0


class Plans(dict[Hashable, Any]):
    """Plans of calls by signature. A full one is cleared; copies and pickles of it are empty."""

    # A call without a signature must not read it: a compiler that traces the call would compile again after each
    # change.

    def add(self, signature: Hashable, plan: object) -> None:
        if len(self) >= MAX_PLANS:
            self.clear()
        self[signature] = plan

    def __reduce__(self) -> tuple[Any, ...]:
        return Plans, ()


def signature_of(arrays: tuple[Any, ...], *options: Any) -> Hashable:
    """The signature of a call, or None. All arrays (or None) belong to NumPy or to the library of the first."""
    # The types of options count too: ``True`` is not ``1``.
    if is_torch_compiling():
        return None
    kinds = tuple(map(type, options))
    if not _OPTIONS.issuperset(kinds):
        return None
    try:
        facts = [_FACTS[type(x)](x) for x in arrays]
        # Not before the facts: when `_FACTS` meets a class for the first time, it adds the function for its state.
        state = _STATES[type(arrays[0])]()
    except (KeyError, RuntimeError):  # an unknown class; nested and sparse tensors have no shape or no strides
        return None
    return None if state is None else (kinds, options, _generation, state, *facts)


def is_torch_compiling() -> bool:
    """Whether a torch compiler traces this call. Such a call must not read anything that is kept between calls."""
    return getattr(sys.modules.get("torch.compiler"), "is_compiling", bool)()


def forget_plans() -> None:
    """Let all calls make new plans. Old ones may name a kernel that has failed, or that no test has checked yet."""
    global _generation
    _generation += 1


class _Facts(dict[type, Callable[[Any], tuple[Any, ...]]]):
    """For each class of arrays, the function that reads facts, the class first. Subclasses have no function."""

    def __missing__(self, kind: type) -> Callable[[Any], tuple[Any, ...]]:
        torch: Any = sys.modules.get("torch")
        jax: Any = sys.modules.get("jax")
        if kind in (getattr(torch, "Tensor", None), getattr(getattr(torch, "nn", None), "Parameter", None)):
            self[kind], _STATES[kind] = _torch_facts(kind)
        elif issubclass(kind, getattr(jax, "Array", ())) and not issubclass(kind, jax.core.Tracer):
            self[kind], _STATES[kind] = lambda x: (kind, x.aval), lambda: (jax.config.jax_enable_x64,)
        else:
            raise KeyError(kind)
        return self[kind]


# The flags say whether an array is writable and aligned.
_FACTS = _Facts({type(None): lambda _: (), np.ndarray: lambda x: (x.dtype, x.shape, x.strides, x.flags.num)})
# For each class of arrays, the function that reads the state of its library; None if calls have no signature now.
_STATES: dict[type, Callable[[], tuple[Any, ...] | None]] = {np.ndarray: lambda: ()}


def _torch_facts(kind: type) -> tuple[Any, Any]:
    """The functions that read a tensor and the state of PyTorch."""
    functions, forward_ad = sys.modules["torch"]._C, sys.modules["torch.autograd.forward_ad"]
    keys_of, included_keys = functions._dispatch_keys, functions._dispatch_tls_local_include_set
    is_grad_enabled, function_modes = functions.is_grad_enabled, functions._len_torch_function_stack

    def facts(x: Any) -> tuple[Any, ...]:
        # Dispatch keys show layouts, lazy negation, wrappers of transforms and inference tensors.
        return kind, x.dtype, x.shape, x.stride(), keys_of(x).raw_repr(), x.requires_grad, x.get_device()

    def state() -> tuple[Any, ...] | None:
        if forward_ad._current_level >= 0 or functions._get_tracing_state() is not None:
            return None
        # Included keys show whether transforms, dispatch modes or inference mode are active in this thread.
        return is_grad_enabled(), function_modes(), included_keys().raw_repr()

    return facts, state
