"""Addresses, strides and views of memory: for NumPy arrays and torch tensors only."""

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from rope_xp.arrays import libraries
from rope_xp.types import Array


def threads(x: Array) -> int | None:
    """The number of threads that the library of `x` is set to use; None for NumPy, which has no such setting."""
    return None if libraries.is_host(x) else sys.modules["torch"].get_num_threads()


def operations(x: Array) -> Any:
    """The module of the library of `x`: `numpy` or `torch`. Unlike the array API, its operations accept `out=`."""
    return np if libraries.is_host(x) else sys.modules["torch"]


def empty_like(x: Array) -> Any:
    return functions(x).empty_like(x)


def empty(shape: Any, like: Any) -> Any:
    """New memory for numbers between operations."""
    return _empty_on_host(shape, like.dtype) if libraries.is_host(like) else like.new_empty(shape)


def _empty_on_host(shape: Any, dtype: Any) -> Any:
    # NumPy asks for huge pages from 4 MB on. Up to there, each array may be fresh memory too, and faults of its small
    # pages then cost more than operations.
    count, size = prod(shape), np.dtype(dtype).itemsize
    least = 2 * HUGE_PAGE // size if count * size >= HUGE_PAGE // 8 else 0
    return np.empty(max(count, least), dtype)[:count].reshape(shape)


def strides(x: Any) -> tuple[int, ...]:
    """The strides of `x` in the unit of its library: bytes for NumPy, numbers for torch."""
    return x.strides if libraries.is_host(x) else x.stride()


def steps(x: Any) -> tuple[int, ...]:
    """The strides of `x` in bytes."""
    return x.strides if libraries.is_host(x) else tuple([stride * x.itemsize for stride in x.stride()])


def is_native(x: Array) -> bool:
    return not libraries.is_host(x) or x.dtype.isnative


def has_contiguous_rows(x: Any) -> bool:
    return x.shape[-1] == 1 or 0 in x.shape or steps(x)[-1] == x.itemsize


class Functions(NamedTuple):
    """Functions for plain arrays of one library. Programs call them, so they do as little in Python as possible."""

    empty_like: Callable[[Any], Any]
    empty_float32: Callable[[tuple[int, ...]], Any]  # given a shape
    addresses: Callable[[Sequence[Any]], list[int]]
    contiguous: Callable[[Any], Any]  # the array itself, or a copy


def functions(x: Any, size: int | None = None) -> Functions:
    """The functions for arrays like `x`. New arrays have about `size` bytes: by default, as many as `x`."""
    if libraries.is_host(x):
        return Functions(
            partial(np.empty_like, subok=False), partial(np.empty, dtype="f4"), _addresses_of_host, _contiguous
        )
    torch = sys.modules["torch"]
    empty_like, empty_float32 = torch.empty_like, partial(torch.empty, dtype=torch.float32, device=x.device)
    if _advise is not None and x.is_cpu and (x.nbytes if size is None else size) >= LARGE:
        empty_like, empty_float32 = partial(_in_huge_pages, empty_like), partial(_in_huge_pages, empty_float32)
    return Functions(empty_like, empty_float32, _addresses_of_tensors, torch.Tensor.contiguous)


# Arrays of this size may be fresh memory, and those over 32 MB always are with the allocator of glibc. PyTorch does not
# ask for huge pages: a fault for each 4 kB then costs more than the rotation. NumPy asks itself.
LARGE, HUGE_PAGE = 2**23, 2**21  # bytes
_MADV_HUGEPAGE = 14
_advise = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None
if _advise is not None:
    _advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _in_huge_pages(make: Callable[[Any], Any], given: Any) -> Any:
    x = make(given)
    start, end = -(-x.data_ptr() // HUGE_PAGE) * HUGE_PAGE, (x.data_ptr() + x.nbytes) // HUGE_PAGE * HUGE_PAGE
    if end > start:
        _advise(start, end - start, _MADV_HUGEPAGE)  # pyright: ignore[reportOptionalCall]
    return x


def _contiguous(x: Array) -> Any:
    is_array = isinstance(x, np.ndarray)  # a scalar of NumPy has no lasting memory
    return x if is_array and x.flags.c_contiguous and x.flags.aligned else np.require(x, requirements=("C", "A"))


def _addresses_of_tensors(arrays: Sequence[Any]) -> list[int]:
    return [x.data_ptr() for x in arrays]


def _slow_addresses_of_host(arrays: Sequence[Any]) -> list[int]:
    return [x.__array_interface__["data"][0] for x in arrays]


def _fast_addresses_of_host(arrays: Sequence[Array]) -> list[int]:
    return [_word_at(id(x) + _START).value for x in arrays]  # pyright: ignore[reportReturnType]


# In CPython, `id` is the address of an object. An array object of NumPy begins with Python's own part. The address of
# its numbers follows, and NumPy's binary interface guarantees this. Reading it there is eight times faster than
# `__array_interface__`.
_START = object.__basicsize__
_word_at = ctypes.c_void_p.from_address
_probe = [np.zeros(1)]
_is_fast = sys.implementation.name == "cpython" and _fast_addresses_of_host(_probe) == _slow_addresses_of_host(_probe)
_addresses_of_host = _fast_addresses_of_host if _is_fast else _slow_addresses_of_host


def is_contiguous(x: Any) -> bool:
    return x.flags.c_contiguous if libraries.is_host(x) else x.is_contiguous()


def reach(x: Any) -> tuple[int, int]:
    """The bytes from the address of `x` to the begin and to the end of its numbers. Follows from shape and strides."""
    if 0 in x.shape:
        return 0, 0
    spans = [step * (size - 1) for step, size in zip(steps(x), x.shape)]
    return sum([span for span in spans if span < 0]), sum([span for span in spans if span > 0]) + x.itemsize


def extent(x: Array) -> tuple[int, int]:
    """The range of addresses that `x` occupies, start and stop; (0, 0) if `x` has no numbers in memory."""
    try:
        (start,) = _addresses_of_host([x]) if libraries.is_host(x) else _addresses_of_tensors([x])
    except RuntimeError:  # a tensor without memory of its own
        return 0, 0
    before, after = reach(x)
    return (start + before, start + after) if start and after else (0, 0)


class Extents(NamedTuple):
    """How far arrays of one signature reach from their addresses."""

    addresses: Callable[[Sequence[Any]], list[int]]
    reaches: tuple[tuple[int, int], ...]

    def are_apart(self, arrays: Sequence[Array]) -> bool:
        starts = self.addresses(arrays)
        ranges = sorted([(start + before, start + after) for start, (before, after) in zip(starts, self.reaches)])
        return all([stop <= start for (_, stop), (start, _) in pairwise(ranges)])


def extents(arrays: Sequence[Array]) -> Extents:
    return Extents(functions(arrays[0]).addresses, tuple(map(reach, arrays)))


def may_overlap(x: Array, other: object) -> bool:
    """Whether two arrays share memory. Also true if it takes too long to find out."""
    try:
        budget: Any = 2**16  # limits a search that can take exponential time
        return np.shares_memory(_address_view(x), _address_view(other), max_work=budget)
    except np.exceptions.TooHardError:
        return True


def _address_view(x: Any) -> Any:
    """A NumPy array with the addresses of `x`. Never read its values: the memory may belong to another device."""
    if libraries.is_host(x):
        return x
    interface = {"data": (x.data_ptr(), True), "shape": tuple(x.shape), "strides": steps(x)}
    return np.asarray(SimpleNamespace(__array_interface__={**interface, "typestr": f"|V{x.itemsize}", "version": 3}))


def with_contiguous_rows(x: Any) -> Any:
    """`x` or a copy of it, with adjacent numbers along the last axis and in native byte order."""
    if has_contiguous_rows(x) and is_native(x):
        return x
    return np.require(x, x.dtype.newbyteorder("="), "C") if libraries.is_host(x) else x.contiguous()


def views_as_halves(*arrays: Any) -> list[Any] | None:
    """Views of NumPy arrays with each half of a row as one item, which NumPy copies fast; None if there are none."""
    if not all(libraries.is_host(x) and x.strides[-1] == x.itemsize for x in arrays):
        return None
    return [x.view(f"V{x.shape[-1] // 2 * x.itemsize}") for x in arrays]


# Makes an array of another.
Conversion = Callable[[Any], Any]


def to_and_from_host(*like: Any) -> tuple[Conversion, Conversion]:
    """Functions between arrays like these, in host memory, and NumPy arrays of the same memory."""
    if libraries.is_host(like[0]):
        return np.asarray, np.asarray
    torch, are_constant = sys.modules["torch"], not any([x.requires_grad for x in like])
    return torch.Tensor.numpy if are_constant else (lambda x: x.detach().numpy()), torch.from_numpy


def to_and_from_float32(like: Any) -> tuple[Conversion, Conversion]:
    """Functions from arrays like this to float32, and back: 16 bits as contiguous copies; overflow gives infinity."""
    dtype = like.dtype
    if like.itemsize > 2:
        return (np.asarray, np.asarray) if libraries.is_host(like) else (lambda x: x, lambda x: x)
    if libraries.is_host(like):
        return partial(np.array, dtype="f4", order="C"), np.errstate(over="ignore")(lambda x: x.astype(dtype))
    tensor = sys.modules["torch"].Tensor
    from_float32 = tensor.half if libraries.dtype_name(dtype) == "float16" else tensor.bfloat16
    return (lambda x: x.contiguous().float()), from_float32


_SMALLEST = np.float32(2.0**-136)  # the least float16 number with bits in the places of float32


def are_small(halves: Any) -> bool:
    """Whether all numbers of float16 are below 2**14 in size. Their bits then are, too."""
    if _SMALLEST * np.float32(2.0**112) == 0.0:  # the processor flushes such numbers to 0, on which `widen` relies
        return False
    return halves.view(np.int16).max() < 0x7400 and halves.view(np.uint16).max() < 0xF400


def widen(numbers: Any, wide: Any, are_small: bool) -> None:
    """Write numbers of 16 bits into contiguous memory of float32."""
    # NumPy converts each float16 by itself. Three passes of integers and a product take a sixth of the time: they move
    # the bits to their places in float32, whose exponents are greater by 112.
    if not are_small:
        wide[...] = numbers
        return
    bits = wide.view(np.int32)
    bits[...] = numbers.view(np.int16)
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, ~0x70001FFF, out=bits)  # without the copies of the sign
    np.multiply(wide, np.float32(2.0**112), out=wide)


def narrow(wide: Any, numbers: Any, other: Any, are_small: bool) -> None:
    """Round contiguous float32 to 16 bits: to nearest, ties to even. `wide`, and `other` like it, are overwritten."""
    if not are_small:
        with np.errstate(over="ignore"):  # overflow gives infinity, as in the other kernels
            numbers[...] = wide
        return
    # The inverse of `widen`, down to 2**-14: its product would round smaller numbers twice.
    below = np.abs(wide, out=other) < 2.0**-14
    small = wide[below]
    bits, added = wide.view(np.int32), other.view(np.int32)
    np.multiply(wide, np.float32(2.0**-112), out=wide)
    np.right_shift(bits, 13, out=added)
    np.bitwise_and(added, 1 << 28 | 1, out=added)  # the last bit that stays; and the sign, moved beside the exponent
    np.add(added, 0xFFF, out=added)
    np.add(bits, added, out=bits)
    np.right_shift(bits, 13, out=bits)
    numbers.view(np.int16)[...] = bits
    numbers[below] = small


def from_numpy(numbers: Array, like: object) -> Any:
    return numbers if libraries.is_host(like) else sys.modules["torch"].from_numpy(numbers)


def complex_view(x: Any) -> Any:
    """A view of adjacent channels as complex numbers; None if memory or dtype do not permit one."""
    if 0 in x.shape or steps(x)[-1] != x.itemsize or libraries.dtype_name(x.dtype) not in ("float32", "float64"):
        return None
    is_host = libraries.is_host(x)
    fits = x.dtype.isnative if is_host else not any([step % 2 for step in (x.storage_offset(), *x.stride()[:-1])])
    return x.view(complex_dtype(x)) if fits else None


def complex_dtype(x: Any) -> Any:
    return np.dtype(f"c{2 * x.itemsize}") if libraries.is_host(x) else x.dtype.to_complex()


def complex_numbers(real: Any, imaginary: Any) -> Any:
    if not libraries.is_host(real):
        return sys.modules["torch"].complex(real, imaginary)
    numbers = _empty_on_host(real.shape, f"c{2 * real.itemsize}")
    numbers.real, numbers.imag = real, imaginary
    return numbers
