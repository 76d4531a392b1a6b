"""How each figure of the site is drawn: twice, for light and for dark pages."""

from collections.abc import Callable

import matplotlib.pyplot as plt
import mkdocs_gen_files
from matplotlib.figure import Figure

from rope_xp import plot


def publish(path: str, draw: Callable[[Figure], object], size: tuple[float, float] = plot.SIZE) -> None:
    """Write the files `path`-light.svg and `path`-dark.svg of the site. `draw` gets an empty figure.

    The figures look as those of `rope_xp.plot.save`.
    """
    for theme, style in plot.STYLES.items():
        with plt.rc_context({**style, "svg.hashsalt": "rope_xp"}):
            figure = plt.figure(figsize=size, dpi=plot.DPI, layout="constrained")
            draw(figure)
            with mkdocs_gen_files.open(f"{path}-{theme}.svg", "wb") as file:
                figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
            plt.close(figure)
