"""What is compared before code of transformers is replaced, in which arguments, and how far results may differ."""

# pyright: reportMissingImports=false

import inspect
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial, wraps
from importlib import import_module
from itertools import pairwise, product
from types import SimpleNamespace

import pytest
import torch
import transformers
from cases import for_each
from tiny_models.models import FAMILIES, Family, build
from tiny_transformers import default_dtype
from transformers.models.codegen import modeling_codegen
from transformers.models.gptj import modeling_gptj

from rope_xp import RotaryEmbedding
from rope_xp.huggingface import rotary
from rope_xp.huggingface.apply_functions import (
    APPLY_SIGNATURES,
    ROTATION_TOLERANCE,
    apply_function,
    largest_difference,
    parameters_of,
)
from rope_xp.huggingface.guard import float32_on_cpu
from rope_xp.huggingface.rewrite import ClassRewriter, exact_table_class
from rope_xp.huggingface.rotary import TableFormat
from rope_xp.huggingface.same_tables import is_rotary, rotary_of
from rope_xp.kernels.reference import Rotation
from rope_xp.layouts import READ_WRITE

# Four pairs, in halves of the channels, one column for each.
FORMAT = TableFormat("once", False, Rotation("half", "half"), False, 4)
# Shapes of arrays without their channels, and other arguments, with which every apply function is called.
SHAPES = [(2, 3, 5), (2, 5, 3), (5, 3), (2, 3, 7)]
AXES = [{}, {"unsqueeze_dim": 1}, {"unsqueeze_dim": 2}]
SHORT = {"q": (2, 3, 2), "k": (2, 3, 5)}
# Of keys of a memory: their tokens, those that are not rotated, and how often the tables are repeated.
MEMORIES = [(5, 0, 1), (10, 0, 2), (7, 2, 1), (12, 2, 2), (7, 0, 1), (14, 0, 2), (9, 2, 1), (16, 2, 2)]


def of_all_shapes(names, others=({},)):
    return [(dict.fromkeys(names.split(), shape), more) for shape, more in product(SHAPES, others)]


def of_memories(kind):
    """Groups of keys, and then no group at all."""
    options = [{"num_k_exclude_rope": count, "repeat_freqs_k": kind(n - (kind is bool))} for _, count, n in MEMORIES]
    found = [({"q": (2, 3, 5), "k": (2, 3, tokens)}, more) for (tokens, *_), more in zip(MEMORIES, options)]
    return [*of_all_shapes("q k"), (SHORT, {}), *found, ({"q": (2, 3, 5), "k": (2, 3, 2)}, {"num_k_exclude_rope": 2})]


HALVES = TableFormat("halves", False, Rotation("half", "half"), False, 4)
NEIGHBOURS = HALVES._replace(columns="neighbours", rotation=Rotation("interleaved", "interleaved"))
ONCE = NEIGHBOURS._replace(columns="once")
COMPLEX = ONCE._replace(is_complex=True)
TO_HALF = HALVES._replace(rotation=Rotation("interleaved", "half"))
BLOCKS = HALVES._replace(columns="blocks", rotation=Rotation("half", "half", 0, 2))
OF_BOTH, OF_BOTH_WITH_AXES = ([*of_all_shapes("q k", each), (SHORT, {})] for each in ([{}], AXES))
OF_QUERIES = [*OF_BOTH_WITH_AXES[:-1], ({"q": (2, 3, 5)}, {}), (SHORT, {})]
OF_PATCHES = of_all_shapes("x", [{"position_ids": 2, **axis} for axis in AXES])
# Of each signature: functions of transformers, the format of their tables, and the calls in which they are compared.
UPSTREAM = [
    ("edgetam_video", "apply_rotary_pos_emb_2d_self_attn", NEIGHBOURS, OF_BOTH),
    ("cohere_compass", "apply_rotary_pos_emb_vision", HALVES, OF_BOTH),
    ("llama", "apply_rotary_pos_emb", HALVES, OF_BOTH_WITH_AXES),
    ("muse_glimmer_assistant", "apply_rotary_pos_emb", HALVES, OF_BOTH_WITH_AXES),
    ("qwen4_exp", "apply_rotary_pos_emb", HALVES, OF_QUERIES),
    ("deepseek_v3", "apply_rotary_pos_emb_interleave", TO_HALF, OF_BOTH_WITH_AXES),
    ("dinov3_vit", "apply_rotary_pos_emb", HALVES, OF_BOTH),
    ("gemma4", "apply_rotary_pos_emb", HALVES, of_all_shapes("x", AXES)),
    ("deepseek_v4", "apply_rotary_pos_emb", ONCE._replace(rotates_last=True), of_all_shapes("x", AXES)),
    ("gemma4", "apply_multidimensional_rope", BLOCKS, OF_PATCHES),
    ("gptj", "apply_rotary_pos_emb", ONCE, of_all_shapes("tensor")),
    ("deepseek_v2", "apply_rotary_emb", COMPLEX, of_all_shapes("xq xk")),
    ("llama4", "apply_rotary_emb", COMPLEX, of_all_shapes("xq xk")),
    ("llama4", "vision_apply_rotary_emb", COMPLEX, of_all_shapes("query key")),
    ("sam2_video", "apply_rotary_pos_emb_2d", NEIGHBOURS, of_memories(bool)),
    ("edgetam_video", "apply_rotary_pos_emb_2d_cross_attn", NEIGHBOURS, of_memories(int)),
]


def upstream(model, name):
    return getattr(import_module(f"transformers.models.{model}.modeling_{model}"), name)


def test_each_signature_is_compared_with_a_function_of_transformers():
    assert {parameters_of(upstream(*each)) for *each, _, _ in UPSTREAM} == APPLY_SIGNATURES.keys()


def changed(function, calls, shift=0.0, **read_from):
    """A function that notes its calls, reads some arguments from others, and shifts its results."""

    @wraps(function)
    def call(**given):
        calls.append(given)
        found = function(**given | {name: given[other] for name, other in read_from.items()})
        return tuple(each + shift for each in found) if isinstance(found, tuple) else found + shift

    return call


@for_each("model, name, table_format, expected", UPSTREAM)
def test_the_arguments_in_which_apply_functions_are_compared(model, name, table_format, expected):
    """Also channels that are not rotated, one row of tables for a batch, and tables without batches."""
    theirs, calls = upstream(model, name), []
    of_axes = [apply_function(parameters_of(theirs), table_format, axis) for axis in (-2, 1, None)]
    ours = min(of_axes, key=lambda each: largest_difference(theirs, each, table_format))
    ours.__signature__ = inspect.signature(theirs)
    difference = partial(largest_difference, replacement=ours, table_format=table_format)
    assert difference(changed(theirs, calls)) <= ROTATION_TOLERANCE
    numbers = []
    every = [(width, rows, *call) for width in (8, 10) for rows in ((2, 5), (1, 5), (5,)) for call in expected]
    for call, (width, rows, shapes, others) in zip(calls, every, strict=True):
        arrays = [call.pop(each) for each in shapes]
        assert [tuple(each.shape) for each in arrays] == [(*shape, width) for shape in shapes.values()]
        tables = [call.pop(each) for each in [*call] if each.startswith(("cos", "sin", "freqs_c"))]
        assert {tuple(table.shape[:-1]) for table in tables} == {rows}
        assert {each: len(given) if each == "position_ids" else given for each, given in call.items()} == others
        numbers += arrays
    assert -0.5 <= min(float(each.min()) for each in numbers) < -0.45
    assert 0.45 < max(float(each.max()) for each in numbers) <= 0.5
    assert not any(torch.equal(*each) for each in pairwise(numbers) if each[0].shape == each[1].shape)
    for table in ("cos", "sin") if "cross" in name else ():  # keys have other tables than queries
        assert difference(changed(theirs, [], **{f"{table}_k": table})) > ROTATION_TOLERANCE
    # Two rotations of numbers up to 0.5 are rounded, each with two products and a sum.
    differences = [difference(changed(ours, [], units * 2.0**-24)) for units in (5.5, 6.5)]
    assert [each <= ROTATION_TOLERANCE for each in differences] == [True, False]


def test_an_apply_function_may_have_another_layout_than_its_tables():
    """But for rotations in blocks."""
    signature = "(q, k, cos, sin, unsqueeze_dim=1)"
    q, angles = torch.rand(2, 3, 5, 10), torch.rand(2, 5, 4)
    for layout, blocks in product(READ_WRITE.values(), (1, 2)):
        theirs = apply_function(signature, FORMAT._replace(rotation=Rotation(*layout)), None)
        theirs.__signature__ = inspect.signature(APPLY_SIGNATURES[signature])
        rewriter = ClassRewriter(())
        rewriter.formats["file"] = [FORMAT._replace(rotation=Rotation("half", "half", 0, blocks))]
        with nullcontext() if blocks == 1 else pytest.raises(ValueError, match=r"^f differs from that of rope_xp by "):
            ours = rewriter.replacement_for("f", theirs, "file")
            assert rewriter.replacement_for("f", theirs, "file") is ours and [*rewriter.replacements.values()] == [ours]
            assert torch.equal(*(each(q, q, angles.cos(), angles.sin())[1] for each in (ours, theirs)))
        with pytest.raises(ValueError, match="f in other applies tables that no rotary module of this file makes"):
            rewriter.replacement_for("f", theirs, "other")


ROTARY = {"AcmeRotaryEmbedding", "RotaryLayers", "VJEPA2RopeAttention"}


@for_each("name", [*ROTARY, "RopeAttention", "RotaryLayer", "Linear"])
def test_which_classes_are_rotary_modules(name):
    cls = type(name, (torch.nn.Module,), {})
    assert is_rotary(cls()) == is_rotary(type("Other", (cls,), {})()) == (name in ROTARY)


def test_patches_may_be_oblong():
    for size, counts in ((2, (4, 6)), ((2, 3), (4, 4)), ([4, 2], (2, 6))):
        config = SimpleNamespace(patch_size=size)
        assert rotary._patch_counts(config, torch.zeros(1, 3, 8, 12)) == counts


def apply_rotary_of_a_test(x):
    return x


def calling(x, y=2, *, z=3):
    """A text."""
    return apply_rotary_of_a_test(x), y, z


def calling_another(x):
    return [calling(x) for _ in range(1)]


def calling_none(x):
    return sys.path, rotary_module, x


def wrapper_of(function):
    def wrapper(*args):
        return function(*args)

    return wrapper


calling.mark = [1]


def test_functions_are_rewritten_that_call_an_apply_function_directly_or_not(monkeypatch):
    rewriter, asked = ClassRewriter(()), []
    monkeypatch.setattr(rewriter, "replacement_for", lambda *given: asked.append(given) or (lambda x: -x))
    new, another, wrapped = map(rewriter.rewritten, (calling, calling_another, wrapper_of(calling)))
    assert (new(1), another(1), wrapped(1, 5)) == ((-1, 2, 3), [(-1, 2, 3)], (-1, 5, 3))
    assert (calling(1), calling_another(1)) == ((1, 2, 3), [(1, 2, 3)])
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__", "__dict__"):
        assert getattr(new, name) == getattr(calling, name)
    assert asked == [("apply_rotary_of_a_test", apply_rotary_of_a_test, __name__)]
    for function in (calling_none, wrapper := wrapper_of(calling_none), wrapper_of(1)):
        assert rewriter.rewritten(function) is function
    assert rewriter.rewritten(calling) is new and rewriter.rewritten(wrapper) is wrapper


def test_a_function_whose_cell_is_empty_stays():
    def function():
        return unknown

    assert ClassRewriter(()).rewritten(function) is function
    unknown = 1


@for_each("dtype", [torch.bfloat16, torch.float16, torch.float32])
@for_each("attention", [modeling_gptj.GPTJAttention, modeling_codegen.CodeGenAttention])
def test_a_table_of_attention_has_rows_of_two_digits(attention, dtype):
    """They are exact in every dtype, up to 65,536 rows."""
    config = transformers.GPTJConfig(n_embd=80, n_head=4, rotary_dim=8, n_ctx=2**16, n_positions=2**16)
    module = attention(config, 0)
    cls, x = exact_table_class(module), torch.rand(1, 8, 3, 8)
    rows = torch.tensor([[0, 1, 255, 256, 257, 1023, 2047, 2**16 - 1]])
    high, low = cls._rows.fget(module)[rows].to(dtype).split(1, -1)
    found = cls.forward.__globals__["apply_rotary_pos_emb"](x, high, low)
    rope = RotaryEmbedding(head_dim=8, layout="interleaved", base=10_000.0)
    assert torch.equal(found, rope(x, positions=rows, seq_dim=1))
    config.n_positions += 1
    with pytest.raises(ValueError, match="Attention: its table has more than 65536 rows"):
        exact_table_class(attention(config, 0))


def rotary_module(name, monkeypatch, change=lambda tables, *positions: tables, **changes):
    """A rotary module of a tiny model whose tables are changed, and the inputs of its calls."""
    family = FAMILIES.get(name) or Family(name)
    module = next(filter(is_rotary, build(replace(family, changes={**family.changes, **changes})).modules()))
    theirs, calls = type(module).forward, []

    def forward(self, x, *args):
        calls.append([tuple(x.shape), *(each.tolist() if isinstance(each, torch.Tensor) else each for each in args)])
        return change(theirs(self, x, *args), *args[:1])

    forward.__module__, forward.__signature__ = theirs.__module__, inspect.signature(theirs)
    monkeypatch.setattr(type(module), "forward", forward)
    return module, calls


NEAR, FAR = [0, 1, 511, 3, 8, 8, 127, 64, 300, 257], 2**20
CELLS = [list(pair) for pair in zip([*NEAR, FAR], [0, 2, 510, 6, 16, 16, 254, 128, 88, 2, FAR])]
LONG = [[0, 1, 15, 3, 8, 8, *[15] * 5]]
POSITIONS = {
    "Llama": [[(1,), [[*NEAR, FAR]]]],
    "Llama, dynamic": [[(1,), LONG], [(1,), [[0, 1, 32, 3, 8, 8, *[32] * 5]]]],
    "Phi3, LongRoPE long": [[(1,), LONG], [(1,), [[0, 1, 16, 3, 8, 8, *[16] * 5]]]],
    "Gemma3": [[(1,), [[*NEAR, FAR]], name] for name in ("sliding_attention", "full_attention")],
    "Qwen2VL": [[(1,), CELLS]],
    "Gemma4VisionModel": [[(1,), [CELLS]]],
    "DINOv3": [[(1, 3, 8, 20)]],
}


@for_each("name", POSITIONS)
def test_the_positions_at_which_tables_are_compared(name, monkeypatch):
    """After one call of a new module, and one of the model's, with a single token for each type of layers."""
    module, calls = rotary_module(name, monkeypatch)
    rotary_of(module)
    expected = POSITIONS[name]
    first, calls = calls[: (count := 2 * len({tuple(each[2:]) for each in expected}))], calls[count:]
    assert calls == expected
    assert not any(torch.tensor(positions).any() for _, *rest in first for positions in rest[:1])


# Tables that differ at some positions and pairs: how much, where, of what model, and whether that is allowed.
SLOW = {"rope_parameters": {"rope_type": "default", "rope_theta": (FAR / 127.9) ** 2}}
FAST = {"rope_parameters": {"rope_type": "default", "rope_theta": (FAR / 128.1) ** 2}}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
DIFFERENCES = [
    (1e-5, NEAR, 0, "Llama", {}, True),
    (9e-5, NEAR[:1], 0, "Llama", {}, False),
    (9e-5, [257], 7, "Llama", {}, False),
    (6e-5, NEAR, 0, "Llama", {"rope_parameters": {**YARN, "attention_factor": 2.0}}, True),
    (15e-5, NEAR, 0, "Llama", {"rope_parameters": {**YARN, "attention_factor": 2.0}}, False),
    (1e-5, NEAR, 0, "Llama", {"rope_parameters": {**YARN, "attention_factor": 0.5}}, True),
    (1.0, [FAR], 0, "Llama", SLOW, True),  # the phase of the first pair is not exact there
    (1.0, [FAR], 4, "Llama", FAST, True),
    (1.0, [FAR], 4, "Llama", SLOW, False),
    (1.0, [FAR], 7, "Llama", FAST, False),
    (1.0, [FAR], 0, "Qwen2VL", {}, True),
    (1.0, [15], 0, "Phi3, LongRoPE long", {}, False),
    (1.0, [17], 0, "Phi3, LongRoPE long", {}, True),
]


@for_each("much, positions, pair, name, changes, allowed", DIFFERENCES)
def test_how_far_tables_may_differ(much, positions, pair, name, changes, allowed, monkeypatch):
    def change(tables, given):
        cos, sin = tables
        where = torch.isin(given, torch.tensor(positions))
        where = where.all(-1) if name == "Qwen2VL" else where
        pairs = torch.arange(cos.shape[-1]) % (cos.shape[-1] // 2) == pair
        return cos, sin + much * (where[..., None] & pairs)

    module, _ = rotary_module(name, monkeypatch, change, **changes)
    said = "its tables differ from those of its config by "
    with nullcontext() if allowed else pytest.raises(ValueError, match=said):
        rotary_of(module)


def neighbours_if_long(tables, positions):
    return tuple(each[..., :8].repeat_interleave(2, -1) if positions.max() > 16 else each for each in tables)


OF_ANOTHER_FORMAT = [
    ("Llama", lambda tables, _: tables[:1], r"tables must be \(cos, sin\) or complex; got tuple$"),
    ("Llama", lambda tables, _: (*tables, tables[0]), r"tables must be \(cos, sin\) or complex; got tuple$"),
    ("Llama", lambda tables, _: [*tables], r"tables must be \(cos, sin\) or complex; got list$"),
    ("Llama, dynamic", neighbours_if_long, "the format of its tables depends on the length$"),
]


@for_each("name, change, said", OF_ANOTHER_FORMAT)
def test_tables_of_another_format_are_refused(name, change, said, monkeypatch):
    module, _ = rotary_module(name, monkeypatch, change)
    with pytest.raises(ValueError, match=f"LlamaRotaryEmbedding: (its )?{said}"):
        rotary_of(module)


# The last ones have a dtype or device of their own.
NEW_TENSORS = [
    lambda: torch.arange(0, 8, 2, dtype=torch.int64) / 8,
    lambda: 1.0 / (10_000.0 ** (torch.arange(0, 8, 2) / 8)),
    lambda: 10_000.0 ** -torch.arange(4),
    lambda: torch.arange(4).mul(0.3).sin(),
    lambda: torch.zeros(2).sin(),
    lambda: torch.arange(0.0, 1.0, 0.1),
    lambda: torch.linspace(0, 1, 7),
    lambda: torch.outer(torch.arange(3), torch.tensor([0.1, 0.7])),
    lambda: torch.stack([torch.ones(3), torch.full((3,), 0.1)]),
    lambda: torch.tensor([0.1, 1 / 3]),
    lambda: torch.tensor([1, 2]),
    lambda: torch.eye(3).bool(),
    lambda: torch.polar(torch.ones(2), torch.tensor([0.1, 0.2])),
    lambda: torch.ones(2).bfloat16(),
    lambda: torch.zeros(2).to(torch.float16),
    lambda: torch.ones(2, dtype=torch.float64) / 3,
    lambda: torch.stack([torch.ones(1, dtype=torch.bfloat16)]),
    lambda: torch.ones(1, dtype=torch.float16) + torch.arange(3),
    lambda: torch.ones(2, 2, dtype=torch.float32, requires_grad=True) @ torch.ones(2, 2, dtype=torch.float32),
    lambda: torch.ones(1, device="meta"),
]


@for_each("default", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@for_each("device", ["cpu", "meta"])
@for_each("make", NEW_TENSORS)
def test_new_tensors_are_as_without_the_defaults_of_a_program(make, device, default):
    right = make()
    with default_dtype(default), torch.device(device), torch.autocast("cpu", torch.bfloat16), float32_on_cpu():
        made = make()
    assert (made.dtype, made.device, made.requires_grad) == (right.dtype, right.device, False)
    assert right.is_meta or torch.equal(made, right)


def test_with_the_usual_defaults_random_numbers_are_drawn_once():
    def drawn():
        torch.manual_seed(0)
        return torch.rand(2), torch.rand(2)

    with float32_on_cpu():
        found = drawn()
    assert all(map(torch.equal, found, drawn()))
