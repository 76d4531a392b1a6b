"""What is written of random values is what engines compute, by their formulas, and what is read back; or is refused."""

import json
from collections import Counter

import engines
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rules import DIM, OTHERS

from rope_xp import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    ProportionalScaling,
    RotaryEmbedding,
    YarnScaling,
    from_config,
)
from rope_xp.configs import writers

HALF, INTERLEAVED = "half", "interleaved"
EXACT, FLOAT32 = 1e-12, 2.0**-21  # a GGUF file has float32 numbers; lmdeploy a whole length in place of a factor
ORIGINAL = "original_max_position_embeddings"
# For each layout, architectures that rotate all channels and those that rotate a part.
ARCHITECTURES = {(HALF, True): "apertus", (INTERLEAVED, True): "minicpm"}
ARCHITECTURES |= {(HALF, False): "gptneox", (INTERLEAVED, False): "granitehybrid"}
# LM Studio and Axolotl have few keys: test_writers.py.
TARGETS = [target for target in writers.TARGETS if target not in ("lmstudio", "axolotl")]


@st.composite
def values(draw):
    whole = draw(st.booleans())  # numbers that Megatron can have
    factor = float(draw(st.integers(2, 40))) if whole else draw(st.floats(1.1, 40.0))
    base = float(draw(st.integers(2000, 10**7))) if whole else draw(st.floats(500.0, 1e7))
    head_dim = 4 * draw(st.integers(2, 32))
    rotary_dim = head_dim if draw(st.integers(0, 3)) else head_dim // 2
    length = 2 ** draw(st.integers(8, 15))
    rules = ["none", "linear", "ntk", "dynamic", "yarn", "llama3", "longrope", "proportional", "other"]
    rule = draw(st.sampled_from(rules))
    scaling = None
    if rule == "linear":
        scaling = LinearScaling(factor=factor)
    elif rule == "ntk":
        scaling = NTKScaling(factor=factor)
    elif rule == "dynamic":
        scaling = DynamicNTKScaling(factor=factor, max_position_embeddings=length, seq_len=draw(st.integers(1, 10**5)))
    elif rule == "yarn":
        slow = draw(st.sampled_from([1.0, 0.75]))
        options = draw(
            st.sampled_from(
                [
                    {},
                    {"attention_factor": 1.25},
                    {"attention_factor": 1.0},
                    {"beta_fast": 20.0, "beta_slow": slow},
                    {"truncate": False},
                    {"mscale": 0.75, "mscale_all_dim": 0.5},
                ]
            )
        )
        scaling = YarnScaling(**{"factor": factor, ORIGINAL: length, **options})
    elif rule == "llama3":
        low, high = draw(st.sampled_from([(1.0, 4.0), (0.5, 3.0)]))
        length = draw(st.sampled_from([8192, length]))
        names = ("factor", "low_freq_factor", "high_freq_factor", ORIGINAL)
        scaling = Llama3Scaling(**dict(zip(names, (factor, low, high, length))))
    elif rule == "longrope":
        pairs = rotary_dim // 2
        short, long = (tuple(draw(st.floats(1.0, 9.0)) for _ in range(2)) for _ in range(2))
        lists = {
            name: tuple(ends[0] + (ends[1] - ends[0]) * j / pairs for j in range(pairs))
            for name, ends in (("short_factor", short), ("long_factor", long))
        }
        seq_len = draw(st.sampled_from([None, length, length + 1]))
        scaling = LongRopeScaling(**lists, factor=factor, seq_len=seq_len, **{ORIGINAL: length})
    elif rule == "proportional":
        scaling = ProportionalScaling(partial_rotary_factor=draw(st.sampled_from([0.25, 0.5, 1.0])), factor=factor)
    elif rule == "other":
        head_dim = rotary_dim = DIM
        scaling, _ = draw(st.sampled_from(OTHERS))
    layout = draw(st.sampled_from([HALF, INTERLEAVED]))
    return RotaryEmbedding(head_dim=head_dim, rotary_dim=rotary_dim, layout=layout, base=base, scaling=scaling)


def options_for(rope, target):
    if target not in ("llama.cpp", "gguf"):
        return {}
    return {"architecture": ARCHITECTURES[rope.layout, rope.rotary_dim == rope.head_dim]}


def length_of(rope):
    return getattr(rope.scaling, "seq_len", None) or 0


def computed(rope, target, written):
    """The frequencies and the two factors by the engine's formula; None for targets that are only read back."""
    is_latent, length = rope.softmax_scale != 1.0, length_of(rope)
    if target == "gguf":
        return engines.ggml(written, (1, 0, 0, 0), length)
    if target == "llama.cpp":
        name = options_for(rope, target)["architecture"]
        file = {"general.architecture": name, f"{name}.rope.dimension_count": rope.rotary_dim}
        return engines.ggml(engines.with_flags(name, file, written), (1, 0, 0, 0), length)
    if target == "vllm":
        block = json.loads(written[1])["rope_parameters"]
        part = 1.0 if block["rope_type"] == "proportional" else block.get("partial_rotary_factor", 1.0)
        return engines.vllm(written, int(rope.head_dim * part), is_latent, length)
    if target in ("sglang", "lmdeploy"):
        return engines.served(written, rope.head_dim, is_latent, length)
    if target == "mlx":
        return engines.mlx(written, length)
    if target == "megatron":
        return engines.megatron(written, rope.rotary_dim)
    formula = getattr(engines, target.replace("-", "_"), None)
    return formula and formula(written, rope.head_dim)


def read(rope, target, written):
    """What is written, in a whole config, as our reader reads it; None where a target is no config."""
    heads = {"num_attention_heads": 8, "hidden_size": 8 * rope.head_dim}
    mine = {"model_type": "mine", "head_dim": rope.head_dim, **heads}
    layout = {"layout": rope.layout}
    if isinstance(rope.scaling, (DynamicNTKScaling, LongRopeScaling)):
        mine["max_position_embeddings"] = getattr(rope.scaling, "max_position_embeddings", None) or 2**17
    if target == "transformers":
        config = {**mine, "rope_parameters": written}
    elif target == "transformers4":
        config = {**mine, **written}
    elif target == "mlx" and rope.softmax_scale == 1.0:
        config, layout = {**heads, "model_type": "llama", **written}, {}
    elif target == "megatron" and rope.softmax_scale == 1.0:
        config, layout = {**heads, **written}, {}
    elif target == "meta":
        config, layout = {"dim": 8 * rope.head_dim, "n_heads": 8, **written}, {}
    elif target == "gguf":
        config, layout = {**written, f"{written['general.architecture']}.attention.head_count": 8}, {}
    else:
        return None
    return from_config(json.loads(json.dumps(config)), seq_len=getattr(rope.scaling, "seq_len", None), **layout)


found = {target: Counter() for target in TARGETS}


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("target", TARGETS)
@given(rope=values())
def test_engines_compute_random_values(target, rope):
    kind = "none" if rope.scaling is None else rope.scaling.rope_type
    if target == "meta":
        rope = rope.replace(
            layout=INTERLEAVED, rotary_dim=rope.head_dim, scaling=None if kind == "longrope" else rope.scaling
        )
    try:
        written = rope.to_config(target, **options_for(rope, target))
    except ValueError as error:
        start, _, message = str(error).partition(": ")
        assert start == "RotaryEmbedding.to_config" and "; got " in message and len(str(error)) < 600
        found[target]["refused"] += 1
        return
    found[target][kind] += 1
    tolerance = {"gguf": FLOAT32, "llama.cpp": FLOAT32, "lmdeploy": 1e-7}.get(target, EXACT)
    if (numbers := computed(rope, target, written)) is not None:
        assert numbers[0] == pytest.approx(rope.inv_freq, rel=tolerance, abs=1e-24)
        assert numbers[1:] == pytest.approx((rope.attention_factor, rope.softmax_scale), rel=tolerance)
    if (again := read(rope, target, written)) is not None:
        assert (again.head_dim, again.rotary_dim, again.layout) == (rope.head_dim, rope.rotary_dim, rope.layout)
        assert again.inv_freq == pytest.approx(rope.inv_freq, rel=tolerance)
        assert again.attention_factor == pytest.approx(rope.attention_factor, rel=tolerance)
