"""The figures of the tutorial, light and dark. `mkdocs build` runs this file."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Arc
from pictures import publish

from rope_xp import RotaryEmbedding, plot

LLAMA_2 = RotaryEmbedding(head_dim=128, layout="half", base=10_000.0)
FREQUENCIES = np.asarray(LLAMA_2.inv_freq)


def relative(ax: Axes) -> None:
    """A query and a key three positions apart, at two places: the angle between them is the same."""
    theta, query, key = 0.35, 0.9, 0.5  # radians
    for centre, (m, n) in ((0.0, (4, 1)), (3.0, (12, 9))):
        ax.add_patch(plt.Circle((centre, 0), 1, fill=False, color=plt.rcParams["axes.edgecolor"], alpha=0.3))
        angles = query + m * theta, key + n * theta
        for name, angle, position, color in (("q", angles[0], m, "C0"), ("k", angles[1], n, "C1")):
            tip = np.cos(angle), np.sin(angle)
            arrow = {"arrowstyle": "-|>", "color": color, "linewidth": 2}
            ax.annotate("", (centre + tip[0], tip[1]), (centre, 0), arrowprops=arrow)
            label = f"{name} at {position}"
            ax.annotate(label, (centre + 1.22 * tip[0], 1.15 * tip[1]), ha="center", va="center", color=color)
        start, stop = np.degrees(sorted(angles))
        ax.add_patch(Arc((centre, 0), 0.7, 0.7, theta1=start, theta2=stop, color=plt.rcParams["text.color"]))
        middle = np.mean(angles)
        inside = (centre + 0.55 * np.cos(middle), 0.55 * np.sin(middle))
        ax.annotate(f"{stop - start:.0f}°", inside, ha="center", va="center")
    ax.set(xlim=(-1.6, 4.6), ylim=(-1.4, 1.4), aspect="equal", title="Both move: the angle between them stays")
    ax.axis("off")


def pair(ax: Axes) -> None:
    plot.pair(RotaryEmbedding(head_dim=2, layout="half", inv_freq=(0.5,)), ax=ax)


def wavelengths(ax: Axes) -> None:
    ropes = {f"base {base:,.0f}": LLAMA_2.replace(base=base) for base in (10_000.0, 500_000.0)}
    plot.wavelengths(ropes, context=4096, ax=ax)


def decay(ax: Axes) -> None:
    """The two curves of far tokens: the mean of the partial sums of the paper's bound, and the mean score."""
    plot.decay({"mean score of equal q and k": LLAMA_2}, distance=256, ax=ax)
    turns = np.exp(1j * np.outer(np.arange(257), FREQUENCIES))
    sums = np.abs(np.cumsum(turns, axis=1)).mean(axis=1)
    ax.plot(sums / sums[0], color="C1", linestyle="--", label="mean of |S|, as a share of that at distance 0")
    ax.title.set_text("What falls with the distance")  # `ax.set` would centre it at the left end
    ax.set(ylabel="", ylim=(0, 1.05))
    ax.legend(fontsize=8)


def unseen(ax: Axes) -> None:
    """A score function that is fitted at the trained distances, and its values beyond them."""
    distance = np.arange(4096)
    angle = np.outer(distance, FREQUENCIES)
    basis = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
    target = np.cos(12 * np.pi * distance[:2048] / 2048)
    score = basis @ np.linalg.lstsq(basis[:2048], target, rcond=3e-5)[0]
    ax.plot(distance[:2048], score[:2048], color="C0", label="trained distances")
    ax.plot(distance[2048:], score[2048:], color="C1", linestyle="--", label="beyond")
    ax.set(title="A fitted score, and what it is at unseen distances", xlabel="distance in tokens", ylabel="score")
    ax.legend(fontsize=8)


for draw, size in (
    (relative, (6.0, 3.0)),
    (pair, (4.0, 4.0)),
    (wavelengths, plot.SIZE),
    (decay, plot.SIZE),
    (unseen, plot.SIZE),
):
    publish(f"tutorial/figures/{draw.__name__}", lambda figure, draw=draw: draw(figure.add_subplot()), size)
