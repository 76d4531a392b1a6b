"""The text that describes an embedding."""

from math import pi
from textwrap import fill

from rope_xp import kernels
from rope_xp.arrays import checks
from rope_xp.kernels import KERNELS
from rope_xp.kernels.angles import PHASES
from rope_xp.layouts import LAYOUTS
from rope_xp.reports import WIDTH
from rope_xp.sections import ORDERS
from rope_xp.spectrum import is_scaled
from rope_xp.types import Array, Embedding

NAME_WIDTH = 18


def describe(rope: Embedding, x: Array | None) -> str:
    kernel = _kernel(rope, x)
    rows = {**properties(rope), "phase": f"{rope.phase} ({PHASES[rope.phase]})", "kernel": kernel}
    remarks = [("remark", remark) for remark in rope._provenance.remarks]
    lines = [*rows.items(), *rope._provenance.others(rows), *remarks]
    indent = " " * NAME_WIDTH
    return "\n".join(fill(f"{name:<{NAME_WIDTH}}{value}", WIDTH, subsequent_indent=indent) for name, value in lines)


def properties(rope: Embedding) -> dict[str, str]:
    """The properties that decide the tables, with marks on values that the config omits."""
    softmax_scale = rope.softmax_scale
    rows = {
        "channels": _channels(rope),
        "pairs": _pairs(rope),
        "position axes": _position_axes(rope),
        "heads": "" if rope.heads is None else f"{rope.heads}, each with its own frequencies",
        "layout": f"{rope.layout} ({_without_examples(LAYOUTS[rope.layout])})",
        "frequencies": f"{_formula(rope)}, in radians per {unit_of(rope)}",
        "wavelengths": _wavelengths(rope),
        "direction": "reversed" if rope.reverse else "",
        "scaling": "none" if rope.scaling is None else rope.scaling.describe(),
        "attention factor": str(rope.attention_factor),
        "softmax scale": "" if softmax_scale == 1.0 else f"x {softmax_scale}, to be applied by the model",
        "decay": "" if rope.xpos is None else str(rope.xpos),
    }
    return {name: value + rope._provenance.note_on(name) for name, value in rows.items() if value}


def _without_examples(meaning: str) -> str:
    """What an option means, without the names of the models that have it."""
    return meaning.partition(":")[0]


def _kernel(rope: Embedding, x: Array | None) -> str:
    kernel, why_not_faster = rope.kernel, ""
    if x is not None:
        checks.floating("x", x)
        kernel = kernels.choose(x, kernel)
        why_not_faster = kernels.why_not_faster(x, kernel) if rope.kernel == "fastest" else ""
    return f"{kernel} ({KERNELS[kernel]})" + (f"; {why_not_faster}" if why_not_faster else "")


def _channels(rope: Embedding) -> str:
    last = rope.first_channel + 2 * rope.pairs - 1
    blocks = "" if rope.blocks == 1 else f", in {rope.blocks} blocks"
    if rope.rotary_dim == rope.head_dim:
        return f"all {rope.head_dim} are {'in pairs' if _unrotated(rope) else 'rotated'}{blocks}"
    span = f"the first {rope.rotary_dim}" if not rope.first_channel else f"channels {rope.first_channel} to {last}"
    return f"{span} of {rope.head_dim} are rotated{blocks}"


def _unrotated(rope: Embedding) -> int:
    # On each axis and in each head.
    sizes = rope._frequencies.sizes() if isinstance(rope.inv_freq, tuple) else [1.0] * rope.pairs
    return sum(not any(sizes[pair :: rope.pairs]) for pair in range(rope.pairs))


def _pairs(rope: Embedding) -> str:
    zeros = _unrotated(rope)
    return f"{rope.pairs}" + (f", of which {zeros} pass through unrotated" if zeros else "")


def _position_axes(rope: Embedding) -> str:
    sections, names = rope.sections, rope._provenance.axis_names
    if sections is None:
        named = f" ({', '.join(names)})" if names else ""
        return "" if rope.axes == 1 else f"{rope.axes}{named}"
    order, meaning = sections.order, _without_examples(ORDERS[sections.order])
    if not names:
        return f"{sections.axes}, {order} {sections.sizes} ({meaning})"
    pairs = ", ".join(f"{name} {sections.axis_of_pair.count(axis)}" for axis, name in enumerate(names))
    return f"{sections.axes}: {pairs} pairs; {order} ({meaning})"


def _formula(rope: Embedding) -> str:
    if not isinstance(rope.inv_freq, tuple):
        return "given as an array"
    if rope.base is None:
        return "given"
    if rope.sections is not None:
        return f"from the base {rope.base}"
    if (zeros := _unrotated(rope)) == rope.pairs:
        return "0"
    until = f" for pairs 0 to {rope.pairs - zeros - 1}, then 0" if zeros else ""
    return f"{rope.base} ** (-2 j / {rope.rotary_dim})" + (" before scaling" if is_scaled(rope) else "") + until


def unit_of(rope: Embedding) -> str:
    return "token" if rope.axes == 1 else "position"  # which may be a patch, a second or a coordinate


def _wavelengths(rope: Embedding) -> str:
    if not isinstance(rope.inv_freq, tuple):
        return "those of the array"
    lengths = [2 * pi / w for w in rope._frequencies.sizes() if w]
    return f"{min(lengths):g} to {max(lengths):g} {unit_of(rope)}s" if lengths else "none: no pair is rotated"
