"""`Comparison`: the report of `compare`."""

from dataclasses import dataclass
from typing import NamedTuple

from rope_xp._compare.behaviour import BY_CAUSE, number
from rope_xp._core.report import Report, Section, Table

OTHER_ADVICE = {
    "rotation": "Check whether this layer is rotated at all.",
    "state": "Compute the tables from the positions of each call, and keep nothing between calls.",
    "softmax scale": "Multiply the scale of the softmax by softmax_scale, in both or in neither.",
    "unknown": "Compare the two pair by pair, at a small position. rope_xp.identify says what a function computes.",
}


class Difference(NamedTuple):
    """What differs, and what it is in `a` and in `b`, in words."""

    cause: str
    a: str
    b: str


@dataclass(frozen=True)
class Comparison(Report):
    """The report of `compare`: whether two rotary embeddings agree, and why not.

    Attributes
    ----------
    same : bool
        Whether no unit score changes by more than `tolerance` at any position below `context`.
    causes : tuple of str
        Why they differ, most likely first: "axis", "layout", "sincos order", "direction", "width", "base",
        "attention factor", "scaling", "offset", "sections", "decay", "phase precision", "frequencies" (they differ, and
        nothing of the above explains it), "softmax scale", "rotation" (one of the two does not rotate), "state" (a
        function keeps positions of an earlier call) or "unknown". If `same` is true, a cause that acts only at or
        beyond `context` is named, too.
    first_position : int or None
        The first position below `context` at which a unit score changes by more than 1 %.
    scores_are_same : bool or None
        Whether no score changes if one of them rotates queries and keys in place of the other. None if unknown.
    largest_change : float or None
        The largest change of a unit score at the last position, ``context - 1``. None if unknown.
    context : int
        In tokens.
    tolerance : float
    a, b : str
        What was compared.
    differences : tuple of (cause, a, b)
        What each cause is in `a` and in `b`, in words.
    problems : tuple of str
        What went wrong with a function, in words.
    """

    same: bool
    causes: tuple[str, ...]
    first_position: int | None
    scores_are_same: bool | None
    largest_change: float | None
    context: int
    tolerance: float
    a: str
    b: str
    differences: tuple[Difference, ...] = ()
    problems: tuple[str, ...] = ()

    def sections(self) -> list[Section]:
        rows = [("a", self.a), ("b", self.b)]
        rows += [(each.cause, f"a: {each.a}; b: {each.b}") for each in self.differences]
        if self.first_position is not None:
            rows.append(("first change of 1 %", f"position {number(self.first_position)}"))
        if self.largest_change is not None:
            rows.append(("largest change", f"{self.largest_change:.3g} at position {number(self.context - 1)}"))
        rows.append(("compared", f"positions below {number(self.context)}, tolerance {self.tolerance:.2g}"))
        advice = [] if self.same else self.advice
        return [Section("", self.summary), Section("", Table((), rows)), Section("What to do", advice)]

    @property
    def summary(self) -> str:
        """The result in a few sentences."""
        if self.same:
            agree = f"The two agree at every position below {number(self.context)}."
            return " ".join([agree, *self._beyond, *self.problems])
        return " ".join([self._where, *self._why, *self.problems, *self._scores])

    @property
    def advice(self) -> list[str]:
        """What to do about each cause."""
        if self.problems and "unknown" in self.causes:
            return ["If the function takes other arrays, say so by `shape` and `like`, or wrap it."]
        return [BY_CAUSE[each].advice if each in BY_CAUSE else OTHER_ADVICE[each] for each in self.causes]

    @property
    def _where(self) -> str:
        if self.first_position is not None:
            where = number(self.first_position)
            return f"The two differ. At position {where}, a unit score first changes by more than 1 %."
        if self.causes == ("softmax scale",):
            return "The two rotate alike, but they ask for different scales of the softmax."
        if self.largest_change is None:
            return "The two differ."
        return f"The two differ, but no unit score changes by more than 1 % below position {number(self.context)}."

    @property
    def _why(self) -> list[str]:
        if not self.causes:
            return []
        if self.causes == ("unknown",):
            return ["No mistake that is known explains it."]
        found = {each.cause: f"{each.cause} (a: {each.a}; b: {each.b})" for each in self.differences}
        named = [found.get(cause, cause) for cause in self.causes]
        return [f"Likely cause{'s' if len(named) > 1 else ''}: {'; '.join(named)}."]

    @property
    def _beyond(self) -> list[str]:
        return [f"Further on, they may differ by {' and '.join(self.causes)}."] if self.causes else []

    @property
    def _scores(self) -> list[str]:
        if not self.scores_are_same or self.causes == ("softmax scale",):
            return []
        return [
            "If each of them rotates both queries and keys, their scores are equal. Scores change where the two are "
            "mixed, as with cached keys."
        ]
