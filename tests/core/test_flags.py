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
    NTKScaling,
    YarnScaling,
    from_config,
)
from rope_xp.configs import engines
from rope_xp.configs.readers.command_line import HARMLESS, KNOWN
from rope_xp.provenance import with_provenance

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
    "rope_parameters and rope_scaling must be equal": "qwen|internlm",
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
# Model types whose class in vLLM is that of transformers, which chooses a list at each call.
BY_TRANSFORMERS = {name for name, reading in engines.table("vllm").readings.items() if reading.by}


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
        has_one_list = target in ONE_LIST and rope._provenance.model_type not in BY_TRANSFORMERS
        kwargs["seq_len"] = None if has_one_list else length
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


def test_flags_have_a_limit():
    with pytest.raises(ValueError, match="flags must have at most 16777216 characters; got 16777217"):
        from_config(CONFIGS["llama-3.1-8b"], flags="x" * (2**24 + 1))
