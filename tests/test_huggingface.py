"""rope_xp inside models of transformers: families as benchmarks/families.py measures them, and what may go wrong."""

# pyright: reportMissingImports=false

import json
import subprocess
import sys
import threading
import types
import warnings
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # those of importing torch's and transformers' own
    import torch
    import transformers

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import families
from families import FAMILIES, GRADIENTS, LOGITS, build, generated, logits, prompt

from rope_xp.huggingface import patch, patched, unpatch
from rope_xp.huggingface.rotary import REFUSED, Rotary

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:transformers.*", "ignore::FutureWarning:transformers.*")


def llama(**changes):
    return build(families.Family("LlamaForCausalLM", changes))


def tree(model):
    """Every object of a model, in order, and what each has of its own."""
    return [(name, id(module), list(module._modules), sorted(vars(module))) for name, module in model.named_modules()]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_equal_with_and_without(name):
    family = FAMILIES[name]
    model, inputs = build(family), prompt(family)
    theirs = logits(model, inputs)
    their_gradients, their_files = families.gradients(model, inputs), families.written(model)
    their_tokens = generated(model, inputs) if family.generates else None
    before = tree(model)
    with patched(model):
        assert float((logits(model, inputs) - theirs).abs().max()) <= LOGITS
        assert families.of_gradients(families.gradients(model, inputs), their_gradients) <= GRADIENTS
        assert families.written(model) == their_files
        if family.generates:
            assert torch.equal(generated(model, inputs), their_tokens)
        if family.pads and family.vision is None:
            assert families.padded(model, family) <= LOGITS
    assert tree(model) == before
    assert torch.equal(logits(model, inputs), theirs)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("ESM",)])
def test_positions_matter_in_a_family(name):
    """The test above can fail: tables of other positions change logits by far more than it allows."""
    family = FAMILIES[name]
    model, inputs = patch(build(family)), prompt(family)
    right = logits(model, inputs)
    for module in model.modules():
        if isinstance(module, Rotary):
            own = module._tables
            module._tables = lambda x, positions, label, own=own: own(x, positions * 2, label)
    if name in ("GPT-J", "CodeGen"):
        inputs = {**inputs, "position_ids": 2 * torch.arange(9)[None]}
    assert float((logits(model, inputs) - right).abs().max()) > 10 * LOGITS


@pytest.mark.parametrize("name", ["Llama", "Qwen3", "Gemma 3", "Cohere", "GPT-OSS", "Granite"])
def test_in_bfloat16_far_tokens_are_closer_to_float64(name):
    theirs, ours = families.in_bfloat16(FAMILIES[name], 2)["far"]
    assert ours < 0.6 * theirs


@pytest.mark.parametrize("name", ["Llama", "GPT-J", "Phi-3, LongRoPE long"])
def test_float64_models_have_exact_tables(name):
    model = build(FAMILIES[name]).double()
    inputs = prompt(FAMILIES[name])
    theirs = logits(model, inputs)
    ours = logits(patch(model), inputs)
    assert ours.dtype == torch.float64
    assert float((ours - theirs).abs().max()) <= LOGITS


def test_a_rotary_module_makes_exact_tables_without_state():
    model = patch(llama().to(torch.bfloat16))
    rotary = model.model.rotary_emb
    positions = torch.tensor([[0, 7, 2**24 + 1]])
    cos, sin = rotary(torch.zeros(1, dtype=torch.bfloat16), positions)
    angles = positions[..., None].double() * 10_000.0 ** (-torch.arange(8, dtype=torch.float64) / 8)
    assert cos.dtype == sin.dtype == torch.float32 and cos.shape == (1, 3, 8)
    # 2e-7 is the bound of every table of the library, see README.md.
    assert max(float((cos - angles.cos()).abs().max()), float((sin - angles.sin()).abs().max())) <= 2e-7
    assert not rotary.state_dict() and not list(rotary.buffers()) and not list(rotary.parameters())


def test_other_models_and_transformers_itself_are_not_touched():
    from transformers.models.llama import modeling_llama

    module, attention = dict(vars(modeling_llama)), dict(vars(modeling_llama.LlamaAttention))
    other, model = llama(), llama()
    before = tree(other)
    patch(model)
    assert dict(vars(modeling_llama)) == module and dict(vars(modeling_llama.LlamaAttention)) == attention
    assert tree(other) == before
    assert model.model.layers[0].self_attn.forward.__func__.replaces is modeling_llama.LlamaAttention.forward


def test_unpatch_restores_objects_that_moved_along():
    model, plain = llama(), llama()
    rotary = model.model.rotary_emb
    patch(model).to(torch.float64).train()
    assert unpatch(model).model.rotary_emb is rotary
    assert rotary.training and rotary.inv_freq.dtype == torch.float64
    inputs = prompt(FAMILIES["Llama"])
    assert torch.equal(logits(model.eval(), inputs), logits(plain.to(torch.float64), inputs))


def test_a_copy_is_patched_and_unpatched_by_itself():
    model = patch(llama())
    inputs = prompt(FAMILIES["Llama"])
    right, copy = logits(model, inputs), deepcopy(model)
    assert copy.model.layers[0].self_attn.forward.__self__ is copy.model.layers[0].self_attn
    with torch.no_grad():
        copy.model.layers[0].self_attn.q_proj.weight.zero_()
    assert torch.equal(logits(model, inputs), right) and not torch.equal(logits(copy, inputs), right)
    unpatch(copy)
    assert type(copy.model.rotary_emb).__name__ == "LlamaRotaryEmbedding"
    assert isinstance(model.model.rotary_emb, Rotary)


def test_layers_share_a_module_that_several_parents_hold():
    model = llama()
    model.model.layers[0].shared = model.model.rotary_emb
    patch(model)
    assert model.model.layers[0].shared is model.model.rotary_emb and isinstance(model.model.rotary_emb, Rotary)
    unpatch(model)
    assert model.model.layers[0].shared is model.model.rotary_emb


def test_patched_takes_it_out_after_an_error():
    model = llama()
    before = tree(model)
    with pytest.raises(KeyError), patched(model):
        raise KeyError
    assert tree(model) == before


def test_gradient_checkpointing():
    model, inputs = llama().train(), prompt(FAMILIES["Llama"])
    theirs = families.gradients(model, inputs)
    patch(model).gradient_checkpointing_enable()
    assert families.of_gradients(families.gradients(model, inputs), theirs) <= GRADIENTS


@pytest.mark.parametrize("name", ["Llama", "Phi-3, LongRoPE long", "DeepSeek-V2", "Qwen3"])
def test_compiles_in_one_graph(name):
    dense = {"first_k_dense_replace": 2}  # the experts of transformers break the graph
    family = replace(FAMILIES[name], changes={**FAMILIES[name].changes, **dense})
    torch._dynamo.reset()
    model = patch(build(family))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    inputs = prompt(family)
    assert float((logits(compiled, inputs) - logits(model, inputs)).abs().max()) <= LOGITS


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method:DeprecationWarning")
def test_compiles_with_inductor():
    torch._dynamo.reset()
    model, inputs = patch(llama()), prompt(FAMILIES["Llama"])
    compiled = torch.compile(model, fullgraph=True)
    assert float((logits(compiled, inputs) - logits(model, inputs)).abs().max()) <= LOGITS


def test_threads_share_a_model():
    model = patch(build(FAMILIES["GPT-J"]))
    every = [prompt(FAMILIES["GPT-J"], seed) for seed in range(8)]
    right, found = [logits(model, inputs) for inputs in every], [None] * 8

    def run(index):
        for _ in range(5):
            found[index] = logits(model, every[index])

    threads = [threading.Thread(target=run, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(one, other) for one, other in zip(found, right))


def test_longrope_switches_without_looking_at_the_host():
    family = FAMILIES["Phi-3, LongRoPE long"]
    model = build(family)
    for count in (15, 16, 17, 40):
        inputs = {"input_ids": torch.arange(count)[None] % 60}
        theirs = logits(model, inputs)
        with patched(model):
            assert float((logits(model, inputs) - theirs).abs().max()) <= LOGITS


def test_dynamic_ntk_remembers_nothing():
    model = patch(build(FAMILIES["Llama, dynamic"]))
    short, middle, long = ({"input_ids": torch.arange(count)[None]} for count in (9, 24, 50))
    first = [logits(model, inputs) for inputs in (short, middle)]
    logits(model, long)
    assert all(torch.equal(logits(model, inputs), one) for inputs, one in zip((short, middle), first))


@pytest.mark.parametrize("name", ["text", "vision"])
def test_a_part_of_a_model(name):
    family = FAMILIES["Qwen2-VL"]
    model, inputs = build(family), prompt(family)
    theirs = logits(model, inputs)
    patch(model.model.language_model if name == "text" else model.model.visual)
    assert sum(isinstance(module, Rotary) for module in model.modules()) == 1
    assert float((logits(model, inputs) - theirs).abs().max()) <= LOGITS
    with pytest.raises(ValueError, match="not be patched already"):
        patch(model)


def test_hooks_of_accelerate_stay():
    """As accelerate replaces `forward`: an object's own function, which calls `_old_forward`."""
    model, inputs = llama(), prompt(FAMILIES["Llama"])
    right, calls, attention = logits(model, inputs), [], model.model.layers[0].self_attn
    attention._old_forward = attention.forward

    def hooked(self, *args, **kwargs):
        calls.append(self)
        return self._old_forward(*args, **kwargs)

    attention.forward = types.MethodType(hooked, attention)
    before = tree(model)
    with patched(model):
        assert float((logits(model, inputs) - right).abs().max()) <= LOGITS
        assert attention.forward.__func__ is hooked
    assert calls == [attention] and tree(model) == before
    assert torch.equal(logits(model, inputs), right)


# What is refused, and leaves the model as it was.


class Other(torch.nn.Module):
    """A rotary embedding that nobody knows."""

    def __init__(self, config, **others):
        super().__init__()
        self.config = config
        self.inv_freq = torch.nn.Buffer(torch.ones(8), persistent=False)


class OtherRotaryEmbedding(Other):
    def forward(self, hidden_states, offset):
        return hidden_states


def with_another_rotary(model):
    model.model.rotary_emb = OtherRotaryEmbedding(model.config)


def with_other_frequencies(model):
    model.model.rotary_emb.inv_freq.mul_(1.001)


def with_meta(model):
    model.to("meta")


def with_a_quantizer(model):
    model.config.quantization_config = {"quant_method": "bitsandbytes"}


def with_a_forward(model):
    model.model.layers[1].self_attn.forward = lambda *args, **kwargs: None


def with_a_hook(model):
    model.model.rotary_emb.register_forward_hook(lambda *_: None)


def without_attention(model):
    model.model.layers = torch.nn.ModuleList()


class Mine(transformers.models.llama.modeling_llama.LlamaAttention):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


def with_a_subclass_that_calls_its_parent(model):
    model.model.layers[1].self_attn.__class__ = Mine


BAD = {
    with_another_rotary: r"test_huggingface.OtherRotaryEmbedding: its forward takes \(hidden_states, offset\)",
    with_other_frequencies: r"llama.modeling_llama.LlamaRotaryEmbedding: its tables differ .* by 0\.3",
    with_meta: "numbers in memory; got tensors on the meta device",
    with_a_quantizer: "must not be quantised",
    with_a_forward: "methods must be those of their class; got another forward",
    with_a_hook: "LlamaRotaryEmbedding: it has hooks",
    without_attention: "LlamaRotaryEmbedding, whose tables no method of the model applies",
    with_a_subclass_that_calls_its_parent: "Mine, whose forward calls that of LlamaAttention",
}


@pytest.mark.parametrize("change", BAD, ids=lambda change: change.__name__)
def test_what_cannot_be_patched_is_refused_and_stays(change):
    model = llama()
    change(model)
    before = tree(model)
    with pytest.raises(ValueError, match=rf"^patch: .*{BAD[change]}"):
        patch(model)
    assert tree(model) == before


def test_an_unknown_family_is_named():
    class Config(transformers.LlamaConfig):
        model_type = "mine"

    config = Config(**{**families.TINY, "eos_token_id": None})
    model = transformers.LlamaForCausalLM(config)
    with pytest.raises(ValueError, match=r"LlamaRotaryEmbedding: .*model_type must be one of .*; got 'mine'"):
        patch(model)


def test_another_apply_function_is_refused(monkeypatch):
    """As if another version of transformers computed something else."""
    from transformers.models.llama import modeling_llama

    def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
        return q * cos.unsqueeze(unsqueeze_dim), k * cos.unsqueeze(unsqueeze_dim)

    model = llama()
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", apply_rotary_pos_emb)
    before = tree(model)
    with pytest.raises(ValueError, match=r"LlamaAttention: apply_rotary_pos_emb differs from ours by"):
        patch(model)
    assert tree(model) == before


def test_patching_twice_and_unpatching_what_is_not():
    model = patch(llama())
    before = tree(model)
    with pytest.raises(ValueError, match=r"^patch: model must not be patched already"):
        patch(model)
    assert tree(model) == before
    unpatch(model)
    with pytest.raises(ValueError, match=r"^unpatch: model must be patched"):
        unpatch(model)


@pytest.mark.parametrize("function", [patch, unpatch])
def test_what_is_no_module_is_a_type_error(function):
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module; got dict"):
        function({})


def test_a_model_without_a_rotary_module():
    with pytest.raises(ValueError, match="got Linear without one"):
        patch(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="must be what holds the rotary module"):
        patch(llama().model.rotary_emb)


def test_those_that_are_no_rotations_are_refused_by_name():
    config = transformers.VJEPA2Config(
        hidden_size=48, num_attention_heads=2, num_hidden_layers=1, pred_num_hidden_layers=1
    )
    with pytest.raises(ValueError, match=rf"VJEPA2RopeAttention: {REFUSED['VJEPA2RopeAttention']}"):
        patch(transformers.VJEPA2Model(config))


def test_an_older_transformers_is_an_import_error():
    code = (
        "import transformers; transformers.__version__ = '4.57.1'\n"
        "try:\n    import rope_xp.huggingface\nexcept ImportError as error:\n    print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "rope_xp.huggingface: transformers must be 5 or newer; got 4.57.1"


def test_a_missing_transformers_is_an_import_error():
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "try:\n    import rope_xp.huggingface\nexcept ImportError as error:\n    print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("rope_xp.huggingface: torch and transformers must be installed")


def test_every_refusal_names_a_class_of_transformers():
    folders = Path(transformers.__file__).parent / "models"
    text = "".join(file.read_text() for file in folders.glob("*/modeling_*.py"))
    assert all(f"class {name}(" in text for name in REFUSED)


def test_the_table_is_written_and_read(tmp_path):
    row = families.measure("Llama", quick=True)
    families.write([row], {"A": "", "B": "why"}, {"x": [(1.0, 2.0), (3.0, 4.0)]}, tmp_path / "families.md")
    assert "1 of 2 rotary classes can be patched" in (tmp_path / "families.md").read_text()
    assert json.loads((tmp_path / "families.json").read_text())["families"][0]["family"] == "Llama"
