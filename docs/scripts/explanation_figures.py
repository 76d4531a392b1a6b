"""The figures of the pages on phases and scaling rules."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from rope_xp import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    MixedNTKScaling,
    NTKScaling,
    RotaryEmbedding,
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


def _rules(figure: Figure, configs: Mapping[str, Any]) -> None:
    plain = RotaryEmbedding(head_dim=128, layout="half", base=10_000.0)
    ropes = {label: plain.replace(scaling=rule) for label, rule in EIGHTFOLD.items()}
    plot.scaling(ropes, ax=figure.add_subplot())


def _phase_error(figure: Figure, configs: Mapping[str, Any]) -> None:
    plot.phase_error(from_config(configs["llama-3.1-8b"]), context=2**20, ax=figure.add_subplot())


# How each figure is drawn, and what it shows for readers who do not see it.
FIGURES = {
    "rules": (_rules, "Frequency divided by the unscaled frequency, for each pair and six rules of the factor 8"),
    "phase-error": (_phase_error, "Error of sine and cosine against the position: bfloat16, float32 and exact phases"),
}
