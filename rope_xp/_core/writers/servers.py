"""What SGLang and lmdeploy share: a config's block is replaced on the command line, and a table says what is read."""

from collections.abc import Mapping
from math import isclose
from typing import Any

from rope_xp._core import engines
from rope_xp._core.engines import Reading, Table
from rope_xp._core.errors import wrong_value
from rope_xp._core.writers.limits import require_attention_factor, require_only, require_text
from rope_xp._core.writers.transformers import rotated_fraction


def reading_of(rope: Any, table: Table) -> Reading | None:
    """What the engine reads for the file of an embedding; None if the table does not have its model type."""
    provenance = rope._provenance
    require_text(rope, table.name)
    names = (provenance.file_type, *(() if provenance.path else (provenance.model_type,)))
    known = next((table.of(name) for name in names if table.of(name)), None)
    if known is None and any(names):
        engines.warn(f"whether {table.name} reads these keys for model type {names[0]!r} is not known")
    return known


def require_read(rope: Any, table: Table, known: Reading | None, block: Mapping[str, Any], rule: str) -> None:
    """Raise an error if the engine would compute another embedding from a block, as far as its table knows."""
    if known is None:
        return
    of_type = f"for model type {rope._provenance.file_type or rope._provenance.model_type!r}"

    def error(key: str) -> ValueError:
        return wrong_value(f"{table.name} must read {key} {of_type}; got a class that does not")

    if "blocks" in known.fixed:
        raise wrong_value(
            f"the block must be one for all layers in {table.name} {of_type}; got one for each of "
            f"{', '.join(known.fixed['blocks'])}"
        )
    layout = known.fixed.get("layout")
    if layout is not None and rope.layout.removesuffix("_to_half") != layout:
        raise wrong_value(f"layout must be {layout!r} in {table.name} {of_type}; got {rope.layout!r}")
    if "rope_theta" not in known.keys and not isclose(known.fixed.get("base", 0.0), block["rope_theta"], rel_tol=1e-12):
        raise error("rope_theta")
    rotated = known.fixed.get("rotated")
    if rotated is not None and int(rotated * rope.head_dim + 1e-6) != rope.rotary_dim:
        raise error("partial_rotary_factor")
    if rule != "default" and rule not in known.rules:
        raise error(f"the rule {rule!r}")
    if "mrope_section" in block and "mrope_section" not in known.rules.get(rule, ()):
        raise error(f"mrope_section with the rule {rule!r}")
    if "mrope_interleaved" in block and "mrope_interleaved" not in known.rules.get(rule, ()):
        raise error(f"mrope_interleaved with the rule {rule!r}")


def sections_and_fraction(rope: Any, target: str) -> dict[str, Any]:
    """The keys of several position axes and of heads that are rotated in part, which every rule may have."""
    require_only(rope, f"in {target}")
    if rope.softmax_scale == 1.0:
        require_attention_factor(rope)
    keys = {} if rope.rotary_dim == rope.head_dim else {"partial_rotary_factor": rotated_fraction(rope)}
    if rope.sections is None:
        return keys
    if rope.sections.axes != 3 or rope.sections.order not in ("chunked", "interleaved"):
        raise wrong_value(
            f"sections must be three in order 'chunked' or 'interleaved' in {target}; got {rope.sections}"
        )
    interleaved = {"mrope_interleaved": True} if rope.sections.order == "interleaved" else {}
    return {**keys, "mrope_section": list(rope.sections.sizes), **interleaved}


def overrides(known: Reading | None, path: tuple[str, ...], block: Mapping[str, Any], outside: Any) -> dict[str, Any]:
    """A config's keys that replace its block.

    Both programs merge a block with that of the file. `rope_scaling` is another name for the block, and null removes
    the file's, so that none of its keys stays.
    """
    keys: dict[str, Any] = {"rope_scaling": None, "rope_parameters": dict(block), **outside}
    for name in reversed(path if known is None else known.path):
        keys = {name: keys}
    return keys


def innermost(keys: dict[str, Any]) -> dict[str, Any]:
    """The part of overrides that has the block."""
    while "rope_parameters" not in keys:
        (keys,) = keys.values()
    return keys
