"""Attention scores with the shapes of Llama 3.1 8B, at position 100,000: exact phases matter there.

Scores depend only on differences of positions, so the same text must have the same scores at any position.
Run: `python quickstart.py [--backend numpy|jax|torch]`.
"""

import argparse
from importlib import import_module

import numpy as np

from rope_xp import RotaryEmbedding

HEADS, KV_HEADS, HEAD_DIM, BASE, SEQ, FAR = 32, 8, 128, 500_000.0, 64, 100_000
MODULES = {"numpy": "numpy", "jax": "jax.numpy", "torch": "torch"}


def attention_scores(xp, rope, q, k, positions):
    """Scaled scores of grouped queries: four heads of q share one of k. Both are (seq, heads, dim)."""
    q, k = rope(q, k, positions=positions, seq_dim=0)
    q = xp.reshape(q, (SEQ, KV_HEADS, HEADS // KV_HEADS, HEAD_DIM))
    return xp.einsum("qhgd,khd->hgqk", q, k) / HEAD_DIM**0.5


def true_scores(q, k, positions):
    """The same scores by complex numbers in float64: channels j and j + 64 are one number."""
    rotation = np.exp(1j * np.outer(positions, BASE ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)))[:, None, :]
    q, k = ((x[..., : HEAD_DIM // 2] + 1j * x[..., HEAD_DIM // 2 :]) * rotation for x in (q, k))
    q = q.reshape(SEQ, KV_HEADS, HEADS // KV_HEADS, HEAD_DIM // 2)
    return np.einsum("qhgd,khd->hgqk", q, k.conj()).real / HEAD_DIM**0.5


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=MODULES, default="numpy")
    xp = import_module(MODULES[parser.parse_args(argv).backend])

    random = np.random.default_rng(0)
    q, k = (random.standard_normal((SEQ, heads, HEAD_DIM), dtype=np.float32) for heads in (HEADS, KV_HEADS))
    positions, errors = np.arange(SEQ), {}
    truth = true_scores(q, k, positions + FAR)
    for phase in ("exact", "float32"):
        rope = RotaryEmbedding(head_dim=HEAD_DIM, layout="half", base=BASE, phase=phase)
        scores = (attention_scores(xp, rope, xp.asarray(q), xp.asarray(k), positions + p) for p in (0, FAR))
        near, far = map(np.asarray, scores)
        compared = {"far - near": far - near, "far - truth": far - truth, "near - truth": near - truth}
        errors[phase] = {name: float(abs(difference).max()) for name, difference in compared.items()}

    print(f"Scores of {SEQ} tokens, up to {abs(truth).max():.1f}, at position 0 (near) and {FAR:,} (far)")
    print(f"{'largest':<14}{'rope_xp':>10}{'usual float32 positions':>26}")
    for name, error in errors["exact"].items():
        print(f"{name:<14}{error:>10.1e}{errors['float32'][name]:>26.1e}")
    worse = round(errors["float32"]["far - truth"] / errors["exact"]["far - truth"])
    print(f"rope_xp is as exact far away as near; usual positions are {worse:,} times worse.")
    return errors


if __name__ == "__main__":
    main()
