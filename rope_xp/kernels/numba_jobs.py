"""Jobs for functions that numba compiles: memory that several threads read, and C functions that they call.

A job is a row of 64-bit integers: a counter of parts, addresses, sizes and strides. Each thread takes parts of the work
with the counter, until no part is left.
"""

# pyright: reportMissingImports=false, reportCallIssue=false, reportPrivateImportUsage=false

import sys
from pathlib import Path
from threading import Timer
from typing import Any
from zlib import crc32

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils, registry
from numba.core.compiler import Compiler
from numba.extending import intrinsic

from rope_xp.kernels import faults

_settings: Any = numba.config
if _settings.DISABLE_JIT:
    raise ImportError("numba must be allowed to compile; got NUMBA_DISABLE_JIT=1")
# x86 processors convert float16 since 2012. For older ones, LLVM calls functions that do not exist here.
_target: Any = registry.cpu_target.target_context
_machine, _, _features = _target.codegen().magic_tuple()
if "x86" in _machine and "+f16c" not in _features:
    raise ImportError(f"numba must have a processor that converts float16 (f16c); got {_features or 'no features'}")


@intrinsic
def pointer_to(context: object, address: object, number: object) -> Any:
    """An address as a pointer to numbers of the dtype of `number`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(number).as_pointer())

    return types.CPointer(number)(types.intp, number), generate


@intrinsic
def fetch_and_add(context: object, counter: object) -> Any:
    """Add one to the number at an address, atomically, and return the number before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, ir.IntType(64)(1), "monotonic")

    return types.intp(types.intp), generate


@intrinsic
def call(context: object, function: object, numbers: Any) -> Any:
    """Call a C function of 64-bit integers by its address, with a tuple of them."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers = cgutils.unpack_tuple(builder, arguments[1])
        kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64)] * len(numbers))
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), numbers)

    return types.intp(types.intp, numbers), generate


def source_stamp(*modules: Any) -> int:
    """A number that changes with the source of these modules and of this one."""
    # Numba's cache on disk compares the file of an entry alone, and the variables that it encloses. An entry that
    # encloses this number is compiled again if functions that it calls have changed.
    files = [Path(file) for file in (__file__, *[module.__file__ for module in modules])]
    return crc32(b"".join([file.read_bytes() for file in files if file.is_file()]))  # no file inside an archive


PATIENCE = 1.0  # seconds that compiling may take before a line says so


def compiled_entry(entry: object, name: str, arguments: int = 1) -> Any:
    """The C function of `entry`, of integers such as the address of a job. stderr says if it takes `PATIENCE`."""
    progress = Timer(PATIENCE, _print_once, [f"rope_xp: compiling {name}, once; numba then keeps it on disk"])
    progress.daemon = True

    def pipeline(*arguments: Any) -> Any:
        """Numba's compiler. Numba makes one only if the function is not on disk; a second if it cannot be kept."""
        if progress.ident is None:
            progress.start()
        return Compiler(*arguments)

    try:
        return _compiled(entry, pipeline, arguments)
    finally:
        progress.cancel()


def _print_once(line: str) -> None:
    if sys.stderr is not None and faults.is_first(line):
        print(line, file=sys.stderr, flush=True)


def _compiled(entry: Any, pipeline: Any, arguments: int) -> Any:
    signature = types.intp(*[types.intp] * arguments)
    options = {"error_model": "numpy", "pipeline_class": pipeline}
    try:
        return numba.cfunc(signature, cache=True, **options)(entry).ctypes
    except Exception as problem:  # damaged files, a full disk, nowhere to write
        reason = faults.reason(problem)
    function = numba.cfunc(signature, **options)(entry).ctypes
    folder = _settings.CACHE_DIR or f"{Path(__file__).parent}/__pycache__"
    faults.warn_once("cache", f"numba compiles in each process, because its cache in {folder} cannot be used: {reason}")
    return function


def numba_threads() -> int:
    return _settings.NUMBA_NUM_THREADS
