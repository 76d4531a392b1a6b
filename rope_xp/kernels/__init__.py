"""The kernels: several implementations of one rotation, and the choice between them. `plan.py` has all steps."""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from threading import RLock
from typing import Any, Literal, NamedTuple

import numpy as np

from rope_xp.arrays import exact_phases, libraries, signature, threads  # noqa: F401 (threads registers a hook for forks)
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


def computes_angles(x: Array, kernel: str) -> bool:
    """Whether the kernel for `x` computes angles from positions. Only Triton does."""
    return libraries.is_torch(x) and not libraries.is_traced_by_torch() and choose(x, kernel) == "triton"


class GeneralProgram(NamedTuple):
    """A rotation that prepares nothing: each run aligns the angles and calls the kernel of each array."""

    # It is for calls without a signature, and for arrays for which no kernel prepares a program.

    names: list[str]  # of the kernel for each array
    alignments: Sequence[Alignment]
    rotation: Rotation
    inplace: bool
    triton: Any  # the kernel that "triton" names; None for tensors that a compiler traces: they get an operator

    def run(self, xs: Sequence[Array], angles: Angles) -> list[Any]:
        angles = align_angles(angles, self.alignments)
        if len(set(self.names)) == 1:  # one kernel may rotate several arrays in one launch
            return self._rotate(self.names[0], xs, angles)
        return [self._rotate(name, [x], [group])[0] for name, x, group in zip(self.names, xs, angles)]

    def _rotate(self, name: str, xs: Sequence[Array], angles: Angles) -> list[Any]:
        rotation, inplace = self.rotation, self.inplace
        if name == "triton" and self.triton is not None:
            return _kernel_module("autograd").rotate_all(xs, angles, rotation, self.triton, inplace)
        tables: Any = angles if name == "numba" else reference.tables_of(angles)  # numba selects rows itself
        if name == "reference":
            return reference.rotate_all(xs, tables, rotation, inplace)
        if name == "triton":
            return _operators().rotate_in_graph(xs, tables, rotation, inplace)
        if libraries.is_torch(xs[0]):
            return _kernel_module("autograd").rotate_all(xs, tables, rotation, _kernel_module(name), inplace)
        return _kernel_module(name).rotate_all(xs, tables, rotation, inplace)


class ProgramWithFallback(NamedTuple):
    """A prepared program of Triton. If it cannot be launched, it has written nothing, and the fallback runs."""

    program: Any
    fallback: Callable[..., Any]  # given the error, and what the program was given

    def run(self, *given: Any) -> Any:
        try:
            return self.program.run(*given)
        except faults.LaunchError as problem:
            return self.fallback(problem, *given)


def program_of(plan: Any, rope: Any, xs: Sequence[Array], angles: Angles, may_be_kept: bool) -> Any:
    """The program of a `CallPlan`. If it `may_be_kept`, it is for arrays and angles with the signatures of these."""
    triton = _triton_kernel(plan, rope) if "triton" in plan.names and not is_traced_tensor(xs[0]) else None
    general = GeneralProgram(plan.names, plan.alignments, plan.rotation, plan.inplace, triton)
    name = plan.names[0]
    if not may_be_kept or len(set(plan.names)) > 1:
        return general
    if name == "xla":  # its programs align angles in a function that is compiled
        return _kernel_module("xla").prepare(angles, plan.alignments, plan.rotation)
    # Programs of "blocked" align angles by `reshape` alone, which does not permute axes.
    is_permuted = name == "blocked" and any([each.order is not None for each in plan.alignments])
    # `choose` has tested all kernels but "reference", and keeps what it found: also None, for one that works.
    if is_permuted or not all(_key(name, x) in _obstacles for x in xs):
        return general
    arguments, kernel = (xs, align_angles(angles, plan.alignments), plan.rotation), triton or _kernel_module(name)
    if libraries.is_torch(xs[0]):
        program = _kernel_module("autograd").prepare(*arguments, kernel, plan.inplace)
    else:
        program = kernel.prepare(*arguments, plan.inplace)
    if program is None:
        return general
    # The general program reports the error if its own launch fails too.
    return program if triton is None else ProgramWithFallback(program, lambda _, *given: general.run(*given))


def _triton_kernel(plan: Any, rope: Any) -> Any:
    """The Triton kernel of a plan, with the reference as its fallback unless the user chose Triton by name."""
    kernel = _kernel_module("triton")
    if plan.source == "positions":
        kernel = kernel.ByPositions(rope._frequencies, rope._scale.attention_factor)
    if plan.requested == "triton":
        return kernel
    return _kernel_module("autograd").KernelWithFallback(kernel, _report_failure)


def table_program_of(positions: Array, frequencies: Any, scale: float, kernel: str) -> Any:
    """A program for float32 tables times `scale`; None without one. Like the general one, its `run` is given `like`."""
    if kernel == "reference" or not frequencies.are_floats:
        return None
    if libraries.is_jax(positions):
        return _kernel_module("xla").prepare_tables(positions, frequencies, scale)
    if libraries.is_torch(positions) and (program := _tables_by_triton(positions, frequencies, scale, kernel)):
        return program
    if host_view(positions) is None:
        return None
    return (_usable_numba_tables(positions, kernel) or blocked).prepare_tables(positions, frequencies, scale)


def exact_tables(positions: Array, frequencies: Any, dtype: Any, kernel: str) -> tuple[Any, Any]:
    if kernel != "reference" and frequencies.are_floats and libraries.is_jax(positions):
        return _kernel_module("xla").compiled_tables(positions, frequencies.inv_freq, dtype)
    if frequencies.are_floats and libraries.is_torch(positions) and libraries.dtype_name(dtype) == "float32":
        program = _tables_by_triton(positions, frequencies, 1.0, kernel)
        if program is not None:
            return program.run(positions)
    return exact_phases.exact_tables(positions, frequencies, dtype)


def _tables_by_triton(positions: Any, frequencies: exact_phases.Frequencies, scale: float, kernel: str) -> Any:
    if libraries.is_traced_by_torch() or libraries.is_dtensor(positions):
        return None
    is_asked = kernel == "fastest" and "triton" in _FASTEST.get(_memory_of(positions), ())
    is_named = kernel == "triton" and triton_takes(positions)
    if not (is_asked or is_named) or not _kernel_module("autograd").is_constant(positions):
        return None
    float32 = libraries.namespace(positions).float32
    if choose(positions.new_empty(0, dtype=float32), kernel) != "triton":
        return None
    program = _kernel_module("triton").prepare_tables(positions, frequencies, scale)

    def by_operations(problem: Exception, positions: Any, like: object = None) -> tuple[Any, Any]:
        _report_failure(positions.new_empty(0, dtype=float32), problem)
        sin, cos = exact_phases.exact_tables(positions, frequencies, float32)
        return sin * scale, cos * scale

    return program if is_named or program is None else ProgramWithFallback(program, by_operations)


def triton_takes(x: Array) -> bool:  # also tensors in host memory, where it is interpreted
    return libraries.is_torch(x) and _memory_of(x) in getattr(_kernel_module("triton"), "MEMORY_KINDS", ())


def host_view(x: Any) -> Any:
    """`x` as a NumPy array of the same memory; None if `x` is not plain numbers in host memory."""
    if libraries.is_host(x):
        return np.asarray(x)
    if (
        libraries.is_torch(x)
        and x.is_cpu
        and not libraries.is_traced_by_torch()
        and _kernel_module("autograd").is_constant(x)
    ):
        return x.numpy()
    return None


def _usable_numba_tables(positions: Array, kernel: str) -> Any:
    if kernel == "blocked":
        return None
    problem = _obstacle("numba_tables", positions)
    if problem is None:
        return _kernel_module("numba_tables")
    if kernel == "fastest":
        _warn("numba", problem)
    return None


def choose(x: Array, kernel: str) -> str:
    """The name of the kernel that rotates `x`, if the user asks for `kernel`."""
    traced = is_traced_tensor(x)
    if kernel == "reference" or (traced and kernel != "triton") or libraries.is_dtensor(x):
        return "reference"
    memory = _memory_of(x)
    if kernel == "fastest":
        return _fastest(memory, x)
    module = _operators() if traced else _kernel_module(kernel)
    if isinstance(module, ImportError):
        problem = module
    elif memory not in module.MEMORY_KINDS:
        raise wrong_value(f"kernel={kernel!r} must have arrays in {' or '.join(module.MEMORY_KINDS)}; got {memory}")
    else:
        problem = None if traced else _obstacle(kernel, x)
    if problem is not None:
        state = "installed" if isinstance(problem, ModuleNotFoundError) else "usable here"
        raise wrong_value(f"kernel={kernel!r} must be {state}; got {problem}")
    return kernel


def why_not_faster(x: Array, chosen: str) -> str:
    faster = _FASTEST.get(_memory_of(x), ()) if not is_traced_tensor(x) and not libraries.is_dtensor(x) else ()
    obstacles = [f"no {name}: {problem}" for name in faster if name != chosen and (problem := _obstacle(name, x))]
    return "; ".join(obstacles)


def is_traced_tensor(x: Array) -> bool:
    return libraries.is_torch(x) and libraries.is_traced_by_torch()


def _operators() -> Any:
    """The module of Triton's operators for compilers, or its import error. A call that is traced reads no cache."""
    try:
        from rope_xp.kernels import triton
    except Exception as problem:
        return ImportError(faults.reason(problem))
    return triton


def _memory_of(x: Any) -> str:
    """Where `x` is: "host memory" (of NumPy or torch, aligned and in native byte order), a device, or a library."""
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
    if not isinstance(problem, ModuleNotFoundError):  # nobody is warned of a package that is not installed
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
            elif hasattr(module, "make_ready") and not module.make_ready(x):
                # No test is possible now, for example while a CUDA graph is captured. The kernel is used, although it
                # may fail. Nothing is stored, and plans are forgotten (that of this call, too), so that a later call
                # tests the kernel.
                signature.forget_plans()
                return None
        except Exception as found:
            problem = ImportError(faults.reason(found))
        _obstacles[key] = problem
    return _obstacles[key]


def _key(name: str, x: Any) -> tuple[str, Any, Any]:
    return name, x.dtype, x.device if libraries.is_torch(x) else None


def _report_failure(x: Array, problem: Exception) -> None:
    """Warn that a launch failed, and do not choose Triton again for arrays like `x`."""
    obstacle = _obstacles[_key("triton", x)] = ImportError(str(problem))
    signature.forget_plans()
    _warn("triton", obstacle)


# Without it, while an import fails in one thread, another thread may get the incomplete module from Python.
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
    except Exception as problem:
        if isinstance(problem, ModuleNotFoundError) and problem.name == package:
            return ModuleNotFoundError(str(problem))
        return ImportError(faults.reason(problem))
