"""Convert a checkpoint with Meta's order of channels for code that rotates halves, as transformers does, in NumPy.

Queries have eight heads and keys two, with biases. Attention scores do not change. Run: `python convert_checkpoint.py`.
"""

import numpy as np

from rope_xp import RotaryEmbedding, permute_projection

DIM, HEADS, KV_HEADS, HEAD_DIM, SEQ = 64, 8, 2, 16, 10
HEADS_OF = {"wq": HEADS, "wk": KV_HEADS}  # projections of rotated arrays are converted: not wv, not wo


def random_checkpoint():
    """Weights (heads * head_dim, dim) and biases (heads * head_dim), in pairs of neighbouring channels."""
    random, checkpoint = np.random.default_rng(0), {}
    for name, heads in {"wq": HEADS, "wk": KV_HEADS, "wv": KV_HEADS}.items():
        weight = random.standard_normal((heads * HEAD_DIM, DIM), dtype=np.float32) / DIM**0.5
        bias = random.standard_normal(heads * HEAD_DIM, dtype=np.float32)
        checkpoint |= {f"{name}.weight": weight, f"{name}.bias": bias}
    return checkpoint


def convert(checkpoint):
    """The same checkpoint, with the channels of queries and keys in halves."""
    converted = dict(checkpoint)
    for name, heads in HEADS_OF.items():
        for key in (f"{name}.weight", f"{name}.bias"):
            # With rotary_dim, a wrong number of heads is an error, such as that of queries for keys.
            converted[key] = permute_projection(checkpoint[key], num_heads=heads, to="half", rotary_dim=HEAD_DIM)
    return converted


def attention_scores(checkpoint, layout, x):
    """Scaled scores before the softmax, (kv_heads, group, query, key), in float64 like x."""
    q, k = (
        (x @ checkpoint[f"{name}.weight"].T + checkpoint[f"{name}.bias"]).reshape(SEQ, heads, HEAD_DIM)
        for name, heads in HEADS_OF.items()
    )
    q, k = RotaryEmbedding(head_dim=HEAD_DIM, layout=layout, base=10_000.0)(q, k, seq_dim=0)
    return np.einsum("qhgd,khd->hgqk", q.reshape(SEQ, KV_HEADS, -1, HEAD_DIM), k) / HEAD_DIM**0.5


def main():
    published, x = random_checkpoint(), np.random.default_rng(1).standard_normal((SEQ, DIM))
    truth = attention_scores(published, "interleaved", x)
    changes = {
        name: float(np.abs(attention_scores(checkpoint, "half", x) - truth).max())
        for name, checkpoint in {"as published": published, "converted": convert(published)}.items()
    }
    for name, change in changes.items():
        print(f"{name + ', rotated by halves:':34} scores up to {abs(truth).max():.1f} change by {change:.1e}")
    return changes


if __name__ == "__main__":
    main()
