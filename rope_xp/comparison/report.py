"""`Comparison`: the report of `compare`."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from rope_xp.reports import Report, Section, Table


def number(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{int(value):,}" if float(value).is_integer() and value < 1e15 else f"{value:,.6g}"


class Difference(NamedTuple):
    """What differs, and what it is in `a` and in `b`, in words."""

    cause: str
    a: str
    b: str


# Causes that are not a property of an embedding, in words.
IN_WORDS = {
    "calls": "results depend on the call",
    "length": "some positions have no result",
}


@dataclass(frozen=True, kw_only=True)
class Comparison(Report):
    """The report of `compare`: whether two rotary embeddings agree, and why not.

    Attributes
    ----------
    same : bool
        Whether no unit score changes by more than `tolerance` at any position below `context`.
    causes : tuple of str
        Why they differ, most likely first: "axis", "layout", "sincos order", "direction", "width", "base",
        "attention factor", "scaling", "offset", "sections", "decay", "phase precision", "frequencies" (nothing above
        explains them), "softmax scale", "rotation" (one does not rotate), "length" (no result at a position below
        `context`, and not because of float16 phases), "calls" (results depend on more than a row and its position),
        "state" (positions of an earlier call are kept) or "unknown". If `same` is true, those that act beyond it.
    first_position : int or None
        The first position below `context`, of those that were tried, at which a unit score changes by more than 1 %.
    scores_are_same : bool or None
        Whether no score changes by more than `tolerance` if one of them rotates queries and keys in place of the
        other: small differences of both may add up. None if unknown.
    largest_change : float or None
        The largest change of a unit score at the last position, ``context - 1``. None if unknown, as within the
        roundings of results in half precision, or without a result there.
    attention_moved : float or None
        The share of attention on other tokens, from 0 to 1, if `b` rotates queries and keys in place of `a`: of one
        random query in each of 32 heads, at the last position, to at most 4,096 random keys over the context or the
        window. Of several axes, along that with the most. None if they are the same, unknown, or latent heads.
    context : int
        In tokens.
    tolerance : float
    a, b : str
        What was compared.
    differences : tuple of (cause, a, b)
        What each cause is in `a` and in `b`, in words.
    problems : tuple of str
        What went wrong with a function, and which frequencies are for other lengths of sequences, in words.
    advice : tuple of str
        What to do about each cause.
    comparable : bool
        False if a function has no results that can be compared, as when all calls fail. `same` is then false, too.
    sample : str
        At which positions functions were called, in words; empty if at every position below `context`.
    remarks : tuple of str
        With `flags`, what was assumed, and which of them do not do what one would expect.
    first_beyond_tolerance : int or None
        The first position at which a unit score changes by more than `tolerance`.
    window : int or None
        In tokens, if every config is for layers that score only keys of a window: the longest window.
    """

    same: bool
    causes: tuple[str, ...]
    first_position: int | None = None
    scores_are_same: bool | None = None
    largest_change: float | None = None
    context: int
    tolerance: float
    a: str
    b: str
    differences: tuple[Difference, ...] = ()
    problems: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    comparable: bool = True
    sample: str = ""
    attention_moved: float | None = None
    remarks: tuple[str, ...] = ()
    first_beyond_tolerance: int | None = None
    window: int | None = None

    def sections(self) -> list[Section]:
        rows = [("a", "", self.a), ("b", "", self.b)]
        rows += [row for each in self.differences for row in ((each.cause, "a", each.a), ("", "b", each.b))]
        rows += self._measures
        found = [Section("", self._summary(attrgetter("cause"))), Section("", Table((), rows))]
        return [*found, Section("Remarks on the flags", self.remarks), Section("What to do", self.advice)]

    @property
    def _measures(self) -> list[tuple[str, str, str]]:
        if self.largest_change is None and not self.same:
            return []
        beyond = "" if self.window is None else ", also distances beyond the window"
        rows = [
            ("compared", "", f"{'some of ' if self.sample else ''}positions 0 to {number(self.context - 1)}{beyond}"),
            ("score", "", "the product of two vectors of length 1; one is rotated"),
            ("tolerance", "", f"a score may change by {self.tolerance:.2g}"),
        ]
        if self.largest_change is not None:
            rows.append(("last position", "", f"a score changes by up to {self.largest_change:.3g}"))
        if self.attention_moved is None:
            return rows
        keys = "over the context" if self.window is None else f"within the window of {number(self.window)} tokens"
        share = f"{self._share} moves to other tokens (32 random queries, up to 4,096 random keys {keys})"
        return [*rows, ("attention", "", share)]

    @property
    def summary(self) -> str:
        return self._summary(lambda each: f"{each.cause} (a: {each.a}; b: {each.b})")

    def _summary(self, words: Callable[[Difference], str]) -> str:
        if self.same:
            every = "positions that were tried" if self.sample else "every position"
            agree = f"The two agree at {every} below {number(self.context)}."
            return " ".join(filter(None, [agree, *self._beyond, *self.problems, self.sample]))
        return " ".join([self._where, *self._attention, *self._why(words), *self.problems, *self._scores])

    @property
    def _where(self) -> str:
        if self.first_position is not None:
            if self.first_beyond_tolerance is None and self.scores_are_same is False:  # there was nothing to measure
                return "The two differ: no array fits both."
            first = "first " if self.attention_moved is not None or self.differences else ""
            return f"The two differ. At position {number(self.first_position)}, scores {first}change by more than 1 %."
        if not self.comparable:
            return "The two could not be compared."
        if self.causes == ("softmax scale",):
            return "The two rotate alike, but they ask for different scales of the softmax."
        if self.largest_change is None and self.first_beyond_tolerance is None:
            return "The two differ."
        where = "at positions that were tried" if self.sample else f"below position {number(self.context)}"
        none = f"no score changes by more than 1 % {where}."
        if self.first_beyond_tolerance is None:
            return f"The two differ, but {none}"
        where = f"At position {number(self.first_beyond_tolerance)}, scores first change by more than the tolerance"
        return f"The two differ. {where}, but {none}"

    @property
    def _attention(self) -> list[str]:
        if self.attention_moved is None:
            return []
        return [f"At position {number(self.context - 1)}, {self._share} moves to other tokens."]

    @property
    def _share(self) -> str:
        """The share of attention that moves, in words. Errors of rounding are nothing."""
        share = 100 * (self.attention_moved or 0.0)
        return f"{share:.2g} % of attention" if share > 1e-6 else "no attention"

    def _why(self, words: Callable[[Difference], str]) -> list[str]:
        if self.causes in ((), ("unknown",)):  # the problems say what was found
            return []
        found = {each.cause: words(each) for each in self.differences}
        named = [found.get(cause) or IN_WORDS.get(cause, cause) for cause in self.causes]
        return [f"Likely cause{'s' if len(named) > 1 else ''}: {'; '.join(named)}."]

    @property
    def _beyond(self) -> list[str]:
        return [f"At later positions they differ. Cause: {', '.join(self.causes)}."] if self.causes else []

    @property
    def _scores(self) -> list[str]:
        if not self.scores_are_same or "softmax scale" in self.causes:
            return []
        return [
            "If each of them rotates both queries and keys, their scores are equal. Scores change where the two are "
            "mixed, as with cached keys."
        ]
