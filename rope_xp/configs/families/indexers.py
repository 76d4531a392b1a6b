"""The rotation of an indexer, whose heads select tokens for sparse attention: the attention's angles, without a scale.

Sources: transformers 5.23, the `Indexer` classes; deepseek-ai/DeepSeek-V3.2-Exp, `inference/model.py`, corrected on
2025-11-17: only its attention pairs neighbouring channels. vLLM 0.33, `models/deepseek_v32/attention.py`, and SGLang
0.5.23, `models/deepseek_v2.py`, read `indexer_rope_interleave`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rope_xp.configs.block import without_softmax_scale
from rope_xp.configs.keys import MAX_SIZE, Keys
from rope_xp.embedding import RotaryEmbedding
from rope_xp.errors import wrong_value
from rope_xp.frequencies import YarnScaling
from rope_xp.types import Config

PART = "indexer"
INTERLEAVE_KEY = "indexer_rope_interleave"


@dataclass(frozen=True)
class Indexer:
    """A family's indexer. `layout` None is the attention's; with `stated_layout`, a key decides in vLLM and SGLang."""

    layout: str | None = None
    last_channels: bool = False  # the last channels of a head are rotated, not the first
    width_key: str = "index_head_dim"
    width: int | None = 128  # the default of the key; None means no indexer
    older_key: tuple[str, str] | None = None  # a key with a mapping, and the key in it that older configs have
    layer_type: str = ""  # the only type of layers with an indexer; empty if all layers with attention have one
    has_types: bool = False  # `indexer_types` and the keys for its default: shared layers have no indexer
    every: int = 1  # the default of `index_topk_freq`
    stated_layout: bool = False


LATENT = Indexer("half")
INDEXERS: dict[str, Indexer] = {
    "deepseek_v32": LATENT,
    "axk2": LATENT,
    "deepseek_v4": Indexer(last_channels=True, layer_type="compressed_sparse_attention"),
    "dots3_note_text": Indexer("interleaved_to_half", layer_type="indexed_attention"),
    "glm_moe_dsa": Indexer("interleaved_to_half", has_types=True, stated_layout=True),
    "hy_v4": Indexer("half", last_channels=True, has_types=True, every=4),
    "minimax_m3_vl_text": Indexer(
        layer_type="minimax_m3_sparse", older_key=("sparse_attention_config", "sparse_index_dim")
    ),
    "mistral_large4_text": Indexer("interleaved_to_half", has_types=True),
    "qwen4_exp_text": Indexer(width_key="indexer_head_dim", width=None),
}


def read_indexer(
    keys: Keys, attention: RotaryEmbedding | None, layout: str | None, is_result: bool
) -> RotaryEmbedding | None:
    """The embedding of a family's indexer, from that of its attention. Without an attention, keys are only read."""
    # `layout` is that of the caller, who may have chosen one. Defaults are recorded if the indexer is the result
    # (`is_result`), and not the attention beside it.
    own = INDEXERS.get(keys.model_type)
    if own is None:
        return None
    interleave, width = keys.read_flag(INTERLEAVE_KEY), _width(keys, own, is_result)
    if width is None:
        return None
    if not 2 <= width <= MAX_SIZE:
        raise wrong_value(f"{own.width_key} must be from 2 to {MAX_SIZE}; got {width}")
    if layout is None and interleave is not None:
        layout = "interleaved_to_half" if interleave else "half"
    elif layout is None:
        layout = own.layout
        if own.stated_layout and is_result:
            keys.assume("layout", INTERLEAVE_KEY, "as in transformers; vLLM and SGLang take false")
    return None if attention is None else _indexer_of(attention, own, width, layout or attention.layout)


def _width(keys: Keys, own: Indexer, is_result: bool) -> Any:
    width = keys.read_count(own.width_key)
    if width is None and own.older_key is not None:
        width = keys.read_mapping(own.older_key[0]).read_count(own.older_key[1])
    if width is None and own.width is not None and is_result:
        keys.assume("channels", own.width_key)
    return own.width if width is None else width


def _indexer_of(attention: RotaryEmbedding, own: Indexer, width: int, layout: Any) -> RotaryEmbedding:
    channels: Any = attention.rotary_dim
    if channels > width:
        raise wrong_value(
            f"{own.width_key} must be at least {channels}, the channels that the attention rotates; got {width}"
        )
    rule = attention.scaling
    if isinstance(rule, YarnScaling):
        rule = without_softmax_scale(rule)
    first = width - channels if own.last_channels else 0
    return attention.replace(head_dim=width, rotary_dim=channels, layout=layout, first_channel=first, scaling=rule)


def has_indexer(keys: Keys, layer: int | None, layer_type: str | None) -> bool:
    """Whether a layer has an indexer of its own. The layers between two full indexers share the selected tokens."""
    own = INDEXERS.get(keys.model_type)
    if own is None or (own.layer_type and layer_type not in (None, own.layer_type)):
        return False
    if layer is None or not own.has_types:
        return True
    types: Any = keys.read_list("indexer_types")
    if not types:
        types = keys.read("index_topk_pattern")
        if types is None:
            after = max(layer - (keys.read_count("index_skip_topk_offset", 2)) + 1, 0)
            return after % max(keys.read_count("index_topk_freq", own.every), 1) == 0
    if not isinstance(types, (str, list, tuple)) or layer >= len(types):
        raise wrong_value(f"indexer_types must have a type for each layer; got {types!r}")
    if types[layer] not in ("full", "shared", "F", "S"):
        raise wrong_value(f"indexer_types must be 'full' or 'shared'; got {types[layer]!r}")
    return types[layer] in ("full", "F")


def note_on_indexer(attention: RotaryEmbedding, indexer: RotaryEmbedding) -> str:
    last = " last" if indexer.first_channel else " first"
    same = "the same" if indexer.layout == attention.layout else "another layout than the attention"
    return (
        f"layout {indexer.layout} ({same}), the{last} {indexer.rotary_dim} of {indexer.head_dim} channels: "
        f'from_config(config, part="{PART}")'
    )


def type_of_text(config: Config, default: str) -> str:
    """The `model_type` of a composite's text, or of the config itself."""
    text = config.get("text_config")
    own = text.get("model_type") if isinstance(text, Mapping) else None
    return str(own or default or config.get("model_type") or "")
