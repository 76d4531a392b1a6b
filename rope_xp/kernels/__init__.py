"""The kernels: several implementations of one rotation, and the choice between them."""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from threading import RLock
from typing import Any, Literal, NamedTuple

import numpy as np

from rope_xp.arrays import checks, exact_phases, libraries, signature, threads  # noqa: F401 (threads registers a hook for forks)
from rope_xp.arrays.alignment import Alignment, align_angles
from rope_xp.errors import wrong_value
from rope_xp.kernels import blocked, faults, reference
from rope_xp.kernels.reference import Angles, Rotation
from rope_xp.types import Array

Kernel = Literal["fastest", "reference", "blocked", "numba", "triton", "xla"]

KERNELS = {
    "fastest": "the fastest kernel that supports the arrays",
    "reference": "array API operations, for every library; all other kernels must equal it",
    "blocked": "operations of NumPy, and of torch on the CPU, on blocks that fit into the cache",
    "numba": "compiled by numba (the extra rope-xp[fast]), for NumPy and for torch on the CPU",
    "triton": "compiled, for torch on CUDA; rotates queries and keys in one launch",
    "xla": "the operations that XLA fuses best, for JAX",
}
# The faster kernels for each kind of memory, fastest first, for all floating dtypes.
_FASTEST = {"host memory": ("numba", "blocked"), "cuda": ("triton",), "jax": ("xla",)}


def require_writable(xs: Sequence[Array], angles: Angles) -> None:
    """Check that results can overwrite the arrays. This follows from the signature of a call."""
    checks.writable(xs)
    checks.no_gradients(angles)


def require_disjoint(xs: Sequence[Array], angles: Angles) -> None:
    """Check that no array that is overwritten shares memory with another argument. This depends on addresses."""
    checks.require_disjoint(xs, angles, by_address=not _is_traced(xs[0]))


def computes_angles(x: Array, kernel: str) -> bool:
    return libraries.is_torch(x) and not libraries.is_traced() and choose(x, kernel) == "triton"


class Unprepared(NamedTuple):
    """A program that chooses among kernels at each run: for calls that keep no plan, and kernels without programs."""

    names: list[str]  # of the kernel for each array
    alignments: Sequence[Alignment]
    rotation: Rotation
    inplace: bool
    requested: str  # the kernel that the user chose: if Triton was named and fails, no other kernel replaces it
    by_positions: Any = None  # the Triton kernel that computes angles

    def run(self, xs: Sequence[Array], angles: Angles) -> list[Any]:
        angles = align_angles(angles, self.alignments)
        if self.by_positions is not None:
            return _launch(xs, angles, self.rotation, self.by_positions, requested=self.requested)
        return _rotate_by(self.names, xs, angles, self.rotation, self.inplace, requested=self.requested)


class Launched(NamedTuple):
    """A prepared program of Triton. If it cannot be launched, it has written nothing, and the other program runs."""

    program: Any
    otherwise: Unprepared

    def run(self, xs: Sequence[Array], angles: Angles) -> list[Any]:
        try:
            return self.program.run(xs, angles)
        except faults.LaunchError:  # the other program handles the error if it fails too
            return self.otherwise.run(xs, angles)


def prepare(plan: Any, xs: Sequence[Array], angles: Angles, is_kept: bool) -> Any:
    """The program for a `CallPlan`: `run(xs, angles)` rotates arrays by angles with the signatures of these."""
    kernel = None if plan.for_kernel is None else _kernel_module("triton").ByPositions(*plan.for_kernel)
    unprepared = Unprepared(plan.kernels, plan.alignments, plan.rotation, plan.inplace, plan.requested, kernel)
    if not is_kept or len(set(plan.kernels)) > 1:
        return unprepared
    name = plan.kernels[0]
    if name == "xla":
        return _kernel_module("xla").prepare(angles, plan.alignments, plan.rotation)
    kernel = _kernel_module(name) if kernel is None else kernel
    # A program of NumPy's operations reshapes angles. It does not permute their axes.
    is_permuted = name == "blocked" and any([each.order is not None for each in plan.alignments])
    if is_permuted or not hasattr(kernel, "prepare") or not all(_is_known(name, x) for x in xs):
        return unprepared
    aligned = align_angles(angles, plan.alignments)
    if not libraries.is_torch(xs[0]):
        program = kernel.prepare(xs, aligned, plan.rotation, plan.inplace)
    else:
        kernel = _with_fallback(kernel, plan.requested) if name == "triton" else kernel
        program = _kernel_module("autograd").prepare(xs, aligned, plan.rotation, kernel, plan.inplace)
    if program is None:
        return unprepared
    return Launched(program, unprepared) if name == "triton" else program


def _rotate_by(
    names: list[str], xs: Sequence[Array], angles: Angles, rotation: Rotation, inplace: bool = False, *, requested: str
) -> list[Any]:
    """Rotate by aligned angles, each array with the kernel of that name. Arrays of one kernel may need one launch."""
    name = names[0]
    if len(set(names)) > 1:
        return [
            _rotate_by([name], [x], [angles_of_x], rotation, inplace, requested=requested)[0]
            for name, x, angles_of_x in zip(names, xs, angles)
        ]
    if name == "triton" and not _is_traced(xs[0]):
        return _launch(xs, angles, rotation, _kernel_module(name), inplace, requested=requested)
    tables: Any = angles if name == "numba" else reference.tables_of(angles)
    if name == "reference":
        return reference.rotate_all(xs, tables, rotation, inplace)
    if name == "triton":
        return _operators().rotate_in_graph(xs, tables, rotation, inplace)
    if libraries.is_torch(xs[0]):
        return _kernel_module("autograd").rotate_all(xs, tables, rotation, _kernel_module(name), inplace)
    return _kernel_module(name).rotate_all(xs, tables, rotation, inplace)


def _launch(
    xs: Sequence[Array], angles: Angles, rotation: Rotation, kernel: object, inplace: bool = False, *, requested: str
) -> list[Any]:
    return _kernel_module("autograd").rotate_all(xs, angles, rotation, _with_fallback(kernel, requested), inplace)


def _with_fallback(kernel: object, requested: str) -> Any:
    """A Triton kernel, with the reference as its fallback unless the user chose Triton by name."""
    return kernel if requested == "triton" else _kernel_module("autograd").WithFallback(kernel, _report_failure)


def prepare_tables(positions: Array, arrays: Sequence[Array], frequencies: Any, scale: float, kernel: str) -> Any:
    """A program for float32 tables times `scale`: `run(positions, like)`. None without a fast method."""
    in_float64 = any(libraries.dtype_name(x.dtype) == "float64" for x in arrays)
    if kernel == "reference" or in_float64 or not frequencies.are_floats or type(positions) is not type(arrays[0]):
        return None
    if libraries.is_jax(positions):
        return _kernel_module("xla").prepare_tables(positions, frequencies, scale)
    if host_view(positions) is None:
        return None
    compiled = compiled_sincos(positions, kernel)
    return (blocked if compiled is None else compiled).prepare_tables(positions, frequencies, scale)


def sin_cos(positions: Array, frequencies: Any, dtype: Any, kernel: str) -> tuple[Any, Any]:
    """`exact_phases.sin_cos`, by the function that is compiled for JAX if it can be used."""
    if kernel != "reference" and frequencies.are_floats and libraries.is_jax(positions):
        return _kernel_module("xla").sin_cos(positions, frequencies.inv_freq, dtype)
    return exact_phases.sin_cos(positions, frequencies, dtype)


def host_view(x: Any) -> Any:
    """`x` as a NumPy array of the same memory; None if `x` is not plain numbers in host memory."""
    if libraries.is_host(x):
        return np.asarray(x)
    if libraries.is_torch(x) and x.is_cpu and not libraries.is_traced() and _kernel_module("autograd").is_constant(x):
        return x.numpy()
    return None


def compiled_sincos(positions: Array, kernel: str) -> Any:
    """The module that compiles tables of positions on the host, or None if it cannot be used."""
    if kernel == "blocked":
        return None
    problem = _obstacle("numba_sincos", positions)
    if problem is None:
        return _kernel_module("numba_sincos")
    if kernel == "fastest":
        _warn("numba", problem)
    return None


def choose(x: Array, kernel: str) -> str:
    traced = _is_traced(x)
    if kernel == "reference" or (traced and kernel != "triton") or libraries.is_dtensor(x):
        return "reference"
    memory = _memory_of(x)
    if kernel == "fastest":
        return _fastest(memory, x)
    module = problem = _operators() if traced else _kernel_module(kernel)
    if not isinstance(module, ImportError):
        if memory not in module.MEMORY_KINDS:
            raise wrong_value(f"kernel={kernel!r} must have arrays in {' or '.join(module.MEMORY_KINDS)}; got {memory}")
        problem = None if traced else _obstacle(kernel, x)
    if problem is not None:
        state = "installed" if isinstance(problem, ModuleNotFoundError) else "usable here"
        raise wrong_value(f"kernel={kernel!r} must be {state}; got {problem}")
    return kernel


def why_not_faster(x: Array, chosen: str) -> str:
    faster = _FASTEST.get(_memory_of(x), ()) if not _is_traced(x) and not libraries.is_dtensor(x) else ()
    obstacles = [f"no {name}: {problem}" for name in faster if name != chosen and (problem := _obstacle(name, x))]
    return "; ".join(obstacles)


def _is_traced(x: Array) -> bool:
    return libraries.is_torch(x) and libraries.is_traced()


def _operators() -> Any:
    try:
        from rope_xp.kernels import triton
    except Exception as problem:
        return ImportError(faults.reason(problem))
    return triton


def _memory_of(x: Any) -> str:
    """The kind of memory that holds `x`. "host memory" is aligned and in native byte order, of NumPy or torch."""
    if libraries.is_host(x):
        return "host memory" if x.flags.aligned and x.dtype.isnative else "unaligned memory or non-native byte order"
    if libraries.is_torch(x):
        return "host memory" if x.is_cpu else x.device.type
    return "jax" if libraries.is_jax(x) else libraries.name(libraries.namespace(x))


def _fastest(memory: str, x: Array) -> str:
    for name in _FASTEST.get(memory, ()):
        problem = _obstacle(name, x)
        if problem is None:
            return name
        _warn(name, problem)
    return "reference"


def _warn(name: str, problem: ImportError) -> None:
    if not isinstance(problem, ModuleNotFoundError):
        faults.warn_once(name, f"kernel={name!r} is not used; a slower kernel runs instead: {problem}")


# Why a kernel cannot rotate arrays of a dtype on a device, or None if it can.
_obstacles: dict[tuple[str, Any, Any], ImportError | None] = {}


def _obstacle(name: str, x: Array) -> ImportError | None:
    """Why a kernel cannot rotate arrays like `x`, or None. Checked once for each dtype and device."""
    key = _key(name, x)
    if key not in _obstacles:
        problem, module = None, _kernel_module(name)
        try:
            if isinstance(module, ImportError):
                problem = module
            elif hasattr(module, "self_test") and not module.self_test(x):
                signature.forget_plans()  # no test is possible now; a later call tries again
                return None
        except Exception as found:
            problem = ImportError(faults.reason(found))
        _obstacles[key] = problem
    return _obstacles[key]


def _is_known(name: str, x: Array) -> bool:
    return _key(name, x) in _obstacles


def _key(name: str, x: Any) -> tuple[str, Any, Any]:
    return name, x.dtype, x.device if libraries.is_torch(x) else None


def _report_failure(x: Array, problem: Exception) -> None:
    """Warn that a launch failed, and do not choose Triton again for arrays like `x`."""
    _obstacles[_key("triton", x)] = ImportError(str(problem))
    signature.forget_plans()
    faults.warn_once("triton", f"kernel='triton' is not used; a slower kernel runs instead: {problem}")


# While an import fails in one thread, Python may give the half of a module to another.
_importing = RLock()


@cache
def _kernel_module(name: str) -> Any:
    """The module of a kernel, or its import error. It is cached, because an import that fails is slow."""
    # The error has no traceback, which would keep the arrays of the call alive. It is a `ModuleNotFoundError` if the
    # package that the kernel is named after is not installed.
    package = name.partition("_")[0]
    try:
        with _importing:
            if package in ("numba", "triton"):  # without it, the module need not be opened
                import_module(package)
            return import_module(f"rope_xp.kernels.{name}")
    except ModuleNotFoundError as problem:
        absent = ModuleNotFoundError(str(problem)) if problem.name == package else None
        broken = ImportError(faults.reason(problem))
    except Exception as problem:
        absent, broken = None, ImportError(faults.reason(problem))
    return absent or broken
