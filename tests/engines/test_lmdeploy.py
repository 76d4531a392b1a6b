"""lmdeploy computes what is written for it: its own code applies the overrides and builds the rotary embedding.

The oracle is its PyTorch engine. The wheel is unzipped and not installed, as its dependencies need CUDA:
`nox -s tests-lmdeploy` does that.
"""

import importlib.util
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from configs import CONFIGS, GOLDENS
from server_cases import LENGTH, ORIGINAL, Server, is_equal, part_with_block

from rope_xp import DynamicNTKScaling, LongRopeScaling, from_config
from rope_xp.configs import engines

if importlib.util.find_spec("lmdeploy") is None:
    raise pytest.UsageError(
        "lmdeploy must be on the path to be tested: run `nox -s tests-lmdeploy`; got no such package"
    )

from engine_tables import lmdeploy

VERSION = lmdeploy.load(Path(importlib.util.find_spec("lmdeploy").origin).parents[1])
TABLE = engines.table("lmdeploy")


def positions(rope):
    """Some positions, up to the length at which the rule is: lmdeploy takes the length from the greatest of them."""
    rule = rope.scaling
    last = getattr(rule, "seq_len", None) or (ORIGINAL if isinstance(rule, LongRopeScaling) else 200)
    if isinstance(rule, DynamicNTKScaling) and rule.seq_len is None:
        last = rule.max_position_embeddings
    return np.array([0, 1, 2, 17, 100, last - 1])


def equal(rotary, rope):
    """Whether lmdeploy's rotary embedding is ours. Its tables have each pair twice."""
    at = positions(rope)
    found = torch.stack(getattr(rotary, "impl", rotary)(torch.zeros(1, 1), torch.tensor(at)[None])).numpy()[:, 0]
    return all(is_equal(rotary, each, rope, at) for each in np.split(found, 2, axis=-1))


def computes(config, rope):
    lmdeploy.build(config)
    return bool(lmdeploy.CALLS) and equal(lmdeploy.CALLS[-1][1], rope)


SERVER = Server("lmdeploy", "--hf-overrides", "attention_factor", lmdeploy, computes, ["--backend", "pytorch"])


def test_the_table_is_of_this_version():
    assert TABLE.version == VERSION


@pytest.mark.parametrize("model_type", sorted(TABLE.readings))
def test_model_classes_compute_what_is_written(model_type, record_property):
    results = SERVER.outcomes(model_type)
    record_property("results", dict(Counter(results.values())))
    assert "differing" not in results.values(), results
    assert "equal" in results.values(), results


@pytest.mark.parametrize("model_type", sorted(TABLE.readings))
def test_flags_are_read_as_model_classes_compute_them(model_type, record_property):
    results = SERVER.readings(model_type, TABLE.of(model_type).path)
    record_property("results", dict(Counter(results.values())))
    assert "differing" not in results.values(), results


ROTATED = [golden for golden in GOLDENS if golden["rotated"]]


@pytest.mark.parametrize("golden", ROTATED, ids=lambda each: f"{each['config']}{each['kwargs']}")
def test_goldens_reach_the_rotary_embedding(golden, record_property):
    """The block of the override is what `build_rotary_embedding_from_config` reads, as most classes call it."""
    from lmdeploy.pytorch.nn.rotary_embedding import build_rotary_embedding_from_config
    from transformers import PretrainedConfig

    rope = from_config(CONFIGS[golden["config"]], **golden["kwargs"])
    overrides = SERVER.written(rope)
    record_property("results", {"refused" if overrides is None else "written": 1})
    if overrides is None:
        return
    config = PretrainedConfig(head_dim=rope.head_dim, max_position_embeddings=LENGTH)
    for key, value in part_with_block(overrides).items():
        setattr(config, key, value)
    assert equal(build_rotary_embedding_from_config(config), rope)


def test_planted_mistakes_are_seen():
    SERVER.assert_mistakes_are_seen()


def test_no_key_of_the_file_stays():
    SERVER.assert_no_key_of_the_file_stays()
