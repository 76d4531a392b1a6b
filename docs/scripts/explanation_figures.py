"""The figures of the pages on phases and scaling rules."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from rope_xp import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    MixedNTKScaling,
    NTKScaling,
    RotaryEmbedding,
    XPos,
    YarnScaling,
    from_config,
    plot,
)

TRAINED, FACTOR = 4096, 8.0
LENGTHS = dict(factor=FACTOR, original_max_position_embeddings=TRAINED)
EIGHTFOLD = {
    "linear": LinearScaling(factor=FACTOR),
    "NTK-aware": NTKScaling(factor=FACTOR),
    "mixed NTK": MixedNTKScaling(factor=FACTOR, mixed_b=0.625),
    "dynamic NTK": DynamicNTKScaling(factor=1.0, max_position_embeddings=TRAINED, seq_len=int(FACTOR * TRAINED)),
    "YaRN": YarnScaling(**LENGTHS),
    "Llama 3": Llama3Scaling(**LENGTHS, low_freq_factor=1.0, high_freq_factor=4.0),
}
# For each rule, the config that its page shows, and how it is read.
SHOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("llama-2-7b", {}),
    "linear": ("longchat-7b-v1.5-32k", {}),
    "ntk": ("hy-mt1.5-1.8b", {}),
    "mixed-ntk": ("gte-multilingual-base", {}),
    "dynamic-ntk": ("internlm2-7b", {"seq_len": 131_072}),
    "yarn": ("qwen2.5-7b-instruct-yarn", {}),
    "longrope": ("phi-3.5-mini-instruct", {"seq_len": 131_072}),
    "llama3": ("llama-3.1-8b", {}),
    "proportional": ("gemma-4-e2b-it", {"layer_type": "full_attention"}),
}
LAYOUTS: dict[str, dict[str, Any]] = {
    'layout="half"': {"layout": "half"},
    'layout="interleaved"': {"layout": "interleaved"},
    'layout="half", blocks=2': {"layout": "half", "blocks": 2},
    'layout="half", rotary_dim=4': {"layout": "half", "rotary_dim": 4},
}
# What other pictures show, for readers who do not see them.
ALTS = {
    "rules": "Frequency divided by the unscaled frequency, for each pair and six rules, all with the factor 8",
    "phase-error": "Error of sine and cosine against the position: bfloat16, float32 and exact phases",
    "xpos": "Factor of the score of five pairs against the distance of query and key, with xPos",
}


def draw(figure: Figure, name: str, configs: Mapping[str, Any]) -> None:
    """Draw a figure: one of those below, or the wavelengths of a rule."""
    if name in DRAWN:
        DRAWN[name](figure)
    elif name == "phase-error":
        plot.phase_error(from_config(configs["llama-3.1-8b"]), context=2**20, ax=figure.add_subplot())
    else:
        _wavelengths(figure, name, configs)


def description(name: str) -> str:
    """What a figure shows, for readers who do not see it."""
    return ALTS.get(name) or f"Wavelength of each pair of {SHOWN[name][0]}, without and with the rule {name}"


def _rules(figure: Figure) -> None:
    plain = RotaryEmbedding(head_dim=128, layout="half", base=10_000.0)
    ropes = {label: plain.replace(scaling=rule) for label, rule in EIGHTFOLD.items()}
    plot.scaling(ropes, ax=figure.add_subplot())


def _wavelengths(figure: Figure, name: str, configs: Mapping[str, Any]) -> None:
    checkpoint, choice = SHOWN[name]
    rope = from_config(configs[checkpoint], **choice)
    unscaled = rope.replace(scaling=None)
    ropes = {checkpoint: rope} if rope.scaling is None else {"without the rule": unscaled, checkpoint: rope}
    plot.wavelengths(ropes, ax=figure.add_subplot())


def _xpos(figure: Figure) -> None:
    """The factor that xPos gives the score of some pairs, against the distance of query and key."""
    distances, rates = np.arange(0, 4097, 16), XPos().rates(128)
    ax = figure.subplots()
    for number, pair in enumerate((0, 16, 32, 48, 63)):
        dashes = plot.DASHES[number % len(plot.DASHES)]
        ax.plot(distances, np.exp(distances * rates[pair]), dashes, label=f"pair {pair}", linewidth=1 + number / 3)
    ax.set(xlabel="distance in tokens", ylabel="factor of the score", title="What xPos leaves of the score of a pair")
    ax.legend()


DRAWN = {"rules": _rules, "xpos": _xpos}
