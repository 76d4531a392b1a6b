"""The rotation in several ways that say the same, and the choice between them."""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any, Literal

import numpy as np

from rope_xp._core import backends, checks
from rope_xp._core.backends import dtensor, threads  # noqa: F401 (threads from the start, so that it hears of forks)
from rope_xp._core.kernels import faults, reference
from rope_xp._core.kernels.pair_rotation import Angles, Rotation

Kernel = Literal["fastest", "reference", "blocked", "numba", "triton", "xla"]

KERNELS = {
    "fastest": "the fastest of the others that serves the arrays",
    "reference": "one expression of the array API, on every library; what the others must equal",
    "blocked": "operations of NumPy and of torch on the CPU, into memory at hand",
    "numba": "compiled, for NumPy and torch on the CPU: extra rope-xp[fast]",
    "triton": "compiled, for torch on CUDA, queries and keys in one launch",
    "xla": "the expression that XLA fuses best, for JAX",
}
_MODULES = {"numba": "numba_kernel", "triton": "cuda"}  # of the others, a module has the kernel's name
# Where arrays lie, and what is fastest there.
_FASTEST = {"host memory": ("numba", "blocked"), "cuda": ("triton",), "jax": ("xla",)}


def rotate(who: str, xs: Sequence[Any], angles: Angles, rotation: Rotation, kernel: str = "fastest") -> list[Any]:
    """`reference.rotate` of each array by its tables, by the kernel asked for, or by the fastest."""
    return _rotate_by([choose(who, x, kernel) for x in xs], xs, angles, rotation, asked=kernel)


def rotate_inplace(who: str, xs: Sequence[Any], angles: Angles, rotation: Rotation, kernel: str = "fastest") -> None:
    """`rotate`, over the arrays themselves, none of which is written before all are checked."""
    names = [choose(who, x, kernel) for x in xs]
    checks.writable(who, xs)
    checks.constant(who, angles)
    checks.require_disjoint(who, xs, angles, by_address=not _is_traced(xs[0]))
    _rotate_by(names, xs, angles, rotation, inplace=True, asked=kernel)


def computes_angles(who: str, x: Any, kernel: str) -> bool:
    """Whether the kernel that will run for `x` needs no tables: `rotate_by_positions` will do."""
    return backends.is_torch(x) and not backends.is_traced() and choose(who, x, kernel) == "triton"


def rotate_by_positions(
    xs: Sequence[Any], positions: Sequence[Any], frequencies: Any, scale: Any, rotation: Rotation, kernel: str
) -> Any:
    """`rotate`, by integer positions opposite the axes of each array, times frequencies; tables would be scaled."""
    by_positions = _kernel_module("triton").ByPositions(frequencies, scale)
    return _launch(xs, [(where,) for where in positions], rotation, by_positions, asked=kernel)


def _rotate_by(
    names: list[str], xs: Sequence[Any], angles: Angles, rotation: Rotation, inplace: bool = False, *, asked: str
) -> list[Any]:
    """All arrays at once where one kernel does all, as it may need only one launch."""
    name = names[0]
    if len(set(names)) > 1:
        return [
            _rotate_by([name], [x], [own], rotation, inplace, asked=asked)[0] for name, x, own in zip(names, xs, angles)
        ]
    if name == "triton" and not _is_traced(xs[0]):
        return _launch(xs, angles, rotation, _kernel_module(name), inplace, asked=asked)
    tables = reference.tables_of(angles)
    if name == "reference":
        return reference.rotate_all(xs, tables, rotation, inplace)
    if name == "triton":
        return _operators().rotate_in_graph(xs, tables, rotation, inplace)
    if backends.is_torch(xs[0]):
        return _kernel_module("autograd").rotate_all(xs, tables, rotation, _kernel_module(name), inplace)
    return _kernel_module(name).rotate_all(xs, tables, rotation, inplace)


def _launch(
    xs: Sequence[Any], angles: Angles, rotation: Rotation, kernel: Any, inplace: bool = False, *, asked: str
) -> list[Any]:
    """Rotate by a kernel of Triton; unless it was asked for by name, the reference does what cannot be launched."""
    autograd = _kernel_module("autograd")
    return autograd.rotate_all(
        xs, angles, rotation, kernel if asked == "triton" else autograd.OrReference(kernel, _give_up), inplace
    )


def on_host(x: Any) -> Any:
    """An array of NumPy in the memory of `x`, where that is the host's and nothing but numbers; None elsewhere."""
    if backends.is_host(x):
        return np.asarray(x)
    if backends.is_torch(x) and x.is_cpu and not backends.is_traced() and _kernel_module("autograd").is_constant(x):
        return x.numpy()
    return None


def choose(who: str, x: Any, kernel: str) -> str:
    """The name of the kernel that will run for `x`."""
    traced = _is_traced(x)
    if kernel == "reference" or (traced and kernel != "triton") or dtensor.is_dtensor(x):
        return "reference"
    place = _place(x)
    if kernel == "fastest":
        return _fastest(place, x)
    module = _operators() if traced else _kernel_module(kernel)
    if not isinstance(module, ImportError):
        if place not in module.PLACES:
            raise ValueError(f"{who}: kernel={kernel!r} must have arrays in {' or '.join(module.PLACES)}; got {place}")
        module = None if traced else _obstacle(kernel, x)
    if module is not None:
        state = "installed" if isinstance(module, ModuleNotFoundError) else "usable here"
        raise ValueError(f"{who}: kernel={kernel!r} must be {state}; got {module}")
    return kernel


def passed_over(x: Any, chosen: str) -> str:
    """Why `choose` takes no faster kernel for `x` than the one that it chose: empty where it does."""
    faster = _FASTEST.get(_place(x), ()) if not _is_traced(x) and not dtensor.is_dtensor(x) else ()
    obstacles = [f"no {name}: {problem}" for name in faster if name != chosen and (problem := _obstacle(name, x))]
    return "; ".join(obstacles)


def _is_traced(x: Any) -> bool:
    return backends.is_torch(x) and backends.is_traced()


def _operators() -> Any:
    """The module of Triton's kernel, imported by a statement: compilers do not follow the cache of `_kernel_module`."""
    try:
        from rope_xp._core.kernels import cuda
    except Exception as problem:
        return ImportError(faults.reason(problem))
    return cuda


def _place(x: Any) -> str:
    """Where an array lies: "host memory" is the host's, with whole numbers in the order of the machine's bytes."""
    if backends.is_host(x):
        return "host memory" if x.flags.aligned and x.dtype.isnative else "unaligned or foreign memory"
    if backends.is_torch(x):
        return "host memory" if x.is_cpu else x.device.type
    return "jax" if backends.is_jax(x) else backends.name(backends.namespace(x))


def _fastest(place: str, x: Any) -> str:
    for name in _FASTEST.get(place, ()):
        problem = _obstacle(name, x)
        if problem is None:
            return name
        if not isinstance(problem, ModuleNotFoundError):
            faults.warn_once(name, f"kernel={name!r} is not used, and a slower one runs, after {problem}")
    return "reference"


# Why a kernel cannot rotate arrays of a dtype and a device, or None.
_obstacles: dict[tuple[str, Any, Any], ImportError | None] = {}


def _obstacle(name: str, x: Any) -> ImportError | None:
    """Why a kernel cannot rotate arrays like `x`: found out once for each dtype and device, or None."""
    key = _key(name, x)
    if key not in _obstacles:
        problem, module = None, _kernel_module(name)
        try:
            if isinstance(module, ImportError):
                problem = module
            elif hasattr(module, "prove") and not module.prove(x):
                return None  # it cannot be found out now
        except Exception as found:
            problem = ImportError(faults.reason(found))
        _obstacles[key] = problem
    return _obstacles[key]


def _key(name: str, x: Any) -> tuple[str, Any, Any]:
    return name, x.dtype, x.device if backends.is_torch(x) else None


def _give_up(x: Any, problem: Exception) -> None:
    """Hear that a launch failed."""
    _obstacles[_key("triton", x)] = ImportError(str(problem))
    faults.warn_once("triton", f"kernel='triton' is not used, and a slower one runs, after {problem}")


@cache
def _kernel_module(name: str) -> Any:
    """The module of a kernel, or why it cannot be imported: looked for once, as a search that finds nothing is slow.

    The error has no traceback, which would keep the arrays of this call alive; it is a `ModuleNotFoundError` if nobody
    installed what the kernel is named after.
    """
    try:
        return import_module(f"rope_xp._core.kernels.{_MODULES.get(name, name)}")
    except ModuleNotFoundError as problem:
        absent = ModuleNotFoundError(str(problem)) if problem.name == name else None
        broken = ImportError(faults.reason(problem))
    except Exception as problem:
        absent, broken = None, ImportError(faults.reason(problem))
    return absent or broken
