"""Rotary positions on eight devices in JAX: arrays sharded on any axis but the channels, and causal ring attention.

Run: `python sharded_jax.py`. It creates virtual devices of the CPU, and compares with one device.
"""

import re
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from rope_xp import RotaryEmbedding
from rope_xp.positions import context_parallel

DEVICES, BATCH, SEQ, HEADS, KV_HEADS, HEAD_DIM = 8, 8, 64, 16, 8, 32
COLLECTIVES = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
AXES = {"batch": 0, "sequence": 1, "heads": 2}  # of q and k; their last axis is the channels

rope = RotaryEmbedding(head_dim=HEAD_DIM, layout="half", base=500_000.0)


def rotate(q, k, positions):
    """The same call as on one device: positions are data, sharded like the sequence or replicated."""
    return rope(q, k, positions=positions, seq_dim=1)


def ring_attention(q, k, v):
    """Causal attention, inside `shard_map` over "ranks", to keys and values that move from rank to rank.

    Each rank has the tokens of `context_parallel(zigzag=True)`, so that all ranks have the same work.
    """
    size, rank = lax.axis_size("ranks"), lax.axis_index("ranks")
    tokens_of = partial(context_parallel, size * q.shape[1], size=size, zigzag=True)
    mine = tokens_of(rank)
    q, k = rotate(q, k, mine)  # once, before keys are sent
    group = q.shape[2] // k.shape[2]
    highest, total, y = -jnp.inf, 0.0, 0.0
    for step in range(size):
        theirs = tokens_of((rank - step) % size)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k.repeat(group, axis=2)) / q.shape[-1] ** 0.5
        scores = jnp.where(theirs <= mine[:, None], scores, -jnp.inf)
        # Running sums of exponentials, relative to the highest score so far.
        before, highest = highest, lax.stop_gradient(jnp.maximum(highest, scores.max(axis=-1, keepdims=True)))
        weights, shrink = jnp.exp(scores - highest), jnp.exp(before - highest)
        total = total * shrink + weights.sum(axis=-1, keepdims=True)
        y = y * shrink + jnp.einsum("bhqk,bkhd->bhqd", weights, v.repeat(group, axis=2))
        if step < size - 1:
            k, v = lax.ppermute((k, v), "ranks", [(source, (source + 1) % size) for source in range(size)])
    return (y / total).swapaxes(1, 2)


def attention(q, k, v):
    """The same on one device."""
    q, k = rotate(q, k, jnp.arange(q.shape[1]))
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def with_gradients(function):
    """A jitted function of arrays and weights: the result, and the gradients of its sum with those weights."""

    @jax.jit
    def both(arrays, weights):
        y, pull = jax.vjp(function, *arrays)
        return y, pull(weights)

    return both


def collectives(compiled):
    """How many operations of a compiled program communicate."""
    return len(re.findall(f" (?:{COLLECTIVES})(?:-start)?\\(", compiled.as_text()))


def compare(sharded, alone):
    """The largest difference of all numbers."""
    pairs = zip(jax.tree.leaves(sharded), jax.tree.leaves(alone), strict=True)
    return jnp.stack([abs(jax.device_get(one) - jax.device_get(other)).max() for one, other in pairs]).max().item()


def main():
    mesh = jax.make_mesh((DEVICES,), ("ranks",), axis_types=(jax.sharding.AxisType.Auto,))
    sizes = ((HEADS, 0), (KV_HEADS, 1), (KV_HEADS, 2), (HEADS, 3))
    q, k, v, g = (jax.random.normal(jax.random.key(n), (BATCH, SEQ, heads, HEAD_DIM)) for heads, n in sizes)
    positions = jnp.arange(100_000, 100_000 + SEQ)
    results = {}
    for name, axis in AXES.items():
        at = NamedSharding(mesh, PartitionSpec(*["ranks" if place == axis else None for place in range(3)]))
        both = with_gradients(lambda q, k: rotate(q, k, positions))
        shards = jax.device_put(((q, k), (q, k)), at)
        count = collectives(both.lower(*shards).compile())
        results[f"rotation, sharded on {name}"] = count, compare(both(*shards), both((q, k), (q, k)))

    order = jnp.concat([context_parallel(SEQ, rank, DEVICES, zigzag=True, like=q) for rank in range(DEVICES)])
    spec = PartitionSpec(None, "ranks")
    both = with_gradients(jax.shard_map(ring_attention, mesh=mesh, in_specs=(spec, spec, spec), out_specs=spec))
    shards = jax.device_put(jax.tree.map(lambda x: x[:, order], ((q, k, v), g)), NamedSharding(mesh, spec))
    count = collectives(both.lower(*shards).compile())
    alone = jax.tree.map(lambda x: x[:, order], with_gradients(attention)((q, k, v), g))
    results["ring attention, zigzag"] = count, compare(both(*shards), alone)

    print(f"{DEVICES} devices compared with one, forward and backward:")
    print(f"{'':<32}{'collectives':>12}{'difference':>14}")
    for name, (count, difference) in results.items():
        print(f"{name:<32}{count:>12}{difference:>14.1e}")
    return results


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    main()
