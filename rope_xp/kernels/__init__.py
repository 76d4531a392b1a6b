"""The rotation in several ways that say the same, and the choice between them."""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any, Literal

import numpy as np

from rope_xp import backends, checks
from rope_xp.backends import ranks, threads  # noqa: F401 (threads from the start, so that it hears of forks)
from rope_xp.kernels import reference
from rope_xp.kernels.turn import Angles, Turn

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
_FASTEST = {"host memory": ("numba", "eager"), "cuda": ("triton",), "jax": ("xla",)}


def rotate(who: str, xs: Sequence[Any], angles: Angles, turn: Turn, kernel: str = "fastest") -> list[Any]:
    """`reference.rotate` of each array by its tables, by the kernel asked for, or by the fastest."""
    return _rotate_by([choose(who, x, kernel) for x in xs], xs, angles, turn)


def rotate_inplace(who: str, xs: Sequence[Any], angles: Angles, turn: Turn, kernel: str = "fastest") -> None:
    """`rotate`, over the arrays themselves, none of which is written before all are checked."""
    names = [choose(who, x, kernel) for x in xs]
    checks.writable(who, xs)
    checks.constant(who, angles)
    checks.apart(who, xs, angles, by_address=not _is_traced(xs[0]))
    _rotate_by(names, xs, angles, turn, inplace=True)


def computes_angles(who: str, x: Any, kernel: str) -> bool:
    """Whether the kernel that will run for `x` needs no tables: `rotate_by_positions` will do."""
    return backends.is_torch(x) and not backends.is_traced() and choose(who, x, kernel) == "triton"


def rotate_by_positions(xs: Sequence[Any], positions: Sequence[Any], frequencies: Any, scale: Any, turn: Turn) -> Any:
    """`rotate`, by integer positions opposite the axes of each array, times frequencies; tables would be scaled."""
    kernel = _room("triton").ByPositions(frequencies, scale)
    return _room("autograd").rotate_all(xs, [(where,) for where in positions], turn, kernel)


def _rotate_by(names: list[str], xs: Sequence[Any], angles: Angles, turn: Turn, inplace: bool = False) -> list[Any]:
    """All arrays at once where one kernel does all, as it may need only one launch."""
    name = names[0]
    if len(set(names)) > 1:
        return [_rotate_by([name], [x], [own], turn, inplace)[0] for name, x, own in zip(names, xs, angles)]
    if name == "triton" and not _is_traced(xs[0]):
        return _room("autograd").rotate_all(xs, angles, turn, _room(name), inplace)
    tables = reference.tables_of(angles)
    if name == "reference":
        return reference.rotate_all(xs, tables, turn, inplace)
    if name == "triton":
        return _operators().rotate_in_graph(xs, tables, turn, inplace)
    if backends.is_torch(xs[0]):
        return _room("autograd").rotate_all(xs, tables, turn, _room(name), inplace)
    return _room(name).rotate_all(xs, tables, turn, inplace)


def on_host(x: Any) -> Any:
    """An array of NumPy in the memory of `x`, where that is the host's and nothing but numbers; None elsewhere."""
    if backends.is_host(x):
        return np.asarray(x)
    if backends.is_torch(x) and x.is_cpu and not backends.is_traced() and _room("autograd").is_constant(x):
        return x.numpy()
    return None


def choose(who: str, x: Any, kernel: str) -> str:
    """The name of the kernel that will run for `x`."""
    traced = _is_traced(x)
    if kernel == "reference" or (traced and kernel != "triton") or ranks.is_spread(x):
        return "reference"
    place = _place(x)
    if kernel == "fastest":
        return _fastest(place)
    room = _operators() if traced else _room(kernel)
    if isinstance(room, ImportError):
        raise ValueError(f"{who}: kernel={kernel!r} must be installed; got {room}")
    if place not in room.PLACES:
        raise ValueError(f"{who}: kernel={kernel!r} must have arrays in {' or '.join(room.PLACES)}; got {place}")
    return kernel


def _is_traced(x: Any) -> bool:
    return backends.is_torch(x) and backends.is_traced()


def _operators() -> Any:
    """The room of Triton's kernel, by a statement that compilers follow, as they do neither a cache nor `_room`."""
    try:
        from rope_xp.kernels import cuda
    except ImportError as missing:
        return ImportError(str(missing))
    return cuda


def _place(x: Any) -> str:
    """Where an array lies: "host memory" is the host's, with whole numbers in the order of the machine's bytes."""
    if backends.is_host(x):
        return "host memory" if x.flags.aligned and x.dtype.isnative else "unaligned or foreign memory"
    if backends.is_torch(x):
        return "host memory" if x.is_cpu else x.device.type
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
