"""Finds the rotary classes of transformers and creates their configs."""

import importlib
import inspect
import json
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import transformers

from .observe import SHORT, Run
from .subjects import Subject, subjects_of

MODELS = Path(transformers.__file__).parent / "models"
CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
NAMED = re.compile("Rotary|RoPE|Rope")
# Rotary classes without a rotary name.
UNNAMED = ["RoFormerSinusoidalPositionalEmbedding", "GPTJAttention", "CodeGenAttention"]
# Keys of rotation and of head widths, which a config file may leave out.
ROTARY = re.compile(r"rope|rotary|theta|yarn|original_max_position|head_dim")


def found():
    """Every rotary class of transformers, by its name: (folder, file, class)."""
    for file in sorted(MODELS.glob("*/modeling_*.py")):
        for name in CLASS.findall(file.read_text(encoding="utf-8")):
            if NAMED.search(name) or name in UNNAMED:
                yield file.parent.name, file.stem, name


@dataclass(frozen=True)
class Target:
    """A rotary class with one of its config classes, whose name is `config_name`."""

    subject: Subject
    module: Any
    cls: type
    config_name: str

    @cached_property
    def needs(self):
        return self.subject.needs(self.module) if callable(self.subject.needs) else dict(self.subject.needs)

    @cached_property
    def default(self):
        return self.config()

    def config(self, changes=(), needs=None):
        """A changed config."""
        changes = {**(self.needs if needs is None else needs), **deepcopy(dict(changes))}
        return config_class(self.module, self.config_name)(**changes)

    def run(self, config, label=None, calls=(SHORT,)):
        return Run(self.subject, self.module, self.cls, config, label, calls)


def config_class(module, name):
    """A config class from a module, or from the configuration file in the same folder."""
    folder = module.__name__.split(".")[-2]
    file = f"transformers.models.{folder}.configuration_{folder}"
    return getattr(module, name, None) or getattr(importlib.import_module(file), name)


def targets(folder, file, name):
    """A target for each config class of a rotary class."""
    module = importlib.import_module(f"transformers.models.{folder}.{file}")
    cls = getattr(module, name)
    for subject in subjects_of(name):
        config = subject.config or annotated(module, cls)
        yield Target(subject.resolved(module, config), module, cls, config)


def annotated(module, cls):
    """The name of the config class in the signature of a rotary class, or of its text config."""
    name = re.search(r"\w+Config", str(inspect.signature(cls.__init__))).group()
    text = config_class(module, name).sub_configs.get("text_config")
    return text.__name__ if text and text.__name__.endswith("TextConfig") else name


def plain(config):
    """The contents of a config, as in its JSON file."""
    return json.loads(json.dumps(config.to_dict(), default=str))


def labels(config):
    """The layer types that have rotary parameters of their own; [None] if there are none."""
    blocks = getattr(config, "rope_parameters", None) or {}
    nested = sorted(label for label, block in blocks.items() if isinstance(block, Mapping))  # a set has no order
    return nested or [None]
