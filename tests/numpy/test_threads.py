"""Threads of compiled kernels on busy machines: which ones are asked, and which are waited for."""

import ctypes
from threading import Barrier, get_ident
from time import perf_counter, sleep
from types import SimpleNamespace

import numpy as np
import pytest

from rope_xp.arrays import threads


def entry_of(function):
    return ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long)(function)


@pytest.fixture
def pause(monkeypatch):
    """No pause from elsewhere, and no OpenMP; and this process is no worker, whoever started it."""
    monkeypatch.setattr(threads, "_pause", threads._Pause())
    monkeypatch.setattr(threads, "_is_worker", lambda: False)
    monkeypatch.setattr(threads, "_openmp", lambda of_torch: None)
    return threads._pause


def test_openmp_is_not_asked_again_after_a_wait_that_did_not_pay(pause, monkeypatch):
    asked, done = [], []
    region = lambda *_: asked.append(1), lambda: sleep(0.05)  # threads that come late
    monkeypatch.setattr(threads, "_openmp", lambda of_torch: region)
    entry = entry_of(lambda _: done.append(1) or 4)
    threads.run(entry, 0, 4, 2)
    assert len(asked) == 1 and pause.length >= 0.05
    for _ in range(3):
        pause.end = perf_counter() + 60
        threads.run(entry, 0, 4, 2)
    assert len(asked) == 1 and len(done) == 4
    pause.end = 0.0
    threads.run(entry, 0, 4, 2)
    assert len(asked) == 2 and pause.length >= 0.1


def test_a_pause_is_decided_from_what_the_caller_did_and_waited():
    pause = threads._Pause()
    pause.after(work=1.0, wait=0.9, fraction=0.5)  # 1.9 seconds, of work that takes 2
    pause.after(work=1e-5, wait=4e-4, fraction=1.0)  # the others were asleep
    assert pause.end == pause.length == 0.0
    before = perf_counter()
    pause.after(work=0.1, wait=0.02, fraction=1.0)  # nobody else did any
    assert pause.length == 0.02 and before + 0.02 <= pause.end <= perf_counter() + 0.02
    pause.after(work=0.1, wait=0.02, fraction=0.9)
    assert pause.length == 0.04
    pause.after(work=0.0, wait=0.03, fraction=0.0)  # it could not even begin
    assert pause.length == 0.08
    for _ in range(9):
        pause.after(work=0.1, wait=0.2, fraction=0.5)
    assert pause.length == threads.LONGEST_PAUSE
    pause.after(work=0.1, wait=0.001, fraction=0.5)
    assert pause.length == 0.0


def test_plain_threads_that_have_not_begun_are_not_waited_for(pause, monkeypatch):
    later = []
    monkeypatch.setattr(threads, "start_new_thread", lambda function, memory: later.append((function, memory)))
    parts, memory = list(range(5)), np.zeros(3)

    def work(_):
        done = len(parts)
        parts.clear()
        return done

    threads.run(entry_of(work), 0, 5, 3, memory)
    assert not parts and len(later) == 2
    for function, held in later:  # they find nothing, and hold what they might have read
        assert held[0] is memory
        function(*held)


def test_plain_threads_that_have_begun_are_waited_for(pause):
    finished, first = [], []

    def work(_):
        if first:  # the caller, or the other: one of them waits
            return 0
        first.append(1)
        sleep(0.2)
        finished.append(1)
        return 2

    threads.run(entry_of(work), 0, 2, 2)
    assert finished == [1]


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("fails", ["first", "both"])
def test_an_error_of_a_thread_is_raised(pause, fails, error):
    """And the caller does not wait for parts that no thread is left to do."""
    both, caller = Barrier(2), get_ident()

    def work(parts):
        next(parts)
        both.wait(60)
        if fails == "both" or get_ident() != caller:
            raise error("no memory")
        list(parts)

    with pytest.raises(error, match="no memory"):
        threads.share(work, range(5), 2)


def test_no_part_is_begun_after_an_error(pause):
    """The caller fails while the other thread works: that part is waited for, and the others are left."""
    both, caller, done = Barrier(2), get_ident(), []

    def work(parts):
        for part in parts:
            if not done:
                both.wait(60)
            if get_ident() == caller:
                raise KeyboardInterrupt
            sleep(0.1)
            done.append(part)

    with pytest.raises(KeyboardInterrupt):
        threads.share(work, range(9), 2)
    before = len(done)
    sleep(0.2)
    assert len(done) == before == 1


def test_threads_have_the_settings_of_the_caller(pause):
    both, found = Barrier(2), []

    def work(parts):
        for _ in parts:
            both.wait(60)
            found.append((get_ident(), np.geterr()["over"]))

    with np.errstate(over="raise"):
        threads.share(work, range(2), 2)
    assert len(set(found)) == 2 and {setting for _, setting in found} == {"raise"}


def test_a_process_without_further_threads_works_alone(pause, monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "start_new_thread", refuse)
    done = []
    threads.run(entry_of(lambda _: done.append(1) or 3), 0, 3, 2)
    assert done == [1]


@pytest.mark.parametrize("file", [None, "none.so", np.random._pcg64.__file__], ids=["no module", "no file", "other"])
def test_without_openmp_plain_threads_run(monkeypatch, tmp_path, file):
    def module(name):
        if file is None:
            raise ImportError(name)
        return SimpleNamespace(__file__=str(tmp_path / file))  # an absolute path stays

    monkeypatch.setattr(threads, "import_module", module)
    assert threads._openmp.__wrapped__(of_torch=False) is None


@pytest.mark.parametrize("is_fork, is_worker, count", [(True, False, 1), (False, True, 1), (False, False, 2)])
def test_a_fork_and_a_worker_of_multiprocessing_work_alone(is_fork, is_worker, count, monkeypatch):
    monkeypatch.setattr(threads, "_forked", [True] * is_fork)
    monkeypatch.setattr("multiprocessing.process.parent_process", lambda: 1 if is_worker else None)
    monkeypatch.setattr(threads, "_openmp", lambda of_torch: None)
    done = []
    threads.run(entry_of(lambda _: done.append(1) or 4 // count), 0, 4, 2)
    assert done == [1] * count


def test_the_region_is_left_when_the_work_is_interrupted(pause, monkeypatch):
    """Else the threads would wait for ever, and later regions of this thread would be inside of this one."""
    left = []
    region = lambda *_: None, lambda: left.append(1)
    monkeypatch.setattr(threads, "_openmp", lambda of_torch: region)

    def interrupt(*_):
        raise KeyboardInterrupt

    entry = entry_of(lambda _: 3)
    entry.errcheck = interrupt
    with pytest.raises(KeyboardInterrupt):
        threads.run(entry, 0, 3, 2)
    assert left == [1]
