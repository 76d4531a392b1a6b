"""from_config(flags=...): what an engine computes from a config with the arguments of its command line.

The numbers, also those of tests/goldens/examples.json, were worked out by hand from the sources that `overrides.py` and
`llama_cpp_arguments.py` name.
"""

import re
import warnings

import numpy as np
import pytest
from cases import for_each
from configs import CONFIGS, GOLDENS

from rope_xp import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ProportionalScaling,
    compare,
    from_config,
)
from rope_xp.configs.readers.command_line import HARMLESS, KNOWN

LLAMA = dict(
    model_type="llama", hidden_size=512, num_attention_heads=8, rope_theta=500_000.0, max_position_embeddings=8192
)
GGUF = {"general.architecture": "qwen2", "qwen2.rope.freq_base": 5e5, "qwen2.attention.key_length": 64}
GGUF |= {"qwen2.context_length": 8192}


# Every pair of a golden and a target with arguments.

ROTATED = [golden for golden in GOLDENS if golden["rotated"] and "compat" not in golden["kwargs"]]
COMMANDS = {"vllm": "vllm", "sglang": "sglang", "lmdeploy": "lmdeploy", "llama.cpp": "llama-server"}
# Why arguments cannot be read back, by a pattern of the error: the goldens are those of families.
NOT_READ_BACK = {
    # vLLM fails with KeyError for a block without types; `convert` writes the blocks of all types.
    "rope_parameters must be nested by layer type": "gemma_?[34]|olmo3|modernbert|mimo_v2|step3p5|deepseek_v4|laguna",
    # The family's own code adds a rule beyond the trained length, which engines do not.
    "rope_parameters or rope_scaling must be given, not both": "qwen|internlm",
    # For latent attention and sections, the architecture decides what is computed.
    "architecture must be given": "glm_moe_dsa|bailing|hunyuan_vl|axk1|deepseek_v4|longcat",
    "the embedding must be expressible in a GGUF file": "deepseek_v4",
    # A file cannot hold the ends of the ramp for this architecture, so that the converter's file is another embedding.
    "must read rope.scaling.yarn_beta_fast for architecture": "kimi_k2",
}


@for_each("target", COMMANDS)
def test_what_is_written_reads_back(target):
    for golden in ROTATED:
        assert_its_arguments_are_read_back(golden, target)


def assert_its_arguments_are_read_back(golden, target):
    config, kwargs = CONFIGS[golden["config"]], dict(golden["kwargs"])
    rope = from_config(config, **kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what a table does not know
        try:
            words = rope.to_config(target)
        except ValueError:
            return  # test_writers.py lists what is refused
    if isinstance(rope.scaling, LongRopeScaling):
        kwargs["seq_len"] = rope.scaling.seq_len or 1
    try:
        found = from_config(config, flags=[COMMANDS[target], *words], **kwargs)
    except ValueError as error:
        pattern = next(each for reason, each in NOT_READ_BACK.items() if reason in str(error))
        assert re.search(pattern, rope._provenance.model_type), error
        return
    if target == "vllm" and isinstance(rope.scaling, DynamicNTKScaling) and "max_trained_positions" not in words[-1]:
        assert found.scaling is None  # vLLM 0.33 divides by the length that it multiplies by
        return
    assert (found.head_dim, found.layout, found.sections) == (rope.head_dim, rope.layout, rope.sections)
    # llama.cpp has float32 numbers.
    assert np.asarray(found.inv_freq) == pytest.approx(np.asarray(rope.inv_freq), rel=1e-6, abs=1e-12)
    assert found.attention_factor == pytest.approx(rope.attention_factor, rel=1e-6)
    assert found.softmax_scale == pytest.approx(rope.softmax_scale, rel=1e-6)


def test_known_names_are_not_harmless():
    assert not KNOWN & HARMLESS


def test_compare_gives_the_flags_to_the_second_config():
    report = compare(LLAMA, LLAMA, options={"flags": "--rope-scale 2"})
    assert report.causes == ("scaling",) and report.b.startswith("the config with the flags: ")
    assert report.remarks[0].startswith("b was read from the GGUF file")
    same = compare(LLAMA, LLAMA, options={"flags": ["--hf-overrides", '{"rope_theta": 1e6}']})
    assert same.same and "the embedding would be the same" in " ".join(same.remarks)
    first = compare(LLAMA, from_config(LLAMA), options={"flags": "--rope-scale 2"})
    assert not first.same and first.a.startswith("the config with the flags: ")
    with pytest.raises(TypeError, match="flags of options must be given with a config; got RotaryEmbedding"):
        compare(from_config(LLAMA), from_config(LLAMA), options={"flags": "--rope-scale 2"})
    with_file = compare(dict(LLAMA, model_type="qwen2"), GGUF, options={"flags": "-c 4096"})
    assert with_file.same


def test_flags_have_a_limit():
    with pytest.raises(ValueError, match="flags must have at most 16777216 characters; got 16777217"):
        from_config(CONFIGS["llama-3.1-8b"], flags="x" * (2**24 + 1))


def test_arguments_for_another_rule_are_read_back_or_refused():
    """Whatever rule the config has: llama.cpp divides by tensors of its file under every rule."""
    refused = set()
    for golden in ROTATED:
        config, kwargs = CONFIGS[golden["config"]], golden["kwargs"]
        rope = from_config(config, **kwargs)
        if not isinstance(rope.scaling, (Llama3Scaling, LongRopeScaling, ProportionalScaling)):
            continue
        changed = rope.replace(scaling=LinearScaling(factor=2.0))
        try:
            words = changed.to_config("llama.cpp")
        except ValueError:
            refused.add(golden["config"])
        else:
            found = from_config(config, flags=["llama-server", *words], **kwargs)
            assert found.inv_freq == pytest.approx(changed.inv_freq, rel=1e-6, abs=1e-12), golden
    assert refused >= {"llama-3.1-8b", "phi-3.5-mini-instruct"}
    with pytest.raises(
        ValueError, match=r"\(the config was read as the GGUF file that llama\.cpp's converter writes from it"
    ):
        from_config(CONFIGS["llama-3.1-8b"], flags="--rope-scaling yarn --rope-scale 2")
