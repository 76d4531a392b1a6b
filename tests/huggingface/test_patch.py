"""rope_xp inside models of transformers: families as benchmarks/families.py measures them, and what may go wrong."""

# pyright: reportMissingImports=false

import ast
import copy
import functools
import inspect
import math
import re
import types
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import bad_input
import families
import pytest
import torch
import transformers
from cases import for_each
from tiny_models import compare, patchable
from tiny_models.compare import GRADIENTS, LOGITS, logits
from tiny_models.models import FAMILIES, TINY, Family, build, prompt
from tiny_models.timing import timed
from tiny_transformers import made, off
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers.models.edgetam_video import modeling_edgetam_video
from transformers.models.evolla import modeling_evolla
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe

from rope_xp import RotaryEmbedding, from_config
from rope_xp.huggingface import patch, patched, rewrite, rotary, unpatch
from rope_xp.huggingface.apply_functions import APPLY_SIGNATURES
from rope_xp.huggingface.guard import PatchedType
from rope_xp.huggingface.rewrite import APPLY_NAME
from rope_xp.huggingface.rotary import Rotary
from rope_xp.huggingface.same_tables import REFUSED, is_rotary, rotary_of

HEADS = {"hidden_size": 32, "num_attention_heads": 2}
MOVES = {"pos_embed_shift": 0.1, "pos_embed_jitter": 1.2, "pos_embed_rescale": 2.0}


def llama():
    return build(FAMILIES["Llama"])


def assert_agrees(model, inputs, **more):
    """Its logits stay once it is patched."""
    theirs = logits(model, inputs, **more)
    assert off(patch(model), inputs, theirs, **more) <= LOGITS


def tree(model):
    """Every object of a model, in order, and what each has of its own."""
    return [
        (name, id(module), type(module), list(module._modules), sorted(vars(module)))
        for name, module in model.named_modules()
    ]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_equal_with_and_without(name):
    model, inputs, theirs = made(name)
    row = compare.measure(name, model, seeds=0)
    assert row.is_equal, row
    before = tree(model)  # after calls, as upstream's modules remember some
    with patched(model):
        right = logits(model, inputs)
        change_positions(model, lambda positions: positions * 2)
        assert name == "ESM" or off(model, inputs, right) > 10 * LOGITS  # so that the comparison can fail
    assert tree(model) == before
    assert torch.equal(logits(model, inputs), theirs)


def change_positions(model, change):
    for module in model.modules():
        if isinstance(module, Rotary):
            module._positions = lambda x, positions, own=module._positions: change(own(x, positions))
        elif rewrite.holds_table(module):
            type(module)._rows = property(lambda self: rewrite._row_digits(self)[::2])


@for_each("name", ["Llama", "Gemma3", "Cohere", "DeepseekV3"])
def test_rows_matter_in_a_family(name):
    """So do tables of the first row for all rows."""
    model = patch(build(FAMILIES[name]))
    right = compare.all_logits(model, FAMILIES[name])
    change_positions(model, lambda positions: positions[..., :1, :])
    assert compare.difference(compare.all_logits(model, FAMILIES[name]), right) > 10 * LOGITS


FAR = {"long": 0.97, "far": 0.6}
# Qwen2.5-VL counts positions itself; the complex tables of Llama 4 lose their imaginary part upstream.
BOUNDS = [("Llama", FAR), ("Cohere", FAR), ("Qwen2_5_VL", {"long": 0.97}), ("Llama4, tower", {"short": 0.3})]


@pytest.mark.filterwarnings("ignore:Casting complex values to real:UserWarning")
@pytest.mark.parametrize("name, bounds", BOUNDS)
def test_in_bfloat16_models_are_closer_to_float64(name, bounds):
    errors = compare.in_bfloat16(FAMILIES[name], 2)
    for positions, bound in bounds.items():
        theirs, ours = errors[positions].values()
        assert ours < bound * theirs


@for_each("groups, pointers", [((2, 3), 2), ((1, 0), 0), ((0, 0), 2)])
def test_memories_of_videos(groups, pointers):
    """EdgeTAM: keys in groups, of which the last tokens turn by tables of their own, and pointers behind them."""
    sizes = {"hidden_size": 64, "mlp_hidden_size": 64, "rope_feat_sizes": [4, 4], "rope_k_sizes": [2, 2]}
    sizes = {f"memory_attention_{name}": size for name, size in sizes.items()}
    config = transformers.EdgeTamVideoConfig(**sizes, attn_implementation="eager")
    torch.manual_seed(0)
    model = modeling_edgetam_video.EdgeTamVideoMemoryAttention(config).eval()
    frames, others = groups
    tokens, wide = frames * (others + 4) + pointers, model.layers[0].cross_attn_image.k_proj.in_features
    memory, places = torch.randn(2, tokens, 2, wide)
    given = torch.randn(16, 2, 64), memory, None, places, pointers, max(frames, 1)
    with torch.no_grad():
        theirs = model(*given)
        assert float((patch(model)(*given) - theirs).abs().max()) <= LOGITS


@for_each("name", ["DINOv3", "Sapiens2"])
def test_training_moves_patches_as_upstream_does(name):
    """By the same random numbers, in the same order."""

    def three(model):
        torch.manual_seed(0)
        return torch.stack([logits(model.train(), prompt(FAMILIES[name])) for _ in range(3)])

    model = build(replace(FAMILIES[name], changes={**FAMILIES[name].changes, **MOVES}))
    theirs = three(model)
    ours = three(patch(model))
    assert float((ours - theirs).abs().max()) <= LOGITS
    assert float((ours[1:] - ours[:-1]).abs().max()) > 100 * LOGITS


@for_each("of_layers", ["sliding_attention", "full_attention"])
@for_each("name", ["Gemma3", "Olmo3"])
def test_a_model_of_one_type_of_layers(name, of_layers):
    """Its rotary module has frequencies of that type alone, though its config has a block of each."""
    changes = {**FAMILIES[name].changes, "layer_types": 2 * [of_layers]}
    assert_agrees(build(Family(FAMILIES[name].model, changes)), prompt(FAMILIES[name]))


def test_a_rotary_module_makes_exact_tables_without_state():
    model = patch(llama().to(torch.bfloat16))
    rotary = model.model.rotary_emb
    positions = torch.tensor([[0, 7, 2**24 + 1]])
    cos, sin = rotary(torch.zeros(1, dtype=torch.bfloat16), positions)
    angles = positions[..., None].double() * 10_000.0 ** (-torch.arange(8, dtype=torch.float64) / 8)
    angles = torch.cat((angles, angles), -1)
    assert cos.dtype == sin.dtype == torch.float32 and cos.shape == (1, 3, 16)
    # 2e-7 is the bound of every table of the library, see README.md.
    assert max(float((cos - angles.cos()).abs().max()), float((sin - angles.sin()).abs().max())) <= 2e-7
    assert not rotary.state_dict() and not list(rotary.buffers()) and not list(rotary.parameters())


def test_other_models_and_transformers_itself_are_not_touched():
    module, attention = dict(vars(modeling_llama)), dict(vars(modeling_llama.LlamaAttention))
    other, model = llama(), llama()
    before = tree(other)
    patch(model)
    assert dict(vars(modeling_llama)) == module and dict(vars(modeling_llama.LlamaAttention)) == attention
    assert tree(other) == before
    attentions = [layer.self_attn for layer in model.model.layers]
    assert isinstance(attentions[0], modeling_llama.LlamaAttention) and type(attentions[0]) is type(attentions[1])
    assert type(attentions[0]).__base__ is modeling_llama.LlamaAttention


def test_unpatch_restores_objects_that_moved_along():
    before, rotary = tree(model := llama()), model.model.rotary_emb
    assert tree(unpatch(patch(model).double().train())) == before
    assert rotary.training and rotary.inv_freq.dtype == torch.float64
    ours = patch(model.eval()).model.rotary_emb
    assert ours.train() is ours and rotary.training and not ours.train(False).training and not rotary.training


@pytest.mark.parametrize("copied", [copy.copy, lambda module: module._replicate_for_data_parallel()])
def test_a_shallow_copy_uses_its_own_weights(copied):
    attention = patch(llama()).model.layers[0].self_attn
    assert (other := copied(attention)).forward.__self__ is other


@for_each("name", ["GPTNeoX", "Llama", "Cohere", "DeepseekV2", "Qwen2VL", "Llama4"])
def test_code_of_transformers_reads_our_tables(name):
    """A layer that joins later, or whose patch was taken out alone, finds them as upstream's."""
    model, inputs, theirs = made(name)
    patch(model)
    for module in list(model.modules()):
        if isinstance(type(module), PatchedType) and not isinstance(module, Rotary):
            unpatch(module)
    assert any(isinstance(module, Rotary) for module in model.modules())
    assert off(model, inputs, theirs) <= LOGITS
    unpatch(model)
    assert torch.equal(logits(model, inputs), theirs)


def test_layers_share_a_module_that_several_parents_hold():
    model = llama()
    model.model.layers[0].shared = model.model.rotary_emb
    patch(model)
    assert model.model.layers[0].shared is model.model.rotary_emb and isinstance(model.model.rotary_emb, Rotary)
    unpatch(model)
    assert model.model.layers[0].shared is model.model.rotary_emb


def test_patched_takes_it_out_after_an_error_unless_it_is_out():
    model = llama()
    before = tree(model)
    for action in (list, lambda: unpatch(model)):
        with pytest.raises(KeyError), patched(model):
            action()
            raise KeyError
        assert tree(model) == before


def wrapped_by_attribute(attention, calls, name="_original_forward"):
    setattr(attention, name, attention.forward)

    def forward(self, *args, **kwargs):
        calls.append(self)
        return getattr(self, name)(*args, **kwargs)

    attention.forward = types.MethodType(forward, attention)


def wrapped_by_closure(attention, calls):
    method = attention.forward

    @functools.wraps(method)
    def forward(*args, **kwargs):
        calls.append(attention)
        return method(*args, **kwargs)

    attention.forward = forward


@pytest.mark.parametrize("wrap", [wrapped_by_attribute, wrapped_by_closure])
def test_a_wrapper_around_our_forward_is_named_and_stays(wrap):
    model, calls = patch(llama()), []
    attention = model.model.layers[1].self_attn
    wrap(attention, calls)
    before = tree(model)
    with pytest.raises(ValueError, match=r"^unpatch: .*\.LlamaAttention: its forward is not the forward of its class"):
        unpatch(model)
    logits(model, prompt(FAMILIES["Llama"]))
    assert tree(model) == before and calls == [attention]
    del attention.forward
    unpatch(model)


def test_apply_functions_that_are_modules(monkeypatch):
    """As the package `kernels` makes them: of a function of another name, whose signature its forward bears."""
    function = modeling_llama.apply_rotary_pos_emb

    class Func(torch.nn.Module):
        def forward(self, *args, **kwargs):
            return function(*args, **kwargs)

    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    own = inspect.signature(function)
    Func.forward.__signature__ = own.replace(parameters=[first, *own.parameters.values()])
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", Func())
    assert_agrees(model := llama(), prompt(FAMILIES["Llama"]))
    assert type(model.model.layers[0].self_attn).forward.__globals__["apply_rotary_pos_emb"] is not function


@for_each("dtype", [torch.bool, torch.bfloat16, torch.float16, torch.uint8, torch.float32])
def test_positions_of_every_type(dtype):
    more = {"position_ids": torch.arange(9).expand(2, -1).to(dtype), "attention_mask": torch.ones(2, 9)}
    assert_agrees(llama(), prompt(FAMILIES["Llama"]), **more)


def test_gpt_j_beside_others_and_in_parts():
    both = torch.nn.ModuleDict({"llama": llama(), "gptj": build(FAMILIES["GPTJ"])})
    theirs = [logits(model, prompt(FAMILIES["Llama"])) for model in both.values()]
    patch(both)
    for model, right in zip(both.values(), theirs):
        assert off(model, prompt(FAMILIES["Llama"]), right) <= LOGITS
    assert patch(build(FAMILIES["CodeGen"]).transformer.h[0].attn)._rows.shape[-1] == 2


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method:DeprecationWarning")
@pytest.mark.parametrize("name", ["Llama", "Phi3, LongRoPE long", "DeepseekV2", "GPTJ"])
def test_compiles_in_one_graph(name):
    dense = {"first_k_dense_replace": 2}  # the experts of transformers break the graph
    family = FAMILIES[name]
    if "Deepseek" in family.model:
        family = replace(family, changes={**family.changes, **dense})
    torch._dynamo.reset()
    model, inputs = patch(build(family)), prompt(family)
    compiled = torch.compile(model, fullgraph=True, backend="inductor" if name == "Llama" else "aot_eager")
    assert off(compiled, inputs, logits(model, inputs)) <= LOGITS


def test_threads_share_a_model():
    model = patch(build(FAMILIES["GPTJ"]))
    every = [prompt(FAMILIES["GPTJ"], seed) for seed in range(8)]
    right = [logits(model, inputs) for inputs in every]
    with ThreadPoolExecutor(8) as threads:
        assert all(map(torch.equal, threads.map(lambda inputs: logits(model, inputs), 5 * every), 5 * right))


@for_each("name", ["Phi3, LongRoPE long", "Llama, dynamic"])
def test_rules_that_depend_on_the_length_remember_no_call(name):
    model = patch(build(FAMILIES[name]))
    for count in (9, 15, 16, 17, 50, 40, 24, 9):
        inputs = {"input_ids": torch.arange(count)[None] % 60}
        assert off(model, inputs, logits(build(FAMILIES[name]), inputs)) <= LOGITS


@for_each("name", ["text", "vision"])
def test_a_part_of_a_model(name):
    model, inputs, theirs = made("Qwen2VL")
    patch(model.model.language_model if name == "text" else model.model.visual)
    assert sum(isinstance(module, Rotary) for module in model.modules()) == 1
    assert off(model, inputs, theirs) <= LOGITS
    with pytest.raises(ValueError, match="not be patched already"):
        patch(model)


def test_hooks_of_accelerate_stay():
    """As accelerate replaces `forward`: an object's own function, which calls `_old_forward`."""
    model, inputs, right = made("Llama")
    calls, attention = [], model.model.layers[0].self_attn
    wrapped_by_attribute(attention, calls, "_old_forward")
    before, hooked = tree(model), attention.forward.__func__
    with patched(model):
        assert off(model, inputs, right) <= LOGITS
        assert attention.forward.__func__ is hooked
    assert calls == [attention] and tree(model) == before
    assert torch.equal(logits(model, inputs), right)


def test_what_hooks_of_accelerate_leave_behind():
    """Its removal leaves `forward` on each object: the method of the class, also of ours."""
    model, inputs, right = made("Llama")
    attention = model.model.layers[0].self_attn
    for _ in range(2):
        for module in model.modules():
            module.forward = module.forward
        assert off(patch(model), inputs, right) <= LOGITS
        attention.forward = attention.forward
        assert torch.equal(logits(unpatch(model), inputs), right)
        assert attention.forward.__func__ is type(attention).forward


# What is refused, and leaves the model as it was.


class OtherRotaryEmbedding(torch.nn.Module):
    """A rotary embedding that nobody knows."""

    def __init__(self, config):
        super().__init__()
        self.config, self.inv_freq = config, torch.nn.Buffer(torch.ones(8), persistent=False)

    def forward(self, hidden_states, offset):
        return hidden_states


class Elsewhere(torch.nn.Module):
    def forward(self, q, k, cos, sin):
        return modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)


class Mine(modeling_llama.LlamaAttention):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


class LlamaRotaryEmbedding(modeling_llama.LlamaRotaryEmbedding):
    def forward(self, x, position_ids):
        return super().forward(x, position_ids)


def sets(path, value):
    """Set an attribute in a model; to a module of its config, where a class of modules is given."""

    def change(model):
        owner, _, name = path.rpartition(".")
        made = value(model.config) if isinstance(value, type) and name != "__class__" else value
        setattr(model.get_submodule(owner), name, made)

    return change


def with_a_rotary_forward(model):
    rotary = model.model.rotary_emb
    rotary.forward = types.MethodType(lambda self, x, position_ids: type(self).forward(self, x, position_ids), rotary)


def with_a_forward_under_a_hook(model):
    attention = model.model.layers[1].self_attn
    attention._old_forward = types.MethodType(lambda self, *args, **kwargs: None, attention)
    attention.forward = types.MethodType(lambda self, *args: self._old_forward(*args), attention)


def frequencies(model):
    return model.model.rotary_emb.inv_freq


# What is done to a model of Llama, and what the message says of it.
ROTARY, ATTENTION, SCALE = "model.rotary_emb", "model.layers.1.self_attn", "model.rotary_emb.attention_scaling"
NOT_OF_CONFIG = "llama.modeling_llama.LlamaRotaryEmbedding: its inv_freq is not that of its config"
NOT_OF_CLASS = "{}: its forward is not the forward of its class"
OTHER_TABLES = "LlamaRotaryEmbedding: its tables differ from those of its config by "
CALLS_APPLY = "Elsewhere: its forward, which calls apply_rotary_pos_emb, is not that of transformers"
BAD = [
    (sets(ROTARY, OtherRotaryEmbedding), r"OtherRotaryEmbedding: its forward takes \(hidden_states, offset\)"),
    (lambda model: frequencies(model).mul_(1.001), NOT_OF_CONFIG),
    (lambda model: frequencies(model)[-1].mul_(0.3), NOT_OF_CONFIG),
    (lambda model: [frequencies(model).mul_(0.25), model.to(torch.bfloat16)], NOT_OF_CONFIG),
    (lambda model: model.to(torch.bfloat16).config.rope_parameters.update(rope_theta=100.0), NOT_OF_CONFIG),
    (sets(SCALE, 1.2), rf"{OTHER_TABLES}0\.2"),
    (sets(SCALE, float("nan")), f"{OTHER_TABLES}nan"),
    (sets(ATTENTION, Elsewhere()), CALLS_APPLY),
    (with_a_rotary_forward, NOT_OF_CLASS.format("LlamaRotaryEmbedding")),
    (sets(ROTARY, LlamaRotaryEmbedding), "LlamaRotaryEmbedding: its forward is not that of transformers"),
    (lambda model: delattr(model.model.rotary_emb, "config"), "LlamaRotaryEmbedding: it has no config"),
    (sets(f"{ROTARY}.scale", torch.nn.Parameter(torch.ones(1))), "LlamaRotaryEmbedding: it holds parameters"),
    (lambda model: model.model.rotary_emb.register_full_backward_hook(print), "LlamaRotaryEmbedding: it has hooks"),
    (lambda model: model.model.rotary_emb.register_forward_hook(print), "LlamaRotaryEmbedding: it has hooks"),
    (with_a_forward_under_a_hook, NOT_OF_CLASS.format("LlamaAttention")),
    (sets(f"{ATTENTION}.forward", print), NOT_OF_CLASS.format("LlamaAttention")),
    (sets(f"{ATTENTION}.__class__", Mine), "Mine: it overrides the forward of LlamaAttention in transformers"),
    (lambda model: model.to("meta"), "tensors in memory; got meta or fake tensors"),
    (lambda model: setattr(model.config, "quantization_config", {"quant_method": "x"}), "must not be quantised"),
    (sets("model.layers", torch.nn.ModuleList()), "LlamaRotaryEmbedding, whose tables no method of the model applies"),
]


def after(change, name="Llama"):
    def make():
        model = build(FAMILIES[name])
        change(model)
        return model

    return make


def with_another_row(model):
    model.transformer.h[1].attn.embed_positions[700] += 0.01


class OtherAttention(modeling_gptj.GPTJAttention):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


def of_fake_tensors():
    with FakeTensorMode():
        return transformers.LlamaModel(llama().config)


def of_an_unknown_family():
    class Config(transformers.LlamaConfig):
        model_type = "mine"

    return transformers.LlamaForCausalLM(Config(**{**TINY, "eos_token_id": None}))


def vjepa2():
    sizes = {**HEADS, "num_hidden_layers": 1, "pred_num_hidden_layers": 1}
    return transformers.VJEPA2Model(transformers.VJEPA2Config(**sizes | {"hidden_size": 48}))


def without_rotation():
    """Its model has a rotary module all the same."""
    return transformers.FalconModel(transformers.FalconConfig(**HEADS, num_hidden_layers=1, alibi=True))


OTHER_CODE = sets("transformer.h.0.attn.__class__", OtherAttention)
OTHER_MODELS = [
    (after(with_another_row, "GPTJ"), "GPTJAttention: its table does not follow from head_dim and rotary_dim"),
    (after(OTHER_CODE, "GPTJ"), "OtherAttention: its forward is not that of transformers"),
    (of_fake_tensors, "got meta or fake tensors"),
    (lambda: torch.nn.parallel.DistributedDataParallel(llama()), "before DistributedDataParallel wraps it"),
    (of_an_unknown_family, r"LlamaRotaryEmbedding: .*model_type must be one of .*; got 'mine'"),
    (vjepa2, f"VJEPA2RopeAttention: {REFUSED['VJEPA2RopeAttention']}"),
    (without_rotation, "FalconRotaryEmbedding: the config rotates no layer"),
    (lambda: torch.nn.Linear(2, 2), "got Linear without one"),
    (lambda: llama().model.rotary_emb, "must contain the rotary module; got the rotary module"),
]


@for_each("make, message", [*((after(change), message) for change, message in BAD), *OTHER_MODELS])
def test_what_cannot_be_patched_is_refused_and_stays(make, message, one_process):
    before = tree(model := make())
    with pytest.raises(ValueError, match=rf"^patch: .*{message}"):
        patch(model)
    assert tree(model) == before


BITS = [(1 + error * 2.0**-20, abs(error) < 1.0) for error in (0.9, -0.9, 1.1, -1.1)]


@for_each("name, factor, allowed", [*(("Llama", *row) for row in BITS), *(("Llama4, tower", *row) for row in BITS)])
def test_frequencies_of_another_device_may_differ_by_their_last_bits(name, factor, allowed):
    """Those of the tower are complex. One number alone differs."""
    model = build(FAMILIES[name])
    for module in filter(is_rotary, model.modules()):
        for buffer in module.buffers():
            buffer[..., -1] *= factor
    with nullcontext() if allowed else pytest.raises(ValueError, match="is not that of its config"):
        patch(model)


def compiled(model):
    return torch.compile(model, backend="eager")


def sharded(model):
    mesh = init_device_mesh("cpu", (1,))
    for part in (*model.model.layers, model):
        fully_shard(part, mesh=mesh)
    return model


def with_checkpoints(model):
    model.train().gradient_checkpointing_enable()
    return model


def adapted(model):
    """As LoRA does."""
    for layer in model.model.layers:
        layer.self_attn.q_proj = torch.nn.Sequential(layer.self_attn.q_proj)
    return model


WRAPPERS = [(wrap, is_first) for wrap in (compiled, sharded, with_checkpoints, adapted) for is_first in (False, True)]
WRAPPERS += [(torch.nn.parallel.DistributedDataParallel, False)]


@pytest.mark.parametrize("wrap, is_first", WRAPPERS)
def test_wrappers_before_and_after(wrap, is_first, one_process):
    """What trains and serves models wraps them, or their layers."""
    model, inputs, theirs = made("Llama")
    their_gradients = compare.gradients(model, inputs)
    wrapped = patch(wrap(model)) if is_first else wrap(patch(model))
    assert off(wrapped, inputs, theirs) <= LOGITS
    ours = [g.full_tensor() if wrap is sharded else g for g in compare.gradients(wrapped, inputs).values()]
    by_name = dict(zip(their_gradients, ours, strict=True))  # which wrappers change
    assert compare.gradient_difference(by_name, their_gradients) <= GRADIENTS
    assert not any(isinstance(type(module), PatchedType) for module in unpatch(wrapped).modules())


def test_a_module_of_another_class_since_patch_is_named(one_process):
    model = patch(llama())
    fully_shard(model.model.layers[0].self_attn, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(ValueError, match=r"^unpatch: every module must have the class that patch gave it; got .*Atten"):
        unpatch(model)


def test_only_modules_are_patched():
    for function in (patch, unpatch):
        with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module; got dict"):
            function({})


DEFINITION = re.compile(r"^def .*?:$", re.MULTILINE | re.DOTALL)  # of a function, without its body
SOURCES = [file.read_text() for file in Path(transformers.__file__).parent.glob("models/*/modeling_*.py")]


def apply_signatures():
    """The signature of each apply function in the source files of transformers."""
    for node in (ast.parse(f"{each} pass").body[0] for text in SOURCES for each in DEFINITION.findall(text)):
        if isinstance(node, ast.FunctionDef) and APPLY_NAME.match(node.name):
            for argument in filter(None, (*node.args.args, node.args.kwarg)):
                argument.annotation = None
            yield f"({ast.unparse(node.args)})"


# The signatures of classes that `REFUSED` names.
REFUSED_SIGNATURES = {"(q, k, v, cos, sin, position_ids, unsqueeze_dim=1)", "(hidden_states, cos, sin)"}


def test_the_known_signatures_are_those_of_transformers():
    assert set(apply_signatures()) == APPLY_SIGNATURES.keys() | REFUSED_SIGNATURES


APPLY = modeling_llama.apply_rotary_pos_emb


def not_a_number(q, k, cos, sin, unsqueeze_dim=1):
    q, k = APPLY(q, k, cos, sin, unsqueeze_dim)
    return q, k * math.nan


def raising(error):
    return lambda q, k, cos, sin, unsqueeze_dim=1: Mock(side_effect=error)()


DIFFERS = "Attention: apply_rotary_pos_emb differs from that of rope_xp by"
UNKNOWN = r"Attention: the signature apply_rotary_pos_emb\(q, k, cos, sin, unsqueeze_dim=2\) is not known"
OTHER_FUNCTIONS = [
    (modeling_llama, lambda q, k, cos, sin, unsqueeze_dim=1: (q, k), DIFFERS),
    (modeling_llama, not_a_number, DIFFERS),
    (modeling_llama, lambda q, k, cos, sin, unsqueeze_dim=1: (q[..., :1], k), f"{DIFFERS} inf"),
    (modeling_llama, lambda q, k, cos, sin, unsqueeze_dim=1: (q, torch.cat((k, k))), f"{DIFFERS} inf"),
    (modeling_llama, lambda q, k, cos, sin, unsqueeze_dim=1: q, f"{DIFFERS} inf"),
    (modeling_llama, lambda q, k, cos, sin, unsqueeze_dim=1: (), f"{DIFFERS} inf"),
    *((modeling_llama, raising(error), f"{DIFFERS} inf") for error in (RuntimeError, IndexError, ValueError)),
    (modeling_llama, raising(KeyError("a name")), "Attention: 'a name'"),
    (modeling_llama, lambda q, k, cos, sin, unsqueeze_dim=2: (q, k), UNKNOWN),
    (modeling_gptj, lambda tensor, sin, cos: tensor, DIFFERS),
]


@for_each("module, apply_rotary_pos_emb, reason", OTHER_FUNCTIONS)
def test_another_apply_function_is_refused(monkeypatch, module, apply_rotary_pos_emb, reason):
    """As if another version of transformers computed something else."""
    before = tree(model := build(FAMILIES["Llama" if module is modeling_llama else "GPTJ"]))
    monkeypatch.setattr(module, "apply_rotary_pos_emb", apply_rotary_pos_emb)
    with pytest.raises(ValueError, match=reason):
        patch(model)
    assert tree(model) == before


WITHOUT_A_FAMILY = [
    (modeling_qwen3_omni_moe.Qwen3OmniMoeRotaryEmbedding, modeling_qwen3_omni_moe.Qwen3OmniMoeCode2WavConfig),
    (modeling_evolla.EvollaSaProtRotaryEmbedding, modeling_evolla.SaProtConfig),
]


@for_each("cls, config", WITHOUT_A_FAMILY)
def test_a_module_whose_config_has_no_family_of_its_own(cls, config):
    (rope,) = rotary_of(cls(config(**HEADS)))._ropes.values()
    assert rope == RotaryEmbedding(head_dim=16, layout="half", base=10_000.0)


@for_each("without_compat, said", [(1e4, None), (-1.0, rf"{OTHER_TABLES}\d")])
def test_a_bug_that_the_installed_transformers_has_fixed(without_compat, said, monkeypatch):
    """As if the config said these bases. If tables differ with and without `compat`, the error is that with it."""
    bases = {"transformers": 100.0, None: without_compat}

    def changed(config, **options):
        return from_config(config, **options).replace(base=bases[options["compat"]])

    monkeypatch.setattr(rotary, "from_config", changed)
    with nullcontext() if said is None else pytest.raises(ValueError, match=said):
        assert_agrees(llama(), prompt(FAMILIES["Llama"]))


def test_an_older_transformers_is_an_import_error():
    said = bad_input.import_error("rope_xp.huggingface", "import transformers; transformers.__version__ = '4.57.1'")
    assert said.strip() == "rope_xp.huggingface: transformers must be 5 or newer; got 4.57.1"


def test_which_apply_functions_a_file_calls():
    assert patchable.applied(modeling_edgetam_video) == {
        "apply_rotary_pos_emb_2d_cross_attn",
        "apply_rotary_pos_emb_2d_self_attn",
    }


ADDED_IN_5_23 = {"MistralLarge4TextRotaryEmbedding"}


def test_every_refusal_names_a_class_of_transformers():
    text = "".join(SOURCES)
    major, minor = map(int, transformers.__version__.split(".")[:2])
    newer = ADDED_IN_5_23 if (major, minor) < (5, 23) else set()
    assert {name for name in REFUSED if f"class {name}(" not in text} == newer


def test_the_table_is_written(tmp_path):
    row = compare.measure("Llama", llama(), seeds=1)
    arguments = types.SimpleNamespace(out=tmp_path / "families.md", quick=True)
    families.write(arguments, [row], {"A": "", "B": "why"}, {"x": timed(1, list, list)})
    text = (tmp_path / "families.md").read_text()
    assert "1 of 2 rotary classes can be patched" in text.replace("\n", " ") and "| Llama |" in text
