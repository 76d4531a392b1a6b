"""A rotary embedding as ONNX's own `RotaryEmbedding` operator, which runtimes have a kernel for."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from typing import Any, Literal

import numpy as np

try:
    from onnx import TensorProto, checker, helper, numpy_helper
except ImportError as missing:
    raise ImportError(f"rope_xp.onnx: onnx must be installed (pip install 'rope-xp[onnx]'); got {missing}") from None

from rope_xp._core import checks
from rope_xp._core.embedding import RotaryEmbedding

OPSET = 23  # the first that has the operator
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
DTYPES = {name: f"arithmetic and tables in {name}" for name in TYPES}


def to_onnx_rotary_embedding(
    rope: RotaryEmbedding,
    num_positions: int,
    *,
    num_heads: int | None = None,
    dtype: Literal["float32", "float16"] = "float32",
) -> Any:
    """An ONNX model of one node, `RotaryEmbedding` of opset 23, with the tables of `rope` as its constants.

    It rotates what ``rope(x, positions=position_ids, seq_dim=2)`` does, at positions 0 to ``num_positions - 1``. The
    attention factor is in the tables, which are exact in float32 and rounded once to `dtype`.

    Parameters
    ----------
    rope : RotaryEmbedding
    num_positions : int
        Rows of the tables, ``2 * pairs`` numbers each; the operator has no angle for any other position.
    num_heads : int, optional
        For `X` of "batch seq heads*head_dim", whose sequence is axis 1; by default it is "batch heads seq head_dim".
    dtype : "float32" or "float16"
        Of `X`, of the tables and of the operator's arithmetic.

    Returns
    -------
    onnx.ModelProto
        With inputs `X` and `position_ids`, int64 "batch seq", and output `Y`; batch, heads and seq are of any size.

    Raises
    ------
    ValueError
        If the operator cannot say it: pairs written where they were not read, blocks, channels before those that turn,
        several position axes, frequencies of each head, learned ones, or xpos; or if a size is 0 or `dtype` unknown.
    TypeError
        If `rope` is no RotaryEmbedding or a size is no int.

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
    who = "to_onnx_rotary_embedding"
    if not isinstance(rope, RotaryEmbedding):
        kind = type(rope)
        raise TypeError(f"{who}: rope must be a rope_xp.RotaryEmbedding; got {kind.__module__}.{kind.__name__}")
    checks.one_of(who, "dtype", dtype, DTYPES)
    num_positions = _size(who, "num_positions", num_positions)
    num_heads = None if num_heads is None else _size(who, "num_heads", num_heads)
    _sayable(who, rope)

    tables = rope.sincos(np.arange(num_positions))
    constants = [
        numpy_helper.from_array(table.astype(dtype), f"{name}_cache")
        for name, table in (("cos", tables.cos), ("sin", tables.sin))
    ]
    attributes: dict[str, Any] = {"interleaved": int(rope.layout == "interleaved")}
    if rope.rotary_dim != rope.head_dim:
        attributes["rotary_embedding_dim"] = rope.rotary_dim
    if num_heads is None:
        sizes = ("batch", "heads", "seq", rope.head_dim)
    else:
        attributes["num_heads"] = num_heads
        sizes = ("batch", "seq", num_heads * rope.head_dim)
    x, y = (helper.make_tensor_value_info(name, TYPES[dtype], sizes) for name in ("X", "Y"))
    where = helper.make_tensor_value_info("position_ids", TensorProto.INT64, ("batch", "seq"))
    node = helper.make_node("RotaryEmbedding", ["X", "cos_cache", "sin_cache", "position_ids"], ["Y"], **attributes)
    graph = helper.make_graph([node], "rotary_embedding", [x, where], [y], constants)
    model = helper.make_model_gen_version(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="rope_xp"
    )
    checker.check_model(model)
    return model


def _size(who: str, name: str, number: int) -> int:
    if checks.count(who, name, number) < 1:
        raise ValueError(f"{who}: {name} must be at least 1; got {number}")
    return int(number)


def _sayable(who: str, rope: RotaryEmbedding) -> None:
    """Everything of `rope` must be something that the operator has."""
    unsaid = {
        "layout": rope.layout not in ("half", "interleaved"),
        "blocks": rope.blocks != 1,
        "first_channel": rope.first_channel != 0,
        "axes": rope.axes != 1,
        "heads": rope.heads is not None,
        "inv_freq": not isinstance(rope.inv_freq, tuple),
        "xpos": rope.xpos is not None,
    }
    if any(unsaid.values()):
        got = ", ".join(
            name if name == "inv_freq" else f"{name}={getattr(rope, name)!r}" for name in unsaid if unsaid[name]
        )
        raise ValueError(f"{who}: ONNX's RotaryEmbedding must be able to say it; got {got}")
