"""The values of an embedding that its config did not state, and where they come from."""

from collections.abc import Container, Iterable
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

Rope = TypeVar("Rope")
# Types of layers that score only keys of a window.
WITH_WINDOW = ("sliding_attention", "chunked_attention")
# The end of `Provenance.extended` if the rule gives the scaling that was there.
STAYS = ". Its scaling stays the same"


class Default(NamedTuple):
    """One value that a config did not state."""

    row: str  # of `RotaryEmbedding.describe`, which shows the value; empty if none does
    key: str  # of the config
    source: str  # such as "default of llama"


@dataclass(frozen=True)
class Provenance:
    """What `from_config` and `extend` record about an embedding, which its equality, hash and repr ignore."""

    defaults: tuple[Default, ...] = ()
    remarks: tuple[str, ...] = ()  # sentences that `RotaryEmbedding.describe` prints
    model_type: str = ""  # of the part of the config that was read
    is_latent: bool = False  # whether this family has latent attention
    base_key: str = "rope_theta"  # the key of the base outside a rotary block
    max_position_embeddings: int | None = None  # in tokens: stated, or to which it was extended
    stated: tuple[str, ...] = ()  # the keys that were read
    trained_length: int | None = None  # in tokens, before it was extended: not every rule states it
    extended: str = ""  # how `extend` changed the embedding
    format: str = ""  # of the config; empty for transformers
    has_flags: bool = False  # of an engine, beside the config
    axis_names: tuple[str, ...] = ()  # of several position axes, such as time; empty if the family has no names
    indexer: str = ""  # how the indexer beside the attention rotates
    file_type: str = ""  # the `model_type` of the whole config
    path: tuple[str, ...] = ()  # the keys that lead from the whole config to the part
    # Of the layers that the embedding is for, and the number of a layer without a type. Neither if other layers have
    # the same embedding, or none.
    layer_type: str = ""
    layer: int | None = None
    has_own_types: bool = False  # whether the config lists types of layers that are not in the pattern of the family
    sliding_window: int | None = None  # in tokens: stated, for all layers or for some
    is_windowed: bool = False  # whether all rotated layers score only keys of a window
    # In a GGUF file of the config, because its scaling needs them. llama.cpp divides frequencies by them, whatever
    # the rule is.
    tensors: tuple[str, ...] = ()
    is_yarn: bool = False  # whether that file has YaRN
    architecture: str = ""  # of the GGUF file that was read
    served: int | None = None  # the longest sequence of an engine, in tokens, if its flags say it
    for_all_lengths: bool = False  # whether the engine has one list of LongRoPE for all sequences

    def of_model(self) -> "Provenance":
        """What is known of the model itself, whatever its embedding is."""
        of_family = ("model_type", "is_latent", "base_key", "file_type", "path", "architecture", "tensors", "is_yarn")
        of_layers = ("layer_type", "layer", "has_own_types", "sliding_window", "is_windowed")
        return Provenance(**{name: getattr(self, name) for name in of_family + of_layers})

    @property
    def layers(self) -> str:
        """The layers that the embedding is for, in words; empty for all."""
        return self.layer_type or ("" if self.layer is None else f"layer {self.layer}")

    def axis_name(self, axis: int) -> str:
        return self.axis_names[axis] if self.axis_names else f"axis {axis}"

    def note_on(self, row: str) -> str:
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


def with_provenance(rope: Rope, provenance: Provenance) -> Rope:
    """A copy of a `RotaryEmbedding` that records where its values come from."""
    return set_provenance(copy(rope), provenance)


# For a new value, which nobody else has.
def set_provenance(rope: Rope, provenance: Provenance) -> Rope:
    object.__setattr__(rope, "_provenance", provenance)
    return rope


def defaults_as_text(defaults: Iterable[Default]) -> str:
    return "; ".join(f"{default.key}, {default.source}" for default in defaults)
