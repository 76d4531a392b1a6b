"""The rotation in several ways that say the same, and the choice between them."""

from functools import cache
from importlib import import_module
from typing import Any, Literal

import numpy as np

from rope_xp import backends
from rope_xp.backends import memory, threads  # noqa: F401 (threads from the start, so that it hears of forks)
from rope_xp.kernels import reference
from rope_xp.kernels.turn import Turn

Kernel = Literal["fastest", "reference", "eager", "numba", "triton", "xla"]

KERNELS = {
    "fastest": "the fastest of the others that serves the arrays",
    "reference": "one expression of the array API, on every library; what the others must equal",
    "eager": "operations of NumPy and of torch on the CPU, into memory at hand",
    "numba": "compiled, for NumPy and torch on the CPU: extra rope-xp[fast]",
    "triton": "compiled, for torch on CUDA, queries and keys in one launch",
    "xla": "the expression that XLA fuses best, for JAX",
}
_ROOMS = {"eager": "eager", "numba": "compiled", "triton": "cuda", "xla": "xla"}
# Where arrays lie, and what is fastest there.
_FASTEST = {"memory": ("numba", "eager"), "cuda": ("triton",), "jax": ("xla",)}


def rotate(who: str, x: Any, sin: Any, cos: Any, turn: Turn, kernel: str = "fastest") -> Any:
    """`reference.rotate`, by the kernel asked for, or by the fastest."""
    return _rotate_by(choose(who, x, kernel), x, sin, cos, turn)


def rotate_all(who: str, work: list[tuple[Any, Any, Any, Turn]], kernel: str = "fastest") -> list[Any]:
    """`rotate` of several arrays by one turn: in one launch where the kernel can."""
    names = [choose(who, x, kernel) for x, *_ in work]
    rotated = _at_once(names, work) if len(work) > 1 else None
    return [_rotate_by(name, *each) for name, each in zip(names, work)] if rotated is None else rotated


def _rotate_by(name: str, x: Any, sin: Any, cos: Any, turn: Turn) -> Any:
    if name == "reference":
        return reference.rotate(x, sin, cos, turn)
    if backends.is_torch(x):
        return _room("autograd").rotate(x, sin, cos, turn, _room(name))
    return _room(name).rotate(x, sin, cos, turn)


def _at_once(names: list[str], work: list[tuple[Any, Any, Any, Turn]], inplace: bool = False) -> list[Any] | None:
    """All arrays in one launch, where their kernel has such; None elsewhere."""
    if set(names) != {"triton"} or len({x.dtype for x, *_ in work}) > 1:
        return None
    xs, tables, turn = [x for x, *_ in work], [(sin, cos) for _, sin, cos, _ in work], work[0][3]
    return _room("autograd").rotate_all(xs, tables, turn, _room("triton"), inplace)


def rotate_inplace(who: str, work: list[tuple[Any, Any, Any, Turn]], kernel: str = "fastest") -> None:
    """`rotate`, over the arrays themselves, none of which is written before all are checked."""
    names = [choose(who, x, kernel) for x, *_ in work]
    for number, (x, sin, cos, _) in enumerate(work):
        memory.check_writable(who, x)
        memory.check_constant(who, sin, cos)
        if not (backends.is_torch(x) and backends.is_traced()):  # tensors that are traced have no addresses
            memory.check_apart(who, x, sin, cos, *[other for other, *_ in work[number + 1 :]])
    if _at_once(names, work, inplace=True) is not None:
        return
    for name, (x, sin, cos, turn) in zip(names, work):
        if name == "reference":
            reference.rotate(x, sin, cos, turn, x)
        elif backends.is_torch(x):
            _room("autograd").rotate_inplace(x, sin, cos, turn, _room(name))
        else:
            _room(name).rotate(x, sin, cos, turn, x)


def on_host(x: Any) -> Any:
    """An array of NumPy in the memory of `x`, where that is the host's and nothing but numbers; None elsewhere."""
    if type(x) is np.ndarray:
        return x
    if backends.is_torch(x) and x.is_cpu and not backends.is_traced() and _room("autograd").is_constant(x):
        return x.numpy()
    return None


def choose(who: str, x: Any, kernel: str) -> str:
    """The name of the kernel that will run for `x`."""
    if kernel == "reference" or (backends.is_torch(x) and backends.is_traced()):
        return "reference"
    place = _place(x)
    if kernel == "fastest":
        return _fastest(place)
    room = _room(kernel)
    if isinstance(room, ImportError):
        raise ValueError(f"{who}: kernel={kernel!r} must be installed; got {room}")
    if place not in room.PLACES:
        raise ValueError(f"{who}: kernel={kernel!r} must have arrays in {' or '.join(room.PLACES)}; got {place}")
    return kernel


def _place(x: Any) -> str:
    """Where an array lies: "memory" is the host's, with whole numbers in the order of the machine's bytes."""
    if backends.is_host(x):
        plain = type(x) in (np.ndarray, np.memmap)
        return "memory" if plain and x.flags.aligned and x.dtype.isnative else "unaligned, foreign or masked memory"
    if backends.is_torch(x):
        return "memory" if x.is_cpu else x.device.type
    return "jax" if backends.is_jax(x) else backends.name(backends.namespace(x))


@cache
def _fastest(place: str) -> str:
    installed = [name for name in _FASTEST.get(place, ()) if not isinstance(_room(name), ImportError)]
    return installed[0] if installed else "reference"


@cache
def _room(name: str) -> Any:
    """The module of a kernel, or why it cannot be imported: looked for once, as a search that finds nothing is slow."""
    try:
        return import_module(f"rope_xp.kernels.{_ROOMS.get(name, name)}")
    except ImportError as missing:
        reason = str(missing)
    return ImportError(reason)  # without the traceback, which would keep the arrays of this call alive
