"""Projections between layouts: equal to the converters people use on PyTorch."""

from types import SimpleNamespace

import pytest
import torch
from peers import file_of_torchtune, random
from transformers.core_model_loading import PermuteForRope

from rope_xp import RotaryEmbedding
from rope_xp.weights import permute_projection

HEADS, KV_HEADS, HEAD_DIM, DIM = 8, 2, 16, 128
TORCHTUNE = {"num_heads": HEADS, "num_kv_heads": KV_HEADS, "dim": DIM}


def convert_by_transformers(name, w, to, **config):
    operation = PermuteForRope(permute_layer_names=["q_proj", "k_proj"], inverse=to == "interleaved")
    return operation.convert({name: w}, [name], [name], config=SimpleNamespace(**config))[name]


@pytest.mark.parametrize("to", ["half", "interleaved"])
@pytest.mark.parametrize("shape", [(HEADS * HEAD_DIM, DIM), (HEADS * HEAD_DIM,)])
def test_transformers(to, shape):
    w = random(*shape)
    theirs = convert_by_transformers("q_proj", w, to, num_attention_heads=HEADS)
    assert torch.equal(permute_projection(w, num_heads=HEADS, to=to), theirs)


def attention_scores(layout, wq, wk):
    """In float64, of float32 weights."""
    x, wq, wk = random(5, DIM, seed=9).double(), wq.double(), wk.double()
    rope = RotaryEmbedding(head_dim=HEAD_DIM, layout=layout, base=100.0)
    q, k = rope((x @ wq.T).reshape(5, HEADS, HEAD_DIM), (x @ wk.T).reshape(5, KV_HEADS, HEAD_DIM), seq_dim=0)
    return torch.einsum("qhgd,khd->hgqk", q.reshape(5, KV_HEADS, -1, HEAD_DIM), k) / DIM


def test_transformers_scrambles_the_keys_of_grouped_queries():
    """It counts the queries' heads in every tensor: 32 rows of keys become 8 heads of 4 channels."""
    wq, wk = random(HEADS * HEAD_DIM, DIM), random(KV_HEADS * HEAD_DIM, DIM, seed=1)
    config = {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS}
    theirs = [convert_by_transformers(name, w, "half", **config) for name, w in (("q_proj", wq), ("k_proj", wk))]
    ours = [permute_projection(w, num_heads=heads, to="half") for w, heads in ((wq, HEADS), (wk, KV_HEADS))]
    assert torch.equal(ours[0], theirs[0]) and not torch.equal(ours[1], theirs[1])

    truth = attention_scores("interleaved", wq, wk)
    torch.testing.assert_close(attention_scores("half", *ours), truth, rtol=0, atol=1e-12)
    assert (attention_scores("half", *theirs) - truth).abs().max() > 0.1

    # The same mistake here: silent where the heads come out even, but not beside the width of a head.
    assert torch.equal(permute_projection(wk, num_heads=HEADS, to="half"), theirs[1])
    with pytest.raises(ValueError, match=r"16 channels .*; got head_dim=4 \(w of shape \(32, 128\), num_heads=8\)"):
        permute_projection(wk, num_heads=HEADS, to="half", rotary_dim=HEAD_DIM)


def test_torchtune():
    """Its models rotate interleaved: from Hugging Face's order, and back."""
    theirs = file_of_torchtune("models", "convert_weights.py")
    names = {f"model.layers.0.self_attn.{name}_proj.weight": heads for name, heads in (("q", HEADS), ("k", KV_HEADS))}
    published = {name: random(heads * HEAD_DIM, DIM, seed=heads) for name, heads in names.items()}
    tuned = theirs.hf_to_tune(published, **TORCHTUNE)
    back = theirs.tune_to_hf(tuned, **TORCHTUNE)
    for (name, heads), w in zip(names.items(), tuned.values(), strict=True):
        assert torch.equal(permute_projection(published[name], num_heads=heads, to="interleaved"), w)
        assert torch.equal(permute_projection(w, num_heads=heads, to="half"), back[name])
        assert torch.equal(back[name], published[name])


def test_lora_of_torchtune():
    theirs, prefix = file_of_torchtune("models", "convert_weights.py"), "layers.0.attn."
    factors = {
        f"{prefix}{name}_proj.lora_{factor}.weight": random(*shape, seed=heads)
        for name, heads in (("q", HEADS), ("k", KV_HEADS))
        for factor, shape in (("a", (3, DIM)), ("b", (heads * HEAD_DIM, 3)))
    }
    published = theirs.tune_to_peft_adapter_weights(factors, **TORCHTUNE)
    for (name, factor), peft in zip(factors.items(), published.values(), strict=True):
        heads = HEADS if "q_proj" in name else KV_HEADS
        ours = permute_projection(factor, num_heads=heads, to="half") if "lora_b" in name else factor
        assert torch.equal(ours, peft)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64])
def test_dtypes_that_are_only_stored(dtype):
    w = random(28, 5).to(dtype)
    for rotary_dim in (14, 6):
        result = permute_projection(w, num_heads=2, to="half", rotary_dim=rotary_dim)
        back = permute_projection(result, num_heads=2, to="interleaved", rotary_dim=rotary_dim)
        assert result.dtype == back.dtype == dtype and result.shape == w.shape
        assert torch.equal(back.view(torch.uint8), w.view(torch.uint8))
        assert not torch.equal(result.view(torch.uint8), w.view(torch.uint8))


def test_parameters_and_the_meta_device():
    linear = torch.nn.Linear(5, 28)
    result = permute_projection(linear.weight, num_heads=2, to="half")
    result.sum().backward()
    assert torch.equal(linear.weight.grad, torch.ones(28, 5))
    shape = permute_projection(torch.empty(28, 5, device="meta", dtype=torch.bfloat16), num_heads=2, to="half")
    assert (shape.device.type, shape.dtype, tuple(shape.shape)) == ("meta", torch.bfloat16, (28, 5))
