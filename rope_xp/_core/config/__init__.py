"""From a checkpoint's config to its rotary embedding, by the table of `families.py`. Nothing here imports a framework.

Every key of the rotary block, and every key beside it that speaks of rotation, is read or is an error.
"""

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple, TypeAlias, overload

from rope_xp._core import checks
from rope_xp._core.channels import LAYOUTS, Layout
from rope_xp._core.config.block import block_of, embedding_of
from rope_xp._core.config.families import FAMILIES
from rope_xp._core.config.family import Axes, Family
from rope_xp._core.config.keys import BASE_KEYS, WHO, Keys, comma_separated, shortened, speaks
from rope_xp._core.config.layers import LayerConfig, is_rotated, label_of, layer_type_of
from rope_xp._core.config.parts import DEFAULTS_IN_COMPOSITE, part_of, sub_configs
from rope_xp._core.config.remote import NOT_ROTARY, UNROTATED, in_known_spelling
from rope_xp._core.config.source import check_size, mapping_of
from rope_xp._core.config.upstream import as_upstream, remarks
from rope_xp._core.embedding import RotaryEmbedding, with_provenance
from rope_xp._core.provenance import Provenance, joined

# For a model that has no rotary embedding. With `Any` in place of None a type checker lets the result be used as it is.
MaybeNone: TypeAlias = Any

COMPATS = {"transformers": "what transformers 5.18 computes, also where that is a mistake"}


@overload
def from_config(
    config: Any,
    *,
    part: str | None = None,
    layer: None = None,
    layer_type: None = None,
    seq_len: int | None = None,
    layout: Layout | None = None,
    compat: Literal["transformers"] | None = None,
) -> RotaryEmbedding | MaybeNone: ...
@overload
def from_config(
    config: Any,
    *,
    part: str | None = None,
    layer: int | None = None,
    layer_type: str | None = None,
    seq_len: int | None = None,
    layout: Layout | None = None,
    compat: Literal["transformers"] | None = None,
) -> RotaryEmbedding | None: ...
def from_config(
    config: Any,
    *,
    part: str | None = None,
    layer: int | None = None,
    layer_type: str | None = None,
    seq_len: int | None = None,
    layout: Layout | None = None,
    compat: Literal["transformers"] | None = None,
    strict: bool = False,
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
    strict : bool
        Refuse to take a default of the family, or any other value that the config does not state; without it,
        `describe` marks such values. What a `model_type` always means, such as the pairing, is no default.

    Returns
    -------
    RotaryEmbedding or None
        None where the layer is not rotated; without `layer` and `layer_type`, where the model has no rotary embedding
        at all. The annotation has `Any` in place of this second None, so that type checkers ask for a test of the
        result only where a layer was named.

    Raises
    ------
    ValueError
        If a key is unknown, missing or contradicts another, a value is out of range, the family is unknown, or layers
        differ and none is named. Also if a file is no JSON, has a key twice, or is no regular file; if a config is
        beyond any that a model has (16 MB, 32 levels, a million values, 16,384 layers or channels of a head); or if a
        value is not stated and `strict` is true.
    TypeError
        If a value is of the wrong kind.
    FileNotFoundError
        If there is no such file on this machine; a model of the Hub must be downloaded first.

    Notes
    -----
    Keys are matched as they are spelled; one that a config has in other letters (`Rope_Theta`) is an error. So is a key
    of another kind of position (`alibi`, `no_pos_emb`, `position_embedding_type`) unless it denies it or names a rotary
    one. The numbers of a scaling rule that have a default of the rule's own, such as YaRN's `beta_fast`, are no
    defaults of a family: `strict` does not ask for them.

    With ``compat="transformers"``: `alpha` is forgotten beyond `max_position_embeddings` (Hunyuan); `truncate` of a
    block that is nested by layer type is not read; Phi-3.5-MoE never uses `long_factor`; `rope_scaling` spelled with
    `type` is not read where layer types differ, nor at all by Cohere2-MoE; a top-level
    `original_max_position_embeddings` wins over the block's; a block wins over top-level keys that contradict it; a
    default block wins over a top-level base and share; a block that states no base has 10,000 in Ministral 3, Higgs
    Audio and PE; most families rotate the whole head, whatever `partial_rotary_factor` or `rotary_dim` is, and fail
    where a scaling rule reads that share (refused here); keys of other families are not read; OLMo-3's sliding layers
    and ModernBERT do not read `rope_theta`, GPT-NeoX neither that nor `partial_rotary_factor`, DBRX not the base of
    `attn_config`, Bamba no top-level share; Step-3.5 has one base for each layer type, that of the first; and
    interleaved sections that do not fit lose pairs to the first axis. HunYuan-VL's tables in transformers are no
    rotation, and are refused. Two families are as in 5.18, which 5.23 corrected: axes of Step-3.7's tower are (height,
    width), and Cohere Compass has sections [22, 22, 20] of alternating axes. Mistral Large 4 has the frequencies of a
    model that is not trained; without `compat` it is refused, as its checkpoint multiplies them by weights. Keys beside
    a part are not read.

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
    try:
        choice = _checked_choice(layer, layer_type, seq_len, compat, part, layout)
        return _from_config(config, part, layout, checks.boolean(WHO, "strict", strict), choice)
    except (TypeError, ValueError, OSError) as error:
        message = shortened(error)
        if message == str(error):
            raise
        kinds = (TypeError, ValueError, FileNotFoundError, PermissionError, OSError)
        kind = next(kind for kind in kinds if isinstance(error, kind))
        raise kind(message).with_traceback(error.__traceback__) from None


class Choice(NamedTuple):
    """Which layer of a config is meant, and how it is read."""

    layer: int | None
    layer_type: str | None
    seq_len: int | None
    compat: str | None


def _checked_choice(layer: Any, layer_type: Any, seq_len: Any, compat: Any, part: Any, layout: Any) -> Choice:
    check_size([part, layer, layer_type, seq_len])
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
    return Choice(layer, layer_type, seq_len, compat)


def _from_config(config: Any, part: Any, layout: Any, strict: bool, choice: Choice) -> RotaryEmbedding | None:
    whole = mapping_of(config)
    mapping, model_type, outside = part_of(whole, part)
    if model_type in UNROTATED:
        return None
    family = _family_of(mapping, model_type, layout)
    defaults = DEFAULTS_IN_COMPOSITE.get((whole.get("model_type"), model_type), {})
    family = replace(family, defaults={**family.defaults, **defaults})
    rope, provenance = _read(mapping, model_type, family, choice)
    if (
        outside
        and choice.compat is None
        and not _says_the_same(rope, {**mapping, **outside}, model_type, family, choice)
    ):
        raise ValueError(f"{WHO}: keys of rotation must stand in the part, not beside it; got {outside}")
    if strict and provenance.defaults:
        defaults = joined(provenance.defaults)
        raise ValueError(f"{WHO}: every value must be in the config with strict=True; got {defaults}")
    return None if rope is None else with_provenance(rope, provenance)


def _family_of(mapping: Mapping[str, Any], model_type: str, layout: str | None) -> Family:
    """The row of a family; with a layout, the family may be unknown."""
    family = FAMILIES.get(model_type)
    if family is None and (model_type in NOT_ROTARY or layout is None):
        raise _unknown(mapping, model_type)
    if family is None:
        family = Family({"rope_theta": None}, axes=Axes("chunked", any_order=True))
    if layout is None:
        return family
    return replace(family, pairing=replace(family.pairing, layout=layout, from_caller=True))


def _unknown(mapping: Mapping[str, Any], model_type: str) -> ValueError:
    """The error for a family without a row."""
    if model_type in NOT_ROTARY:
        return ValueError(
            f"{WHO}: model_type must be of a family with a rotary embedding; got {model_type!r}, whose attention has "
            f"{NOT_ROTARY[model_type]}"
        )
    if not model_type:
        return ValueError(f"{WHO}: model_type must be in the config, or layout be given; got neither")
    like = ", ".join(get_close_matches(model_type[:100], FAMILIES)) or "no such name"
    parts = comma_separated(sub_configs(mapping))
    among = f", or part be one of {parts}" if parts else ""
    return ValueError(
        f"{WHO}: model_type must be one of the {len(FAMILIES)} rotary families that rope_xp knows, or layout be given"
        f"{among}; got {model_type!r}, which is like {like}"
    )


def _says_the_same(rope: Any, mapping: Mapping[str, Any], model_type: str, family: Family, choice: Choice) -> bool:
    try:
        return _read(mapping, model_type, family, choice)[0] == rope
    except (TypeError, ValueError):  # they contradict each other
        return False


def _read(
    mapping: Mapping[str, Any], model_type: str, family: Family, choice: Choice
) -> tuple[RotaryEmbedding | None, Provenance]:
    """One part of a config, by its family's row, and which of its values the config does not state."""
    keys = Keys(f"the config of model_type {model_type!r}" if model_type else "the config", mapping, model_type)
    layer, _, seq_len, compat = choice
    in_known_spelling(keys, seq_len)
    if compat is not None:
        keys.mapping, family = as_upstream(keys.mapping, model_type, family, seq_len)
    layer_type = layer_type_of(keys, family, layer, choice.layer_type)
    label = label_of(family.layers, layer_type)
    block = block_of(keys, family, label)
    rotated = is_rotated(keys, family, layer, layer_type)
    choices = tuple(keys.defaults.values())  # those that decide which layer is meant, and whether it is rotated
    rope = None
    if block is not None:
        where, own = layer if rotated else ..., family.layers.by_type.get(label)
        row, scaled = family.of_type(label), own is None or own.scaled
        rope = embedding_of(LayerConfig(keys, block, row, where, layer_type, seq_len, scaled))
        keys.remarks += [] if compat else remarks(keys.mapping, block.mapping, model_type, family)
    _remark_on_chunks(keys)
    _finish(keys, family, mapping)
    if rope is None or not rotated:
        return None, Provenance(choices)
    return rope, Provenance(tuple(keys.defaults.values()), tuple(keys.remarks))


def _finish(keys: Keys, family: Family, mapping: Mapping[str, Any]) -> None:
    """All other keys that state something about rotation must have been read."""
    for of_type in family.layers.by_type.values():
        keys.ignore(*(of_type.base_keys or BASE_KEYS))  # other layer types read those
    keys.finish(speaks)
    if mapping and not mapping.get("model_type") and not keys.stated():
        raise ValueError(f"{WHO}: {keys.name} must have a key that is known; got {comma_separated(mapping)}")


def _remark_on_chunks(keys: Keys) -> None:
    """Dual chunk attention rotates as usual within a chunk; what is further apart is the work of attention."""
    chunks = keys.within("dual_chunk_attention_config")
    if chunks.mapping:
        size = chunks.count("chunk_size")
        keys.remarks.append(
            f"dual_chunk_attention_config is not applied: beyond chunk_size={size} tokens, attention has to choose "
            "the positions of queries for each chunk of keys"
        )
