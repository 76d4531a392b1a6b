"""Read the metadata of a GGUF file as llama.cpp does. Tensors of factors are in the mapping by their names.

References
----------
ggml-org/llama.cpp: `load_hparams` and `llama_model_rope_type` in `src/llama-model.cpp`, `ggml_mrope_cache_init` (pairs
of several position axes), and `src/models` (types of layers).
"""

from dataclasses import replace
from typing import Any

from rope_xp._core import checks
from rope_xp._core.config.family import LATENT, Axes, Family, Layers, LayerType, Pairing, Quirks
from rope_xp._core.config.gguf_keys import Metadata
from rope_xp._core.config.gguf_scaling import FactorScaling, rule_of
from rope_xp._core.config.keys import MAX_SIZE, Keys, comma_separated
from rope_xp._core.config.layer_types import no_rope_layers, sliding_only
from rope_xp._core.config.params_json import require_text
from rope_xp._core.errors import wrong_type, wrong_value
from rope_xp._core.writers import gguf_architectures as gguf

SECTIONS, WIDTH = "rope.dimension_sections", "rope.dimension_count"
ALPHA = "rope.scaling.alpha"
FULL, SLIDING = "full_attention", "sliding_attention"


def gguf_metadata_as_config(keys: Keys, part: str | None) -> tuple[dict[str, Any], Family]:
    """The metadata as a config of transformers."""
    require_text(part)
    metadata = Metadata(keys, _architecture(keys))
    metadata.ignore("rope.scaling.finetuned", "attention.max_alibi_bias")
    if metadata.get("attention.max_alibi_bias"):
        raise wrong_value(f"{metadata.key('attention.max_alibi_bias')} must be 0; got another number")
    head_dim = _head_dim(metadata)
    width = metadata.get(WIDTH)
    width = head_dim if width is None else checks.even_size(metadata.key(WIDTH), width, MAX_SIZE)
    base = metadata.get("rope.freq_base")
    if base is None:
        keys.assume("frequencies", metadata.key("rope.freq_base"), "default of llama.cpp")
        base = 10_000.0
    base = checks.at_least(metadata.key("rope.freq_base"), base, 1.0)
    alpha = metadata.read(ALPHA, 0.0, 1.0)
    if alpha:  # llama.cpp then computes another base when it reads the file
        base *= checks.positive(metadata.key(ALPHA), alpha) ** (head_dim / (head_dim - 2))
    config = {
        LATENT if metadata.is_latent else "head_dim": head_dim,
        "max_position_embeddings": metadata.get("context_length"),
        "num_hidden_layers": metadata.get("block_count"),
        "rotary_dim": None if width == head_dim else width,
        "rope_parameters": {"rope_theta": base, **rule_of(metadata, base, head_dim, width), **_sections(metadata)},
    }
    return _with_layers(metadata, config)


def _architecture(keys: Keys) -> str:
    name = keys.get("general.architecture")
    if name is None:
        raise wrong_value("general.architecture must be given; got none")
    if not isinstance(name, str):
        raise wrong_type(f"general.architecture must be a string; got {name!r}")
    if gguf.gguf_layout(keys.mapping) is None:
        got = "which is not rotated" if name in gguf.NOT_ROTARY.split() else "which rope_xp does not know"
        raise wrong_value(f"general.architecture must be rotary in llama.cpp; got {name!r}, {got}")
    if name in gguf.UNKNOWN_LAYERS:
        raise wrong_value(f"general.architecture must have layers that rope_xp knows; got {name!r}")
    return name


def _head_dim(metadata: Metadata) -> int:
    """The width of a head. In latent attention, that of its rotated part."""
    count = "attention.head_count"
    width, size, heads = (metadata.get(name) for name in ("attention.key_length", "embedding_length", count))
    if metadata.is_latent:
        width = metadata.get(WIDTH)
    elif width is None and size is not None and heads:
        by_layer = heads if isinstance(heads, (list, tuple)) else [heads]  # 0 for a layer without attention
        most = max(checks.count(metadata.key(count), each) for each in by_layer)
        width = checks.count(metadata.key("embedding_length"), size) // max(most, 1)
    needed = (WIDTH,) if metadata.is_latent else ("attention.key_length", count)
    if width is None:
        raise wrong_value(f"{' or '.join(map(metadata.key, needed))} must be given; got none")
    return checks.even_size(metadata.key(needed[0]), width, MAX_SIZE)


def _sections(metadata: Metadata) -> dict[str, Any]:
    """The pairs of each position axis. llama.cpp has four axes, of which the last ones may have no pairs."""
    sections, order = metadata.get(SECTIONS), gguf.order_of(metadata.keys.mapping)
    if sections is None:
        return {}
    if not isinstance(sections, (list, tuple)):
        raise wrong_type(f"{metadata.key(SECTIONS)} must be a list; got {sections!r}")
    sizes = [checks.count(metadata.key(SECTIONS), size) for size in sections]
    while len(sizes) > 1 and not sizes[-1]:
        sizes.pop()
    if order is None and any(sizes):
        raise wrong_value(f"{metadata.key(SECTIONS)} must be 0 in this architecture; got {sizes}")
    missed = gguf.pairs_without_axis(sizes) if order == "interleaved" else []
    if missed:
        metadata.keys.remarks.append(
            f"llama.cpp rotates pairs {comma_separated(missed)} by its fourth position, which is 0 for text; other "
            "programs rotate them by the first"
        )
    return {} if order is None else {"mrope_section": sizes, "mrope_interleaved": order == "interleaved"}


def _with_layers(metadata: Metadata, config: dict[str, Any]) -> tuple[dict[str, Any], Family]:
    """The config with its types of layers: some may have other frequencies, and some may not be rotated."""
    own, family = gguf.LAYERS.get(metadata.architecture), _family(metadata)
    pattern, window = (metadata.get(f"attention.sliding_window{name}") for name in ("_pattern", ""))
    if own is None or (own.only_with_window and not window):
        own = gguf.LayerPattern(unrotated_interval=0)
    if own.unrotated_interval is not None:
        if own.unrotated_interval and window == 0:  # llama.cpp then has another interval
            raise wrong_value(f"{metadata.key('attention.sliding_window')} must be greater than 0; got 0")
        _require_no_sliding_keys(metadata)
        return {**config, "no_rope_layer_interval": own.unrotated_interval}, family
    config |= {"layer_types": _types(own, pattern, config["num_hidden_layers"])}
    if not own.full_is_rotated:
        _require_no_sliding_keys(metadata)
        return config, replace(family, layers=Layers(rotated=sliding_only()))
    by_type = {FULL: LayerType(), SLIDING: LayerType(head_dim="swa_head_dim | head_dim")}
    return config | _sliding(metadata, own, config), replace(family, layers=Layers(by_type=by_type))


def _family(metadata: Metadata) -> Family:
    order = gguf.order_of(metadata.keys.mapping)
    return Family(
        {"rope_theta": None},
        head_dim=LATENT if metadata.is_latent else "head_dim",
        pairing=Pairing(gguf.gguf_layout(metadata.keys.mapping) or ""),
        layers=Layers(listed=no_rope_layers()),
        axes=None if order is None else Axes(order, any_order=True),
        quirks=Quirks(rules={FactorScaling.rope_type: FactorScaling}),
    )


def _require_no_sliding_keys(metadata: Metadata) -> None:
    names = ("rope.freq_base_swa", f"{WIDTH}_swa", "attention.key_length_swa")
    given = [metadata.key(name) for name in names if metadata.get(name) is not None]
    if given:
        raise wrong_value(
            f"layers with a sliding window must have no keys of their own in this architecture; "
            f"got {comma_separated(given)}"
        )


def _sliding(metadata: Metadata, own: gguf.LayerPattern, config: dict[str, Any]) -> dict[str, Any]:
    """The blocks of both types of layers. Layers with a sliding window are not scaled."""
    full, base = config["rope_parameters"], metadata.get("rope.freq_base_swa")
    if base is None and own.sliding_base is not None:
        metadata.keys.assume("frequencies", metadata.key("rope.freq_base_swa"), "default of llama.cpp")
    default = full["rope_theta"] if own.sliding_base is None else own.sliding_base
    head_dim = metadata.get("attention.key_length_swa")
    widths = {
        WIDTH: (config["rotary_dim"], config["head_dim"]),
        f"{WIDTH}_swa": (metadata.get(f"{WIDTH}_swa"), head_dim or config["head_dim"]),
    }
    for name, (width, whole) in widths.items():
        if width not in (None, whole):
            raise wrong_value(f"{metadata.key(name)} must be the whole head, {whole}; got {width}")
    sliding = {"rope_theta": default if base is None else base}
    return {"rope_parameters": {FULL: full, SLIDING: sliding}, "swa_head_dim": head_dim}


def _types(own: gguf.LayerPattern, pattern: Any, count: Any) -> list[str] | None:
    """The type of each layer: from a list of booleans, or from a period."""
    if isinstance(pattern, (list, tuple)):
        return [SLIDING if slides else FULL for slides in pattern]
    period = own.period if pattern is None else pattern
    if not period or count is None:
        return None
    period, count = (checks.count("the period of layers", number) for number in (period, count))
    full = 0 if own.full_is_first else period - 1
    return [FULL if index % period == full else SLIDING for index in range(min(count, MAX_SIZE))]
