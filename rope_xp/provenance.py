"""The values of an embedding that its config did not state, and where they come from."""

from collections.abc import Container, Iterable
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

Rope = TypeVar("Rope")


class Default(NamedTuple):
    """One value that a config did not state.

    Attributes
    ----------
    row : str
        The row of `RotaryEmbedding.describe` that shows the value.
    key : str
        The config key for the value.
    source : str
        Where the default comes from, such as "default of llama".
    """

    row: str
    key: str
    source: str


@dataclass(frozen=True)
class Provenance:
    """What `from_config` and `extend` record about an embedding, in addition to its values.

    Equality, hash and repr of the embedding ignore it.

    Parameters
    ----------
    defaults : tuple of Default
        Values that the config did not state.
    remarks : tuple of str
        Other sentences that `RotaryEmbedding.describe` prints.
    model_type : str
        The family of the config, or of the part that was read.
    file_type : str
        The `model_type` of the whole config.
    path : tuple of str
        The keys that lead from the whole config to the part that was read; none if it is the config itself.
    layer_type : str
        The type of the layers that the embedding is for, or their number if they have no type; empty if other layers
        have the same embedding, or none.
    max_position_embeddings : int, optional
        The length that the config states, or to which the embedding was extended, in tokens.
    trained_length : int, optional
        The length before it was extended, in tokens. Not every scaling rule states it.
    extended : str
        How `extend` changed the embedding; empty if it did not.
    stated : tuple of str
        The keys of the config that were read.
    format : str
        The format of the config; empty for a config of transformers.
    axis_names : tuple of str
        The name of each of several position axes, such as time; empty if the family has no names.
    indexer : str
        How the indexer beside the attention rotates; empty without one.

    Examples
    --------
    >>> Provenance((Default("frequencies", "rope_theta", "default of llama"),)).mark("frequencies")
    ' (not in the config: rope_theta, default of llama)'
    """

    defaults: tuple[Default, ...] = ()
    remarks: tuple[str, ...] = ()
    model_type: str = ""
    max_position_embeddings: int | None = None
    stated: tuple[str, ...] = ()
    trained_length: int | None = None
    extended: str = ""
    format: str = ""
    axis_names: tuple[str, ...] = ()
    indexer: str = ""
    file_type: str = ""
    path: tuple[str, ...] = ()
    layer_type: str = ""

    def of_model(self) -> "Provenance":
        """What is known of the model itself, whatever its embedding is."""
        return Provenance(
            model_type=self.model_type, file_type=self.file_type, path=self.path, layer_type=self.layer_type
        )

    def axis_name(self, axis: int) -> str:
        """The name of a position axis, or its number."""
        return self.axis_names[axis] if self.axis_names else f"axis {axis}"

    def mark(self, row: str) -> str:
        """A note to append to a row, or an empty string if the config states all values of the row."""
        defaults = defaults_as_text(default for default in self.defaults if default.row == row)
        return f" (not in the config: {defaults})" if defaults else ""

    def others(self, rows: Container[str]) -> list[tuple[str, str]]:
        """Rows for the format, the indexer, the extension, and for the defaults that none of `rows` shows."""
        others = defaults_as_text(default for default in self.defaults if default.row not in rows)
        found = {
            "read from": self.format,
            "indexer": self.indexer,
            "extended": self.extended,
            "not in the config": others,
        }
        return [(name, text) for name, text in found.items() if text]

    def lines(self, rows: Container[str]) -> list[tuple[str, str]]:
        """Additional rows: the defaults that none of `rows` shows, and the remarks."""
        return [*self.others(rows), *(("remark", remark) for remark in self.remarks)]


def with_provenance(rope: Rope, provenance: Provenance) -> Rope:
    """A copy of a `RotaryEmbedding` that records where its values come from."""
    marked = copy(rope)
    object.__setattr__(marked, "_provenance", provenance)
    return marked


def defaults_as_text(defaults: Iterable[Default]) -> str:
    """The keys and the sources of defaults, as text."""
    return "; ".join(f"{default.key}, {default.source}" for default in defaults)
