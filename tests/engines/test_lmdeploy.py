"""lmdeploy computes what is written for it: its own code applies the overrides and builds the rotary embedding.

The oracle is its PyTorch engine. The wheel is unzipped and not installed, as its dependencies need CUDA:
`nox -s tests-lmdeploy` does that.
"""

import importlib.util
import json
import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from configs import CONFIGS, GOLDENS
from server_cases import LENGTH, ORIGINAL, embeddings

from rope_xp import DynamicNTKScaling, LongRopeScaling, from_config
from rope_xp.configs import engines
from rope_xp.configs.writers.limits import part_with_block

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

if importlib.util.find_spec("lmdeploy") is None:
    raise pytest.UsageError(
        "lmdeploy must be on the path to be tested: run `nox -s tests-lmdeploy`; got no such package"
    )

from engine_tables import _switches, lmdeploy

VERSION = lmdeploy.load(Path(importlib.util.find_spec("lmdeploy").origin).parents[1])
TABLE = engines.table("lmdeploy")
SMALL = _switches.configs(lmdeploy)
ULP = 2.0**-23


def positions(rope):
    """Some positions, up to the length at which the rule is: lmdeploy takes the length from the greatest of them."""
    rule = rope.scaling
    last = getattr(rule, "seq_len", None) or (ORIGINAL if isinstance(rule, LongRopeScaling) else 200)
    if isinstance(rule, DynamicNTKScaling) and rule.seq_len is None:
        last = rule.max_position_embeddings
    return np.array([0, 1, 2, 17, 100, last - 1])


def equal(rotary, rope):
    """Whether lmdeploy's rotary embedding is ours: its tables, and its sections."""
    at = positions(rope)
    angles = at[:, None] * np.array(rope.inv_freq if rope.axes == 1 else np.sum(rope.inv_freq, axis=0))
    wanted = np.stack([np.cos(angles), np.sin(angles)]) * rope.attention_factor
    plain = getattr(rotary, "impl", rotary)
    found = torch.stack(plain(torch.zeros(1, 1), torch.tensor(at)[None])).numpy()[:, 0]
    wanted, angles = np.concatenate([wanted, wanted], axis=-1), np.concatenate([angles, angles], axis=-1)
    # A frequency is a power and a few products in float32, and so is its product with a position.
    tolerance = rope.attention_factor * (16 * ULP * angles + 4 * ULP)
    sections = getattr(rotary, "mrope_section", None)
    order = "interleaved" if getattr(rotary, "mrope_interleaved", False) else "chunked"
    return (
        found.shape == wanted.shape
        and bool((abs(found - wanted) <= tolerance).all())
        and (rope.sections is None or (tuple(sections), order) == (rope.sections.sizes, rope.sections.order))
    )


def written(rope):
    """The overrides for an embedding; None if lmdeploy is refused. What the table does not know is no error here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            flags = rope.to_config("lmdeploy")
        except ValueError as error:
            assert str(error).startswith("RotaryEmbedding.to_config: ") and len(str(error)) < 600
            return None
    assert flags[0] == "--hf-overrides" and len(flags) == 2
    return json.loads(flags[1])


def computed(config, overrides):
    """The rotary embeddings of the text model with an override."""
    read = _switches.complete(lmdeploy.overridden(config, overrides))
    lmdeploy.build(read)
    return [rotary for _, rotary in lmdeploy.CALLS]


def outcome(model_type, rope):
    """What the class of a model type computes with what is written: "equal", "refused" or "differing"."""
    overrides = written(rope)
    if overrides is None:
        return "refused"
    found = computed(SMALL[model_type], overrides)
    return "equal" if found and equal(found[-1], rope) else "differing"


def own(model_type):
    """The embedding that the class of a model type has without overrides."""
    found, _ = lmdeploy.build(_switches.complete(lmdeploy.overridden(SMALL[model_type], None)))
    texts = [each for each in found if each["max_position"] == LENGTH] or found
    return texts[-1]


def test_the_table_is_of_this_version():
    assert TABLE.version == VERSION


@pytest.mark.parametrize("model_type", sorted(TABLE.readings))
def test_model_classes_compute_what_is_written(model_type, record_property):
    results = {name: outcome(model_type, rope) for name, rope in embeddings(model_type, own(model_type)).items()}
    record_property("results", dict(Counter(results.values())))
    assert "differing" not in results.values(), results
    assert "equal" in results.values(), results


ROTATED = [golden for golden in GOLDENS if golden["rotated"]]


@pytest.mark.parametrize("golden", ROTATED, ids=lambda each: f"{each['config']}{each['kwargs']}")
def test_goldens_reach_the_rotary_embedding(golden, record_property):
    """The block of the override is what `build_rotary_embedding_from_config` reads, as most classes call it."""
    from lmdeploy.pytorch.nn.rotary_embedding import build_rotary_embedding_from_config
    from transformers import PretrainedConfig

    rope = from_config(CONFIGS[golden["config"]], **golden["kwargs"])
    overrides = written(rope)
    record_property("results", {"refused" if overrides is None else "written": 1})
    if overrides is None:
        return
    part = part_with_block(overrides)
    config = PretrainedConfig(head_dim=rope.head_dim, max_position_embeddings=LENGTH)
    for key, value in part.items():
        setattr(config, key, value)
    assert equal(build_rotary_embedding_from_config(config), rope)


def test_planted_mistakes_are_seen():
    for name, rope in embeddings("llama", own("llama")).items():
        overrides = written(rope)
        if overrides is None:
            continue
        block = overrides["rope_parameters"]
        mistakes = [{"rope_theta": block["rope_theta"] * 1.01}]
        if block["rope_type"] not in ("default", "longrope"):
            mistakes += [{"rope_type": "default"}, {"factor": 4.01}]
        if "attention_factor" in block:
            mistakes.append({"attention_factor": block["attention_factor"] * 1.01})
        for mistake in mistakes:
            (rotary, *_) = computed(SMALL["llama"], overrides | {"rope_parameters": block | mistake})
            assert not equal(rotary, rope), (name, mistake)


def test_no_key_of_the_file_stays():
    yarn = {"rope_type": "yarn", "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 0.3, "attention_factor": 2.0}
    config = SMALL["llama"] | {"rope_parameters": {"rope_theta": 5e5, **yarn}}
    for rope in embeddings("llama", own("llama")).values():
        overrides = written(rope)
        if overrides is not None:
            assert all(equal(rotary, rope) for rotary in computed(config, overrides))
    merged = lmdeploy.overridden(config, {"rope_parameters": {"factor": 4.0}})
    assert merged.rope_parameters["mscale"] == 0.7
