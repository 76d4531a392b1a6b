"""Pictures of rotary embeddings. They need the extra `rope-xp[plot]`, which installs matplotlib.

Every function takes one embedding, or a mapping from labels to embeddings, and draws on a matplotlib `ax`. Lines have
colours of their own, for light and for dark pages, and also differ in their dashes and widths, so that they can be told
apart in grey. A new figure has the look of `STYLES`; an `ax` that is given keeps its own.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import signature
from math import pi
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rope_xp.arrays import checks
from rope_xp.embedding import RotaryEmbedding
from rope_xp.errors import missing_package, public, wrong_type, wrong_value
from rope_xp.explanation import is_windowed
from rope_xp.frequencies import LongRopeScaling
from rope_xp.identification.behaviour import frequencies_of
from rope_xp.identification.precision import COARSE_BITS, rounded_to
from rope_xp.provenance import with_provenance
from rope_xp.spectrum import is_scaled, lengths_of
from rope_xp.types import Values

try:
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap, rgb_to_hsv, to_hex, to_rgb
    from matplotlib.patches import Circle
    from matplotlib.rcsetup import cycler
except ImportError as error:
    raise missing_package(__name__, "matplotlib", "plot", error) from None

__all__ = ["decay", "pair", "phase_error", "save", "scaling", "scores", "sections", "wavelengths"]

Ropes = RotaryEmbedding | Mapping[str, RotaryEmbedding]

Floats = NDArray[np.float64]

DASHES = ("-", "--", ":", "-.")
# 600 pixels wide on the screen.
SIZE, DPI = (6.0, 3.7), 100
MAX_LINES = 8  # no more can be told apart


class _Look(NamedTuple):
    """The colours of a picture: of the page, of texts, of what stands behind, and of lines."""

    page: str
    ink: str
    grid: str
    lines: tuple[str, ...]


LOOKS = {
    "light": _Look(
        "#ffffff",
        "#252b3a",
        "#e3e6ee",
        ("#3f51b5", "#c4501b", "#00796b", "#a8246e", "#8a6100", "#1976b8", "#7443b5", "#5f6672"),
    ),
    "dark": _Look(
        "#1e2129",
        "#d5d9e3",
        "#3a3f4d",
        ("#93a5ff", "#ffa06b", "#55cfbd", "#f48ac2", "#ffcf5c", "#6fc3f7", "#c6a2ff", "#b4bac8"),
    ),
}


def _style(look: _Look) -> Values:
    return {
        "figure.facecolor": look.page,
        "axes.facecolor": "none",
        "axes.edgecolor": look.ink,
        "axes.labelcolor": look.ink,
        "axes.prop_cycle": cycler(color=look.lines),
        "axes.spines.left": False,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlecolor": look.ink,
        "axes.titlepad": 10.0,
        "axes.titlesize": 11.0,
        "axes.titleweight": "bold",
        "axes.axisbelow": True,
        "axes.grid": True,
        "grid.color": look.grid,
        "grid.linewidth": 0.7,
        "font.size": 9.0,
        "legend.fontsize": 8.5,
        "legend.frameon": False,
        "legend.labelcolor": look.ink,
        "text.color": look.ink,
        **{f"{axis}tick.{kind}.size": 0.0 for axis in "xy" for kind in ("major", "minor")},
        **{f"{axis}tick.color": look.ink for axis in "xy"},
    }


# Parameters for `matplotlib.rc_context`, by the kind of page.
STYLES = {name: _style(look) for name, look in LOOKS.items()}
# From -1 to 1. In grey, too, it becomes lighter.
SCORES = LinearSegmentedColormap.from_list("rope_xp", ["#141a3c", "#3f51b5", "#ee9f5b", "#fff4dc"])


@public("wavelengths")
def wavelengths(ropes: Ropes, *, context: int | None = None, ax: Axes | None = None) -> Axes:
    """Draw the wavelength of each pair: the number of tokens in which the pair turns once.

    Parameters
    ----------
    ropes : RotaryEmbedding, or mapping of str to RotaryEmbedding
        The embeddings to draw, by their labels. Both lists of LongRoPE are drawn, unless the embedding is for a length.
    context : int, optional
        A length in tokens to mark. The trained length is marked if the embeddings state one; of scaled embeddings, it
        is the length before scaling, and the length with scaling is marked, too; of layers with windows alone, the
        window. A length of only one embedding has the colour of its line.
    ax : matplotlib.axes.Axes, optional
        Where to draw. The default is a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    TypeError
        If `ropes` is neither an embedding nor a mapping of embeddings.
    ValueError
        If there are no embeddings or more than 8, a label is empty, or frequencies are learned.

    References
    ----------
    Peng et al., YaRN (2023), arXiv:2309.00071, section 2.3, defines wavelengths.

    Examples
    --------
    >>> rope = RotaryEmbedding(head_dim=128, layout="half", base=10_000.0)
    >>> wavelengths(rope, context=4096).get_ylabel()
    'wavelength in tokens'
    """
    given = _checked(ropes)
    ax = _axes(ax)
    colours: dict[str, str] = {}
    for label, rope in given.items():
        for axis, row in enumerate(_frequencies(rope)):
            pair = np.flatnonzero(row)
            name = label if rope.axes == 1 else f"{label} {rope._provenance.axis_name(axis)}".strip()
            line = _line(ax, name)
            ax.plot(pair, 2 * pi / np.abs(row[pair]), **line)
            colours[label] = line["color"] if rope.axes == 1 else _ink(ax)
    ax.set_yscale("log")
    side, last = "left", 0
    for length, (names, owners) in sorted(_lengths(given, context).items()):
        colour = colours[owners[0]] if len(owners) == 1 else _ink(ax)
        ax.axhline(length, color=colour, linewidth=0.9, linestyle=DASHES[1 if "context" in names else 2], zorder=1)
        side = "right" if side == "left" and length < 3 * last else "left"  # texts of close lengths do not overlap
        place = (0.01 if side == "left" else 0.99, length)
        text = f"{' and '.join(names)}, {length:,}"
        ax.annotate(text, place, xycoords=("axes fraction", "data"), va="bottom", ha=side, size=8, color=colour)
        last = length
    return _finish(ax, "How many tokens each pair needs for one turn", "pair", "wavelength in tokens")


@public("scaling")
def scaling(ropes: Ropes, *, ax: Axes | None = None) -> Axes:
    """Draw what scaling does to each pair: its frequency, as a share of that without scaling.

    Parameters
    ----------
    ropes : RotaryEmbedding, or mapping of str to RotaryEmbedding
        Embeddings with a base.
    ax : matplotlib.axes.Axes, optional
        Where to draw. The default is a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    TypeError, ValueError
        As `wavelengths`. Also if an embedding has no base.

    Examples
    --------
    >>> from rope_xp import YarnScaling
    >>> yarn = YarnScaling(factor=4.0, original_max_position_embeddings=32_768)
    >>> rope = RotaryEmbedding(head_dim=128, layout="half", base=1e6, scaling=yarn)
    >>> [round(float(share), 2) for share in scaling(rope).lines[0].get_ydata()[[0, 30, 63]]]
    [1.0, 0.69, 0.25]
    """
    given = _checked(ropes)
    ax = _axes(ax)
    for label, rope in given.items():
        if rope.base is None:
            raise wrong_value(f"embeddings must have a base; got inv_freq alone{f' for {label}' if label else ''}")
        after, before = (np.abs(_frequencies(each)).max(0) for each in (rope, rope.replace(scaling=None)))
        ax.plot(np.arange(rope.pairs), after / before, **_line(ax, label))
    ax.set_ylim(0, None)
    return _finish(ax, "What scaling leaves of each frequency", "pair", "frequency / unscaled frequency")


@public("decay")
def decay(ropes: Ropes, *, distance: int = 4096, ax: Axes | None = None) -> Axes:
    """Draw the mean score of equal queries and keys against their distance.

    Each pair has the same weight: the score is the mean of ``m**2 * cos(distance * frequency)`` over pairs, for one
    position axis that all pairs follow. It is 1 for distance 0 if the attention factor m is 1. Points after the
    first are means over ranges of distances.

    Parameters
    ----------
    ropes : RotaryEmbedding, or mapping of str to RotaryEmbedding
        The embeddings to draw, by their labels.
    distance : int
        The largest distance in tokens.
    ax : matplotlib.axes.Axes, optional
        Where to draw. The default is a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    TypeError, ValueError
        As `wavelengths`. Also if `distance` is greater than 2**24.

    References
    ----------
    Su et al., RoFormer (2021), arXiv:2104.09864, section 3.4.3, long-term decay.

    Examples
    --------
    >>> line = decay(RotaryEmbedding(head_dim=128, layout="half", base=10_000.0)).lines[0]
    >>> float(line.get_ydata()[0])
    1.0
    """
    given = _checked(ropes)
    ax = _axes(ax)
    width = max(1, _at_most(24, "distance", distance) // 128)
    distances = np.arange(1, distance - distance % width + 1).reshape(-1, width)
    for label, rope in given.items():
        m, frequencies = rope._scale.attention_factor, _frequencies(rope).sum(0)
        means = [np.cos(np.outer(each, frequencies)).mean() for each in [np.zeros(1), *distances]]
        ax.plot([0, *distances.mean(1)], m**2 * np.asarray(means), **_line(ax, label))
    return _finish(ax, "Mean score of equal queries and keys", "distance in tokens", "mean score")


@public("phase_error")
def phase_error(ropes: Ropes, *, context: int = 2**20, ax: Axes | None = None) -> Axes:
    """Draw the error of the largest sine or cosine against the position: exact, float32 and bfloat16 phases.

    The error at a position is the largest so far, among 2,000 positions or fewer.

    Exact phases are those of this library. With float32 phases, position times frequency is a float32 product, as in
    most code. With bfloat16 phases, the position is rounded to bfloat16 first.

    Parameters
    ----------
    ropes : RotaryEmbedding, or mapping of str to RotaryEmbedding
        One embedding.
    context : int
        The largest position.
    ax : matplotlib.axes.Axes, optional
        Where to draw. The default is a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    TypeError, ValueError
        As `wavelengths`. Also if there are several embeddings, or `context` is greater than 2**24.

    Examples
    --------
    >>> ax = phase_error(RotaryEmbedding(head_dim=64, layout="half", base=10_000.0))
    >>> [line.get_label() for line in ax.lines]
    ['bfloat16', 'float32', 'exact']
    """
    rope = _only(ropes)
    ax = _axes(ax)
    frequencies = _frequencies(rope).sum(0)
    positions = np.unique(np.geomspace(1, _at_most(24, "context", context, 2), 2000).astype(int))
    own = RotaryEmbedding(head_dim=2 * rope.pairs, layout="half", inv_freq=frequencies.tolist())
    tables = {
        "bfloat16": _sincos(_float32_angles(rounded_to(COARSE_BITS["bfloat16"], positions), frequencies)),
        "float32": _sincos(_float32_angles(positions, frequencies)),
        "exact": np.stack(own.sincos(positions, like=np.zeros(1, np.float32))),
    }
    truth = _sincos(np.multiply.outer(positions, frequencies))  # in float64, within 2e-9
    for label, table in tables.items():
        ax.plot(positions, np.maximum.accumulate(np.abs(table - truth).max((0, 2))), **_line(ax, label))
    ax.set(xscale="log", yscale="log")
    return _finish(ax, "Largest error of sin and cos up to a position", "position", "error")


@public("scores")
def scores(ropes: Ropes, *, distance: int = 256, ax: Axes | None = None) -> Axes:
    """Draw the score of each pair against the distance, as a map: the lighter, the higher.

    The score of pair j for equal queries and keys is ``m**2 * cos(distance * frequency_j)``; m is the attention factor.

    Parameters
    ----------
    ropes : RotaryEmbedding, or mapping of str to RotaryEmbedding
        One embedding.
    distance : int
        The largest distance in tokens.
    ax : matplotlib.axes.Axes, optional
        Where to draw. The default is a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    TypeError, ValueError
        As `wavelengths`. Also if there are several embeddings, or `distance` is greater than 2**18.

    Examples
    --------
    >>> scores(RotaryEmbedding(head_dim=64, layout="half", base=10_000.0)).images[0].get_array().shape
    (32, 257)
    """
    rope = _only(ropes)
    ax = _axes(ax)
    angles = np.outer(_frequencies(rope).sum(0), np.arange(_at_most(18, "distance", distance) + 1))
    most = rope._scale.attention_factor**2
    image = ax.imshow(most * np.cos(angles), cmap=SCORES, vmin=-most, vmax=most, aspect="auto", origin="lower")
    bar = ax.figure.colorbar(image, ax=ax, label="score of the pair")
    bar.ax.tick_params(length=0, labelcolor=_ink(ax), labelsize=9)
    bar.ax.yaxis.label.set(color=_ink(ax), size=9)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    ax.grid(visible=False)
    return _finish(ax, "Score of each pair by distance", "distance in tokens", "pair")


@public("sections")
def sections(ropes: Ropes, *, ax: Axes | None = None) -> Axes:
    """Draw which position axis each pair follows, and its wavelength. Axes have the names of the model's family.

    Parameters
    ----------
    ropes : RotaryEmbedding, or mapping of str to RotaryEmbedding
        One embedding, with one or more position axes.
    ax : matplotlib.axes.Axes, optional
        Where to draw. The default is a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    TypeError, ValueError
        As `wavelengths`. Also if there are several embeddings.

    References
    ----------
    Wang et al., Qwen2-VL (2024), arXiv:2409.12191, section 2.1, multimodal RoPE.

    Examples
    --------
    >>> from rope_xp import Sections
    >>> rope = RotaryEmbedding(head_dim=128, layout="half", base=1e6, sections=Sections((16, 24, 24), order="chunked"))
    >>> [len(line.get_xdata()) for line in sections(rope).lines]
    [16, 24, 24]
    """
    rope = _only(ropes)
    ax = _axes(ax)
    for axis, row in enumerate(_frequencies(rope)):
        (pair,) = np.nonzero(row)
        look = {"color": _line(ax)["color"], "marker": "os^Dv*"[axis % 6], "linestyle": "", "markersize": 4.5}
        ax.plot(pair, 2 * pi / np.abs(row[pair]), label=rope._provenance.axis_name(axis), fillstyle="none", **look)
    ax.set_yscale("log")
    return _finish(ax, "Which position axis each pair follows", "pair", "wavelength in tokens or patches")


@public("pair")
def pair(ropes: Ropes, *, index: int = 0, count: int = 8, ax: Axes | None = None) -> Axes:
    """Draw how one pair of channels turns with the position, without the attention factor.

    Parameters
    ----------
    ropes : RotaryEmbedding, or mapping of str to RotaryEmbedding
        One embedding.
    index : int
        The pair.
    count : int
        The number of positions: 0, 1, 2, ...
    ax : matplotlib.axes.Axes, optional
        Where to draw. The default is a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    TypeError, ValueError
        As `wavelengths`. Also if there are several embeddings, or the pair does not exist.

    References
    ----------
    Su et al., RoFormer (2021), arXiv:2104.09864, figure 1.

    Examples
    --------
    >>> pair(RotaryEmbedding(head_dim=64, layout="half", base=10_000.0), index=1).get_aspect()
    1.0
    """
    rope = _only(ropes)
    if checks.count("index", index) >= rope.pairs:
        raise wrong_value(f"index must be below the number of pairs, {rope.pairs}; got {index}")
    ax = _axes(ax)
    frequency = float(_frequencies(rope).sum(0)[index])
    colour = _line(ax)["color"]
    for position in range(checks.count("count", count)):
        tip = np.cos(position * frequency), np.sin(position * frequency)
        arrow = {"arrowstyle": "-|>", "color": colour, "alpha": 0.4 + 0.6 * (position == 0), "shrinkA": 0, "shrinkB": 0}
        ax.annotate("", tip, (0, 0), arrowprops=arrow, size=9)
        where = (1.12 * tip[0], 1.12 * tip[1])
        ax.annotate(str(position), where, ha="center", va="center", size=9, color=_ink(ax))
    ax.add_patch(Circle((0, 0), 1, fill=False, color=_ink(ax), alpha=0.35))
    ax.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal")
    title = f"Pair {index} turns by {frequency:.3g} rad per position"
    return _finish(ax, title, "first channel of the pair", "second channel")


_DRAWN = (wavelengths, scaling, decay, phase_error, scores, sections, pair)
PICTURES: dict[str, Callable[..., Axes]] = {draw.__name__.replace("_", "-"): draw for draw in _DRAWN}
# Pictures of one embedding. `save` draws one below the other.
OF_ONE = ("phase-error", "scores", "sections", "pair")


@public("save")
def save(
    output: str | os.PathLike[str], kind: str, ropes: Ropes, *, context: int | None = None, dark: bool = False
) -> None:
    """Draw a picture into a file of 600 pixels width. Its background is transparent.

    If the picture is of one embedding, several embeddings are drawn one below the other.

    Parameters
    ----------
    output : path
        A .png or .svg file.
    kind : str
        "wavelengths", "scaling", "decay", "phase-error", "scores", "sections" or "pair".
    ropes : RotaryEmbedding, or mapping of str to RotaryEmbedding
        The embeddings to draw, by their labels.
    context : int, optional
        The context of `wavelengths` and of `phase_error`, or the distance of `decay` and of `scores`.
    dark : bool
        Whether the picture is for a dark background.

    Raises
    ------
    TypeError, ValueError
        As the function for the picture. Also if `kind` or the ending of the file is unknown.

    Examples
    --------
    >>> rope = RotaryEmbedding(head_dim=64, layout="half", base=10_000.0)
    >>> save("wavelengths.svg", "wavelengths", rope, context=4096)  # doctest: +SKIP
    """
    if kind not in PICTURES:
        raise wrong_value(f"kind must be one of {', '.join(PICTURES)}; got {kind!r}")
    path = os.fspath(output)
    if not path.endswith((".png", ".svg")):
        raise wrong_value(f"output must end in .png or .svg; got {path!r}")
    draw = PICTURES[kind]
    panels = [*_checked(ropes).items()] if kind in OF_ONE else [("", ropes)]
    taken = {name: context for name in ("context", "distance") if context and name in signature(draw).parameters}
    style: Values = {**STYLES["dark" if dark else "light"], "svg.hashsalt": "rope_xp"}
    with plt.rc_context(style):  # pyright: ignore[reportArgumentType]
        size = (SIZE[0], SIZE[1] * len(panels))
        figure, grid = plt.subplots(len(panels), figsize=size, dpi=DPI, layout="constrained", squeeze=False)
        try:
            for ax, (label, panel) in zip(grid[:, 0], panels):
                draw(panel, ax=ax, **taken)
                if len(panels) > 1:
                    ax.title.set_text(f"{_literal(label)}: {ax.get_title()}")
            figure.savefig(path, transparent=True, metadata={"Date": None} if path.endswith(".svg") else None)
        finally:
            plt.close(figure)


def _checked(ropes: object) -> dict[str, RotaryEmbedding]:
    if isinstance(ropes, RotaryEmbedding):
        return _of_both_lists("", ropes)
    if not isinstance(ropes, Mapping) or not all(isinstance(rope, RotaryEmbedding) for rope in ropes.values()):
        raise wrong_type(f"ropes must be a RotaryEmbedding or a mapping of labels to them; got {type(ropes).__name__}")
    if not all(str(label).strip() for label in ropes):
        raise wrong_value(f"labels of ropes must not be empty; got {[*ropes]}")
    found = {name: each for label, rope in ropes.items() for name, each in _of_both_lists(str(label), rope).items()}
    if not 1 <= len(found) <= MAX_LINES:
        raise wrong_value(f"ropes must be 1 to {MAX_LINES} embeddings; got {len(found)}")
    return found


def _of_both_lists(label: str, rope: RotaryEmbedding) -> dict[str, RotaryEmbedding]:
    """The embedding for each list of LongRoPE by labels, or the embedding itself if a length chose the list."""
    rule = rope.scaling
    if not isinstance(rule, LongRopeScaling) or rule.seq_len is not None or rule.short_factor == rule.long_factor:
        return {label: rope}
    limit = rule.original_max_position_embeddings
    lengths = {f"up to {limit:,} tokens": limit, f"beyond {limit:,} tokens": limit + 1}
    return {
        ", ".join(filter(None, (label, name))): with_provenance(
            rope.replace(scaling=replace(rule, seq_len=length)), rope._provenance
        )
        for name, length in lengths.items()
    }


def _only(ropes: object) -> RotaryEmbedding:
    given = [ropes] if isinstance(ropes, RotaryEmbedding) else [*_checked(ropes).values()]
    if len(given) > 1:
        raise wrong_value(f"ropes must be one embedding; got {len(given)}")
    return given[0]


def _at_most(power: int, name: str, value: int, least: int = 0) -> int:
    if checks.count(name, value, least) > 2**power:
        raise wrong_value(f"{name} must be at most 2**{power}; got {value}")
    return value


def _frequencies(rope: RotaryEmbedding) -> Floats:
    if not isinstance(rope.inv_freq, tuple) or rope.heads is not None:
        kind = "an array" if rope.heads is None else f"those of {rope.heads} heads"
        raise wrong_value(f"frequencies must be floats that all heads share; got {kind}")
    return frequencies_of(rope)[:, 0]


def _lengths(ropes: Mapping[str, RotaryEmbedding], context: int | None) -> dict[int, tuple[list[str], list[str]]]:
    """The lengths to mark: what they are, and the labels of the embeddings that have them."""
    found: dict[int, tuple[list[str], list[str]]] = {}
    for label, rope in sorted(ropes.items(), key=lambda each: is_scaled(each[1])):  # those without a rule first
        trained, extended = lengths_of(rope)
        names = {"trained length": trained}
        if is_scaled(rope):
            with_scaling = "stated length" if trained is None else "length with scaling"
            names = {"trained length before scaling": trained, with_scaling: extended}
        if is_windowed(rope, trained):
            names = {"window": rope._provenance.sliding_window}
        for name, length in names.items():
            if length:
                of_length, owners = found.setdefault(length, ([], []))
                # A trained length before scaling is that of a value without a rule, too.
                of_length += [] if any(map(name.startswith, of_length)) else [name]
                owners += [] if label in owners else [label]
    if context:
        found.setdefault(context, ([], []))[0].append("context")
    return found


def _float32_angles(positions: Floats, frequencies: Floats) -> Floats:
    return np.multiply.outer(positions.astype(np.float32), frequencies.astype(np.float32)).astype(np.float64)


def _sincos(angles: Floats) -> Floats:
    return np.stack([np.sin(angles), np.cos(angles)])


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    look = LOOKS["dark" if _is_light(plt.rcParams["text.color"]) else "light"]
    with plt.rc_context(_style(look)):  # pyright: ignore[reportArgumentType]
        ax = plt.subplots(figsize=SIZE, dpi=DPI, layout="constrained")[1]
    # Ticks are made when the picture is shown, with the style of that time.
    ax.tick_params(which="both", length=0, labelcolor=look.ink, labelsize=9)
    ax.grid(color=look.grid, linewidth=0.7)
    return ax


def _is_light(colour: str) -> bool:
    return float(rgb_to_hsv(to_rgb(colour))[2]) > 0.6


def _ink(ax: Axes) -> str:
    return to_hex(ax.xaxis.label.get_color())


def _literal(label: str) -> str:
    """A label that matplotlib shows as it is: one that begins with "_" is hidden, and text between "$" is a formula."""
    return re.sub("^_", " _", label).replace("$", r"\$")


def _line(ax: Axes, label: str = "") -> Values:
    number = len(ax.lines)
    colours = LOOKS["dark" if _is_light(_ink(ax)) else "light"].lines
    colour = colours[number % len(colours)]
    width = 1.8 + 0.8 * (number // 4 % 2)
    return {"color": colour, "linestyle": DASHES[number % 4], "linewidth": width, "label": _literal(label)}


def _finish(ax: Axes, title: str, x: str, y: str) -> Axes:
    ax.set(xlabel=x, ylabel=y)
    # `ax.set_title` would take the style of this time, and not of that when `ax` was made.
    ax.title.set(text=title, x=0.0, ha="left")
    _, labels = ax.get_legend_handles_labels()
    if labels:
        ax.legend(fontsize=8.5, frameon=False, labelcolor=_ink(ax), handlelength=2.6)
    return ax
