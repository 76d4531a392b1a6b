"""The channels of a head: which of them are rotated, which two form a pair, and where results are written."""

from typing import Literal

from rope_xp.arrays import checks
from rope_xp.errors import wrong_value

# No model comes near it: a mistaken width must not take the memory of the machine.
MAX_HEAD_DIM = 2**16

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


def span_of(
    head_dim: object, first_channel: object, rotary_dim: object, *, is_open: bool
) -> tuple[int, int, int | None]:
    """The width of a head, its first rotated channel, and how many are rotated: None means all channels from it on."""
    head_dim = checks.even_size("head_dim", head_dim)
    if head_dim > MAX_HEAD_DIM:
        raise wrong_value(f"head_dim must be at most {MAX_HEAD_DIM}; got {head_dim}")
    first_channel = checks.count("first_channel", first_channel)
    if first_channel > head_dim - 2:
        raise wrong_value(f"first_channel must leave at least one pair within head_dim={head_dim}; got {first_channel}")
    if rotary_dim is None and not is_open:
        rotary_dim = head_dim - first_channel
    if rotary_dim is not None:
        rotary_dim = checks.even_size("rotary_dim", rotary_dim, head_dim - first_channel)
    return head_dim, first_channel, rotary_dim


def require_pairs(pairs: int, head_dim: int, first_channel: int, rotary_dim: int | None) -> None:
    width = 2 * pairs if rotary_dim is None else rotary_dim
    if 2 * pairs != width or first_channel + width > head_dim:
        raise wrong_value(
            f"inv_freq must have rotary_dim / 2 frequencies, and rotary_dim must fit into head_dim; "
            f"got {pairs} for rotary_dim={width}, first_channel={first_channel} and head_dim={head_dim}"
        )


def checked_blocks(blocks: object, layout: str, pairs: int) -> int:
    blocks = checks.count("blocks", blocks)
    if blocks != 1 and (layout != "half" or not blocks or pairs % blocks):
        raise wrong_value(
            f"blocks must divide the {pairs} pairs, and must be 1 unless layout='half'; "
            f"got {blocks} for layout={layout!r}"
        )
    return blocks
