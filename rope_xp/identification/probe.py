"""Calls of a function `fn(x, positions)` whose shapes and library are not known. No other module calls one."""

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from rope_xp.arrays import checks, libraries
from rope_xp.errors import wrong_type, wrong_value
from rope_xp.identification.behaviour import Complex, Map, complex_of
from rope_xp.identification.precision import ROUNDOFF, noise
from rope_xp.types import Array

Function: TypeAlias = Callable[..., Any]  # fn(x, positions), or fn(x)

# How far two results at these positions may be apart, along the direction of a number.
Limit: TypeAlias = Callable[[np.ndarray, int], float | np.ndarray]

# The axes of x in calls, before those that a function does not have are left out.
AXES = ("batch", "heads", "seq", "dim")
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
# What the result of a row can follow (see `Probe`). The first says the most about a function.
FOLLOWS = ("positions", "first call", "index", "nothing")
# The most rows of x in a call of a function that ignores positions, and is called with whole axes: to check what it
# computes, and to find that out, which takes many calls.
LONGEST_INDEX, SEARCHED_INDEX = 2**17, 2**12
# A function that rotates along a wrong axis is called with an x of two axes of this length.
SQUARE = 64
# Before two functions are said to be the same, all positions below `ALL_BELOW` are tried, and `RANDOM_BEYOND` random
# ones. The first call is long, to find functions that differ in long calls; the others are short, which is faster.
ALL_BELOW, RANDOM_BEYOND = 2**15, 2**13
NUMBERS, CHUNK = 2**21, 2**11  # of the longest call; tokens of a part
# The most batch rows, heads and tokens of a call.
BATCH, HEADS, LONG = 3, 33, 257


class Failure(Exception):
    """What a call of the function did wrong, in words."""


class Form(NamedTuple):
    """How a function is called: the library and dtype of `like`, the axes of x, and the axes of positions."""

    like: Array
    shape: tuple[str, ...]
    position_axes: tuple[str, ...]


class Result(NamedTuple):
    """The result of a call as float64, and the dtype that it had."""

    y: np.ndarray
    dtype: str


class Trial(NamedTuple):
    """What a function does in one form."""

    form: Form
    dtype: str = ""  # without one, all calls failed
    axis: str | None = None
    follows: str | None = None  # None if results cannot be used; `words` then say why
    words: str = ""  # with `follows`: why this holds only if the other axes of x have one entry

    @property
    def rank(self) -> int:
        # The lower, the better. The worst trials have no results, the next ones none that can be used.
        if self.follows is None:
            return len(FOLLOWS) if self.dtype else len(FOLLOWS) + 1
        return FOLLOWS.index(self.follows) if not self.words else FOLLOWS.index("nothing")


class Probe:
    """A function, called with host arrays in the shapes and the library that it accepts."""

    # What trial calls have shown:
    # - `follows`: what decides the result of a row, besides its channels:
    #   - "positions": its position;
    #   - "index": its number along `axis`; positions are ignored;
    #   - "first call": its position in the first call with the same shape, because the function keeps tables for each
    #     shape. So each later call gets another number of rows;
    #   - "nothing": equal rows have equal results;
    #   - None: no results can be used;
    # - `axis`: the axis of x along which equal rows have different results; None if there is none;
    # - `shape`: the axes of x in calls; None if no results can be used;
    # - `widest`: the form with the most axes that the function accepts;
    # - `irregular`: on what results depend that they should not depend on, in words; empty if on nothing.
    # `longest_index` is the most rows of a call if rows follow their index. `problems` has what went wrong in calls.

    def __init__(
        self,
        fn: Function,
        head_dim: int,
        *,
        shape: str | None = None,
        like: Array | None = None,
        axes: int = 1,
    ):
        if not callable(fn):
            raise wrong_type(f"fn must be a function fn(x, positions) that returns an array; got {fn!r:.200}")
        if isinstance(fn, type):
            raise wrong_type(f"fn must be a function or an object that is called, not a class; got {fn!r:.200}")
        self.head_dim, self.axes = checks.even_size("head_dim", head_dim), axes
        shapes = SHAPES if shape is None else (_checked_shape(shape),)
        if like is not None:
            checks.floating("like", like)
        self.fn, self.is_stated = fn, shape is not None
        self.problems: list[str] = []
        trials = sorted(self._trials(shapes, _libraries(like)), key=lambda trial: trial.rank)
        best = trials[0]
        if best.follows is None:
            self.problems += _summary(trials)
        self._form, self.dtype, self.axis, self.follows = best.form, best.dtype, best.axis, best.follows
        self.irregular = best.words if best.dtype else ""
        self.shape = " ".join(best.form.shape) if best.follows else None
        self.library = _library(best.form) if best.follows else ""
        self.roundoff = ROUNDOFF.get(self.dtype, ROUNDOFF["bfloat16"])
        self.longest_index = SEARCHED_INDEX
        self._rows = len(MORE)  # in the last call, if each call gets another number of rows
        self._at_first = self._short_call()
        self.widest = self._widest(shapes) if self.follows == "positions" and self.axis == "seq" else best.form

    def _trials(self, shapes: Sequence[str], libraries: list[Array]) -> list[Trial]:
        """Trials of libraries and shapes, until rows differ by position or index."""
        forms = [
            (Form(like, tuple(shape.split()), position_axes), SIZES)
            for like in libraries
            for shape in shapes
            for position_axes in (("seq",), ("batch", "seq"))
        ]
        # A function that rotates heads in place of tokens may accept only as many heads as tokens.
        of_equal_sizes = [(form, SIZES | {"heads": SIZES["seq"]}) for form, _ in forms if "heads" in form.shape]
        trials: list[Trial] = []
        for form, sizes in forms + of_equal_sizes:
            trials.append(self._trial(form, sizes))
            if trials[-1].rank < FOLLOWS.index("nothing"):
                return trials
        # Nothing has changed the results. Larger positions may.
        constant = next((trial.form for trial in trials if trial.follows == "nothing" and not trial.words), None)
        more = [self._trial(constant, SIZES, stride) for stride in STRIDES[1:]] if constant else []
        # Or other axes than that of tokens must have one entry.
        wide = [trial.form for trial in trials if trial.follows == "nothing" and len(trial.form.shape) > 2]
        more += [self._trial(form, SIZES | {"batch": 1, "heads": 1}) for form in wide]
        return [trial for trial in more if trial.dtype and trial.follows != "nothing"] or trials

    def _widest(self, shapes: Sequence[str]) -> Form:
        """The form with the most axes, of x and of positions, in which rows also follow their positions."""
        axes = [tuple(shape.split()) for shape in reversed(shapes)]
        for shape in (each for each in axes if len(each) >= len(self._form.shape)):
            for position_axes in (("batch", "seq"), ("seq",)):
                form = Form(self._form.like, shape, position_axes)
                if form == self._form or ("batch" in position_axes and "batch" not in shape):
                    continue
                trial = self._trial(form, SIZES)
                if (trial.follows, trial.axis) == ("positions", "seq") and self._is_meant_for(form):
                    self.irregular = self.irregular or trial.words
                    return form
        return self._form

    def _is_meant_for(self, form: Form) -> bool:
        """Whether results in a wider form have the lengths of rows of x, or of their results in the usual form."""
        # A function that slices an axis which is another one in this form fails in no call, and computes nothing of
        # use. Any of the usual mistakes keeps these lengths.
        sizes = tuple(SIZES[name] if name in form.shape else 1 for name in AXES[:3])
        x = np.random.default_rng(3).normal(size=(*sizes, self.head_dim))
        where = np.broadcast_to(ORDER, (sizes[0], len(ORDER)))
        rows = x.reshape(-1, self.head_dim)
        try:
            wide = _call(self.fn, form, x, self._of_axes(where)).y.reshape(rows.shape)
        except Failure:
            return False
        narrow = self(rows, np.broadcast_to(where[:, None], sizes).ravel())
        if narrow is None:
            return True
        known, found = (np.linalg.norm(each, axis=-1) for each in (np.concatenate([rows, narrow]), wide))
        off = np.abs(found[:, None] - known).min(axis=1)
        return float(np.mean(off <= noise(self.roundoff) * known.max())) > 0.5

    def _trial(self, form: Form, sizes: dict[str, int], stride: int = 1) -> Trial:
        """What a function does in one form, from equal rows at the same positions in two orders."""
        row = np.cos(np.arange(self.head_dim)) + 1.5

        def result_of(order: np.ndarray, sizes: dict[str, int] = sizes) -> Result:
            x = np.broadcast_to(row, (*(sizes[name] for name in AXES[:3]), self.head_dim))
            batch = sizes["batch"] if "batch" in form.shape else 1
            where = np.broadcast_to(order * stride, (batch, len(order)))
            return _call(self.fn, form, x, self._of_axes(where))

        dtype = ""
        try:
            first, again, other = (result_of(order) for order in (ORDER, ORDER, OTHER_ORDER))
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
            if not unchanged:
                follows = "positions" if _follow_positions(first, other, OTHER_ORDER, close) else None
            else:
                longer = result_of(MORE, sizes | {name: len(MORE), "seq": len(MORE)}).y[others]
                follows = "first call" if _follow_positions(first, longer, MORE, close) else None
                if np.abs(first - longer[: len(first)]).max() <= close:
                    follows = "index"
                    if np.abs(result_of(ORDER + len(ORDER)).y[others] - first).max() > close:
                        follows = None  # results depend on positions, but not on that of each row
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
        return positions if self.axes == 1 or positions.ndim > 2 else np.stack([positions] * self.axes)

    def __call__(self, x: Array, positions: Array) -> np.ndarray | None:
        """The result "rows head_dim" at positions "(axes) rows", float64; None, with a problem, if it failed."""
        x, positions = np.asarray(x, dtype=np.float64), np.asarray(positions)
        rows_given = len(x)
        if self.follows is None:
            return None
        if self.follows == "first call":  # rows are added, so that no call had as many before
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

    @property
    def is_regular(self) -> bool:
        follows_axes = self.axes == 1 or (self.follows, self.axis) == ("positions", "seq")
        return follows_axes and self.follows in ("positions", "index", "nothing")

    def keeps_state(self) -> bool:
        # Then a short call gives another result now than at first.
        first, now = self._at_first, self._short_call()
        if first is None or now is None:  # it may need more rows than `longest_index` allows
            return False
        return results_differ(now, first, self.roundoff)

    def _short_call(self) -> np.ndarray | None:
        return self(np.ones((len(ORDER), self.head_dim)), ORDER)

    def together(self, x: np.ndarray, positions: np.ndarray) -> np.ndarray | None:
        """The result of one call with x "batch heads seq dim" and positions "batch seq"; None if it failed."""
        # The axes that `widest` does not have are of length 1.
        try:
            return _call(self.fn, self.widest, x, self._of_axes(positions)).y
        except Failure as failure:
            self.problems.append(str(failure))
            return None

    def _rows_of_calls(self, positions: np.ndarray) -> list[np.ndarray]:
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
        y = _call(self.fn, self._form, x, self._of_axes(where[..., None, : shape[2]])).y
        y = y[tuple(slice(None) if each == axis else 0 for each in range(3))]
        return y[rows] if self.follows == "index" else y


def results_differ(one: np.ndarray, other: np.ndarray, roundoff: float) -> bool:
    return bool(np.abs(one - other).max() > noise(roundoff) * np.abs(other).max())


def _follow_positions(first: np.ndarray, other: np.ndarray, order: np.ndarray, close: float) -> bool:
    """Whether rows at `ORDER` have the results that their positions have in a call with another order."""
    return len(first) == len(ORDER) and bool(np.abs(first - other[np.argsort(order)[ORDER]]).max() <= close)


def _checked_shape(shape: object) -> str:
    names = shape.split() if isinstance(shape, str) else []
    if names[-1:] != ["dim"] or "seq" not in names or len(set(names)) < len(names) or set(names) - {*SIZES, "dim"}:
        raise wrong_value(
            f'shape must name the axes of x, each once, from "batch", "heads" and "seq", with "dim" at the end, '
            f'such as "batch heads seq dim"; got {shape!r:.200}'
        )
    return " ".join(names)


def _libraries(like: Array | None) -> list[Array]:
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
        for words, text_of in (
            ("{}", lambda trial: _library(trial.form)),
            ("({})", lambda trial: " ".join(trial.form.shape)),
        ):
            concerned = dict.fromkeys(map(text_of, same))
            if concerned.keys() != {*map(text_of, trials)}:
                given.append(" or ".join(map(words.format, concerned)))
        lines.append(f"with x of {', '.join(given)}, {same[0].words}" if given else same[0].words)
    return lines


def _library(form: Form) -> str:
    return libraries.name(libraries.namespace(form.like)).partition(".")[0]


def _call(fn: Function, form: Form, x: np.ndarray, positions: np.ndarray) -> Result:
    """The result for an `x` "batch heads seq dim" at positions "batch seq" or "axes batch seq". Raises `Failure`."""
    # Axes that the form does not have are left out of both, and come back in the result.
    order = [AXES.index(name) for name in form.shape]
    left_out = tuple(axis for axis in range(3) if axis not in order)
    given = x[tuple(0 if axis in left_out else slice(None) for axis in range(3))]
    given = given.transpose([sorted(order).index(axis) for axis in order])
    if "batch" not in form.position_axes:
        positions = positions[..., 0, :]
    shape = given.shape
    try:
        with np.errstate(all="ignore"):
            integers = positions.astype("int64" if libraries.has_64_bits(form.like) else "int32")
            y = fn(*_arguments_for(fn, _from_host(given, form.like), libraries.from_host(integers, like=form.like)))
            _require_array(y, form.like, shape)
            host = libraries.to_host(y)
    except Failure:
        raise
    except (Exception, SystemExit) as error:
        lines = str(error).strip().splitlines()
        raise Failure(f"it raises {type(error).__name__}" + (f": {lines[0]:.120}" if lines else "")) from error
    if not np.isfinite(host).all():
        raise Failure("it returns NaN or infinity for finite numbers")
    y_of_axes = np.expand_dims(host.transpose(np.argsort(order)), left_out)
    return Result(y_of_axes, libraries.dtype_name(y.dtype))


def _arguments_for(fn: Function, *given: Array) -> tuple[Array, ...]:
    try:
        signature = inspect.signature(fn, follow_wrapped=False)
        if any(each.kind is each.VAR_POSITIONAL for each in signature.parameters.values()):
            signature = inspect.signature(getattr(fn, "forward", fn))  # of what is wrapped, or of a module of PyTorch
    except (TypeError, ValueError):  # not every function of C has one
        return given
    for arguments in (given, given[:1]):
        with contextlib.suppress(TypeError):
            signature.bind(*arguments)
            return arguments
    raise Failure(f"it takes {signature}; wrap it in a function that takes (x, positions)")


def _from_host(x: np.ndarray, like: Array) -> Array:
    """A fresh array of the library and dtype of `like`, so that `fn` may overwrite it."""
    dtype = libraries.dtype_name(like.dtype)
    x = x.astype(dtype if dtype in ("float64", "float32", "float16") else "float32")
    return libraries.from_host(x, like=like, dtype=like.dtype)


def _require_array(y: Array, like: Array, shape: tuple[int, ...]) -> None:
    if isinstance(y, (tuple, list)):
        raise Failure(f"it returns a {type(y).__name__} of {len(y)}; wrap it in a function that returns one array")
    if libraries.namespace(y) is None:
        raise Failure(f"it returns {type(y).__name__}, which is no array")
    if libraries.namespace(y) is not libraries.namespace(like):
        given, found = (libraries.name(libraries.namespace(each)) for each in (like, y))
        raise Failure(f"it returns an array of {found} for an array of {given}; pass an array of {found} as `like`")
    if libraries.dtype_name(y.dtype) not in ROUNDOFF:
        raise Failure(f"it returns an array of {libraries.dtype_name(y.dtype)}, not of floating-point numbers")
    if tuple(y.shape) != shape:
        raise Failure(f"it changes the shape of x from {shape} to {tuple(y.shape)}")


def longest_call(head_dim: int) -> int:
    return min(max(NUMBERS // head_dim, 4 * CHUNK), ALL_BELOW)


def positions_to_try(context: int, head_dim: int) -> Iterator[np.ndarray]:
    """Positions below `context` in ascending order, in parts: all below `ALL_BELOW`, then some."""
    long = longest_call(head_dim)
    yield np.arange(min(context, long))
    some = {context - 1, *(2**power + each for power in range(32) for each in (-1, 0, 1))}
    some |= {*np.random.default_rng(0).integers(0, context, RANDOM_BEYOND).tolist()}
    far = np.array(sorted(each for each in some if ALL_BELOW <= each < context), dtype=int)
    for positions in (np.arange(long, min(context, ALL_BELOW)), far):
        yield from (positions[start : start + CHUNK] for start in range(0, len(positions), CHUNK))


def rows_at(head_dim: int, positions: np.ndarray) -> np.ndarray:
    """Rows "positions head_dim" of 1 and -1: results of a pair then differ as much as its factors."""
    return np.broadcast_to(np.random.default_rng(0).choice([-1.0, 1.0], head_dim), (len(positions), head_dim))


class Calls(NamedTuple):
    """Calls of a function along directions, with the methods of a `Map`. They return None if a call fails."""

    probe: Probe
    directions: np.ndarray | None = None  # as in `directions_of`

    def rotated(self, x: np.ndarray, positions: np.ndarray, row: int = 0) -> np.ndarray | None:
        """The result "rows head_dim" at positions "rows" along one of the directions."""
        if self.directions is None:
            return self.probe(x, positions)
        return self.probe(x, np.outer(self.directions[row], positions).astype(int))

    def matrices(self, positions: np.ndarray, head_dim: int) -> np.ndarray | None:
        """The matrices "positions rows outputs inputs", with a row for each direction."""
        y = self._along_each(np.tile(np.eye(head_dim), (len(positions), 1)), np.repeat(positions, head_dim))
        return None if y is None else y.reshape(len(positions), head_dim, -1, head_dim).transpose(0, 2, 3, 1)

    def factors(self, positions: np.ndarray, channels: np.ndarray) -> Complex | None:
        """The complex factors "positions rows pairs" of pairs of these channels."""
        first, _, to_first, to_second = channels
        x = np.zeros((len(positions), self.probe.head_dim))
        x[:, first] = 1.0
        y = self._along_each(x, positions)
        return None if y is None else complex_of(y, to_first, to_second)

    def _along_each(self, x: np.ndarray, positions: np.ndarray) -> np.ndarray | None:
        rows = range(1 if self.directions is None else len(self.directions))
        results = [y for row in rows if (y := self.rotated(x, positions, row)) is not None]
        return np.stack(results, axis=1) if len(results) == len(rows) else None

    def first_difference(self, one: "Map | Calls", other: "Map | Calls", limit: Limit, context: int) -> int | None:
        """The first of many positions below `context`, along each direction, where results differ; None without."""
        for row in range(1 if self.directions is None else len(self.directions)):
            every = self.probe.follows == "index"
            for positions in [np.arange(context)] if every else positions_to_try(context, self.probe.head_dim):
                x = rows_at(self.probe.head_dim, positions)
                a, b = one.rotated(x, positions, row), other.rotated(x, positions, row)
                if a is None or b is None:
                    return int(positions[0])
                unlike = np.any(np.abs(a - b) > limit(positions, row), axis=1)
                if unlike.any():
                    return int(positions[unlike.argmax()])
        return None


class Case(NamedTuple):
    """The number of heads and the positions "batch seq" of a call, and what is special about it, in words."""

    words: str
    heads: int
    positions: np.ndarray


def irregularity(probe: Probe, longest: int) -> str:
    """On what the result of a row depends besides its channels and its position, in words; empty if on nothing."""
    if probe.irregular:
        return probe.irregular
    # Each row of each call must have the result that it has in one call with all of them.
    if (probe.follows, probe.axis) != ("positions", "seq"):
        return ""
    rng = np.random.default_rng(2)
    calls = list(_calls(probe, longest, rng))
    rows = [rng.integers(-4, 5, (len(each.positions), each.heads, each.positions.shape[1], 1)) for each in calls]
    spread = rng.integers(1, 5, probe.head_dim) * rng.choice([-1.0, 1.0], probe.head_dim)
    xs = [each * spread + rng.permutation(spread) for each in rows]
    where = [np.broadcast_to(each.positions[:, None], x.shape[:-1]) for each, x in zip(calls, xs)]
    expected = probe(
        np.concatenate([x.reshape(-1, probe.head_dim) for x in xs]), np.concatenate([*map(np.ravel, where)])
    )
    if expected is None:
        return f"a call with positions in any order fails: {probe.problems.pop()}"
    ends = np.cumsum([p.size for p in where])
    for each, x, of_call in zip(calls, xs, np.split(expected, ends[:-1])):
        y = probe.together(x, each.positions)
        if y is None:
            return f"{each.words} fails: {probe.problems.pop()}"
        # Far phases in float64 are as exact as float32, and the same sum may be rounded otherwise in another shape.
        close = noise(max(probe.roundoff, ROUNDOFF["float32"])) * max(1.0, np.abs(of_call).max())
        wrong = np.any(np.abs(y - of_call.reshape(x.shape)) > close, axis=-1)
        if wrong.any():
            return _in_words(each, wrong)
    return ""


def _in_words(each: Case, wrong: np.ndarray) -> str:
    """What the wrong results "batch heads seq" of a call have in common."""
    for axis, name in ((1, "head"), (0, "batch row")):
        of_axis = np.any(wrong, axis=tuple({0, 1, 2} - {axis}))
        if not of_axis.all():
            wrong_one, right_one = of_axis.argmax(), of_axis.argmin()
            return f"it depends on the {name}: {name} {wrong_one} gets another result than {name} {right_one}"
    at = np.argwhere(wrong)[0]
    position = each.positions[at[0], at[2]]
    return f"{each.words} gives another result at position {position:,} than a call with more tokens"


def _calls(probe: Probe, longest: int, rng: np.random.Generator) -> Iterator[Case]:
    """Each of the first is special in one way; the last ones are so in several."""
    last = longest - 1
    batch = BATCH if "batch" in probe.widest.shape else 1
    heads = HEADS if "heads" in probe.widest.shape else 1

    def random(*size: int) -> np.ndarray:
        return rng.integers(0, longest, size)

    def of_rows(positions: np.ndarray) -> np.ndarray:
        return positions if "batch" in probe.widest.position_axes else np.broadcast_to(positions[:1], positions.shape)

    for first in dict.fromkeys((min(5, max(last - 5, 0)), max(last - 5, 0))):
        yield Case("a call whose positions do not begin with 0", 1, np.arange(first, min(first + 6, longest))[None])
    for position in dict.fromkeys((min(3, last), last)):
        yield Case("a call with one token alone", 1, np.array([[position]]))
    shuffled = random(1, 7)
    yield Case("a call with positions in any order", 1, shuffled)
    yield Case("a second call with the same positions and another x", 1, shuffled)
    others = shuffled[:, [5, 4, 3, 2, 1]], random(1, 5)
    for between in others:  # the ends are the same
        again = np.concatenate([shuffled[:, :1], between, shuffled[:, 6:]], 1)
        yield Case("a second call with as many tokens", 1, again)
    yield Case("a long call", 1, np.arange(min(longest, LONG))[None])
    if batch > 1:
        yield Case("a call with several batch rows", 1, of_rows(random(batch, 3)))
    if heads > 1:
        yield Case("a call with many heads", heads, random(1, 3))
        yield Case("a call with several heads and many tokens", 4, random(1, LONG // 2))
    yield Case("a call with one token and many heads", heads, of_rows(random(batch, 1)))
    yield Case("a call with many heads and batch rows", heads, of_rows(random(batch, 2)))
