"""What may happen to a patched model, in any order: edits, casts, empty memory, copies and pickles.

The same model without rope_xp has the same done to it, and says what is right.
"""

# pyright: reportMissingImports=false

import copy
import io
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import product

import pytest
import torch
from cases import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models.compare import LOGITS, logits
from tiny_models.models import FAMILIES, build, prompt
from tiny_transformers import default_dtype, made, off

from rope_xp.huggingface import patch, same_tables, unpatch
from rope_xp.huggingface.guard import PatchedType

# Models, and the front of the names of what their rotary modules hold, one of each rotation.
MODELS = {"Llama": ("",), "Llama, yarn": ("",), "Gemma3": ("sliding_attention_", "full_attention_")}
NO_EDIT = (
    r"^patch: \w+ can only be (read and )?edited while the model is not patched; got the \w+ of "
    r".*(RotaryEmbedding|Attention): unpatch"
)


def rotary_of(model):
    return model.model.rotary_emb


def tensors_of(module):
    return {name: buffer.clone() for name, buffer in module._buffers.items()}


def same(ones, others):
    return ones.keys() == others.keys() and all(
        one.dtype == others[name].dtype and torch.equal(one, others[name]) for name, one in ones.items()
    )


@contextmanager
def dirty_memory():
    """Memory that nobody has written to has numbers that are nobody's."""
    with pytest.MonkeyPatch.context() as change:
        change.setattr(torch, "empty_like", lambda tensor, **options: torch.full_like(tensor, 77, **options))
        yield


def emptied(model, by_meta=True):
    """A model in new memory, with the parameters and buffers that the other had: but what no state dict holds."""
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if by_meta:
        model.to("meta")
    with dirty_memory():
        model.to_empty(device="cpu")
    model.load_state_dict(weights)
    return model


def refused(kind, said, action, *arguments):
    """An action raises the error that the docs promise."""
    with pytest.raises(kind, match=said):
        action(*arguments)


# Edits of what a rotary module holds, by the front of its names. Each is taken by transformers.


def sets(name, value):
    """Set an attribute to a new value, or by a function of its value."""

    def edit(module, front):
        setattr(module, front + name, value(getattr(module, front + name)) if callable(value) else value)

    return edit


def on_frequencies(change):
    return lambda module, front: change(getattr(module, f"{front}inv_freq"))


EDITS = (
    sets("inv_freq", lambda w: w * 2),
    sets("inv_freq", torch.ones(8)),
    on_frequencies(lambda w: setattr(w, "data", w * 2)),
    on_frequencies(lambda w: w.mul_(2)),
    on_frequencies(lambda w: w.__setitem__(1, 0.7)),
    lambda module, front: module.register_buffer(f"{front}inv_freq", torch.ones(8), persistent=False),
    sets("attention_scaling", lambda scale: scale * 1.5),
)
# Edits that change no logits of a model of a fixed rule, but would of another.
OTHER_EDITS = (
    sets("original_inv_freq", torch.ones(8)),
    lambda module, front: delattr(module, f"{front}inv_freq"),
    lambda module, front: module.register_parameter(f"{front}inv_freq", torch.nn.Parameter(torch.ones(8))),
    lambda module, front: setattr(module, "config", copy.deepcopy(module.config)),
    lambda module, front: setattr(module, "max_seq_len_cached", 4),
)


def test_attributes_are_read_and_what_they_hold_stays():
    model = build(FAMILIES["Gemma3"])
    kinds = list(rotary_of(model).layer_types)
    module = rotary_of(patch(model))
    assert module.full_attention_attention_scaling == 1.0 and list(module.layer_types) == kinds
    with pytest.raises(TypeError, match="'mappingproxy' object does not support item assignment"):
        module.rope_type["full_attention"] = "dynamic"
    with pytest.raises(TypeError, match="'tuple' object does not support item assignment"):
        module.layer_types[0] = "full_attention"
    module.note = "of a program's own"
    module.register_parameter("own", None)
    assert module.note and not hasattr(module, "full_attention_inv_freq")
    del module.note, module.own


@for_each("name", ["GPTJ", "CodeGen"])
def test_a_table_inside_attention_is_not_edited(name):
    model, inputs, theirs = made(name)
    right, attention = logits(patch(model), inputs), model.transformer.h[0].attn
    for edit in (
        lambda: attention.embed_positions.mul_(2),
        lambda: setattr(attention, "embed_positions", torch.ones(8, 8)),
        lambda: attention.register_buffer("embed_positions", torch.ones(8, 8)),
    ):
        refused(AttributeError, NO_EDIT, edit)
    assert torch.equal(logits(model, inputs), right) and torch.equal(logits(unpatch(model), inputs), theirs)


def test_a_table_inside_attention_stays_what_others_set():
    """Upstream moves it to the device of positions and keeps it there; data parallelism sets that of a replica."""
    attention = patch(build(FAMILIES["GPTJ"])).transformer.h[0].attn
    table = attention._buffers["embed_positions"]
    rows = attention._get_embed_positions(torch.zeros(2, 3, dtype=torch.int64, device="meta"))
    assert rows.is_meta and rows.shape == (2, len(table), 2)
    attention._replicate_for_data_parallel().embed_positions = table.clone()
    assert attention._buffers["embed_positions"] is table
    refused(AttributeError, NO_EDIT, lambda: attention.embed_positions)


READ_IN_EACH_CALL = [
    ("Phi3, LongRoPE long", {"original_max_position_embeddings": 4}),
    ("Phi3, LongRoPE long", {"factor": 2.0}),
    ("Llama, dynamic", {"factor": 2.0}),
]


@for_each("name, edit", READ_IN_EACH_CALL)
def test_an_edit_of_a_config_that_is_read_in_each_call(name, edit):
    model, (theirs, inputs, _) = build(FAMILIES[name]), made(name)
    right, before = logits(patch(model), inputs), copy.deepcopy(model.config.rope_parameters)
    model.config.rope_parameters.update(edit)
    for _ in range(2):
        refused(ValueError, "^patch: rope_parameters must not change while", logits, model, inputs)
    model.config.rope_parameters.update(before)
    assert torch.equal(logits(model, inputs), right)
    for each in (model, theirs):
        each.config.rope_parameters.update(edit)
    assert torch.equal(logits(unpatch(model), inputs), logits(theirs, inputs))


# What a state dict may hold: frequencies of the config, also after a cast, or from a device with other last bits.
IN_A_STATE_DICT = [
    *((lambda w, much=much: w * (1 + much * 2.0**-20), abs(much) < 1.0) for much in (0.9, 1.1, -0.9, -1.1)),
    (torch.Tensor.bfloat16, True),
    (lambda w: w * 2, False),
    (lambda w: w[:-1], False),
    (lambda w: w.to("meta"), False),
]


def test_a_state_dict_with_other_frequencies():
    """The only ones that a state dict holds are those of ESM."""
    model, inputs, theirs = made("Esm")
    weights = {name: each.clone() for name, each in model.state_dict().items()}
    names = [name for name in weights if name.endswith("inv_freq")]
    right = logits(patch(model), inputs)
    for assign, (change, allowed) in product((False, True), IN_A_STATE_DICT):
        other = {name: change(each) if name in names else each.clone() for name, each in weights.items()}
        said = r"patch: esm\..*inv_freq must have the values of the config; got others"
        with nullcontext() if allowed else pytest.raises(RuntimeError, match=said):
            model.load_state_dict(other, assign=assign)
        assert torch.equal(logits(model, inputs), right)
        model.load_state_dict(weights, assign=assign)
        assert torch.equal(logits(model, inputs), right)
    model.to(torch.bfloat16).float()
    model.load_state_dict(weights)
    assert torch.equal(logits(unpatch(model), inputs), theirs)


@pytest.mark.parametrize("name", [*MODELS, "Phi3, LongRoPE long", "Llama, dynamic"])
def test_two_models_share_a_rotary_module(name):
    """Each is patched and unpatched by itself."""
    one, other, inputs = build(FAMILIES[name]), build(FAMILIES[name]), prompt(FAMILIES[name])
    other.model.rotary_emb = shared = rotary_of(one)
    theirs = logits(build(FAMILIES[name]), inputs)
    right = logits(patch(one), inputs)
    assert torch.equal(logits(other, inputs), theirs) and float((right - theirs).abs().max()) <= LOGITS
    refused(ValueError, "^unpatch: model must be patched", unpatch, other)
    assert torch.equal(logits(patch(other), inputs), right)
    unpatch(one)
    assert torch.equal(logits(other, inputs), right) and torch.equal(logits(one, inputs), theirs)
    assert torch.equal(logits(unpatch(other), inputs), theirs)
    assert rotary_of(one) is rotary_of(other) is shared


# Memory that is emptied.


def put_back(model):
    """The buffers that a patched model is said to put back."""
    return {name: each for name, each in model.named_buffers() if name.endswith(("inv_freq", "embed_positions"))}


EMPTIED = [("", True), ("double", False), ("half double", True), ("bfloat16 float", True)]
EMPTIED += [("half bfloat16 float", False)]


@for_each("casts, by_meta", EMPTIED)
@pytest.mark.parametrize("name", [*MODELS, "GPTJ", "Phi3, LongRoPE short", "Phi3, LongRoPE long", "Esm"])
def test_unpatch_puts_back_right_numbers_after_memory_was_emptied(name, casts, by_meta):
    """And casts them as transformers casts them, also those of a model that stays without numbers.

    A model that is patched after its casts computes the same.
    """
    theirs, ours, inputs = build(FAMILIES[name]), patch(build(FAMILIES[name])), prompt(FAMILIES[name])
    right, bare = logits(ours, inputs), copy.deepcopy(ours).to("meta")
    for cast in ["float", *casts.split()]:
        theirs, ours, bare = (getattr(model, cast)() for model in (theirs, ours, bare))
        emptied(ours, by_meta)
    kept, of_rotations = dict(theirs.named_buffers()), put_back(theirs)
    for buffer_name, buffer in ours.named_buffers():
        if buffer_name not in of_rotations:
            buffer.copy_(kept[buffer_name])  # such as the scale of embeddings
    found, expected = logits(ours, inputs), logits(theirs, inputs)
    assert casts or torch.equal(found, right)
    assert casts != "double" or (found.dtype == torch.float64 and float((found - expected).abs().max()) <= LOGITS)
    assert of_rotations and same(put_back(unpatch(bare)), of_rotations)
    assert all(parameter.is_meta for parameter in bare.parameters())
    assert same(dict(unpatch(ours).named_buffers()), kept)
    assert torch.equal(logits(ours, inputs), expected)
    assert torch.equal(logits(patch(theirs), inputs), found)


@pytest.mark.parametrize("then", [lambda model: model, torch.nn.Module.half, copy.deepcopy])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_by_a_name_from_before_shows_after_unpatch(edit, then):
    """The tables of the patched model are exact all the while. Upstream, each edit changes logits."""
    (theirs, inputs, before), ours = made("Llama"), build(FAMILIES["Llama"])
    held, right = rotary_of(ours), logits(then(patch(build(FAMILIES["Llama"]))), inputs)
    patch(ours)
    for module in (rotary_of(theirs), held):
        edit(module, "")
    assert off(theirs, inputs, before) > 10 * LOGITS
    theirs, ours = then(theirs), then(ours)
    assert torch.equal(logits(ours, inputs), right)
    assert torch.equal(logits(unpatch(ours), inputs), logits(theirs, inputs))
    assert same(tensors_of(rotary_of(ours)), tensors_of(rotary_of(theirs)))
    refused(ValueError, "^patch: every rotary module .* that of its config|differ from those of", patch, ours)


# What belongs to a process, or to another thread.


def test_patch_in_threads_leaves_what_a_program_has_chosen(monkeypatch):
    """The first thread is done while the second is amid its proof, which began before that end."""
    models, inputs = [build(FAMILIES["Llama"]) for _ in range(2)], prompt(FAMILIES["Llama"])
    begun, first_done, seen = threading.Barrier(2), threading.Event(), []
    second, proven = rotary_of(models[1]), same_tables._checked_rotary

    def slowly(original):
        begun.wait(60)
        seen.append(chosen())
        if original is second:
            first_done.wait(60)
        return proven(original)

    def run(model):
        patch(model)
        first_done.set()

    monkeypatch.setattr(same_tables, "_checked_rotary", slowly)
    with default_dtype(torch.bfloat16):
        before = chosen()
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(run, models))
        seen.append(chosen())
    monkeypatch.undo()
    assert seen == 3 * [before]
    one, other = (logits(model, inputs) for model in models)
    assert torch.equal(one, other) and torch.equal(one, logits(patch(build(FAMILIES["Llama"])), inputs))


@pytest.mark.parametrize("name", ["Llama", "GPTJ", "DeepseekV2", "Qwen2VL", "Phi3, LongRoPE long"])
def test_the_defaults_of_a_program_do_not_matter(name):
    model, inputs, _ = made(name)
    right = logits(patch(model), inputs)
    unpatch(model)
    with default_dtype(torch.bfloat16), torch.device("meta"), torch.autocast("cpu", torch.bfloat16):
        patch(model)
        assert torch.get_default_dtype() == torch.bfloat16
    assert torch.equal(logits(model, inputs), right)


def chosen():
    """What a process has chosen for new tensors."""
    return torch.get_default_dtype(), torch.utils._device.CURRENT_DEVICE


# Any order of all of it. What is done to a model returns it, or another one in its place.


def in_new_memory(model, by_meta=True):
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    emptied(model, by_meta)
    for name, buffer in model.named_buffers():  # which a patched rotary module has none of
        buffer.copy_(buffers[name])
    return model


def with_another_base(model):
    """Or with its own again. Transformers looks there for no fixed rule of a model that is built."""
    parameters = model.config.rope_parameters
    for block in [parameters] if "rope_theta" in parameters else parameters.values():
        block["rope_theta"] *= 37 if block["rope_theta"] % 37 else 1 / 37
    return model


def with_its_weights(model):
    model.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()})
    return model


def is_patched(model):
    return isinstance(type(rotary_of(model)), PatchedType)


def pickled(model):
    if not is_patched(model):
        return pickle.loads(pickle.dumps(model))
    for part in (model, model.model.layers, rotary_of(model)):
        for write in (pickle.dumps, partial(torch.save, f=io.BytesIO())):
            refused(TypeError, "^pickle: a model must not be patched; got a patched .*: unpatch it first", write, part)
    return model


def patched_or_not(model):
    """Patched if it was not."""
    if is_patched(model):
        refused(ValueError, "^patch: model must not be patched already", patch, model)
        return unpatch(model)
    refused(ValueError, "^unpatch: model must be patched", unpatch, model)
    return patch(model)


CASTS = [torch.nn.Module.half, torch.nn.Module.bfloat16, torch.nn.Module.float, torch.nn.Module.double]
STEPS = [*CASTS, in_new_memory, partial(in_new_memory, by_meta=False), with_another_base, with_its_weights, pickled]
STEPS += [torch.nn.Module.train, torch.nn.Module.eval, copy.deepcopy, *4 * [patched_or_not]]


@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from([*MODELS]), steps=st.lists(st.sampled_from(STEPS), max_size=15))
def test_steps_in_any_order(name, steps):
    """Where a model is not patched, logits are those of transformers to the last bit.

    Where it is, edits raise, and logits agree when both are computed in float64, with the frequencies that transformers
    had before any cast.
    """
    (theirs, inputs, _), ours, copies = made(name), patch(build(FAMILIES[name])), []
    exact, rule = tensors_of(rotary_of(theirs)), copy.deepcopy(theirs.config.rope_parameters)
    for step in steps:
        if step is copy.deepcopy:
            copies.append((ours, logits(ours, inputs)))
        if step is not patched_or_not:
            ours, theirs = step(ours), step(theirs)
        elif is_patched(ours) or theirs.config.rope_parameters == rule:
            ours = step(ours)
        else:
            refused(ValueError, "^patch: every rotary module must be one that can be", patch, ours)
        assert rotary_of(ours).training == rotary_of(theirs).training
        assert ours.state_dict().keys() == theirs.state_dict().keys()
        bare = copy.deepcopy(ours).to("meta")
        if is_patched(ours):
            for edit, front in product(EDITS + OTHER_EDITS, MODELS[name]):
                refused(AttributeError, NO_EDIT, edit, rotary_of(ours), front)
            assert logits(ours, inputs).dtype == theirs.dtype  # which 16 bits are not close enough for
            one, other = (copy.deepcopy(model).double() for model in (ours, theirs))
            rotary_of(other)._buffers.update(exact)
            assert off(one, inputs, logits(other, inputs)) <= LOGITS
            kept = unpatch(bare)
        else:
            refused(ValueError, "^patch: model must have its tensors in memory", patch, bare)
            assert torch.equal(logits(ours, inputs), logits(theirs, inputs))
            kept = ours
        assert same(tensors_of(rotary_of(kept)), tensors_of(rotary_of(theirs)))
    assert all(torch.equal(logits(model, inputs), right) for model, right in copies)
