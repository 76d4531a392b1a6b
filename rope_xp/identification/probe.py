"""Calls of a function `fn(x, positions)` whose shapes and library are not known: what it accepts, and what it does.

No other module calls a function of somebody else's.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rope_xp.arrays import checks, libraries
from rope_xp.errors import wrong_type, wrong_value
from rope_xp.identification.calls import AXES, ROUNDOFF, Failure, Form, Result, call
from rope_xp.types import Array

# The shapes of x that are tried, in this order.
SHAPES = ("seq dim", "seq heads dim", "heads seq dim", "batch heads seq dim", "batch seq heads dim")
# Sizes of a trial. They differ from each other, and from `head_dim`, which is even.
SIZES = {"batch": 3, "heads": 5, "seq": 7}
# The same positions in two orders, so that the largest one stays; and more of them.
ORDER = np.array([3, 0, 4, 1, 6, 2, 5])
OTHER_ORDER = np.array([1, 6, 5, 0, 2, 4, 3])
MORE = np.array([1, 3, 0, 2, 6, 4, 7, 5, 8])
# If nothing changes at the positions of a trial, they are multiplied by these. Small ones come first: after a far one,
# a function that keeps tables would not show that it keeps them.
STRIDES = (1, 37, 2053)
# What a result can follow. The first says the most about a function.
FOLLOWS = ("positions", "first call", "index", "nothing")
# The most rows of x in a call of a function that ignores positions, and is called with whole axes.
LONGEST_INDEX = 2**17
# A function that rotates along a wrong axis is called with an x of two axes of this length.
SQUARE = 64


def noise(eps: float) -> float:
    """How far two results of the same numbers may be apart, relative to the largest, for a unit roundoff."""
    return 8 * eps + 64 * min(eps, ROUNDOFF["float32"])


class Trial(NamedTuple):
    """What a function does in one form. `follows` is None if `words` say why the results cannot be used.

    With words, results follow `follows` where the other axes have one entry, but not everywhere. Without a dtype, all
    calls failed.
    """

    form: Form
    dtype: str = ""
    axis: str | None = None
    follows: str | None = None
    words: str = ""

    @property
    def rank(self) -> int:
        """How little it says: the lower, the better."""
        if self.follows is None:
            return len(FOLLOWS) + 1 - bool(self.dtype)
        return FOLLOWS.index(self.follows) if not self.words else FOLLOWS.index("nothing")


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
    axes : int
        The number of position axes. With more than one, `fn` gets positions "axes seq".

    Attributes
    ----------
    shape : str or None
        The axes of `x`; None if no call succeeded.
    axis : str or None
        The axis along which equal rows give different results: "seq", or another if `fn` rotates along a wrong axis.
    follows : str or None
        What decides the result of a row. "positions": its position. "index": its index along `axis`; positions are
        ignored. "first call": the position that the row had in the first call with this shape; the probe then makes
        each call with another number of rows. "nothing": none of these. None if calls fail or follow no rule.
    irregular : str
        Why results do not follow `follows` alone, in words; empty if nothing was seen.
    library, dtype : str
        The library, and the dtype of the results. Empty if no call succeeded.
    eps : float
        The unit roundoff of `dtype`.
    longest_index : int
        The most rows of a call, if rows follow their index.
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
        axes: int = 1,
    ):
        if not callable(fn):
            raise wrong_type(f"fn must be a function fn(x, positions) that returns an array; got {fn!r:.200}")
        self.head_dim, self.axes = checks.even_size("head_dim", head_dim), axes
        shapes = SHAPES if shape is None else (_checked_shape(shape),)
        if like is not None:
            checks.floating("like", like)
        self.fn, self.is_stated = fn, shape is not None
        self.problems: list[str] = []
        trials = self._trials(shapes, _libraries(like))
        best = min(trials, key=lambda trial: trial.rank)
        if best.follows is None:
            self.problems += _summary(trials)
        self._form, self.dtype, self.axis, self.follows = best.form, best.dtype, best.axis, best.follows
        self.irregular = best.words if best.dtype else ""
        self.shape = " ".join(best.form.shape) if best.follows else None
        self.library = _library(best.form) if best.follows else ""
        self.eps = ROUNDOFF.get(self.dtype, ROUNDOFF["bfloat16"])
        self.longest_index = 4096
        self._rows = len(MORE)  # of the last call, where each needs another number
        self.widest = self._widest(shapes) if self.follows == "positions" and self.axis == "seq" else best.form

    def _trials(self, shapes: Sequence[str], libraries: list[Any]) -> list[Trial]:
        """Trials of libraries and shapes, until rows differ by position or index. The last ones have equal sizes."""
        forms = [
            (Form(like, tuple(shape.split()), position_axes), SIZES)
            for like in libraries
            for shape in shapes
            for position_axes in (("seq",), ("batch", "seq"))
        ]
        squares = [(form, SIZES | {"heads": SIZES["seq"]}) for form, _ in forms if "heads" in form.shape]
        trials: list[Trial] = []
        for form, sizes in forms + squares:
            trials.append(self._trial(form, sizes))
            if trials[-1].rank < FOLLOWS.index("nothing"):
                return trials
        constant = next((trial.form for trial in trials if trial.follows == "nothing" and not trial.words), None)
        far = [self._trial(constant, SIZES, stride) for stride in STRIDES[1:]] if constant else []
        alone = [trial.form for trial in trials if trial.follows == "nothing" and len(trial.form.shape) > 2]
        far += [self._trial(form, SIZES | {"batch": 1, "heads": 1}) for form in alone]
        return [*(trial for trial in far if trial.follows == "positions"), *trials]

    def _widest(self, shapes: Sequence[str]) -> Form:
        """The form with the most axes, of x and of positions, in which rows also follow their positions."""
        shapes = [shape for shape in reversed(shapes) if len(shape) >= len(" ".join(self._form.shape))]
        for shape in shapes:
            for position_axes in (("batch", "seq"), ("seq",)):
                form = Form(self._form.like, tuple(shape.split()), position_axes)
                if form == self._form or ("batch" in position_axes) > ("batch" in form.shape):
                    continue
                trial = self._trial(form, SIZES)
                if (trial.follows, trial.axis) == ("positions", "seq") and self._is_meant_for(form):
                    self.irregular = self.irregular or trial.words
                    return form
        return self._form

    def _is_meant_for(self, form: Form) -> bool:
        """Whether results in a wider form have the lengths of rows of x, or of their results in the usual form.

        A function that slices an axis which is another one in this form fails in no call, and computes nothing of use.
        Any of the usual mistakes keeps these lengths.
        """
        sizes = tuple(SIZES[name] if name in form.shape else 1 for name in AXES[:3])
        x = np.random.default_rng(3).normal(size=(*sizes, self.head_dim))
        where = np.broadcast_to(ORDER, (sizes[0], len(ORDER)))
        rows = x.reshape(-1, self.head_dim)
        try:
            wide = call(self.fn, form, x, self._of_axes(where)).y.reshape(rows.shape)
        except Failure:
            return False
        narrow = self(rows, np.broadcast_to(where[:, None], sizes).ravel())
        if narrow is None:
            return True
        known, found = (np.linalg.norm(each, axis=-1) for each in (np.concatenate([rows, narrow]), wide))
        off = np.abs(found[:, None] - known).min(axis=1)
        return float(np.mean(off <= noise(self.eps) * known.max())) > 0.5

    def _trial(self, form: Form, sizes: dict[str, int], stride: int = 1) -> Trial:
        """What a function does in one form, from equal rows at the same positions in two orders."""
        row = np.cos(np.arange(self.head_dim)) + 1.5

        def of(order: np.ndarray, sizes: dict[str, int] = sizes) -> Result:
            x = np.broadcast_to(row, (*(sizes[name] for name in AXES[:3]), self.head_dim))
            batch = sizes["batch"] if "batch" in form.shape else 1
            where = np.broadcast_to(order * stride, (batch, len(order)))
            return call(self.fn, form, x, self._of_axes(where))

        dtype = ""
        try:
            first, again, other = (of(order) for order in (ORDER, ORDER, OTHER_ORDER))
            dtype, first, again, other = first.dtype, first.y, again.y, other.y
            close = noise(ROUNDOFF.get(dtype, ROUNDOFF["bfloat16"])) * np.abs(first).max()
            axes = [axis for axis in (2, 1, 0) if np.abs(first - first.take([0], axis)).max() > close]
            unchanged = np.abs(first - other).max() <= close
            if np.abs(first - again).max() > close:
                return Trial(form, dtype, words="two equal calls give different results")
            if not axes:
                words = "" if unchanged else "all rows change if positions come in another order"
                return Trial(form, dtype, None, "nothing" if unchanged else None, words)
            name, others = AXES[axes[0]], tuple(0 if each != axes[0] else slice(None) for each in range(3))
            first, other = first[others], other[others]
            if unchanged:
                longer = of(MORE, sizes | {name: len(MORE), "seq": len(MORE)}).y[others]
                follows = _index_or_first_call(first, longer, close)
                if follows == "index" and np.abs(of(ORDER + len(ORDER)).y[others] - first).max() > close:
                    follows = None  # of positions, but not of each row's own
            else:
                follows = _positions_or_none(first, other, close)
        except Failure as failure:
            return Trial(form, dtype, words=str(failure))
        words = ""
        if len(axes) > 1:
            names = " and ".join(AXES[axis] for axis in sorted(axes))
            words = f"equal rows of x give results that differ along {names}"
        elif follows is None:
            words = f"rows along {name} follow neither their position nor their index"
        return Trial(form, dtype, name, follows, words)

    def _of_axes(self, positions: np.ndarray) -> np.ndarray:
        """Positions that are equal on all axes, if they have no axis of axes yet; as they are for one axis."""
        return positions if self.axes == 1 or positions.ndim > 2 else np.stack([positions] * self.axes)

    def __call__(self, x: Array, positions: Array) -> np.ndarray | None:
        """The result for each row of `x` at its position, as float64.

        Parameters
        ----------
        x : numpy array, "rows head_dim"
        positions : numpy array, "rows" or "axes rows"
            Integers of at least 0. Without an axis of axes, they are those of all axes.

        Returns
        -------
        numpy array, "rows head_dim", or None
            None if the function failed. The last of `problems` then says why.
        """
        x, positions = np.asarray(x, dtype=np.float64), np.asarray(positions)
        rows_given = len(x)
        if self.follows is None:
            return None
        if self.follows == "first call":
            self._rows = max(self._rows + 1, len(x))
            x, positions = (
                np.concatenate([each, each[:1].repeat(self._rows - len(each), 0)]) for each in (x, positions)
            )
        try:
            if self.follows != "index" and self.axis != "heads":
                return self._along_axis(x, positions)[:rows_given]
            result = np.empty(x.shape)
            for rows in self._rows_of_calls(positions):
                result[rows] = self._along_axis(x[rows], positions[..., rows])
        except Failure as failure:
            self.problems.append(str(failure))
            return None
        return result[:rows_given]

    def together(self, x: np.ndarray, positions: np.ndarray) -> np.ndarray | None:
        """The result of one call with all axes that the function takes; None if it failed, as `problems` then says.

        Parameters
        ----------
        x : numpy array, "batch heads seq dim"
            The axes that `widest` does not have are of length 1.
        positions : numpy array, "batch seq" or "axes batch seq"
        """
        try:
            return call(self.fn, self.widest, x, self._of_axes(positions)).y
        except Failure as failure:
            self.problems.append(str(failure))
            return None

    def _rows_of_calls(self, positions: np.ndarray) -> list[np.ndarray]:
        """The rows that each call can compute."""
        rows = np.arange(positions.shape[-1])
        if self.follows == "index":  # one row for each position
            sorted_rows = np.argsort(positions, kind="stable")
            first = np.searchsorted(positions[sorted_rows], positions[sorted_rows])
            number = np.empty_like(rows)
            number[sorted_rows] = rows - first
            return [rows[number == each] for each in range(number.max() + 1)]
        return [rows[at : at + SQUARE] for at in range(0, len(rows), SQUARE)]

    def _along_axis(self, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """The result of one call with the rows of `x` along the axis, "rows head_dim"."""
        rows, where = None, positions
        if self.follows == "index":
            if positions.max() >= self.longest_index:
                raise Failure(f"a call would need more than {self.longest_index} rows, one for each position")
            along = np.zeros((int(positions.max()) + 1, self.head_dim))
            along[positions] = x
            x, rows, where = along, positions, np.arange(len(along))
        axis = AXES.index(self.axis or "seq")
        long = (axis,) if self.follows == "index" else (axis, 2)
        shape = [len(x) if each in long else 1 for each in range(3)]
        along_axis = x.reshape([len(x) if each == axis else 1 for each in range(3)] + [-1])
        x = np.broadcast_to(along_axis, (*shape, self.head_dim))
        y = call(self.fn, self._form, x, self._of_axes(where[..., None, : shape[2]])).y
        y = y[tuple(slice(None) if each == axis else 0 for each in range(3))]
        return y[rows] if self.follows == "index" else y


def _positions_or_none(first: np.ndarray, other: np.ndarray, close: float) -> str | None:
    """Whether rows follow their positions, from two calls with these in another order."""
    if len(first) != len(ORDER):
        return None
    return "positions" if np.abs(first - other[np.argsort(OTHER_ORDER)[ORDER]]).max() <= close else None


def _index_or_first_call(first: np.ndarray, longer: np.ndarray, close: float) -> str | None:
    """What decides a result that stays if positions change, from a first call with more rows."""
    if np.abs(first - longer[: len(first)]).max() <= close:
        return "index"
    if len(first) != len(ORDER):
        return None
    of_positions = longer[np.argsort(MORE)[ORDER]]
    return "first call" if np.abs(first - of_positions).max() <= close else None


def _checked_shape(shape: object) -> str:
    """A stated shape: the axes by their names, the channels last."""
    names = shape.split() if isinstance(shape, str) else []
    if names[-1:] != ["dim"] or "seq" not in names or len(set(names)) < len(names) or set(names) - {*SIZES, "dim"}:
        raise wrong_value(
            f'shape must name the axes of x, each once, from "batch", "heads" and "seq", with "dim" at the end, '
            f'such as "batch heads seq dim"; got {shape!r:.200}'
        )
    return " ".join(names)


def _libraries(like: object) -> list[Any]:
    """Arrays of the libraries and dtypes to try."""
    if like is not None:
        return [like]
    wide = libraries.imported()
    both = [(each, libraries.astype(each, libraries.namespace(each).float32)) for each in wide]
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
    return libraries.name(libraries.namespace(form.like)).partition(".")[0]
