"""What the modules of all frameworks share: a value to begin from, and the same value with other frequencies."""

from dataclasses import replace
from typing import Any

from rope_xp.embedding import RotaryEmbedding


def value_of(rope: RotaryEmbedding | None, options: dict[str, Any]) -> tuple[RotaryEmbedding, bool]:
    """A value of floats made of what a module is given, and whether its frequencies were an array, so to be learned."""
    rope = RotaryEmbedding(**options) if rope is None else replace(rope, **options)
    inv_freq: Any = rope.inv_freq
    if isinstance(inv_freq, tuple):
        return rope, False
    return replace(rope, inv_freq=inv_freq.tolist()), True


def with_frequencies(rope: RotaryEmbedding, inv_freq: Any) -> RotaryEmbedding:
    """The same rotation but for its frequencies, which follow from nothing else any more."""
    return replace(rope, base=None, scaling=None, sections=None, reverse=False, inv_freq=inv_freq)
