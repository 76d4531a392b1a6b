"""Calls of a function `fn(x, positions)` whose shapes and library are not known: what it accepts, and what it does."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rope_xp._core import backends, checks
from rope_xp._identify.calls import ROUNDOFF, Failure, Form, call

# The shapes of x that are tried, in this order.
SHAPES = ("seq dim", "seq heads dim", "heads seq dim", "batch heads seq dim", "batch seq heads dim")
# Sizes of a trial. They differ from each other, and from `head_dim`, which is even.
SIZES = {"batch": 3, "heads": 5, "seq": 7}
# The same positions in two orders, so that the largest one stays; and more of them.
ORDER = np.array([3, 0, 4, 1, 6, 2, 5])
OTHER_ORDER = np.array([1, 6, 5, 0, 2, 4, 3])
MORE = np.array([1, 3, 0, 2, 6, 4, 7, 5, 8])
# What a result can follow. The first says the most about a function.
FOLLOWS = ("positions", "first call", "index", "nothing")
# A function that ignores positions is called with whole axes. This is their longest length.
LONGEST_INDEX = 4096
# A function that rotates along a wrong axis is called with an x of two axes of this length.
SQUARE = 64


class Trial(NamedTuple):
    """What a function does in one form. `follows` is None if `words` say why the results cannot be used."""

    form: Form
    dtype: str = ""
    axis: str | None = None
    follows: str | None = None
    words: str = ""


class Probe:
    """A function `fn(x, positions)`, called with host arrays in the shapes and the library that it accepts.

    Parameters
    ----------
    fn : callable
        ``fn(x, positions)`` returns an array of the shape of `x`. It may raise anything.
    head_dim : int
        The number of channels, even.
    shape : str, optional
        The axes of `x`, such as ``"batch heads seq dim"``. By default the shapes `SHAPES` are tried.
    like : array, optional
        An array of the library, device and dtype to use. By default NumPy is tried, then PyTorch and JAX if they are
        imported, in float64 and then in float32.

    Attributes
    ----------
    shape : str or None
        The axes of `x`; None if no call succeeded.
    position_axes : tuple of str
        The axes of positions: ``("seq",)`` or ``("batch", "seq")``.
    axis : str or None
        The axis along which equal rows give different results: "seq", or another if `fn` rotates along a wrong axis.
    follows : str or None
        What decides the result of a row. "positions": its position. "index": its index along `axis`; positions are
        ignored. "first call": the position that the row had in the first call with this shape; the probe then makes
        each call with another number of rows. "nothing": neither, and the probe returns None.
    library, dtype : str
        The library, and the dtype of the results. Empty if no call succeeded.
    eps : float
        The unit roundoff of `dtype`.
    problems : list of str
        What went wrong, in plain words.

    Raises
    ------
    TypeError, ValueError
        For wrong arguments. What `fn` raises is kept in `problems`.

    Examples
    --------
    >>> def fn(x, positions):
    ...     cos, sin = np.cos(positions)[:, None], np.sin(positions)[:, None]
    ...     return np.concatenate((x[:, :1] * cos - x[:, 1:] * sin, x[:, 1:] * cos + x[:, :1] * sin), axis=-1)
    >>> probe = Probe(fn, 2)
    >>> probe.shape, probe.follows, probe.library, probe.dtype
    ('seq dim', 'positions', 'numpy', 'float64')
    >>> probe(np.asarray([[1.0, 0.0]]), np.asarray([0]))
    array([[1., 0.]])
    """

    def __init__(
        self,
        fn: Callable[[Any, Any], Any],
        head_dim: int,
        *,
        shape: str | None = None,
        like: Any = None,
        who: str = "identify",
    ):
        if not callable(fn):
            raise TypeError(f"{who}: fn must be a function fn(x, positions) that returns an array; got {fn!r:.200}")
        self.head_dim = checks.even_size(who, "head_dim", head_dim)
        shapes = SHAPES if shape is None else (_checked_shape(who, shape),)
        if like is not None:
            checks.floating(who, "like", like)
        self.fn, self.is_stated = fn, shape is not None
        self.problems: list[str] = []
        trials = _trials(fn, self.head_dim, shapes, _libraries(like))
        best = min(trials, key=lambda trial: (*FOLLOWS, None).index(trial.follows))
        if best.follows is None:
            self.problems += _summary(trials)
        self._form, self.dtype, self.axis, self.follows = best.form, best.dtype, best.axis, best.follows
        self.shape = " ".join(best.form.shape) if best.follows else None
        self.position_axes = best.form.position_axes if best.follows else ()
        self.library = _library(best.form) if best.follows else ""
        self.eps = ROUNDOFF.get(self.dtype, ROUNDOFF["bfloat16"])
        self._rows = len(MORE)  # of the last call, where each needs another number

    def __call__(self, x: Any, positions: Any) -> np.ndarray | None:
        """The result for each row of `x` at its position, as float64.

        Parameters
        ----------
        x : numpy array, "rows head_dim"
        positions : numpy array, "rows"
            Integers of at least 0.

        Returns
        -------
        numpy array, "rows head_dim", or None
            None if the function failed. The last of `problems` then says why.
        """
        x, positions = np.asarray(x, dtype=np.float64), np.asarray(positions)
        rows_given = len(x)
        if self.follows in (None, "nothing"):
            return None
        if self.follows == "first call":
            self._rows = max(self._rows + 1, len(x))
            x, positions = (
                np.concatenate([each, each[:1].repeat(self._rows - len(each), 0)]) for each in (x, positions)
            )
        result = np.empty(x.shape)
        try:
            for rows in self._rows_of_calls(positions):
                result[rows] = self._along_axis(x[rows], positions[rows])
        except Failure as failure:
            self.problems.append(str(failure))
            return None
        return result[:rows_given]

    def _rows_of_calls(self, positions: np.ndarray) -> list[np.ndarray]:
        """The rows that each call can compute."""
        rows = np.arange(len(positions))
        if self.follows == "index":  # one row for each position
            sorted_rows = np.argsort(positions, kind="stable")
            first = np.searchsorted(positions[sorted_rows], positions[sorted_rows])
            number = np.empty_like(rows)
            number[sorted_rows] = rows - first
            return [rows[number == each] for each in range(number.max() + 1)]
        return [rows] if self.axis == "seq" else [rows[start : start + SQUARE] for start in range(0, len(rows), SQUARE)]

    def _along_axis(self, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """The result of one call with the rows of `x` along the axis, "rows head_dim"."""
        rows, where = np.arange(len(x)), positions
        if self.follows == "index":
            if positions.max() >= LONGEST_INDEX:
                raise Failure(f"a call would need more than {LONGEST_INDEX} rows, one for each position")
            along = np.zeros((int(positions.max()) + 1, self.head_dim))
            along[positions] = x
            x, rows, where = along, positions, np.arange(len(along))
        names = self._form.shape[:-1]
        long = (self.axis,) if self.follows == "index" else (self.axis, "seq")
        sizes = {name: len(x) if name in long else 1 for name in SIZES}
        x = x.reshape(*(len(x) if name == self.axis else 1 for name in names), self.head_dim)
        y = call(self.fn, self._form, x, sizes, where[: sizes["seq"]]).y
        return y[tuple(slice(None) if name == self.axis else 0 for name in names)][rows]


def _trials(fn: Callable[..., Any], head_dim: int, shapes: tuple[str, ...], libraries: list[Any]) -> list[Trial]:
    """Trials of libraries and shapes, until rows differ by position or index. The last ones have equal sizes."""
    forms = [
        (Form(like, tuple(shape.split()), position_axes), SIZES)
        for like in libraries
        for shape in shapes
        for position_axes in (("seq",), ("batch", "seq"))
    ]
    squares = [(form, SIZES | {"heads": SIZES["seq"]}) for form, _ in forms if "heads" in form.shape]
    trials = []
    for form, sizes in forms + squares:
        trials.append(_trial(fn, head_dim, form, sizes))
        if trials[-1].follows not in (None, "nothing"):
            break
    return trials


def _trial(fn: Callable[..., Any], head_dim: int, form: Form, sizes: dict[str, int]) -> Trial:
    """What a function does in one form, from equal rows at the same positions in two orders."""
    row = (np.cos(np.arange(head_dim)) + 1.5).reshape(*[1] * (len(form.shape) - 1), head_dim)
    try:
        first, again, other = (call(fn, form, row, sizes, order) for order in (ORDER, ORDER, OTHER_ORDER))
        dtype, first, again, other = first.dtype, first.y, again.y, other.y
        close = 64 * ROUNDOFF.get(dtype, ROUNDOFF["bfloat16"]) * np.abs(first).max()
        axes = [axis for axis in range(first.ndim - 1) if np.abs(first - first.take([0], axis)).max() > close]
        unchanged = np.abs(first - other).max() <= close
        if np.abs(first - again).max() > close:
            return Trial(form, words="two equal calls give different results")
        if not axes:
            words = "" if unchanged else "all rows change if positions come in another order"
            return Trial(form, dtype, None, "nothing" if unchanged else None, words)
        name = form.shape[axes[0]]
        if len(axes) > 1:
            names = " and ".join(form.shape[axis] for axis in axes)
            return Trial(form, words=f"equal rows of x give results that differ along {names}")
        if unchanged:
            longer = call(fn, form, row, sizes | {name: len(MORE), "seq": len(MORE)}, MORE).y
            follows = _index_or_first_call(first, longer, axes[0], close)
        else:
            follows = _positions_or_none(first, other, axes[0], close)
    except Failure as failure:
        return Trial(form, words=str(failure))
    words = "" if follows else f"rows along {name} follow neither their position nor their index"
    return Trial(form, dtype, name, follows, words)


def _positions_or_none(first: np.ndarray, other: np.ndarray, axis: int, close: float) -> str | None:
    """Whether rows follow their positions, from two calls with these in another order."""
    if first.shape[axis] != len(ORDER):
        return None
    return "positions" if np.abs(first - other.take(np.argsort(OTHER_ORDER)[ORDER], axis)).max() <= close else None


def _index_or_first_call(first: np.ndarray, longer: np.ndarray, axis: int, close: float) -> str | None:
    """What decides a result that stays if positions change, from a first call with more rows."""
    others = tuple(0 if each != axis else slice(None) for each in range(first.ndim - 1))
    first, longer = first[others], longer[others]
    if np.abs(first - longer[: len(first)]).max() <= close:
        return "index"
    of_positions = longer[np.argsort(MORE)[ORDER]]
    return "first call" if np.abs(first - of_positions).max() <= close else None


def _checked_shape(who: str, shape: Any) -> str:
    """A stated shape: the axes by their names, the channels last."""
    names = shape.split() if isinstance(shape, str) else []
    if names[-1:] != ["dim"] or "seq" not in names or len(set(names)) < len(names) or set(names) - {*SIZES, "dim"}:
        raise ValueError(
            f'{who}: shape must name the axes of x, each once, from "batch", "heads" and "seq", with "dim" at the end, '
            f'such as "batch heads seq dim"; got {shape!r:.200}'
        )
    return " ".join(names)


def _libraries(like: Any) -> list[Any]:
    """Arrays of the libraries and dtypes to try."""
    if like is not None:
        return [like]
    wide = backends.imported()
    both = [(each, backends.astype(each, backends.namespace(each).float32)) for each in wide]
    return [each for first, second in both for each in ((first,) if first is second else (first, second))]


def _summary(trials: list[Trial]) -> list[str]:
    """What went wrong, each reason once, with the libraries and shapes that it concerns unless it concerns all."""
    reasons: dict[str, list[Trial]] = {}
    for trial in trials:  # sizes in an error differ from trial to trial; the error is the same
        reasons.setdefault(re.sub(r"[\d, ]+", "#", trial.words), []).append(trial)
    lines = []
    for same in reasons.values():
        given = []
        for name, of in (
            ("{}", lambda trial: _library(trial.form)),
            ("({})", lambda trial: " ".join(trial.form.shape)),
        ):
            concerned = dict.fromkeys(map(of, same))
            given += [" or ".join(map(name.format, concerned))] * (concerned.keys() != {*map(of, trials)})
        lines.append(f"with x of {', '.join(given)}, {same[0].words}" if given else same[0].words)
    return lines


def _library(form: Form) -> str:
    """The name of the library of a form."""
    return backends.name(backends.namespace(form.like)).partition(".")[0]
