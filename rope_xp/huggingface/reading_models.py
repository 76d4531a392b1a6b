"""`from_transformers`: the value that explains the rotary module of the installed transformers for a config."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
import transformers

from rope_xp.arrays import checks
from rope_xp.configs.parts import PARTS
from rope_xp.configs.readers.source import mapping_of
from rope_xp.embedding import RotaryEmbedding
from rope_xp.errors import public, wrong, wrong_type, wrong_value
from rope_xp.huggingface.contexts import float32_on_cpu
from rope_xp.huggingface.meta_models import RotaryAttention, pairs_of
from rope_xp.huggingface.probing import AttentionRotation, NotReached
from rope_xp.identification.probe import Probe
from rope_xp.identification.search import LONGEST, Search
from rope_xp.types import Config

# Some layers of a model do not rotate. So many layers of one kind are tried.
MAX_FAILURES = 5
# Attributes in which attentions of one class may differ, and their rotation with them.
OF_KIND = ("head_dim", "layer_type", "rope_layer_type", "is_sliding")


@public("from_transformers")
def from_transformers(
    config: Config, *, part: str | None = None, layer_type: str | None = None, seq_len: int | None = None
) -> RotaryEmbedding:
    """The rotary embedding that the installed transformers computes for a config.

    `rope_xp.from_config` reads a config with a table of the model families that rope_xp knows. This function has no
    table. It builds the model of the config on the meta device, which takes no memory, and its rotary module on the
    CPU. It runs the attention up to the function that rotates queries, and identifies what this function computes; see
    `rope_xp.identify`. So it also knows families that are newer than rope_xp. No weights are read.

    Parameters
    ----------
    config : transformers.PreTrainedConfig, path, or mapping
        The config, or a config.json, its folder or its content. Its `model_type` must be one of the installed
        transformers. Nothing is downloaded, and no code of a checkpoint runs.
    part : str, optional
        The part of a composite config, as for `rope_xp.from_config`: "text" (the default), "vision", or the key of a
        sub-config, such as ``"audio_config"``. A path such as ``"thinker_config.text_config"`` leads to a deeper one.
    layer_type : str, optional
        The type of a layer, such as "sliding_attention", if layers differ.
    seq_len : int, optional
        The length of the sequence in tokens, for rules that depend on it. The default is a sequence within the original
        length.

    Returns
    -------
    RotaryEmbedding
        It reproduces what transformers computes, known bugs included, with exact phases.

    Raises
    ------
    ValueError
        If the installed transformers does not have the family or cannot build its model, no attention applies the
        tables of a rotary module, layers differ and no `layer_type` is given, or no value explains what the functions
        compute. The error gives the reasons. Modules that take no positions, such as those of DINOv3, cannot be
        identified.
    TypeError
        If an argument has the wrong type.
    FileNotFoundError
        If the file does not exist.

    Notes
    -----
    The value rotates the channels that the attention passes to its apply function. If these are the first channels of a
    wider head, the value has the width of the head. If they are others, as in multi-head latent attention, it has their
    number as `head_dim`. The scale of the softmax is not identified. DeepSeek-V3 and a few others multiply it by a
    factor, which `rope_xp.from_config` gives as `softmax_scale`.

    Several position axes are identified one by one, with zeros on the others. The value has `sections` if they explain
    the frequencies, and else a row of `inv_freq` for each axis.

    References
    ----------
    transformers, `modeling_rope_utils.py` and `models/*/modeling_*.py`.

    Examples
    --------
    >>> from transformers import LlamaConfig
    >>> config = LlamaConfig(hidden_size=64, num_attention_heads=4, num_hidden_layers=1)
    >>> from_transformers(config)
    RotaryEmbedding(head_dim=16, layout='half', base=10000.0)
    """
    length = None if seq_len is None else checks.count("seq_len", seq_len)
    for name, value in (("part", part), ("layer_type", layer_type)):
        if value is not None and not isinstance(value, str):
            raise wrong_type(f"{name} must be a string; got {value!r:.100}")
    try:
        with float32_on_cpu():
            return _identified(_part_of(_config_of(config), part), layer_type, length)
    except (TypeError, ValueError, OSError) as error:
        text = str(error).replace("from_config:", "from_transformers:")
        kinds = (TypeError, ValueError, FileNotFoundError, PermissionError, OSError)
        kind = next(kind for kind in kinds if isinstance(error, kind))
        raise kind(text if len(text) < 1_000 else f"{text[:990]} ...") from error


def _config_of(config: Config) -> Any:
    """A config object of transformers, of which changes do not reach the caller."""
    if isinstance(config, transformers.PreTrainedConfig):
        return deepcopy(config)
    mapping = mapping_of(config)
    model_type: Any = mapping.get("model_type")
    if model_type not in transformers.CONFIG_MAPPING:
        raise wrong_value(
            f"model_type must be of a family that transformers {transformers.__version__} has; got {model_type!r:.100}"
        )
    try:
        return transformers.CONFIG_MAPPING[model_type].from_dict(deepcopy(dict(mapping)))
    except Exception as error:  # a config class may raise anything
        raise wrong_value(f"transformers must accept the config; got {type(error).__name__}: {error}") from error


def _part_of(config: Config, part: str | None) -> Any:
    """The config of a part of a composite config."""
    wanted = "text" if part is None else part
    path = PARTS.get(config.model_type, {}).get(wanted, (wanted, ""))[0]
    for names in (path, f"{path}_config"):
        found = config
        for name in names.split("."):
            found = getattr(found, name, None)
        if isinstance(found, transformers.PreTrainedConfig):
            return found
    if part is None:
        return config
    known = ", ".join(
        sorted(name for name, value in vars(config).items() if isinstance(value, transformers.PreTrainedConfig))
    )
    raise wrong_value(f"part must be {f'one of {known}' if known else 'None for this config'}; got {part!r:.100}")


class _NoLayers(ValueError):
    """No attention applies the tables of a rotary module."""


def _identified(config: Config, layer_type: str | None, seq_len: int | None) -> RotaryEmbedding:
    """The value of all layers, or of those of one type, which must agree."""
    try:
        pairs = pairs_of(config)
    except ValueError as error:
        raise wrong_value(f"transformers must build a model with a rotary module; got {error}") from error
    labels = _layer_types(config)
    if layer_type is not None:
        if layer_type not in [*labels, *(getattr(config, "layer_types", None) or ())]:
            known = ", ".join(repr(each) for each in labels if each) or "None"
            raise wrong_value(f"layer_type must be one of {known}; got {layer_type!r:.100}")
        labels = [layer_type]
    found, missing = {}, []
    for label in labels:
        try:
            found[label] = _of_layers(pairs, config, label, seq_len)
        except _NoLayers as error:  # a layer type that this config does not use
            missing.append(error)
    if not found:
        raise missing[0]
    values = list(found.values())
    if any(value != values[0] for value in values[1:]):
        raise wrong_value(f"layer_type must be one of {', '.join(map(repr, found))}, which differ; got None")
    return values[0]


def _layer_types(config: Config) -> list[str | None]:
    """The layer types that have rotary parameters of their own; [None] if there are none."""
    parameters = getattr(config, "rope_parameters", None) or {}
    return [label for label, value in parameters.items() if isinstance(value, Mapping)] or [None]


def _of_layers(pairs: list[RotaryAttention], config: Config, label: str | None, seq_len: int | None) -> RotaryEmbedding:
    """The value that explains what the attentions of a layer type compute."""
    values, problems, failures = {}, {}, Counter()
    for pair in _of_type(pairs, config, label):
        of_layer = (getattr(pair.attention, name, None) for name in OF_KIND)
        kind = (type(pair.attention), pair.own or pair.rotary_name, *of_layer)
        if kind in values or failures[kind] >= MAX_FAILURES:
            continue
        try:
            rotation = AttentionRotation(pair.attention, pair.make_rotary, label, seq_len)
        except ValueError as error:
            problems[f"{type(pair.attention).__name__}: {error}"] = None
            failures[kind] += 1 if isinstance(error, NotReached) else MAX_FAILURES
            continue
        values[kind] = _value(rotation, type(pair.rotary).__name__, seq_len)
    if not values:
        raise wrong(_NoLayers, f"an attention must apply the tables of a rotary module; got {'; '.join(problems)}")
    if len(different := list(dict.fromkeys(values.values()))) > 1:
        names = ", ".join(f"{cls.__name__} with {rotary}" for cls, rotary, *_ in values)
        raise wrong_value(f"all layers must be rotated alike; got {len(different)} rotations: {names}")
    return different[0]


def _of_type(pairs: list[RotaryAttention], config: Config, label: str | None) -> list[RotaryAttention]:
    """The pairs whose attention is in a layer of this type; all of them if no attention says its type."""
    types = getattr(config, "layer_types", None) or ()

    def type_of(attention: object) -> Any:
        index = getattr(attention, "layer_idx", None)
        by_index = types[index] if isinstance(index, int) and index < len(types) else None
        return getattr(attention, "layer_type", None) or by_index

    return [pair for pair in pairs if label is None or type_of(pair.attention) == label] or pairs


def _value(rotation: AttentionRotation, rotary: str, seq_len: int | None) -> RotaryEmbedding:
    """The value that explains one attention."""

    def fn(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return rotation(x, positions.reshape(rotation.axes, -1))

    probe = Probe(fn, rotation.width, shape="seq dim", like=torch.zeros(1), axes=rotation.axes)
    found = Search(probe, LONGEST if seq_len is None else max(seq_len, 8)).run().identification()
    if found.rope is None or found.offset:
        raise wrong_value(
            f"{rotation.name} with the tables of {rotary} must be a rotary embedding; got a function that no "
            f"value explains. {' '.join(found.reasons)}"
        )
    if rotation.head_width == rotation.width:
        return found.rope
    return found.rope.replace(head_dim=rotation.head_width, rotary_dim=2 * found.rope.pairs)
