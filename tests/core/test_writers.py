"""to_config: what is written for an engine gives the value by that engine's formulas, or the target is refused."""

import json
import warnings
from copy import deepcopy
from dataclasses import replace

import engines
import gguf
import numpy as np
import pytest
from configs import CONFIGS, GOLDENS

from rope_xp import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    MixedNTKScaling,
    NTKScaling,
    ProportionalScaling,
    RotaryEmbedding,
    Sections,
    XPos,
    YarnScaling,
    from_config,
)
from rope_xp.configs.engines import table
from rope_xp.configs.writers import TARGETS, with_length
from rope_xp.configs.writers.gguf_architectures import ARCHITECTURE_OF, LAYERS, LONG, gguf_layout
from rope_xp.frequencies import Scaling, geometric
from rope_xp.provenance import Provenance, with_provenance

# Engines compute in float64 here, from float32 numbers where a GGUF file has them: two roundings of a frequency.
EXACT, FLOAT32 = 1e-13, 2.0**-22
HALF, INTERLEAVED, TO_HALF = "half", "interleaved", "interleaved_to_half"
# For families that llama.cpp does not have: architectures that accept every rule, and those that rotate a part.
OTHER_ARCHITECTURES = {HALF: "apertus", INTERLEAVED: "minicpm", TO_HALF: "minicpm"}
IN_PART = {HALF: "gptneox", INTERLEAVED: "granitehybrid", TO_HALF: "granitehybrid"}
# Time, height, width, and the fourth position of llama.cpp, which is 0.
POSITIONS = (70_001, 1_003, 211, 0)


# Configs whose last pairs follow the fourth position: they are written with a warning.
FOURTH_POSITION = {"qwen3-vl-2b-instruct()": (61, 62), "qwen3-vl-30b-a3b()": (61, 62)}


def rope_of(golden):
    return from_config(CONFIGS[golden["config"]], **golden["kwargs"])


ROTATED = [golden for golden in GOLDENS if golden["rotated"]]


def named(golden):
    kwargs = ",".join(f"{key}={value}" for key, value in golden["kwargs"].items())
    return f"{golden['config']}({kwargs})"


def prepared(rope, target):
    """The value of the target's checkpoints, whose projections may be permuted; and the architecture of a GGUF file.

    It is not that of a type of layers, as programs have no settings for one of several types.
    """
    rope = with_provenance(rope, replace(rope._provenance, layer_type=""))
    if target == "meta":
        return rope if rope.blocks > 1 else rope.replace(layout=INTERLEAVED), {}
    if target in ("mlx", "vllm"):  # without a model type: test_mlx_classes.py and test_vllm.py have what each reads
        return with_provenance(rope, Provenance()), {}
    if target not in ("gguf", "llama.cpp"):
        return rope, {}
    others = OTHER_ARCHITECTURES if rope.rotary_dim == rope.head_dim else IN_PART
    name = ARCHITECTURE_OF.get(rope._provenance.model_type, others[rope.layout])
    sections = () if rope.sections is None else rope.sections.sizes
    layout = gguf_layout({"general.architecture": name, f"{name}.rope.dimension_sections": sections})
    same = layout in rope.layout or rope.blocks > 1
    return rope if same else rope.replace(layout=layout), {"architecture": name}


def outcome(golden, target):
    """The value, the options and what is written; or the property for which the target is refused."""
    rope, options = prepared(rope_of(golden), target)
    try:
        if target in ("gguf", "llama.cpp") and named(golden) in FOURTH_POSITION:
            with pytest.warns(
                UserWarning, match="rotates pairs 61, 62 by a fourth position, which is 0 for text; .* 0.11"
            ):
                return rope, options, rope.to_config(target, **options)
        with warnings.catch_warnings():  # that it is not known whether an engine reads the keys
            warnings.simplefilter("ignore", UserWarning)
            return rope, options, rope.to_config(target, **options)
    except ValueError as error:
        start, _, message = str(error).partition(": ")
        assert start == "RotaryEmbedding.to_config" and "; got " in message and len(str(error)) < 600, error
        return rope, options, message.split()[-1 if message.startswith("the embedding") else 0].rstrip(",")


def length_of(rope):
    return getattr(rope.scaling, "seq_len", None) or 0


def computed(rope, target, options, written):
    """The angles at `POSITIONS`, and the two factors, by the formulas of the engine."""
    if target == "gguf":
        return engines.ggml(written, POSITIONS, length_of(rope))
    if target == "llama.cpp":
        return engines.ggml(file_of(rope, options["architecture"], written), POSITIONS, length_of(rope))
    if target == "vllm":
        block = json.loads(written[1])["rope_parameters"]
        fraction = 1.0 if block["rope_type"] == "proportional" else block.get("partial_rotary_factor", 1.0)
        found = engines.vllm(written, int(rope.head_dim * fraction), rope.softmax_scale != 1.0, length_of(rope))
    elif target in ("sglang", "lmdeploy"):
        found = engines.served(written, rope.head_dim, rope.softmax_scale != 1.0, length_of(rope))
    elif target == "mlx":
        found = engines.mlx(written, length_of(rope))
    else:
        found = getattr(engines, target)(written, rope.head_dim)
    return on_axes(rope, found[0]), *found[1:]


def file_of(rope, name, flags):
    """A GGUF file without scaling, and the arguments."""
    file = {"general.architecture": name, f"{name}.rope.dimension_count": rope.rotary_dim}
    if rope.sections is not None:
        file[f"{name}.rope.dimension_sections"] = [*rope.sections.sizes, 0][:4]
    return engines.with_flags(name, file, flags)


def on_axes(rope, freqs):
    """The angles of pairs whose position axes the model assigns."""
    if rope.sections is None:
        return [POSITIONS[0] * w for w in freqs]
    return [POSITIONS[column.axis] * freqs[column.index] for column in rope.sections.columns()]


def expected(rope):
    rows = [rope.inv_freq] if rope.axes == 1 else rope.inv_freq
    angles = [sum(position * w for position, w in zip(POSITIONS, column)) for column in zip(*rows)]
    return angles, rope.attention_factor, rope.softmax_scale


# The goldens that a target cannot express, by the property for which it is refused. A name without brackets stands for
# all goldens of a config. Every other golden must be written.
REFUSED = """
vllm seq_len: internlm2-7b() internlm-20b()
vllm sections: gemma-4-e2b-it(part=vision) llama-4-scout-17b-16e(part=vision) qwen2-vl-7b-instruct(part=vision)
vllm sections: qwen2.5-vl-7b-instruct(part=vision) qwen3-vl-2b-instruct(part=vision) glm-4.1v-9b-thinking(part=vision)
vllm sections: ernie-4.5-vl-28b-a3b-remote(part=vision)
vllm inv_freq: dinov3-vitl16-lvd1689m grok-2
llama.cpp scaling: llama-3.1-8b llama-3.2-1b internlm2-7b() phi-3-vision-128k-text phi-3.5-mini-instruct
llama.cpp scaling: phi-4-mini-instruct phi-3.5-moe-synthetic-factors gemma-4-e2b-it(layer_type=full_attention)
llama.cpp scaling: gemma-4-e2b-it(layer=4) llama-4-scout-17b-16e(layer=0) llama-4-scout-17b-16e(layer=46)
llama.cpp scaling: llama-4-scout-17b-16e-instruct exaone-4.0-32b exaone-3.5-7.8b-instruct internlm-20b()
llama.cpp scaling: gte-multilingual-base
llama.cpp llama.cpp: step-3.5-flash(layer=0)
llama.cpp truncate: gpt-oss-20b
llama.cpp sections: ministral-3-8b(part=vision) gemma-4-e2b-it(part=vision) llama-4-scout-17b-16e(part=vision)
llama.cpp sections: pixtral-12b(part=vision) qwen2-vl-7b-instruct(part=vision) qwen2.5-vl-7b-instruct(part=vision)
llama.cpp sections: qwen3-vl-2b-instruct(part=vision) glm-4.1v-9b-thinking(part=vision) ernie-4.5-vl-28b-a3b hunyuan-ocr
llama.cpp sections: ernie-4.5-vl-28b-a3b-remote
llama.cpp inv_freq: dinov3-vitl16-lvd1689m grok-2
gguf first_channel: deepseek-v4-flash
gguf truncate: gpt-oss-20b
gguf scaling: internlm2-7b() internlm-20b()
gguf sections: ministral-3-8b(part=vision) llama-4-scout-17b-16e(part=vision) pixtral-12b(part=vision)
gguf sections: qwen2-vl-7b-instruct(part=vision) qwen2.5-vl-7b-instruct(part=vision) qwen3-vl-2b-instruct(part=vision)
gguf sections: glm-4.1v-9b-thinking(part=vision) ernie-4.5-vl-28b-a3b hunyuan-ocr ernie-4.5-vl-28b-a3b-remote
gguf blocks: gemma-4-e2b-it(part=vision)
gguf llama.cpp: step-3.5-flash(layer=0) kimi-k2-instruct
gguf inv_freq: dinov3-vitl16-lvd1689m grok-2
mlx first_channel: deepseek-v4-flash
mlx truncate: gpt-oss-20b
mlx seq_len: phi-3-vision-128k-text() phi-3-vision-128k-text(seq_len=4096) phi-3.5-mini-instruct()
mlx seq_len: phi-3.5-mini-instruct(seq_len=4096) phi-4-mini-instruct() phi-4-mini-instruct(seq_len=4096)
mlx seq_len: phi-3.5-moe-synthetic-factors() phi-3.5-moe-synthetic-factors(seq_len=4096)
mlx attention_factor: phi-3.5-moe-synthetic-factors(seq_len=4097)
mlx sections: ministral-3-8b(part=vision) llama-4-scout-17b-16e(part=vision) pixtral-12b(part=vision)
mlx sections: qwen2-vl-7b-instruct(part=vision) qwen2.5-vl-7b-instruct(part=vision) qwen3-vl-2b-instruct qwen3.5-0.8b
mlx sections: glm-4.1v-9b-thinking(part=vision) ernie-4.5-vl-28b-a3b hunyuan-ocr ernie-4.5-vl-28b-a3b-remote
mlx blocks: gemma-4-e2b-it(part=vision)
mlx inv_freq: dinov3-vitl16-lvd1689m grok-2
mlx scaling: gte-multilingual-base
megatron first_channel: deepseek-v4-flash
megatron scaling: internlm2-7b() phi-3-vision-128k-text phi-3.5-mini-instruct phi-4-mini-instruct
megatron scaling: phi-3.5-moe-synthetic-factors gemma-4-e2b-it(layer_type=full_attention) gemma-4-e2b-it(layer=4)
megatron scaling: internlm-20b() gte-multilingual-base
megatron base: internlm2-7b(seq_len=32769) internlm2-7b(seq_len=65536) hy-mt1.5-1.8b hunyuan-ocr
megatron base: qwen-7b-chat(seq_len=9000) qwen-7b-chat(seq_len=30000) internlm-20b(seq_len=6000) hunyuan-large
megatron base: hunyuan-a13b-instruct
megatron low_freq_factor: llama-4-scout-17b-16e-instruct step-3.5-flash(layer=0)
megatron sections: ministral-3-8b(part=vision) llama-4-scout-17b-16e(part=vision) pixtral-12b(part=vision)
megatron sections: qwen2-vl-7b-instruct(part=vision) qwen2.5-vl-7b-instruct(part=vision) qwen3-vl-2b-instruct
megatron sections: qwen3.5-0.8b glm-4.1v-9b-thinking ernie-4.5-vl-28b-a3b ernie-4.5-vl-28b-a3b-remote
megatron blocks: gemma-4-e2b-it(part=vision)
megatron inv_freq: dinov3-vitl16-lvd1689m grok-2
meta scaling: qwen2.5-7b-instruct-yarn qwen3-8b-yarn deepseek-v3 deepseek-v2-lite
meta scaling: deepseek-v2-lite-saved-by-transformers-5 kimi-k2-instruct gpt-oss-20b
meta scaling: olmo-3-7b(layer_type=full_attention) olmo-3-7b(layer=3) ministral-3-8b() internlm2-7b()
meta scaling: deepseek-coder-6.7b longchat-7b-v1.5-32k phi-3-vision-128k-text phi-3.5-mini-instruct
meta scaling: phi-3.5-moe-synthetic-factors gemma-3-12b-it(layer_type=full_attention) gemma-3-12b-it(layer=5)
meta scaling: gemma-3-12b-it(layer=47,part=text) gemma-4-e2b-it(layer_type=full_attention) gemma-4-e2b-it(layer=4)
meta scaling: internlm-20b() gte-multilingual-base
meta first_channel: deepseek-v4-flash
meta rotary_dim: phi-4-mini-instruct phi-2 stablelm-2-1_6b pythia-1.4b gpt-neox-20b gpt-j-6b glm-4-9b-0414
meta rotary_dim: minitron-4b-base persimmon-8b-base chatglm3-6b-32k glm-4-9b-chat ling-mini-2.0
meta rotary_dim: step-3.5-flash(layer=0) mimo-v2-flash bamba-9b stablelm-2-12b
meta sections: ministral-3-8b(part=vision) llama-4-scout-17b-16e(part=vision) pixtral-12b(part=vision)
meta sections: qwen2-vl-7b-instruct qwen2.5-vl-7b-instruct qwen3-vl-2b-instruct qwen3.5-0.8b glm-4.1v-9b-thinking
meta sections: ernie-4.5-vl-28b-a3b hunyuan-ocr ernie-4.5-vl-28b-a3b-remote
meta blocks: gemma-4-e2b-it(part=vision)
meta inv_freq: dinov3-vitl16-lvd1689m grok-2
vllm seq_len: minicpm-2b-128k() internlm-chat-7b() internvl3-1b() internvl3-1b(part=text) internvl2.5-2b()
vllm seq_len: internvl2.5-2b(part=text)
llama.cpp scaling: llama-3.3-nemotron-super-49b llama-3.1-405b gemma-4-26b-a4b(layer_type=full_attention)
llama.cpp scaling: gemma-4-26b-a4b(layer=5) minicpm-2b-128k() internlm-chat-7b() internvl3-1b()
llama.cpp scaling: internvl3-1b(part=text) internvl2.5-2b() internvl2.5-2b(part=text)
llama.cpp truncate: gpt-oss-120b
gguf first_channel: deepseek-v4-pro
gguf truncate: gpt-oss-120b
gguf scaling: minicpm-2b-128k() internlm-chat-7b() internvl3-1b() internvl3-1b(part=text) internvl2.5-2b()
gguf scaling: internvl2.5-2b(part=text)
mlx first_channel: deepseek-v4-pro
mlx truncate: gpt-oss-120b
mlx sections: qwen3-vl-30b-a3b qwen3.5-397b-a17b
megatron first_channel: deepseek-v4-pro
megatron sections: qwen3-vl-30b-a3b qwen3.5-397b-a17b
megatron scaling: gemma-4-26b-a4b(layer_type=full_attention) gemma-4-26b-a4b(layer=5) minicpm-2b-128k()
megatron scaling: internlm-chat-7b() internvl3-1b() internvl3-1b(part=text) internvl2.5-2b() internvl2.5-2b(part=text)
megatron base: minicpm-2b-128k(seq_len=131072) internvl3-1b(seq_len=40000) internvl2.5-2b(seq_len=40000)
meta scaling: deepseek-v3.2 kimi-k2.5 gpt-oss-120b gemma-4-26b-a4b(layer_type=full_attention) gemma-4-26b-a4b(layer=5)
meta scaling: minicpm-2b-128k() internlm-chat-7b() internvl3-1b() internvl3-1b(part=text) internvl2.5-2b()
meta scaling: internvl2.5-2b(part=text) deepseek-r1-0528-qwen3-8b
meta first_channel: deepseek-v4-pro
meta rotary_dim: minimax-m3 minimax-m2.5 phi-1_5-first-file phi-2-first-file stablelm-3b-4e1t chatglm3-6b
meta rotary_dim: ring-mini-linear-2.0 minimax-m1 minimax-text-01 stablelm-3b-4e1t-first-file
meta sections: qwen3-vl-30b-a3b qwen3.5-397b-a17b
sglang first_channel: deepseek-v4-flash(layer_type=main) deepseek-v4-flash(layer_type=compress)
sglang first_channel: deepseek-v4-pro(layer_type=main) deepseek-v4-pro(layer_type=compress)
sglang seq_len: internlm2-7b() internlm2-7b(seq_len=32768) internlm2-7b(seq_len=32769) internlm-20b()
sglang seq_len: internlm-20b(seq_len=6000) minicpm-2b-128k() minicpm-2b-128k(seq_len=65536)
sglang seq_len: minicpm-2b-128k(seq_len=131072) internlm-chat-7b() internvl3-1b() internvl3-1b(part=text)
sglang seq_len: internvl3-1b(seq_len=32768) internvl3-1b(seq_len=40000) internvl2.5-2b() internvl2.5-2b(part=text)
sglang seq_len: internvl2.5-2b(seq_len=32768) internvl2.5-2b(seq_len=40000)
sglang sglang: phi-4-mini-instruct() phi-4-mini-instruct(seq_len=4096) phi-4-mini-instruct(seq_len=4097) phi-2()
sglang scaling: gemma-4-e2b-it(layer_type=full_attention) gemma-4-e2b-it(layer=4) gte-multilingual-base()
sglang scaling: gemma-4-26b-a4b(layer_type=full_attention) gemma-4-26b-a4b(layer=5)
sglang part: qwen2-vl-7b-instruct(part=vision) qwen2.5-vl-7b-instruct(part=vision) qwen3-vl-2b-instruct(part=vision)
sglang part: glm-4.1v-9b-thinking(part=vision) pixtral-12b(part=vision) ministral-3-8b(part=vision)
sglang part: gemma-4-e2b-it(part=vision) llama-4-scout-17b-16e(part=vision) ernie-4.5-vl-28b-a3b-remote(part=vision)
sglang sections: ernie-4.5-vl-28b-a3b() hunyuan-ocr() ernie-4.5-vl-28b-a3b-remote()
sglang inv_freq: dinov3-vitl16-lvd1689m() grok-2()
lmdeploy first_channel: deepseek-v4-flash(layer_type=main) deepseek-v4-flash(layer_type=compress)
lmdeploy first_channel: deepseek-v4-pro(layer_type=main) deepseek-v4-pro(layer_type=compress)
lmdeploy attention_factor: phi-3.5-moe-synthetic-factors() phi-3.5-moe-synthetic-factors(seq_len=4096)
lmdeploy attention_factor: phi-3.5-moe-synthetic-factors(seq_len=4097)
lmdeploy scaling: gemma-4-e2b-it(layer_type=full_attention) gemma-4-e2b-it(layer=4) gte-multilingual-base()
lmdeploy scaling: gemma-4-26b-a4b(layer_type=full_attention) gemma-4-26b-a4b(layer=5)
lmdeploy part: qwen2-vl-7b-instruct(part=vision) qwen2.5-vl-7b-instruct(part=vision) qwen3-vl-2b-instruct(part=vision)
lmdeploy part: glm-4.1v-9b-thinking(part=vision) pixtral-12b(part=vision) ministral-3-8b(part=vision)
lmdeploy part: gemma-4-e2b-it(part=vision) llama-4-scout-17b-16e(part=vision) ernie-4.5-vl-28b-a3b-remote(part=vision)
lmdeploy sections: ernie-4.5-vl-28b-a3b() hunyuan-ocr() ernie-4.5-vl-28b-a3b-remote()
lmdeploy inv_freq: dinov3-vitl16-lvd1689m() grok-2()
"""


def refused_goldens():
    found = {}
    for line in REFUSED.split("\n")[1:-1]:
        start, _, names = line.partition(": ")
        target, name = start.split()
        for golden in ROTATED:
            if {named(golden), golden["config"]} & {*names.split()}:
                found[target, named(golden)] = name
    return found


REFUSED_GOLDENS = refused_goldens()


# Targets with keys of transformers are read back, and tests/engines runs transformers. LM Studio has a test below.
COMPUTED = [target for target in TARGETS if target not in ("transformers", "transformers4", "axolotl", "lmstudio")]


@pytest.mark.parametrize("target", COMPUTED)
@pytest.mark.parametrize("golden", ROTATED, ids=named)
def test_engines_compute_the_value(golden, target):
    rope, options, written = outcome(golden, target)
    refused = REFUSED_GOLDENS.get((target, named(golden)))
    assert (written if isinstance(written, str) else None) == refused
    if refused is not None:
        return
    tolerance = FLOAT32 if target in ("gguf", "llama.cpp") else EXACT
    (angles, *factors), (wanted, *others) = computed(rope, target, options, written), expected(rope)
    if target in ("gguf", "llama.cpp"):
        for pair in FOURTH_POSITION.get(named(golden), ()):
            assert angles[pair] == 0.0
            wanted[pair] = 0.0
    assert angles == pytest.approx(wanted, rel=tolerance, abs=1e-24)
    assert factors == pytest.approx(others, rel=tolerance)


def test_layers_that_differ_need_a_place_each():
    """Programs with one setting for all layers refuse that of one type, and so do flags that leave other types."""
    config = CONFIGS["gemma-3-1b-it"]
    for layers in ({"layer_type": "sliding_attention"}, {"layer": 0}, {"layer": 5}, {"layer_type": "full_attention"}):
        rope = from_config(config, **layers)
        is_full = layers in ({"layer": 5}, {"layer_type": "full_attention"})
        for target, writer in TARGETS.items():
            for each in (rope, rope.replace(base=5000.0)):
                if writer.layers == "all" or (writer.layers == "full_attention" and not is_full):
                    wanted = (
                        "all layers must have the same embedding" if writer.layers == "all" else "layer_type must be"
                    )
                    with pytest.raises(ValueError, match=wanted):
                        each.to_config(target)
                elif target == "vllm":
                    with pytest.raises(ValueError, match="must have one block for each type of layers"):
                        each.to_config(target)
                else:
                    each.to_config(target)
    assert from_config(CONFIGS["qwen3-8b-yarn"], layer=3)._provenance.layer_type == ""


def test_every_refused_golden_exists():
    names = {name for line in REFUSED.split("\n")[1:-1] for name in line.partition(": ")[2].split()}
    assert names <= {golden["config"] for golden in ROTATED} | {named(golden) for golden in ROTATED}


def read_back(rope, target, keys):
    """The keys as a whole config, read."""
    heads = {"num_attention_heads": 8, "hidden_size": 8 * rope.head_dim}
    if target == "meta":
        keys = {"dim": 8 * rope.head_dim, "n_heads": 8, **keys}
    elif target == "megatron":
        keys = {**heads, **keys}
    elif target == "mlx":
        latent = {"qk_rope_head_dim": rope.head_dim, "rope_interleave": rope.layout != HALF}
        model = {"model_type": "deepseek_v3", **latent} if rope.softmax_scale != 1.0 else {"model_type": "llama"}
        keys = {**heads, **model, **keys}
        if rope.sections is not None:
            keys = {**keys, "model_type": "qwen2_vl_text", "rope_traditional": False}
        if "deepseek_v3" in model.values():
            del keys["head_dim"], keys["rope_traditional"]
    seq_len = getattr(rope.scaling, "seq_len", None)
    return from_config(json.loads(json.dumps(keys)), seq_len=seq_len)


def assert_equal(found, rope, tolerance):
    assert found.head_dim == rope.head_dim and found.rotary_dim == rope.rotary_dim
    assert found.layout.removesuffix("_to_half") == rope.layout.removesuffix("_to_half")
    for one, other in zip(expected(found), expected(rope), strict=True):
        assert one == pytest.approx(other, rel=tolerance, abs=1e-24)


@pytest.mark.parametrize("target", ["gguf", "mlx", "megatron", "meta"])
@pytest.mark.parametrize("golden", ROTATED, ids=named)
def test_keys_are_read_back(golden, target):
    rope, _, keys = outcome(golden, target)
    if isinstance(keys, str):
        return
    if target == "mlx" and rope.sections is not None:
        rope = rope.replace(layout=HALF)  # no family of transformers has this layout in the keys of MLX
    found = read_back(rope, target, keys)
    assert_equal(found, rope, FLOAT32 if target == "gguf" else EXACT)
    if target != "gguf" and rope.scaling is not None and not isinstance(rope.scaling, NTKScaling | DynamicNTKScaling):
        assert type(found.scaling) is type(rope.scaling)


# Orders of axes that depend on the family in a config of transformers, and are not written.
OF_FAMILY = ("spatial_first", "even_odd")


@pytest.mark.filterwarnings("ignore:.* is not known:UserWarning")
@pytest.mark.parametrize("nested", [False, True], ids=["flat", "text_config"])
@pytest.mark.parametrize("target", ["transformers", "vllm"])
@pytest.mark.parametrize("golden", ROTATED, ids=named)
def test_rope_parameters_are_read_back(golden, target, nested):
    """Those of transformers, and `--hf-overrides` of vLLM, in a config of a model that nobody knows."""
    rope = rope_of(golden)
    if target == "vllm":
        rope = with_provenance(rope, Provenance())
        if isinstance(rope.scaling, DynamicNTKScaling):
            return  # with a key that only vLLM has: test_flags.py reads it back
    try:
        written = rope.to_config(target)
    except ValueError:
        return  # REFUSED has those of vLLM
    keys = json.loads(written[1]) if target == "vllm" else {"rope_parameters": written}
    config = {"model_type": "mine", "head_dim": rope.head_dim, **json.loads(json.dumps(keys))}
    length = getattr(rope.scaling, "max_position_embeddings", None)
    config |= {} if length is None else {"max_position_embeddings": length}
    config = {"model_type": "mine_too", "text_config": config} if nested else config
    found = from_config(config, layout=rope.layout, seq_len=getattr(rope.scaling, "seq_len", None))
    if rope.sections is not None and rope.sections.order in OF_FAMILY:
        found = found.replace(sections=rope.sections)
    if rope.softmax_scale != 1.0:  # only families with latent attention have it
        rope = rope.replace(scaling=found.scaling)
    assert_equal(found, rope, EXACT)


@pytest.mark.filterwarnings("ignore:.* is not known:UserWarning")
@pytest.mark.parametrize("golden", ROTATED, ids=named)
def test_keys_of_transformers_4_replace_those_of_the_file(golden):
    rope = rope_of(golden)
    try:
        written = json.loads(json.dumps(rope.to_config("transformers4")))
    except ValueError:
        return  # tests/engines shows that transformers 4 would compute another embedding
    found = rope._provenance
    known = not found.format and table("transformers", "4.57.6").of(found.model_type)
    config = deepcopy(CONFIGS[golden["config"]]) if known else {"model_type": "mine", "head_dim": rope.head_dim}
    place = config
    for name in found.path:
        place, written = place[name] if known else place, written[name]
    place.pop("rope_parameters", None)
    place.update(written)
    options = {"layout": rope.layout, "seq_len": getattr(rope.scaling, "seq_len", None)}
    read = from_config(config, **golden["kwargs"] if known else options)
    if rope.sections is not None and rope.sections.order in OF_FAMILY:
        read = read.replace(sections=rope.sections)
    if rope.softmax_scale == 1.0:
        assert_equal(read, rope, EXACT)
    else:
        assert (read.inv_freq, read.attention_factor) == (rope.inv_freq, rope.attention_factor)


@pytest.mark.filterwarnings("ignore:.* is not known:UserWarning")
@pytest.mark.parametrize("golden", ROTATED, ids=named)
def test_axolotl_gets_the_block_of_transformers(golden):
    rope, _, written = outcome(golden, "axolotl")
    if isinstance(written, str):
        block = outcome(golden, "transformers")[2]
        assert isinstance(block, str) or rope._provenance.path or rope._provenance.layer_type
    else:
        assert written == {"overrides_of_model_config": {"rope_parameters": rope.to_config("transformers")}}


def test_lm_studio_gets_a_base_and_the_inverse_of_a_factor():
    assert half().to_config("lmstudio") == {"ropeFrequencyBase": 10_000.0}
    linear = half(scaling=LinearScaling(factor=8.0)).to_config("lmstudio")
    assert linear == {"ropeFrequencyBase": 10_000.0, "ropeFrequencyScale": 0.125}
    ntk = half(scaling=NTKScaling(factor=4.0)).to_config("lmstudio")
    assert ntk == {"ropeFrequencyBase": pytest.approx(10_000.0 * 4 ** (128 / 126))}
    assert with_length("lmstudio", linear, 65_536) == {**linear, "contextLength": 65_536}


WRITTEN_BY = {int: "add_uint32", float: "add_float32", str: "add_string", list: "add_array"}
FILES = [golden for golden in ROTATED if golden["config"] in ("llama-3.1-8b", "deepseek-v3", "phi-3.5-mini-instruct")]


@pytest.mark.parametrize("golden", FILES, ids=named)
def test_a_gguf_file_with_the_metadata_is_read(golden, tmp_path):
    rope, options, metadata = outcome(golden, "gguf")
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", options["architecture"])
    for key, value in metadata.items():
        if key.endswith(".weight"):
            writer.add_tensor(key, np.asarray(value, np.float32))
        elif key != "general.architecture":
            getattr(writer, WRITTEN_BY[type(value)])(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = from_config(tmp_path / "model.gguf", seq_len=getattr(rope.scaling, "seq_len", None))
    assert_equal(found, rope, FLOAT32)
    assert type(found.scaling) is type(rope.scaling)


def half(head_dim=128, base=10_000.0, **options):
    return RotaryEmbedding(**{"layout": HALF, "head_dim": head_dim, "base": base, **options})


YARN = {"factor": 4.0, "original_max_position_embeddings": 4096}
LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
LONGROPE = {"short_factor": (1.0, 1.1), "long_factor": (1.5, 4.0), "original_max_position_embeddings": 4096}
QWEN, LLAMA, DEEPSEEK, PHI = ({"architecture": name} for name in ("qwen2", "llama", "deepseek2", "phi3"))
PAIRED = {"layout": INTERLEAVED}
IMPOSSIBLE = [
    ("vlm", {}, {}, 'target must be "transformers" .*"meta".*; got .vlm'),
    (None, {}, {}, "target must be .*; got None"),
    ("mlx", {}, QWEN, "architecture must be given only for .*; got 'qwen2'"),
    ("gguf", {}, {}, "architecture must be given, the general.architecture .*; got None"),
    ("gguf", {}, {"architecture": "gpt2"}, "architecture must be one that llama.cpp rotates; got 'gpt2'"),
    ("gguf", {}, {"architecture": 5}, "architecture must be one that llama.cpp rotates; got 5"),
    ("gguf", {}, {"architecture": "gemma3"}, "architecture must have the same frequencies in all .*; got 'gemma3'"),
    ("gguf", {}, LLAMA, "layout must be 'interleaved' .*'llama'; got 'half': permute .* permute_projection"),
    ("gguf", PAIRED, QWEN, "layout must be 'half' .*'qwen2'; got 'interleaved': permute .*to='half'"),
    ("gguf", {**PAIRED, "rotary_dim": 64}, LLAMA, "rotary_dim must be head_dim=128 .*; got 64"),
    ("gguf", {**PAIRED, "rotary_dim": 64}, DEEPSEEK, "head_dim must be .* rotated part, 64.*; got 128"),
    ("gguf", {"xpos": XPos(), "reverse": True}, QWEN, "expressible in a GGUF file; got xpos, reverse"),
    ("gguf", {"attention_factor": 1.5}, QWEN, "attention_factor must be 1 without YaRN .*; got 1.5"),
    (
        "gguf",
        {"scaling": Llama3Scaling(**LLAMA3)},
        {"architecture": "phi2"},
        "llama.cpp 0.5.0 must read rope_freqs.weight for architecture 'phi2'; got one that does not",
    ),
    (
        "gguf",
        {"head_dim": 4, "scaling": LongRopeScaling(**LONGROPE, factor=4.0)},
        QWEN,
        "must read rope_factors_long.weight for architecture 'qwen2' with longrope; got one that does not",
    ),
    (
        "gguf",
        {"head_dim": 4, "scaling": LongRopeScaling(**LONGROPE, short_mscale=1.1, long_mscale=1.3)},
        PHI,
        "short_mscale and long_mscale must be equal .*; got 1.1 and 1.3",
    ),
    (
        "gguf",
        {"scaling": YarnScaling(**YARN, mscale=1.0, mscale_all_dim=1.0)},
        QWEN,
        "softmax_scale must be 1 .*'qwen2'",
    ),
    ("gguf", {**PAIRED, "scaling": YarnScaling(**YARN)}, DEEPSEEK, "mscale_all_dim must be given.*; got None and 1.13"),
    ("gguf", {"sections": Sections((16, 24, 24))}, QWEN, "sections must be None .*'qwen2'; got Sections"),
    ("gguf", {}, {"architecture": "qwen2vl"}, "sections must be in order 'chunked' .*'qwen2vl'; got None"),
    ("llama.cpp", {"scaling": Llama3Scaling(**LLAMA3)}, {}, "linear or YaRN .*; got llama3.*rope_freqs.weight, where "),
    (
        "llama.cpp",
        {"scaling": MixedNTKScaling(factor=2.0)},
        {},
        r'; got ntk.*rope_freqs.weight \(see to_config\("gguf"\)',
    ),
    (
        "llama.cpp",
        {"scaling": YarnScaling(**YARN, attention_factor=1.0)},
        {},
        "architecture must be given to set rope.scaling.attn_factor.*; got None",
    ),
    ("llama.cpp", {"sections": Sections((4, 4), order="axial"), "head_dim": 16}, {}, "sections must be in an order"),
    (
        "vllm",
        {"scaling": DynamicNTKScaling(factor=2.0, max_position_embeddings=64)},
        {},
        "seq_len of scaling must be given for vLLM",
    ),
    (
        "vllm",
        {**PAIRED, "head_dim": 4, "scaling": LongRopeScaling(**LONGROPE, factor=4.0)},
        {},
        "layout must be 'half' with LongRoPE in vLLM; got 'interleaved'",
    ),
    ("mlx", {"scaling": MixedNTKScaling(factor=2.0)}, {}, "a rule that MLX has; got ntk"),
    (
        "mlx",
        {"scaling": YarnScaling(**YARN | {"factor": 1.0}, attention_factor=1.5)},
        {},
        "with factor=1 in MLX; got 1.5",
    ),
    ("mlx", {"sections": Sections((64,))}, {}, "sections must be three in order 'chunked' .*; got Sections"),
    (
        "mlx",
        {"rotary_dim": 64, "scaling": ProportionalScaling(partial_rotary_factor=0.5)},
        {},
        "rotary_dim must be head_dim with Proportional.*; got 64",
    ),
    (
        "mlx",
        {**PAIRED, "head_dim": 4, "scaling": LongRopeScaling(**LONGROPE, factor=4.0, seq_len=8192)},
        {},
        "layout must be 'half' with LongRoPE in MLX; got 'interleaved'",
    ),
    ("megatron", {"base": 10_000.5}, {}, "base must be a whole number in Megatron-LM; got 10000.5"),
    ("megatron", {"scaling": LinearScaling(factor=1.5)}, {}, "factor must be a whole number .*; got 1.5"),
    (
        "megatron",
        {**PAIRED, "scaling": YarnScaling(**YARN)},
        {},
        "layout must be 'half' and rotary_dim .*; got 'interleaved'",
    ),
    (
        "megatron",
        {"layout": TO_HALF, "scaling": LinearScaling(factor=2.0)},
        {},
        "with latent attention has; got linear",
    ),
    (
        "megatron",
        {"layout": TO_HALF, "scaling": YarnScaling(**YARN, truncate=False)},
        {},
        "truncate must be True in Megatron-LM with latent attention; got False",
    ),
    (
        "megatron",
        {"scaling": YarnScaling(**YARN, mscale=1.0, mscale_all_dim=1.0)},
        {},
        "softmax_scale must be 1 .*; got",
    ),
    (
        "megatron",
        {"sections": Sections((16, 24, 24)), "scaling": YarnScaling(**YARN)},
        {},
        "a rule that Megatron-LM with sections has; got yarn",
    ),
    ("transformers4", {"scaling": ProportionalScaling()}, {}, "a rule that transformers 4.57.6 has; got proportional"),
    ("transformers4", {}, {"engine_version": "5.18.0"}, 'engine_version must be 4.x with target "transformers4"; got'),
    ("transformers", {}, {"engine_version": "4.57.6"}, 'engine_version must be 5.x with target "transformers"; got'),
    ("lmstudio", {"scaling": YarnScaling(**YARN)}, {}, "scaling must be linear in LM Studio; got yarn.*GGUF file"),
    ("lmstudio", {"sections": Sections((16, 24, 24))}, {}, "sections must be in the GGUF file for LM Studio; got"),
    ("meta", {}, {}, "layout must be 'interleaved' in Meta's params.json; got 'half': permute"),
    (
        "meta",
        {**PAIRED, "scaling": Llama3Scaling(**LLAMA3 | {"original_max_position_embeddings": 4096})},
        {},
        "must be 1 and 8192 .*; got 1.0 and 4096",
    ),
]


@pytest.mark.parametrize("target, options, arguments, message", IMPOSSIBLE, ids=str)
def test_what_a_target_cannot_express(target, options, arguments, message):
    with pytest.raises(ValueError, match=f"^RotaryEmbedding.to_config: .*{message}"):
        half(**options).to_config(target, **arguments)


class HalfYarn(Scaling):
    """A user's own rule, with the name of another."""

    rope_type = "yarn"

    def frequencies(self, base, rotary_dim):
        return tuple(w / 2 for w in geometric(base, rotary_dim))


@pytest.mark.parametrize("target", TARGETS)
def test_a_rule_of_a_user_is_not_written_by_its_name(target):
    own = half(layout="interleaved" if target in ("meta", "gguf") else "half", scaling=HalfYarn())
    if target == "gguf":
        assert own.to_config(target, architecture="llama")["rope_freqs.weight"] == [2.0] * own.pairs
        return
    with pytest.raises(ValueError, match=r"RotaryEmbedding\.to_config: scaling must be "):
        own.to_config(target)


NOT_READ = [
    (
        "transformers4",
        {"model_type": "llama", "partial_rotary_factor": 0.5},
        "read partial_rotary_factor for .*'llama'",
    ),
    ("transformers", {"model_type": "llama", "partial_rotary_factor": 0.5}, "read partial_rotary_factor for .*'llama'"),
    ("axolotl", {"model_type": "llama", "partial_rotary_factor": 0.5}, "read partial_rotary_factor for .*'llama'"),
    ("transformers4", {"model_type": "nemotron", "rope_scaling": LINEAR}, "read the rule 'linear' for .*'nemotron'"),
    (
        "transformers4",
        {"model_type": "olmo", "rope_scaling": {"rope_type": "yarn", **YARN}},
        "read the rule 'yarn' .*'olmo'",
    ),
]


@pytest.mark.parametrize("target, keys, message", NOT_READ)
def test_keys_that_a_class_of_transformers_does_not_read(target, keys, message):
    rope = from_config({"hidden_size": 512, "num_attention_heads": 8, "rope_theta": 1e4, **keys})
    with pytest.raises(ValueError, match=rf"transformers [45]\.\d+\.\d+ must {message}; got a class"):
        rope.to_config(target)


def test_a_layout_that_a_class_of_transformers_does_not_have():
    rope = from_config({"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "rope_theta": 1e4})
    for target in ("transformers", "transformers4"):
        with pytest.raises(ValueError, match=r"layout must be 'half' for model type 'llama' .*; got 'interleaved'"):
            from_config(CONFIGS["llama-2-7b"], layout=INTERLEAVED).to_config(target)
        assert rope.to_config(target)


@pytest.mark.parametrize("target", ["transformers", "transformers4"])
def test_a_model_type_that_transformers_does_not_have(target):
    rope = from_config({"model_type": "chatglm", "hidden_size": 512, "num_attention_heads": 8, "kv_channels": 64})
    with pytest.warns(UserWarning, match=r"whether transformers .* reads these keys for model type 'chatglm' is"):
        rope.to_config(target)


# Values that no golden has: a target, a value, and arguments of `to_config`.
STATED = YarnScaling(**YARN, attention_factor=1.2, mscale_all_dim=0.7)
OTHERS = [
    ("mlx", {"layout": TO_HALF, "scaling": STATED}, {}),
    ("megatron", {"layout": TO_HALF, "scaling": STATED}, {}),
    ("llama.cpp", {"scaling": YarnScaling(**YARN, attention_factor=1.2, beta_fast=16.0)}, QWEN),
    ("vllm", {"scaling": YarnScaling(**YARN, attention_factor=1.2, truncate=False)}, {}),
    (
        "gguf",
        {**PAIRED, "scaling": Llama3Scaling(**LLAMA3 | {"factor": 3.0}), "rotary_dim": 64},
        {"architecture": "granitehybrid"},
    ),
]


@pytest.mark.parametrize("target, options, arguments", OTHERS, ids=str)
def test_engines_compute_other_values(target, options, arguments):
    rope = half(**options)
    tolerance = FLOAT32 if target in ("gguf", "llama.cpp") else EXACT
    for found, wanted in zip(
        computed(rope, target, arguments, rope.to_config(target, **arguments)), expected(rope), strict=True
    ):
        assert found == pytest.approx(wanted, rel=tolerance)


FLAGS = "--rope-freq-base 1000000 --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 32768"


def test_the_model_card_of_qwen():
    config = CONFIGS["qwen2.5-7b-instruct-yarn"]
    assert " ".join(from_config(config).to_config("llama.cpp")) == FLAGS


def test_architectures_of_families_are_rotary():
    for name in {*ARCHITECTURE_OF.values(), *LAYERS}:
        assert gguf_layout({"general.architecture": name}) is not None
    assert LONG in RotaryEmbedding(
        head_dim=4, layout=HALF, base=1e4, scaling=LongRopeScaling(**LONGROPE, factor=4.0)
    ).to_config("gguf", **PHI)
