"""Why a kernel cannot be used, and how users hear of it."""

import warnings
from textwrap import shorten


class LaunchError(RuntimeError):
    """A kernel that did not compile or did not start: nothing is written."""


def reason(problem: BaseException) -> str:
    """What went wrong, in one short line: an exception itself would keep the arrays of its traceback alive."""
    kind = "" if isinstance(problem, ImportError) else f"{type(problem).__name__}: "
    return shorten(f"{kind}{problem}", 400, placeholder=" ...")


_warned: dict[str, object] = {}


def warn_once(subject: str, text: str) -> None:
    """Warn, but only once in a process about each subject, whichever thread comes first."""
    first = object()
    if _warned.setdefault(subject, first) is first:
        warnings.warn(f"rope_xp: {text}", RuntimeWarning, stacklevel=2)
