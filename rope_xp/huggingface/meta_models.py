"""Models on the meta device, and the pairs of an attention and the rotary module whose tables it applies."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import importlib
import inspect
import re
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel, initialization
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from rope_xp.huggingface.probing import calls_apply_function, takes_tables
from rope_xp.huggingface.same_tables import is_rotary, is_rotary_class
from rope_xp.types import Config


class RotaryAttention(NamedTuple):
    """An attention and the rotary module that makes its tables, both on the meta device.

    `own` is the name of the rotary module in the attention, if it is there.
    """

    attention: Any
    rotary_name: str
    rotary: Any
    own: str = ""

    def make_rotary(self) -> Any:
        """A new rotary module on the CPU, which no call has changed."""
        rotary = type(self.rotary)(self.rotary.config).eval()
        if self.own:
            self.attention.set_submodule(self.own, rotary)
        return rotary


def pairs_of(config: Config) -> list[RotaryAttention]:
    """The pairs of the first model of a config that has any; without one, those of its classes alone.

    Raises ValueError with the reasons if there are none.
    """
    problems = []
    modules = _modules(config)
    for cls in _model_classes(config, modules):
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
    found = list(_pairs_of_classes(config, modules))
    if not found:
        raise ValueError(problems[0] if problems else f"transformers has no model for {type(config).__name__} alone")
    return found


def _modules(config: Config) -> list[Any]:
    """The files with the models of a config: that of the class of `AutoModel`, and those beside the config's file."""
    name = type(config).__module__
    names = [each.__module__ for each in _auto_classes(config)]
    names += [name.replace(".configuration_", ".modeling_"), name]
    modules = []
    for each in dict.fromkeys(names):
        try:
            modules.append(importlib.import_module(each))
        except ImportError:
            continue
    return modules


def _auto_classes(config: Any) -> tuple[Any, ...]:
    try:
        found = MODEL_MAPPING.get(type(config), ())
    except (ImportError, ValueError):  # the file needs a package that is not installed
        return ()
    return tuple(filter(None, found if isinstance(found, tuple) else (found,)))


def _model_classes(config: Config, modules: list[Any]) -> list[type]:
    """The classes of models that take this config: that of `AutoModel`, then others of the same files."""
    others = [each for module in modules for each in vars(module).values() if _takes(each, config)]
    return list(dict.fromkeys((*_auto_classes(config), *others)))


def _pairs_of_classes(config: Config, modules: list[Any]) -> Iterator[RotaryAttention]:
    """Pairs of classes that take this config, of a model that cannot be created."""
    classes = [each for module in modules for each in vars(module).values() if _is_module(each)]
    attentions = [each for each in classes if not is_rotary_class(each) and calls_apply_function(each)]
    rotaries = [each for each in classes if is_rotary_class(each)]
    types: list[Any] = list(getattr(config, "layer_types", None) or [None])
    layers: list[Any] = [types.index(each) for each in dict.fromkeys(types)]  # the first of each type
    chosen: Any = (_annotated(some, config, some) for some in (attentions, rotaries))
    for attention, rotary, layer in product(*chosen, layers):
        try:
            with torch.device("meta"):
                made = _created(attention, config, layer), _created(rotary, config, layer)
                yield RotaryAttention(made[0], rotary.__name__, made[1])
        except Exception:  # classes of other parts need other arguments
            continue


def _is_module(cls: Any) -> bool:
    is_class = inspect.isclass(cls) and issubclass(cls, torch.nn.Module)
    return is_class and not issubclass(cls, PreTrainedModel)


def _annotated(classes: Sequence[type], config: Config, otherwise: Sequence[type]) -> Sequence[type]:
    """The classes whose signature has this config; `otherwise` if no signature has it."""
    name = re.compile(rf"\b{type(config).__name__}\b")
    return [each for each in classes if name.search(str(inspect.signature(each.__init__)))] or otherwise


def _created(cls: Any, config: Config, layer: int) -> Any:
    """A module of a layer. Arguments other than the config and the number of the layer have defaults."""
    names = inspect.signature(cls.__init__).parameters
    return cls(config, **{name: layer for name in names if name in ("layer_idx", "layer_id", "layer_number")}).eval()


def _takes(cls: object, config: Config) -> bool:
    is_model = inspect.isclass(cls) and issubclass(cls, PreTrainedModel)
    return (
        is_model and getattr(cls, "config_class", None) is type(config) and not cls.__name__.endswith("PreTrainedModel")
    )


def _pairs(model: object, config: Config) -> Iterator[RotaryAttention]:
    """Each kind of attention with the rotary modules that are nearest to it. Rotary modules go to the CPU."""
    rotaries = {name: module for name, module in model.named_modules() if is_rotary(module)}
    if not rotaries:
        raise ValueError("it has no rotary module")
    of_config = {name: each for name, each in rotaries.items() if type(getattr(each, "config", None)) is type(config)}
    if not of_config:
        kinds = sorted({type(getattr(each, "config", None)).__name__ for each in rotaries.values()})
        raise ValueError(f"its rotary modules have a config of another part ({', '.join(kinds)})")
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
    """How near two modules are, from their paths: whether the rotary module is beside a module around the attention.

    Then the number of names that both paths have in common at their beginning.
    """
    names, others = attention.split("."), rotary.split(".")
    same = next((at for at, (a, b) in enumerate(zip(names, others)) if a != b), min(len(names), len(others)))
    return same == len(others) - 1, same
