"""The properties in which two behaviours may differ, and which of them explain a difference."""

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from math import isclose
from typing import Any, NamedTuple

import numpy as np

from rope_xp.comparison.measures import first_beyond
from rope_xp.comparison.report import Difference, number
from rope_xp.identification.behaviour import Behaviour, Map, directions_of, frequencies_of, replaced
from rope_xp.identification.precision import in_dtype
from rope_xp.identification.result import phases_in_words
from rope_xp.layouts import LAYOUTS
from rope_xp.types import Embedding


class Property(NamedTuple):
    """A property in which two embeddings may differ. A difference in it is a cause of that name."""

    cause: str
    text: Callable[[Behaviour, Any, Behaviour], str]  # what it is, in words, from a behaviour, its value and the other
    advice: str  # what to do about a difference
    fields: tuple[str, ...] = ()  # the arguments of `RotaryEmbedding` that state it
    others: tuple[str, ...] = ()  # the fields of `Behaviour` that state it


def _layout(each: Behaviour, rope: Embedding, other: Behaviour) -> str:
    blocks = "" if rope.blocks == 1 else f" in {rope.blocks} blocks"
    return f"{rope.layout}{blocks} ({LAYOUTS[rope.layout].partition(':')[0]})"


def _width(each: Behaviour, rope: Embedding, other: Behaviour) -> str:
    start = f" from channel {rope.first_channel} on" if rope.first_channel else ""
    return f"{rope.rotary_dim} of {rope.head_dim} channels{start}"


def _frequencies(each: Behaviour, rope: Embedding, other: Behaviour) -> str:
    values = frequencies_of(rope)
    way = "" if (values >= 0.0).all() else ", reversed" if (values <= 0.0).all() else ", some of them reversed"
    if each.change:
        return f"those of {each.change}{way}"
    if rope.base is not None:
        how = "" if each.precision != "float32" else " in float32" if each.own_factors else " rounded to float32"
        rule = "" if how or rope.scaling is None else f" and {rope.scaling.describe()}"
        return f"those of base {number(rope.base)}{rule}{how}{way}"
    sizes = np.abs(values).max(axis=0)  # along the axis that each pair follows
    return f"{sizes.max():.6g} to {sizes.min():.6g} radians per token, given{way}"


def _sections(each: Behaviour, rope: Embedding, other: Behaviour) -> str:
    if rope.sections is None:
        return "one position axis"
    axes = rope.sections.axis_of_section
    return f"{rope.sections.order} {rope.sections.sizes}" + ("" if axes is None else f" of axes {axes}")


def _base(each: Behaviour, rope: Embedding, other: Behaviour) -> str:
    """The base; and that of the other value with the exponent over other channels, if that is the same."""
    beside: Any = other.rope  # without one, the base is no cause
    for width in (rope.head_dim, beside.rotary_dim):
        wanted = beside.base and beside.base ** (rope.rotary_dim / width)
        if width > rope.rotary_dim and rope.base and wanted and isclose(rope.base, wanted, rel_tol=1e-6):
            same = f"{number(beside.base)} ** ({rope.rotary_dim} / {width})"
            return f"{number(rope.base)} = {same}, as if the exponent were -2 j / {width}"
    return _number(rope.base, beside.base)


def _number(own: float | None, other: float | None) -> str:
    """A number, with all its digits if another one has the same first ones."""
    shown = number(own)
    return str(own) if own != other and shown == number(other) else shown


def _offset(each: Behaviour, rope: Embedding, other: Behaviour) -> str:
    return f"positions {'+-'[each.offset < 0]} {abs(each.offset)}" if each.offset else "positions as given"


# What `exchanged` is in words, where it is 0, 1 and -1.
EXCHANGED = ("as in RoFormer", "cosine and sine exchanged", "cosine and sine exchanged, and both have the other sign")
# In the order in which they are named where they act from the same position on. Where one property explains as much
# as another, the earlier is the cause.
PROPERTIES = (
    Property(
        "axis",
        lambda each, rope, other: f"{each.axis} have the positions",
        "Give the tables an axis for heads, so that they are aligned with the tokens of x.",
        others=("axis",),
    ),
    Property(
        "layout",
        _layout,
        "Use the layout for which the checkpoint's projections are ordered. If the two read different pairs, "
        "rope_xp.permute_projection reorders the projections of queries and keys.",
        fields=("layout", "blocks"),
    ),
    Property(
        "sincos order",
        lambda each, rope, other: EXCHANGED[each.exchanged],
        "Check the order in which sine and cosine are returned and unpacked.",
        others=("exchanged",),
    ),
    Property(
        "direction",
        lambda each, rope, other: "reversed" if rope.reverse else "usual",
        "Check the sign of the sines.",
        fields=("reverse",),
    ),
    Property(
        "width",
        _width,
        "Check which channels of a head are rotated (partial_rotary_factor).",
        fields=("rotary_dim", "first_channel"),
    ),
    Property(
        "base",
        _base,
        "Check the base (rope_theta), and the exponent: -2 j / rotary_dim for pair j.",
        fields=("base",),
    ),
    Property(
        "attention factor",
        lambda each, rope, other: _number(each.attention_factor, other.attention_factor),
        "Multiply sines and cosines by the attention factor exactly once.",
        others=("attention_factor",),
    ),
    Property(
        "scaling",
        lambda each, rope, other: "none" if rope.scaling is None else rope.scaling.describe(),
        "Check the scaling rule (rope_scaling), and that it is not left out.",
        fields=("scaling",),
    ),
    Property(
        "offset",
        _offset,
        "Check whether positions begin with 0, and that cached and new tokens are counted alike.",
        others=("offset",),
    ),
    Property("sections", _sections, "Check which pairs follow which position axis.", fields=("sections",)),
    Property("decay", lambda each, rope, other: str(rope.xpos), "Check the decay of XPos.", fields=("xpos",)),
    Property(
        "phase precision",
        lambda each, rope, other: phases_in_words(each.precision),
        "Compute position times frequency exactly or in float64, and round only sines and cosines. Where float32 "
        "phases are accepted, name the context in which the two must agree, or a larger tolerance.",
        fields=("phase",),
        others=("precision",),
    ),
    Property(
        "frequencies",
        _frequencies,
        "Compare the frequencies themselves. If only their last bits differ, as where they are computed in float32, "
        "give the value those of the module: inv_freq=module.inv_freq.tolist().",
        fields=("base", "scaling", "sections", "reverse", "inv_freq"),
    ),
)
# What to do about phases, and about sines and cosines, in half precision.
KEEP_TABLES = "Keep sines and cosines in float32. Where their rounding is accepted, name a larger tolerance."
KEEP_PHASES = (
    "Keep positions, frequencies (inv_freq) and their products out of {}, also if the model is cast to it: it rounds "
    "integers above {}, and products long before. identify says so if positions or frequencies alone are rounded. "
    "Compute position times frequency exactly or in float64."
)
OF_PRECISION = {
    "float16": KEEP_PHASES.format("float16", "2,048"),
    "bfloat16": KEEP_PHASES.format("bfloat16", "256"),
    "float16 tables": KEEP_TABLES,
    "bfloat16 tables": KEEP_TABLES,
}
# What no map of a value shows, or no value has.
OTHERS = (
    Property(
        "softmax scale",
        lambda each, rope, other: _number(each.softmax_scale, other.softmax_scale),
        "Multiply the scale of the softmax by softmax_scale, in both or in neither.",
    ),
    Property(
        "rotation",
        lambda each, rope, other: "rotated" if each.rotates else "not rotated",
        "Check whether this layer is rotated at all.",
    ),
)
BY_CAUSE = {each.cause: each for each in (*PROPERTIES, *OTHERS)}


def difference(cause: str, one: Behaviour, other: Behaviour) -> Difference:
    texts = [_text(cause, one, other), _text(cause, other, one)]
    if texts[0] == texts[1] and cause in ("frequencies", "scaling") and one.rope and other.rope:
        a, b = (frequencies_of(each) for each in (one.rope, other.rope))
        if a.shape == b.shape and (a != b).any():
            at = np.unravel_index(np.abs(a - b).argmax(), a.shape)
            texts = [f"{text}; pair {at[-1]} has {float(each[at])}" for text, each in zip(texts, (a, b))]
    return Difference(cause, *texts)


def _text(cause: str, each: Behaviour, other: Behaviour) -> str:
    is_stated = each.rope is not None or cause in ("attention factor", "softmax scale")
    return BY_CAUSE[cause if is_stated else "rotation"].text(each, each.rope, other)


def with_properties(one: Behaviour, other: Behaviour, properties: Iterable[Property]) -> Behaviour | None:
    """The first behaviour with some properties of the second; None if these fit together only with others."""
    properties = tuple(properties)
    fields = {name: getattr(other.rope, name) for each in properties for name in each.fields}
    if "inv_freq" in fields and fields["base"] is not None:
        fields["inv_freq"] = None
    # Else another number of frequencies would be another width, which is a property of its own.
    rope = one.rope and replaced(one.rope, attention_factor=None, **{"rotary_dim": one.rope.rotary_dim, **fields})
    if rope is None:
        return None
    others = {name: getattr(other, name) for each in properties for name in each.others}
    keeps = "inv_freq" in fields or isclose(one.attention_factor, other.attention_factor)
    if "attention_factor" not in others and not keeps:
        others["attention_factor"] = one.attention_factor / _factor_of_rule(one.rope) * _factor_of_rule(rope)
    return one._replace(rope=rope, **others)


def _factor_of_rule(rope: Embedding | None) -> float:
    return 1.0 if rope is None or rope.scaling is None else rope.scaling.resolved_attention_factor


def explaining(one: Behaviour, other: Behaviour, limit: float, horizon: int) -> tuple[str, ...]:
    """The fewest properties of the second that make the first equal to it, as causes, the earliest effect first."""
    # The precision of phases is not among them. But frequencies that are equal in float32 have the same such phases.
    are_float32 = one.precision == other.precision == "float32" and not (one.own_factors or other.own_factors)
    one, other = one.with_exact_phases(), other.with_exact_phases()
    directions = directions_of([one.rope, other.rope])

    def compared(each: Behaviour) -> Map:
        found = each.map(directions)
        return found._replace(steps=in_dtype("float32", found.steps)) if are_float32 else found

    target = compared(other)
    for properties in _subsets(one, other):
        changed = with_properties(one, other, properties)
        if changed is not None and first_beyond(compared(changed), target, limit, horizon) is None:
            onset = {each.cause: _onset(one, other, each, directions, horizon) for each in properties}
            return tuple(sorted(onset, key=lambda cause: onset[cause]))
    return ("unknown",)


def _subsets(one: Behaviour, other: Behaviour) -> Iterator[tuple[Property, ...]]:
    """Sets of properties in which two behaviours differ, the smallest first; frequencies as such are the last."""
    *others, frequencies = [each for each in PROPERTIES if each.cause != "phase precision"]
    differing = [each for each in others if differ(one, other, each)]
    for last in ((), (frequencies,)):
        for size in range(len(differing) + 1):
            yield from ((*chosen, *last) for chosen in combinations(differing, size))


def differ(one: Behaviour, other: Behaviour, each: Property) -> bool:
    of_ropes = any(getattr(one.rope, name) != getattr(other.rope, name) for name in each.fields)
    return of_ropes or any(getattr(one, name) != getattr(other, name) for name in each.others)


def _onset(one: Behaviour, other: Behaviour, each: Property, directions: np.ndarray | None, horizon: int) -> int:
    """The first position at which a property alone changes a unit score by 1 %."""
    changed = with_properties(one, other, [each])
    first = None if changed is None else first_beyond(one.map(directions), changed.map(directions), 0.01, horizon)
    return horizon if first is None else first
