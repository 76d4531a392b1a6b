"""Tiny models for llama.cpp with random weights, as GGUF files, and their forward pass in NumPy (float64).

The pass rotates with an embedding of rope_xp. All else is written here from the papers of the models.
"""

from types import MappingProxyType

import gguf
import numpy as np

VOCABULARY, WIDTH, HIDDEN, HEADS, HEAD, LAYERS = 56, 64, 40, 2, 32, 2
# Latent attention: channels that are not rotated, those of the latent, and those of values.
APART, LATENT, VALUE, Q_LATENT = 12, 24, 20, 16
LATENT_ATTENTION, FUSED, NORMED, BIASED = ("deepseek2",), ("phi3",), ("qwen3vl",), ("qwen2",)


def weights(architecture, seed=7):
    """Tensors by their names in GGUF files, "out in" as NumPy has them."""
    random = np.random.default_rng(seed)
    keys = HEADS // 2 * HEAD  # one head of keys for two of queries

    def matrix(*shape):
        return (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    found = {"token_embd.weight": matrix(VOCABULARY, WIDTH) * 3, "output.weight": matrix(VOCABULARY, WIDTH)}
    found["output_norm.weight"] = 1 + matrix(WIDTH) / 10
    for layer in range(LAYERS):
        own = {f"{name}_norm": 1 + matrix(WIDTH) / 10 for name in ("attn", "ffn")}
        gate, up = matrix(HIDDEN, WIDTH), matrix(HIDDEN, WIDTH)
        own |= {"ffn_up": np.concatenate([gate, up])} if architecture in FUSED else {"ffn_gate": gate, "ffn_up": up}
        own["ffn_down"] = matrix(WIDTH, HIDDEN)
        if architecture in LATENT_ATTENTION:
            own |= {"attn_q_a": matrix(Q_LATENT, WIDTH), "attn_q_a_norm": 1 + matrix(Q_LATENT) / 10}
            own |= {"attn_q_b": matrix(HEADS * (APART + HEAD), Q_LATENT), "attn_kv_a_mqa": matrix(LATENT + HEAD, WIDTH)}
            own |= {"attn_kv_a_norm": 1 + matrix(LATENT) / 10, "attn_k_b": matrix(HEADS, LATENT, APART)}
            own |= {"attn_v_b": matrix(HEADS, VALUE, LATENT), "attn_output": matrix(WIDTH, HEADS * VALUE)}
        else:
            queries = {
                "attn_q": matrix(HEADS * HEAD, WIDTH),
                "attn_k": matrix(keys, WIDTH),
                "attn_v": matrix(keys, WIDTH),
            }
            own |= {"attn_qkv": np.concatenate([*queries.values()])} if architecture in FUSED else queries
            own["attn_output"] = matrix(WIDTH, HEADS * HEAD)
        if architecture in NORMED:
            own |= {f"attn_{name}_norm": 1 + matrix(HEAD) / 10 for name in "qk"}
        found |= {f"blk.{layer}.{name}.weight": value for name, value in own.items()}
        if architecture in BIASED:
            biases = {"q": HEADS * HEAD, "k": keys, "v": keys}
            found |= {f"blk.{layer}.attn_{name}.bias": matrix(size) for name, size in biases.items()}
    return found


def written(
    path, *entries, metadata=MappingProxyType({}), tensors=(), architecture="llama", order=gguf.GGUFEndian.LITTLE
):
    """A file of the gguf package. An entry is the name of a method of its writer, and arguments.

    `metadata` is what `to_config("gguf")` returns, or other keys of the architecture.
    """
    writer = gguf.GGUFWriter(path, architecture, endianess=order)
    keys = {key: value for key, value in metadata.items() if key != "general.architecture"}
    factors = {key: np.asarray(keys.pop(key), np.float32) for key in [*keys] if key.endswith(".weight")}
    kinds = {int: "uint32", float: "float32", str: "string", list: "array"}
    for method, *arguments in (*((f"add_{kinds[type(value)]}", key, value) for key, value in keys.items()), *entries):
        getattr(writer, method)(*arguments)
    for name, tensor in (*tensors, *factors.items()):
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write(path, architecture, tensors, metadata, length=4096):
    """A file with these weights."""
    own = {"context_length": length, "embedding_length": WIDTH, "block_count": LAYERS, "feed_forward_length": HIDDEN}
    own |= {"attention.head_count": HEADS, "attention.head_count_kv": HEADS // 2, "rope.dimension_count": HEAD}
    own |= {"attention.layer_norm_rms_epsilon": 1e-6, "attention.key_length": HEAD, "attention.value_length": HEAD}
    if architecture in LATENT_ATTENTION:
        own |= {"attention.head_count_kv": 1, "attention.q_lora_rank": Q_LATENT, "attention.kv_lora_rank": LATENT}
        own |= {"attention.key_length": LATENT + HEAD, "attention.value_length": LATENT}
        own |= {"attention.key_length_mla": APART + HEAD, "attention.value_length_mla": VALUE}
        own |= {"leading_dense_block_count": LAYERS, "expert_feed_forward_length": HIDDEN, "expert_shared_count": 1}
    tokens = [f"tok_{index}" for index in range(VOCABULARY)]
    return written(
        path,
        ("add_tokenizer_model", "test"),
        ("add_token_list", tokens),
        ("add_token_scores", [0.0] * VOCABULARY),
        metadata={f"{architecture}.{key}": value for key, value in own.items()} | metadata,
        tensors=[(name, np.ascontiguousarray(value, np.float32)) for name, value in tensors.items()],
        architecture=architecture,
    )


def normed(x, weight):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6) * weight


def attended(q, k, v, scale):
    """Causal attention: q "heads queries channels", k and v with as many heads."""
    scores = scale * q @ np.swapaxes(k, 1, 2)
    scores = np.where(np.tri(scores.shape[1], dtype=bool), scores, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return (scores / scores.sum(-1, keepdims=True)) @ v


def forward(architecture, tensors, tokens, rope):
    """The logits of all tokens, "tokens vocabulary"."""
    tensors = {name: value.astype(np.float64) for name, value in tensors.items()}
    x = tensors["token_embd.weight"][tokens]
    for layer in range(LAYERS):
        own = {name.split(".", 2)[2]: value for name, value in tensors.items() if name.startswith(f"blk.{layer}.")}
        own = {name.removesuffix(".weight"): value for name, value in own.items()}
        attention = _latent if architecture in LATENT_ATTENTION else _attention
        x = x + attention(own, normed(x, own["attn_norm"]), rope) @ own["attn_output"].T
        h = normed(x, own["ffn_norm"])
        parts = np.split(h @ own["ffn_up"].T, 2, axis=-1) if "ffn_gate" not in own else None
        gate, up = parts if parts else (h @ own["ffn_gate"].T, h @ own["ffn_up"].T)
        x = x + (gate / (1 + np.exp(-gate)) * up) @ own["ffn_down"].T
    return normed(x, tensors["output_norm.weight"]) @ tensors["output.weight"].T


def _heads(x, width):
    return np.swapaxes(x.reshape(len(x), -1, width), 0, 1)


def _attention(own, x, rope):
    if "attn_qkv" in own:
        sizes = [HEADS * HEAD, HEADS * HEAD + HEADS // 2 * HEAD]
        q, k, v = np.split(x @ own["attn_qkv"].T, sizes, axis=-1)
    else:
        q, k, v = (x @ own[f"attn_{name}"].T + own.get(f"attn_{name}.bias", 0.0) for name in "qkv")
    q, k, v = (_heads(each, HEAD) for each in (q, k, v))
    if "attn_q_norm" in own:
        q, k = normed(q, own["attn_q_norm"]), normed(k, own["attn_k_norm"])
    q, k = rope(q, k, seq_dim=1)
    groups = len(q) // len(k)
    k, v = np.repeat(k, groups, axis=0), np.repeat(v, groups, axis=0)
    found = attended(q, k, v, rope.softmax_scale / np.sqrt(HEAD))
    return np.swapaxes(found, 0, 1).reshape(len(x), -1)


def _latent(own, x, rope):
    q = _heads(normed(x @ own["attn_q_a"].T, own["attn_q_a_norm"]) @ own["attn_q_b"].T, APART + HEAD)
    both = x @ own["attn_kv_a_mqa"].T
    latent, k = normed(both[:, :LATENT], own["attn_kv_a_norm"]), both[None, :, LATENT:]
    rotated, k = rope(q[..., APART:], k, seq_dim=1)
    q = np.concatenate([q[..., :APART], rotated], -1)
    keys = np.concatenate([latent @ own["attn_k_b"], np.repeat(k, HEADS, axis=0)], -1)
    found = attended(q, keys, latent @ np.swapaxes(own["attn_v_b"], 1, 2), rope.softmax_scale / np.sqrt(APART + HEAD))
    return np.swapaxes(found, 0, 1).reshape(len(x), -1)
