"""Write goldens.json: what each config of configs.json means, read by a person and computed in 50 digits.

Nothing here reads a config by rule: every entry below spells out head size, base, rule and numbers by hand, with the
reading beside it. The long LongRoPE lists alone are taken from configs.json, as numbers. Run it to make the file anew.
"""

import json
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from pathlib import Path

HERE = Path(__file__).parent
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
ROUND_ROBIN = (0, 1, 2)


def D(x):
    """The decimal that `x` is written as."""
    return Decimal(repr(x))


# Rules: lists of Decimal frequencies, radians per position.


def geometric(base, dim):
    """base ** (-2 j / dim)."""
    return [D(base) ** (D(-2 * j) / D(dim)) for j in range(dim // 2)]


def linear(freqs, factor):
    """Position interpolation (Chen et al., arXiv:2306.15595)."""
    return [f / D(factor) for f in freqs]


def ntk(base, dim, ratio):
    """The base grows so that the slowest pair is stretched `ratio` times: base * ratio ** (dim / (dim - 2))."""
    exact = D(base) * D(ratio) ** (D(dim) / D(dim - 2))
    return [exact ** (D(-2 * j) / D(dim)) for j in range(dim // 2)]


def dynamic(base, dim, factor, trained, length):
    """Dynamic NTK: the ratio is factor * length / trained - (factor - 1), and 1 up to the trained length."""
    return ntk(base, dim, factor * max(length, trained) / trained - (factor - 1))


def yarn(base, dim, factor, original, beta_fast=32, beta_slow=1, truncate=True):
    """YaRN (Peng et al., arXiv:2309.00071): keep pairs that turn often, interpolate those that turn seldom."""

    def pair_that_turns(times):
        return D(dim) * (D(original) / (D(times) * 2 * PI)).ln() / (2 * D(base).ln())

    low, high = pair_that_turns(beta_fast), pair_that_turns(beta_slow)
    if truncate:
        low, high = low.to_integral_value(ROUND_FLOOR), high.to_integral_value(ROUND_CEILING)
    low, high = max(low, D(0)), min(high, D(dim - 1))
    if low == high:
        high += D(0.001)
    ramps = [min(max((D(j) - low) / (high - low), D(0)), D(1)) for j in range(dim // 2)]
    return [f / D(factor) * ramp + f * (1 - ramp) for f, ramp in zip(geometric(base, dim), ramps)]


def llama3(base, dim, factor, low, high, original):
    """Llama 3.1: wavelengths above original / low are stretched, those below original / high kept, a blend between."""
    freqs = []
    for f in geometric(base, dim):
        wavelength = 2 * PI / f
        if wavelength > D(original) / D(low):
            freqs.append(f / D(factor))
        elif wavelength < D(original) / D(high):
            freqs.append(f)
        else:
            smooth = (D(original) / wavelength - D(low)) / (D(high) - D(low))
            freqs.append((1 - smooth) * f / D(factor) + smooth * f)
    return freqs


def yarn_log(base, dim, factor, original, beta_fast, beta_slow):
    """As YaRN, with the logarithms of both frequencies blended: f / factor ** ramp."""
    ramps = [
        (1 - y / f) / (1 - 1 / D(factor))
        for y, f in zip(yarn(base, dim, factor, original, beta_fast, beta_slow), geometric(base, dim))
    ]
    return [f / D(factor) ** ramp for f, ramp in zip(geometric(base, dim), ramps)]


def longrope(base, dim, divisors):
    """LongRoPE (Ding et al., arXiv:2402.13753): each pair has a divisor of its own."""
    assert len(divisors) == dim // 2
    return [f / D(d) for f, d in zip(geometric(base, dim), divisors)]


# Magnitudes of the tables.


def yarn_magnitude(factor, mscale=1):
    return 1 + D(0.1) * D(mscale) * D(factor).ln()


def longrope_magnitude(factor, original):
    return (1 + D(factor).ln() / D(original).ln()).sqrt()


GOLDENS = []
FULL, SLIDING = {"layer_type": "full_attention"}, {"layer_type": "sliding_attention"}
TEXT, VISION = {"part": "text"}, {"part": "vision"}


def rope(config, choices, head_dim, layout, freqs, *, axis=None, rotary_dim=None, attention_factor=1, **others):
    """A golden of each choice, which may be one or several. `axis` says which position axis each pair follows."""
    for kwargs in [choices] if isinstance(choices, dict) else choices:
        golden = {"config": config, "kwargs": kwargs, "rotated": True, "head_dim": head_dim}
        golden |= {"rotary_dim": rotary_dim or head_dim, "layout": layout, "attention_factor": float(attention_factor)}
        golden |= {"first_channel": 0, "blocks": 1, "inv_freq": [float(f) for f in freqs], **others}
        assert 2 * len(freqs) == golden["rotary_dim"]
        if axis is not None:
            golden["axis"] = list(axis)
            assert len(golden["axis"]) == len(freqs)
        GOLDENS.append(golden)


def nope(config, *choices):
    """Layers that are not rotated."""
    GOLDENS.extend({"config": config, "kwargs": kwargs, "rotated": False} for kwargs in choices)


def numbers(config, name):
    """A long list of numbers of a config."""
    return json.loads((HERE / "configs.json").read_text())[config]["config"]["rope_scaling"][name]


def short_and_long(config, head_dim, rotary_dim, attention_factor):
    """LongRoPE on base 10000: short factors up to 4096 tokens, long ones for one token more."""
    for choice, which in (({}, "short"), ({"seq_len": 4096}, "short"), ({"seq_len": 4097}, "long")):
        freqs = longrope(10000, rotary_dim, numbers(config, f"{which}_factor"))
        rope(config, choice, head_dim, "half", freqs, rotary_dim=rotary_dim, attention_factor=attention_factor)


def layers(*indices):
    return [{"layer": index} for index in indices]


def lengths(*numbers):
    return [{"seq_len": number} for number in numbers]


def make():
    """All goldens, in the order of configs.json."""
    GOLDENS.clear()
    with localcontext() as context:
        context.prec = 50
        one_axis()
        several_axes()
        code_in_the_checkpoint()
        keys_of_their_own()
        copies_of_files()
        values_in_tests_and_classes()
    return list(GOLDENS)


def one_axis():
    # 4096 / 32 heads = 128. Llama's base is 10000 where the config has none.
    rope("llama-2-7b", {}, 128, "half", geometric(10000, 128))
    rope("llama-3.1-8b", {}, 128, "half", llama3(500000, 128, 8, 1, 4, 8192))
    # Same block but for the factor, and heads of 64.
    rope("llama-3.2-1b", {}, 64, "half", llama3(500000, 64, 32, 1, 4, 8192))
    rope("mistral-7b-v0.1", {}, 128, "half", geometric(10000, 128))
    rope("mistral-7b-v0.3", {}, 128, "half", geometric(1000000, 128))
    rope("mixtral-8x7b-v0.1", {}, 128, "half", geometric(1000000, 128))

    # 3584 / 28 = 128. No magnitude is given: 0.1 ln 4 + 1.
    rope("qwen2.5-7b-instruct-yarn", {}, 128, "half", yarn(1000000, 128, 4, 32768), attention_factor=yarn_magnitude(4))
    # Dual chunk attention changes positions, not frequencies.
    rope("qwen2.5-7b-instruct-1m", {}, 128, "half", geometric(10000000, 128))
    rope("qwen3-8b-yarn", {}, 128, "half", yarn(1000000, 128, 4, 32768), attention_factor=yarn_magnitude(4))

    # Latent attention: the 64 rotary channels are an array of their own. V3 reads neighbouring channels as pairs and
    # writes halves; V2 stays interleaved. Both mscales are equal, so that their quotient is 1.
    rope("deepseek-v3", {}, 64, "interleaved_to_half", yarn(10000, 64, 40, 4096))
    rope("deepseek-v2-lite", {}, 64, "interleaved", yarn(10000, 64, 40, 4096))
    rope("deepseek-v2-lite-saved-by-transformers-5", {}, 64, "interleaved", yarn(10000, 64, 40, 4096))
    # beta_fast = beta_slow = 1: the ramp is one pair wide.
    rope("kimi-k2-instruct", {}, 64, "interleaved_to_half", yarn(50000, 64, 32, 4096, 1, 1))
    # The last 64 of 512 channels. Plain layers have no scaling, compressed ones YaRN without a magnitude.
    for label, freqs in (("main", geometric(10000, 64)), ("compress", yarn(160000, 64, 16, 65536))):
        choice = {"layer_type": label}
        rope("deepseek-v4-flash", choice, 512, "interleaved", freqs, rotary_dim=64, first_channel=448)
    # Ramp bounds are not rounded; both layer types share the block.
    freqs = yarn(150000, 64, 32, 4096, truncate=False)
    rope("gpt-oss-20b", ({}, SLIDING, {"layer": 1}), 64, "half", freqs, attention_factor=yarn_magnitude(32))
    # YaRN on full layers only; its magnitude is given, and is 0.1 ln 8 + 1.
    freqs = yarn(500000, 128, 8, 8192)
    rope("olmo-3-7b", (FULL, {"layer": 3}), 128, "half", freqs, attention_factor=1.2079441541679836)
    rope("olmo-3-7b", (SLIDING, {"layer": 0}), 128, "half", geometric(500000, 128))
    # mscale / mscale_all_dim = 1; llama_4_scaling_beta is a temperature of queries, no rotation.
    rope("ministral-3-8b", {}, 128, "half", yarn(1000000, 128, 16, 16384))

    # Dynamic NTK by length: at most 32768, one more, and twice as long.
    rope("internlm2-7b", ({}, *lengths(32768)), 128, "half", geometric(1000000, 128))
    for length in (32769, 65536):
        rope("internlm2-7b", {"seq_len": length}, 128, "half", dynamic(1000000, 128, 2, 32768, length))
    # alpha stretches the base at every length; mscale and the betas belong to YaRN and say nothing here.
    rope("hy-mt1.5-1.8b", ({}, *lengths(262144, 262145)), 128, "half", ntk(10000, 128, 1000))

    rope("deepseek-coder-6.7b", {}, 128, "half", linear(geometric(100000, 128), 4))
    rope("longchat-7b-v1.5-32k", {}, 128, "half", linear(geometric(10000, 128), 8))

    # 3072 / 32 = 96, 48 pairs. The magnitude comes from 131072 / 4096 = 32 at every length.
    short_and_long("phi-3-vision-128k-text", 96, 96, longrope_magnitude(32, 4096))
    short_and_long("phi-3.5-mini-instruct", 96, 96, longrope_magnitude(32, 4096))
    # 3072 / 24 = 128, three quarters of it rotated: 48 pairs.
    short_and_long("phi-4-mini-instruct", 128, 96, longrope_magnitude(32, 4096))
    # The magnitudes are given.
    short_and_long("phi-3.5-moe-synthetic-factors", 128, 128, 1.243163121016122)

    # The first channels turn, with exponents over the channels that turn.
    # 2560 / 32 = 80, 0.4 of it.
    rope("phi-2", {}, 80, "half", geometric(10000, 32), rotary_dim=32)
    # 2048 / 32 = 64, a quarter.
    rope("stablelm-2-1_6b", {}, 64, "half", geometric(10000, 16), rotary_dim=16)
    # 2048 / 16 = 128, a quarter.
    rope("pythia-1.4b", {}, 128, "half", geometric(10000, 32), rotary_dim=32)
    # 6144 / 64 = 96, a quarter.
    rope("gpt-neox-20b", {}, 96, "half", geometric(10000, 24), rotary_dim=24)
    # 4096 / 16 = 256, 64 of it; GPT-J's base is 10000 and cannot be set.
    rope("gpt-j-6b", {}, 256, "interleaved", geometric(10000, 64), rotary_dim=64)
    rope("glm-4-9b-0414", {}, 128, "interleaved", geometric(10000, 64), rotary_dim=64)
    rope("minitron-4b-base", {}, 128, "half", geometric(10000, 64), rotary_dim=64)
    rope("persimmon-8b-base", {}, 64, "half", geometric(25000, 32), rotary_dim=32)

    rope("gemma-2-9b", {}, 256, "half", geometric(10000, 256))
    # Every sixth layer is global: base 1e6, interpolated 8 times. Local layers: base 1e4, no scaling.
    freqs = linear(geometric(1000000, 256), 8)
    rope("gemma-3-12b-it", (FULL, {"layer": 5}, {"layer": 47, **TEXT}), 256, "half", freqs)
    rope("gemma-3-12b-it", (SLIDING, {"layer": 4}), 256, "half", geometric(10000, 256))
    # Full layers have heads of 512, of whose 256 pairs the first quarter turns, with exponents over all 512.
    rope("gemma-4-e2b-it", (FULL, {"layer": 4}), 512, "half", geometric(1000000, 512)[:64] + [D(0)] * 192)
    rope("gemma-4-e2b-it", (SLIDING, {"layer": 0}), 256, "half", geometric(10000, 256))

    rope("command-r-v01", {}, 128, "interleaved", geometric(8000000, 128))
    # Every fourth layer is global and not rotated.
    rope("command-r7b-12-2024", (SLIDING, *layers(0, 2)), 128, "interleaved", geometric(50000, 128))
    nope("command-r7b-12-2024", {"layer": 3}, FULL)
    # An empty no_rope_layers means every fourth layer; 1 in the list means that the layer IS rotated.
    rope("llama-4-scout-17b-16e", layers(0, 46), 128, "interleaved", llama3(500000, 128, 8, 1, 4, 8192))
    nope("llama-4-scout-17b-16e", {"layer": 3}, {"layer": 47, **TEXT})
    # low = high = 1: no blend, a step at wavelength 8192.
    rope("llama-4-scout-17b-16e-instruct", {"layer": 2}, 128, "interleaved", llama3(500000, 128, 16, 1, 1, 8192))
    nope("llama-4-scout-17b-16e-instruct", {"layer": 7})
    rope("smollm3-3b", layers(0, 34), 128, "half", geometric(5000000, 128))
    nope("smollm3-3b", *layers(3, 35))
    # 4544 / 71 = 64.
    rope("falcon-7b", {}, 64, "half", geometric(10000, 64))
    # head_dim is given: 5120 / 32 would be 160.
    rope("pixtral-12b", {}, 128, "half", geometric(1000000000, 128))
    # Layers 0, 3, 6, ... are global.
    rope("modernbert-base", (FULL, *layers(0, 21)), 64, "half", geometric(160000, 64))
    rope("modernbert-base", (SLIDING, {"layer": 1}), 64, "half", geometric(10000, 64))
    rope("lfm2-1.2b", ({}, {"layer": 2}), 64, "half", geometric(1000000, 64))
    # The shared block attends over 2 * 3584 channels: 7168 / 32 = 224.
    rope("zamba2-7b-instruct", {}, 224, "half", geometric(10000, 224))
    # Full layers are not rotated.
    rope("exaone-4.0-32b", (SLIDING, {"layer": 0}), 128, "half", llama3(1000000, 128, 16, 1, 4, 8192))
    nope("exaone-4.0-32b", {"layer": 3}, FULL)
    rope("nomic-embed-text-v1.5", {}, 64, "half", geometric(1000, 64))


def sections(*sizes):
    return [axis for axis, size in enumerate(sizes) for _ in range(size)]


def several_axes():
    # Axes t, h, w in runs of pairs.
    for config in ("qwen2-vl-7b-instruct", "qwen2.5-vl-7b-instruct"):
        rope(config, ({}, TEXT), 128, "half", geometric(1000000, 128), axis=sections(16, 24, 24))
        # 1280 / 16 = 80, where Qwen2-VL's hidden_size is the text model's. Row frequencies, then the same for columns.
        rope(config, VISION, 80, "half", 2 * geometric(10000, 40), axis=sections(20, 20))
    # t, h, w in turn while h and w have pairs left, then t.
    rope("qwen3-vl-2b-instruct", {}, 128, "half", geometric(5000000, 128), axis=20 * ROUND_ROBIN + 4 * (0,))
    rope("qwen3-vl-2b-instruct", VISION, 64, "half", 2 * geometric(10000, 32), axis=sections(16, 16))
    # A quarter of 256; 11, 11 and 10 pairs in turn.
    rope("qwen3.5-0.8b", {}, 256, "half", geometric(10000000, 64), rotary_dim=64, axis=10 * ROUND_ROBIN + (0, 1))
    rope("glm-4.1v-9b-thinking", {}, 128, "interleaved", geometric(10000, 64), rotary_dim=64, axis=sections(8, 12, 12))
    # 1536 / 12 = 128.
    rope("glm-4.1v-9b-thinking", VISION, 128, "half", 2 * geometric(10000, 64), axis=sections(32, 32))
    # Sections are given as h, w, t; the axes are t, h, w: 22 times (h, w), then 20 times t.
    rope("ernie-4.5-vl-28b-a3b", {}, 128, "interleaved", geometric(500000, 128), axis=22 * (1, 2) + 20 * (0,))
    # Four axes, and the base stretched by alpha.
    rope("hunyuan-ocr", {}, 128, "half", ntk(10000, 128, 1000), axis=sections(16, 16, 16, 16))
    # Pair j of 32 has the frequency of position j in one series; rows take the even ones, columns the odd ones.
    freqs = geometric(10000, 64)[0::2] + geometric(10000, 64)[1::2]
    for config in ("pixtral-12b", "ministral-3-8b"):
        rope(config, VISION, 64, "half", freqs, axis=sections(16, 16))
    # Two blocks of 32 channels, x and y, each in halves of its own; base 100.
    rope("gemma-4-e2b-it", VISION, 64, "half", 2 * geometric(100, 32), blocks=2, axis=sections(16, 16))
    # 1408 / 16 = 88: 22 pairs for x, the same for y.
    rope("llama-4-scout-17b-16e", VISION, 88, "interleaved", 2 * geometric(10000, 44), axis=sections(22, 22))
    # 2 pi over periods 100 ** (4 j / 64), for rows and again for columns; positions lie in [-1, 1].
    rope("dinov3-vitl16-lvd1689m", {}, 64, "half", 2 * [2 * PI * f for f in geometric(100, 32)], axis=sections(16, 16))


def code_in_the_checkpoint():
    """Families that no release of transformers has, or has under another name."""
    # Up to seq_length nothing grows. 9000 is 1.1 times 8192: log2 rounds up to 1, the ratio is 2 ** 2 - 1.
    rope("qwen-7b-chat", ({}, *lengths(8192)), 128, "half", geometric(10000, 128))
    rope("qwen-7b-chat", {"seq_len": 9000}, 128, "half", ntk(10000, 128, 3))
    rope("qwen-7b-chat", {"seq_len": 30000}, 128, "half", ntk(10000, 128, 7))
    # Half of the head, in neighbours; the base is 10000 times rope_ratio.
    rope("chatglm3-6b-32k", {}, 128, "interleaved", geometric(500000, 64), rotary_dim=64)
    rope("glm-4-9b-chat", {}, 128, "interleaved", geometric(5000000, 64), rotary_dim=64)
    # 7B is rotated, 13B has ALiBi.
    rope("baichuan2-7b-chat", {}, 128, "half", geometric(10000, 128))
    nope("baichuan2-13b-chat", {})
    rope("ling-mini-2.0", {}, 128, "half", geometric(600000, 64), rotary_dim=64)
    rope("exaone-3.5-7.8b-instruct", {}, 128, "half", llama3(1000000, 128, 8, 1, 4, 8192))
    rope("internlm-20b", {}, 128, "half", geometric(10000, 128))
    rope("internlm-20b", {"seq_len": 6000}, 128, "half", dynamic(10000, 128, 1, 4096, 6000))
    # Height and width alternate over 44 pairs, time has the last 20.
    rope("ernie-4.5-vl-28b-a3b-remote", {}, 128, "interleaved", geometric(500000, 128), axis=22 * (1, 2) + 20 * (0,))
    # 1280 / 16 = 80: 20 pairs for rows, the same for columns.
    rope("ernie-4.5-vl-28b-a3b-remote", VISION, 80, "half", 2 * geometric(10000, 40), axis=sections(20, 20))
    rope("hunyuan-large", {}, 80, "half", ntk(10000, 80, 1000))
    rope("grok-2", {}, 128, "half", yarn_log(208533496, 128, 16, 8192, 8, 1))
    # NTK by powers, the fixed form: pair j of 32 is slowed by 8 ** ((j + 1) / 32).
    freqs = [f / D(8) ** (D(j + 1) / 32) for j, f in enumerate(geometric(20000, 64))]
    rope("gte-multilingual-base", {}, 64, "half", freqs)
    rope("jina-embeddings-v3", {}, 64, "half", geometric(20000, 64))


def keys_of_their_own():
    """Keys that only some files of a known family carry."""
    # Full layers turn half of the head and alone are scaled.
    rope("step-3.5-flash", {"layer": 0}, 128, "half", llama3(5000000, 64, 2, 1, 32, 131072), rotary_dim=64)
    rope("step-3.5-flash", {"layer": 1}, 128, "half", geometric(10000, 128))
    # int(192 * 0.334) = 64.
    rope("mimo-v2-flash", {"layer": 0}, 192, "half", geometric(5000000, 64), rotary_dim=64)
    rope("mimo-v2-flash", {"layer": 1}, 192, "half", geometric(10000, 64), rotary_dim=64)
    rope("bamba-9b", {"layer": 9}, 128, "half", geometric(10000, 64), rotary_dim=64)
    nope("bamba-9b", {"layer": 8})
    rope("stablelm-2-12b", {}, 160, "half", geometric(10000, 40), rotary_dim=40)
    rope("hunyuan-a13b-instruct", {}, 128, "half", ntk(10000, 128, 1000))
    rope("llama-3.2-1b-mlx", {}, 64, "half", geometric(500000, 64))


def copies_of_files():
    """Configs read in copies of the published files."""
    # Latent attention whose pairs are neighbours. indexer_rope_interleave is about the indexer alone.
    rope("glm-5", {}, 64, "interleaved_to_half", geometric(1000000, 64))
    rope("glm-5.1", {}, 64, "interleaved_to_half", geometric(1000000, 64))
    rope("glm-5.2", {}, 64, "interleaved_to_half", geometric(8000000, 64))
    rope("deepseek-v3.2", {}, 64, "interleaved_to_half", yarn(10000, 64, 40, 4096))
    for label, freqs in (("main", geometric(10000, 64)), ("compress", yarn(160000, 64, 16, 65536))):
        choice = {"layer_type": label}
        rope("deepseek-v4-pro", choice, 512, "interleaved", freqs, rotary_dim=64, first_channel=448)
    rope("mimo-7b-base", {}, 128, "half", geometric(640000, 128))
    for config in ("minimax-m3", "minimax-m2.5"):
        rope(config, {}, 128, "half", geometric(5000000, 64), rotary_dim=64)
    # 8192 / 64 = 128. Layers 6, 7, 11 and most from 42 to 70 have no attention.
    freqs = llama3(500000, 128, 8, 1, 4, 8192)
    rope("llama-3.3-nemotron-super-49b", ({}, *layers(0, 41, 52, 71, 79)), 128, "half", freqs)
    nope("llama-3.3-nemotron-super-49b", *layers(6, 7, 11, 42, 51, 53, 70))
    # Attention without rotation, between Mamba layers.
    nope("nemotron-3-nano-30b-a3b", {})
    nope("nemotron-h-56b-base", {})
    rope("kimi-k2.5", ({}, TEXT), 64, "interleaved_to_half", yarn(50000, 64, 64, 4096))
    freqs = yarn(150000, 64, 32, 4096, truncate=False)
    rope("gpt-oss-120b", {}, 64, "half", freqs, attention_factor=yarn_magnitude(32))
    rope("qwen3-0.6b", {}, 128, "half", geometric(1000000, 128))
    rope("qwen3-30b-a3b", {}, 128, "half", geometric(1000000, 128))
    rope("qwen3-coder-480b-a35b", {}, 128, "half", geometric(10000000, 128))
    rope("qwen3-vl-30b-a3b", {}, 128, "half", geometric(5000000, 128), axis=20 * ROUND_ROBIN + 4 * (0,))
    rope("qwen3.5-397b-a17b", {}, 256, "half", geometric(10000000, 64), rotary_dim=64, axis=10 * ROUND_ROBIN + (0, 1))
    # No rule, in contrast to Scout; every fourth layer is not rotated.
    rope("llama-4-maverick-17b-128e", layers(0, 46), 128, "interleaved", geometric(500000, 128))
    nope("llama-4-maverick-17b-128e", *layers(3, 47))
    rope("llama-3.1-405b", {}, 128, "half", llama3(500000, 128, 8, 1, 4, 8192))
    rope("mixtral-8x22b-v0.1", {}, 128, "half", geometric(1000000, 128))
    rope("gemma-4-26b-a4b", (FULL, {"layer": 5}), 512, "half", geometric(1000000, 512)[:64] + [D(0)] * 192)
    rope("gemma-4-26b-a4b", (SLIDING, {"layer": 0}), 256, "half", geometric(10000, 256))
    rope("orion-14b", {}, 128, "half", geometric(10000, 128))
    # The first DeepSeek has usual attention: 2048 / 16 = 128.
    rope("deepseek-moe-16b", {}, 128, "half", geometric(10000, 128))
    # 2048 / 32 = 64 and 2560 / 32 = 80, 32 of them rotated.
    rope("phi-1_5-first-file", {}, 64, "half", geometric(10000, 32), rotary_dim=32)
    rope("phi-2-first-file", {}, 80, "half", geometric(10000, 32), rotary_dim=32)
    rope("redpajama-incite-3b", {}, 80, "half", geometric(10000, 80))
    rope("codellama-7b", {}, 128, "half", geometric(1000000, 128))
    rope("tinyllama-1.1b", {}, 64, "half", geometric(10000, 64))
    # 4608 / 36 = 128.
    rope("starcoder2-7b", {}, 128, "half", geometric(1000000, 128))
    # 2304 / 36 = 64. Four times as far at 65,536 and less, so nothing changes there.
    rope("minicpm-2b-128k", ({}, *lengths(65536)), 64, "half", geometric(1000000, 64))
    rope("minicpm-2b-128k", {"seq_len": 131072}, 64, "half", dynamic(1000000, 64, 4, 65536, 131072))
    rope("minicpm-2b-sft", {}, 64, "half", geometric(10000, 64))
    rope("smollm-1.7b", {}, 64, "half", geometric(10000, 64))
    rope("smollm2-135m", {}, 64, "half", geometric(100000, 64))
    rope("aya-23-8b", {}, 128, "interleaved", geometric(10000, 128))
    rope("olmo-2-7b", {}, 128, "half", geometric(500000, 128))
    rope("qwen1.5-moe-a2.7b", {}, 128, "half", geometric(1000000, 128))
    # 2560 / 32 = 80, a quarter.
    rope("stablelm-3b-4e1t", {}, 80, "half", geometric(10000, 20), rotary_dim=20)
    rope("internlm-chat-7b", ({}, *lengths(2048)), 128, "half", geometric(10000, 128))
    rope("baichuan-7b", {}, 128, "half", geometric(10000, 128))
    rope("gemma-2b", {}, 256, "half", geometric(10000, 256))
    # head_dim is given: 4608 / 32 would be 144.
    rope("gemma-2-27b", {}, 128, "half", geometric(10000, 128))
    rope("gemma-3-1b-it", (FULL, *layers(5, 23)), 256, "half", geometric(1000000, 256))
    rope("gemma-3-1b-it", (SLIDING, *layers(0, 25)), 256, "half", geometric(10000, 256))
    rope("chatglm3-6b", {}, 128, "interleaved", geometric(10000, 64), rotary_dim=64)
    rope("llama-2-70b", {}, 128, "half", geometric(10000, 128))


def values_in_tests_and_classes():
    """Configs whose values were read in public tests, reports and modelling sources: the first words of each source."""
    # Half of the head, in layers with linear attention too.
    rope("ring-mini-linear-2.0", ({}, *layers(0, 4)), 128, "half", geometric(1000000, 64), rotary_dim=64)
    # The last layer of each group of 6 or 4 has latent attention; rotary_dim is that of its rotated part.
    for config, full, linear in (("ling-3.0-flash", (5, 41), (0, 40)), ("ling-3.0-tiny", (3, 23), (0, 22))):
        rope(config, ({}, *layers(*full)), 64, "interleaved_to_half", geometric(6000000, 64))
        nope(config, *layers(*linear))
    # DeepSeek-V2's code without latent attention: 1280 / 10 = 128, in halves.
    rope("deepseek-ocr", ({}, TEXT), 128, "half", geometric(10000, 128))
    # Dynamic NTK by length: 896 / 14 = 64, and 2048 / 16 = 128.
    for config, dim in (("internvl3-1b", 64), ("internvl2.5-2b", 128)):
        rope(config, ({}, TEXT, *lengths(32768)), dim, "half", geometric(1000000, dim))
        rope(config, {"seq_len": 40000}, dim, "half", dynamic(1000000, dim, 2, 32768, 40000))
    # 4544 / 71 = 8192 / 128 = 64.
    rope("falcon-7b-instruct-first-file", {}, 64, "half", geometric(10000, 64))
    rope("falcon-40b-instruct-first-file", {}, 64, "half", geometric(10000, 64))
    rope("openelm-1.1b-instruct", {}, 64, "half", geometric(10000, 64))
    # Odd layers have attention.
    rope("plamo-2-1b", ({}, *layers(1, 15)), 128, "half", geometric(10000, 128))
    nope("plamo-2-1b", *layers(0, 14))
    rope("phi-3-small-8k", {}, 128, "half", geometric(1000000, 128))
    rope("vibevoice-realtime-0.5b", ({}, TEXT), 64, "half", geometric(1000000, 64))
    # Every eighth layer has softmax attention, which rotates half of the head.
    for config in ("minimax-m1", "minimax-text-01"):
        rope(config, ({}, *layers(7, 79)), 128, "half", geometric(10000000, 64), rotary_dim=64)
        nope(config, *layers(0, 78))
    rope("llada-8b", {}, 128, "half", geometric(500000, 128))
    # Pairs are neighbours, read as complex numbers; the base is in the code.
    rope("neobert", {}, 64, "interleaved", geometric(10000, 64))
    rope("xverse-13b", {}, 128, "half", geometric(10000, 128))
    rope("step-3", ({}, TEXT), 256, "half", geometric(500000, 256))
    rope("molmo-7b-d", {}, 128, "half", geometric(1000000, 128))
    rope("datadecide-150m", {}, 64, "half", geometric(10000, 64))
    rope("stablelm-3b-4e1t-first-file", {}, 80, "half", geometric(10000, 20), rotary_dim=20)
    # Refused without compat: SGLang multiplies by attn_factor, transformers does not read it.
    freqs = yarn(1000000, 128, 4, 32768)
    choice = {"compat": "transformers"}
    rope("deepseek-r1-0528-qwen3-8b", choice, 128, "half", freqs, attention_factor=yarn_magnitude(4))


if __name__ == "__main__":
    (HERE / "goldens.json").write_text(json.dumps(make(), indent=1) + "\n")
