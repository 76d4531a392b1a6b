"""Draw the README's picture, in light and in dark: the wavelengths of Llama 3.1 8B, with and without its rule.

Run: `python docs/scripts/readme_picture.py`. The result is committed, because GitHub and PyPI show it.
"""

import json
from pathlib import Path

from rope_xp import from_config, plot

ROOT = Path(__file__).parents[2]
CONFIGS = json.loads((ROOT / "tests/goldens/configs.json").read_text())


def main():
    rope = from_config(CONFIGS["llama-3.1-8b"]["config"])
    ropes = {"Llama 3.1 8B": rope, "without its scaling rule": rope.replace(scaling=None)}
    for mode in ("light", "dark"):
        output = ROOT / f"docs/assets/frequencies-{mode}.svg"
        plot.save(output, "wavelengths", ropes, context=131_072, dark=mode == "dark")


if __name__ == "__main__":
    main()
