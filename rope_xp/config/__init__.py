"""From a checkpoint's config to its rotary embedding, by the table of `families.py`. Nothing here imports a framework.

Every key of the rotary block, and every key beside it that speaks of rotation, is read or is an error.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from rope_xp import checks
from rope_xp.config.block import BASE_KEYS, block_of, embedding_of, row_of
from rope_xp.config.families import FAMILIES, PARTS, Family
from rope_xp.config.keys import SPEAKS, WHO, Keys, listed
from rope_xp.config.layers import is_rotated, label_of, layer_type_of
from rope_xp.config.remote import NOT_ROTARY, UNROTATED, in_known_spelling
from rope_xp.config.upstream import as_upstream
from rope_xp.embedding import RotaryEmbedding
from rope_xp.rotation import LAYOUTS, Layout

COMPATS = {"transformers": "what transformers 5.18 computes, also where that is a mistake"}


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
        A config.json or the folder it is in, what it holds, or a config of transformers.
    part : str, optional
        Which part of a composite config: "text" (the default), "vision", "audio", another of its parts, or the key of a
        sub-config.
    layer : int, optional
        Which layer, where layers differ. Without it, layers that are not rotated are not asked about: the embedding is
        that of the others.
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
    fit lose pairs to the first axis. HunYuan-VL's tables in transformers are no rotation, and are refused. Two families
    are as in 5.18, which 5.23 corrected: axes of Step-3.7's tower are (height, width), and Cohere Compass has sections
    [22, 22, 20] of alternating axes. Mistral Large 4 has the frequencies of a model that is not trained; without
    `compat` it is refused, as its checkpoint multiplies them by weights. Keys beside a part are not read.

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
    if seq_len is not None and not 1 <= checks.count(WHO, "seq_len", seq_len) < 2**53:
        raise ValueError(f"{WHO}: seq_len must be at least 1 and below 2**53; got {seq_len}")
    if layer is not None:
        layer = checks.count(WHO, "layer", layer)
    if layer_type is not None and not isinstance(layer_type, str):
        raise TypeError(f"{WHO}: layer_type must be a string; got {layer_type!r}")
    if layer is not None and layer_type is not None:
        raise ValueError(f"{WHO}: layer or layer_type must be given, not both; got {layer} and {layer_type!r}")
    mapping, model_type, beside = _part(_mapping(config), part)
    if model_type in UNROTATED:
        return None
    family = FAMILIES.get(model_type)
    if family is None:
        if model_type in NOT_ROTARY:
            raise ValueError(
                f"{WHO}: model_type must be of a family with a rotary embedding; got {model_type!r}, whose attention "
                f"has {NOT_ROTARY[model_type]}"
            )
        if layout is None:
            near = ", ".join(get_close_matches(model_type, FAMILIES)) or "no such name"
            parts = [str(key) for key, value in mapping.items() if isinstance(value, Mapping) and "_config" in str(key)]
            among = f", or part be one of {listed(parts)}" if parts else ""
            raise ValueError(
                f"{WHO}: model_type must be one of the {len(FAMILIES)} rotary families of rope_xp.config.families, "
                f"or layout be given{among}; got {model_type!r}, which is like {near}"
            )
        family = Family(base=None, order="chunked", any_order=True)
    if layout is not None:
        family = replace(family, layout=layout, layout_said=True)
    choice = (layer, layer_type, seq_len, compat)
    rope = _read(mapping, model_type, family, *choice)
    if beside and compat is None and not _says_the_same(rope, {**mapping, **beside}, model_type, family, *choice):
        raise ValueError(f"{WHO}: keys of rotation must stand in the part, not beside it; got {beside}")
    return rope


def _says_the_same(rope: Any, mapping: Mapping[str, Any], *choice: Any) -> bool:
    try:
        return _read(mapping, *choice) == rope
    except (TypeError, ValueError):  # they contradict each other
        return False


def _read(
    mapping: Mapping[str, Any],
    model_type: str,
    family: Family,
    layer: int | None,
    layer_type: str | None,
    seq_len: int | None,
    compat: str | None,
) -> RotaryEmbedding | None:
    """One part of a config, by its family's row."""
    mapping = in_known_spelling(mapping, model_type, seq_len)
    if compat is not None:
        mapping, family = as_upstream(mapping, model_type, family, seq_len)
    keys = Keys(f"the config of model_type {model_type!r}", mapping)
    layer_type = layer_type_of(keys, family, layer, layer_type)
    label = label_of(family, layer_type)
    block = block_of(keys, family, label)
    rotated = is_rotated(keys, family, layer, layer_type)
    rope = None
    if block is not None:
        row = row_of(family, label)
        rope = embedding_of(keys, block, row, layer if rotated else ..., layer_type, seq_len)
    for row in family.by_layer.values():
        keys.ignore(*row.get("base_keys", BASE_KEYS))  # other layer types read those
    keys.finish(SPEAKS)
    return rope if rotated else None


def _mapping(config: Any) -> Mapping[str, Any]:
    """What a config holds."""
    if isinstance(config, Mapping):
        return config
    if isinstance(config, (str, os.PathLike)):
        path = Path(config)
        with open(path / "config.json" if path.is_dir() else path, encoding="utf-8-sig") as file:
            try:
                found = json.load(file)
            except UnicodeDecodeError as error:
                raise ValueError(f"{WHO}: {path} must be JSON in UTF-8; got {error.reason}") from None
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"{WHO}: {path} must be JSON; got {error.msg} on line {error.lineno}, column {error.colno}"
                ) from None
    elif hasattr(config, "to_dict") and not isinstance(config, type):
        found = config.to_dict()
    else:
        raise TypeError(f"{WHO}: config must be a path, a mapping or an object with to_dict(); got {config!r}")
    if not isinstance(found, Mapping):
        raise TypeError(f"{WHO}: config must hold a mapping; got {type(found).__name__}")
    return found


def _part(config: Mapping[str, Any], part: str | None) -> tuple[Mapping[str, Any], str, dict[str, Any]]:
    """The part of a config that is meant, its `model_type`, and keys of rotation beside it that say something else."""
    model_type = config.get("model_type")
    if model_type is not None and not isinstance(model_type, str):
        raise TypeError(f"{WHO}: model_type must be a string; got {model_type!r}")
    if part is not None and not isinstance(part, str):
        raise TypeError(f"{WHO}: part must be a string; got {part!r}")
    parts = PARTS.get(model_type or "", {})
    if part is None and ("text" not in parts and not isinstance(config.get("text_config"), Mapping)):
        if model_type in FAMILIES or not parts:
            return config, str(model_type), {}
        raise ValueError(f"{WHO}: part must be one of {listed(parts)} for model_type {model_type!r}; got None")
    if part is None and model_type in FAMILIES and not isinstance(config.get("text_config"), Mapping):
        return config, str(model_type), {}
    wanted = "text" if part is None else part
    by_path = dict(parts.values())
    path, usual = parts.get(wanted, (wanted if wanted in config else f"{wanted}_config", by_path.get(wanted, "")))
    found: Any = config
    for key in path.split("."):
        if wanted == "text" and usual and not isinstance(found.get(key), Mapping):
            break  # older configs have the keys of text beside those of other parts
        found = found.get(key) if isinstance(found, Mapping) else None
    if wanted == "text" and model_type in FAMILIES and not isinstance(found, Mapping):
        return config, str(model_type), {}  # text alone
    if not isinstance(found, Mapping):
        subs = [key for key, value in config.items() if isinstance(value, Mapping) and "_config" in str(key)]
        known = listed({*parts, *subs})
        raise ValueError(
            f"{WHO}: part must be {f'one of {known}' if known else 'None for a config without parts'}; got {part!r}"
        )
    beside = {}
    if found is not config and wanted in ("text", "text_config"):
        beside = {key: config[key] for key in config if SPEAKS.search(str(key)) and found.get(key) != config[key]}
        beside = {key: value for key, value in beside.items() if value is not None}
    own = found.get("model_type")
    if usual and (not own or own == model_type or own in PARTS):
        own = usual
    return found, str(own), beside
