"""Threads for compiled work on memory of the host, of which a process should have no more than it has already.

PyTorch keeps threads of OpenMP that spin for a while after each operation; another pool would wait for processors that
do nothing. So work is given to the OpenMP library that is there, torch's own or else that of numba, by the entry points
that GCC and LLVM compile parallel regions to. Where there is none, plain threads do it.

Threads take parts of the work one by one, and the caller takes those that nobody else has begun. But OpenMP waits for
all its threads, also for those that the system has not run yet: on a busy machine that takes longer than the work. So
each such wait is measured, and after one that did not pay the caller works alone for a while.

A worker process works alone: it has siblings for the other processors, and in a forked one OpenMP's threads are gone.
"""

import ctypes
import os
import sys
from _thread import start_new_thread  # which, unlike `Thread.start`, does not wait until the thread runs
from functools import cache
from importlib import import_module
from queue import SimpleQueue
from time import perf_counter
from typing import Any

_forked: list[bool] = []
if hasattr(os, "register_at_fork"):  # where there are forks
    os.register_at_fork(after_in_child=lambda: _forked.append(True))

LONGEST_PAUSE = 1.0  # in seconds


class _Pause:
    """The time in which OpenMP's threads are not asked, in seconds: each wait that does not pay doubles it."""

    def __init__(self) -> None:
        self.end = self.length = 0.0

    def after(self, work: float, wait: float, share: float) -> None:
        """Decide from the last call: how long the caller worked and waited, and which share of all parts it did."""
        if 0.0 < (work + wait) * share <= work:
            self.length = 0.0  # all of the work would have taken the caller longer
            return
        self.length = min(max(wait, 2 * self.length), LONGEST_PAUSE)
        self.end = perf_counter() + self.length


_pause = _Pause()


def run(entry: Any, argument: int, parts: int, count: int, *memory: Any) -> None:
    """Do all parts of some work in up to `count` threads, of which this is one.

    Parameters
    ----------
    entry : C function
        Of one pointer, the argument. It takes parts until none is left, and returns how many it has done.
    argument : int
    parts, count : int
    *memory : object
        What owns the memory that the work reads and writes. Threads hold it: one that starts when all is done reads
        the argument, and an interrupt may end the wait for the others.
    """
    if count == 1 or _is_worker() or perf_counter() < _pause.end:
        entry(argument)
        return
    region = _openmp(_has_torch())
    if region is None:
        _run_in_plain_threads(entry, argument, parts, count, memory)
        return
    start, finish = region
    task, called = ctypes.cast(entry, ctypes.c_void_p), perf_counter()
    try:  # nothing can interrupt between here and the call
        start(task, argument, count)
        began = perf_counter()
        done = entry(argument)
        work = perf_counter() - began
    finally:
        finish()
    _pause.after(work, perf_counter() - called - work, done / parts)


def _run_in_plain_threads(entry: Any, argument: int, parts: int, count: int, memory: tuple[Any, ...]) -> None:
    """Wait only for threads that have begun a part: those that start later find none."""
    counts: SimpleQueue[int] = SimpleQueue()
    try:
        for _ in range(count - 1):
            start_new_thread(lambda *_: counts.put(entry(argument)), memory)
    except RuntimeError:  # no more threads for this process: those there are do all the work
        pass
    done = entry(argument)
    while done < parts:
        done += counts.get()


def _is_worker() -> bool:
    """Whether this process is the copy of another, or was started by `multiprocessing`."""
    process = sys.modules.get("multiprocessing.process")
    return bool(_forked) or (process is not None and process.parent_process() is not None)


def _has_torch() -> bool:
    """Whether torch is imported, completely: a folder of that name has no such module, nor has a thread's import."""
    return hasattr(sys.modules.get("torch"), "_C") and hasattr(sys.modules["torch"], "Tensor")


@cache
def _openmp(of_torch: bool) -> Any:
    """The functions `GOMP_parallel_start(entry, argument, threads)` and `GOMP_parallel_end()`; None without a library.

    Between the two the caller works: GCC's and LLVM's library have both.
    """
    try:
        module = sys.modules["torch"]._C if of_torch else import_module("numba.np.ufunc.omppool")
        library = ctypes.CDLL(module.__file__)
        start, finish = library.GOMP_parallel_start, library.GOMP_parallel_end
    except (ImportError, OSError, AttributeError):
        return None
    start.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
    start.restype = finish.restype = None
    finish.argtypes = ()
    return start, finish
