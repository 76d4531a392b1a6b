"""rope_xp inside models of transformers: families as benchmarks/families.py measures them, and what may go wrong."""

# pyright: reportMissingImports=false

import ast
import copy
import functools
import inspect
import io
import json
import pickle
import sys
import threading
import types
import warnings
from dataclasses import replace
from pathlib import Path

import bad_input
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # those of importing torch's and transformers' own
    import torch
    import transformers
    from torch._subclasses import FakeTensorMode
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers.models.edgetam_video import modeling_edgetam_video

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import families
from tiny_models import compare, patchable
from tiny_models.compare import GRADIENTS, LOGITS, logits
from tiny_models.models import FAMILIES, TINY, Family, build, prompt
from tiny_models.timing import timed

from rope_xp import RotaryEmbedding, from_config
from rope_xp._core.kernels.pair_rotation import Rotation
from rope_xp.huggingface import _gptj, _rotary, patch, patched, unpatch
from rope_xp.huggingface._apply import APPLY_SIGNATURES, ARRAY_NAMES, ROTATION_TOLERANCE, apply_function
from rope_xp.huggingface._compare_tables import REFUSED
from rope_xp.huggingface._guard import PatchedType
from rope_xp.huggingface._rewrite import APPLY_NAME
from rope_xp.huggingface._rotary import Rotary, TableFormat

torch.set_num_threads(1)
MOVES = {"pos_embed_shift": 0.1, "pos_embed_jitter": 1.2, "pos_embed_rescale": 2.0}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:transformers.*", "ignore::FutureWarning:transformers.*")


def llama(**changes):
    return build(Family("LlamaForCausalLM", changes))


def off(model, inputs, right, **more):
    """How far logits of a model are from others."""
    return float((logits(model, inputs, **more) - right).abs().max())


def tree(model):
    """Every object of a model, in order, and what each has of its own."""
    return [
        (name, id(module), type(module), list(module._modules), sorted(vars(module)))
        for name, module in model.named_modules()
    ]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_equal_with_and_without(name):
    model, inputs = build(FAMILIES[name]), prompt(FAMILIES[name])
    theirs, row = logits(model, inputs), compare.measure(name, model, seeds=0)
    assert row.is_equal, row
    before = tree(model)  # after calls, as upstream's modules remember some
    with patched(model):
        right = logits(model, inputs)
        double_positions(model)
        assert name == "ESM" or off(model, inputs, right) > 10 * LOGITS  # so that the comparison can fail
    assert tree(model) == before
    assert torch.equal(logits(model, inputs), theirs)


def double_positions(model):
    for module in model.modules():
        if isinstance(module, Rotary):
            own = module._tables
            module._tables = lambda x, positions, label, own=own: own(x, positions * 2, label)
        elif _gptj.holds_table(module):
            type(module)._rows = property(lambda self: _gptj._row_digits(self)[::2])


@pytest.mark.parametrize("name", ["Llama", "Gemma3", "Cohere", "DeepseekV3"])
def test_rows_matter_in_a_family(name):
    """So do tables of the first row for all rows."""
    model = patch(build(FAMILIES[name]))
    right = compare.all_logits(model, FAMILIES[name])
    for module in model.modules():
        if isinstance(module, Rotary):
            own = module._positions
            module._positions = lambda x, positions, own=own: own(x, positions)[..., :1, :]
    assert compare.difference(compare.all_logits(model, FAMILIES[name]), right) > 10 * LOGITS


@pytest.mark.parametrize("name", ["Llama", "Cohere", "Qwen2_5_VL"])
def test_in_bfloat16_models_are_closer_to_float64(name):
    errors = compare.in_bfloat16(FAMILIES[name], 2)
    bounds = {"long": 0.97} if name == "Qwen2_5_VL" else {"long": 0.97, "far": 0.6}  # it counts positions itself
    for positions, bound in bounds.items():
        theirs, ours = errors[positions].values()
        assert ours < bound * theirs


@pytest.mark.parametrize("groups, pointers", [((2, 3), 2), ((1, 0), 0), ((0, 0), 2)])
def test_memories_of_videos(groups, pointers):
    """EdgeTAM: keys in groups, of which the last tokens turn by tables of their own, and pointers behind them."""
    config = transformers.EdgeTamVideoConfig(
        memory_attention_hidden_size=64,
        memory_attention_mlp_hidden_size=64,
        memory_attention_rope_feat_sizes=[4, 4],
        memory_attention_rope_k_sizes=[2, 2],
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    model = modeling_edgetam_video.EdgeTamVideoMemoryAttention(config).eval()
    frames, others = groups
    tokens, wide = frames * (others + 4) + pointers, model.layers[0].cross_attn_image.k_proj.in_features
    memory, places = torch.randn(2, tokens, 2, wide)
    given = torch.randn(16, 2, 64), memory, None, places, pointers, max(frames, 1)
    with torch.no_grad():
        theirs = model(*given)
        assert float((patch(model)(*given) - theirs).abs().max()) <= LOGITS


@pytest.mark.parametrize("name", ["DINOv3", "Sapiens2"])
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


@pytest.mark.filterwarnings("ignore:Casting complex values to real:UserWarning")
def test_a_cast_to_bfloat16_leaves_complex_tables_whole():
    """Upstream's lose their imaginary part."""
    theirs, ours = compare.in_bfloat16(FAMILIES["Llama4, tower"], 1)["short"].values()
    assert ours < 0.3 * theirs


@pytest.mark.parametrize("of_layers", ["sliding_attention", "full_attention"])
@pytest.mark.parametrize("name", ["Gemma3", "Olmo3"])
def test_a_model_of_one_type_of_layers(name, of_layers):
    """Its rotary module has frequencies of that type alone, though its config has a block of each."""
    changes = {**FAMILIES[name].changes, "layer_types": 2 * [of_layers]}
    model = build(Family(FAMILIES[name].model, changes))
    theirs = logits(model, prompt(FAMILIES[name]))
    assert off(patch(model), prompt(FAMILIES[name]), theirs) <= LOGITS


@pytest.mark.parametrize("name", ["Llama", "GPTJ", "Phi3, LongRoPE long"])
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
    angles = torch.cat((angles, angles), -1)
    assert cos.dtype == sin.dtype == torch.float32 and cos.shape == (1, 3, 16)
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
    attentions = [layer.self_attn for layer in model.model.layers]
    assert isinstance(attentions[0], modeling_llama.LlamaAttention) and type(attentions[0]) is type(attentions[1])
    assert type(attentions[0]).__base__ is modeling_llama.LlamaAttention


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
    right, other = logits(model, inputs), copy.deepcopy(model)
    with torch.no_grad():
        other.model.layers[0].self_attn.q_proj.weight.zero_()
    assert torch.equal(logits(model, inputs), right) and not torch.equal(logits(other, inputs), right)
    unpatch(other)
    assert type(other.model.rotary_emb).__name__ == "LlamaRotaryEmbedding"
    assert isinstance(model.model.rotary_emb, Rotary)


@pytest.mark.parametrize("copied", [copy.copy, lambda module: module._replicate_for_data_parallel()])
def test_a_shallow_copy_uses_its_own_weights(copied):
    attention = patch(llama()).model.layers[0].self_attn
    assert (other := copied(attention)).forward.__self__ is other


@pytest.mark.parametrize(
    "part", [lambda model: model, lambda model: model.model.layers, lambda model: model.model.rotary_emb]
)
def test_what_is_patched_is_not_pickled(part):
    model = patch(llama())
    for write in (pickle.dumps, lambda it: torch.save(it, io.BytesIO())):
        with pytest.raises(
            TypeError, match=r"^pickle: a model must not be patched; got a patched .*: unpatch it first"
        ):
            write(part(model))
    assert pickle.loads(pickle.dumps(unpatch(model))).model.rotary_emb is not None


@pytest.mark.parametrize("name", ["GPTNeoX", "Llama", "Cohere", "DeepseekV2", "Qwen2VL", "Llama4"])
def test_code_of_transformers_reads_our_tables(name):
    """A layer that joins later, or whose patch was taken out alone, finds them as upstream's."""
    family = FAMILIES[name]
    model, inputs = build(family), prompt(family)
    theirs = logits(model, inputs)
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


@pytest.mark.parametrize("cast", ["bfloat16 float", "half double", "half bfloat16", "double"])
@pytest.mark.parametrize("name", ["GPTJ", "Phi3, LongRoPE long"])
def test_casts_before_and_after(name, cast):
    """Of models that the search of test_states.py, which casts at any time, does not have."""
    first, second = build(FAMILIES[name]), patch(build(FAMILIES[name]))
    for step in cast.split():
        first, second = getattr(first, step)(), getattr(second, step)()
    inputs = prompt(FAMILIES[name])
    assert torch.equal(logits(patch(first), inputs), logits(second, inputs))
    assert torch.equal(logits(unpatch(first), inputs), logits(unpatch(second), inputs))


@pytest.mark.parametrize("name", ["Llama", "GPTJ", "DeepseekV2", "Qwen2VL", "Phi3, LongRoPE long"])
def test_the_defaults_of_a_program_do_not_matter(name):
    model, inputs = build(FAMILIES[name]), prompt(FAMILIES[name])
    right = logits(patch(model), inputs)
    unpatch(model)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"), torch.autocast("cpu", torch.bfloat16):
            patch(model)
        assert torch.get_default_dtype() == torch.bfloat16
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(logits(model, inputs), right)


def test_apply_functions_that_are_modules(monkeypatch):
    """As the package `kernels` makes them: of a function of another name, whose signature its forward bears."""
    from transformers.models.llama import modeling_llama

    function = modeling_llama.apply_rotary_pos_emb

    class Func(torch.nn.Module):
        def forward(self, *args, **kwargs):
            return function(*args, **kwargs)

    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    own = inspect.signature(function)
    Func.forward.__signature__ = own.replace(parameters=[first, *own.parameters.values()])
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", Func())
    model, inputs = llama(), prompt(FAMILIES["Llama"])
    theirs = logits(model, inputs)
    patch(model)
    assert type(model.model.layers[0].self_attn).forward.__globals__["apply_rotary_pos_emb"] is not function
    assert off(model, inputs, theirs) <= LOGITS


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float16, torch.uint8, torch.float32])
def test_positions_of_every_type(dtype):
    model, inputs = llama(), prompt(FAMILIES["Llama"])
    more = {"position_ids": torch.arange(9).expand(2, -1).to(dtype), "attention_mask": torch.ones(2, 9)}
    theirs = logits(model, inputs, **more)
    assert off(patch(model), inputs, theirs, **more) <= LOGITS


@pytest.mark.parametrize("name", ["GPTJ", "CodeGen"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rows_are_exact_in_every_dtype(name, dtype):
    attention = next(m for m in patch(build(FAMILIES[name])).modules() if _gptj.holds_table(m))
    rows = torch.tensor([[0, 1, 255, 256, 257, 1023, 2047]])
    high, low = attention._rows[rows].to(dtype).split(1, -1)
    x = torch.rand(1, 7, 3, 8, generator=torch.Generator().manual_seed(0))
    found = type(attention).forward.__globals__["apply_rotary_pos_emb"](x, high, low)
    rope = RotaryEmbedding(head_dim=8, layout="interleaved", base=10_000.0)
    assert torch.equal(found, rope(x, positions=rows, seq_dim=1))


def test_gpt_j_beside_others_and_in_parts():
    both = torch.nn.ModuleDict({"llama": llama(), "gptj": build(FAMILIES["GPTJ"])})
    theirs = [logits(model, prompt(FAMILIES["Llama"])) for model in both.values()]
    patch(both)
    for model, right in zip(both.values(), theirs):
        assert off(model, prompt(FAMILIES["Llama"]), right) <= LOGITS
    assert patch(build(FAMILIES["CodeGen"]).transformer.h[0].attn)._rows.shape[-1] == 2


def test_gradient_checkpointing():
    model, inputs = llama().train(), prompt(FAMILIES["Llama"])
    theirs = compare.gradients(model, inputs)
    patch(model).gradient_checkpointing_enable()
    assert compare.gradient_difference(compare.gradients(model, inputs), theirs) <= GRADIENTS


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
    family = FAMILIES["Phi3, LongRoPE long"]
    model = build(family)
    for count in (15, 16, 17, 40):
        inputs = {"input_ids": torch.arange(count)[None] % 60}
        theirs = logits(model, inputs)
        with patched(model):
            assert off(model, inputs, theirs) <= LOGITS


def test_dynamic_ntk_remembers_nothing():
    model = patch(build(FAMILIES["Llama, dynamic"]))
    short, middle, long = ({"input_ids": torch.arange(count)[None]} for count in (9, 24, 50))
    first = [logits(model, inputs) for inputs in (short, middle)]
    logits(model, long)
    assert all(torch.equal(logits(model, inputs), one) for inputs, one in zip((short, middle), first))


@pytest.mark.parametrize("name", ["text", "vision"])
def test_a_part_of_a_model(name):
    family = FAMILIES["Qwen2VL"]
    model, inputs = build(family), prompt(family)
    theirs = logits(model, inputs)
    patch(model.model.language_model if name == "text" else model.model.visual)
    assert sum(isinstance(module, Rotary) for module in model.modules()) == 1
    assert off(model, inputs, theirs) <= LOGITS
    with pytest.raises(ValueError, match="not be patched already"):
        patch(model)


def test_hooks_of_accelerate_stay():
    """As accelerate replaces `forward`: an object's own function, which calls `_old_forward`."""
    model, inputs = llama(), prompt(FAMILIES["Llama"])
    right, calls, attention = logits(model, inputs), [], model.model.layers[0].self_attn
    wrapped_by_attribute(attention, calls, "_old_forward")
    before, hooked = tree(model), attention.forward.__func__
    with patched(model):
        assert off(model, inputs, right) <= LOGITS
        assert attention.forward.__func__ is hooked
    assert calls == [attention] and tree(model) == before
    assert torch.equal(logits(model, inputs), right)


def test_what_hooks_of_accelerate_leave_behind():
    """Its removal leaves `forward` on each object: the method of the class, also of ours."""
    model, inputs = llama(), prompt(FAMILIES["Llama"])
    right, attention = logits(model, inputs), model.model.layers[0].self_attn
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
        self.config = config
        self.inv_freq = torch.nn.Buffer(torch.ones(8), persistent=False)

    def forward(self, hidden_states, offset):
        return hidden_states


class Elsewhere(torch.nn.Module):
    def forward(self, q, k, cos, sin):
        return transformers.models.llama.modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)


class Mine(transformers.models.llama.modeling_llama.LlamaAttention):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


def with_a_rotary_forward(model):
    rotary = model.model.rotary_emb
    rotary.forward = types.MethodType(lambda self, x, position_ids: type(self).forward(self, x, position_ids), rotary)


def with_a_rotary_subclass(model):
    class LlamaRotaryEmbedding(type(model.model.rotary_emb)):
        def forward(self, x, position_ids):
            return super().forward(x, position_ids)

    model.model.rotary_emb = LlamaRotaryEmbedding(model.config)


def with_a_forward_under_a_hook(model):
    attention = model.model.layers[1].self_attn
    attention._old_forward = types.MethodType(lambda self, *args, **kwargs: None, attention)
    attention.forward = types.MethodType(lambda self, *args: self._old_forward(*args), attention)


def frequencies(model):
    return model.model.rotary_emb.inv_freq


def attention_of(model):
    return model.model.layers[1].self_attn


# What is done to a model, and what the message says of it.
NOT_OF_CONFIG = r"llama.modeling_llama.LlamaRotaryEmbedding: its inv_freq is not that of its config"
NOT_OF_CLASS = "{}: its forward is not the forward of its class"
BAD = [
    (
        lambda model: setattr(model.model, "rotary_emb", OtherRotaryEmbedding(model.config)),
        r"OtherRotaryEmbedding: its forward takes \(hidden_states, offset\)",
    ),
    (lambda model: frequencies(model).mul_(1.001), NOT_OF_CONFIG),
    (lambda model: frequencies(model)[-1].mul_(0.3), NOT_OF_CONFIG),
    (lambda model: [frequencies(model).mul_(0.25), model.to(torch.bfloat16)], NOT_OF_CONFIG),
    (lambda model: model.to(torch.bfloat16).config.rope_parameters.update(rope_theta=100.0), NOT_OF_CONFIG),
    (
        lambda model: setattr(model.model.rotary_emb, "attention_scaling", 1.2),
        r"LlamaRotaryEmbedding: its tables differ from those of its config by 0\.2",
    ),
    (
        lambda model: setattr(model.model.rotary_emb, "attention_scaling", float("nan")),
        r"LlamaRotaryEmbedding: its tables differ from those of its config by nan",
    ),
    (
        lambda model: setattr(model.model.layers[1], "self_attn", Elsewhere()),
        "Elsewhere: its forward, which calls apply_rotary_pos_emb, is not that of transformers",
    ),
    (with_a_rotary_forward, NOT_OF_CLASS.format("LlamaRotaryEmbedding")),
    (with_a_rotary_subclass, "LlamaRotaryEmbedding: its forward is not that of transformers"),
    (lambda model: model.model.rotary_emb.register_full_backward_hook(print), "LlamaRotaryEmbedding: it has hooks"),
    (lambda model: model.model.rotary_emb.register_forward_hook(print), "LlamaRotaryEmbedding: it has hooks"),
    (with_a_forward_under_a_hook, NOT_OF_CLASS.format("LlamaAttention")),
    (lambda model: setattr(attention_of(model), "forward", print), NOT_OF_CLASS.format("LlamaAttention")),
    (
        lambda model: setattr(attention_of(model), "__class__", Mine),
        "Mine: it overrides the forward of LlamaAttention in transformers",
    ),
    (lambda model: model.to("meta"), "tensors in memory; got meta or fake tensors"),
    (
        lambda model: setattr(model.config, "quantization_config", {"quant_method": "bitsandbytes"}),
        "must not be quantised",
    ),
    (
        lambda model: setattr(model.model, "layers", torch.nn.ModuleList()),
        "LlamaRotaryEmbedding, whose tables no method of the model applies",
    ),
]


@pytest.mark.parametrize("change, message", BAD)
def test_what_cannot_be_patched_is_refused_and_stays(change, message):
    model = llama()
    change(model)
    before = tree(model)
    with pytest.raises(ValueError, match=rf"^patch: .*{message}"):
        patch(model)
    assert tree(model) == before


def test_a_wrapper_that_has_counted_the_buffers_is_refused(one_process):
    wrapped = torch.nn.parallel.DistributedDataParallel(llama())
    with pytest.raises(ValueError, match="patched before DistributedDataParallel wraps it"):
        patch(wrapped)
    ours = torch.nn.parallel.DistributedDataParallel(patch(llama()))
    ids = torch.arange(5)[None]
    assert torch.equal(ours(ids).logits, ours.module(ids).logits)


@pytest.mark.parametrize("first", ["patch", "wrap"])
@pytest.mark.parametrize("wrap", ["compile", "shard", "adapt"])
def test_wrappers_before_and_after(first, wrap, one_process):
    """What trains and serves models wraps them, or their layers."""
    model, inputs = llama(), prompt(FAMILIES["Llama"])
    theirs, their_gradients = logits(model, inputs), compare.gradients(model, inputs)
    if first == "patch":
        patch(model)
    wrapped = model
    if wrap == "compile":
        wrapped = torch.compile(model, backend="eager")
    elif wrap == "adapt":  # as LoRA does
        for layer in model.model.layers:
            layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj)
    else:
        mesh = init_device_mesh("cpu", (1,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    if first == "wrap":
        patch(wrapped)
    assert off(wrapped, inputs, theirs) <= LOGITS
    ours = [g.full_tensor() if wrap == "shard" else g for g in compare.gradients(wrapped, inputs).values()]
    by_name = dict(zip(their_gradients, ours, strict=True))  # which wrappers change
    assert compare.gradient_difference(by_name, their_gradients) <= GRADIENTS
    assert not any(isinstance(type(module), PatchedType) for module in unpatch(wrapped).modules())


class Adapted(torch.nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base

    def forward(self, x):
        return self.base(x)


def test_fake_tensors_and_another_table_of_gpt_j_are_refused():
    with FakeTensorMode(), pytest.raises(ValueError, match="got meta or fake tensors"):
        patch(transformers.LlamaModel(llama().config))
    model = build(FAMILIES["GPTJ"])
    model.transformer.h[1].attn.embed_positions[700] += 0.01
    with pytest.raises(ValueError, match="GPTJAttention: its table does not follow from head_dim and rotary_dim"):
        patch(model)


def test_an_unknown_family_is_named():
    class Config(transformers.LlamaConfig):
        model_type = "mine"

    config = Config(**{**TINY, "eos_token_id": None})
    model = transformers.LlamaForCausalLM(config)
    with pytest.raises(ValueError, match=r"LlamaRotaryEmbedding: .*model_type must be one of .*; got 'mine'"):
        patch(model)


def apply_signatures():
    """The signature of each apply function in the source files of transformers."""
    folders = Path(transformers.__file__).parent / "models"
    for file in folders.glob("*/modeling_*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef) and APPLY_NAME.match(node.name):
                for argument in node.args.args:
                    argument.annotation = None
                if node.args.kwarg:
                    node.args.kwarg.annotation = None
                yield f"({ast.unparse(node.args)})"


# The signatures of classes that `REFUSED` names.
REFUSED_SIGNATURES = {"(q, k, v, cos, sin, position_ids, unsqueeze_dim=1)", "(hidden_states, cos, sin)"}


def test_the_known_signatures_are_those_of_transformers():
    assert set(apply_signatures()) == APPLY_SIGNATURES.keys() | REFUSED_SIGNATURES


def _no_rotation(q, k, cos, sin, unsqueeze_dim=1):
    return q * cos.unsqueeze(unsqueeze_dim), k * cos.unsqueeze(unsqueeze_dim)


def _not_a_number(q, k, cos, sin, unsqueeze_dim=1):
    from transformers.models.llama.modeling_llama import rotate_half

    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin * float("nan")


def _of_another_default(q, k, cos, sin, unsqueeze_dim=2):
    from transformers.models.llama.modeling_llama import rotate_half

    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


@pytest.mark.parametrize(
    "apply_rotary_pos_emb, reason",
    [
        (_no_rotation, "apply_rotary_pos_emb differs from that of rope_xp by"),
        (_not_a_number, "apply_rotary_pos_emb differs from that of rope_xp by"),
        (_of_another_default, r"the signature apply_rotary_pos_emb\(q, k, cos, sin, unsqueeze_dim=2\) is not known"),
    ],
)
def test_another_apply_function_is_refused(monkeypatch, apply_rotary_pos_emb, reason):
    """As if another version of transformers computed something else."""
    from transformers.models.llama import modeling_llama

    model = llama()
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", apply_rotary_pos_emb)
    before = tree(model)
    with pytest.raises(ValueError, match=rf"LlamaAttention: {reason}"):
        patch(model)
    assert tree(model) == before


def wrong_base(*modes):
    """`from_config`, which gives another base for these values of `compat`."""

    def changed(config, **options):
        rope = from_config(config, **options)
        return rope.replace(base=100.0) if options["compat"] in modes else rope

    return changed


def test_a_bug_that_the_installed_transformers_has_fixed(monkeypatch):
    """The tables of `compat="transformers"` differ from the module's, and those without `compat` are equal."""
    model, inputs = llama(), prompt(FAMILIES["Llama"])
    theirs = logits(model, inputs)
    monkeypatch.setattr(_rotary, "from_config", wrong_base("transformers"))
    assert float((logits(patch(model), inputs) - theirs).abs().max()) <= LOGITS


def test_tables_that_differ_with_and_without_compat(monkeypatch):
    monkeypatch.setattr(_rotary, "from_config", wrong_base("transformers", None))
    with pytest.raises(ValueError, match=r"LlamaRotaryEmbedding: its tables differ from those of its config by \d"):
        patch(llama())


@pytest.mark.parametrize("signature", APPLY_SIGNATURES)
def test_apply_functions_take_arguments_by_position_and_by_name(signature):
    random = torch.Generator().manual_seed(0)
    table = torch.rand(5, 4, generator=random)
    arguments = {}
    for name, parameter in inspect.signature(APPLY_SIGNATURES[signature]).parameters.items():
        if name in ARRAY_NAMES:
            arguments[name] = torch.rand(2, 3, 5, 8, generator=random)
        elif name.startswith("freqs"):
            arguments[name] = torch.complex(table.cos(), table.sin())
        elif "cos" in name or "sin" in name:
            arguments[name] = table.cos() if "cos" in name else table.sin()
        elif parameter.kind is not parameter.VAR_KEYWORD:
            arguments[name] = {"unsqueeze_dim": 0, "repeat_freqs_k": 1}.get(name, 0)
    table_format = TableFormat("once", "freqs" in signature, Rotation("half", "half"), False, 4)
    apply = apply_function(signature, table_format, None)
    by_position, by_name = apply(*arguments.values()), apply(**arguments)
    expected = [array * 1 for name, array in arguments.items() if name in ARRAY_NAMES]
    for array in expected:
        first, second = array[..., :4].clone(), array[..., 4:].clone()
        array[..., :4] = first * table.cos() - second * table.sin()
        array[..., 4:] = second * table.cos() + first * table.sin()
    for found in (by_position, by_name):
        found = found if len(expected) > 1 else (found,)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=ROTATION_TOLERANCE)


def test_patching_twice_and_unpatching_what_is_not():
    model = patch(llama())
    before = tree(model)
    with pytest.raises(ValueError, match=r"^patch: model must not be patched already"):
        patch(model)
    assert tree(model) == before
    unpatch(model)
    with pytest.raises(ValueError, match=r"^unpatch: model must be patched"):
        unpatch(model)


def test_what_holds_no_rotary_module():
    for function in (patch, unpatch):
        with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module; got dict"):
            function({})
    with pytest.raises(ValueError, match="got Linear without one"):
        patch(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="must contain the rotary module; got the rotary module"):
        patch(llama().model.rotary_emb)


def test_those_that_are_no_rotations_are_refused_by_name():
    config = transformers.VJEPA2Config(
        hidden_size=48, num_attention_heads=2, num_hidden_layers=1, pred_num_hidden_layers=1
    )
    with pytest.raises(ValueError, match=rf"VJEPA2RopeAttention: {REFUSED['VJEPA2RopeAttention']}"):
        patch(transformers.VJEPA2Model(config))


def test_an_older_or_missing_transformers_is_an_import_error():
    said = bad_input.import_error("rope_xp.huggingface", "import transformers; transformers.__version__ = '4.57.1'")
    assert said.strip() == "rope_xp.huggingface: transformers must be 5 or newer; got 4.57.1"
    said = bad_input.import_error("rope_xp.huggingface", "import sys; sys.modules['transformers'] = None")
    assert said.startswith("rope_xp.huggingface: torch and transformers must be installed")


def test_which_apply_functions_a_file_calls():
    assert patchable.applied(modeling_edgetam_video) == {
        "apply_rotary_pos_emb_2d_cross_attn",
        "apply_rotary_pos_emb_2d_self_attn",
    }


ADDED_IN_5_23 = {"MistralLarge4TextRotaryEmbedding"}


def test_every_refusal_names_a_class_of_transformers():
    folders = Path(transformers.__file__).parent / "models"
    text = "".join(file.read_text() for file in folders.glob("*/modeling_*.py"))
    major, minor = map(int, transformers.__version__.split(".")[:2])
    newer = ADDED_IN_5_23 if (major, minor) < (5, 23) else set()
    assert {name for name in REFUSED if f"class {name}(" not in text} == newer


def test_the_table_is_written_and_read(tmp_path):
    row = compare.measure("Llama", llama(), seeds=1)
    arguments = types.SimpleNamespace(out=tmp_path / "families.md", quick=True)
    families.write(arguments, [row], {"A": "", "B": "why"}, {"x": timed(1, list, list)})
    assert "1 of 2 rotary classes can be patched" in (tmp_path / "families.md").read_text().replace("\n", " ")
    assert json.loads((tmp_path / "families.json").read_text())["rows"][0]["family"] == "Llama"
