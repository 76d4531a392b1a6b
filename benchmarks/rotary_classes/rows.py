"""Outcomes of configs, and the result of a class."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

# Versions of transformers whose classes must all be covered, and their number of classes. New classes of other
# versions are only listed.
VERSIONS = {"5.18.0": 214, "5.23.0": 236}
STATUSES = {
    "agrees": "rope_xp equals transformers",
    "deviates": "rope_xp differs on purpose, and is equal with compat='transformers'",
    "refused upstream": "transformers raises",
    "refused": "rope_xp raises, and does not guess",
    "wrong": "rope_xp differs, or raises",
    "unknown": "rope_xp does not have the family",
}


def is_known():
    """Whether every class of the installed transformers must be covered."""
    return version("transformers") in VERSIONS


@dataclass(frozen=True)
class Outcome:
    """One config for one layer type."""

    config: str
    case: str
    label: str | None
    status: str  # a key of STATUSES
    errors: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    rope: Any = None  # the embedding of rope_xp


@dataclass
class Result:
    """One class."""

    name: str
    rows: list[Outcome]
    reason: str = ""  # why it cannot be covered

    @property
    def covered(self):
        """Whether at least one config is equal or deviates on purpose, and none is wrong."""
        return not self.reason and not self.wrong and any(row.status in ("agrees", "deviates") for row in self.rows)

    @property
    def unstated(self):
        """The outcome of a file without rotary keys."""
        found = [row for row in self.rows if row.case == "no rotary key"]
        return ", ".join(dict.fromkeys(row.status for row in found)) or "-"

    @property
    def why(self):
        """Why it is not covered."""
        notes = [row.note for row in (*self.wrong, *self.rows) if row.note]
        return self.reason or (notes[0] if notes else "nothing was compared")

    @property
    def wrong(self):
        """Outcomes that are mistakes; none for a class that cannot be covered."""
        statuses = ("wrong", "unknown") if is_known() else ("wrong",)
        return [row for row in self.rows if row.status in statuses] if not self.reason else []

    @property
    def behaviour(self):
        """The rotation of the class in a few words, from the embeddings of its first equal config."""
        first = [row for row in self.rows if row.rope is not None]
        ropes = [row.rope for row in first if (row.config, row.case) == (first[0].config, first[0].case)]
        if not ropes:
            return "not a rotation"
        rope, words = ropes[0], []
        if rope.sections is not None or rope.axes > 1:
            words = [f"{rope.axes} axes", rope.sections.order if rope.sections else "frequencies for each axis"]
        words.append(rope.layout)
        words += ["reversed"] if rope.reverse else []
        words += [f"{rope.blocks} blocks"] if rope.blocks > 1 else []
        if rope.rotary_dim < rope.head_dim:
            words.append("last channels" if rope.first_channel else "part of the head")
        return ", ".join([*words, *(["by layer type"] if len(ropes) > 1 else [])])

    def worst(self, key):
        return max((row.errors[key] for row in self.rows if key in row.errors), default=None)
