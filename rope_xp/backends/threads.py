"""Threads for compiled work on memory of the host, of which a process should have no more than it has already.

PyTorch keeps threads of OpenMP that spin for a while after each operation; another pool beside them would wait for
processors that do nothing. So work is given to the OpenMP library that is there, torch's own or else that of numba,
by the entry point that GCC and LLVM compile parallel regions to. Where there is none, plain threads do it. A worker
process works alone: it has brothers for the other processors, and in a forked one OpenMP's threads are gone.
"""

import ctypes
import os
import sys
from functools import cache
from importlib import import_module
from threading import Thread
from typing import Any

_forked: list[bool] = []
if hasattr(os, "register_at_fork"):  # where there are forks
    os.register_at_fork(after_in_child=lambda: _forked.append(True))


def run(entry: Any, argument: int, count: int, *memory: Any) -> None:
    """Call a C function of one pointer in up to `count` threads, of which this is one, and wait for all.

    The threads hold what owns the memory they work on, as an interrupt may end the wait before them.
    """
    if count == 1 or _is_worker():
        entry(argument)
        return
    parallel_region = _openmp("torch" in sys.modules)
    if parallel_region is not None:
        parallel_region(ctypes.cast(entry, ctypes.c_void_p), argument, count, 0)
        return
    others = [Thread(target=lambda *_: entry(argument), args=memory) for _ in range(count - 1)]
    started = []
    for thread in others:
        try:
            thread.start()
        except RuntimeError:  # no more threads for this process: those there are do all the work
            break
        started.append(thread)
    entry(argument)
    for thread in started:
        thread.join()


def _is_worker() -> bool:
    """Whether this process is the copy of another, or was started by `multiprocessing`."""
    process = sys.modules.get("multiprocessing.process")
    return bool(_forked) or (process is not None and process.parent_process() is not None)


@cache
def _openmp(of_torch: bool) -> Any:
    """The function `GOMP_parallel(entry, argument, threads, flags)`; None where there is no such library."""
    try:
        module = sys.modules["torch"]._C if of_torch else import_module("numba.np.ufunc.omppool")
        function = ctypes.CDLL(module.__file__).GOMP_parallel
    except (ImportError, OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    function.restype = None
    return function
