"""The pictures of the reference: what `rope_xp.plot` draws, light and dark."""

import json
from pathlib import Path

from pictures import publish

from rope_xp import from_config, plot

CONFIGS = json.loads((Path(__file__).parents[2] / "tests/goldens/configs.json").read_text())
KINDS = {
    "wavelengths": ("llama-3.1-8b", "llama-2-7b"),
    "scaling": ("llama-3.1-8b", "qwen3-8b-yarn"),
    "decay": ("llama-3.1-8b", "llama-2-7b"),
    "phase-error": ("llama-3.1-8b",),
    "scores": ("llama-3.1-8b",),
    "sections": ("qwen2-vl-7b-instruct",),
    "pair": ("llama-3.1-8b",),
}

for kind, names in KINDS.items():
    ropes = {name: from_config(CONFIGS[name]["config"]) for name in names}
    draw = plot.PICTURES[kind]
    publish(f"reference/figures/{kind}", lambda figure, draw=draw, ropes=ropes: draw(ropes, ax=figure.add_subplot()))
