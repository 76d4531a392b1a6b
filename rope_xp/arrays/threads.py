"""Threads of the host: `run` for compiled kernels, and `share`, plain threads, for operations of NumPy.

Kernels use the OpenMP library that is loaded: that of torch, else numba's. PyTorch's pool stays active after each
operation, so a second pool would wait for processors. Without OpenMP, plain threads run. OpenMP waits for all of its
threads, also for those that have not started; on a busy machine that may cost more than it saves: the caller then works
alone for a while. A worker process uses no threads: a fork loses OpenMP's.
"""

import ctypes
import os
import sys
from _thread import start_new_thread  # unlike `Thread.start`, it does not wait until the thread runs
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from functools import cache
from importlib import import_module
from queue import SimpleQueue
from time import perf_counter
from typing import Any

_forked: list[None] = []
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=lambda: _forked.append(None))

# In seconds. Threads that sleep wake up within the shortest wait; one that has no processor waits for longer.
SHORTEST_WAIT, LONGEST_PAUSE = 5e-4, 1.0


class _Pause:
    """A time in seconds in which OpenMP is not used. Each wait that costs more than it saves doubles its length."""

    def __init__(self) -> None:
        self.end = self.length = 0.0

    def after(self, work: float, wait: float, fraction: float) -> None:
        """Decide after a call. `work` and `wait` are in seconds. The caller did this `fraction` of the parts."""
        if 0.0 < (work + wait) * fraction <= work:
            self.length = 0.0  # the threads saved time: alone, the caller would have taken longer
            return
        if wait < SHORTEST_WAIT:
            return
        self.length = min(max(wait, 2 * self.length), LONGEST_PAUSE)
        self.end = perf_counter() + self.length


_pause = _Pause()


def run(entry: Any, argument: int, parts: int, count: int, *owners: Any) -> None:
    """Do all `parts` of some work in up to `count` threads. Each calls `entry(argument)` until no part is left."""
    # Threads hold the `owners` of the memory that is read and written: a thread that starts late still reads the
    # argument, and an interrupt may end the wait for other threads.
    if count == 1 or _is_worker() or perf_counter() < _pause.end:
        entry(argument)
        return
    region = _openmp(_has_torch())
    if region is None:
        _run_in_plain_threads(entry, argument, parts, count, owners)
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


def _run_in_plain_threads(entry: Any, argument: int, parts: int, count: int, owners: tuple[Any, ...]) -> None:
    """Do the work in plain threads, and wait only for threads that have begun a part."""
    counts: SimpleQueue[int] = SimpleQueue()
    try:
        for _ in range(count - 1):
            start_new_thread(lambda *_: counts.put(entry(argument)), owners)
    except RuntimeError:  # the process may start no more threads: those that run do all parts
        pass
    done = entry(argument)
    while done < parts:
        done += counts.get()


def share(work: Callable[[Iterator[Any]], None], parts: Sequence[Any], count: int) -> None:
    """Give all `parts` to calls of `work` in up to `count` plain threads, in the context of the caller."""
    # The settings of `np.errstate` belong to a context.
    context, left, errors = copy_context(), deque(parts), []

    def entry(_: int) -> int:
        taken = 0

        def parts_of_thread() -> Iterator[Any]:
            nonlocal taken
            while left:
                try:
                    part = left.popleft()
                except IndexError:  # another thread has taken the last part
                    return
                taken += 1
                yield part

        try:
            context.copy().run(work, parts_of_thread())
        except BaseException as error:  # an interrupt too: no thread may go on after it is raised
            errors.append(error)
            deque(parts_of_thread(), maxlen=0)  # nobody does the rest
        return taken

    _run_in_plain_threads(entry, 0, len(parts), 1 if _is_worker() else count, ())
    if errors:
        raise errors[0]


def processors() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _is_worker() -> bool:
    """Whether this process is a fork or was started by `multiprocessing`."""
    process = sys.modules.get("multiprocessing.process")
    return bool(_forked) or (process is not None and process.parent_process() is not None)


def _has_torch() -> bool:
    """Whether torch is fully imported. False for a folder named torch, and for an import in progress."""
    return hasattr(sys.modules.get("torch"), "_C") and hasattr(sys.modules["torch"], "Tensor")


@cache
def _openmp(of_torch: bool) -> Any:
    """`GOMP_parallel_start(entry, argument, threads)` and `GOMP_parallel_end()` of GCC or LLVM; else None."""
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
