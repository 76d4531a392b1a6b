"""Write truths.json: sines and cosines at hard positions, from exact frequencies.

Run: `python tests/goldens/make_truths.py`.
"""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

import oracle

BASES = [(100.0, 14), (10_000.0, 128), (500_000.0, 36), (1e6, 80), (1e8, 10)]
POSITIONS = [0, 1, -1, 255, 257, 2049, 4095, -65537, 131_071, 10**6, 2**24 + 1, -(2**30) - 7, 2**31 - 1, -(2**31)]

if __name__ == "__main__":
    truths = []
    for base, dim in BASES:
        sin, cos = oracle.sin_cos(POSITIONS, oracle.geometric(base, dim))
        truths.append({"base": base, "dim": dim, "positions": POSITIONS, "sin": sin.tolist(), "cos": cos.tolist()})
    Path(__file__).with_name("truths.json").write_text(json.dumps(truths, separators=(",", ":")) + "\n")
