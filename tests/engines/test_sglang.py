"""SGLang computes what is written for it: its own code applies the arguments, builds the model, and makes the tables.

The oracle is SGLang's `get_rope`. The wheel is unzipped and not installed, as its dependencies need CUDA:
`nox -s tests-sglang` does that.
"""

import importlib.util
import json
import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from configs import CONFIGS, GOLDENS
from server_cases import LENGTH, ORIGINAL, embeddings

from rope_xp import LongRopeScaling, YarnScaling, from_config
from rope_xp.configs import engines
from rope_xp.configs.writers import with_length
from rope_xp.configs.writers.limits import part_with_block

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

if importlib.util.find_spec("sglang") is None:
    raise pytest.UsageError("sglang must be on the path to be tested: run `nox -s tests-sglang`; got no such package")

from engine_tables import _switches, sglang

VERSION = sglang.load(Path(importlib.util.find_spec("sglang").origin).parents[1])
TABLE = engines.table("sglang")
SMALL = _switches.configs(sglang)
POSITIONS = np.array([1, 2, 17, 100, ORIGINAL - 1])
OF_IMAGES = 8192  # the length of the tables of images
ULP = 2.0**-23


def tables(rope):
    """The sines and cosines of an embedding at `POSITIONS`, in float64, and how far SGLang's float32 may be off.

    A frequency is a power and a few products in float32, and so is its product with a position.
    """
    angles = POSITIONS[:, None] * np.array(rope.inv_freq if rope.axes == 1 else np.sum(rope.inv_freq, axis=0))
    both = np.concatenate([np.cos(angles), np.sin(angles)], axis=-1) * rope.attention_factor
    return both, rope.attention_factor * (16 * ULP * np.concatenate([angles, angles], axis=-1) + 4 * ULP)


def rows(rotary, rope):
    """The rows of SGLang's table for `POSITIONS`; those of LongRoPE's long factors come after the short ones."""
    if isinstance(rope.scaling, LongRopeScaling):
        offset = rope.scaling.original_max_position_embeddings if rope.scaling.is_long else 0
        return rotary.long_short_cos_sin_cache[offset + POSITIONS].numpy()
    return rotary.cos_sin_cache[POSITIONS].numpy()


def equal(rotary, rope):
    """Whether SGLang's rotary embedding is ours: its channels, its tables and its sections."""
    wanted, tolerance = tables(rope)
    found = rows(rotary, rope)
    sections = getattr(rotary, "mrope_section", None)
    order = "interleaved" if getattr(rotary, "mrope_interleaved", False) else "chunked"
    return (
        found.shape == wanted.shape
        and bool((abs(found - wanted) <= tolerance).all())
        and getattr(rotary, "is_neox_style", True) == (rope.layout == "half")
        and (rope.sections is None or (tuple(sections), order) == (rope.sections.sizes, rope.sections.order))
    )


def written(rope):
    """The overrides for an embedding; None if SGLang is refused. What the table does not know is no error here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            flags = rope.to_config("sglang")
        except ValueError as error:
            assert str(error).startswith("RotaryEmbedding.to_config: ") and len(str(error)) < 600
            return None
    assert flags[0] == "--json-model-override-args" and len(flags) == 2
    return json.loads(flags[1])


def outcome(model_type, rope):
    """What the class of a model type computes with what is written: "equal", "refused" or "differing"."""
    overrides = written(rope)
    if overrides is None:
        return "refused"
    config = _switches.complete(sglang.overridden(SMALL[model_type], overrides))
    sglang.build(config)
    texts = [rotary for call, rotary in sglang.CALLS if call["max_position"] != OF_IMAGES]
    texts = texts or [rotary for _, rotary in sglang.CALLS]
    if not texts or not all(equal(rotary, rope) for rotary in texts):
        return "differing"
    scaling = next((call["rope_scaling"] for call, _ in sglang.CALLS if call["rope_scaling"]), None)
    return "equal" if softmax_scale(scaling) == pytest.approx(rope.softmax_scale, rel=1e-12) else "differing"


def softmax_scale(scaling):
    """By which latent attention multiplies its scores."""
    from sglang.srt.configs.model_config import compute_mla_mscale_scaling

    is_latent = (scaling or {}).get("rope_type") == "deepseek_yarn"
    return compute_mla_mscale_scaling(scaling, 1.0) if is_latent else 1.0


def own(model_type):
    """The embedding that the class of a model type has without overrides."""
    config = _switches.complete(sglang.overridden(SMALL[model_type], None))
    found, _ = sglang.build(config)
    texts = [each for each in found if each["max_position"] == LENGTH] or found
    return texts[-1]


def test_the_table_is_of_this_version():
    assert TABLE.version == VERSION


@pytest.mark.parametrize("model_type", sorted(TABLE.readings))
def test_model_classes_compute_what_is_written(model_type, record_property):
    results = {name: outcome(model_type, rope) for name, rope in embeddings(model_type, own(model_type)).items()}
    record_property("results", dict(Counter(results.values())))
    assert "differing" not in results.values(), results
    assert "equal" in results.values() or "blocks" in TABLE.of(model_type).fixed, results


ROTATED = [golden for golden in GOLDENS if golden["rotated"]]


@pytest.mark.parametrize("golden", ROTATED, ids=lambda each: f"{each['config']}{each['kwargs']}")
def test_goldens_reach_get_rope(golden, record_property):
    """The override is applied to the golden's own config, and `get_rope` is called as most classes call it."""
    rope = from_config(CONFIGS[golden["config"]], **golden["kwargs"])
    overrides = written(rope)
    record_property("results", {"refused" if overrides is None else "written": 1})
    if overrides is None:
        return
    from sglang.srt.layers.rotary_embedding.factory import get_rope

    block = part_with_block(overrides)["rope_parameters"]
    if rope.softmax_scale != 1.0:
        block = block | {"rope_type": "deepseek_yarn"}
        assert softmax_scale(block) == pytest.approx(rope.softmax_scale, rel=1e-12)
    length = part_with_block(overrides).get("max_position_embeddings", ORIGINAL)
    fraction = block.get("partial_rotary_factor", 1.0)
    sglang.CALLS.clear()
    rotary = get_rope(
        head_size=rope.head_dim,
        rotary_dim=rope.head_dim,
        max_position=length,
        base=block["rope_theta"],
        is_neox_style=rope.layout == "half",
        rope_scaling=block,
        partial_rotary_factor=fraction,
    )
    assert equal(rotary, rope)


def test_planted_mistakes_are_seen():
    plain = own("llama")
    for name, rope in embeddings("llama", plain).items():
        overrides = written(rope)
        if overrides is None:
            continue
        block = part_with_block(overrides)["rope_parameters"]
        mistakes = [{"rope_theta": block["rope_theta"] * 1.01}]
        if block["rope_type"] != "default":
            mistakes.append({"rope_type": "default"})
        if "attn_factor" in block:
            mistakes += [{"attn_factor": block["attn_factor"] * 1.01}, {"factor": 4.01}]
        for mistake in mistakes:
            wrong = overrides | {"rope_parameters": block | mistake}
            sglang.build(_switches.complete(sglang.overridden(SMALL["llama"], wrong)))
            rotary = sglang.CALLS[-1][1]
            is_long = isinstance(rope.scaling, LongRopeScaling) and not hasattr(rotary, "long_short_cos_sin_cache")
            assert is_long or not equal(rotary, rope), (name, mistake)


def test_no_key_of_the_file_stays():
    yarn = {"rope_type": "yarn", "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 0.3, "attn_factor": 2.0, "alpha": 9.0}
    config = SMALL["llama"] | {"rope_parameters": {"rope_theta": 5e5, **yarn}}
    for rope in embeddings("llama", own("llama")).values():
        overrides = written(rope)
        if overrides is not None:
            sglang.build(sglang.overridden(config, overrides))
            assert all(equal(rotary, rope) for _, rotary in sglang.CALLS)
    merged = sglang.overridden(config, {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}})
    assert merged.rope_parameters["mscale"] == 0.7


def test_a_longer_context_is_accepted(tmp_path):
    from sglang.srt.configs.model_config import ModelConfig

    (tmp_path / "config.json").write_text(json.dumps(SMALL["llama"]))
    for name, rope in embeddings("llama", own("llama")).items():
        if written(rope) is None or name == "dynamic":
            continue
        flags = with_length("sglang", rope.to_config("sglang"), 4 * LENGTH)
        options = dict(zip(flags[::2], flags[1::2], strict=True))
        config = ModelConfig(
            str(tmp_path),
            context_length=int(options["--context-length"]),
            model_override_args=options["--json-model-override-args"],
        )
        assert config.context_len == 4 * LENGTH
        sglang.build(config.hf_config)
        assert all(equal(rotary, rope) for _, rotary in sglang.CALLS), name


def test_only_a_multiplier_is_read():
    """An `attention_factor` in the block is not read: 1.7 is written as a multiple of the paper's factor."""
    rope = embeddings("llama", own("llama"))["yarn with a factor"]
    block = written(rope)["rope_parameters"]
    assert isinstance(rope.scaling, YarnScaling) and "attention_factor" not in block
    assert block["attn_factor"] * rope.scaling.get_mscale(1.0) == pytest.approx(1.7, rel=1e-15)
