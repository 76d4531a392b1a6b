"""Widths, shares, frequencies and scaling rules that one family has and no other."""

from math import pi
from typing import Any

from rope_xp._core import checks
from rope_xp._core.config.keys import WHO, Keys
from rope_xp.frequencies import YarnScaling, geometric


def head_of_audio(keys: Keys) -> int:
    """MusicFlamingo rotates the encoder's hidden states as one head."""
    width = keys.count("head_dim")
    return keys.within("audio_config").count("hidden_size", 1280) if width is None else width


def head_of_sliding_latent(keys: Keys) -> int:
    """Dots 3 rotates, in a layer with a sliding window, all of a head that is not in the other part."""
    rest = keys.count("swa_head_dim", 256) - keys.count("swa_qk_nope_head_dim", 192)
    return keys.count("swa_qk_rope_head_dim", rest)


def width_of_gptj(keys: Keys, head_dim: int) -> int:
    """64 where the config has no `rotary_dim`, the whole head where it is null."""
    rotary = keys.get("rotary")
    if rotary is not None and not checks.boolean(WHO, "rotary", rotary):
        raise ValueError(f"{WHO}: rotary must be true; got false")
    return keys.count("rotary_dim", head_dim if "rotary_dim" in keys.mapping else 64)


def width_of_clvp(keys: Keys, head_dim: int) -> int:
    return max(keys.count("projection_dim", 768) // (2 * keys.count("num_attention_heads", 12)), 32)


def share_of_latent(keys: Keys, head_dim: int) -> float:
    """The share of a whole head, which is `qk_nope_head_dim` wider than the rotated part."""
    return head_dim / (head_dim + keys.count("qk_nope_head_dim", head_dim))


def any_share(keys: Keys, head_dim: int) -> None:
    """The widths decide. The class in transformers computes the share from them."""


def share_of_hidden_state(keys: Keys, head_dim: int) -> float:
    """EfficientLoFTR counts one frequency for each two axes and each channel of a pair, in heads."""
    return keys.count("num_attention_heads", 8) / 2


def trained_frequencies(keys: Keys, head_dim: int, base: float) -> Any:
    raise ValueError(
        f"{WHO}: frequencies must be those of the config; got {keys.name}, whose checkpoint multiplies them by the "
        f"exponential of its weight rotary_emb.alpha (take those of compat='transformers', multiply, and pass them as "
        f"inv_freq)"
    )


def frequencies_of_dinov3(keys: Keys, head_dim: int, base: float) -> Any:
    """Coordinates are from -1 to 1, and frequencies are in revolutions."""
    if head_dim % 4:
        raise ValueError(f"{WHO}: head_dim must be a multiple of 4 in {keys.name}; got {head_dim}")
    own = tuple(2 * pi * w for w in geometric(base, head_dim // 2))
    zeros = (0.0,) * len(own)
    return own + zeros, zeros + own


def frequencies_of_esmfold2(keys: Keys, head_dim: int, base: float) -> Any:
    """Coordinates x, y and z in angstrom, and an index. The pairs that are left are not rotated."""
    each, index = keys.count("num_spatial_rope_pairs_per_axis", 2), keys.count("num_uid_rope_pairs", 10)
    spatial, of_index = (
        checks.at_least(WHO, key, keys.number(key, usual), 1.0)
        for key, usual in (("spatial_rope_base_frequency", 20.0), ("uid_rope_base_frequency", 10_000.0))
    )
    pairs = head_dim // 2
    if 3 * each + index > pairs:
        raise ValueError(f"{WHO}: pairs of all axes must fit into {pairs}; got {3 * each + index}")
    rows = [geometric(spatial, 2 * each)] * 3 + [geometric(of_index, 2 * index)]
    return tuple((0.0,) * (at * each) + row + (0.0,) * (pairs - at * each - len(row)) for at, row in enumerate(rows))


class YarnInLogarithms(YarnScaling):
    """YaRN in logarithms: between kept and interpolated pairs, the geometric mean and not the arithmetic one."""

    def frequencies(self, base: float, rotary_dim: int) -> tuple[float, ...]:
        scaled, plain = super().frequencies(base, rotary_dim), geometric(base, rotary_dim)
        if self.factor == 1.0:
            return plain
        ramp = [(1.0 - s / p) / (1.0 - 1.0 / self.factor) for s, p in zip(scaled, plain)]
        return tuple(p * self.factor**-share for p, share in zip(plain, ramp))
