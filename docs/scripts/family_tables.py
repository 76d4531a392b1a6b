"""Tables of model families: what a `model_type` decides, and the parts of composite configs."""

from collections import defaultdict
from typing import Any

from rope_xp.configs.families.family import Family
from rope_xp.configs.families.model_types import FAMILIES
from rope_xp.configs.parts import PARTS

LAYOUTS = ("half", "interleaved", "interleaved_to_half")


def by_layout() -> str:
    """The families of each layout. Those of the most common one are counted."""
    found = defaultdict(list)
    for name, family in FAMILIES.items():
        found[family.pairing.layout].append(name)
    lines = ["| layout | families | which |", "|---|---:|---|"]
    for layout in LAYOUTS:
        names = ", ".join(f"`{name}`" for name in sorted(found[layout]))
        which = "all others: [the table](../explanation/families.md)" if layout == "half" else names
        lines.append(f'| `"{layout}"` | {len(found[layout])} | {which} |')
    return "\n".join(lines)


def families() -> str:
    """The number of families, and one table for each first letter."""
    by_letter = defaultdict(list)
    for name, family in sorted(FAMILIES.items(), key=lambda item: item[0].lower()):
        by_letter[name[0].upper()].append(f"| `{name}` | {' | '.join(_cells(family))} |")
    head = ["| family | layout | base | more |", "|---|---|---|---|"]
    tables = ["\n".join([f"## {letter}", "", *head, *rows]) for letter, rows in by_letter.items()]
    return "\n\n".join([f"There are {len(FAMILIES)} families.", *tables])


def composites() -> str:
    """The parts of each composite config, and the family of each part."""
    lines = ["| `model_type` | parts, and their families |", "|---|---|"]
    for name, parts in sorted(PARTS.items()):
        shown = ", ".join(f"`{part}`: `{family}`" for part, (_, family) in parts.items())
        lines.append(f"| `{name}` | {shown} |")
    return "\n".join(lines)


def _cells(family: Family) -> tuple[str, str, str]:
    rotated = "separate part" if family.is_latent else _by_type(family, _rotated)
    more = [f"rotated: {rotated}"] if rotated != "all" else []
    return _layout(family), _by_type(family, _base), "; ".join(more + _axes(family))


def _layout(family: Family) -> str:
    pairing = family.pairing
    notes = {
        "or half": pairing.key_decides,
        f"{pairing.blocks} blocks": pairing.blocks > 1,
        "reversed": pairing.reverse,
        "last channels": pairing.last_channels,
    }
    return ", ".join([pairing.layout, *(note for note, is_so in notes.items() if is_so)])


def _by_type(family: Family, cell: Any) -> str:
    """A cell; if it differs between types of layers, that of each type."""
    cells = {name: cell(family.of_type(name)) for name in family.layers.by_type} or {"": cell(family)}
    if len(set(cells.values())) == 1:
        return next(iter(cells.values()))
    return ", ".join(f"{name.removesuffix('_attention')}: {value}" for name, value in cells.items())


def _base(family: Family) -> str:
    if family.quirks.inv_freq is not None:
        return "other frequencies"
    block = family.defaults.get("rope_parameters", {})
    if block is None:
        return "not rotated"
    base = block.get("rope_theta", family.default("rope_theta"))
    return "must be stated" if base is None else f"{base:,.0f}"


def _rotated(family: Family) -> str:
    if family.quirks.rotated_width is not None:
        return "as a key says"
    block = family.defaults.get("rope_parameters") or {}
    fraction = block.get("partial_rotary_factor", family.default("partial_rotary_factor"))
    return "all" if fraction == 1.0 else f"{fraction:.3g}"


def _axes(family: Family) -> list[str]:
    """The number of position axes and their order, if there are several."""
    if family.axes is None:
        return []
    sections = family.default("mrope_section")
    count = len(sections) if sections else family.axes.count
    return [f"axes: {'as stated' if count == 1 else count}, {family.axes.order.replace('_', ' ')}"]
