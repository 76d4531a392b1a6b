"""From a checkpoint's config to its rotary embedding, by the table of `families.py`. Nothing here imports a framework.

Every key of the rotary block, and every key beside it that speaks of rotation, is read or is an error.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from math import pi
from typing import Any, Literal

from rope_xp import checks
from rope_xp.axes import Sections
from rope_xp.embedding import RotaryEmbedding
from rope_xp.families import BASE_KEYS, FAMILIES, NO_ATTENTION, PARTIAL_KEYS, PARTS, Family
from rope_xp.frequencies import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    MixedNTKScaling,
    NTKScaling,
    ProportionalScaling,
    Scaling,
    YarnScaling,
    geometric,
)
from rope_xp.rotation import LAYOUTS, Layout

COMPATS = {"transformers": "what transformers 5.18 computes, also where that is a mistake"}

RULES: dict[str, type[Scaling]] = {
    "default": Scaling,
    "linear": LinearScaling,
    "dynamic": DynamicNTKScaling,
    "yarn": YarnScaling,
    "longrope": LongRopeScaling,
    "llama3": Llama3Scaling,
    "proportional": ProportionalScaling,
    "ntk": MixedNTKScaling,
}
# Other names of rules.
ALIASES = {"su": "longrope", "mrope": "default", "axial": "default", "xdrope": "dynamic", "deepseek_yarn": "yarn"}

# Keys that speak of rotation.
SPEAKS = re.compile(r"rope|rotary|partial_rot|theta|yarn|(^|_)ntk|original_max_position")
# Those that say nothing about tables, with null or at all.
SILENT = ("rope_scaling", "rope_parameters")
SILENT_IF_NULL = ("rotary_scaling_factor", "rotary_emb_scale_base")
# Keys that checkpoints carry in the block and no rule reads, in any family.
UNREAD = ("finetuned",)

WHO = "from_config"


def from_config(
    config: Any,
    *,
    part: str | None = None,
    layer: int | None = None,
    layer_type: str | None = None,
    seq_len: int | None = None,
    layout: Layout | None = None,
    compat: Literal["transformers"] | None = None,
) -> RotaryEmbedding | None:
    """The rotary embedding that a checkpoint's config means.

    Configs are those of transformers 5 (`rope_parameters`, also nested by layer type) and all older spellings
    (`rope_theta`, `rope_scaling` with `type` or `rope_type`, `rotary_pct`, `rotary_emb_base`, ...). What a config
    leaves unsaid follows from its `model_type`.

    Parameters
    ----------
    config : path, mapping, or object with `to_dict()`
        A config.json, what it holds, or a config of transformers.
    part : str, optional
        Which part of a composite config: "text" (the default), "vision", "audio", another of its parts, or the key of a
        sub-config.
    layer : int, optional
        Which layer, where layers differ.
    layer_type : str, optional
        Which kind of layer, such as "sliding_attention", in place of `layer`.
    seq_len : int, optional
        The length of the sequence in tokens, for rules that depend on it (dynamic NTK, LongRoPE); None means within the
        original length.
    layout : "half", "interleaved" or "interleaved_to_half", optional
        In place of the family's, for checkpoints whose projections are in another order, such as Meta's. With it, a
        `model_type` may be unknown.
    compat : "transformers", optional
        Compute what transformers 5.18 does where that is a mistake, see Notes.

    Returns
    -------
    RotaryEmbedding or None
        None where the layer is not rotated.

    Raises
    ------
    ValueError
        If a key is unknown, missing or contradicts another, a value is out of range, the family is unknown, or layers
        differ and none is named. Also if a file is no JSON.
    TypeError
        If a value is of the wrong kind.

    Notes
    -----
    With ``compat="transformers"``: `alpha` is forgotten beyond `max_position_embeddings` (Hunyuan); `truncate` of a
    block that is nested by layer type is not read; Phi-3.5-MoE never uses `long_factor`; `rope_scaling` spelled with
    `type` is not read where layer types differ, nor at all by Cohere2-MoE; a top-level
    `original_max_position_embeddings` wins over the block's; a block wins over top-level keys that contradict it; a
    default block wins over a top-level base; OLMo-3's sliding layers and ModernBERT do not read `rope_theta`, GPT-NeoX
    neither that nor `partial_rotary_factor`, DBRX not the base of `attn_config`, MiniMax-M3 not `rotary_dim`, Bamba no
    top-level share; Step-3.5 has one base for each layer type, that of the first; and interleaved sections that do not
    fit lose pairs to the first axis.

    References
    ----------
    transformers, `modeling_rope_utils.py` and `models/*/configuration_*.py`.

    Examples
    --------
    >>> config = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "rope_theta": 500000.0}
    >>> from_config(config)
    RotaryEmbedding(head_dim=128, layout='half', base=500000.0)
    >>> config["rope_scaling"] = {"type": "linear", "factor": 4.0}
    >>> from_config(config)
    RotaryEmbedding(head_dim=128, layout='half', base=500000.0, scaling=LinearScaling(factor=4.0))
    """
    if layout is not None:
        checks.one_of(WHO, "layout", layout, LAYOUTS)
    if compat is not None:
        checks.one_of(WHO, "compat", compat, COMPATS)
    if seq_len is not None and checks.count(WHO, "seq_len", seq_len) < 1:
        raise ValueError(f"{WHO}: seq_len must be at least 1; got {seq_len}")
    if layer is not None and layer_type is not None:
        raise ValueError(f"{WHO}: layer or layer_type must be given, not both; got {layer} and {layer_type!r}")
    mapping, model_type = _part(_mapping(config), part)
    family = FAMILIES.get(model_type)
    if family is None:
        if layout is None:
            raise ValueError(
                f"{WHO}: model_type must be that of a rotary model ({_listed(FAMILIES)}), or layout be given; "
                f"got {model_type!r}"
            )
        family = Family(base=0.0, order="chunked" if _has_sections(mapping) else None)
    if layout is not None:
        family = replace(family, layout=layout)
    return _Reader(mapping, model_type, family, seq_len, compat is not None).read(layer, layer_type)


class _Keys:
    """A mapping that remembers which of its keys were read."""

    def __init__(self, name: str, mapping: Mapping[str, Any]):
        self.name = name
        self.mapping = mapping
        self.read: set[str] = set()

    def get(self, *names: str, first: bool = False) -> Any:
        """The value of whichever of these keys is given and not null; two must not contradict each other."""
        self.read.update(names)
        found = {name: self.mapping[name] for name in names if self.mapping.get(name) is not None}
        values = list(found.values())
        if not first and any(value != values[0] for value in values):
            raise ValueError(f"{WHO}: keys of {self.name} must not contradict each other; got {found}")
        return values[0] if values else None

    def unread(self, pattern: re.Pattern[str] | None = None) -> dict[str, Any]:
        return {
            key: value
            for key, value in self.mapping.items()
            if key not in self.read and (pattern is None or pattern.search(key))
        }


class _Reader:
    """One reading of one part of a config."""

    def __init__(self, mapping: Mapping[str, Any], model_type: str, family: Family, seq_len: int | None, compat: bool):
        self.keys = _Keys(f"the config of model_type {model_type!r}", mapping)
        self.model_type = model_type
        self.family = family
        self.seq_len = seq_len
        self.compat = compat

    def read(self, layer: int | None, layer_type: str | None) -> RotaryEmbedding | None:
        whole = self.family
        layer_type = self._layer_type(layer, layer_type)
        label = whole.labels.get(layer_type, whole.labels.get(..., layer_type)) if whole.labels else layer_type
        if layer_type in whole.by_layer:
            label = layer_type
        self._note_other_layers()
        rotated = self._is_rotated(layer, layer_type)
        block = self._block(label)
        if whole.by_layer and block is not None:
            if label not in whole.by_layer:
                raise ValueError(
                    f"{WHO}: layer or layer_type must be given, {_listed(whole.by_layer)}, as they differ; "
                    f"got layer_type={layer_type!r}"
                )
            self.family = replace(whole, **whole.by_layer[label])
        rope = None
        if block is not None and rotated:
            rope = self._embedding(self._scaled(block), layer, layer_type)
        elif block is not None:
            self._embedding(self._scaled(block), None, None, dry=True)
        left = self.keys.unread(SPEAKS)
        if left:
            raise ValueError(
                f"{WHO}: every key that speaks of rotation must be read; got {left} in {self.keys.name}, "
                f"which reads {_listed(self.keys.read & self.keys.mapping.keys())}"
            )
        return rope

    # Layers.

    def _layer_type(self, layer: int | None, layer_type: str | None) -> str | None:
        """The type of a layer, where the config or the family tells types apart."""
        types = self._layer_types()
        if layer is not None:
            if not checks.is_int(layer):
                raise TypeError(f"{WHO}: layer must be an int; got {layer!r}")
            count = self._layers() or (len(types) if types else None)
            if layer < 0 or (count is not None and layer >= count):
                raise ValueError(f"{WHO}: layer must be from 0 to {(count or 0) - 1}; got {layer}")
            if types:
                return types[layer]
            every = self.family.full_every
            if every is None:
                return None
            key, usual, offset = every
            period = self.keys.get(key) if key else None
            period = usual if period is None else checks.count(WHO, key, period)
            return "full_attention" if not period or (layer + offset) % period == 0 else "sliding_attention"
        if layer_type is None:
            return None
        accepted = {*types, *self.family.by_layer, *self._nested_labels()}
        if self.family.full_every or self.family.unrotated:
            accepted |= {"full_attention", "sliding_attention"}
        if layer_type not in accepted:
            raise ValueError(f"{WHO}: layer_type must be {_listed(accepted) or 'None'}; got {layer_type!r}")
        return layer_type

    def _layer_types(self) -> list[str]:
        types = self.keys.get("layer_types")
        if types is None:
            return []
        if not isinstance(types, (list, tuple)) or not all(isinstance(each, str) for each in types):
            raise TypeError(f"{WHO}: layer_types must be a list of strings; got {types!r}")
        return list(types)

    def _layers(self) -> int | None:
        count = self.keys.get("num_hidden_layers", "n_layer", "n_layers", "num_layers", first=True)
        return None if count is None else checks.count(WHO, "num_hidden_layers", count)

    def _nested_labels(self) -> list[str]:
        """The layer types by which the rotary block is nested."""
        block = self.keys.mapping.get("rope_parameters") or {}
        if not isinstance(block, Mapping):
            return []
        types = {*self._layer_types(), *self.family.by_layer, *self.family.labels.values()}
        return [key for key, value in block.items() if isinstance(value, Mapping) or (value is None and key in types)]

    def _note_other_layers(self) -> None:
        """Keys of other layer types are known, though this layer does not read them."""
        for row in self.family.by_layer.values():
            self.keys.read.update(row.get("base_keys", BASE_KEYS[:1]))

    def _is_rotated(self, layer: int | None, layer_type: str | None) -> bool:
        """Whether the layer is rotated; without a layer, as those are that are."""
        family, keys = self.family, self.keys
        if family.rotated_if is not None:
            key, wanted, usual = family.rotated_if
            value = keys.mapping.get(key, usual)
            keys.read.add(key)
            if value != wanted:
                return False
        if layer_type in NO_ATTENTION:
            return False
        if family.special == "null_base":
            block = keys.mapping.get("rope_parameters")
            if isinstance(block, Mapping) and "rope_theta" in block and block["rope_theta"] is None:
                return False
        if family.special in ("no_rope_layers", "layer_rope_theta"):
            return self._is_listed(layer, layer_type)
        if layer_type not in family.unrotated:
            return True
        if family.special == "exaone":
            return "sliding_window" in keys.mapping and keys.mapping["sliding_window"] is None
        if family.special == "cohere2_moe" and layer is not None:
            dense = (keys.get("mlp_layer_types") or [])[layer : layer + 1] == ["dense"]
            first = layer < (keys.get("first_k_dense_replace") or 0)
            pattern = keys.get("prefix_dense_sliding_window_pattern")
            return (dense or first) and pattern in (None, 1)
        return False

    def _is_listed(self, layer: int | None, layer_type: str | None) -> bool:
        """Whether a list, one number for each layer, says that the layer is rotated."""
        name, family = self.family.special, self.family
        given = self.keys.get(name)
        interval = self.keys.get("no_rope_layer_interval") if name == "no_rope_layers" else None
        interval = 4 if interval is None else checks.count(WHO, "no_rope_layer_interval", interval)
        if given is not None and not isinstance(given, (list, tuple)):
            raise TypeError(f"{WHO}: {name} must be a list, one number for each layer; got {given!r}")

        def listed(index: int) -> bool:
            if given:
                return bool(given[index])
            if name == "no_rope_layers":
                return not interval or (index + 1) % interval != 0
            if self.model_type == "muse_glimmer_text":
                return ((self._layers() or 0) - 1 - index) % 4 != 0
            return True

        if layer is not None:
            if given and layer >= len(given):
                raise ValueError(f"{WHO}: {name} must have one number for each layer; got {len(given)}")
            return listed(layer)
        if layer_type is None:
            return True
        types = self._layer_types()
        found = {listed(index) for index, each in enumerate(types) if each == layer_type}
        if len(found) > 1:
            raise ValueError(
                f"{WHO}: layer must be given, as layers of type {layer_type!r} differ in {name}; got layer=None"
            )
        return found.pop() if found else family is not None

    # The rotary block.

    def _block(self, label: str | None) -> _Keys | None:
        """The rotary block of a layer type; None where it is null for that type."""
        keys, family = self.keys, self.family
        parameters, scaling = keys.get("rope_parameters"), keys.get("rope_scaling")
        for name, value in (("rope_parameters", parameters), ("rope_scaling", scaling)):
            if value is not None and not isinstance(value, Mapping):
                raise TypeError(f"{WHO}: {name} must be a mapping; got {value!r}")
        if parameters and scaling and parameters != scaling:
            if not self.compat:
                raise ValueError(f"{WHO}: rope_parameters and rope_scaling must not both be given; got both")
            parameters = None
        labels = self._nested_labels()
        if parameters and labels:
            if label is None or label not in labels:
                raise ValueError(
                    f"{WHO}: layer or layer_type must be given, {_listed(labels)}, as rope_parameters are nested; "
                    f"got layer_type={label!r}"
                )
            outer = {key: value for key, value in parameters.items() if key not in labels}
            inner = dict(parameters[label]) if parameters[label] is not None else None
            if self.compat and inner is not None:
                inner["truncate"] = outer.pop("truncate", None)
            if outer:
                raise ValueError(
                    f"{WHO}: rope_parameters must be nested by layer type, {_listed(labels)}, or not at all; "
                    f"got {outer} beside"
                )
            return None if inner is None else _Keys(f"rope_parameters of {label!r}", inner)
        if parameters:
            if len(family.by_layer) > 1:
                raise ValueError(
                    f"{WHO}: rope_parameters of model_type {self.model_type!r} must be nested by layer type, "
                    f"{_listed(family.by_layer)}; got {parameters}"
                )
            return _Keys("rope_parameters", parameters)
        ignored = self.compat and (
            family.special == "cohere2_moe" or (family.by_layer and scaling and "rope_type" not in scaling)
        )
        if scaling and not ignored:
            return _Keys("rope_scaling", scaling)
        row = {**family.by_layer.get(label or "", {})}
        return _Keys("the family's default", row.get("block", family.block))

    def _scaled(self, block: _Keys) -> _Keys:
        """The block, or none where a legacy scaling is not for this layer; it must make sense all the same."""
        if block.name != "rope_scaling" or self.family.scaled:
            return block
        self._embedding(block, None, None, dry=True)
        return _Keys("no block", {})

    # The embedding.

    def _embedding(
        self, block: _Keys, layer: int | None, layer_type: str | None, dry: bool = False
    ) -> RotaryEmbedding | None:
        family, keys = self.family, self.keys
        head_dim = self._head_dim(layer_type)
        base = self._base(block, layer, layer_type, dry)
        rotary_dim = self._rotary_dim(block, head_dim, layer, layer_type, dry)
        scaling = self._rule(block)
        sections = self._sections(block, rotary_dim)
        for name in (*family.unread, *UNREAD):
            block.get(name)
        left = block.unread()
        if left:
            raise ValueError(
                f"{WHO}: every key of {block.name} must be read; got {left}, beside "
                f"{_listed(block.read & block.mapping.keys())}"
            )
        keys.get(*SILENT, first=True)
        for name in SILENT_IF_NULL:
            if name in keys.mapping and keys.mapping[name] is None:
                keys.read.add(name)
        if rotary_dim == 0:
            return None
        row: dict[str, Any] = {"head_dim": head_dim, "layout": self._layout(), "blocks": family.blocks}
        if family.last:
            row["first_channel"] = head_dim - rotary_dim
        if family.special == "dinov3":
            own = tuple(2 * pi * w for w in geometric(base, rotary_dim // 2))
            none = (0.0,) * len(own)
            return RotaryEmbedding(**row, inv_freq=(own + none, none + own))
        if family.special == "esmfold2":
            return RotaryEmbedding(**row, inv_freq=self._esmfold2(head_dim))
        if rotary_dim % 2:
            if scaling is not None:
                raise ValueError(f"{WHO}: the rotated width must be even with {scaling}; got {rotary_dim}")
            return RotaryEmbedding(**row, inv_freq=geometric(base, 2 * rotary_dim)[::2])
        if sections is not None:
            rotary_dim = 2 * sections.pairs
        return RotaryEmbedding(
            **row, base=base, rotary_dim=rotary_dim, scaling=scaling, sections=sections, reverse=family.reverse
        )

    def _head_dim(self, layer_type: str | None) -> int:
        keys, family = self.keys, self.family
        tried = []
        if family.special == "per_layer_head_dim":
            own = keys.get("per_layer_config") or {}
            types = self._layer_types()
            widths = {
                each["head_dim"]
                for index, each in own.items()
                if "head_dim" in each and (not types or types[int(index)] == layer_type)
            }
            if layer_type == "full_attention" and len(widths) == 1 and "global_head_dim" not in keys.mapping:
                return widths.pop()
        for way in family.head_dim:
            if isinstance(way, int):
                return way
            names = way.split("/")
            tried.append(way.replace("/", " / "))
            values = [keys.get(name) for name in names]
            if any(value is None for value in values):
                continue
            width, *divisors = (checks.count(WHO, name, value) for name, value in zip(names, values))
            for name, divisor in zip(names[1:], divisors):
                if not divisor:
                    raise ValueError(f"{WHO}: {name} must be at least 1; got 0")
                width //= divisor
            return width
        raise ValueError(f"{WHO}: {' or '.join(tried)} must be given; got neither in {keys.name}")

    def _base(self, block: _Keys, layer: int | None, layer_type: str | None, dry: bool) -> float:
        family, keys = self.family, self.keys
        if family.base_fixed:
            return family.base
        inner = block.get("rope_theta")
        names = family.base_keys or BASE_KEYS
        if family.base_keys and not family.by_layer:
            names = (*family.base_keys, *BASE_KEYS)
        outer = keys.get(*names)
        if family.special == "dbrx" and not self.compat:
            attention = _Keys("attn_config", keys.get("attn_config") or {})
            outer = attention.get("rope_theta") if outer is None else outer
        if family.special == "layer_rope_theta" and self.model_type != "muse_glimmer_text":
            listed = keys.get("layer_rope_theta")
            if listed and not dry:
                bases = {float(each) for each in (listed if layer is None else [listed[layer]]) if each}
                if len(bases) != 1:
                    raise ValueError(f"{WHO}: layer must be given, as bases differ; got layer=None for {listed}")
                return bases.pop()
        if family.special == "lists":
            outer = self._of_layer("rope_theta", outer, layer, layer_type, dry)
        given = block.name != "the family's default"
        if self.compat:
            ignored = self.model_type in ("gpt_neox", "gpt_neox_japanese", "modernbert", "modernbert-decoder")
            if ignored and keys.mapping.get("rope_theta") is not None:
                outer = keys.get(*[name for name in names if name != "rope_theta"])
            if self.model_type == "olmo3" and not family.scaled:
                outer = None
            outer = None if inner is not None else outer
        if given and inner is not None and outer is not None and inner != outer:
            raise ValueError(
                f"{WHO}: the base must be said once; got rope_theta={inner} in {block.name} and {outer} beside it"
            )
        base = inner if outer is None else outer
        if base is None:
            base = family.base
        if not base:
            raise ValueError(f"{WHO}: rope_theta, the base, must be given for model_type {self.model_type!r}; got none")
        return checks.at_least(WHO, "rope_theta", base, 1.0)

    def _of_layer(self, name: str, value: Any, layer: int | None, layer_type: str | None, dry: bool) -> Any:
        """A number that may be a list of one for each layer."""
        if not isinstance(value, (list, tuple)) or dry:
            return None if isinstance(value, (list, tuple)) else value
        if layer is not None and not self.compat:
            return value[layer]
        types = self._layer_types()
        if layer is not None:
            layer_type = types[layer] if types else layer_type
        found = [each for each, kind in zip(value, types) if kind == layer_type] or list(value)
        if not self.compat and any(each != found[0] for each in found):
            raise ValueError(f"{WHO}: layer must be given, as layers differ in {name}; got layer=None for {value}")
        return found[0]

    def _rotary_dim(self, block: _Keys, head_dim: int, layer: int | None, layer_type: str | None, dry: bool) -> int:
        """How many channels turn; odd where upstream rounds a share up to one pair more."""
        family, keys = self.family, self.keys
        inner = block.get(*PARTIAL_KEYS)
        outer = keys.get(*PARTIAL_KEYS)
        given = block.name != "the family's default"
        if family.special == "lists":
            listed = keys.get("partial_rotary_factors")
            outer = self._of_layer("partial_rotary_factors", listed, layer, layer_type, dry)
        width = keys.get("rotary_dim")
        if width is not None:
            width = checks.count(WHO, "rotary_dim", width)
        if self.compat:
            if self.model_type in ("bamba", "gpt_neox", "gpt_neox_japanese"):
                outer = keys.get("rotary_pct") if self.model_type != "bamba" else None
            width = None if family.special == "rotary_dim_unread" else width
            outer = None if inner is not None and given else outer
        if block.mapping.get("rope_type", block.mapping.get("type")) == "proportional":
            return head_dim
        if inner is not None and outer is not None and given and inner != outer:
            raise ValueError(
                f"{WHO}: partial_rotary_factor must be said once; got {inner} in {block.name} and {outer} beside it"
            )
        share = next((each for each in ((inner, outer) if given else (outer, inner)) if each is not None), None)
        if family.special == "efficientloftr":
            heads = checks.count(WHO, "num_attention_heads", keys.get("num_attention_heads") or 8)
            if share is not None and checks.positive(WHO, "partial_rotary_factor", share) != heads / 2:
                raise ValueError(
                    f"{WHO}: partial_rotary_factor must be num_attention_heads / 2 = {heads / 2:g}, as the whole "
                    f"hidden state turns; got {share}"
                )
            return head_dim
        if family.special == "mistral4":
            whole = head_dim + (keys.get("qk_nope_head_dim") or head_dim)
            if share is not None and int(whole * checks.share(WHO, "partial_rotary_factor", share)) != head_dim:
                raise ValueError(
                    f"{WHO}: partial_rotary_factor must be qk_rope_head_dim / (qk_nope_head_dim + qk_rope_head_dim); "
                    f"got {share}"
                )
            return head_dim
        if family.special == "deepseek_v4":
            width = keys.get("qk_rope_head_dim") if width is None else width
        if family.special == "clvp":
            heads = checks.count(WHO, "num_attention_heads", keys.get("num_attention_heads"))
            width = max((keys.get("projection_dim") or 768) // (2 * heads), 32)
        if family.special == "gptj":
            width = head_dim if "rotary_dim" in keys.mapping and width is None else (64 if width is None else width)
            if keys.get("rotary") is False:
                raise ValueError(f"{WHO}: rotary must be true; got false")
        found = width
        if share is not None or found is None:
            share = family.partial if share is None else checks.share(WHO, "partial_rotary_factor", share)
            found = int(head_dim * share)
        if width is not None and width != found:
            raise ValueError(
                f"{WHO}: the rotated width must be said once; got {width} channels and "
                f"partial_rotary_factor={share} of {head_dim}"
            )
        if family.special == "musicflamingo":
            found = 2 * found
        if found > head_dim:
            raise ValueError(f"{WHO}: the rotated width must be at most head_dim={head_dim}; got {found}")
        return found

    def _rule(self, block: _Keys) -> Scaling | None:
        """The scaling rule of a block."""
        named = block.get("rope_type", "type", first=True)
        both = {str(block.mapping[name]) for name in ("rope_type", "type") if block.mapping.get(name) is not None}
        rope_type = "default" if named is None else named
        if not isinstance(rope_type, str) or (rope_type not in RULES and rope_type not in ALIASES):
            raise ValueError(f"{WHO}: rope_type must be {_listed({*RULES, *ALIASES})}; got {rope_type!r}")
        if len({ALIASES.get(each, each) for each in both}) > 1:
            raise ValueError(f"{WHO}: rope_type and type must not contradict each other; got {sorted(both)}")
        rope_type = ALIASES.get(rope_type, rope_type)
        if self.family.special == "phi3" and rope_type == "yarn":
            rope_type = "longrope"
        rule = RULES[rope_type]
        names = [each.name for each in fields(rule) if each.name not in ("seq_len", "max_position_embeddings")]
        if self.family.special != "phimoe":
            names = [name for name in names if name not in ("short_mscale", "long_mscale")]
        values: dict[str, Any] = {name: block.get(name) for name in names}
        if "original_max_position_embeddings" in values:
            values["original_max_position_embeddings"] = self._original_length(block)
        else:
            self.keys.get("original_max_position_embeddings")
        length = self.keys.get("max_position_embeddings", "max_sequence_length", "n_positions", first=True)
        if block.mapping.get("max_position_embeddings") is not None:
            length = block.get("max_position_embeddings")
        if rule is Scaling:
            return None
        derived = rule is LongRopeScaling or (rule is YarnScaling and "factor" in block.mapping)  # YaRN's may be null
        if derived and values["factor"] is None and length is not None:
            length = checks.positive(WHO, "max_position_embeddings", length)
            values["factor"] = length / values["original_max_position_embeddings"]
        if rule is DynamicNTKScaling:
            alpha = block.get("alpha") if self.family.special == "alpha" else None
            if alpha is not None:
                beyond = self.seq_len is not None and length is not None and self.seq_len > length
                if not (self.compat and beyond):
                    return NTKScaling(factor=alpha)
            values["max_position_embeddings"] = length
        if rule in (DynamicNTKScaling, LongRopeScaling):
            values["seq_len"] = self.seq_len
        if rule is YarnScaling and self.family.special == "deepseek_v4" and block.name == "rope_scaling":
            values.setdefault("attention_factor", None)
            values["attention_factor"] = values["attention_factor"] or 1.0
        if self.family.special == "phimoe" and self.compat and rule is LongRopeScaling:
            values["long_factor"] = values["short_factor"]
        values = {name: value for name, value in values.items() if value is not None}
        missing = [each.name for each in fields(rule) if each.default is _MISSING and each.name not in values]
        if missing:
            raise ValueError(
                f"{WHO}: {block.name} of type {rope_type!r} must have {_listed(missing)}; got {_listed(block.mapping)}"
            )
        return rule(**values)

    def _original_length(self, block: _Keys) -> Any:
        name = "original_max_position_embeddings"
        inner, outer = block.get(name), self.keys.get(name)
        if inner is not None and outer is not None and inner != outer:
            if self.compat:
                return outer
            raise ValueError(f"{WHO}: {name} must be said once; got {inner} in {block.name} and {outer} beside it")
        if inner is None and outer is None:
            return 4096 if self.family.special == "phi3" else self.keys.get("max_position_embeddings")
        return outer if inner is None else inner

    def _sections(self, block: _Keys, rotary_dim: int) -> Sections | None:
        family = self.family
        if family.order is None:
            return None
        order, pairs = family.order, rotary_dim // 2
        given = block.get("mrope_section", "xdrope_section")
        interleaved, in_glm = block.get("mrope_interleaved"), block.get("mrope_interleaved_glm")
        if in_glm:
            order = "round_robin"
        elif interleaved is not None:
            if checks.boolean(WHO, "mrope_interleaved", interleaved) != (order == "interleaved") and family.base:
                raise ValueError(
                    f"{WHO}: mrope_interleaved must be {order == 'interleaved'} for model_type {self.model_type!r}; "
                    f"got {interleaved}"
                )
            order = "interleaved" if interleaved else order
        if given is None and family.sizes is None:
            return (
                Sections((pairs // family.axes,) * family.axes, order, family.axis_of_section)
                if family.axes > 1
                else None
            )
        sizes = family.sizes if given is None else given
        if not isinstance(sizes, (list, tuple)):
            raise TypeError(f"{WHO}: mrope_section must be a list of int; got {sizes!r}")
        sizes = tuple(checks.count(WHO, "every mrope_section", size) for size in sizes)
        if self.compat and order == "interleaved" and len(sizes) == 3:
            sizes = _clamped(sizes, pairs)
        if sum(sizes) != pairs:
            raise ValueError(f"{WHO}: mrope_section must sum to the {pairs} pairs that turn; got {list(sizes)}")
        return Sections(sizes, order, family.axis_of_section)

    def _layout(self) -> str:
        family, keys = self.family, self.keys
        layout = family.layout
        interleave = keys.get("rope_interleave")
        if interleave is not None:
            interleave = checks.boolean(WHO, "rope_interleave", interleave)
            if family.interleave_key and not interleave:
                layout = "half"
            elif interleave != (layout != "half"):
                raise ValueError(
                    f"{WHO}: rope_interleave must be {layout != 'half'} for model_type {self.model_type!r}; "
                    f"got {interleave}"
                )
        neighbours = keys.get("rotary_emb_interleaved")
        if neighbours is not None:
            layout = "interleaved" if checks.boolean(WHO, "rotary_emb_interleaved", neighbours) else layout
        return layout

    def _esmfold2(self, head_dim: int) -> tuple[Any, ...]:
        """Coordinates x, y and z, and an index; the pairs that are left stand still."""
        each, index = self.keys.get("num_spatial_rope_pairs_per_axis"), self.keys.get("num_uid_rope_pairs")
        each, index = 2 if each is None else each, 10 if index is None else index
        spatial = self.keys.get("spatial_rope_base_frequency") or 20.0
        own = geometric(checks.at_least(WHO, "spatial_rope_base_frequency", spatial, 1.0), 2 * each)
        of_index = self.keys.get("uid_rope_base_frequency") or 10_000.0
        last = geometric(checks.at_least(WHO, "uid_rope_base_frequency", of_index, 1.0), 2 * index)
        rows, pairs = [own, own, own, last], head_dim // 2
        if 3 * each + index > pairs:
            raise ValueError(f"{WHO}: {3 * each + index} pairs must fit into head_dim={head_dim}; got too many")
        starts = [each * axis for axis in range(4)]
        return tuple((0.0,) * s + row + (0.0,) * (pairs - s - len(row)) for s, row in zip(starts, rows))


_MISSING = fields(LinearScaling)[0].default


def _clamped(sizes: tuple[int, ...], pairs: int) -> tuple[int, ...]:
    """Sections as upstream's slices leave them: as many as there are turns, and the rest for the first axis."""
    _, height, width = sizes
    height, width = min(height, (pairs + 1) // 3), min(width, pairs // 3)
    return pairs - height - width, height, width


def _mapping(config: Any) -> Mapping[str, Any]:
    """What a config holds."""
    if isinstance(config, Mapping):
        return config
    if isinstance(config, (str, os.PathLike)):
        with open(config, encoding="utf-8") as file:
            try:
                found = json.load(file)
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"{WHO}: {os.fspath(config)} must be JSON; got {error.msg} on line {error.lineno}, "
                    f"column {error.colno}"
                ) from None
    elif hasattr(config, "to_dict"):
        found = config.to_dict()
    else:
        raise TypeError(f"{WHO}: config must be a path, a mapping or an object with to_dict(); got {config!r}")
    if not isinstance(found, Mapping):
        raise TypeError(f"{WHO}: config must hold a mapping; got {type(found).__name__}")
    return found


def _part(config: Mapping[str, Any], part: str | None) -> tuple[Mapping[str, Any], str]:
    """The part of a config that is meant, and its `model_type`."""
    model_type = config.get("model_type")
    parts = PARTS.get(model_type or "", {})
    if part is None and ("text" not in parts and not isinstance(config.get("text_config"), Mapping)):
        if model_type in FAMILIES or not parts:
            return config, str(model_type)
        raise ValueError(f"{WHO}: part must be one of {_listed(parts)} for model_type {model_type!r}; got None")
    if part is None and model_type in FAMILIES and not isinstance(config.get("text_config"), Mapping):
        return config, str(model_type)
    wanted = "text" if part is None else part
    path, usual = parts.get(wanted, (wanted if wanted in config else f"{wanted}_config", ""))
    found: Any = config
    for key in path.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping):
        if wanted == "text" and usual:  # older configs have the keys of text beside those of other parts
            return config, usual
        subs = [key for key, value in config.items() if isinstance(value, Mapping) and "_config" in key]
        raise ValueError(f"{WHO}: part must be one of {_listed({*parts, *subs})}; got {part!r}")
    if part is None:
        lost = {key: config[key] for key in config if SPEAKS.search(key) and found.get(key) != config[key]}
        lost = {key: value for key, value in lost.items() if value is not None or key not in SILENT}
        if lost:
            raise ValueError(f"{WHO}: keys of rotation must stand in {path}; got {lost} beside it")
    own = found.get("model_type")
    if not own or own == model_type:
        own = usual or own
    return found, str(own)


def _has_sections(config: Mapping[str, Any]) -> bool:
    blocks = [config.get("rope_scaling") or {}, config.get("rope_parameters") or {}]
    return any("mrope_section" in block for block in blocks)


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(sorted(str(name) for name in names))
