"""Programs that leave Python: what exporters write has dynamic sizes, runs elsewhere, and says what eager code says."""

import io
import re
from functools import partial

import jax
import jax.numpy as jnp
import ndonnx as ndx
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from compare import assert_same
from jax import export
from onnx.reference import ReferenceEvaluator
from samples import embedding, random

from rope_xp import (
    RotaryEmbedding,
    Sections,
    XPos,
    YarnScaling,
    apply_rotary_pos_emb,
    fixed_pos_embedding,
    positions,
    rotate_every_two,
    rotate_half,
    sinusoidal_pos_embedding,
)
from rope_xp.onnx import to_onnx_rotary_embedding
from rope_xp.torch import RotaryEmbedding as Module

LAYOUTS = ["half", "interleaved"]
SIZES = [(1, 1), (3, 100), (2, 4097)]
YARN = YarnScaling(factor=4.0, original_max_position_embeddings=4096)
# Numbers below 4, turned by tables that are one rounding of float32 apart: 2 * 4 * 2**-23.
ATOL = 1e-6


def anywhere(*shape, seed=0):
    return np.random.default_rng(seed).integers(-(2**31), 2**31, shape)


def runtime(model):
    """What runs an ONNX model, which must have no complex numbers and no operator of a domain of its own."""
    onnx.checker.check_model(model, full_check=True)
    graph = onnx.shape_inference.infer_shapes(model).graph
    kinds = {value.type.tensor_type.elem_type for value in [*graph.value_info, *graph.input, *graph.output]}
    kinds |= {constant.data_type for constant in graph.initializer}
    assert kinds.isdisjoint({onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128, onnx.TensorProto.DOUBLE})
    assert {node.domain for node in graph.node} <= {"", "pkg.onnxscript.torch_lib.common"}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = [each.name for each in session.get_inputs()]
    return lambda *given: session.run(None, dict(zip(names, given, strict=True)))


class Rotates(torch.nn.Module):
    """Queries and keys at 0, 1, 2, ..., at positions, or from an offset on: a tensor that counts the tokens before."""

    def __init__(self, rotary, kind):
        super().__init__()
        self.rotary, self.kind = rotary, kind

    def forward(self, q, k, where=None):
        if self.kind == "offset":
            where = positions.consecutive(q.shape[1], where, like=q)
        return self.rotary(q, k, positions=where)


def given(kind, batch, seq, dtype=np.float32):
    q, k = random(batch, seq, 6, 14, dtype=dtype), random(batch, seq, 3, 14, seed=1, dtype=dtype)
    where = {"counted": [], "positions": [anywhere(batch, seq)], "offset": [np.asarray(100_000)]}[kind]
    return tuple(torch.tensor(each) for each in (q, k, *where))


def sizes_of(kind):
    sizes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    return sizes, sizes, *{"counted": [], "positions": [sizes], "offset": [None]}[kind]


def saved_and_loaded(module, kind, dtype, strict):
    """The program of torch.export: it has no complex numbers, and needs no rope_xp."""
    program = torch.export.export(module, given(kind, 2, 5, dtype), dynamic_shapes=sizes_of(kind), strict=strict)
    assert not any("complex" in str(node.meta.get("val")) for node in program.graph.nodes)
    assert not any("rope_xp" in str(node.target) for node in program.graph.nodes)
    assert [*program.state_dict] == [*module.state_dict()]
    saved = io.BytesIO()
    torch.export.save(program, saved)
    saved.seek(0)
    return torch.export.load(saved).module()


def to_onnx(module, kind, dtype):
    options = {"dynamo": True, "dynamic_shapes": sizes_of(kind), "verbose": False}
    run = runtime(torch.onnx.export(module, given(kind, 2, 5, dtype), **options).model_proto)
    return lambda *arguments: tuple(run(*(each.numpy() for each in arguments)))


EXPORTERS = {
    "strict": partial(saved_and_loaded, strict=True),
    "not strict": partial(saved_and_loaded, strict=False),
    "ONNX": to_onnx,
}


# Of torch's own exporter.
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")
@pytest.mark.compile
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize(
    "kind, layout, learned, dtype",
    [
        ("positions", "half", False, "float32"),
        ("offset", "half", True, "float32"),
        ("positions", "interleaved", False, "float32"),
        ("counted", "interleaved", False, "float16"),
    ],
)
def test_exporters_of_torch(exporter, kind, layout, learned, dtype):
    rope = embedding(layout, kernel="numba")
    module = Rotates(Module(rope, seq_dim=1, learned=learned), kind).eval()
    run = EXPORTERS[exporter](module, kind, dtype)
    for arguments in (given(kind, *sizes, dtype) for sizes in SIZES):
        with torch.no_grad():
            # One rounding of a number below 8 in float16.
            assert_same(run(*arguments), module(*arguments), ATOL if dtype == "float32" else 8 * 2.0**-11)


PARTS = {
    "half": {},
    "interleaved": {"layout": "interleaved"},
    "interleaved to half": {"layout": "interleaved_to_half", "rotary_dim": 8, "first_channel": 4},
    "blocks": {"rotary_dim": 12, "blocks": 3},
}


def traced(call, **axes):
    """What runs a function of ndonnx arrays: float32 `x` and what has no other dtype, int64 `where`."""
    kinds = {"where": ndx.int64, "offset": ndx.int64}
    arguments = {n: ndx.argument(shape=shape, dtype=kinds.get(n, ndx.float32)) for n, shape in axes.items()}
    result = call(**arguments)
    return runtime(ndx.build(arguments, {"y": result})), result.shape


def rotated(seq_dim, part="half"):
    rope = embedding(**PARTS[part])
    return lambda x, where=None: rope(x, positions=where, seq_dim=seq_dim)


ROPE = embedding()
AXES = embedding(sections=Sections((3, 4), order="axial"))
X, WHERE = {"x": ("batch", "seq", 3, 14)}, {"where": ("batch", "seq")}
# name: (a call that says all with the arguments of its names, their axes)
CALLS = {
    "counted": (rotated(1), X),
    "counted, heads first": (rotated(2, "interleaved"), {"x": ("batch", 3, "seq", 14)}),
    "positions": (rotated(1, "interleaved to half"), X | {"where": ("seq",)}),
    "positions of each row": (rotated(1, "blocks"), X | WHERE),
    "positions of every axis": (rotated(2), {"x": ("batch", "heads", "seq", 14), "where": ("batch", 1, "seq")}),
    "packed": (rotated(0, "interleaved"), {"x": ("seq", 3, 14), "where": ("seq",)}),
    "fixed sizes": (rotated(1, "blocks"), {"x": (2, 5, 3, 14), "where": (5,)}),
    "a fixed batch": (rotated(1, "interleaved to half"), {"x": (2, "seq", 3, 14)} | WHERE),
    "notebook": (lambda x: apply_rotary_pos_emb(x, fixed_pos_embedding(x, 1, offset=7), seq_dim=1), X),
    "every two and half": (lambda x: rotate_every_two(x) + rotate_half(x), X),
    "rows": (
        lambda x, sin, cos, where: ROPE(x, sincos=(sin, cos), positions=where % 50, seq_dim=1),
        X | {"sin": ("rows", 7), "cos": ("rows", 7)} | WHERE,
    ),
    "shift": (lambda x, where: ROPE.shift(x, where, seq_dim=1), X | {"where": ("batch", 1)}),
    "inverse": (lambda x, where: ROPE.rotate(x, ROPE.sincos(where), seq_dim=1, inverse=True), X | {"where": ("seq",)}),
    "scaled": (lambda x: embedding(scaling=YARN)(x, seq_dim=1), X),
    "decays": (lambda x: embedding(xpos=XPos())(x, x, seq_dim=1)[1], X),
    "axes": (lambda x, where: AXES(x, positions=where, seq_dim=1), X | {"where": (2, "batch", "seq")}),
    "sinusoidal": (lambda x, where: sinusoidal_pos_embedding(where, 14, like=x), X | WHERE),
}


@pytest.mark.parametrize("name", CALLS)
def test_ndonnx(name):
    call, axes = CALLS[name]
    run, shape = traced(call, **axes)
    assert name == "sinusoidal" or shape == tuple(each if isinstance(each, int) else None for each in axes["x"])
    for batch, seq in [(2, 1), (2, 100), *[(1, 5)] * (2 not in axes["x"])]:
        sizes = {"batch": batch, "seq": seq, "heads": 3, "rows": 40}
        shapes = {name: [sizes.get(size, size) for size in shape] for name, shape in axes.items()}
        arrays = {name: anywhere(*shape) if name == "where" else random(*shape) for name, shape in shapes.items()}
        truth = call(**arrays)
        assert name != "rows" or seq < 100 or np.isnan(truth).any()  # where there is no such row
        assert_same(run(*arrays.values())[0], truth, equal_nan=name == "rows")


@pytest.mark.parametrize("num_heads, dtype", [(None, "float32"), (np.int64(3), "float16")])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", [{}, {"rotary_dim": 8}, {"scaling": YARN}, {"reverse": True}], ids=str)
def test_the_operator_of_onnx(options, layout, num_heads, dtype):
    rope = RotaryEmbedding(head_dim=16, layout=layout, base=10_000.0, **options)
    model = to_onnx_rotary_embedding(rope, num_positions=100_001, num_heads=num_heads, dtype=dtype)
    assert [each.version for each in model.opset_import] == [23]
    attributes = {each.name for each in model.graph.node[0].attribute}
    assert ("rotary_embedding_dim" in attributes) == ("rotary_dim" in options)
    onnx.checker.check_model(model, full_check=True)
    widths = [each.type.tensor_type.shape.dim[-1].dim_value for each in (model.graph.input[0], model.graph.output[0])]
    assert widths == [16 if num_heads is None else 48] * 2
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for batch, seq in [(1, 1), (2, 5), (3, 100)]:
        x, where = random(batch, 3, seq, 16, dtype=dtype), anywhere(batch, seq) % 100_001
        where[0, 0] = 100_000
        truth = rope(x, positions=where, seq_dim=2)
        if num_heads is not None:
            x, truth = (each.transpose(0, 2, 1, 3).reshape(batch, seq, 48) for each in (x, truth))
        # In float16, both tables, two products and their sum are rounded, of numbers below 4: 5 * 4 * 2**-11.
        for run in (session.run, ReferenceEvaluator(model).run):
            (found,) = run(None, {"X": x, "position_ids": where})
            assert_same(found, truth, ATOL if dtype == "float32" else 5 * 4 * 2.0**-11)


def test_an_operator_of_onnx_has_one_head_at_least():
    model = to_onnx_rotary_embedding(ROPE, num_positions=1, num_heads=1)
    assert model.graph.input[0].type.tensor_type.shape.dim[-1].dim_value == ROPE.head_dim


OF_HEADS = [[[1.0, 0.5]] * 3] * 2
UNSAID = {
    "layout='interleaved_to_half'": embedding("interleaved_to_half"),
    "blocks=2": embedding(rotary_dim=12, blocks=2),
    "first_channel=6": embedding(rotary_dim=8, first_channel=6),
    "axes=2": AXES,
    "axes=2, heads=3": RotaryEmbedding(head_dim=4, layout="half", inv_freq=OF_HEADS),
    "inv_freq": RotaryEmbedding(head_dim=4, layout="half", inv_freq=torch.ones(2)),
    "xpos=XPos": embedding(xpos=XPos()),
}


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        *(((rope, 10), ValueError, f".* must be expressible by .*; got {what}") for what, rope in UNSAID.items()),
        ((ROPE, 0), ValueError, "num_positions must be at least 1; got 0"),
        ((ROPE, 2.0), TypeError, "num_positions must be an int; got float"),
        ((None, 10), TypeError, "rope must be a rope_xp.RotaryEmbedding; got builtins.NoneType"),
        ((ROPE, 10, {"num_heads": 0}), ValueError, "num_heads must be at least 1; got 0"),
        ((ROPE, 10, {"dtype": "bfloat16"}), ValueError, 'dtype must be "float32" .* got .bfloat16'),
    ],
)
def test_bad_input_of_the_operator(arguments, error, message):
    rope, number, *options = arguments
    with pytest.raises(error, match=f"^to_onnx_rotary_embedding: {message}"):
        to_onnx_rotary_embedding(rope, number, **dict(*options))


@pytest.mark.compile
@pytest.mark.parametrize("part", PARTS)
def test_jax_export_with_symbolic_sizes(part):
    rope, (batch, seq) = embedding(**PARTS[part]), export.symbolic_shape("b, s")
    q, k = (jax.ShapeDtypeStruct((batch, seq, heads, 14), jnp.float32) for heads in (6, 3))
    where, offset = jax.ShapeDtypeStruct((batch, seq), jnp.int32), jax.ShapeDtypeStruct((), jnp.int32)

    def everywhere(q, k, where, offset):
        """Counted, at positions, from an offset on, and by the notebook's functions."""
        decoded = positions.consecutive(q.shape[1], offset, like=q)
        ways = [rope(q, k, seq_dim=1, positions=each) for each in (None, where, decoded)]
        notebook = apply_rotary_pos_emb(q, fixed_pos_embedding(q, 1, offset=7), seq_dim=1)
        return *(x for way in ways for x in way), notebook, positions.consecutive(k.shape[1], k.shape[1], like=k)

    exported = export.export(jax.jit(everywhere))(q, k, where, offset)
    exported = export.deserialize(exported.serialize(vjp_order=1))
    for sizes in SIZES:
        q, k, where = random(*sizes, 6, 14), random(*sizes, 3, 14, seed=1), anywhere(*sizes).astype("int32")
        assert_same(tuple(exported.call(q, k, where, np.int32(100_000))), everywhere(q, k, where, np.int32(100_000)))
    given = random(2, 5, 6, 14), random(2, 5, 3, 14, seed=1), anywhere(2, 5).astype("int32"), np.int32(7)
    results, pull = jax.vjp(lambda q, k: exported.call(q, k, *given[2:]), *given[:2])
    _, truth = jax.vjp(lambda q, k: everywhere(q, k, *given[2:]), *given[:2])
    g = [x if jnp.issubdtype(x.dtype, jnp.floating) else np.zeros(x.shape, jax.dtypes.float0) for x in results]
    assert_same(pull(tuple(g)), truth(tuple(g)), atol=7 * ATOL)  # a sum of that many


STEPS = 5000


def largest(compiled):
    """Numbers in the largest array of floats that a compiled program has anywhere."""
    shapes = re.findall(r"\bf(?:16|32|64)\[([\d,]*)\]", compiled.as_text())
    return max(int(np.prod([int(size) for size in shape.split(",") if size])) for shape in shapes)


def decoded(rope, sincos=None):
    """Scores of one token that is decoded again and again, and so moves on."""
    token, query = jnp.ones((1, 1, 2, 14)), jnp.ones((1, 1, 2, 14))

    def one_more(offset, _):
        key = rope(token, positions=positions.consecutive(1, offset, like=token), sincos=sincos, seq_dim=1)
        return offset + 1, (key * query).sum()

    return jax.lax.scan(one_more, jnp.int32(0), length=STEPS)[1]


def test_a_scanned_decode_loop_makes_no_table_of_all_positions():
    rope = embedding()
    compiled = jax.jit(lambda: decoded(rope)).lower().compile()
    assert largest(compiled) <= 2 * STEPS  # the scores, and room for one more of them
    whole = rope(jnp.ones((1, STEPS, 2, 14)), seq_dim=1).sum(axis=(0, 2, 3))
    np.testing.assert_allclose(compiled(), whole, rtol=0, atol=28 * 1e-6)
    tabulated = jax.jit(lambda: decoded(rope, rope.sincos(jnp.arange(STEPS)))).lower().compile()
    assert largest(tabulated) >= STEPS * rope.pairs
