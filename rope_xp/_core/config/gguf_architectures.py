"""Which channels form a pair in a GGUF file, by its architecture.

The values of `general.architecture`, as `llama_model_rope_type` in llama.cpp (`src/llama-model.cpp`) groups them. Its
type NORM pairs neighbouring channels; NEOX, MROPE and IMROPE pair channels of the two halves. The converter of
llama.cpp permutes the projections of queries and keys where the layout of its type is not that of the checkpoint.
"""

from collections.abc import Mapping
from typing import Any

INTERLEAVED = """
arcee arctic baichuan bailingmoe chameleon chatglm cohere2 command-r deci deepseek deepseek2 deepseek2-ocr
ernie4_5 ernie4_5-moe glm-dsa glm4 granite granitehybrid granitemoe internlm2 llada llama llama-embed llama4
maincoder minicpm mistral3 mistral4 neo-bert olmo plm smollm3 xverse
"""

HALF = """
afmoe apertus bailingmoe2 bert bitnet codeshell cogvlm dbrx dots1 dream eurobert exaone exaone-moe exaone4 falcon
falcon-h1 gemma gemma-embedding gemma2 gemma3 gemma3n gemma4 glm4moe gpt-oss gptneox grok grovemoe hunyuan-dense
hunyuan-moe hunyuan_vl jais2 jina-bert-v3 lfm2 lfm2moe llada-moe mimo2 minicpm3 minimax-m2 modern-bert nemotron
nomic-bert nomic-bert-moe olmo2 olmoe openelm orion paddleocr pangu-embedded phi2 phi3 phimoe plamo plamo2 plamo3
qwen qwen2 qwen2moe qwen2vl qwen3 qwen35 qwen35moe qwen3moe qwen3next qwen3vl qwen3vlmoe rnd1 seed_oss smallthinker
stablelm starcoder2 step35
"""

NOT_ROTARY = """
arwkv7 bloom clip gpt2 gptj jais jamba jina-bert-v2 kimi-linear mamba mamba2 mpt nemotron_h nemotron_h_moe refact
rwkv6 rwkv6qwen2 rwkv7 starcoder t5 t5encoder wavtokenizer-dec
"""

_LAYOUTS = {
    **dict.fromkeys(INTERLEAVED.split(), "interleaved"),
    **dict.fromkeys(HALF.split(), "half"),
    **dict.fromkeys(NOT_ROTARY.split()),
}


def gguf_layout(metadata: Mapping[str, Any]) -> str | None:
    """The layout that llama.cpp uses for a file with this metadata; None if it has none, or is not in the lists."""
    architecture = metadata.get("general.architecture")
    if architecture == "glm4" and metadata.get("glm4.rope.dimension_sections"):
        return "half"  # the text part of GLM-4V has several position axes: MROPE
    return _LAYOUTS.get(architecture) if isinstance(architecture, str) else None
