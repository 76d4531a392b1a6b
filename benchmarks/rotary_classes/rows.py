"""What a comparison found: outcomes of configs, and the result for a class."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

# Versions of transformers of which every class must be covered, and how many they have. Of others, what is new is
# only listed.
VERSIONS = {"5.18.0": 214, "5.23.0": 236}
STATUSES = {
    "agrees": "ours is upstream's",
    "deviates": "ours differs on purpose, and is upstream's with compat='transformers'",
    "refused upstream": "upstream raises",
    "refused": "ours raises, rather than guess",
    "wrong": "ours differs, or raises",
    "unknown": "a family that ours does not have",
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
    rope: Any = None  # ours


@dataclass
class Result:
    """One class."""

    name: str
    rows: list[Outcome]
    reason: str = ""  # why it cannot be covered

    @property
    def covered(self):
        """Whether ours is upstream's at least once, and never what it must not be."""
        return not self.reason and not self.wrong and any(row.status in ("agrees", "deviates") for row in self.rows)

    @property
    def unstated(self):
        """The outcome with no rotary key stated."""
        found = [row for row in self.rows if row.case == "no rotary key"]
        return ", ".join(dict.fromkeys(row.status for row in found)) or "-"

    @property
    def why(self):
        """Why it is not covered."""
        notes = [row.note for row in (*self.wrong, *self.rows) if row.note]
        return self.reason or (notes[0] if notes else "nothing was compared")

    @property
    def wrong(self):
        """Outcomes that must not be; of a class that is no rotation, none is looked at."""
        statuses = ("wrong", "unknown") if is_known() else ("wrong",)
        return [row for row in self.rows if row.status in statuses] if not self.reason else []

    @property
    def behaviour(self):
        """What the class does, in a few words, from ours of the first config that agrees, over its layer types."""
        first = [row for row in self.rows if row.rope is not None]
        ropes = [row.rope for row in first if (row.config, row.case) == (first[0].config, first[0].case)]
        if not ropes:
            return "not a rotation"
        rope, words = ropes[0], []
        if rope.sections is not None or rope.axes > 1:
            words = [f"{rope.axes} axes", rope.sections.order if rope.sections else "frequencies of its own"]
        words.append(rope.layout)
        words += ["reversed"] if rope.reverse else []
        words += [f"{rope.blocks} blocks"] if rope.blocks > 1 else []
        if rope.rotary_dim < rope.head_dim:
            words.append("last channels" if rope.first_channel else "part of the head")
        return ", ".join([*words, *(["by layer type"] if len(ropes) > 1 else [])])

    def worst(self, key):
        return max((row.errors[key] for row in self.rows if key in row.errors), default=None)
