"""The lengths of sequences for which an embedding was trained and extended."""

from math import isclose
from typing import Any, NamedTuple

from rope_xp._core import checks
from rope_xp.frequencies import DynamicNTKScaling, LinearScaling, YarnScaling


class Lengths(NamedTuple):
    """Lengths in tokens; None where nothing states them."""

    trained: int | None
    extended: int | None

    @property
    def longest(self) -> int | None:
        """The longest length that is known."""
        return max((length for length in self if length is not None), default=None)


def lengths_of(rope: Any, trained_length: Any = None) -> Lengths:
    """The trained and the extended length of a `RotaryEmbedding`.

    The trained length is that before scaling. A scaling rule may state it. Without scaling, both are the length of the
    config. If a rule states no original length, the config does not say which of the two its length is; `extend`
    records both. The same is true for given frequencies, which may be scaled.
    """
    scaling, stated = rope.scaling, rope._provenance.max_position_embeddings
    trained, extended = stated, stated
    if isinstance(scaling, DynamicNTKScaling):
        trained, extended = scaling.max_position_embeddings, scaling.seq_len
    elif hasattr(scaling, "original_max_position_embeddings"):
        trained, factor = scaling.original_max_position_embeddings, scaling.factor
        by_factor = None if factor is None else int(factor * trained)
        if stated is None or stated <= trained:
            extended = by_factor
        elif isinstance(scaling, YarnScaling) and by_factor is not None:
            extended = max(stated, by_factor)  # its factor is the ratio of the lengths (section 3.1)
    elif rope.base is None or getattr(scaling, "factor", 1.0) != 1.0:
        trained = rope._provenance.trained_length
    if trained_length is not None:
        trained = checks.length("trained_length", trained_length)
        if scaling is None and (rope.base is not None or extended is None):
            extended = trained
        elif isinstance(scaling, LinearScaling) and (extended is None or extended <= trained):
            extended = int(scaling.factor * trained)
    return Lengths(trained, extended)


def is_scaled(rope: Any) -> bool:
    """Whether a scaling rule changes a frequency of a pair that is rotated.

    Dynamic NTK does not at the lengths of training. Other rules stop pairs only, or change the attention factor only.
    """
    if rope.scaling is None:
        return False
    rows = zip(rope._frequencies.rows, rope.replace(scaling=None)._frequencies.rows)
    pairs = (pair for scaled, unscaled in rows for pair in zip(scaled.inv_freq, unscaled.inv_freq))
    return any(w and not isclose(w, unscaled, rel_tol=1e-9) for w, unscaled in pairs)
