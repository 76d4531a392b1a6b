"""SGLang computes what is written for it: its own code applies the arguments, builds the model, and makes the tables.

The oracle is SGLang's `get_rope`. The wheel is unzipped and not installed, as its dependencies need CUDA:
`nox -s tests-sglang` does that.
"""

import importlib.util
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from configs import CONFIGS, GOLDENS
from engines import OF_LENGTHS, extended_length
from server_cases import LENGTH, ORIGINAL, Server, is_equal, part_with_block

from rope_xp import LongRopeScaling, YarnScaling, from_config
from rope_xp.configs import engines
from rope_xp.provenance import with_provenance

if importlib.util.find_spec("sglang") is None:
    raise pytest.UsageError("sglang must be on the path to be tested: run `nox -s tests-sglang`; got no such package")

from engine_tables import _switches, sglang

VERSION = sglang.load(Path(importlib.util.find_spec("sglang").origin).parents[1])
TABLE = engines.table("sglang")
POSITIONS = np.array([1, 2, 17, 100, ORIGINAL - 1])
OF_IMAGES = 8192  # the length of the tables of images


def equal(rotary, rope):
    """Whether SGLang's rotary embedding is ours. The rows of LongRoPE's long factors come after the short ones."""
    rule, kept, offset = rope.scaling, "cos_sin_cache", 0
    if isinstance(rule, LongRopeScaling):
        kept, offset = "long_short_cos_sin_cache", rule.original_max_position_embeddings if rule.is_long else 0
    found = np.stack(np.split(getattr(rotary, kept)[offset + POSITIONS].numpy(), 2, axis=-1))
    same_layout = getattr(rotary, "is_neox_style", True) == (rope.layout == "half")
    return same_layout and is_equal(rotary, found, rope, POSITIONS)


def computes(config, rope):
    sglang.build(config)
    texts = [rotary for call, rotary in sglang.CALLS if call["max_position"] != OF_IMAGES]
    texts = texts or [rotary for _, rotary in sglang.CALLS]
    scaling = next((call["rope_scaling"] for call, _ in sglang.CALLS if call["rope_scaling"]), None)
    same_scale = softmax_scale(scaling) == pytest.approx(rope.softmax_scale, rel=1e-12)
    return bool(texts) and same_scale and all(equal(rotary, rope) for rotary in texts)


def softmax_scale(scaling):
    """By which latent attention multiplies its scores."""
    from sglang.srt.configs.model_config import compute_mla_mscale_scaling

    is_latent = (scaling or {}).get("rope_type") == "deepseek_yarn"
    return compute_mla_mscale_scaling(scaling, 1.0) if is_latent else 1.0


SERVER = Server("sglang", "--json-model-override-args", "attn_factor", sglang, computes)


def test_the_table_is_of_this_version():
    assert TABLE.version == VERSION


@pytest.mark.parametrize("model_type", sorted(TABLE.readings))
def test_model_classes_compute_what_is_written(model_type, record_property):
    results = SERVER.outcomes(model_type)
    record_property("results", dict(Counter(results.values())))
    assert "differing" not in results.values(), results
    assert "equal" in results.values() or "blocks" in TABLE.of(model_type).fixed, results


# Without the classes that permute their weights, and then rotate in another layout.
@pytest.mark.parametrize("model_type", sorted({*TABLE.readings} - {"llama4", "llama4_text"}))
def test_flags_are_read_as_model_classes_compute_them(model_type, record_property):
    results = SERVER.readings(model_type, TABLE.of(model_type).path)
    record_property("results", dict(Counter(results.values())))
    assert "differing" not in results.values(), results


ROTATED = [golden for golden in GOLDENS if golden["rotated"]]


@pytest.mark.parametrize("golden", ROTATED, ids=lambda each: f"{each['config']}{each['kwargs']}")
def test_goldens_reach_get_rope(golden, record_property):
    """The override is applied to the golden's own config, and `get_rope` is called as most classes call it."""
    rope = from_config(CONFIGS[golden["config"]], **golden["kwargs"])
    overrides = SERVER.written(rope)
    record_property("results", {"refused" if overrides is None else "written": 1})
    if overrides is None:
        return
    from sglang.srt.layers.rotary_embedding.factory import get_rope

    part = part_with_block(overrides)
    block = part["rope_parameters"]
    if rope.softmax_scale != 1.0:
        block = block | {"rope_type": "deepseek_yarn"}
        assert softmax_scale(block) == pytest.approx(rope.softmax_scale, rel=1e-12)
    length = part.get("max_position_embeddings", ORIGINAL)
    fraction = (part | block).get("partial_rotary_factor", 1.0)
    sglang.CALLS.clear()
    rotary = get_rope(
        head_size=rope.head_dim,
        rotary_dim=rope.head_dim,
        max_position=length,
        base=(part | block)["rope_theta"],
        is_neox_style=rope.layout == "half",
        rope_scaling=block,
        partial_rotary_factor=fraction,
    )
    assert equal(rotary, rope)


def test_planted_mistakes_are_seen():
    SERVER.assert_mistakes_are_seen()


def test_no_key_of_the_file_stays():
    SERVER.assert_no_key_of_the_file_stays(alpha=9.0)


@pytest.mark.parametrize("model_type", ["llama", "qwen2_vl", "qwen3_vl"])
def test_a_longer_context_is_accepted(tmp_path, model_type):
    from sglang.srt.configs.model_config import ModelConfig

    config = SERVER.small[model_type]
    (tmp_path / "config.json").write_text(json.dumps(config))
    text_type = config.get("text_config", config).get("model_type", "")
    for name, (rope, overrides) in SERVER.embeddings(model_type).items():
        if overrides is None or name in ("dynamic", "yarn of latent attention"):
            continue
        rope = with_provenance(rope, replace(rope._provenance, model_type=text_type))
        flags = rope.to_config("sglang", context=4 * LENGTH)
        options = dict(zip(flags[::2], flags[1::2], strict=True))
        config = ModelConfig(
            str(tmp_path),
            context_length=int(options["--context-length"]),
            model_override_args=options["--json-model-override-args"],
        )
        assert config.context_len == 4 * LENGTH
        assert computes(_switches.complete(config.hf_config), rope), name


@pytest.mark.parametrize("length", [512, 1024, 1025, 2048, 2049, 4096, 4097])
@pytest.mark.parametrize("overrides", OF_LENGTHS, ids=str)
def test_the_lengths_that_are_refused_have_a_remark(overrides, length, tmp_path):
    from sglang.srt.configs.model_config import ModelConfig

    config = {**SERVER.small["llama"], "max_position_embeddings": 1024}
    (tmp_path / "config.json").write_text(json.dumps(config))
    overrides = json.dumps(overrides)
    flags = ["sglang", "--context-length", str(length), "--json-model-override-args", overrides]
    remarks = from_config(config, flags=flags)._provenance.remarks
    reason = ""
    try:
        ModelConfig(str(tmp_path), context_length=length, model_override_args=overrides)
    except ValueError as error:
        reason = str(error)
    assert ("is greater than the derived context_length" in reason) == bool(reason)
    assert any("stops with an error" in each for each in remarks) == bool(reason), reason


@pytest.mark.parametrize("overrides", OF_LENGTHS, ids=str)
def test_the_length_that_is_served_without_one_in_the_flags(overrides, tmp_path):
    from sglang.srt.configs.model_config import ModelConfig

    config, overrides_of = {**SERVER.small["llama"], "max_position_embeddings": 1024}, json.dumps(overrides)
    (tmp_path / "config.json").write_text(json.dumps(config))
    served = ModelConfig(str(tmp_path), model_override_args=overrides_of).context_len
    rope = from_config(config, flags=["sglang", "--json-model-override-args", overrides_of])
    said = [each for each in rope._provenance.remarks if " serves " in each]
    assert bool(said) == (extended_length(overrides) > served)
    assert all(f" serves {served:.0f} tokens" in each for each in said)


def test_only_a_multiplier_is_read():
    """An `attention_factor` in the block is not read: 1.7 is written as a multiple of the paper's factor."""
    rope, overrides = SERVER.embeddings("llama")["yarn with a factor"]
    block = overrides["rope_parameters"]
    assert isinstance(rope.scaling, YarnScaling) and "attention_factor" not in block
    assert block["attn_factor"] * rope.scaling.get_mscale(1.0) == pytest.approx(1.7, rel=1e-15)
