"""`Identification`: the report of `identify`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rope_xp.reports import Report, Section, Table, short_repr

if TYPE_CHECKING:
    from rope_xp.embedding import RotaryEmbedding


@dataclass(frozen=True, kw_only=True)
class Identification(Report):
    """What `identify` found out about a function. Fields are None where that cannot be told.

    Attributes
    ----------
    rope : RotaryEmbedding or None
        The value that explains the function within tolerance: ``fn(x, positions)`` is
        ``rope(x, positions=positions + offset)``, unless it has a `flaw`. Its phases are exact; those of the function
        have `precision`.
    is_rotation : bool or None
        Whether the function rotates each pair of channels by an angle that follows from the position.
    layout : "half", "interleaved", "interleaved_to_half" or None
        None if no layout has these pairs.
    pairs : tuple of (int, int)
        The two channels of each pair, in the order of the first one.
    kept : tuple of int
        The channels that the function does not change.
    direction : 1, -1 or None
        1 for the usual direction, -1 for the opposite one, None if pairs differ.
    inv_freq : tuple of float
        The frequency of each of `pairs` in radians per position, as measured. Negative for the opposite direction.
    magnitude : float or None
        The factor of the length of each pair: the attention factor.
    offset : int, float or None
        What the function adds to positions, in tokens.
    precision : "exact", "float32", "float16 tables", "bfloat16 tables", "float16", "bfloat16" or None
        The precision of ``position * frequency``, for positions up to `longest`. "float16 tables" and "bfloat16
        tables": sines and cosines have so few digits, and no errors of phases are seen beside them.
    longest : int or None
        The largest position at which the function was tested and follows.
    stateful : bool or None
        Whether the result of a call depends on calls before.
    relative : bool or None
        Whether scores of queries and keys depend on the difference of their positions alone, at positions 0 to 5.
    axis : "seq", "heads", "batch" or None
        The axis of `x` along which the function rotates by different angles.
    positions_ignored : bool or None
        Whether the function rotates by the index along `axis`, whatever the positions are.
    shape : str or None
        The axes of `x` in the calls, such as ``"batch heads seq dim"``.
    library, dtype : str or None
        The library of the arrays, and the dtype of the results.
    confidence : float
        From 0 to 1: the part of the compared numbers that the value explains within tolerance, times the part of the
        pairs that turn far enough up to `longest` to give three digits of their frequency. It is 0 without a value.
    reasons : tuple of str
        What was concluded from what, and what is wrong.
    """

    rope: "RotaryEmbedding | None" = None
    is_rotation: bool | None = None
    layout: str | None = None
    pairs: tuple[tuple[int, int], ...] = ()
    kept: tuple[int, ...] = ()
    direction: int | None = None
    inv_freq: tuple[float, ...] = ()
    magnitude: float | None = None
    offset: int | float | None = None
    precision: str | None = None
    longest: int | None = None
    stateful: bool | None = None
    relative: bool | None = None
    axis: str | None = None
    positions_ignored: bool | None = None
    shape: str | None = None
    library: str | None = None
    dtype: str | None = None
    confidence: float = 0.0
    reasons: tuple[str, ...] = ()

    @property
    def flaw(self) -> str:
        """Why a function does not rotate tokens by the positions of each call, in words; empty if nothing says so."""
        if self.axis in ("heads", "batch"):
            return f"rotates {'heads' if self.axis == 'heads' else 'rows of the batch'} in place of positions"
        return "ignores positions" if self.positions_ignored else "keeps state" if self.stateful else ""

    @property
    def rope_in_words(self) -> str:
        """The value and what is different, in words; empty without a value."""
        different = [f"positions {'-' if self.offset < 0 else '+'} {abs(self.offset)}"] if self.offset else []
        different += [] if self.precision in (None, "exact") else [phases_in_words(self.precision)]
        such = f", with {' and '.join(different)}" if different else ""
        return "" if self.rope is None else short_repr(self.rope) + such

    def sections(self) -> list[Section]:
        return [Section("", self._summary()), Section("", Table((), self._rows())), Section("Reasons", self.reasons)]

    def _summary(self) -> str:
        if self.rope is not None:
            return f"The function is {self.rope_in_words}{f', but it {self.flaw}' if self.flaw else ''}."
        if self.is_rotation is None:
            return "The function cannot be identified."
        if self.is_rotation:
            for each in self.reasons:
                if each.startswith("Not a rotary embedding: "):
                    return f"The function is {each.replace('Not', 'not', 1)}"
            return "The function is a rotation, but no RotaryEmbedding explains it."
        return "The function is not a rotation."

    def _rows(self) -> list[tuple[str, str]]:
        known = {None: None, True: "yes", False: "no"}
        direction = {None: None, 1: "the usual one", -1: "the opposite one (reverse=True)"}
        calls = None if self.shape is None else f"x of ({self.shape}), {self.library}, results in {self.dtype}"
        rows = {
            "rotation": known[self.is_rotation],
            "layout": self.layout,
            "pairs": _pairs_in_words(self.pairs, self.kept),
            "direction": direction[self.direction],
            "magnitude": None if self.magnitude is None else f"{self.magnitude:.10g}",
            "offset": None if self.offset is None else f"{self.offset}",
            "phases": None if self.precision is None else f"{self.precision}; tested up to position {self.longest:,}",
            "earlier calls": {None: None, True: "change results", False: "do not change results"}[self.stateful],
            "relative scores": "yes (tested at small positions)" if self.relative else known[self.relative],
            "axis of x": self.axis,
            "called with": calls,
            "confidence": f"{self.confidence:.3g}",
        }
        return [(name, text) for name, text in rows.items() if text is not None]


def phases_in_words(precision: str) -> str:
    return precision if precision.endswith("tables") else f"{precision} phases"


def _pairs_in_words(pairs: tuple[tuple[int, int], ...], kept: tuple[int, ...]) -> str | None:
    if not pairs:
        return None
    shown = ", ".join(map(str, pairs[:3])) + (", ..." if pairs[3:] else "")
    return f"{len(pairs)}: {shown}" + (f"; {len(kept)} channels are not rotated" if kept else "")
