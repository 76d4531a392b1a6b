"""Widths, fractions, frequencies and scaling rules that only one family has."""

from math import pi
from typing import Any

from rope_xp.arrays import checks
from rope_xp.configs.keys import Keys
from rope_xp.errors import wrong_value
from rope_xp.frequencies import YarnScaling, geometric


def head_dim_of_audio(keys: Keys) -> int:
    """MusicFlamingo rotates the encoder's hidden states as one head."""
    width = keys.count("head_dim")
    return keys.nested("audio_config").count("hidden_size", 1280) if width is None else width


def head_dim_of_sliding_latent(keys: Keys) -> int:
    """Layers of Dots 3 with a sliding window rotate all channels of a head except `swa_qk_nope_head_dim`."""
    rest = keys.count("swa_head_dim", 256) - keys.count("swa_qk_nope_head_dim", 192)
    return keys.count("swa_qk_rope_head_dim", rest)


def width_of_gptj(keys: Keys, head_dim: int) -> int:
    """64 if the config has no `rotary_dim`, and the whole head if it is null."""
    rotary = keys.get("rotary")
    if rotary is not None and not checks.boolean("rotary", rotary):
        raise wrong_value("rotary must be true; got false")
    return keys.count("rotary_dim", head_dim if "rotary_dim" in keys.mapping else 64)


def width_of_clvp(keys: Keys, head_dim: int) -> int:
    return max(keys.count("projection_dim", 768) // (2 * keys.count("num_attention_heads", 12)), 32)


def width_of_phi(keys: Keys, head_dim: int) -> int:
    """32 if the config has no `rotary_dim`. The code in the checkpoints of Phi-1.5 and Phi-2 has this default."""
    return keys.count("rotary_dim", 32)


def fraction_of_latent(keys: Keys, head_dim: int) -> float:
    """The rotated fraction of a whole head. A head also has `qk_nope_head_dim` channels that are not rotated."""
    return head_dim / (head_dim + keys.count("qk_nope_head_dim", head_dim))


def any_fraction(keys: Keys, head_dim: int) -> None:
    """None, because any fraction is accepted: the class in transformers computes it from the widths."""


def fraction_of_hidden_state(keys: Keys, head_dim: int) -> float:
    """The only fraction that configs of EfficientLoFTR have: half the number of heads."""
    return keys.count("num_attention_heads", 8) / 2


def trained_frequencies(keys: Keys, head_dim: int, base: float) -> Any:
    raise wrong_value(
        f"frequencies must not depend on weights; got {keys.name}: its checkpoint multiplies them by the "
        f"exponential of the weight rotary_emb.alpha (multiply those of compat='transformers' by it, and pass the "
        f"product as inv_freq)"
    )


def frequencies_of_dinov3(keys: Keys, head_dim: int, base: float) -> Any:
    """Coordinates are from -1 to 1, and frequencies are in revolutions."""
    if head_dim % 4:
        raise wrong_value(f"head_dim must be a multiple of 4 in {keys.name}; got {head_dim}")
    own = tuple(2 * pi * w for w in geometric(base, head_dim // 2))
    zeros = (0.0,) * len(own)
    return own + zeros, zeros + own


def frequencies_of_esmfold2(keys: Keys, head_dim: int, base: float) -> Any:
    """Four position axes: the coordinates x, y and z in angstrom, and an index. All other pairs are not rotated."""
    each, index = keys.count("num_spatial_rope_pairs_per_axis", 2), keys.count("num_uid_rope_pairs", 10)
    spatial, of_index = (
        checks.at_least(key, keys.number(key, default), 1.0)
        for key, default in (("spatial_rope_base_frequency", 20.0), ("uid_rope_base_frequency", 10_000.0))
    )
    pairs = head_dim // 2
    if 3 * each + index > pairs:
        raise wrong_value(f"pairs of all axes must fit into {pairs}; got {3 * each + index}")
    rows = [geometric(spatial, 2 * each)] * 3 + [geometric(of_index, 2 * index)]
    return tuple(
        (0.0,) * (axis * each) + row + (0.0,) * (pairs - axis * each - len(row)) for axis, row in enumerate(rows)
    )


class YarnInLogarithms(YarnScaling):
    """YaRN in logarithms: it mixes kept and interpolated frequencies by a geometric mean, not an arithmetic one."""

    def frequencies(self, base: float, rotary_dim: int) -> tuple[float, ...]:
        scaled, plain = super().frequencies(base, rotary_dim), geometric(base, rotary_dim)
        if self.factor == 1.0:
            return plain
        ramp = [(1.0 - s / p) / (1.0 - 1.0 / self.factor) for s, p in zip(scaled, plain)]
        return tuple(p * self.factor**-fraction for p, fraction in zip(plain, ramp))
