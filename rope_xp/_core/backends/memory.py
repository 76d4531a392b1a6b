"""Arrays as memory: what kernels need to know of NumPy's arrays and torch's tensors, and of no other library's."""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

from rope_xp._core import backends


def threads(x: Any) -> int | None:
    """How many threads the library of `x` was told to use: None where it has no setting."""
    return None if backends.is_host(x) else sys.modules["torch"].get_num_threads()


def operations(x: Any) -> Any:
    """The library's own module, whose operations take `out=` and promote as they like."""
    return np if backends.is_host(x) else sys.modules["torch"]


def empty_like(x: Any) -> Any:
    """New memory of the shape and dtype of `x`, with axes in the order in which they lie in `x`."""
    return np.empty_like(x, subok=False) if backends.is_host(x) else sys.modules["torch"].empty_like(x)


def strides(x: Any) -> tuple[int, ...]:
    """How far apart the numbers along each axis lie, as the library counts."""
    return x.strides if backends.is_host(x) else x.stride()


def unit_of_strides(x: Any) -> int:
    """What one number counts in strides: NumPy's are in bytes, torch's in numbers."""
    return x.itemsize if backends.is_host(x) else 1


def addresses_and_strides(*arrays: Any) -> tuple[list[int], tuple[tuple[int, ...], ...]]:
    """Where the first number of each array of a library lies, and the strides of each."""
    if backends.is_host(arrays[0]):
        return [x.__array_interface__["data"][0] for x in arrays], tuple([x.strides for x in arrays])
    return [x.data_ptr() for x in arrays], tuple([x.stride() for x in arrays])


def is_contiguous(x: Any) -> bool:
    """Whether the numbers lie side by side in the order of the axes."""
    return x.flags.c_contiguous if backends.is_host(x) else x.is_contiguous()


def extent(x: Any) -> tuple[int, int]:
    """The first address of all numbers, and that after the last; 0 and 0 where there are no numbers in memory."""
    try:
        (start,), (steps,) = addresses_and_strides(x)
    except RuntimeError:  # a tensor without memory of its own
        return 0, 0
    if 0 in x.shape or not start:
        return 0, 0
    if is_contiguous(x):
        return start, start + x.nbytes
    stop, unit = start, x.itemsize // unit_of_strides(x)
    for step, size in zip(steps, x.shape):
        if step < 0:
            start += unit * step * (size - 1)
        else:
            stop += unit * step * (size - 1)
    return start, stop + x.itemsize


def may_overlap(x: Any, other: Any) -> bool:
    """Whether a number of one array lies where one of the other does; true, too, where that takes long to tell."""
    try:
        budget: Any = 2**16  # of a search that can take for ever
        return np.shares_memory(_addresses(x), _addresses(other), max_work=budget)
    except np.exceptions.TooHardError:
        return True


def _addresses(x: Any) -> Any:
    """An array of NumPy where `x` lies, whose numbers must not be looked at: they may be on another device."""
    if backends.is_host(x):
        return x
    stride = tuple(step * x.itemsize for step in x.stride())
    place = {"data": (x.data_ptr(), True), "shape": tuple(x.shape), "strides": stride, "typestr": f"|V{x.itemsize}"}
    return np.asarray(SimpleNamespace(__array_interface__={**place, "version": 3}))


def with_rows(x: Any) -> Any:
    """`x`, or a copy, whose numbers along the last axis lie side by side, each where such a number should."""
    if not backends.is_host(x):
        return x if x.shape[-1] == 1 or x.stride()[-1] == 1 else x.contiguous()
    return x if x.strides[-1] == x.itemsize and x.flags.aligned else np.require(x, requirements=("C", "A"))


def contiguous_copy(x: Any, dtype: Any) -> Any:
    """New memory with the numbers of `x` in the order of its axes, in another dtype."""
    if backends.is_host(x):
        return np.array(x, dtype=dtype, order="C")
    return x.to(dtype, copy=True, memory_format=sys.modules["torch"].contiguous_format)


def from_numpy(numbers: Any, like: Any) -> Any:
    """An array of NumPy as one of the library of `like`, in the same memory."""
    return numbers if backends.is_host(like) else sys.modules["torch"].from_numpy(numbers)


def complex_view(x: Any) -> Any:
    """Neighbouring channels as complex numbers, in the same memory; None where that cannot be."""
    if (
        0 in x.shape
        or strides(x)[-1] != unit_of_strides(x)
        or backends.dtype_name(x.dtype) not in ("float32", "float64")
    ):
        return None
    if backends.is_host(x):
        return x.view(f"c{2 * x.itemsize}") if x.dtype.isnative else None
    torch = sys.modules["torch"]
    if x.storage_offset() % 2 or any(stride % 2 for stride in x.stride()[:-1]):
        return None
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))


def complex_numbers(real: Any, imaginary: Any) -> Any:
    """Complex numbers of the two parts."""
    if not backends.is_host(real):
        return sys.modules["torch"].complex(real, imaginary)
    numbers = np.empty(real.shape, dtype=f"c{2 * real.itemsize}")
    numbers.real, numbers.imag = real, imaginary
    return numbers
