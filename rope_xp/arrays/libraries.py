"""Differences between array libraries: namespaces, host data, dtypes, and operations that the standard lacks.

A framework is found in `sys.modules`, and only imported if its arrays are given. Calls that `torch.compile` traces read
nothing that is cached: it would add guards. A module of that name may be a folder, a stub or half imported: `()` then
takes the place of its array class.
"""

import functools
import sys
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from rope_xp.types import Array, Values


def namespace(x: Any) -> Any:
    """The array-API namespace of an array, or None if `x` is not an array."""
    # array-api-compat is imported when it is first used: its NumPy namespace takes longer than the rest of rope_xp.
    if is_host(x):
        from array_api_compat import numpy as numpy_namespace

        return numpy_namespace
    if is_torch(x):
        from array_api_compat import torch as torch_namespace

        return torch_namespace
    if is_jax(x):
        return sys.modules["jax"].numpy
    if hasattr(x, "__array_namespace__"):
        return x.__array_namespace__()
    if hasattr(x, "shape"):
        import array_api_compat

        return array_api_compat.array_namespace(x) if array_api_compat.is_array_api_obj(x) else None
    return None


def name(xp: Any) -> str:
    return xp.__name__.removeprefix("array_api_compat.")


def is_symbol(number: Any) -> bool:
    """Whether `number` is a symbolic integer of an exporter: torch's has `__index__`, JAX's `dimension_as_value`."""
    if isinstance(number, type) or is_torch(number) or hasattr(number, "shape"):  # some tensors have no shape
        return False
    return hasattr(number, "__index__") or hasattr(number, "dimension_as_value")


def is_host(x: object) -> bool:
    return isinstance(x, (np.ndarray, np.generic))


def is_torch(x: object) -> bool:
    return isinstance(x, getattr(sys.modules.get("torch"), "Tensor", ()))


def is_jax(x: object) -> bool:
    return isinstance(x, getattr(sys.modules.get("jax"), "Array", ()))


def is_dtensor(x: object) -> bool:
    """Whether `x` is a DTensor of PyTorch: sharded or replicated over a device mesh. It mixes with no plain tensor."""
    return isinstance(x, getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ()))


# The NumPy array types that contain only numbers.
PLAIN = (np.ndarray, np.memmap)


def special_kind(x: Any) -> str | None:
    """The kind of an array that is not a plain block of numbers, such as a masked or sparse array; otherwise None."""
    # NumPy functions drop or misread what subclasses add, except of `memmap`. PyTorch subclasses handle most
    # operations.
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


def is_from_inference_mode(x: Any) -> bool:
    """Whether a PyTorch tensor was made in `inference_mode` and is used outside of it, where it is read-only."""
    return not is_traced_by_torch() and not sys.modules["torch"].is_inference_mode_enabled() and x.is_inference()


def is_traced_by_torch() -> bool:
    torch = sys.modules["torch"]
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def numbers_at_hand(x: Any) -> list[int] | None:
    """The numbers of an eager PyTorch tensor on the CPU; None for arrays that one waits for."""
    if not is_torch(x) or is_traced_by_torch():
        return None
    torch = sys.modules["torch"]
    is_memory = type(x) is torch.Tensor and x.is_cpu and not torch._C._functorch.is_functorch_wrapped_tensor(x)
    return x.tolist() if is_memory else None


def from_host(values: NDArray[Any], *, like: Any, dtype: Any = None) -> Any:
    """NumPy data in the library of `like` and on its device; in JAX, not committed to a device."""
    if is_host(like):
        return values if dtype is None else astype(values, dtype)
    # A contiguous copy in native byte order, because torch accepts nothing else and warns about read-only data.
    native = values.dtype if values.dtype.isnative else values.dtype.newbyteorder("=")
    array = namespace(like).asarray(np.array(values, dtype=native, order="C"), dtype=dtype, **_device(like))
    return replicated(array, like=like)


def imported() -> list[Any]:
    """An empty float64 array of NumPy, then of PyTorch and of JAX if they are imported. JAX may have only float32."""
    torch: Any = sys.modules.get("torch")
    jax: Any = sys.modules.get("jax")
    arrays = [np.zeros(0)]
    if hasattr(torch, "Tensor"):
        arrays.append(torch.zeros(0, dtype=torch.float64))
    if hasattr(jax, "Array"):
        arrays.append(jax.numpy.zeros(0, dtype="float64" if jax.config.jax_enable_x64 else "float32"))
    return arrays


def to_host(x: Any) -> np.ndarray:
    if is_torch(x):
        return x.detach().cpu().double().numpy()
    if dtype_name(x.dtype) == "bfloat16":  # NumPy cannot read the bfloat16 of every library
        x = astype(x, namespace(x).float32)
    copied = next((name for name in ("get", "unwrap_numpy") if hasattr(x, name)), None)  # of CuPy, of ndonnx
    return np.asarray(x if copied is None else getattr(x, copied)()).astype(np.float64)


def from_numbers(numbers: Any, *, like: Any, dtype: Any) -> Any:
    """A Python number, or a nested tuple of numbers, as an array in the library and on the device of `like`."""
    # Torch gets the numbers themselves, because in strict mode `torch.export` loses the values of NumPy arrays.
    if is_torch(like):
        return replicated(sys.modules["torch"].tensor(numbers, dtype=dtype, device=like.device), like=like)
    return from_host(np.asarray(numbers, dtype=dtype_name(dtype)), like=like, dtype=dtype)


def filled(number: float, ndim: int, *, like: Any, dtype: Any) -> Any:
    if is_torch(like):  # a copy from the host would wait for the device
        return replicated(sys.modules["torch"].full((1,) * ndim, number, dtype=dtype, device=like.device), like=like)
    return from_host(np.full((1,) * ndim, number, dtype=dtype_name(dtype)), like=like, dtype=dtype)


# A copy from the host waits for the device, and a CUDA graph cannot capture it. A graph that was captured holds only
# the addresses of numbers, so the owner of the graph must also hold an embedding. Functions that take no embedding
# forget their frequencies at some time: numbers that a call reads while it is captured live as long as the process.
_numbers_on_devices: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()
_captured: set[object] = set()
_WITHOUT_COPIES = ("cpu", "meta")


def constant(owner: object, numbers: Any, *, like: Any, dtype: Any) -> Any:
    """`from_numbers`, for the only numbers of an owner with this dtype; copied to a GPU once, while the owner lives."""
    if not is_torch(like) or is_traced_by_torch() or like.device.type in _WITHOUT_COPIES:
        return from_numbers(numbers, like=like, dtype=dtype)
    torch, kept, key = sys.modules["torch"], _numbers_on_devices.setdefault(owner, {}), (dtype, like.device)
    is_plain = type(like) in (torch.Tensor, torch.nn.Parameter)  # fake and sharded tensors mix with no plain ones
    if not is_plain or key not in kept:
        with torch.inference_mode(False):
            array = from_numbers(numbers, like=like, dtype=dtype)
        # A mode may intercept operations, and transforms wrap what is made during them.
        if not is_plain or type(array) is not torch.Tensor or torch._C._functorch.is_functorch_wrapped_tensor(array):
            return array
        kept.setdefault(key, array)  # the same for all threads
    if like.is_cuda and torch.cuda.is_current_stream_capturing():
        _captured.add(kept[key])
    return kept[key]


def arange(count: int, *, like: Any) -> Any:
    xp = namespace(like)
    return replicated(xp.arange(count, dtype=xp.int32, **_device(like)), like=like)


def astype(x: Array, dtype: Any) -> Any:
    """`x` in a dtype. If `x` has that dtype, the result is `x` itself; the standard's `astype` would copy."""
    return x if x.dtype == dtype else namespace(x).astype(x, dtype)


def dtype_name(dtype: Any) -> str:
    """The name of a dtype, or of a scalar type that represents it. The standard cannot query for bfloat16."""
    return getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype).rpartition(".")[2]


def is_real(x: Array) -> bool:
    return dtype_name(x.dtype).startswith("float")


def has_64_bits(like: Any) -> bool:
    """Whether int64 and float64 exist in the library of `like`; they are missing only in JAX without x64."""
    return not is_jax(like) or sys.modules["jax"].config.jax_enable_x64


def on_one_device(x: Any, like: Any) -> bool:
    """Whether two arrays of one library are on the same device. Only torch is checked."""
    return not is_torch(x) or x.device == like.device


def uniform(count: int, *, source: Any) -> Any:
    """`count` float32 random numbers from 0 to 1, in the library of `source`; None if it is not a random source."""
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


def cumulative_sum(x: Array) -> Any:
    """The standard's `cumulative_sum` along the last axis, in the dtype of `x`."""
    if is_torch(x):  # array-api-compat's function looks up the namespace through a cache
        return sys.modules["torch"].cumsum(x, dim=-1, dtype=x.dtype)
    return namespace(x).cumulative_sum(x, axis=-1, dtype=x.dtype)


def concat(arrays: list[Array]) -> Any:
    """The standard's `concat` along the last axis."""
    if is_torch(arrays[0]):  # unlike `concat`, its `cat` supports batched gradients
        return sys.modules["torch"].cat(arrays, dim=-1)
    return namespace(arrays[0]).concat(arrays, axis=-1)


def knows_sizes(x: Array) -> bool:
    """Whether every size of `x` is a number or a symbol; an unknown size, as in ndonnx, is None."""
    return None not in x.shape


def size_of(x: Any, axis: int) -> Any:
    """The size of an axis. If it is unknown during tracing: an array that gets its value when the program runs."""
    known = x.shape[axis]
    return x.dynamic_shape[axis] if known is None else known


def with_axes(xp: Any, x: Array, shape: tuple[int, ...]) -> Any:
    if x.ndim == len(shape):
        return x
    if knows_sizes(x):
        return xp.reshape(x, shape)
    for axis, size in enumerate(shape):
        if axis == x.ndim or x.shape[axis] != size:
            x = xp.expand_dims(x, axis=axis)
    return x


def take(x: Array, indices: Array, *, axis: int) -> Any:
    if has_64_bits(indices):
        indices = astype(indices, namespace(x).int64)  # some libraries accept only 64-bit indices
    return namespace(x).take(x, indices, axis=axis)


def take_rows(table: Any, indices: Any) -> Any:
    xp, columns = namespace(table), table.shape[1]
    flat = take(table, xp.reshape(indices, (-1,)), axis=0)
    if knows_sizes(indices):
        return xp.reshape(flat, (*indices.shape, columns))
    # A shape given as an array makes ndonnx forget the sizes that it knows; the sum restores the number of columns.
    shape = xp.concat([indices.dynamic_shape, xp.asarray([columns], dtype=xp.int64)])
    return xp.reshape(flat, shape) + xp.zeros((columns,), dtype=table.dtype)


def unstack(x: Any, *, axis: int) -> Any:
    """The standard's `unstack` along an axis that is not negative; not every library has it."""
    # Their gradients are one stack; that of indexing is a sum of zero-padded arrays.
    if is_torch(x):
        return x.unbind(axis)
    if is_jax(x):
        return sys.modules["jax"].numpy.unstack(x, axis=axis)
    before = (slice(None),) * axis
    return tuple(x[(*before, index, ...)] for index in range(x.shape[axis]))


def has_derivatives(x: Array) -> bool:
    """Whether the library of `x` differentiates automatically."""
    return is_torch(x) or is_jax(x) or hasattr(namespace(x), "stop_gradient")


def without_gradient(x: Any) -> Any:
    """`x` as a constant of automatic differentiation; `x` itself if its library does not differentiate."""
    if not has_derivatives(x):
        return x
    if is_torch(x):
        return x.detach()
    return sys.modules["jax"].lax.stop_gradient(x) if is_jax(x) else namespace(x).stop_gradient(x)


def materialized(x: Any) -> Any:
    """`x`; under `jax.jit`, as an array that XLA computes once and stores in memory."""
    # XLA moves cheap operations into the loops that use them, where they are repeated for each head, and removes JAX's
    # optimization barrier. XLA does not move divisions, and cannot simplify this one: `x == x` is false for NaN.
    is_under_jit = is_jax(x) and isinstance(x, sys.modules["jax"].core.Tracer)
    return x / astype(x == x, x.dtype) if is_under_jit else x


def host_constant(function: Any) -> Any:
    """Mark a function of Python numbers, so that `torch.compile` calls it during tracing and does not trace it."""
    # `torch.compiler.assume_constant_result` sets the same attribute; this imports no torch. Symbolic numbers, such
    # as a width under ``dynamic=True``, are hashed: torch then replaces them by their values. PyTorch 2.11 hashes
    # no tuple of them.

    def value(argument: object) -> object:
        return tuple([*map(value, argument)]) if isinstance(argument, tuple) else next(iter({argument}))

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        return function(*map(value, arguments))

    function._dynamo_marked_constant = True  # after `wraps`, which would copy the mark to `call`
    return call


def _device(like: Any) -> Values:
    """The `device=` argument of creation functions, for libraries that accept the device of `like`."""
    device = None if is_jax(like) else getattr(like, "device", None)
    return {} if device is None else {"device": device}


def replicated(x: Any, *, like: Any) -> Any:
    """A tensor that is equal on every rank, as a replicated DTensor if `like` is a DTensor; otherwise `x` itself."""
    if not is_dtensor(like) or is_dtensor(x):
        return x
    distributed, mesh = sys.modules["torch.distributed.tensor"], like.device_mesh
    return distributed.DTensor.from_local(x, mesh, [distributed.Replicate()] * mesh.ndim, run_check=False)


def map_local_shards(function: Any, x: Any, parameter: Any, first_axis: int) -> tuple[Any, ...]:
    """Apply an elementwise `function(shard, parameter)` to the local shard of a DTensor on each rank."""
    # Results have the axes of `x` from `first_axis` on, then new ones; axes before it are not sharded during the call.
    # A `parameter` is equal on all ranks, and its gradient is summed. Operations on DTensors are slow, and some are
    # wrong: torch 2.13 returns `x` for `x >> 16`.
    distributed, mesh = sys.modules["torch.distributed.tensor"], x.device_mesh
    shard, replicate = distributed.Shard, distributed.Replicate()
    placements = [each if each.is_shard() and each.dim >= first_axis else replicate for each in x.placements]
    if parameter is not None:
        parameter = replicated(parameter, like=x).redistribute(placements=[replicate] * mesh.ndim)
        gradients = [distributed.Partial() if each.is_shard() else replicate for each in placements]
        parameter = parameter.to_local(grad_placements=gradients)
    results = []
    for local in function(x.redistribute(placements=placements).to_local(), parameter):
        shape = (*x.shape[first_axis:], *local.shape[x.ndim - first_axis :])
        strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
        shards = [shard(each.dim - first_axis) if each.is_shard() else each for each in placements]
        result = distributed.DTensor.from_local(local, mesh, shards, run_check=False, shape=shape, stride=strides)
        results.append(result)
    return tuple(results)
