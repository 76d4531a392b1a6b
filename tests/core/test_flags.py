"""from_config(flags=...): what an engine computes from a config with the arguments of its command line.

The numbers, also those of tests/goldens/examples.json, were worked out by hand from the sources that `overrides.py` and
`llama_cpp_arguments.py` name.
"""

import json
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
    NTKScaling,
    ProportionalScaling,
    YarnScaling,
    compare,
    from_config,
)
from rope_xp.configs.readers.command_line import HARMLESS, KNOWN
from rope_xp.configs.writers import Options, with_length
from rope_xp.provenance import with_provenance

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


# The same for other values than those of the goldens, where the tables of engines know the model type.

LENGTHS = {"original_max_position_embeddings": 4096}
CHANGES = {
    "base": lambda rope: {"base": 3 * rope.base},
    "linear": lambda rope: {"scaling": LinearScaling(factor=4.0)},
    "ntk": lambda rope: {"scaling": NTKScaling(factor=4.0)},
    "dynamic": lambda rope: {"scaling": DynamicNTKScaling(factor=4.0, max_position_embeddings=4096, seq_len=4 * 4096)},
    "yarn": lambda rope: {"scaling": YarnScaling(factor=4.0, **LENGTHS)},
    "yarn, factor": lambda rope: {"scaling": YarnScaling(factor=4.0, attention_factor=1.2, **LENGTHS)},
    "llama3": lambda rope: {"scaling": Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, **LENGTHS)},
    "longrope": lambda rope: {
        "scaling": LongRopeScaling(
            short_factor=tuple(1 + 0.01 * j for j in range(rope.pairs)),
            long_factor=tuple(1 + 0.1 * j for j in range(rope.pairs)),
            factor=4.0,
            seq_len=4 * 4096,
            **LENGTHS,
        )
    },
}
OF_EACH_TYPE = {
    (CONFIGS[each["config"]].get("model_type"), "text_config" in CONFIGS[each["config"]]): each for each in ROTATED
}
# What the reader refuses: GPT-J's class in transformers has no base, and a file of Step3 has its length by two names.
REFUSED = {("vllm", "gptj", "base"), ("sglang", "step3_text", "dynamic")}


@for_each("change", CHANGES)
@for_each("target", ["vllm", "sglang", "lmdeploy"])
def test_other_values_that_are_written_read_back(target, change):
    outcomes = {outcome_of(golden, target, change) for golden in OF_EACH_TYPE.values()}
    assert outcomes - {("refused",), ("equal",)} == {each for each in REFUSED if (each[0], each[2]) == (target, change)}
    assert ("equal",) in outcomes


def outcome_of(golden, target, change):
    config = CONFIGS[golden["config"]]
    kwargs = {key: value for key, value in golden["kwargs"].items() if key != "seq_len"}
    before = from_config(config, **kwargs)
    if before.base is None:
        return ("refused",)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # what a table does not know
            plain = before.replace(scaling=None, attention_factor=None)
            rope = with_provenance(plain.replace(**CHANGES[change](before)), before._provenance)
            words = rope.to_config(target)
    except (ValueError, UserWarning):
        return ("refused",)
    length = getattr(rope.scaling, "seq_len", None)
    try:
        found = from_config(config, flags=[target, *words], seq_len=length, **kwargs)
    except ValueError:
        return target, rope._provenance.model_type, change
    numbers = [
        np.asarray([*np.ravel(each.inv_freq), each.attention_factor, each.softmax_scale]) for each in (found, rope)
    ]
    assert (found.head_dim, found.layout, found.sections) == (rope.head_dim, rope.layout, rope.sections), golden
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-6), (golden, words)
    return ("equal",)


def test_sglang_reads_flat_composites_outside_their_text_config():
    """As its classes do in tests/engines/test_sglang.py."""
    for name in ("qwen2-vl-7b-instruct", "qwen3-vl-2b-instruct"):
        block = {"rope_parameters": {"rope_theta": 5e4}}
        line = ["sglang", "--json-model-override-args"]
        assert from_config(CONFIGS[name], flags=[*line, json.dumps(block)]).base == 5e4
        found = from_config(CONFIGS[name], flags=[*line, json.dumps({"text_config": block})])
        assert found.base == from_config(CONFIGS[name]).base
        assert "does not read text_config of the flags" in found._provenance.remarks[0]
        longer = from_config(CONFIGS[name]).extend(to=2**20, rule="yarn")
        keys = json.loads(with_length("sglang", longer.to_config("sglang"), 2**20, longer, Options())[-1])
        assert keys["text_config"] == {"max_position_embeddings": 2**20}  # the server's limit is in it
