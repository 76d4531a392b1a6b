"""The example programs: what they print is true, and their classes do what those of other packages do."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")  # before JAX starts

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import rotary_embedding_torch
import torch
from peers import file_of_torchtune
from samples import random
from transformers import LlamaConfig
from transformers.models.llama import modeling_llama

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.append(str(EXAMPLES))

ATTENTION = ["numpy", "torch", "flax"]


def angles(seq, dim):
    return np.outer(np.arange(seq), np.asarray(oracle.geometric(10_000.0, dim), dtype=float))


def random_weights(dim):
    return {name: random(dim, dim, seed=seed) / dim**0.5 for seed, name in enumerate(("wq", "wk", "wv", "wo"))}


def attend(library, weights, num_heads, x, positions=None):
    """The output of an example's attention, from NumPy to NumPy."""
    attention = import_module(f"attention_{library}").SelfAttention
    build = attention if library == "numpy" else attention.from_weights
    asarray = {"numpy": np.asarray, "torch": torch.asarray, "flax": jnp.asarray}[library]
    with torch.inference_mode():
        return np.asarray(build(weights, num_heads)(asarray(x), positions))


def true_attention(x, weights, num_heads):
    """Causal attention in float64, one query after the other."""
    q, k, v = (x.astype(np.float64) @ weights[name] for name in ("wq", "wk", "wv"))
    head_dim = x.shape[-1] // num_heads
    y = np.zeros_like(q)
    for head in range(num_heads):
        channels = np.s_[..., head * head_dim : (head + 1) * head_dim]
        rotated_q, rotated_k = (oracle.rotate(each[channels], angles(x.shape[1], head_dim), "half") for each in (q, k))
        for batch, i in np.ndindex(x.shape[:2]):
            scores = np.exp(rotated_k[batch, : i + 1] @ rotated_q[batch, i] / head_dim**0.5)
            y[channels][batch, i] = scores / scores.sum() @ v[channels][batch, : i + 1]
    return y @ weights["wo"]


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_quickstart(backend, capsys):
    exact, layout, scaling, float32 = import_module("quickstart").main(["--backend", backend]).values()
    assert exact < 1e-6  # scores of order 1, sums of 128 products of numbers that were rounded to float32
    assert 1e-5 < float32 < 1e-2 < scaling < layout
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 10 and max(map(len, lines)) <= 80


def test_quickstart_needs_numpy_alone():
    others = {"einops", "flax", "jax", "matplotlib", "rich", "torch", "tqdm"}
    code = f"import sys, quickstart; quickstart.main([]); assert sys.modules.keys().isdisjoint({others})"
    subprocess.run([sys.executable, "-c", code], cwd=EXAMPLES, check=True)


@pytest.mark.parametrize("library", ATTENTION)
def test_attention_is_the_truth_on_every_library(library):
    """Also with positions of each row."""
    x, weights = random(2, 5, 24, seed=9), random_weights(24)
    for num_heads, where in ((1, None), (3, None), (3, np.arange(5) + np.asarray([[0], [70_000]]))):
        y, truth = attend(library, weights, num_heads, x, where), true_attention(x, weights, num_heads)
        # Each within 5e-6 of the truth: any two within 1e-5 of each other.
        np.testing.assert_allclose(y, truth, atol=5e-6)
    backwards = attend(library, weights, 3, x, positions=np.arange(5)[::-1].copy())
    assert np.abs(backwards - truth).max() > 0.1


@pytest.mark.parametrize("library", ATTENTION)
def test_attention_program(library, capsys):
    changes = import_module(f"attention_{library}").main()
    assert changes.keys() == {1, 4} and all(change < 5e-6 for change in changes.values())
    assert "(2, 16, 64)" in capsys.readouterr().out


def test_modules_are_rotary_embedding_torch_and_transformers_llama():
    x, base = torch.asarray(random(2, 5, 3, 14)), 500.0  # batch seq heads dim
    example = import_module("modules_torch")
    module = example.RoPEPositionEmbedding(14, max_len=5, base=base)
    peer = rotary_embedding_torch.RotaryEmbedding(14, theta=base).rotate_queries_or_keys
    torch.testing.assert_close(module(x), peer(x.transpose(1, 2)).transpose(1, 2), atol=1e-5, rtol=0)
    torch.testing.assert_close(module(x[:, :, 0]), peer(x[:, :, 0]), atol=1e-5, rtol=0)
    parameters = {"rope_type": "default", "rope_theta": base}
    config = LlamaConfig(hidden_size=42, num_attention_heads=3, head_dim=14, rope_parameters=parameters)
    cos, sin = modeling_llama.LlamaRotaryEmbedding(config)(x, torch.arange(5)[None])
    peer, _ = modeling_llama.apply_rotary_pos_emb(x, x, cos, sin, unsqueeze_dim=2)
    module = example.HFRoPEPositionEmbedding(14, max_len=5, base=base)
    torch.testing.assert_close(module(x), peer, atol=1e-5, rtol=0)


def test_modules_take_positions_and_refuse_long_input():
    module = import_module("modules_torch").HFRoPEPositionEmbedding(14, max_len=5)
    x = torch.asarray(random(2, 5, 3, 14))
    torch.testing.assert_close(module(x[:, 3:], positions=torch.arange(3, 5)), module(x)[:, 3:])
    with pytest.raises(ValueError, match=r"at most max_len=5 tokens; got shape \(2, 6, 14\)"):
        module(torch.zeros(2, 6, 14))


def assert_same_parameters(ours, peer):
    assert [*inspect.signature(ours).parameters] == [*inspect.signature(peer).parameters]


@pytest.mark.long  # needs packages of the group `all`
@pytest.mark.parametrize("base, dtype", [(10_000, torch.float32), (500, torch.bfloat16)])
def test_drop_in_for_torchtune(base, dtype):
    ours = import_module("modules_torch").RotaryPositionalEmbeddings
    peer = file_of_torchtune("modules", "position_embeddings.py").RotaryPositionalEmbeddings
    assert_same_parameters(ours, peer)
    assert_same_parameters(ours.forward, peer.forward)
    one, other = (of(14, max_seq_len=512, base=base) for of in (ours, peer))
    x = torch.asarray(random(2, 5, 3, 14)).to(dtype)  # batch seq heads dim
    packed, decode = torch.tensor([[0, 1, 2, 0, 1], [0, 1, 2, 3, 511]]), torch.tensor([[7], [300]])
    # Float32 phases are off by 2**-24 * 511 or so, numbers are below 4; and one rounding of a number below 4.
    atol = 2e-4 if dtype == torch.float32 else 2e-4 + 4 * 2.0**-8
    for given, where in ((x, None), (x, packed), (x[:, :1], decode)):
        turned = one(given, input_pos=where)
        assert turned.dtype == dtype
        torch.testing.assert_close(turned, other(given, input_pos=where), atol=atol, rtol=0)
    assert one.state_dict() == {} == other.state_dict()


@pytest.mark.parametrize("options, dtype", [({}, "float32"), ({"theta": 500.0}, "bfloat16")])
def test_drop_in_for_equinox(options, dtype):
    ours = import_module("modules_equinox").RotaryPositionalEmbedding
    peer = eqx.nn.RotaryPositionalEmbedding
    assert_same_parameters(ours, peer)
    assert_same_parameters(ours.__call__, peer.__call__)
    # A width for each, as Equinox keeps its tables by width and dtype alone, whatever theta is.
    width = 14 + 2 * len(options)
    one, other = (of(width, **options) for of in (ours, peer))
    assert (one.embedding_size, one.theta, one.dtype) == (other.embedding_size, other.theta, other.dtype)
    x = jnp.asarray(random(3, 64, width), dtype)  # heads seq dim
    # Float32 phases are off by 2**-24 * 64 or so, numbers are below 4; and one rounding of a number below 4.
    atol = 5e-5 if dtype == "float32" else 5e-5 + 4 * 2.0**-8
    turned = eqx.filter_jit(jax.vmap(one))(x)
    assert turned.dtype == x.dtype
    np.testing.assert_allclose(turned.astype("float32"), jax.vmap(other)(x).astype("float32"), rtol=0, atol=atol)
    np.testing.assert_array_equal(one(x[0], key=jax.random.key(0)), one(x[0]))
    assert jax.tree.leaves(one) == []


def test_equinox_attention_holds_a_value():
    example = import_module("modules_equinox")
    attention, x = example.Attention(24, 3, key=jax.random.key(0)), jnp.asarray(random(5, 24))
    w = np.asarray(attention.project.weight, dtype=np.float64)
    weights = {name: part.T for name, part in zip(("wq", "wk", "wv"), np.split(w, 3))} | {"wo": np.eye(24)}
    np.testing.assert_allclose(attention(x), true_attention(np.asarray(x)[None], weights, 3)[0], atol=5e-6)
    assert len(jax.tree.leaves(eqx.filter(attention, eqx.is_array))) == 1
    cast = jax.tree.map(lambda leaf: leaf.astype("bfloat16") if eqx.is_array(leaf) else leaf, attention)
    assert cast.rope is attention.rope


@pytest.mark.long
@pytest.mark.slow
def test_equinox_program():
    moved, losses = import_module("modules_equinox").main()
    assert moved < 5e-6 and losses[-1] < 0.1 * losses[0]


def test_modules_and_notebook_programs():
    assert import_module("modules_torch").main() < 1e-6
    differences = import_module("notebook_jax").main()
    assert differences.keys() == {256, 64} and all(each < 2e-6 for each in differences.values())


def test_notebook_functions():
    notebook, x = import_module("notebook_jax"), random(5, 3, 256)
    for dim, function in (
        (256, notebook.rotate),
        (64, notebook.rotate_as_gpt_j),
        (64, jax.jit(notebook.rotate_as_gpt_j)),
    ):
        y, truth = np.asarray(function(jnp.asarray(x))), oracle.rotate(x, angles(5, dim)[:, None], "interleaved")
        np.testing.assert_allclose(y, truth, atol=1e-6)
        np.testing.assert_array_equal(y[..., dim:], x[..., dim:])


def test_convert_checkpoint(capsys):
    changes = import_module("convert_checkpoint").main()
    assert changes["converted"] < 1e-6 < 0.1 < changes["as published"]
    assert len(capsys.readouterr().out.splitlines()) == 2


# Attention, by how many roundings its sums may differ: scores of 32 products below 5 * 5, over the square root of 32,
# are the error of a weight, of which there are two in a gradient, times products below 5 * 5.
SUMS = 32 * 25 * 2.0**-24 / 32**0.5 * 2 * 25


@pytest.mark.long
@pytest.mark.slow
def test_sharded_jax(capsys):
    results = import_module("sharded_jax").main()
    count, difference = results.pop("ring attention, zigzag")
    assert count == 2 * 2 * 7 and difference <= SUMS  # keys and values, passed on seven times, and their gradients back
    assert len(results) == 3 and set(results.values()) == {(0, 0.0)}
    assert len(capsys.readouterr().out.splitlines()) == 6


@pytest.mark.long
@pytest.mark.slow
def test_distributed_torch(capsys):
    results = import_module("distributed_torch").main()
    differences = [difference for _, difference in results.values()]
    assert len(results) == 6 and all(each <= SUMS for each in differences)
    # By two kernels, each of which rounds two products of numbers below 5 otherwise, forward and backward.
    assert all(each <= 2 * 2 * 5 * 2.0**-24 for each in differences[:3])
    counts = {name: count for name, (count, _) in results.items()}
    # Parameters are gathered and gradients scattered; outputs of heads are summed, as are gradients of what they read.
    assert list(counts.values()) == [0, 0, 0, 2, 4, 0]
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.long
@pytest.mark.slow
def test_decoding():
    decoding = import_module("decoding")
    errors = decoding.main()
    assert len(errors) == len(decoding.WAYS) == 8
    # Scores of 16 products below 5 * 5, over 4, whose weights are off by as much, times values below 5; and a key of
    # the sliding window has been turned ten times, each with three roundings.
    assert all(error <= (16 + 3 * 10) * 25 * 2.0**-24 / 4 * 5 for error in errors.values())


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_language_model(backend, tmp_path):
    figure = tmp_path / "a.png"
    example = import_module("language_model")
    bits, rules = example.main(["--backend", backend, "--quick", "--out", str(figure)])
    assert bits.keys() == {"sinusoidal", "learned", "rotary"}
    assert all(0.0 < value < 16.0 for by_length in bits.values() for value in by_length.values())
    assert len({tuple(by_length) for by_length in bits.values()}) == 1
    assert rules.keys() == {"unchanged", *example.RULES}
    before, after = zip(*rules.values())
    assert all(curve.shape == (128,) and 0.0 < curve.min() < curve.max() < 16.0 for curve in (*before, *after))
    # All start from the same weights, so that each rule has its own losses, and fine-tuning changes them.
    np.testing.assert_allclose(before[0].mean(), bits["rotary"][128], rtol=1e-6)
    assert len({curve.tobytes() for curve in (*before, *after)}) == 12
    assert figure.read_bytes().startswith(b"\x89PNG")
