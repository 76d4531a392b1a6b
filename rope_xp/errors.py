"""Errors that begin with the name of the public function that was called.

An error is raised where it is found, without a name: ``raise wrong_value("x must be ...; got ...")``. The name is that
of the innermost function on the stack that `public` has marked. A mark costs nothing at a call.
"""

import sys
from collections.abc import Callable
from types import CodeType
from typing import TypeVar

from rope_xp.arrays.signature import is_torch_compiling

Error = TypeVar("Error", bound=Exception)
Function = TypeVar("Function", bound=Callable[..., object])

# The names of marked functions, by their code. They are written once, when modules are imported.
_NAMES: dict[CodeType, str | None] = {}


def public(name: str | None = None) -> Callable[[Function], Function]:
    """Mark a function that users call. Its errors begin with this name; without one, with the class of `self`."""

    def mark(function: Function) -> Function:
        _NAMES[function.__code__] = name  # type: ignore[attr-defined]
        return function

    return mark


def wrong_value(text: str) -> ValueError:
    """The error for a value or a shape: what was required, and what came."""
    return wrong(ValueError, text)


def wrong_type(text: str) -> TypeError:
    """The error for a dtype or a kind: what was required, and what came."""
    return wrong(TypeError, text)


def missing_package(module: str, packages: str, extra: str, error: ImportError) -> ImportError:
    """The error of a module that is imported without packages that an extra of rope_xp brings."""
    text = f"{module}: {packages} must be installed (pip install 'rope-xp[{extra}]'); got {error}"
    return type(error)(text, name=error.name)


def wrong(kind: type[Error], text: str) -> Error:
    """An error whose text begins with the name of the innermost public function on the stack."""
    frame = None if is_torch_compiling() else sys._getframe(1)
    while frame is not None and frame.f_code not in _NAMES:
        frame = frame.f_back
    if frame is None:
        return kind(text)
    name = _NAMES[frame.f_code]
    return kind(f"{type(frame.f_locals['self']).__name__ if name is None else name}: {text}")
