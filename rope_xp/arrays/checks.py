"""Checks of arguments, for all public functions: of shapes, dtypes and host data alone, so that they work under jit."""

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from rope_xp.arrays import libraries, memory
from rope_xp.errors import wrong_type, wrong_value
from rope_xp.types import Array

FLOATING = ("float16", "bfloat16", "float32", "float64")
NARROW = ("int8", "int16", "int32", "uint8", "uint16")
WIDE = ("int64", "uint32")
INTEGERS = (*NARROW, *WIDE)
NUMBERS = (*INTEGERS, "float32", "float64")
# NumPy arrays have at most 64 axes, and rope_xp adds up to two axes to those of an argument.
MAX_AXES = 62


def array(name: str, x: Any) -> Any:
    """The namespace of `x`. `x` must be a plain array: no mask, no units, no subclass with its own behaviour."""
    xp = libraries.namespace(x)
    if xp is None:
        hint = f": for one token at {x}, consecutive(1, {x}, like=x)" if name == "positions" and is_int(x) else ""
        hint = ": numpy.asarray makes one of it" if isinstance(x, (list, tuple)) else hint
        raise wrong_type(f"{name} must be an array; got {type(x).__name__}{hint}")
    kind = libraries.special_kind(x)
    if kind is not None:
        raise wrong_type(f"{name} must be a plain array, without masks, units or other additions; got {kind}")
    if libraries.is_host(x):
        few_axes(name, x)
    return xp


def few_axes(name: str, x: Array) -> None:
    if x.ndim > MAX_AXES:
        raise wrong_value(f"{name} must have at most {MAX_AXES} axes; got {x.ndim}")


def floating(name: str, x: Array, accepted: tuple[str, ...] = FLOATING, of_integers: str = "") -> Any:
    xp = array(name, x)
    dtype = libraries.dtype_name(x.dtype)
    if dtype not in accepted:
        hint = of_integers if dtype in INTEGERS else ""
        raise wrong_type(f"{name} must be {' or '.join(accepted)}; got {dtype}{hint}")
    return xp


def positions(name: str, x: Any, *, like: Any = None, real: bool = True) -> Any:
    """Positions as int32 or int64, with `real` also float32 or float64, in the library and on the device of `like`."""
    # Half precision is an error, because bfloat16 rounds position 257 to 256.
    position_dtype(name, x, real=real)
    return convert_positions(name, x, like)


def position_dtype(name: str, x: Array, *, real: bool = True) -> None:
    array(name, x)
    dtype = libraries.dtype_name(x.dtype)
    if dtype not in (NUMBERS if real else INTEGERS):
        wanted = "an array of integers (int8 to int64, uint8 to uint32)" + (", float32 or float64" if real else "")
        raise wrong_type(f"{name} must be {wanted}; got {dtype}")
    few_axes(name, x)
    if dtype in WIDE and not libraries.has_64_bits(x):
        raise wrong_type(f"{name} must fit in int32 where int64 does not exist; got {dtype}")


def convert_positions(name: str, x: Any, like: Any) -> Any:
    x = np.asarray(x) if isinstance(x, np.generic) else x  # scalars of NumPy are arrays without axes
    xp, dtype = libraries.namespace(x), libraries.dtype_name(x.dtype)
    if dtype in NARROW:
        x = libraries.astype(x, xp.int32)
    elif dtype in WIDE:
        x = libraries.astype(x, xp.int64)
    return convert_like(name, x, like)


def are_ready_positions(x: Array, like: object) -> bool:
    """Whether `convert_positions` returns `x` itself."""
    if type(x) is not type(like) or not libraries.on_one_device(x, like):
        return False
    xp = libraries.namespace(x)
    return x.dtype == xp.int32 or x.dtype == xp.int64  # not by name, which says nothing about the order of bytes


def convertible(name: str, x: Any, like: Any) -> None:
    if type(x) is type(like) and libraries.on_one_device(x, like):
        return
    xp, wanted = array(name, x), array("like", like)
    if wanted is xp:
        if not libraries.on_one_device(x, like):
            raise wrong_value(f"{name} must be on device {like.device}, like the other arrays; got {x.device}")
    elif not libraries.is_host(x):
        wanted, found = libraries.name(wanted), libraries.name(xp)
        other = "" if wanted == "numpy" else f", or of {wanted} like the other arrays"
        raise wrong_type(f"{name} must be an array of NumPy{other}; got {found}")


def convert_like(name: str, x: Any, like: Any) -> Any:
    """`x` in the library and on the device of `like`. `x` must be there already, or be an array of NumPy."""
    if like is None or (type(x) is type(like) and libraries.on_one_device(x, like)):
        return x
    convertible(name, x, like)
    if libraries.namespace(x) is libraries.namespace(like):
        return libraries.replicated(x, like=like)
    if x.dtype.itemsize == 8 and not libraries.has_64_bits(like):
        with np.errstate(over="ignore"):
            narrow = x.astype("int32" if x.dtype.kind == "i" else "float32")
        changed = (narrow != x) & (x == x)
        if changed.any():
            raise wrong_value(
                f"{name} must fit in {narrow.dtype} where {x.dtype} does not exist; got {x[changed].flat[0]}"
            )
        x = narrow
    return libraries.from_host(x, like=like)


def same_library(name: str, x: Array, first: Array) -> None:
    if type(x) is not type(first) and libraries.namespace(x) is not libraries.namespace(first):
        wanted, found = (libraries.name(libraries.namespace(each)) for each in (first, x))
        raise wrong_type(f"{name} must be an array of {wanted}, like the first array; got {found}")
    convertible(name, x, first)


def even_width(x: Array) -> int:
    if not x.ndim:
        raise wrong_value("x must have a last axis of channels; got an array without axes")
    dim = x.shape[-1]
    if not dim or dim % 2:
        raise wrong_value(f"the last axis of x must be even and at least 2; got x of shape {shape(x)}")
    return dim


def one_of(name: str, value: object, accepted: dict[str, str]) -> None:
    """`value` must be a key of `accepted`. The values of `accepted` explain the keys in the message."""
    if not isinstance(value, str) or value not in accepted:
        choices = " or ".join(f'"{key}" ({meaning})' for key, meaning in accepted.items())
        similar = get_close_matches(value[:100], accepted, 2, 0.5) if isinstance(value, str) else ()
        like = f", similar to {' and '.join(map(repr, similar))}" if similar else ""
        raise wrong_value(f"{name} must be {choices}; got {shown(value)}{like}")


def axis(number: Any, x: Array, name: str = "seq_dim") -> int:
    integer(name, number)
    found = number + x.ndim if number < 0 else number
    if not 0 <= found < x.ndim - 1:
        raise wrong_value(
            f"{name} must name an axis of x before the last; got {name}={number} for x of shape {shape(x)}"
        )
    return found


def even_size(name: str, value: Any, at_most: int | None = None) -> int:
    integer(name, value)
    if value < 2 or value % 2 or (at_most is not None and value > at_most):
        limit = "" if at_most is None else f" and at most {at_most}"
        raise wrong_value(f"{name} must be even, at least 2{limit}; got {value}")
    return plain(value)


def finite(name: str, value: Any) -> float:
    if not (isinstance(value, (float, np.floating)) or is_int(value)):
        raise wrong_type(f"{name} must be a number; got {shown(value)}")
    value = float(value) if isinstance(value, np.floating) else value
    if not -sys.float_info.max <= value <= sys.float_info.max:
        raise wrong_value(f"{name} must be finite; got {value}")
    return float(value)


def positive(name: str, value: object) -> float:
    number = finite(name, value)
    if not number > 0.0:
        raise wrong_value(f"{name} must be greater than 0; got {value}")
    return number


def at_least(name: str, value: object, least: float) -> float:
    number = finite(name, value)
    if not number >= least:
        raise wrong_value(f"{name} must be at least {least:g}; got {value}")
    return number


def at_most(name: str, value: object, most: float) -> float:
    number = finite(name, value)
    if not number <= most:
        raise wrong_value(f"{name} must be at most {most:g}; got {value}")
    return number


def fraction(name: str, value: object) -> float:
    positive(name, value)
    return at_most(name, value, 1.0)


def boolean(name: str, value: object) -> bool:
    if not isinstance(value, (bool, np.bool)):
        raise wrong_type(f"{name} must be a bool; got {type(value).__name__}")
    return bool(value)


def count(name: str, value: Any, least: int = 0) -> int:
    integer(name, value)
    if not value >= 0:
        raise wrong_value(f"{name} must not be negative; got {value}")
    value = plain(value)
    if isinstance(value, int) and value < least:  # a symbol is not compared: that would limit an exported program
        raise wrong_value(f"{name} must be at least {least}; got {value}")
    return value


def length(name: str, value: object) -> int:
    if not 1 <= count(name, value) < 2**53:
        raise wrong_value(f"{name} must be at least 1 and below 2**53; got {value}")
    return plain(value)


def integer(name: str, value: object) -> None:
    if not is_int(value):
        raise wrong_type(f"{name} must be an int; got {type(value).__name__}")


def is_int(value: object) -> bool:
    """Whether `value` is an integer on the host: an int, an integer of NumPy, or the symbol of an exporter."""
    if isinstance(value, (int, np.integer)):
        return not isinstance(value, bool)
    return libraries.is_symbol(value)


def plain(value: object) -> Any:
    """An integer of NumPy as a Python int, whose arithmetic does not wrap. Other values stay as they are."""
    return int(value) if isinstance(value, np.integer) else value


def shown(value: object) -> str:
    """`repr(value)` for messages. If it is long, its middle is left out."""
    text = repr(value)
    return text if len(text) <= 400 else f"{text[:250]} ... {text[-100:]}"


def shape(x: Any) -> tuple[int, ...]:
    return tuple(x.shape)


def writable(arrays: Sequence[Any], tables: Sequence[Any]) -> None:
    """Arrays must be safe to overwrite: writable, without gradients, and each element in its own memory."""
    for x in arrays:
        if libraries.is_torch(x):
            if x.requires_grad:
                raise wrong_value("x must not require grad, because it is overwritten; got a tensor that does")
            if libraries.is_from_inference_mode(x):
                raise wrong_value("x must not come from inference_mode when used outside it; got a tensor that does")
        elif not libraries.is_host(x):
            library = libraries.name(libraries.namespace(x))
            raise wrong_type(f"x must be a mutable array, of NumPy or PyTorch; got {library}")
        elif not x.flags.writeable:
            raise wrong_value("x must be writable; got a read-only array")
        if memory.is_contiguous(x):
            continue
        # From the smallest stride to the largest, each step must be longer than the memory that inner axes cover.
        extent = x.itemsize - 1
        for step, size in sorted([(abs(step), size) for step, size in zip(memory.steps(x), x.shape) if size > 1]):
            if step <= extent:
                strides = tuple(memory.strides(x))
                raise wrong_value(
                    f"x must hold each element in its own memory; got shape {shape(x)} with strides {strides}"
                )
            extent += step * (size - 1)
    if any(libraries.is_torch(table) and table.requires_grad for table in tables):
        raise wrong_value(
            "tables must not require grad, because a rotation in place has no derivative; got tables that do"
        )


def require_disjoint(arrays: Sequence[Array], tables: Sequence[tuple[Any, ...]], by_address: bool = True) -> None:
    """No array may share memory with another array, with the tables or with the positions."""
    # Traced tensors have no addresses. Without `by_address`, only an array that is passed twice is found.
    error = wrong_value("x must share no memory with the other arguments; got arrays that overlap")
    if any(x is other for number, x in enumerate(arrays) for other in arrays[:number]):
        raise error
    if not by_address:
        return
    everything = [*arrays, *{id(table): table for group in tables for table in group}.values()]
    extents = [memory.extent(each) for each in everything]
    for number, (start, stop) in enumerate(extents[: len(arrays)]):
        for other, (first, last) in enumerate(extents[number + 1 :], number + 1):
            if first < stop and start < last and memory.may_overlap(everything[number], everything[other]):
                raise error
