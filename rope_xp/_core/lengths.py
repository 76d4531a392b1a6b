"""The lengths of sequences for which an embedding was trained and extended."""

from typing import Any, NamedTuple

from rope_xp._core import checks
from rope_xp.frequencies import DynamicNTKScaling, LinearScaling


class Lengths(NamedTuple):
    """Lengths in tokens; None where nothing states them."""

    trained: int | None
    extended: int | None


def lengths_of(who: str, rope: Any, trained_length: Any = None) -> Lengths:
    """The trained and the extended length of a `RotaryEmbedding`.

    A scaling rule may state the trained length. Without scaling, both are the length of the config. If a rule states no
    original length, the config does not say which of the two its length is; `extend` records both. The same is true
    for given frequencies, which may be scaled.
    """
    scaling, stated = rope.scaling, rope._provenance.max_position_embeddings
    trained, extended = stated, stated
    if isinstance(scaling, DynamicNTKScaling):
        trained, extended = scaling.max_position_embeddings, scaling.seq_len
    elif hasattr(scaling, "original_max_position_embeddings"):
        trained, factor = scaling.original_max_position_embeddings, scaling.factor
        if stated is None or stated <= trained:
            extended = None if factor is None else int(factor * trained)
    elif rope.base is None or getattr(scaling, "factor", 1.0) != 1.0:
        trained = rope._provenance.trained_length
    if trained_length is not None:
        trained = checks.length(who, "trained_length", trained_length)
        if extended is None and isinstance(scaling, (LinearScaling, type(None))):
            extended = trained if scaling is None else int(scaling.factor * trained)
    return Lengths(trained, extended)
