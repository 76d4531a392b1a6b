"""What llama.cpp decides by the architecture of a GGUF file: pairs of channels, position axes and types of layers.

`llama_model_rope_type` (`src/llama-model.cpp`): NORM pairs neighbouring channels; NEOX, MROPE and IMROPE pair channels
of the two halves.
"""

from collections.abc import Sequence
from math import log
from typing import NamedTuple

from rope_xp.frequencies import DynamicNTKScaling, LinearScaling, LongRopeScaling, NTKScaling, Scaling, YarnScaling

# Keys of metadata, which follow the name of the architecture and a dot.
BASE, BASE_OF_SLIDING = "rope.freq_base", "rope.freq_base_swa"
KIND, FACTOR, ORIGINAL = "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length"
ATTENTION, MULTIPLIER = "rope.scaling.attn_factor", "rope.scaling.yarn_log_multiplier"
EXTRAPOLATION = "rope.scaling.yarn_ext_factor"
BETAS = {"rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_beta_slow": 1.0}  # with the values of the paper
WIDTH, SECTIONS, LENGTH = "rope.dimension_count", "rope.dimension_sections", "context_length"
# Tensors that divide frequencies. Their values are float32.
FREQS, LONG, SHORT = TENSORS = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
# Architectures for which the converter permutes the projections of queries and keys in checkpoints of transformers.
PERMUTED = "arcee", "baichuan", "granite", "granitemoe", "internlm2", "llama", "minicpm", "mistral3", "olmo", "smollm3"
# The divisor with which the converter of llama.cpp writes a pair that is not rotated.
DIVISOR_OF_UNROTATED = 1e30

INTERLEAVED = """
arcee arctic baichuan bailingmoe chameleon chatglm cohere2 command-r deci deepseek deepseek2 deepseek32
ernie4_5 ernie4_5-moe glm-dsa glm4 granite granitehybrid granitemoe internlm2 llada llama llama-embed llama4
maincoder minicpm mistral3 mistral4 neo-bert olmo plm smollm3 xverse
"""

# deepseek2-ocr has the type NORM but is rotated as NEOX (`src/models/deepseek2.cpp`).
HALF = """
afmoe apertus bailingmoe2 bitnet codeshell cogvlm dbrx deepseek2-ocr dots1 dream eurobert exaone exaone-moe
exaone4 falcon falcon-h1 gemma gemma-embedding gemma2 gemma3 gemma3n gemma4 glm4moe gpt-oss gptneox grok grovemoe
hunyuan-dense hunyuan-moe hunyuan_vl jais2 jina-bert-v3 lfm2 lfm2moe llada-moe mimo2 minicpm3 minimax-m2 modern-bert
nemotron nomic-bert nomic-bert-moe olmo2 olmoe openelm orion paddleocr pangu-embedded phi2 phi3 phimoe plamo plamo2
plamo3 qwen qwen2 qwen2moe qwen2vl qwen3 qwen35 qwen35moe qwen3moe qwen3next qwen3vl qwen3vlmoe rnd1 seed_oss
smallthinker stablelm starcoder2 step35
"""

# bert has the type NEOX, and learned positions (`src/models/bert.cpp`).
NO_ROTATION = """
arwkv7 bert bloom clip gpt2 gptj jais jamba jina-bert-v2 kimi-linear mamba mamba2 mpt nemotron_h nemotron_h_moe refact
rwkv6 rwkv6qwen2 rwkv7 starcoder t5 t5encoder wavtokenizer-dec
"""

# Latent attention: the rotated channels are a separate part of the head.
LATENT = ("deepseek2", "deepseek32", "glm-dsa", "minicpm3", "mistral4", "plm")
# What `rope.scaling.yarn_log_multiplier` is divided by, so that it is DeepSeek's `mscale_all_dim`.
LOG_MULTIPLIERS = {"deepseek2": 0.1, "deepseek32": 0.1, "mistral4": 0.1, "mistral3": 1.0}
# Latent attention that multiplies its softmax scale, as DeepSeek does.
SCALES_SOFTMAX = ("deepseek2", "deepseek32", "glm-dsa", "mistral4")
# Architectures whose YaRN has other ends of its ramp than the paper, if the file does not state them.
OTHER_BETAS = {"grok": {"beta_fast": 8.0}}
# Architectures with several position axes: the order of the pairs.
AXES = {
    **dict.fromkeys(("qwen2vl", "paddleocr"), "chunked"),
    **dict.fromkeys(("qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"), "interleaved"),
}
# Architectures with several position axes only if the file has sections.
AXES_IF_SECTIONS = ("glm4", "glm4moe", "hunyuan_vl")


class LayerPattern(NamedTuple):
    """The types of layers, as `src/models` of llama.cpp has them."""

    period: int | None = None  # one layer of each period has full attention; None if only the file says it
    full_is_first: bool = False  # the first layer of a period, not the last
    full_is_rotated: bool = True
    sliding_base: float | None = None  # the default for layers with a sliding window; None means as other layers
    only_with_window: bool = False
    # If given, all layers are equal, but the last one of each interval is not rotated. 0 means that all are rotated.
    unrotated_interval: int | None = None


# Layers with a sliding window have no scaling.
LAYERS = {
    "gemma3": LayerPattern(6, sliding_base=10_000.0),
    "gemma3n": LayerPattern(5, sliding_base=10_000.0),
    "gemma-embedding": LayerPattern(6, sliding_base=10_000.0),
    "gemma4": LayerPattern(sliding_base=10_000.0),
    "modern-bert": LayerPattern(3, full_is_first=True, sliding_base=10_000.0),
    "olmo2": LayerPattern(4, only_with_window=True),
    "cohere2": LayerPattern(4, full_is_rotated=False),
    "exaone4": LayerPattern(4, full_is_rotated=False, only_with_window=True),
    "afmoe": LayerPattern(4, full_is_rotated=False),
    "llama4": LayerPattern(unrotated_interval=4),
    "smollm3": LayerPattern(unrotated_interval=4),
}
# Architectures whose layers differ in other ways.
UNKNOWN_LAYERS = ("exaone-moe", "mimo2", "plamo3", "smallthinker", "step35")

# Families whose architecture has their name, if all layers have the same frequencies.
SAME_NAME = """
apertus arcee baichuan bitnet chatglm cohere2 dbrx dots1 ernie4_5 exaone exaone4 falcon gemma gemma2 glm4 granite
granitemoe internlm2 lfm2 llama minicpm minicpm3 mistral4 nemotron olmo olmo2 olmoe phi3 phimoe qwen qwen2 qwen3
seed_oss smollm3 stablelm starcoder2
"""
# Families by the other names that the converter of llama.cpp gives architectures.
OTHER_NAME = {
    "bailingmoe2": "bailing_moe_v2",
    "command-r": "cohere",
    "deepseek2": "deepseek_v2 deepseek_v3 glm4_moe_lite kimi_k2 youtu",
    "deepseek32": "deepseek_v32",
    "ernie4_5-moe": "ernie4_5_moe",
    "glm4": "glm4v_text glm_ocr_text",
    "glm-dsa": "glm_moe_dsa",
    "glm4moe": "glm4_moe glm4v_moe_text",
    "gpt-oss": "gpt_oss",
    "gptneox": "gpt_neox",
    "grok": "git grok-1 grok1",
    "hunyuan-dense": "hunyuan_v1_dense",
    "hunyuan-moe": "hunyuan_v1_moe",
    "jina-bert-v3": "xlm-roberta",
    "lfm2moe": "lfm2_moe",
    "llama": "mistral mixtral",
    "llama4": "llama4_text",
    "mistral3": "ministral3",
    "nomic-bert": "nomic_bert",
    "phi2": "phi",
    "qwen2moe": "qwen2_moe",
    "qwen2vl": "qwen2_vl_text qwen2_5_vl_text",
    "qwen3moe": "qwen3_moe",
    "qwen35": "qwen3_5_text",
    "qwen35moe": "qwen3_5_moe_text",
    "qwen3next": "qwen3_next",
    "qwen3vl": "qwen3_vl_text",
    "qwen3vlmoe": "qwen3_vl_moe_text",
}
ARCHITECTURE_OF = {name: name for name in SAME_NAME.split()} | {
    family: name for name, families in OTHER_NAME.items() for family in families.split()
}

# Families that llama.cpp has, but whose layers differ, so that no file is written for them.
LAYERS_DIFFER = "exaone_moe gemma3_text gemma3n_text gemma4_text mimo_v2_flash modernbert plamo3 step3p5"


def remarks_on(model_type: str) -> list[str]:
    """Why the architecture of a model type is not known, if it is not."""
    if model_type in LAYERS_DIFFER.split():
        return [f"the layers of model type {model_type!r} differ, and llama.cpp has rules of its own for them"]
    unknown = f"the architecture of model type {model_type!r} in llama.cpp, if any, is not known"
    return [] if model_type in ARCHITECTURE_OF or not model_type else [unknown]


_LAYOUTS = {
    **dict.fromkeys(INTERLEAVED.split(), "interleaved"),
    **dict.fromkeys(HALF.split(), "half"),
    **dict.fromkeys(NO_ROTATION.split()),
}


def gguf_layout(architecture: object, sections: object = None) -> str | None:
    """The layout that llama.cpp uses for a file with these sections; None if it has none, or is not in the lists."""
    if architecture == "glm4" and sections:
        return "half"  # the text part of GLM-4V has several position axes: MROPE
    return _LAYOUTS.get(architecture) if isinstance(architecture, str) else None


def order_of(architecture: str, sections: Sequence[int] | None) -> str | None:
    """How llama.cpp assigns pairs to several position axes, as the order of `Sections`; None for one axis."""
    if architecture in AXES_IF_SECTIONS:
        return "chunked" if any(sections or ()) else None
    return AXES.get(architecture)


def tensors_of(rule: Scaling | None) -> tuple[str, ...]:
    """The tensors in which a file has this rule, because no other key of metadata can say it."""
    if isinstance(rule, LongRopeScaling):
        return LONG, SHORT
    has_keys = isinstance(rule, (LinearScaling, NTKScaling, DynamicNTKScaling, YarnScaling))
    return () if has_keys or type(rule) in (Scaling, type(None)) else (FREQS,)


def scales(name: str | None, factor: float, is_yarn: bool, multiplier: float = 0.0) -> tuple[float, float]:
    """What tables and the softmax scale are multiplied by, before `rope.scaling.attn_factor`."""
    # The multiplier is DeepSeek's `mscale_all_dim`. Sources: the constructor of `llama_context`
    # (src/llama-context.cpp), `rope_yarn` (ggml/src/ggml-cpu/ops.cpp), and the graphs of `SCALES_SOFTMAX`.

    def mscale(number: float) -> float:
        return 1.0 + 0.1 * number * log(factor)

    own = multiplier if name == "deepseek2" and multiplier else 1.0
    tables = mscale(own) / mscale(multiplier) if is_yarn else 1.0
    softmax = mscale(own) if is_yarn else mscale(1.0) * mscale(multiplier)  # with linear scaling, too
    return tables, softmax**2 if name in SCALES_SOFTMAX else 1.0


def pairs_without_axis(sizes: Sequence[int]) -> list[int]:
    """The pairs of an interleaved order that llama.cpp gives to its fourth position axis, and other programs do not."""
    axes = [*sizes, 0, 0][:3]
    return [pair for pair in range(sum(sizes)) if pair >= 3 * axes[pair % 3]]
