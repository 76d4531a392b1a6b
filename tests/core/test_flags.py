"""from_config(flags=...): what an engine computes from a config with the arguments of its command line."""

import json
import math

import pytest
from configs import CONFIGS, GOLDENS

from rope_xp import LongRopeScaling, compare, from_config
from rope_xp._core.config.flags.command_line import HARMLESS, KNOWN, command_line
from rope_xp._core.config.flags.overrides import VLLM_BASES
from rope_xp._core.config.families import FAMILIES
from rope_xp._core.writers.gguf_architectures import ARCHITECTURE_OF

ROTATED = [golden for golden in GOLDENS if golden["rotated"]]
WRITERS_OF_FLAGS = ("vllm", "sglang", "lmdeploy", "llama.cpp")


def named(golden):
    kwargs = ",".join(f"{key}={value}" for key, value in golden["kwargs"].items())
    return f"{golden['config']}({kwargs})"


def flags_of(golden, target):
    rope = from_config(CONFIGS[golden["config"]], **golden["kwargs"])
    try:
        return rope, rope.to_config(target)
    except ValueError:
        return rope, None


@pytest.mark.parametrize("target", WRITERS_OF_FLAGS)
@pytest.mark.parametrize("golden", ROTATED, ids=named)
def test_what_is_written_reads_back(golden, target):
    rope, flags = flags_of(golden, target)
    if flags is None:
        return
    kw = dict(golden["kwargs"])
    if isinstance(rope.scaling, LongRopeScaling):
        kw["seq_len"] = rope.scaling.seq_len or 1
    found = from_config(CONFIGS[golden["config"]], flags=[target_command(target), *flags], **kw)
    assert found.layout == rope.layout and found.head_dim == rope.head_dim
    assert found.inv_freq == pytest.approx(rope.inv_freq, rel=1e-6) if rope.axes == 1 else True
    assert found.attention_factor == pytest.approx(rope.attention_factor, rel=1e-6)
    assert found.softmax_scale == pytest.approx(rope.softmax_scale, rel=1e-6)


def target_command(target):
    return {"llama.cpp": "llama-server"}.get(target, target)
