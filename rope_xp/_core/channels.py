"""The channels of a head: which of them are rotated, which two form a pair, and where results are written."""

from typing import Any, Literal, NamedTuple

from rope_xp._core import checks
from rope_xp._core.errors import wrong_value
from rope_xp._core.kernels.pair_rotation import Rotation

Layout = Literal["half", "interleaved", "interleaved_to_half"]

LAYOUTS = {
    "half": "channel j with j + pairs: GPT-NeoX, Llama in transformers",
    "interleaved": "channel 2j with 2j + 1: RoFormer, GPT-J, Meta's Llama",
    "interleaved_to_half": "channel 2j with 2j + 1, written to j and j + pairs: DeepSeek-V3",
}
# Each layout: the pairing of the channels that are read, and of the channels that are written.
READ_WRITE: dict[str, tuple[str, str]] = {
    "half": ("half", "half"),
    "interleaved": ("interleaved", "interleaved"),
    "interleaved_to_half": ("interleaved", "half"),
}


class Span(NamedTuple):
    """The rotated channels of a head. `rotary_dim` is None if the number of frequencies decides it."""

    head_dim: int
    first_channel: int
    rotary_dim: int | None

    def require_pairs(self, pairs: int) -> None:
        """Check that this many pairs fit into the span."""
        rotary_dim = 2 * pairs if self.rotary_dim is None else self.rotary_dim
        if 2 * pairs != rotary_dim or self.first_channel + rotary_dim > self.head_dim:
            raise wrong_value(
                f"inv_freq must have rotary_dim / 2 frequencies, and rotary_dim must fit into head_dim; "
                f"got {pairs} for rotary_dim={rotary_dim}, first_channel={self.first_channel} and "
                f"head_dim={self.head_dim}"
            )


class Channels(NamedTuple):
    """The rotated channels of a head, and how they form pairs. `channels_of` creates it from checked arguments."""

    head_dim: int
    layout: Layout
    first_channel: int
    rotary_dim: int
    blocks: int
    rotation: Rotation


def span_of(head_dim: Any, first_channel: Any, rotary_dim: Any, *, is_open: bool) -> Span:
    """The rotated channels. If `rotary_dim` is None, the span has all channels from `first_channel` on.

    If the span also `is_open`, the number of frequencies decides instead.
    """
    head_dim = checks.even_size("head_dim", head_dim)
    first_channel = checks.count("first_channel", first_channel)
    if first_channel > head_dim - 2:
        raise wrong_value(f"first_channel must leave at least one pair within head_dim={head_dim}; got {first_channel}")
    if rotary_dim is None and not is_open:
        rotary_dim = head_dim - first_channel
    if rotary_dim is not None:
        rotary_dim = checks.even_size("rotary_dim", rotary_dim, head_dim - first_channel)
    return Span(head_dim, first_channel, rotary_dim)


def channels_of(layout: Layout, span: Span, blocks: Any, pairs: int) -> Channels:
    """The channels of a span that holds this many pairs."""
    head_dim, first_channel, _ = span
    blocks = checks.count("blocks", blocks)
    if blocks != 1 and (layout != "half" or not blocks or pairs % blocks):
        raise wrong_value(
            f"blocks must divide the {pairs} pairs, and must be 1 unless layout='half'; "
            f"got {blocks} for layout={layout!r}"
        )
    rotation = Rotation(*READ_WRITE[layout], first_channel, blocks)
    return Channels(head_dim, layout, first_channel, 2 * pairs, blocks, rotation)
