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
from rope_xp.configs.writers import Options, config_for
from rope_xp.provenance import with_provenance

LLAMA = dict(
    model_type="llama", hidden_size=512, num_attention_heads=8, rope_theta=500_000.0, max_position_embeddings=8192
)
GGUF = {"general.architecture": "qwen2", "qwen2.rope.freq_base": 5e5, "qwen2.attention.key_length": 64}
GGUF |= {"qwen2.context_length": 8192}


# Arguments of each target for every golden, and for other values, with one golden of each model type.

ROTATED = [golden for golden in GOLDENS if golden["rotated"] and "compat" not in golden["kwargs"]]
ROPES = [from_config(CONFIGS[each["config"]], **each["kwargs"]) for each in ROTATED]
OF_EACH_TYPE = {
    (CONFIGS[each["config"]].get("model_type"), "text_config" in CONFIGS[each["config"]]): (each, rope)
    for each, rope in zip(ROTATED, ROPES)
    if rope.base is not None
}.values()
COMMANDS = {"vllm": "vllm", "sglang": "sglang", "lmdeploy": "lmdeploy", "llama.cpp": "llama-server"}
LENGTHS = {"original_max_position_embeddings": 4096}
CHANGES = {
    "nothing": None,
    "base": lambda rope: {"base": 3 * rope.base},
    "linear": lambda rope: {"scaling": LinearScaling(factor=4.0)},
    "ntk": lambda rope: {"scaling": NTKScaling(factor=4.0)},
    "dynamic": lambda rope: {"scaling": DynamicNTKScaling(factor=4.0, max_position_embeddings=4096, seq_len=4 * 4096)},
    "yarn": lambda rope: {"scaling": YarnScaling(factor=4.0, **LENGTHS)},
    "yarn, factor": lambda rope: {"scaling": YarnScaling(factor=4.0, attention_factor=1.2, **LENGTHS)},
    "yarn, softmax": lambda rope: {"scaling": YarnScaling(factor=4.0, mscale=0.7, mscale_all_dim=0.7, **LENGTHS)},
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
# Why arguments cannot be read back, by a pattern of the error: the families.
NOT_READ_BACK = {
    # vLLM fails with KeyError for a block without types; `convert` writes the blocks of all types.
    "rope_parameters must be nested by layer type": "gemma_?[34]|olmo3|modernbert|mimo_v2|step3p5|deepseek_v4|laguna",
    # The family's own code adds a rule, which engines do not.
    "rope_parameters or rope_scaling must be given, not both": "qwen|internlm",
    # Their classes in transformers have no base, and a file of Step3 has its length by two names.
    "every key of rope_parameters must be known; got {'rope_theta'": "gptj|neobert",
    "because of max_position_embedding;": "step3_text",
    # For latent attention and sections, the architecture decides what is computed.
    "architecture must be given": "glm_moe_dsa|bailing|hunyuan_vl|axk1|deepseek_v4|longcat",
    "the embedding must be expressible in a GGUF file": "deepseek_v4",
    # The converter's file is another embedding: a file cannot hold the ends of the ramp, or the rule without a length.
    "must read rope.scaling.yarn_beta_fast for architecture": "kimi_k2",
    "truncate must be True in llama.cpp": "gpt_oss",
    "scaling must not depend on the length of the sequence for llama.cpp": "internlm",
}


# Programs whose own length chooses the list of LongRoPE, and its argument.
ONE_LIST = {"vllm": "--max-model-len", "llama.cpp": "-c"}


@for_each("change", CHANGES)
@for_each("target", COMMANDS)
def test_what_is_written_reads_back(target, change):
    goldens = zip(ROTATED, ROPES) if change == "nothing" else OF_EACH_TYPE
    belongs_in_file = target == "llama.cpp" and change in ("llama3", "longrope")
    assert any([is_read_back(*golden, target, change) for golden in goldens]) != belongs_in_file


def is_read_back(golden, rope, target, change):
    """Whether arguments are written, and then read; if so, the value must be the same."""
    config, kwargs = CONFIGS[golden["config"]], dict(golden["kwargs"])
    kwargs.pop("seq_len", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what a table does not know
        try:
            if change != "nothing":
                plain = rope.replace(scaling=None, attention_factor=None)
                rope = with_provenance(plain.replace(**CHANGES[change](rope)), rope._provenance)
            words = rope.to_config(target)
        except ValueError:
            return False  # test_writers.py lists what is refused
    kwargs["seq_len"] = getattr(rope.scaling, "seq_len", None)
    if isinstance(rope.scaling, LongRopeScaling):
        length = kwargs["seq_len"] or 1
        kwargs["seq_len"] = None if target in ONE_LIST else length
        words += [ONE_LIST[target], str(length)] if target in ONE_LIST else []
    try:
        found = from_config(config, flags=[COMMANDS[target], *words], **kwargs)
    except ValueError as error:
        pattern = next(each for reason, each in NOT_READ_BACK.items() if reason in str(error))
        assert re.search(pattern, rope._provenance.model_type), error
        return False
    assert (found.head_dim, found.layout, found.sections) == (rope.head_dim, rope.layout, rope.sections), golden
    # llama.cpp has float32 numbers.
    np.testing.assert_allclose(found.inv_freq, rope.inv_freq, rtol=1e-6, atol=1e-12, err_msg=f"{golden} {words}")
    factors = [(each.attention_factor, each.softmax_scale) for each in (found, rope)]
    assert factors[0] == pytest.approx(factors[1], rel=1e-6), (golden, words)
    return True


def test_known_names_are_not_harmless():
    assert not KNOWN & HARMLESS


def test_all_overrides_of_vllm_are_set():
    """Objects that follow another key, too. One that is no rotary block replaces that of the file."""
    block = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
    overrides = {"initializer_range": 0.1, "quantization": {}, "rope_parameters": block}
    rope = from_config(LLAMA, flags=["vllm", "--hf-overrides", json.dumps(overrides)])
    assert (rope.base, rope.scaling) == (1e4, LinearScaling(factor=4.0))
    dbrx = dict(model_type="dbrx", d_model=512, n_heads=8, attn_config={"rope_theta": 5e5, "kv_n_heads": 2})
    assert from_config(dbrx).base == 5e5
    assert from_config(dbrx, flags=["vllm", "--hf-overrides", '{"attn_config": {"kv_n_heads": 2}}']).base == 1e4


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
    for golden, rope in zip(ROTATED, ROPES):
        config, kwargs = CONFIGS[golden["config"]], golden["kwargs"]
        if not isinstance(rope.scaling, (Llama3Scaling, LongRopeScaling, ProportionalScaling)):
            continue
        changed = rope.replace(scaling=LinearScaling(factor=2.0))
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings(
                    "ignore", "the architecture of model type .* in llama.cpp, if any, is not known"
                )
                words = changed.to_config("llama.cpp")
        except ValueError:
            refused.add(golden["config"])
        else:
            found = from_config(config, flags=["llama-server", *words], **kwargs)
            assert found.inv_freq == pytest.approx(changed.inv_freq, rel=1e-6, abs=1e-12), golden
    assert refused >= {"llama-3.1-8b", "phi-3.5-mini-instruct"}
    unknown = from_config({**CONFIGS["llama-3.1-8b"], "model_type": "of_its_own"}, layout="half")
    with pytest.raises(ValueError, match=r'anew, or see to_config\("gguf"\)$'):
        unknown.replace(scaling=LinearScaling(factor=2.0)).to_config("llama.cpp")
    with pytest.raises(
        ValueError, match=r"\(the config was read as the GGUF file that llama\.cpp's converter writes from it"
    ):
        from_config(CONFIGS["llama-3.1-8b"], flags="--rope-scaling yarn --rope-scale 2")


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
        keys = json.loads(config_for(longer, "sglang", Options(length=2**20))[-1])
        assert keys["text_config"] == {"max_position_embeddings": 2**20}  # the server's limit is in it


LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
YARN = {**LINEAR, "rope_type": "yarn", "original_max_position_embeddings": 8192}


@pytest.mark.parametrize(
    "overrides, longest",
    [
        ({}, 8192),
        ({"max_position_embeddings": 16384}, 16384),
        ({"model_max_length": 16384}, 16384),
        ({"rope_parameters": LINEAR}, 32768),
        ({"rope_parameters": {**LINEAR, "rope_type": "dynamic"}}, 32768),
        ({"rope_parameters": YARN}, 8192),
    ],
    ids=str,
)
def test_a_length_that_vllm_refuses_has_a_remark(overrides, longest):
    """tests/engines/test_vllm.py asks vLLM itself."""
    found = []
    for length in (longest, longest + 1, -1):
        words = ["vllm", "--max-model-len", str(length), "--hf-overrides", json.dumps(overrides)]
        remarks = from_config(LLAMA, flags=words)._provenance.remarks
        found.append([each for each in remarks if "stops with an error" in each])
    remark = (
        "vLLM 0.33 stops with an error if VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 is not set: the length "
        f"{longest + 1} is greater than {longest}, which the config allows"
    )
    assert found == [[], [remark], []]


def test_the_length_of_an_engine_chooses_the_list_of_longrope():
    factors = {"short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    config = CONFIGS["phi-3.5-mini-instruct"] | {"rope_scaling": {"type": "longrope", **factors}}
    for flags, served in (
        ("vllm serve x", 4096),  # its default is the original length
        ("vllm serve x --max-model-len auto", 4096),
        ("vllm serve x --max-model-len 4097", 4097),
        ("llama-server -m x -c 8192", 8192),
        ("llama-server -m x -c 8192 -np 4", 2048),
        ("llama-server -m x -c 8000 --parallel 3", 2816),  # in multiples of 256
        ("llama-server -m x -c 8192 -np 4 -kvu", 8192),
    ):
        rope = from_config(config, flags=flags)
        assert (rope.scaling.is_long, rope.scaling.seq_len, rope.explain().context) == (served > 4096, served, served)
        assert compare(config, config, options={"flags": flags}).context == served
        with pytest.raises(ValueError, match=f"seq_len must not be given with .* {served}, .*; got 5000"):
            from_config(config, flags=flags, seq_len=5000)
    unchanged = "without --hf-overrides, the embedding would be the same"
    base = {"rope_theta": 2e4}
    for overrides, remarks in ((base, [unchanged]), ({"rope_parameters": base}, [])):  # vLLM reads only the second
        flags = ["vllm", "serve", "x", "--max-model-len", "4097", "--hf-overrides", json.dumps(overrides)]
        assert [each for each in from_config(config, flags=flags)._provenance.remarks if "without" in each] == remarks
    shared = from_config(CONFIGS["llama-2-7b"], flags="llama-server -m x -c 8192 -np 2 -kvu")
    assert not any("without" in each for each in shared._provenance.remarks)
    for flags in ("sglang serve x", "lmdeploy serve api_server x"):  # the length of a sequence chooses it
        assert not from_config(config, flags=flags, seq_len=4000).scaling.is_long


def test_positions_beyond_the_length_that_an_engine_serves_are_not_compared():
    dynamic = {**CONFIGS["llama-2-7b"], "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}
    for flags, causes in (
        ("python -m sglang.launch_server --model x --context-length 4096", ("scaling",)),
        ("lmdeploy serve api_server x --session-len 2048", ()),
        ("llama-server -m x -c 4096", ()),  # the file has no dynamic NTK
    ):
        report = compare(dynamic, dynamic, options={"flags": flags})
        assert report.causes == causes and report.context == int(flags.rpartition(" ")[2])
    longer = from_config(dynamic, flags="llama-server -m x -c 16384", seq_len=16_384)
    assert longer.scaling is None and "writes nothing for dynamic NTK" in " ".join(longer._provenance.remarks)


def test_lengths_of_llama_cpp_are_those_of_one_sequence():
    """The server ends at the length of the file, which is compared with what each sequence has of the context."""
    config = CONFIGS["llama-2-7b"] | {"max_position_embeddings": 4096}
    for flags, served, ends in (
        ("-c 4096", 4096, False),
        ("-c 4097", 4097, True),
        ("-c 16384 -np 4", 4096, False),
        ("-c 16384 -np 3", 5632, True),
        ("-c 16384 -np 4 -kvu", 16384, True),
        ("-np 4", 1024, False),
        ("-np 4 -kvu --rope-freq-base 1e4", None, False),
    ):
        found = from_config(config, flags=f"llama-server -m x {flags}")._provenance
        assert (found.served, any("server ends at 4096" in each for each in found.remarks)) == (served, ends), flags
    none = "llama-server -m x --rope-scaling none --yarn-ext-factor 1 --rope-scale 2"
    assert np.allclose(from_config(config, flags=none).inv_freq, from_config(config).inv_freq, rtol=1e-15, atol=0.0)


def test_lmdeploy_has_two_engines():
    for flags, said in (("", True), (" --backend turbomind", True), (" --backend pytorch", False)):
        found = from_config(LLAMA, flags=f"lmdeploy serve api_server x --session-len 99{flags}")
        assert any("TurboMind" in each for each in found._provenance.remarks) == said
