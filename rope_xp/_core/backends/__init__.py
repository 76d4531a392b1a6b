"""What differs between array libraries: finding one, moving host data into it, naming its dtypes.

Frameworks are recognised through `sys.modules` and never imported uninvited, and nothing here is cached: under
`torch.compile` a cached lookup costs guards and prints warnings. A module of that name need not be the framework: it
may be a folder, a stub, or not yet complete, while another thread imports it. Then it has no class of arrays: `()`.
"""

import functools
import sys
from typing import Any

import array_api_compat
import array_api_compat.numpy
import numpy as np

from rope_xp._core.backends.dtensor import replicated


def namespace(x: Any) -> Any:
    """Return the array-API namespace of one array, or None where `x` is no array.

    Examples
    --------
    >>> namespace(np.zeros(2)).__name__
    'array_api_compat.numpy'
    >>> namespace([0.0, 0.0]) is None
    True
    """
    if is_host(x):
        return array_api_compat.numpy
    if is_torch(x):
        from array_api_compat import torch as torch_namespace

        return torch_namespace
    if is_jax(x):
        return sys.modules["jax"].numpy
    if hasattr(x, "__array_namespace__"):
        return x.__array_namespace__()
    if hasattr(x, "shape") and array_api_compat.is_array_api_obj(x):
        return array_api_compat.array_namespace(x)
    return None


def name(xp: Any) -> str:
    """The name of a namespace's library, for a message."""
    return xp.__name__.removeprefix("array_api_compat.")


def is_symbol(number: Any) -> bool:
    """Whether this is a whole number that torch (by `__index__`) or JAX (by the other) exports as a symbol."""
    if isinstance(number, type) or is_torch(number) or hasattr(number, "shape"):  # of which not every tensor has one
        return False
    return hasattr(number, "__index__") or hasattr(number, "dimension_as_value")


def is_host(x: Any) -> bool:
    """Whether `x` is NumPy's: data whose values can be read here, also while a compiler traces."""
    return isinstance(x, (np.ndarray, np.generic))


def is_torch(x: Any) -> bool:
    """Whether `x` is PyTorch's: never where it was not imported."""
    return isinstance(x, getattr(sys.modules.get("torch"), "Tensor", ()))


def is_jax(x: Any) -> bool:
    """Whether `x` is JAX's: never where it was not imported."""
    return isinstance(x, getattr(sys.modules.get("jax"), "Array", ()))


# The types of NumPy's arrays that are numbers and nothing else.
PLAIN = (np.ndarray, np.memmap)


def special_kind(x: Any) -> str | None:
    """The kind of an array that is more or less than a block of numbers, as masked and sparse ones are; else None.

    NumPy's subclasses are refused, as its functions drop or misread them, but for arrays in files. Those of PyTorch see
    every operation and give the result their meaning; only those are refused that cannot.

    Examples
    --------
    >>> special_kind(np.ma.masked_array([1.0, 2.0]))
    'MaskedArray'
    >>> special_kind(np.zeros(2)) is None
    True
    """
    if is_host(x):
        return None if type(x) in PLAIN or isinstance(x, np.generic) else type(x).__name__
    if not is_torch(x):
        return None
    torch, kind = sys.modules["torch"], type(x)
    if kind is not torch.Tensor and kind is not torch.nn.Parameter:
        masked = sys.modules.get("torch.masked")
        without_numbers = (torch.nn.parameter.UninitializedTensorMixin, torch.sparse.SparseSemiStructuredTensor)
        if isinstance(x, without_numbers) or (masked is not None and isinstance(x, masked.MaskedTensor)):
            return kind.__name__
    if x.is_nested:
        return "nested tensor"
    if x.layout is not torch.strided:
        return f"tensor of layout {x.layout}"
    return "quantized tensor" if x.is_quantized else None


def is_left_of_inference(x: Any) -> bool:
    """Whether a tensor of PyTorch comes from `inference_mode` and is met outside of it, where nothing may write it."""
    return not is_traced() and not sys.modules["torch"].is_inference_mode_enabled() and x.is_inference()


def is_traced() -> bool:
    """Whether a compiler or an exporter of torch is looking on."""
    torch = sys.modules["torch"]
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def from_host(values: Any, *, like: Any, dtype: Any = None) -> Any:
    """NumPy data beside `like`: in its library and, but for JAX, on its device.

    On JAX it stays uncommitted, so that it follows the array it meets, sharded or not.
    """
    if is_host(like):
        return values if dtype is None else astype(values, dtype)
    # A contiguous copy in native byte order: torch takes nothing else, and warns of read-only data.
    native = values.dtype if values.dtype.isnative else values.dtype.newbyteorder("=")
    array = namespace(like).asarray(np.array(values, dtype=native, order="C"), dtype=dtype, **_device(like))
    return replicated(array, like=like)


def from_numbers(numbers: Any, *, like: Any, dtype: Any) -> Any:
    """A Python number, or a nested tuple of them, as an array beside `like`.

    Constants of torch are made from the numbers themselves: `torch.export` in strict mode loses a NumPy array's values.
    """
    if is_torch(like):
        return replicated(sys.modules["torch"].tensor(numbers, dtype=dtype, device=like.device), like=like)
    return from_host(np.asarray(numbers, dtype=dtype_name(dtype)), like=like, dtype=dtype)


def arange(count: int, *, like: Any) -> Any:
    """The int32 numbers 0, 1, ..., count - 1 beside `like`."""
    xp = namespace(like)
    return replicated(xp.arange(count, dtype=xp.int32, **_device(like)), like=like)


def astype(x: Any, dtype: Any) -> Any:
    """`x` in another dtype; `x` itself where it has that dtype (the standard's `astype` copies)."""
    return x if x.dtype == dtype else namespace(x).astype(x, dtype)


def dtype_name(dtype: Any) -> str:
    """The plain name of a dtype, or of the type that stands for it: the standard's queries do not know bfloat16.

    Examples
    --------
    >>> dtype_name(np.zeros(2).dtype)
    'float64'
    """
    return getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype).rpartition(".")[2]


def is_real(x: Any) -> bool:
    """Whether an array of numbers holds floats, not integers."""
    return dtype_name(x.dtype).startswith("float")


def has_64_bits(like: Any) -> bool:
    """Whether int64 and float64 exist beside `like`: everywhere but on JAX without x64."""
    return not is_jax(like) or sys.modules["jax"].config.jax_enable_x64


def on_one_device(x: Any, like: Any) -> bool:
    """Whether two arrays of one library lie on one device, where that can be told: in torch."""
    return not is_torch(x) or x.device == like.device


def uniform(count: int, *, source: Any) -> Any:
    """`count` float32 numbers from 0 to 1 of a random source, in its library; None where `source` is none.

    Examples
    --------
    >>> uniform(2, source=np.random.default_rng(0)).shape
    (2,)
    """
    if isinstance(source, np.random.Generator):
        return source.random(count, dtype=np.float32)
    if isinstance(source, getattr(sys.modules.get("torch"), "Generator", ())):
        torch = sys.modules["torch"]
        return torch.rand(count, generator=source, device=source.device, dtype=torch.float32)
    if is_jax(source):
        jax = sys.modules["jax"]
        typed = jax.dtypes.issubdtype(source.dtype, jax.dtypes.prng_key)
        if source.shape == (() if typed else (2,)) and (typed or dtype_name(source.dtype) == "uint32"):
            return jax.random.uniform(source, (count,), dtype="float32")
    return None


def cumulative_sum(x: Any) -> Any:
    """The standard's `cumulative_sum` along the last axis, in the dtype of `x`."""
    if is_torch(x):  # array-api-compat's own looks the namespace up, through a cache
        return sys.modules["torch"].cumsum(x, dim=-1, dtype=x.dtype)
    return namespace(x).cumulative_sum(x, axis=-1, dtype=x.dtype)


def concat(arrays: list[Any]) -> Any:
    """The standard's `concat` along the last axis."""
    if is_torch(arrays[0]):  # whose `concat` has no rule for gradients in a batch, as its `cat` has
        return sys.modules["torch"].cat(arrays, dim=-1)
    return namespace(arrays[0]).concat(arrays, axis=-1)


def knows_sizes(x: Any) -> bool:
    """Whether the sizes of `x` are numbers, or symbols to calculate with, and none of them is None: ndonnx's."""
    return None not in x.shape


def size_of(x: Any, axis: int) -> Any:
    """The size of an axis; where nobody knows it, an array that has it when the traced program runs."""
    known = x.shape[axis]
    return x.dynamic_shape[axis] if known is None else known


def with_axes(xp: Any, x: Any, shape: tuple[int, ...]) -> Any:
    """`x` in a shape that is its own but for further axes of size 1."""
    if x.ndim == len(shape):
        return x
    if knows_sizes(x):
        return xp.reshape(x, shape)
    for axis, size in enumerate(shape):
        if axis == x.ndim or x.shape[axis] != size:
            x = xp.expand_dims(x, axis=axis)
    return x


def rows(table: Any, places: Any) -> Any:
    """Rows of a table "rows columns", "*axes columns" for places "*axes"."""
    xp, columns = namespace(table), table.shape[1]
    if has_64_bits(places):
        places = astype(places, xp.int64)  # some libraries index by 64 bits only
    flat = xp.take(table, xp.reshape(places, (-1,)), axis=0)
    if knows_sizes(places):
        return xp.reshape(flat, (*places.shape, columns))
    # An array of sizes makes ndonnx forget those that it knows; a sum tells it the columns again.
    shape = xp.concat([places.dynamic_shape, xp.asarray([columns], dtype=xp.int64)])
    return xp.reshape(flat, shape) + xp.zeros((columns,), dtype=table.dtype)


def unstack(x: Any, *, axis: int) -> Any:
    """The standard's `unstack` along an axis counted from the last, -1, which not every library has."""
    if is_torch(x):  # whose gradient of this is one stack, but of indices a sum of arrays padded with zeros
        return x.unbind(axis)
    after = (slice(None),) * (-1 - axis)
    return tuple(x[(..., index, *after)] for index in range(x.shape[axis]))


def has_derivatives(x: Any) -> bool:
    """Whether the library of `x` differentiates automatically."""
    return is_torch(x) or is_jax(x) or hasattr(namespace(x), "stop_gradient")


def without_gradient(x: Any) -> Any:
    """`x` as a constant of automatic differentiation; `x` itself where the library has none."""
    if not has_derivatives(x):
        return x
    if is_torch(x):
        return x.detach()
    return sys.modules["jax"].lax.stop_gradient(x) if is_jax(x) else namespace(x).stop_gradient(x)


def materialized(x: Any) -> Any:
    """`x`, as an array that a program of JAX holds in memory, rather than compute it anew wherever it is broadcast.

    XLA puts cheap operations into the loops that use them, where each head repeats them, and removes the barrier that
    JAX has against that. A division does not count as cheap; nor is it known that `x == x`, which NaN is not, is 1.
    """
    traced = is_jax(x) and isinstance(x, sys.modules["jax"].core.Tracer)
    return x / astype(x == x, x.dtype) if traced else x


def host_constant(function: Any) -> Any:
    """Mark a function of Python numbers as one that `torch.compile` calls while tracing, not one that it traces.

    The mark is the attribute that `torch.compiler.assume_constant_result` sets, so torch need not be imported. Numbers
    that the compiler carries as symbols, such as a width under ``dynamic=True``, are hashed, which fixes their value.
    """

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        return function(*[next(iter({argument})) for argument in arguments])  # a set of one: hashes it

    function._dynamo_marked_constant = True  # after `wraps`, which would copy the mark to `call`
    return call


def _device(like: Any) -> dict[str, Any]:
    """The `device=` argument of creation functions, where arrays have a device that may be passed back."""
    device = None if is_jax(like) else getattr(like, "device", None)
    return {} if device is None else {"device": device}
