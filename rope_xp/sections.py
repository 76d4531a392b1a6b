"""Several position axes: which axis, such as time, height or width, each pair of channels follows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rope_xp.arrays import checks
from rope_xp.errors import public, wrong_type, wrong_value

ORDERS = {
    "chunked": "one axis after the other, one progression over all pairs: Qwen2-VL, XD-RoPE",
    "interleaved": "pair j follows axis j modulo axes, and axis 0 once that axis is full: Qwen3-VL",
    "round_robin": "axes alternate, and full axes are skipped: GLM in SGLang",
    "balanced": "the next pair follows the axis with the lowest filled fraction, the last pair follows axis 0: "
    "openPangu-VL",
    "spatial_first": "the first two sections alternate, then the third: Ernie-4.5-VL, (height, width, time)",
    "even_odd": "one section has the even frequencies, the next the odd ones, the last the rest: Pixtral, "
    "Cohere Compass",
    "axial": "one axis after the other, each with its own progression: vision towers, Flux",
    "axial_interleaved": "axes alternate, each with its own progression: Kimi",
}


class Column(NamedTuple):
    """One pair of channels: its frequency is number `index` of the progression for `width` channels."""

    axis: int
    index: int
    width: int


@dataclass(frozen=True)
class Sections:
    """The position axis, such as time, height or width, that each pair of channels follows.

    Parameters
    ----------
    sizes : list or tuple of int
        The number of pairs of each section, as in `mrope_section` of a config.
    order : str
        How pairs are assigned to sections, with examples of models:

        - ``"chunked"``: one section after the other (Qwen2-VL, XD-RoPE).
        - ``"interleaved"``: pair j follows section ``j % sections``, or section 0 if that one has all its pairs
          (Qwen3-VL).
        - ``"round_robin"``: sections alternate, and full sections are skipped (GLM in SGLang).
        - ``"balanced"``: the next pair follows the section with the lowest filled fraction, and the last pair follows
          section 0 (openPangu-VL).
        - ``"spatial_first"``: the first two sections alternate, then comes the third (Ernie-4.5-VL).
        - ``"even_odd"``: the first section has even frequencies, the second odd ones, the third the rest (Pixtral,
          Cohere Compass).
        - ``"axial"``: one section after the other, each with its own frequency progression (vision towers, Flux).
        - ``"axial_interleaved"``: sections alternate, each with its own frequency progression (Kimi).
    axis_of_section : list or tuple of int, optional
        The position axis of each section. By default section i follows position axis i. For three sections in the
        orders ``"spatial_first"`` and ``"even_odd"`` the default is ``(1, 2, 0)``: height, width, then time.

    Attributes
    ----------
    axes, pairs : int
        The numbers of position axes and of pairs.
    axis_of_pair : tuple of int
        The position axis of each pair.

    Raises
    ------
    ValueError
        If `order` is unknown, or `sizes` or `axis_of_section` do not fit it.
    TypeError
        If `sizes` or `axis_of_section` is not a list or tuple of int.

    References
    ----------
    Wang et al., Qwen2-VL (2024), arXiv:2409.12191, section 2.1. transformers, `models/qwen2_vl`, `models/qwen3_vl`,
    `models/ernie4_5_vl_moe`; vLLM, `rotary_embedding/mrope.py` and `mrope_interleaved.py`.

    Examples
    --------
    >>> Sections((4, 2, 2)).axis_of_pair
    (0, 0, 0, 0, 1, 1, 2, 2)
    >>> Sections((4, 2, 2), order="interleaved").axis_of_pair
    (0, 1, 2, 0, 1, 2, 0, 0)
    >>> Sections((2, 2, 4), order="spatial_first").axis_of_pair
    (1, 2, 1, 2, 0, 0, 0, 0)
    """

    sizes: Sequence[int]
    order: str = "chunked"
    axis_of_section: Sequence[int] | None = None

    @public("Sections")
    def __post_init__(self) -> None:
        checks.one_of("order", self.order, ORDERS)
        object.__setattr__(self, "sizes", _checked_sizes(self.sizes, self.order))
        if self.axis_of_section is not None:
            axes = _checked_axes(self.axis_of_section, len(self.sizes))
            object.__setattr__(self, "axis_of_section", axes)

    @property
    def axes(self) -> int:
        """The number of position axes."""
        return len(self.sizes)

    @property
    def pairs(self) -> int:
        """The number of pairs of all axes together."""
        return sum(self.sizes)

    @property
    def axis_of_pair(self) -> tuple[int, ...]:
        """The position axis of each pair."""
        return tuple(column.axis for column in self.columns())

    def columns(self) -> tuple[Column, ...]:
        """The position axis and the frequency of each pair."""
        axes = self.axis_of_section
        if axes is None:
            axes = (1, 2, 0) if self.order in ("spatial_first", "even_odd") and self.axes == 3 else range(self.axes)
        sections = _SECTION_OF_PAIR[self.order](list(self.sizes))
        frequencies = self._frequencies(sections)
        return tuple(Column(axes[section], *frequency) for section, frequency in zip(sections, frequencies))

    def _frequencies(self, sections: list[int]) -> list[tuple[int, int]]:
        """The frequency of each pair: its index in a progression, and the width of the progression in channels."""
        sizes, width = self.sizes, 2 * self.pairs
        if self.order in ("axial", "axial_interleaved"):
            unused = [list(range(size)) for size in sizes]
            return [(unused[section].pop(0), 2 * sizes[section]) for section in sections]
        indices = list(range(self.pairs))
        if self.order == "even_odd":
            spatial = sum(sizes[:2])
            indices[:spatial] = [*range(0, spatial, 2), *range(1, spatial, 2)]
        return [(index, width) for index in indices]


def _checked_sizes(sizes: object, order: str) -> tuple[int, ...]:
    if not isinstance(sizes, (list, tuple)) or not sizes:
        raise wrong_type(f"sizes must be a list or tuple of int; got {sizes!r}")
    sizes = tuple(checks.count("every size", size) for size in sizes)
    if not sum(sizes):
        raise wrong_value(f"sizes must sum to at least 1 pair; got {sizes}")
    if order in ("spatial_first", "even_odd") and (len(sizes) not in (2, 3) or sizes[0] != sizes[1]):
        raise wrong_value(
            f"sizes must be (height, width) or (height, width, time), with equal height and width, "
            f"for order={order!r}; got {sizes}"
        )
    if order == "interleaved":
        sections = _interleaved(list(sizes))
        counts = tuple(sections.count(section) for section in range(len(sizes)))
        if counts != sizes:
            raise wrong_value(
                f"sizes must fit order='interleaved', which assigns {counts} of {sum(sizes)} pairs to the "
                f"{len(sizes)} sections; got {sizes}"
            )
    return sizes


def _checked_axes(axes: object, count: int) -> tuple[int, ...]:
    if not isinstance(axes, (list, tuple)):
        raise wrong_type(f"axis_of_section must be a list or tuple of int; got {axes!r}")
    axes = tuple(checks.count("every axis_of_section", axis) for axis in axes)
    if sorted(axes) != list(range(count)):
        raise wrong_value(f"axis_of_section must have each of {count} axes once; got {axes}")
    return axes


def _chunked(sizes: list[int]) -> list[int]:
    return [axis for axis, size in enumerate(sizes) for _ in range(size)]


def _interleaved(sizes: list[int]) -> list[int]:
    """Pair j follows section ``j % sections`` until that section is full, and section 0 afterwards."""
    rounds = [divmod(pair, len(sizes)) for pair in range(sum(sizes))]
    return [section if filled < sizes[section] else 0 for filled, section in rounds]


def _round_robin(sizes: list[int]) -> list[int]:
    unused, order = list(sizes), []
    for pair in range(sum(sizes)):
        axis = pair % len(sizes)
        while not unused[axis]:
            axis = (axis + 1) % len(sizes)
        unused[axis] -= 1
        order.append(axis)
    return order


def _balanced(sizes: list[int]) -> list[int]:
    """The next pair follows the axis with the lowest filled fraction; the last pair follows axis 0."""
    reserved = min(sizes[0], 1)
    capacities = [sizes[0] - reserved, *sizes[1:]]
    placed, order = [0] * len(sizes), []
    for _ in range(sum(capacities)):
        available = [axis for axis, size in enumerate(capacities) if placed[axis] < size]
        # Two neighbouring pairs follow different axes, as long as more than one axis is left.
        others = [axis for axis in available if order[-1:] != [axis]] or available
        axis = min(others, key=lambda axis: placed[axis] / capacities[axis])
        placed[axis] += 1
        order.append(axis)
    return order + [0] * reserved


_SECTION_OF_PAIR: dict[str, Callable[[list[int]], list[int]]] = {
    "chunked": _chunked,
    "interleaved": _interleaved,
    "round_robin": _round_robin,
    "balanced": _balanced,
    "spatial_first": lambda sizes: [0, 1] * sizes[0] + [2] * sum(sizes[2:]),
    "even_odd": _chunked,
    "axial": _chunked,
    "axial_interleaved": _round_robin,
}
