"""Frequencies: the angle by which each pair of channels is rotated, in radians per position.

Everything here takes and returns Python floats.

- A progression gives each pair its frequency: `geometric` for text, `evenly_spaced`, `log_spaced` and `mixed` for
  images.
- A scaling rule is a frozen value. It changes a geometric progression, so that a model handles longer sequences than it
  was trained on. Its fields have the names of the keys of a config.
"""

from rope_xp.frequencies.by_factor import LinearScaling, MixedNTKScaling, NTKScaling, ProportionalScaling
from rope_xp.frequencies.by_length import DynamicNTKScaling, Llama3Scaling, LongRopeScaling, YarnScaling
from rope_xp.frequencies.progressions import evenly_spaced, geometric, log_spaced, mixed
from rope_xp.frequencies.scaling import Scaling
from rope_xp.frequencies.xpos import XPos

__all__ = [
    "DynamicNTKScaling",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "MixedNTKScaling",
    "NTKScaling",
    "ProportionalScaling",
    "Scaling",
    "XPos",
    "YarnScaling",
    "evenly_spaced",
    "geometric",
    "log_spaced",
    "mixed",
]

# The lengths that rules have: names of their fields, and of keys of configs.
LENGTH, ORIGINAL = "max_position_embeddings", "original_max_position_embeddings"
# By the name in a config. `NTKScaling` has no name of its own there: it is "dynamic" with `alpha`.
RULES: dict[str, type[Scaling]] = {
    each.rope_type: each
    for each in map(globals().__getitem__, __all__)
    if isinstance(each, type) and issubclass(each, Scaling) and each is not NTKScaling
}

for _name in __all__:
    globals()[_name].__module__ = __name__  # the module that help and pickles show
