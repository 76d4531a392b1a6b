"""What the modules of all frameworks share: a value to begin from, and the same value with other frequencies."""

from typing import Any

from rope_xp._core.embedding import RotaryEmbedding


def value_of(rope: RotaryEmbedding | None, options: dict[str, Any], learned: bool) -> tuple[RotaryEmbedding, bool]:
    """A value of floats made of what a module is given, and whether its frequencies are learned, as arrays are."""
    if rope is not None and not isinstance(rope, RotaryEmbedding):
        raise TypeError(f"RotaryEmbedding: rope must be a rope_xp.RotaryEmbedding; got {type(rope).__name__}")
    if rope is None and not options:
        raise TypeError(
            "RotaryEmbedding: rope, or what it is made of, must be given; got neither (`from_config` gives None for a "
            "layer that is not rotated)"
        )
    rope = RotaryEmbedding(**options) if rope is None else rope.replace(**options)
    inv_freq: Any = rope.inv_freq
    if not isinstance(inv_freq, tuple):
        return rope.replace(inv_freq=inv_freq.tolist()), True
    if learned and rope.softmax_scale != 1.0:
        raise ValueError(
            "RotaryEmbedding: learned frequencies must begin from a value whose softmax_scale is 1, as they have no "
            f"scaling; got {rope.softmax_scale}: give its inv_freq and attention_factor, and scale the softmax"
        )
    return rope, learned


def with_frequencies(rope: RotaryEmbedding, inv_freq: Any) -> RotaryEmbedding:
    """The same rotation but for its frequencies, which follow from nothing else any more."""
    return rope.replace(
        base=None,
        scaling=None,
        sections=None,
        reverse=False,
        inv_freq=inv_freq,
        attention_factor=rope.attention_factor,
    )
