"""Export to the `RotaryEmbedding` operator of ONNX. Runtimes have a kernel for it."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from typing import Any, Literal

import numpy as np

from rope_xp.errors import missing_package, public, wrong_type, wrong_value

try:
    from onnx import TensorProto, checker, helper, numpy_helper
except ImportError as error:
    raise missing_package(__name__, "onnx", "onnx", error) from None

from rope_xp.arrays import checks
from rope_xp.embedding import RotaryEmbedding
from rope_xp.types import Values

__all__ = ["to_onnx_rotary_embedding"]
OPSET = 23  # the first opset that has the operator
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
DTYPES = {name: f"arithmetic and tables in {name}" for name in TYPES}


@public("to_onnx_rotary_embedding")
def to_onnx_rotary_embedding(
    rope: RotaryEmbedding,
    num_positions: int,
    *,
    num_heads: int | None = None,
    dtype: Literal["float32", "float16"] = "float32",
) -> Any:
    """An ONNX model with one node, `RotaryEmbedding` of opset 23, and the tables of `rope` as constants.

    It computes ``rope(x, positions=position_ids, seq_dim=2)`` at positions 0 to ``num_positions - 1``. The tables
    include the attention factor. They are computed in float32, with the phases of `rope`, and rounded once to `dtype`.

    Parameters
    ----------
    rope : RotaryEmbedding
        The embedding to export.
    num_positions : int
        The number of positions, in tokens, and of rows in each table. The operator cannot rotate at positions without a
        row.
    num_heads : int, optional
        The number of heads of `X` if it is "batch seq heads*head_dim". By default `X` is "batch heads seq head_dim".
    dtype : "float32" or "float16"
        The dtype of `X`, of the tables and of the operator's arithmetic.

    Returns
    -------
    onnx.ModelProto
        Its inputs are `X` and `position_ids`, int64 "batch seq". Its output is `Y`, with the shape and dtype of `X`.
        Batch, heads and seq have any size.

    Raises
    ------
    ValueError
        If the operator cannot express `rope`: if it changes the layout, or has blocks, a `first_channel`, several
        position axes, frequencies for each head, learned frequencies or xpos. Also if a size is 0 or `dtype` is
        unknown.
    TypeError
        If `rope` is not a RotaryEmbedding or a size is not an int.

    References
    ----------
    ONNX, Operators.md, `RotaryEmbedding`.

    Examples
    --------
    >>> rope = RotaryEmbedding(head_dim=64, layout="half", base=10_000.0)
    >>> model = to_onnx_rotary_embedding(rope, num_positions=4096)
    >>> [node.op_type for node in model.graph.node], [list(table.dims) for table in model.graph.initializer]
    (['RotaryEmbedding'], [[4096, 32], [4096, 32]])
    """
    if not isinstance(rope, RotaryEmbedding):
        kind = type(rope)
        raise wrong_type(f"rope must be a rope_xp.RotaryEmbedding; got {kind.__module__}.{kind.__name__}")
    checks.one_of("dtype", dtype, DTYPES)
    num_positions = checks.count("num_positions", num_positions, 1)
    num_heads = None if num_heads is None else checks.count("num_heads", num_heads, 1)
    _check_expressible(rope)

    tables = rope.sincos(np.arange(num_positions))
    constants = [
        numpy_helper.from_array(table.astype(dtype), f"{name}_cache")
        for name, table in (("cos", tables.cos), ("sin", tables.sin))
    ]
    if num_heads is None:
        sizes = ("batch", "heads", "seq", rope.head_dim)
    else:
        sizes = ("batch", "seq", num_heads * rope.head_dim)
    x, y = (helper.make_tensor_value_info(name, TYPES[dtype], sizes) for name in ("X", "Y"))
    position_ids = helper.make_tensor_value_info("position_ids", TensorProto.INT64, ("batch", "seq"))
    inputs = ["X", "cos_cache", "sin_cache", "position_ids"]
    node = helper.make_node("RotaryEmbedding", inputs, ["Y"], **_attributes(rope, num_heads))
    graph = helper.make_graph([node], "rotary_embedding", [x, position_ids], [y], constants)
    model = helper.make_model_gen_version(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="rope_xp"
    )
    checker.check_model(model)
    return model


def _attributes(rope: RotaryEmbedding, num_heads: int | None) -> Values:
    attributes: Values = {"interleaved": int(rope.layout == "interleaved")}
    if rope.rotary_dim != rope.head_dim:
        attributes["rotary_embedding_dim"] = rope.rotary_dim
    if num_heads is not None:
        attributes["num_heads"] = num_heads
    return attributes


def _check_expressible(rope: RotaryEmbedding) -> None:
    unsupported = {
        "layout": rope.layout not in ("half", "interleaved"),
        "blocks": rope.blocks != 1,
        "first_channel": rope.first_channel != 0,
        "axes": rope.axes != 1,
        "heads": rope.heads is not None,
        "inv_freq": not isinstance(rope.inv_freq, tuple),
        "xpos": rope.xpos is not None,
    }
    if any(unsupported.values()):
        got = ", ".join(
            name if name == "inv_freq" else f"{name}={getattr(rope, name)!r}"
            for name, found in unsupported.items()
            if found
        )
        raise wrong_value(f"rope must be expressible by the RotaryEmbedding operator of ONNX; got {got}")
