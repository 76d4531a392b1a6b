"""What a reader sees of pictures, as data. `python tests/support/pictures.py` writes it to `goldens/pictures.json`.

A person looks at the pictures before it is written anew.
"""

import json
from pathlib import Path

import matplotlib
import numpy as np
from configs import CONFIGS, value_of
from matplotlib.colors import to_hex

from rope_xp import from_config, plot

GOLDEN = Path(__file__).parents[1] / "goldens/pictures.json"
RECORDED = json.loads(GOLDEN.read_text())
# The kind of each picture, its embeddings, which are written as Python does or read from a config, and lengths.
PICTURES = RECORDED["pictures"]


def made(rope):
    """An embedding, or several with their labels."""
    if isinstance(rope, str):
        return value_of(rope)
    if "config" in rope:
        return from_config(CONFIGS[rope["config"]] | rope.get("changes", {}), **rope.get("options", {}))
    return {label: made(each) for label, each in rope.items()}


# Of artists: what their methods `get_...` return. Of ticks, which matplotlib places, only the first.
SEEN = (
    *("text", "position", "ha", "va", "fontsize", "fontweight", "color", "alpha", "visible", "zorder", "linestyle"),
    *("linewidth", "marker", "markersize", "fillstyle", "edgecolor", "facecolor", "fill", "radius", "center", "clim"),
    "extent",
)
SEEN_OF_TICKS = ("fontsize", "color", "linewidth")


def seen(figure):
    """The size of a figure, and a line for each artist."""
    found = [f"figure {plain([figure.get_size_inches(), figure.dpi, figure.get_facecolor()])}"]
    for ax in figure.axes:
        found.append(f"axes {plain([ax.get_xlim(), ax.get_ylim(), ax.get_xscale(), ax.get_yscale(), ax.get_aspect()])}")
        found.append(f"behind {plain([ax.get_axisbelow(), ax.titleOffsetTrans.transform((0, 0)), ax.get_facecolor()])}")
        found.append(f"spines {plain([(each.get_visible(), to_hex(each.get_edgecolor())) for each in spines(ax)])}")
        found += [of_artist(each[0], SEEN_OF_TICKS) for axis in (ax.xaxis, ax.yaxis) for each in ticks(axis) if each]
        artists = (ax.title, ax.xaxis.label, ax.yaxis.label, *ax.lines, *ax.texts, *ax.patches, *ax.images)
        found += [of_artist(each, SEEN) for each in artists]
        if legend := ax.get_legend():
            found.append(f"legend {plain([legend.get_frame_on(), legend.handlelength])}")
            found += [of_artist(each, SEEN) for each in legend.get_texts()]
    return found


def spines(ax):
    return ax.spines.values()


def ticks(axis):
    lines = [*axis.get_ticklines(), *axis.get_ticklines(minor=True)]
    assert {each.get_markersize() for each in lines} <= {0}
    return [*axis.get_gridlines()], [*axis.get_ticklabels()]


def of_artist(artist, names):
    """The kind of an artist, what is seen of it, and some of the numbers that it draws."""
    values = {name: getattr(artist, f"get_{name}")() for name in names if hasattr(artist, f"get_{name}")}
    values |= {name: to_hex(each) for name, each in values.items() if "color" in name}
    if "marker" in values:
        data = np.asarray(np.broadcast_arrays(*artist.get_data()))
        values |= {"count": data.shape[1], "data": data[:, [0, data.shape[1] // 4, data.shape[1] // 2, -1]]}
    if "clim" in values and hasattr(artist, "origin"):
        values |= {"shape": artist.get_array().shape, "data": artist.get_array()[1:3, 1:3], "origin": artist.origin}
        values |= {"colours": [to_hex(each) for each in artist.cmap([0.0, 0.2, 0.5, 0.8, 1.0])]}
    values |= {name: getattr(artist, name) for name in ("xy", "arrowprops") if hasattr(artist, name)}
    return f"{type(artist).__name__} {', '.join(f'{k}={plain(v)}' for k, v in values.items() if v is not None)}"


def plain(value):
    """A value as text, with few digits."""
    if isinstance(value, (list, tuple, np.ndarray)):
        return f"({' '.join(map(plain, value))})"
    if isinstance(value, dict):
        return plain([f"{name} {plain(each)}" for name, each in value.items()])
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    return f"{0.0 + round(value, 12):.5g}" if is_number else str(value)


def drawn(name):
    kind, ropes, lengths = PICTURES[name]
    return seen(plot.PICTURES[kind](made(ropes), **lengths).figure)


def styles():
    """What `STYLES` sets, which pictures of others may take."""
    return [f"{name}: {key} {plain(value)}" for name, style in plot.STYLES.items() for key, value in style.items()]


if __name__ == "__main__":
    matplotlib.use("agg")
    found = {"pictures": PICTURES, "styles": styles()} | {name: drawn(name) for name in PICTURES}
    GOLDEN.write_text(json.dumps(found, indent=0) + "\n")
