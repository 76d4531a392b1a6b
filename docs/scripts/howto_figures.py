"""The pictures of the how-to guide: what `rope_xp.plot` draws, light and dark."""

import json
import tempfile
from pathlib import Path

import mkdocs_gen_files

from rope_xp import from_config, plot

CONFIGS = Path(__file__).parents[2] / "tests" / "goldens" / "configs.json"
KINDS = {
    "wavelengths": ("llama-3.1-8b", "llama-2-7b"),
    "scaling": ("llama-3.1-8b", "qwen3-8b-yarn"),
    "decay": ("llama-3.1-8b", "llama-2-7b"),
    "phase-error": ("llama-3.1-8b",),
    "scores": ("llama-3.1-8b",),
    "sections": ("qwen2-vl-7b-instruct",),
    "pair": ("llama-3.1-8b",),
}


def main():
    configs = json.loads(CONFIGS.read_text())
    with tempfile.TemporaryDirectory() as folder:
        for kind, names in KINDS.items():
            ropes = {name: from_config(configs[name]["config"]) for name in names}
            for theme in ("light", "dark"):
                drawn = Path(folder, f"{kind}-{theme}.svg")
                plot.save(drawn, kind, ropes, dark=theme == "dark")
                with mkdocs_gen_files.open(f"howto/figures/{drawn.name}", "wb") as file:
                    file.write(drawn.read_bytes())


main()
