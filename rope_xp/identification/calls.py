"""One call of a function `fn(x, positions)`, from host arrays to a host array, and what it did wrong in words."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rope_xp.arrays import libraries
from rope_xp.types import Array

# The unit roundoff of each dtype: half the distance from 1 to the next number.
SIGNIFICANT_BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
ROUNDOFF = {name: 2.0**-bits for name, bits in SIGNIFICANT_BITS.items()}
# The axes of x in calls, before those that a function does not have are left out.
AXES = ("batch", "heads", "seq", "dim")


class Failure(Exception):
    """What a call of the function did wrong, in words."""


class Form(NamedTuple):
    """How a function is called: the library and dtype of `like`, the axes of x, and the axes of positions."""

    like: Any
    shape: tuple[str, ...]
    position_axes: tuple[str, ...]


class Result(NamedTuple):
    """The result of a call as float64, and the dtype that it had."""

    y: np.ndarray
    dtype: str


def call(fn: Callable[..., Any], form: Form, x: np.ndarray, positions: np.ndarray) -> Result:
    """The result for an `x` "batch heads seq dim" at positions "batch seq" or "axes batch seq". Raises `Failure`.

    Axes that the form does not have are left out of both, and come back in the result.
    """
    order = [AXES.index(name) for name in form.shape]
    left_out = tuple(axis for axis in range(3) if axis not in order)
    given = x[tuple(0 if axis in left_out else slice(None) for axis in range(3))]
    given = given.transpose([sorted(order).index(axis) for axis in order])
    if "batch" not in form.position_axes:
        positions = positions[..., 0, :]
    shape = given.shape
    try:
        with np.errstate(all="ignore"):
            y = fn(_from_host(given, form.like), _integers(positions, form.like))
            _require_array(y, form.like, shape)
            host = libraries.to_host(y)
    except Failure:
        raise
    except (Exception, SystemExit) as error:
        _require_two_arguments(fn, error)
        lines = str(error).strip().splitlines()
        raise Failure(f"it raises {type(error).__name__}" + (f": {lines[0]:.120}" if lines else "")) from error
    if not np.isfinite(host).all():
        raise Failure("it returns NaN or infinity for finite numbers")
    y_of_axes = np.expand_dims(host.transpose(np.argsort(order)), left_out)
    return Result(y_of_axes, libraries.dtype_name(y.dtype))


def _require_two_arguments(fn: Callable[..., Any], error: BaseException) -> None:
    """An error of the call may come from a function that takes other arguments."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # not every function of C has one
        return
    try:
        signature.bind(None, None)
    except TypeError:
        raise Failure(f"it takes {signature}; wrap it in a function that takes (x, positions)") from error


def _from_host(x: np.ndarray, like: Any) -> Any:
    """A fresh array of the library and dtype of `like`, so that `fn` may overwrite it."""
    dtype = libraries.dtype_name(like.dtype)
    x = x.astype(dtype if dtype in ("float64", "float32", "float16") else "float32")
    return libraries.from_host(x, like=like, dtype=like.dtype)


def _integers(positions: np.ndarray, like: object) -> Any:
    return libraries.from_host(positions.astype("int64" if libraries.has_64_bits(like) else "int32"), like=like)


def _require_array(y: Array, like: object, shape: tuple[int, ...]) -> None:
    """`y` must be one array of the library of `like`, of this shape."""
    if isinstance(y, (tuple, list)):
        raise Failure(f"it returns a {type(y).__name__} of {len(y)}; wrap it in a function that returns one array")
    if libraries.namespace(y) is None:
        raise Failure(f"it returns {type(y).__name__}, which is no array")
    if libraries.namespace(y) is not libraries.namespace(like):
        given, found = (libraries.name(libraries.namespace(each)) for each in (like, y))
        raise Failure(f"it returns an array of {found} for an array of {given}; pass an array of {found} as `like`")
    if libraries.dtype_name(y.dtype) not in ROUNDOFF:
        raise Failure(f"it returns an array of {libraries.dtype_name(y.dtype)}, not of floating-point numbers")
    if tuple(y.shape) != shape:
        raise Failure(f"it changes the shape of x from {shape} to {tuple(y.shape)}")
