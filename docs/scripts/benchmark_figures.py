"""Pictures of the benchmarks, light and dark: the error of phases, and the speed against copying the arrays."""

import re
from pathlib import Path

from pictures import publish

from rope_xp import RotaryEmbedding, plot

SPEED = next((Path(__file__).parents[2] / "benchmarks" / "results").glob("speed-cpu-*.md"))


def bars():
    """(label, time in float32 as a multiple of copying q and k to new memory), of the tables of PyTorch and NumPy."""
    for backend, layout, wanted in (
        ("torch", "half", ("rope_xp", "transformers Llama", "Meta's product")),
        ("torch", "interleaved", ("rope_xp", "rotary-embedding-torch", "torchtune")),
        ("numpy", "half", ("rope_xp", "rope_xp, no numba", "flax Llama formula")),
    ):
        table = SPEED.read_text().partition(f"## All on {backend}\n")[2].partition("\n## ")[0]
        table = table.partition(f"| **{layout}**")[2].partition("| **")[0]
        for name in wanted:
            (time,) = re.findall(rf"^\| {re.escape(name)} \| ([\d.]+)", table, re.MULTILINE)
            yield f"{name}\n{'PyTorch' if backend == 'torch' else 'NumPy'}, {layout}", float(time)


def speed(figure):
    """Bars of time, the shortest is the fastest."""
    ax = figure.add_subplot()
    labels, times = zip(*reversed(list(bars())))
    colours = ["C0" if label.startswith("rope_xp\n") else "0.55" for label in labels]
    shown = ax.barh(labels, times, color=colours)
    ax.bar_label(shown, [f"{time:.3g}" for time in times], padding=3)
    ax.axvline(1.0, linestyle="--", linewidth=1, color="C1")
    ax.set(xlim=(0, max(times) * 1.1), xlabel="time / time to copy q and k (dashed line), float32, 2048 tokens")
    ax.tick_params(axis="y", labelsize=8)


def phase_error(figure):
    """The picture of `rope_xp.plot`, up to the position 2^24."""
    rope = RotaryEmbedding(head_dim=128, layout="half", base=10_000.0)
    plot.phase_error(rope, context=2**24, ax=figure.add_subplot())


publish("benchmarks/speed", speed, (6, 5.4))
publish("benchmarks/phase-error", phase_error, (6, 4.2))
