"""Errors of kernels as short texts, and warnings that come once in a process."""

import warnings
from textwrap import shorten


class LaunchError(RuntimeError):
    """A kernel did not compile or did not start. No result was written."""


def reason(problem: BaseException) -> str:
    """An exception as one short line. The exception itself would keep the arrays of its traceback alive."""
    kind = "" if isinstance(problem, ImportError) else f"{type(problem).__name__}: "
    return shorten(f"{kind}{problem}", 400, placeholder=" ...")


_told: dict[str, object] = {}


def is_first(subject: str) -> bool:
    first = object()
    return _told.setdefault(subject, first) is first


def warn_once(subject: str, text: str) -> None:
    """Warn once in a process about each subject. Only the first thread that calls this warns."""
    if is_first(subject):
        warnings.warn(f"rope_xp: {text}", RuntimeWarning, stacklevel=2)
