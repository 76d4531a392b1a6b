"""Times of the attention of Llama 3 8B, and of its rotation alone, without and with rope_xp."""

import time
from copy import deepcopy
from functools import partial
from statistics import median

import torch
import transformers

from rope_xp.huggingface import patch


def timed(repeats, *calls):
    """The least and the median time of calls without and with rope_xp, in milliseconds. Calls alternate."""
    times = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(repeats):
        for call, own in zip(calls, times):
            start = time.perf_counter()
            call()
            own.append(1e3 * (time.perf_counter() - start))
    return {side: {"least": min(own), "median": median(own)} for side, own in zip(("without", "with"), times)}


def speeds(quick):
    """For each name: the least and the median time without rope_xp, and with it."""
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding, apply_rotary_pos_emb

    heads, kv_heads = (4, 1) if quick else (32, 8)
    widths = {"hidden_size": 128 * heads, "head_dim": 128, "max_position_embeddings": 8192}
    config = transformers.LlamaConfig(num_attention_heads=heads, num_key_value_heads=kv_heads, **widths)
    config._attn_implementation = "sdpa"
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        theirs = torch.nn.ModuleDict({"attn": LlamaAttention(config, 0), "rotary": LlamaRotaryEmbedding(config)}).eval()
        theirs["attn"].to(dtype)
        ours = patch(deepcopy(theirs))
        our_apply = type(ours["attn"]).forward.__globals__["apply_rotary_pos_emb"]
        both = ((theirs, apply_rotary_pos_emb), (ours, our_apply))
        for tokens, repeats in ((64, 3) if quick else (2048, 7), (1, 200)):
            hidden = torch.randn(1, tokens, config.hidden_size, dtype=dtype)
            where = torch.arange(4000, 4000 + tokens)[None]
            q, k = (torch.randn(1, tokens, n, 128, dtype=dtype).transpose(1, 2) for n in (heads, kv_heads))

            def attention(model, hidden=hidden, where=where):
                model["attn"](hidden, model["rotary"](hidden, where), None)

            name = f"{str(dtype).removeprefix('torch.')}, {'prefill' if tokens > 1 else 'decode'}"
            with torch.no_grad():
                rotations = [partial(apply, q, k, *model["rotary"](hidden, where)) for model, apply in both]
                found[f"q and k, {name}"] = timed(repeats, *rotations)
                found[f"attention, {name}"] = timed(repeats, *(partial(attention, model) for model, _ in both))
    return found
