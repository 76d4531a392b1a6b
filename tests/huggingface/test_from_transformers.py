"""from_transformers: families that the table knows, one that nobody knows, and functions that no value explains."""

# pyright: reportMissingImports=false

import functools
import inspect
import json
import re
from itertools import product
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import transformers
from cases import for_each
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.llama import modeling_llama

from rope_xp import RotaryEmbedding, from_config
from rope_xp.huggingface import from_transformers, probing, reading_models
from rope_xp.huggingface.probing import calls_apply_function

# Positions below 512: float32 frequencies have an error of 4 * 2**-24, so phases of at most 512 * 2**-22 = 1.2e-4.
POSITIONS, TOLERANCE = np.array([0, 1, 511, 3, 8, 127, 300]), 1.5e-4
LAYERS = {"num_hidden_layers": 2}
YARN = {"rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0, "original_max_position_embeddings": 4096}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 256}
LONG |= {"short_factor": [1.0] * 8, "long_factor": [1.0 + pair for pair in range(8)]}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
SMALL = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 256}


# The class of the config, its changes, and other arguments of both functions.
CASES = {
    "half": ("Llama", LAYERS, {}),
    "interleaved": ("Cohere", LAYERS, {}),
    "yarn": ("Qwen3", LAYERS | {"rope_parameters": YARN}, {}),
    "part of the head": ("GPTNeoX", LAYERS, {}),
    "head cut before": ("Phi", LAYERS, {}),
    "latent attention": ("DeepseekV3", LAYERS, {}),
    "latent attention, rope_interleave": ("DeepseekV3", LAYERS | {"rope_interleave": False}, {}),
    "complex tables, some layers": ("Llama4Text", {"num_hidden_layers": 4}, {}),
    "reversed": ("NanoChat", LAYERS, {}),
    "last of some layers": ("SmolLM3", {"num_hidden_layers": 5, "no_rope_layers": [0, 0, 0, 0, 1]}, {"layer": 4}),
    "sliding layers": ("Gemma3Text", {"num_hidden_layers": 6}, {"layer_type": "sliding_attention"}),
    "full layers": ("Gemma3Text", {"num_hidden_layers": 6}, {"layer_type": "full_attention"}),
    "wider heads of full layers": ("Gemma4Text", {"num_hidden_layers": 6}, {"layer_type": "full_attention"}),
    "sections": ("Qwen2VL", {}, {}),
    "interleaved sections": ("Qwen3VLText", LAYERS, {}),
    "vision": ("Qwen2VL", {}, {"part": "vision"}),
    "blocks": ("Gemma4Vision", LAYERS, {}),
    "rotary module in attention": ("RecurrentGemma", {"num_hidden_layers": 3}, {}),
    "longrope": ("Phi3", LAYERS | SMALL | {"rope_parameters": LONG, "pad_token_id": 0}, {}),
    "longrope, long": ("Phi3", LAYERS | SMALL | {"rope_parameters": LONG, "pad_token_id": 0}, {"seq_len": 400}),
    "dynamic": ("Llama", LAYERS | SMALL | {"rope_parameters": DYNAMIC}, {}),
    "dynamic, long": ("Llama", LAYERS | SMALL | {"rope_parameters": DYNAMIC}, {"seq_len": 1000}),
}


def rotated(rope):
    rows = np.stack([np.roll(POSITIONS, axis) for axis in range(rope.axes)])
    x = np.random.default_rng(0).uniform(-0.5, 0.5, (len(POSITIONS), rope.head_dim))
    return rope(x, positions=rows if rope.axes > 1 else rows[0], seq_dim=0)


@pytest.mark.parametrize("name", CASES)
def test_families_equal_the_table(name):
    stem, changes, options = CASES[name]
    config = getattr(transformers, f"{stem}Config")(**changes)
    before = config.to_dict()
    found = from_transformers(config, **{name: each for name, each in options.items() if name != "layer"})
    assert config.to_dict() == before
    expected = from_config(config, compat="transformers", **options)
    assert (found.head_dim, found.axes) == (expected.head_dim, expected.axes)
    assert np.abs(rotated(found) - rotated(expected)).max() <= TOLERANCE * expected.attention_factor


def test_values_have_the_rule_and_the_sections():
    yarn = from_transformers(transformers.Qwen3Config(**CASES["yarn"][1]))
    assert (yarn.base, yarn.scaling.factor, yarn.scaling.original_max_position_embeddings) == (5e5, 4.0, 4096)
    vision = from_transformers(transformers.Qwen2VLConfig(), part="vision")
    assert (vision.base, vision.sections.order, vision.sections.sizes) == (1e4, "axial", (20, 20))


def test_a_folder_and_a_mapping(tmp_path):
    config = transformers.LlamaConfig(**LAYERS, **SMALL, rope_parameters={"rope_type": "default", "rope_theta": 777.0})
    config.save_pretrained(tmp_path)
    expected = RotaryEmbedding(head_dim=16, layout="half", base=777.0)
    assert from_transformers(tmp_path) == from_transformers(config.to_dict()) == expected
    assert from_transformers(json.loads((tmp_path / "config.json").read_text())) == expected


# A family that rope_xp has never seen. The frequencies of its rotary module are 1 / (1 + 3 * pair).


class AcmeConfig(PreTrainedConfig):
    model_type = "acme"
    width: int = 48
    mistake: str = ""


class AcmeRotaryEmbedding(nn.Module):
    step = 3.0

    def __init__(self, config):
        super().__init__()
        self.config = config

    def forward(self, x, position_ids):
        inv_freq = 1.0 / (1.0 + self.step * torch.arange(4))
        if self.config.mistake == "positions from 2 on":
            position_ids = position_ids + 2
        angles = (position_ids[..., None].float() @ inv_freq[None]).repeat_interleave(
            2, -1
        )  # which autocast would round
        if self.config.mistake == "tables in halves":
            angles = torch.cat((angles[..., ::2], angles[..., ::2]), -1)
        return angles.cos(), angles.sin()


def apply_rotary_to_pairs(states, cos, sin, of_keys=False):
    turned = torch.stack((-states[..., 1::2], states[..., ::2]), -1).flatten(-2)
    return states * cos[:, :, None] + turned * sin[:, :, None]


def apply_rotary_to_both(states, others, cos, sin):
    return apply_rotary_to_pairs(states, cos, sin), apply_rotary_to_pairs(others, cos, 2 * sin)


class AcmeAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.head_dim = config, 12
        self.of_queries = nn.Linear(config.width, config.width)

    def forward(self, hidden_states, position_embeddings):
        queries = self.of_queries(hidden_states).unflatten(-1, (-1, self.head_dim))[..., :8]
        if self.config.mistake == "other keys":
            return apply_rotary_to_both(queries, queries, *position_embeddings)
        if self.config.mistake == "no call":
            return queries
        return apply_rotary_to_pairs(queries, *position_embeddings)


class AcmePart(AcmeAttention):
    """A part of an attention that has a rotary module of its own."""

    def __init__(self, config, step):
        super().__init__(config)
        self.rotary_emb = type("AcmeOwnRotaryEmbedding", (AcmeRotaryEmbedding,), {"step": step})(config)

    def forward(self, hidden_states, position_ids):
        queries = self.of_queries(hidden_states).unflatten(-1, (-1, self.head_dim))[..., :8]
        return apply_rotary_to_pairs(queries, *self.rotary_emb(queries, position_ids))


class AcmeModel(PreTrainedModel):
    config_class = AcmeConfig

    def __init__(self, config):
        super().__init__(config)
        if config.mistake == "no model":
            raise RuntimeError("a part is missing")
        self.rotary_emb, self.attention = AcmeRotaryEmbedding(config), AcmeAttention(config)
        if config.mistake == "no attention":
            del self.attention
        if config.mistake == "two kinds":
            self.other = type("AcmeOtherAttention", (AcmeAttention,), {})(config)
            self.other.head_dim = 16
        if config.mistake == "own part":
            self.part = AcmePart(config, 7.0)
        self.tower = nn.Module()  # the attention is not in it
        self.tower.rotary_emb = type("AcmeTowerRotaryEmbedding", (AcmeRotaryEmbedding,), {"step": 5.0})(config)
        self.post_init()


def test_a_family_of_tomorrow():
    with pytest.raises(ValueError, match=r"model_type must be .* rope_xp\.huggingface\.from_transformers\(config\)"):
        from_config(AcmeConfig())
    inv_freq = [1.0, 1 / 4, 1 / 7, 1 / 10]
    found = from_transformers(AcmeConfig())
    expected = RotaryEmbedding(head_dim=12, layout="interleaved", rotary_dim=8, inv_freq=inv_freq)
    assert (found.head_dim, found.layout, found.rotary_dim, found.first_channel) == (12, "interleaved", 8, 0)
    for mistake in ("no model", "no attention"):
        assert from_transformers(AcmeConfig(mistake=mistake)) == found  # from its classes alone
    assert from_transformers(AcmeConfig(mistake="own part")) == found
    typed = AcmeConfig(layer_types=["full_attention"])  # of which attentions do not know theirs
    assert from_transformers(typed, layer_type="full_attention") == found
    # Float32 rounds a frequency twice.
    np.testing.assert_allclose(found.inv_freq, inv_freq, rtol=2.0**-23)
    assert np.abs(rotated(found) - rotated(expected)).max() <= TOLERANCE


def test_what_is_tried_in_turn(monkeypatch):
    """Positions of several axes first; each with states of a batch, of none, and with two axes before the tokens."""
    tried = []
    for cls, index in ((AcmeRotaryEmbedding, 1), (nn.Linear, 0)):
        forward = cls.forward

        def recorded(self, *args, forward=forward, index=index):
            tried.append((tuple(args[index].shape), args[index].is_meta))
            return forward(self, *args)

        recorded.__signature__ = inspect.signature(forward)
        monkeypatch.setattr(cls, "forward", recorded)
    with pytest.raises(ValueError, match=r"\(NotReached: AcmeAttention calls no apply function\)$"):
        from_transformers(AcmeConfig(mistake="no call"))
    positions = [(4, 1, 61), (3, 1, 61), (2, 1, 61), (1, 61), (61, 4), (61, 3), (61, 2), (1, 61, 3), (1, 61, 2), (61,)]
    states = [(1, 61, 48), (61, 48), (1, 1, 61, 48)]
    assert tried == [(each, each == shape) for one, shape in product(positions, states) for each in (one, shape)]


def test_the_classes_of_models_that_take_a_config(monkeypatch):
    config, one, other = transformers.LlamaConfig(), modeling_llama.LlamaModel, modeling_llama.LlamaForCausalLM
    others = AcmeModel, modeling_llama.LlamaPreTrainedModel, modeling_llama.LlamaAttention
    assert [each for each in (*others, one) if reading_models._takes(each, config)] == [one]
    assert reading_models._takes(AcmeModel, AcmeConfig())
    for found, classes in ((one, (one,)), ((one, other), (one, other)), ((one, None), (one,)), ((), ())):
        monkeypatch.setattr(reading_models, "MODEL_MAPPING", {transformers.LlamaConfig: found})
        assert reading_models._auto_classes(config) == classes
    for error in (ImportError, ValueError):  # the file needs a package that is not installed
        monkeypatch.setattr(reading_models, "MODEL_MAPPING", Mock(get=Mock(side_effect=error)))
        assert reading_models._auto_classes(config) == ()


def test_which_modules_call_an_apply_function():
    """By a name of their file, also within a decorator; not a method of that name, nor another function."""

    class Method(nn.Module):
        def forward(self, x):
            return torch.sin(self.apply_rotary(x))

    class Decorated(AcmeAttention):
        forward = functools.wraps(AcmeAttention.forward)(lambda self, *args: args)

    found = [calls_apply_function(each) for each in (AcmeAttention, Decorated, Method, AcmeRotaryEmbedding, nn.Linear)]
    assert found == [True, True, False, False, False]


def test_the_width_of_a_head_whose_first_channels_are_queries():
    """By the distance between heads or tokens in memory, if the attention names it."""
    heads = torch.zeros(1, 61, 4, 12)
    for queries, name, width in (
        (heads[..., :8], "head_dim", 12),
        (heads[..., :8].transpose(1, 2), "head_size", 12),
        (heads[..., :8], "attention_head_size", 12),
        (heads[..., :8], "size", 8),
        (heads[..., 4:], "head_dim", 8),
        (heads[:, :, :1, ::2], "head_dim", 6),
        (heads, "head_dim", 12),
        (heads[:, :, :1, :8], "head_dim", 8),
    ):
        assert probing._head_width(SimpleNamespace(**{name: 12}), queries) == width


def test_the_widths_of_hidden_states():
    """That of the config first, then those of projections, three at most."""
    attention = nn.Sequential(*(nn.Linear(width, 2) for width in (8, 4, 8, 6, 5)), nn.Dropout())
    assert probing._input_widths(attention) == [8, 4, 6]
    for hidden, widths in ((6, [6, 8, 4]), (7, [7, 8, 4]), ("7", [8, 4, 6]), (None, [8, 4, 6])):
        attention.config = SimpleNamespace(hidden_size=hidden)
        assert probing._input_widths(attention) == widths
    with pytest.raises(ValueError, match="Dropout has no linear projection"):
        probing._input_widths(nn.Dropout())


def test_tables_of_a_layer_type_are_taken_by_its_name():
    cos, sin = torch.ones(1), torch.zeros(1)
    tables = probing._Tables((cos, sin), "full_attention")
    assert tables[0] is cos and tables[1] is sin and tables["full_attention"] == (cos, sin)
    with pytest.raises(KeyError, match="the attention has layer type 'sliding_attention'"):
        tables["sliding_attention"]


def test_the_rotary_module_that_is_nearest_to_an_attention():
    """One beside a module around the attention, then one with more common names."""
    for attention, rotary, nearness in (
        ("model.layers.0.attn", "model.rotary", (True, 1)),
        ("model.layers.0.attn", "model.layers.0.rotary", (True, 3)),
        ("model.layers.0.attn", "model.layers.1.rotary", (False, 2)),
        ("a.attn", "rotary", (True, 0)),
        ("a.attn", "b.rotary", (False, 0)),
    ):
        assert reading_models._nearness(attention, rotary) == nearness


def test_the_kind_and_the_length_of_an_error(monkeypatch):
    class Own(ValueError, OSError):
        pass

    kinds = {each: each for each in (TypeError, ValueError, FileNotFoundError, PermissionError)}
    kinds |= {Own: ValueError, ConnectionError: OSError}
    for length, (error, kind) in product((900, 960, 985, 999, 1000, 1500), kinds.items()):
        monkeypatch.setattr(reading_models, "_config_of", Mock(side_effect=error("x" * length)))
        with pytest.raises(kind) as caught:
            from_transformers({})
        assert type(caught.value) is kind
        assert str(caught.value) == ("x" * length if length < 1000 else f"{'x' * 990} ...")


def test_the_layers_of_a_type():
    """By the name that an attention has, else by the number of its layer; all, if none of them is of that type."""
    named = [{"layer_idx": 0}, {"layer_idx": 1}, {"layer_idx": 2}, {"layer_idx": None}, {"layer_type": "a"}, {}]
    pairs = [SimpleNamespace(attention=SimpleNamespace(**each)) for each in named]
    for types, label, found in (
        (["a", "b"], "a", [0, 4]),
        (["a", "b"], "b", [1]),
        (["b", "b", "b"], "b", [0, 1, 2]),
        (None, "a", [4]),
        (["a", "b"], "c", range(6)),
        (["a", "b"], None, range(6)),
    ):
        config = SimpleNamespace(layer_types=types)
        assert reading_models._of_type(pairs, config, label) == [pairs[number] for number in found]


def of(model_type, **changes):
    return {"config": {"model_type": model_type, **changes}}


MISTAKES = ("tables in halves", "other keys", "two kinds", "no call", "positions from 2 on")
ACME = {mistake: {"config": AcmeConfig(mistake=mistake)} for mistake in MISTAKES}
GEMMA, LLAMA = of("gemma3_text", num_hidden_layers=6), of("llama", **LAYERS, **SMALL)
SMOL = of("smollm3", num_hidden_layers=6, no_rope_layers=[0, 0, 0, 0, 0, 1])
CONFORMER = of("wav2vec2-conformer", **LAYERS, position_embeddings_type="rotary")
WRONG = [
    (ValueError, "in the order of another layout", ACME["tables in halves"]),
    (ValueError, "apply_rotary_to_both rotates queries and keys by different angles", ACME["other keys"]),
    (ValueError, r"alike; got 2 rotations: AcmeAttention with rotary_emb, AcmeOtherAttention with", ACME["two kinds"]),
    (ValueError, "AcmeAttention calls no apply function", ACME["no call"]),
    (ValueError, r"embedding; got angles of position \+ 2, which no value has", ACME["positions from 2 on"]),
    (ValueError, "takes .*pixel_values.*, and not positions", of("dinov3_vit", **LAYERS)),
    (ValueError, "has no rotary module", of("bert", **LAYERS)),
    (ValueError, r"have a config of another part \(T5GemmaModuleConfig\)$", of("t5gemma")),
    (ValueError, "Wav2Vec2ConformerModel: ValueError: its rotary modules have no config$", CONFORMER),
    (ValueError, "has no model for LayoutXLMConfig alone$", of("layoutxlm")),
    (ValueError, "must apply the tables of .*; got SmolLM3Attention: no format", SMOL),
    (ValueError, "layer_type .* which differ; got None$", GEMMA),
    (ValueError, "layer_type must be one of None; got 'sliding'$", LLAMA | {"layer_type": "sliding"}),
    (ValueError, "one of 'sliding_attention', 'full_attention'; got 'x'$", GEMMA | {"layer_type": "x"}),
    (ValueError, "part must be None for this config; got 'vision'$", LLAMA | {"part": "vision"}),
    (ValueError, "one of text_config, vision_config; got 'audio'$", of("qwen2_vl") | {"part": "audio"}),
    (TypeError, "part must be a string; got 3", LLAMA | {"part": 3}),
    (TypeError, "layer_type must be a string; got 3", LLAMA | {"layer_type": 3}),
    (TypeError, "seq_len must be an int; got float", LLAMA | {"seq_len": 2.5}),
    (ValueError, "a family that transformers .* has; got 'acme'", of("acme")),
    (ValueError, "a family that transformers .* has; got None", {"config": {}}),
    (ValueError, "transformers must accept the config; got", of("llama", num_hidden_layers="x")),
    (TypeError, "config must be a path, a mapping or", {"config": 3}),
    (FileNotFoundError, "no such file", {"config": "no such file"}),
]


@for_each("kind, reason, given", WRONG)
def test_errors_give_the_reason(kind, reason, given):
    with pytest.raises(kind, match=r"^from_transformers: ") as caught:
        from_transformers(**given)
    assert re.search(reason, " ".join(str(caught.value).split())) and len(str(caught.value)) < 1000
