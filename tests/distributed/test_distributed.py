"""Many devices: sharded arrays of JAX and DTensors of PyTorch turn without communication, as on one device."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")  # before JAX starts

import re
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import ranks
from compare import assert_same
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from libraries import LIBRARIES

from rope_xp import RotaryEmbedding, apply_rotary_pos_emb, fixed_pos_embedding
from rope_xp.positions import consecutive, context_parallel

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "examples"), str(ROOT / "benchmarks")]

devices = import_module("devices")

random = LIBRARIES["jax"].random
LAYOUTS = ["half", "interleaved"]
DTYPES = [jnp.float32, jnp.bfloat16]
BATCH, SEQ, HEADS, KV_HEADS, DIM = 8, 16, 8, 4, 32

# How q and k lie on a mesh of 4 x 2 devices: (batch, seq, heads). Keys of fewer heads are replicated, or sharded too.
SHARDINGS = {
    "batch": (P(("one", "two")), P(("one", "two"))),
    "seq": (P(None, ("one", "two")), P(None, ("one", "two"))),
    "heads": (P(None, None, "one"), P(None, None, "one")),
    "heads, keys replicated": (P(None, None, ("one", "two")), P()),
    "batch and seq": (P("one", "two"), P("one", "two")),
    "seq and heads": (P(None, "one", "two"), P(None, "one", "two")),
}


def embedding(layout):
    return RotaryEmbedding(head_dim=DIM, layout=layout, base=10_000.0)


CALLS = ranks.calls(jnp.arange)


def queries_and_keys(dtype=jnp.float32):
    return tuple(random(BATCH, SEQ, heads, DIM, seed=heads, dtype=dtype) for heads in (HEADS, KV_HEADS))


def mesh_of(kind=AxisType.Auto):
    return jax.make_mesh((4, 2), ("one", "two"), axis_types=(kind, kind))


def collectives(compiled):
    return Counter(re.findall(devices.COLLECTIVES, compiled.as_text()))


def sharded(mesh, arrays, *specs):
    return jax.device_put(arrays, tuple(NamedSharding(mesh, spec) for spec in specs))


def assert_equal(results, truths, atol=0.0):
    for one, other in zip(jax.tree.leaves(results), jax.tree.leaves(truths), strict=True):
        assert_same(one, other, atol)


def with_gradients(function):
    """Results, and the gradients by q and k of half the sum of their squares."""

    def call(q, k, where):
        y, pull = jax.vjp(lambda q, k: function(q, k, where), q, k)
        return y, pull(y)

    return call


# One call on all meshes, also on explicit ones, whose every operation says how its result lies; and all calls.
CASES = [("positions", sharding, AxisType.Auto) for sharding in SHARDINGS]
CASES += [("positions", sharding, AxisType.Explicit) for sharding in ("batch and seq", "heads, keys replicated")]
CASES += [(name, "batch and seq", AxisType.Auto) for name in CALLS if name != "positions"]
CASES += [("counted", "heads, keys replicated", AxisType.Auto)]


@pytest.mark.compile
@pytest.mark.parametrize("name, sharding, kind", CASES, ids=lambda each: getattr(each, "name", each))
def test_sharded_arrays_do_not_communicate(name, sharding, kind):
    mesh, call, specs = mesh_of(kind), CALLS[name], SHARDINGS[sharding]
    of_positions, where = P(specs[0][1] if len(specs[0]) > 1 else None), jnp.arange(SEQ) + 100_000

    @jax.jit
    def both(arrays, where):
        return [
            with_gradients(lambda q, k, where, layout=layout: tuple(call(embedding(layout), q, k, where)))(*pair, where)
            for (layout, _), pair in arrays.items()
        ]

    arrays = {(layout, dtype.__name__): queries_and_keys(dtype) for layout, dtype in zip(LAYOUTS, DTYPES, strict=True)}
    alone = both(arrays, where)
    with jax.set_mesh(mesh):
        shards = {key: sharded(mesh, pair, *specs) for key, pair in arrays.items()}
        for given in (where, *sharded(mesh, (where,), of_positions)):
            compiled = both.lower(shards, given).compile()
            assert not collectives(compiled)
            results = compiled(shards, given)
            for pair in [pair for values_and_gradients in results for pair in values_and_gradients]:
                for x, spec in zip(pair, specs, strict=True):
                    assert x.sharding.is_equivalent_to(NamedSharding(mesh, spec), 4)
            assert_equal(results, alone)


@pytest.mark.compile
@pytest.mark.parametrize("layout, check_vma", [("half", True), ("interleaved", False)])
def test_shard_map(layout, check_vma):
    """Inside, a rank knows its own tokens alone: positions are given, or counted from where it begins."""
    mesh, rope, (q, k) = mesh_of(), embedding(layout), queries_and_keys()
    size, rank = 8, lambda: jax.lax.axis_index(("one", "two"))
    where = jnp.arange(SEQ) + 100_000

    def given(q, k, where):
        return rope(q, k, positions=where, seq_dim=1)

    def counted(q, k, where):
        return rope(q, k, positions=consecutive(q.shape[1], 100_000 + rank() * q.shape[1]), seq_dim=1)

    def built(q, k, where):
        return rope(q, k, positions=context_parallel(SEQ, rank(), size) + 100_000, seq_dim=1)

    def notebook(q, k, where):
        sincos = fixed_pos_embedding(q, 1, offset=100_000 + rank() * q.shape[1])
        return tuple(apply_rotary_pos_emb(x, sincos, layout=layout, seq_dim=1) for x in (q, k))

    alone = jax.jit(with_gradients(given))(q, k, where)
    seq = P(None, ("one", "two"))
    for function in (given, counted, built, notebook):
        specs = {"in_specs": (seq, seq, P(("one", "two"))), "out_specs": seq, "check_vma": check_vma}
        mapped = jax.jit(jax.shard_map(with_gradients(function), mesh=mesh, **specs)).lower(q, k, where).compile()
        assert not collectives(mapped)
        assert_equal(mapped(q, k, where), alone)


def test_tokens_of_ranks_of_packed_sequences():
    """One program for all ranks, and for all packings of as many sequences."""
    ends, over, total = jnp.asarray([0, 16, 64, 64, 96]), P(("one", "two")), 96

    def tokens(rank, ends):
        where = context_parallel(total, rank, 8, zigzag=True, cu_seqlens=ends)
        return where, context_parallel(jnp.arange(total), rank, 8, zigzag=True, cu_seqlens=ends)

    def of_this_rank(ends):
        return tokens(jax.lax.axis_index(("one", "two")), ends)

    found = jax.jit(jax.shard_map(of_this_rank, mesh=mesh_of(), in_specs=P(), out_specs=over))(ends)
    assert_equal(found, [jnp.concat(each) for each in zip(*(tokens(rank, ends) for rank in range(8)))])


@pytest.mark.compile
@pytest.mark.parametrize("sharding, sums", [("batch", 1), ("seq", 1), ("batch and seq", 2)])
def test_learned_frequencies_are_summed_once(sharding, sums):
    """The one thing that shards have to tell each other: along batch and along seq, where both are sharded."""
    mesh, (q, _), inv_freq = mesh_of(), queries_and_keys(), jnp.logspace(0, -3, DIM // 2)
    g, where = random(*q.shape, seed=1), jnp.arange(SEQ)

    @jax.jit
    def gradient(q, g, inv_freq, where):
        def turned(inv_freq):
            return RotaryEmbedding(head_dim=DIM, layout="half", inv_freq=inv_freq)(q, positions=where, seq_dim=1)

        return jax.vjp(turned, inv_freq)[1](g)[0]

    alone = gradient(q, g, inv_freq, where)
    spec = SHARDINGS[sharding][0]
    of_positions = P(spec[1] if len(spec) > 1 else None)
    given = sharded(mesh, (q, g, inv_freq, where), spec, spec, P(), of_positions)
    compiled = gradient.lower(*given).compile()
    assert collectives(compiled) == {"all-reduce": sums}
    # A sum of 8 * 16 * 8 products below 5 * 5 * 16, each turned.
    assert_equal(compiled(*given), alone, atol=1024 * 800 * 2.0**-24)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_channels_on_several_devices_communicate(layout):
    """What is not promised: halves of a head on two devices are exchanged; neighbours, on one, are not."""
    mesh, rope, (q, k) = mesh_of(), embedding(layout), queries_and_keys()
    shards = sharded(mesh, (q, k), *[P(None, None, None, "one")] * 2)
    compiled = jax.jit(lambda q, k: rope(q, k, seq_dim=1)).lower(*shards).compile()
    assert bool(collectives(compiled)) == (layout == "half")
    assert_equal(compiled(*shards), rope(q, k, seq_dim=1), atol=1e-6)


def test_dtensors_of_two_processes():
    ranks.on_ranks(2, (ranks.dtensors_otherwise,), (ranks.learned_frequencies,), (ranks.compiled,))


def test_errors_of_ranks_are_raised():
    with pytest.raises(Exception, match=r"rank \d has failed"):
        ranks.on_ranks(1, (ranks.failing,))


def test_benchmark(tmp_path, capsys):
    rows = devices.main(["--quick", "--out", str(tmp_path / "devices.md")])
    assert {row["framework"] for row in rows} == {"JAX", "PyTorch"}
    assert all(row["collectives"] == row["expected"] for row in rows)
    assert (tmp_path / "devices.md").read_text().count("\n|") == len(rows) + 2
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
