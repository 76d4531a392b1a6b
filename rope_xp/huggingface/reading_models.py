"""`from_transformers`: the value that explains the rotary module of the installed transformers for a config."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from itertools import product, takewhile
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedConfig, PreTrainedModel, initialization
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from rope_xp.arrays import checks
from rope_xp.configs.parts import PARTS
from rope_xp.configs.readers.formats import mapping_of
from rope_xp.embedding import RotaryEmbedding
from rope_xp.errors import public, wrong, wrong_type, wrong_value
from rope_xp.huggingface.guard import float32_on_cpu
from rope_xp.huggingface.probing import (
    AttentionRotation,
    NotReached,
    RotaryAttention,
    calls_apply_function,
    takes_tables,
)
from rope_xp.huggingface.rotary import nested_layer_types
from rope_xp.huggingface.same_tables import is_rotary, is_rotary_class
from rope_xp.identification.probe import Probe
from rope_xp.identification.search import LONGEST, identification_of

# Some layers of a model do not rotate. So many layers of one kind are tried.
MAX_FAILURES = 5
# Attributes in which attentions of one class may differ, and their rotation with them.
OF_KIND = ("head_dim", "layer_type", "rope_layer_type", "is_sliding")


@public("from_transformers")
def from_transformers(
    config: object, *, part: str | None = None, layer_type: str | None = None, seq_len: int | None = None
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

    Layers that do not rotate, as all of Falcon with ``alibi=True``, are not told apart: `rope_xp.from_config` does it.

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
        text = str(error)
        kinds = (TypeError, ValueError, FileNotFoundError, PermissionError, OSError)
        kind = next(kind for kind in kinds if isinstance(error, kind))
        raise kind(text if len(text) < 1_000 else f"{text[:990]} ...") from error


def _config_of(config: Any) -> PreTrainedConfig:
    if isinstance(config, PreTrainedConfig):
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


def _part_of(config: PreTrainedConfig, part: str | None) -> PreTrainedConfig:
    wanted = "text" if part is None else part
    path = PARTS.get(config.model_type, {}).get(wanted, (wanted, ""))[0]
    for names in (path, f"{path}_config"):
        found = config
        for name in names.split("."):
            found = getattr(found, name, None)
        if isinstance(found, PreTrainedConfig):
            return found
    if part is None:
        return config
    known = ", ".join(sorted(name for name, value in vars(config).items() if isinstance(value, PreTrainedConfig)))
    raise wrong_value(f"part must be {f'one of {known}' if known else 'None for this config'}; got {part!r:.100}")


class _NoLayers(ValueError):
    """No attention applies the tables of a rotary module."""


def _identified(config: PreTrainedConfig, layer_type: str | None, seq_len: int | None) -> RotaryEmbedding:
    """The value of all layers, or of those of one type, which must agree."""
    try:
        pairs = rotary_attentions_of(config)
    except ValueError as error:
        raise wrong_value(f"transformers must build a model with a rotary module; got {error}") from error
    labels: list[str | None] = [*nested_layer_types(config)] or [None]
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
    value, *others = dict.fromkeys(found.values())
    if others:
        raise wrong_value(f"layer_type must be one of {', '.join(map(repr, found))}, which differ; got None")
    return value


def _of_layers(
    pairs: list[RotaryAttention], config: PreTrainedConfig, label: str | None, seq_len: int | None
) -> RotaryEmbedding:
    values, problems, failures = {}, {}, Counter()
    for pair in _of_type(pairs, config, label):
        of_layer = (getattr(pair.attention, name, None) for name in OF_KIND)
        kind = (type(pair.attention), pair.own or pair.rotary_name, *of_layer)
        if kind in values or failures[kind] >= MAX_FAILURES:
            continue
        try:
            rotation = AttentionRotation(pair, label, seq_len)
        except ValueError as error:
            problems[f"{type(pair.attention).__name__}: {error}"] = None
            failures[kind] += 1 if isinstance(error, NotReached) else MAX_FAILURES
            continue
        values[kind] = _value(rotation)
    if not values:
        raise wrong(_NoLayers, f"an attention must apply the tables of a rotary module; got {'; '.join(problems)}")
    if len(different := list(dict.fromkeys(values.values()))) > 1:
        names = ", ".join(f"{cls.__name__} with {rotary}" for cls, rotary, *_ in values)
        raise wrong_value(f"all layers must be rotated alike; got {len(different)} rotations: {names}")
    return different[0]


def _of_type(pairs: list[RotaryAttention], config: PreTrainedConfig, label: str | None) -> list[RotaryAttention]:
    """The pairs whose attention is in a layer of this type; all of them if no attention says its type."""
    types = getattr(config, "layer_types", None) or ()

    def type_of(attention: Module) -> str | None:
        index = getattr(attention, "layer_idx", None)
        by_index = types[index] if isinstance(index, int) and index < len(types) else None
        return getattr(attention, "layer_type", None) or by_index

    return [pair for pair in pairs if label is None or type_of(pair.attention) == label] or pairs


def _value(rotation: AttentionRotation) -> RotaryEmbedding:
    def fn(x: Tensor, positions: Tensor) -> Tensor:
        return rotation(x, positions.reshape(rotation.format.axes, -1))

    probe = Probe(fn, rotation.width, shape="seq dim", like=torch.zeros(()), axes=rotation.format.axes)
    found = identification_of(probe, LONGEST if rotation.seq_len is None else max(rotation.seq_len, 8))
    if found.rope is None or found.offset:
        unexplained = f"a function that no value explains. {' '.join(found.reasons)}"
        got = unexplained if found.rope is None else f"angles of position + {found.offset:g}, which no value has"
        rotary = type(rotation.pair.rotary).__name__
        raise wrong_value(f"{rotation.name} with the tables of {rotary} must be a rotary embedding; got {got}")
    if rotation.head_width == rotation.width:
        return found.rope
    return found.rope.replace(head_dim=rotation.head_width, rotary_dim=2 * found.rope.pairs)


def rotary_attentions_of(config: PreTrainedConfig) -> list[RotaryAttention]:
    """The pairs of the first model of a config that has any; without one, those of its classes alone."""
    problems = []
    classes = _classes(config)
    models = [cls for cls in classes if _takes(cls, config)]
    for cls in dict.fromkeys((*_auto_classes(config), *models)):  # that of `AutoModel` first
        try:
            with torch.device("meta"), initialization.no_init_weights():
                model = cls(config).eval()
            found = list(_pairs(model, config))
            found = [each for each in found if not each.own] or found  # parts of an attention may have their own
        except Exception as error:  # code that is not known may raise anything
            problems.append(f"{cls.__name__}: {type(error).__name__}: {' '.join(str(error).split()):.150}")
            continue
        if found:
            return found
    found = list(_pairs_of_classes(config, classes))
    if not found:
        raise ValueError(problems[0] if problems else f"transformers has no model for {type(config).__name__} alone")
    return found


def _classes(config: PreTrainedConfig) -> list[type[Module]]:
    """The classes of modules in the files of models that take this config."""
    name = type(config).__module__
    names = [each.__module__ for each in _auto_classes(config)]
    names += [name.replace(".configuration_", ".modeling_"), name]
    found = []
    for each in dict.fromkeys(names):
        with suppress(ImportError):
            found += vars(importlib.import_module(each)).values()
    return [each for each in found if inspect.isclass(each) and issubclass(each, Module)]


def _auto_classes(config: PreTrainedConfig) -> tuple[type[PreTrainedModel], ...]:
    try:
        found = MODEL_MAPPING.get(type(config), ())
    except (ImportError, ValueError):  # the file needs a package that is not installed
        return ()
    return tuple(filter(None, found if isinstance(found, tuple) else (found,)))


def _pairs_of_classes(config: PreTrainedConfig, classes: list[type[Module]]) -> Iterator[RotaryAttention]:
    """Pairs of classes that take this config, of a model that cannot be created."""
    parts = [each for each in classes if not issubclass(each, PreTrainedModel)]
    attentions = [each for each in parts if not is_rotary_class(each) and calls_apply_function(each)]
    rotaries = [each for each in parts if is_rotary_class(each)]
    types = list(getattr(config, "layer_types", None) or [None])
    layers = [types.index(each) for each in dict.fromkeys(types)]  # the first of each type
    for attention, rotary, layer in product(_annotated(attentions, config), _annotated(rotaries, config), layers):
        try:
            with torch.device("meta"):
                made = _created(attention, config, layer), _created(rotary, config, layer)
                yield RotaryAttention(made[0], rotary.__name__, made[1])
        except Exception:  # classes of other parts need other arguments
            continue


def _annotated(classes: Sequence[type], config: PreTrainedConfig) -> Sequence[type]:
    """The classes whose signature has this config; all of them if no signature has it."""
    name = re.compile(rf"\b{type(config).__name__}\b")
    return [each for each in classes if name.search(str(inspect.signature(each.__init__)))] or classes


def _created(cls: type[Module], config: PreTrainedConfig, layer: int) -> Module:
    """A module of a layer. Arguments other than the config and the number of the layer have defaults."""
    names = inspect.signature(cls.__init__).parameters
    return cls(config, **{name: layer for name in names if name in ("layer_idx", "layer_id", "layer_number")}).eval()


def _takes(cls: type[Module], config: PreTrainedConfig) -> bool:
    is_of_config = issubclass(cls, PreTrainedModel) and cls.config_class is type(config)
    return is_of_config and not cls.__name__.endswith("PreTrainedModel")


def _pairs(model: Module, config: PreTrainedConfig) -> Iterator[RotaryAttention]:
    rotaries = {name: module for name, module in model.named_modules() if is_rotary(module)}
    if not rotaries:
        raise ValueError("it has no rotary module")
    of_config = {name: each for name, each in rotaries.items() if type(getattr(each, "config", None)) is type(config)}
    if not of_config:
        kinds = sorted({type(each.config).__name__ for each in rotaries.values() if hasattr(each, "config")})
        found = f"a config of another part ({', '.join(kinds)})" if kinds else "no config"
        raise ValueError(f"its rotary modules have {found}")
    attentions = [(name, each) for name, each in model.named_modules() if calls_apply_function(type(each))]
    if not attentions:
        raise ValueError("no attention calls an apply function")
    for name, attention in attentions:
        is_outside = takes_tables(type(attention))
        chosen = {each: rotary for each, rotary in of_config.items() if each.startswith(f"{name}.") != is_outside}
        near = max((_nearness(name, each) for each in chosen), default=None)
        for each, rotary in chosen.items():
            if _nearness(name, each) == near:
                yield RotaryAttention(attention, each, rotary, "" if is_outside else each.removeprefix(f"{name}."))


def _nearness(attention: str, rotary: str) -> tuple[bool, int]:
    """How near two modules are: whether the rotary module is beside a module around the attention; common names."""
    names, others = attention.split("."), rotary.split(".")
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(names, others))))
    return same == len(others) - 1, same
