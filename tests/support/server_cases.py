"""What SGLang and lmdeploy are asked to compute: every rule, for model classes that are built; how it is compared."""

import functools
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import numpy as np

from rope_xp import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    RotaryEmbedding,
    Sections,
    YarnScaling,
    from_config,
)
from rope_xp.provenance import Provenance, with_provenance

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from engine_tables import _switches

LENGTH, ORIGINAL = 512, 128
ULP = 2.0**-23
AT = {"original_max_position_embeddings": ORIGINAL}


def part_with_block(keys):
    while "rope_parameters" not in keys:
        (keys,) = keys.values()
    return keys


def rules(pairs):
    """A scaling rule of each kind, for heads with this number of pairs."""
    short, long = (tuple(start + index / pairs for index in range(pairs)) for start in (1.0, 2.0))
    longrope = {"short_factor": short, "long_factor": long, "factor": 4.0, **AT}
    return {
        "none": None,
        "linear": LinearScaling(factor=3.0),
        "ntk": NTKScaling(factor=2.5),
        "dynamic": DynamicNTKScaling(factor=2.0, max_position_embeddings=LENGTH, seq_len=2 * LENGTH),
        "llama3": Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, **AT),
        "yarn": YarnScaling(factor=4.0, **AT),
        "yarn with a factor": YarnScaling(factor=4.0, beta_fast=6.0, beta_slow=2.0, attention_factor=1.7, **AT),
        "yarn that is not rounded": YarnScaling(factor=4.0, truncate=False, **AT),
        "yarn of latent attention": YarnScaling(factor=4.0, mscale=1.0, mscale_all_dim=0.7, **AT),
        "longrope, short": LongRopeScaling(**longrope),
        "longrope, long": LongRopeScaling(**longrope, seq_len=2 * ORIGINAL),
        "longrope with a factor": LongRopeScaling(**longrope, attention_factor=1.3),
    }


def embeddings(model_type, plain):
    """The embeddings by name that are written for a model class, whose own embedding is `plain`."""
    pairs = plain["rotary_dim"] // 2
    third = pairs // 3
    values = {
        "head_dim": plain["head_size"],
        "rotary_dim": plain["rotary_dim"],
        "layout": plain.get("layout", "half"),
        "base": 70_000.0,
    }
    found = {name: RotaryEmbedding(**values, scaling=rule) for name, rule in rules(pairs).items()}
    found["the base of the class"] = RotaryEmbedding(**values | {"base": plain["base"]})
    for order in ("chunked", "interleaved"):
        for name, sizes in (("none", (pairs - 2 * third, third, third)), ("yarn", (pairs - 2 * third, third, third))):
            found[f"{order} sections, {name}"] = found[name].replace(sections=Sections(sizes, order=order))
    provenance = Provenance(file_type=model_type)
    return {name: with_provenance(rope, provenance) for name, rope in found.items()}


def overrides(pairs):
    """Overrides by name, as people write them: not all are read by all classes."""
    base, lists = {"rope_theta": 70_000.0}, ([start + index / pairs for index in range(pairs)] for start in (1.0, 2.0))
    longrope = {"factor": 4.0, **dict(zip(("short_factor", "long_factor"), lists))}
    blocks = {
        "none": {"rope_type": "default"},
        "linear": {"rope_type": "linear", "factor": 3.0},
        "ntk": {"rope_type": "dynamic", "factor": 1.0, "alpha": 2.5},
        "dynamic": {"rope_type": "dynamic", "factor": 2.0},
        "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **AT},
        "yarn": {"rope_type": "yarn", "factor": 4.0, **AT},
        "yarn, mscale": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.7, **AT},
        "longrope": {"rope_type": "longrope", **longrope, **AT},
        "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.5},
        "fraction": {"rope_type": "default", "partial_rotary_factor": 0.75},
    }
    found = {name: {"rope_parameters": block | base} for name, block in blocks.items()}
    return found | {
        "longrope": found["longrope"] | {"max_position_embeddings": LENGTH},
        "nothing": {},
        "no base": {"rope_parameters": blocks["yarn"]},
        "base beside": base,
        "fraction beside": {"partial_rotary_factor": 0.75},
        "two fractions": found["fraction"] | {"partial_rotary_factor": 0.375},
        "rope_scaling": {"rope_scaling": blocks["yarn"] | base | {"type": "yarn"}},
    }


def is_equal(rotary, found, rope, positions):
    """Whether cosines and sines "2 positions pairs" of an engine, and its sections, are those of an embedding."""
    angles = positions[:, None] * np.array(rope.inv_freq if rope.axes == 1 else np.sum(rope.inv_freq, axis=0))
    wanted = np.stack([np.cos(angles), np.sin(angles)]) * rope.attention_factor
    # A frequency is a power and a few products in float32, and so is its product with a position.
    tolerance = rope.attention_factor * (16 * ULP * angles + 4 * ULP)
    order = "interleaved" if getattr(rotary, "mrope_interleaved", False) else "chunked"
    return (
        found.shape == wanted.shape
        and bool((abs(found - wanted) <= tolerance).all())
        and (
            rope.sections is None or (tuple(rotary.mrope_section), order) == (rope.sections.sizes, rope.sections.order)
        )
    )


@dataclass
class Server:
    """What is written for an engine, and what its own code computes from it.

    Attributes
    ----------
    target, flag : str
        The name for `to_config`, and the argument before overrides.
    multiplier : str
        The key of YaRN's attention factor.
    engine : module
        Of `benchmarks/engine_tables`, loaded.
    computes : function
        Whether all rotary embeddings that the engine makes of a config are an embedding: ``(config, rope)``.
    others : list of str
        The arguments after the overrides.
    """

    target: str
    flag: str
    multiplier: str
    engine: ModuleType
    computes: Callable
    others: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.small = _switches.configs(self.engine)  # by model type, before any model is built

    def written(self, rope):
        """The overrides for an embedding, or None if it is refused. What the table does not know is no error here."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                flags = rope.to_config(self.target)
            except ValueError as error:
                assert str(error).startswith("RotaryEmbedding.to_config: ") and len(str(error)) < 600
                return None
        assert flags[0] == self.flag and flags[2:] == self.others
        return json.loads(flags[1])

    def overridden(self, config, overrides):
        return _switches.complete(self.engine.overridden(config, overrides))

    def embeddings(self, model_type):
        """Those of every rule that are written for a model class, by name, with what is written."""
        found, _ = self.engine.build(self.overridden(self.small[model_type], None))
        texts = [each for each in found if each["max_position"] == LENGTH] or found
        return {name: (rope, self.written(rope)) for name, rope in embeddings(model_type, texts[-1]).items()}

    def outcomes(self, model_type):
        """What the class of a model type computes with what is written: "equal", "refused" or "differing"."""
        found = {}
        for name, (rope, overrides) in self.embeddings(model_type).items():
            found[name] = "refused"
            if overrides is not None:
                same = self.computes(self.overridden(self.small[model_type], overrides), rope)
                found[name] = "equal" if same else "differing"
        return found

    def readings(self, model_type, path):
        """What `from_config` reads of the overrides of a file: "equal" to what the engine computes, or not."""
        file, found = self.small[model_type], {}
        (plain, *_), _ = self.engine.build(self.overridden(file, None))
        for name, keys in overrides(plain["rotary_dim"] // 2).items():
            keys = functools.reduce(lambda inner, key: {key: inner}, reversed(path), keys)
            try:
                rope = from_config(file, flags=[self.target, self.flag, json.dumps(keys), *self.others])
            except ValueError:
                found[name] = "refused"
                continue
            if any("rotates by one position" in each for each in rope._provenance.remarks):
                rope = rope.replace(sections=None)
            found[name] = "equal" if self.computes(self.overridden(file, keys), rope) else "differing"
        return found

    def assert_mistakes_are_seen(self):
        for name, (rope, overrides) in self.embeddings("llama").items():
            block = {} if overrides is None else overrides["rope_parameters"]
            mistakes = [{key: block[key] * 1.01} for key in ("rope_theta", self.multiplier) if key in block]
            if block.get("rope_type", "default") not in ("default", "longrope"):
                mistakes += [{"rope_type": "default"}]
                mistakes += [{"alpha" if "alpha" in block else "factor": 4.01}]
            for mistake in mistakes:
                wrong = self.overridden(self.small["llama"], overrides | {"rope_parameters": block | mistake})
                assert not self.computes(wrong, rope), (name, mistake)

    def assert_no_key_of_the_file_stays(self, **others):
        yarn = {"rope_type": "yarn", "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 0.3, self.multiplier: 2.0}
        config = self.small["llama"] | {"rope_parameters": {"rope_theta": 5e5, **yarn, **others}}
        for name, (rope, overrides) in self.embeddings("llama").items():
            assert overrides is None or self.computes(self.overridden(config, overrides), rope), name
        merged = self.engine.overridden(config, {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}})
        assert merged.rope_parameters["mscale"] == 0.7
