"""What the modules of all frameworks share: their initial value, and that value with learned frequencies."""

from typing import Any

from rope_xp._core.embedding import RotaryEmbedding


def initial_value(rope: RotaryEmbedding | None, options: dict[str, Any], learned: bool) -> tuple[RotaryEmbedding, bool]:
    """The initial value of a module, with frequencies as floats, and whether the module learns them.

    Frequencies that are given as an array are learned.
    """
    if rope is not None and not isinstance(rope, RotaryEmbedding):
        raise TypeError(f"RotaryEmbedding: rope must be a rope_xp.RotaryEmbedding; got {type(rope).__name__}")
    if rope is None and not options:
        raise TypeError(
            "RotaryEmbedding: rope or its arguments must be given; got neither (`from_config` returns None for a layer "
            "that is not rotated)"
        )
    rope = RotaryEmbedding(**options) if rope is None else rope.replace(**options)
    inv_freq: Any = rope.inv_freq
    if not isinstance(inv_freq, tuple):
        return rope.replace(inv_freq=inv_freq.tolist()), True
    if learned and rope.softmax_scale != 1.0:
        raise ValueError(
            "RotaryEmbedding: learned frequencies must start from a value with softmax_scale 1, because they keep no "
            f"scaling; got {rope.softmax_scale}: pass its inv_freq and attention_factor, and scale the softmax yourself"
        )
    return rope, learned


def with_frequencies(rope: RotaryEmbedding, inv_freq: Any) -> RotaryEmbedding:
    """The same rotation with other frequencies. It has no base, scaling or sections."""
    return rope.replace(
        base=None,
        scaling=None,
        sections=None,
        reverse=False,
        inv_freq=inv_freq,
        attention_factor=rope.attention_factor,
    )
