"""The rotary embedding of Llama 3.1 8B: what it is, and how much attention moves if its code is slightly wrong.

Run: `python quickstart.py [--backend numpy|jax|torch]`.
"""

import argparse
import json
import time
from importlib import import_module
from pathlib import Path

import numpy as np

from rope_xp import from_config

CONFIG = json.loads((Path(__file__).parent / "llama-3.1-8b.json").read_text())  # what its config.json says of positions
HEADS, KV_HEADS, HEAD_DIM, TOKENS, POSITION = 32, 8, 128, 4096, 100_000
MODULES = {"numpy": "numpy", "jax": "jax.numpy", "torch": "torch"}


def attention_weights(q, k):
    """The weights of one query, from rotated q of (heads, dim) and k of (tokens, kv_heads, dim): (heads, tokens)."""
    q, k = (np.asarray(x, np.float64) for x in (q, k))
    groups = q.reshape(KV_HEADS, HEADS // KV_HEADS, HEAD_DIM)
    scores = np.einsum("hgd,khd->hgk", groups, k).reshape(HEADS, TOKENS) / HEAD_DIM**0.5
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def llama3_frequencies():
    """The formula of Llama 3.1, in float64 and without rope_xp."""
    scaling = CONFIG["rope_scaling"]
    frequencies = CONFIG["rope_theta"] ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return frequencies * (kept + (1 - kept) / scaling["factor"])


def rotated_by_complex_numbers(x, positions):
    """What `rope` computes, in float64 and without rope_xp: channels j and j + 64 are one complex number."""
    rotation = np.exp(1j * np.outer(positions, llama3_frequencies()))[:, None, :]
    x = (x[..., : HEAD_DIM // 2] + 1j * x[..., HEAD_DIM // 2 :]) * rotation
    return np.concatenate((x.real, x.imag), axis=-1)


def moved(weights, truth):
    """The share of attention that is on other tokens than it should be, from 0 to 1: the mean of all heads."""
    return float(abs(weights - truth).sum(axis=-1).mean() / 2)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=MODULES, default="numpy")
    backend = parser.parse_args(argv).backend
    xp = import_module(MODULES[backend])

    random = np.random.default_rng(0)
    shapes = (1, HEADS, HEAD_DIM), (TOKENS, KV_HEADS, HEAD_DIM)
    q, k = (random.standard_normal(shape, dtype=np.float32) for shape in shapes)
    positions = np.arange(POSITION - TOKENS + 1, POSITION + 1)  # the query is the last of them
    truth = attention_weights(rotated_by_complex_numbers(q, positions[-1:]), rotated_by_complex_numbers(k, positions))

    rope = from_config(CONFIG)
    variants = {
        "rope_xp": rope,
        "wrong layout: pairs (0, 1), (2, 3), ...": rope.replace(layout="interleaved"),
        "the scaling rule left out": rope.replace(scaling=None),
        "phases multiplied in float32": rope.replace(phase="float32"),
    }
    shares = {}
    for name, variant in variants.items():
        rotated_q = variant(xp.asarray(q), positions=positions[-1:], seq_dim=0)
        rotated_k = variant(xp.asarray(k), positions=positions, seq_dim=0)
        shares[name] = moved(attention_weights(rotated_q, rotated_k), truth)

    start = time.perf_counter()
    np.asarray(rope(xp.asarray(k), positions=positions, seq_dim=0))  # NumPy's copy waits for the device
    milliseconds = 1e3 * (time.perf_counter() - start)

    report = rope.explain()
    print("Llama 3.1 8B, as its config.json says:")
    print(f"  {report.pairs} pairs of channels turn in each head: (0, 64), (1, 65), ..., (63, 127)")
    print(
        f"  base {rope.base:,.0f}; rule llama3 extends {report.trained_length:,} tokens to {report.extended_length:,}"
    )
    print(f"One query at position {POSITION:,} attends to {TOKENS:,} random keys.")
    print("Share of its attention that is on other tokens than it should be:")
    for name, share in shares.items():
        print(f"  {name:<42}{share:>12.4%}")
    print(f"Keys of {TOKENS:,} tokens, 8 heads of 128: rotated in {milliseconds:.1f} ms on {backend}.")
    return shares


if __name__ == "__main__":
    main()
