"""Megatron-core builds models from the arguments that `to_config` writes, and rotates queries as the embedding does."""

# pyright: reportMissingImports=false

import warnings
from dataclasses import fields

import numpy as np
import pytest
import torch

from rope_xp import RotaryEmbedding, Sections
from rope_xp.frequencies import LinearScaling, Llama3Scaling, YarnScaling

# It warns of what is not installed, such as TransformerEngine.
pytestmark = pytest.mark.filterwarnings("ignore")

TOKENS, HEADS, HIDDEN = 61, 2, 64
# Float32 frequencies have an error of 4 * 2**-24 each, so that phases below 64 are off by 64 * 2**-22 = 1.6e-5.
TOLERANCE = 2e-5
YARN = {"factor": 4.0, "original_max_position_embeddings": 4096}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
TO_HALF = {"layout": "interleaved_to_half"}
CASES = {
    "half": {},
    "interleaved": {"layout": "interleaved"},
    "base": {"base": 500_000.0},
    "part of the head": {"rotary_dim": 16},
    "interleaved part": {"rotary_dim": 8, "layout": "interleaved"},
    "linear": {"scaling": LinearScaling(factor=4.0)},
    "llama3": {"scaling": Llama3Scaling(**LLAMA3)},
    "llama3, other factor": {"scaling": Llama3Scaling(**LLAMA3 | {"factor": 32.0})},
    "sections": {"sections": Sections((4, 6, 6))},
    "sections, linear": {"sections": Sections((4, 6, 6)), "scaling": LinearScaling(factor=2.0)},
    "yarn": {"scaling": YarnScaling(**YARN)},
    "yarn, betas": {"scaling": YarnScaling(**YARN, beta_fast=16.0, beta_slow=2.0)},
    "yarn, not truncated": {"scaling": YarnScaling(**YARN, truncate=False)},
    "yarn, attention_factor": {"scaling": YarnScaling(**YARN, attention_factor=1.25)},
    "latent": TO_HALF,
    "latent, yarn": {**TO_HALF, "scaling": YarnScaling(**YARN)},
    "latent, mscale": {**TO_HALF, "scaling": YarnScaling(**YARN, mscale=1.0, mscale_all_dim=1.0)},
    "latent, mscale_all_dim": {**TO_HALF, "scaling": YarnScaling(**YARN, mscale=0.707, mscale_all_dim=1.2)},
}


class NoAttention(torch.nn.Module):
    """In place of attention with latents, which only TransformerEngine has."""

    def __init__(self, *_, **__):
        super().__init__()


@pytest.fixture(scope="module")
def gpt():
    """A function from arguments to a model, on the CPU and without TransformerEngine."""
    with warnings.catch_warnings(action="ignore"), pytest.MonkeyPatch.context() as patch:
        try:
            import megatron.core.distributed  # noqa: F401
        except ModuleNotFoundError:
            pytest.fail("megatron-core must be installed: `nox -s tests-megatron` does that", pytrace=False)
        # Megatron-core asks for the GPU also if it builds on the CPU.
        patch.setattr(torch.cuda, "current_device", lambda: "cpu")
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        from megatron.core import parallel_state
        from megatron.core.transformer import multi_latent_attention

        patch.setattr(multi_latent_attention, "HAVE_TE", False)  # it is True also without TransformerEngine
        parallel_state.initialize_model_parallel()
        yield model_of
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def model_of(arguments):
    """A GPT model of one layer. Names of Megatron-LM's command line that differ from those of the model are mapped."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import MLATransformerConfig, TransformerConfig

    is_latent = arguments.get("multi_latent_attention", False)
    config_class = MLATransformerConfig if is_latent else TransformerConfig
    latent = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_head_dim": 16, "v_head_dim": 16} if is_latent else {}
    known = {each.name for each in fields(config_class)}
    given = {name: value for name, value in arguments.items() if name in known}
    config = config_class(
        num_layers=1, hidden_size=HIDDEN, num_attention_heads=HEADS, use_cpu_initialization=True, **latent, **given
    )
    for name, value in arguments.items():
        if name.startswith("yarn_"):  # no fields: the model takes them from attributes
            setattr(config, name, value)
    renamed = {
        "rope_scaling": arguments.get("use_rope_scaling", False),
        "seq_len_interpolation_factor": arguments.get("rotary_seq_len_interpolation_factor"),
    }
    names = ("position_embedding_type", "rotary_percent", "rotary_base", "rope_scaling_factor")
    same = {name: arguments[name] for name in names if name in arguments}
    assert {*arguments} <= {*given, *same, "use_rope_scaling", "rotary_seq_len_interpolation_factor"} | {
        name for name in arguments if name.startswith("yarn_")
    }
    spec = get_gpt_layer_local_spec(multi_latent_attention=is_latent)
    if is_latent:
        spec.submodules.self_attention.submodules.core_attention = NoAttention
    return GPTModel(config, spec, vocab_size=32, max_sequence_length=TOKENS, **same, **renamed)


def rotation(model, x, axes):
    """Queries "tokens heads dim" as the model rotates them, and what scores are multiplied by."""
    from megatron.core.models.common.embeddings.rope_utils import apply_rotary_pos_emb

    attention, width = model.decoder.layers[0].self_attention, x.shape[-1]
    if model.config.multi_latent_attention:
        rotary, scale = attention.rotary_pos_emb, attention.softmax_scale * (width + 16) ** 0.5
    else:
        rotary, scale = model.rotary_pos_emb, 1.0
    if model.position_embedding_type == "mrope":
        found = rotary(torch.tensor(axes)[:, None], model.mrope_section)
    else:
        found = rotary(TOKENS)
    freqs, mscale = found if isinstance(found, tuple) else (found, 1.0)
    return apply_rotary_pos_emb(torch.tensor(x)[:, None], freqs, model.config, mscale=mscale)[:, 0].numpy(), scale


def difference(gpt, rope, arguments):
    """The largest difference of rotated queries, relative to the attention factor, and of the scale of the softmax."""
    x = np.random.default_rng(0).uniform(-0.5, 0.5, (TOKENS, HEADS, rope.head_dim)).astype(np.float32)
    row = np.arange(TOKENS)
    axes = np.stack([row, row * 3 % TOKENS, row * 5 % TOKENS])
    theirs, scale = rotation(gpt(arguments), x, axes)
    ours = rope(x, positions=axes if rope.axes > 1 else row, seq_dim=0)
    assert scale == pytest.approx(rope.softmax_scale, rel=1e-6)
    return float(np.abs(ours - theirs).max()) / rope.attention_factor


@pytest.mark.parametrize("case", CASES)
def test_models_rotate_as_the_embedding_does(gpt, case):
    rope = RotaryEmbedding(**{"head_dim": 32, "layout": "half", "base": 10_000.0, **CASES[case]})
    assert difference(gpt, rope, rope.to_config("megatron")) <= TOLERANCE


@pytest.mark.parametrize(
    "case, change",
    [
        ("base", {"rotary_base": 505_000}),
        ("linear", {"rotary_seq_len_interpolation_factor": None}),
        ("llama3", {"use_rope_scaling": False}),
        ("yarn", {"yarn_rotary_scaling_factor": 4.2}),
        ("yarn", {"yarn_mscale": 1.1}),
        ("latent, yarn", {"beta_fast": 8.0}),
        ("interleaved", {"rotary_interleaved": False}),
    ],
)
def test_planted_mistakes_are_seen(gpt, case, change):
    rope = RotaryEmbedding(**{"head_dim": 32, "layout": "half", "base": 10_000.0, **CASES[case]})
    assert difference(gpt, rope, rope.to_config("megatron") | change) > 20 * TOLERANCE


def test_the_scale_of_the_softmax_is_seen(gpt):
    rope = RotaryEmbedding(**{"head_dim": 32, "base": 10_000.0, **CASES["latent, mscale"]})
    with pytest.raises(AssertionError):
        difference(gpt, rope, rope.to_config("megatron") | {"mscale": 0.0, "mscale_all_dim": 0.0})
