"""Errors of exported programs, from the truth and from eager code, at sizes other than those of the trace.

Run: `python benchmarks/exporters.py [--quick] [--out FILE]`. It prints a table and writes it to
benchmarks/results/exporters.md. The truth is a complex product in float64 with angles of mpmath;
head_dim is 128, the base is 10,000, and numbers are float32 up to 3. It fails if a program is more than 1e-6 from
the eager result, or more than 2e-6 from the truth.
"""

import io
import logging
import warnings
from functools import partial

import common
import jax
import jax.numpy as jnp
import ndonnx as ndx
import numpy as np
import onnxruntime
import torch
from common import BASE, DIM, LAYOUTS

from rope_xp import RotaryEmbedding
from rope_xp.onnx import to_onnx_rotary_embedding
from rope_xp.torch import RotaryEmbedding as Module

HEADS = 2
NEAR, FAR = 2**17, 2**31
# Errors of tables up to 2e-7, in two products with numbers up to 3; and three roundings of numbers up to 4.3.
FROM_TRUTH = 2 * 3 * 2e-7 + 3 * 4.3 * 2.0**-24
FROM_EAGER = 1e-6


class RotateAt(torch.nn.Module):
    def __init__(self, rope):
        super().__init__()
        self.rotary = Module(rope, seq_dim=2)

    def forward(self, x, positions):
        return self.rotary(x, positions=positions)


def torch_program(rope):
    """The arguments of both exporters of PyTorch: a module, example arrays, and the axes of any size."""
    sizes = {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC}, {i: torch.export.Dim.DYNAMIC for i in (0, 1)}
    return RotateAt(rope).eval(), (torch.ones(2, HEADS, 5, DIM), torch.ones(2, 5, dtype=torch.int64)), sizes


def onnx_program(model):
    run = onnxruntime.InferenceSession(model.SerializeToString()).run
    names = [each.name for each in model.graph.input]
    opset = next(each.version for each in model.opset_import if each.domain == "")
    return f"opset {opset}", len(model.graph.node), lambda *given: run(None, dict(zip(names, given)))[0]


def torch_export(rope, strict=False):
    module, example, any_sizes = torch_program(rope)
    program = torch.export.export(module, example, dynamic_shapes=any_sizes, strict=strict)
    saved = io.BytesIO()
    torch.export.save(program, saved)
    saved.seek(0)
    loaded = torch.export.load(saved).module()
    nodes = sum(node.op == "call_function" for node in program.graph.nodes)
    return "ATen", nodes, lambda *given: loaded(*(torch.tensor(each) for each in given)).numpy()


def torch_onnx(rope):
    module, example, any_sizes = torch_program(rope)
    program = torch.onnx.export(module, example, dynamic_shapes=any_sizes, dynamo=True, verbose=False)
    return onnx_program(program.model_proto)


def from_ndonnx(rope):
    x = ndx.argument(shape=("batch", HEADS, "seq", DIM), dtype=ndx.float32)
    positions = ndx.argument(shape=("batch", "seq"), dtype=ndx.int64)
    return onnx_program(ndx.build({"x": x, "positions": positions}, {"y": rope(x, positions=positions, seq_dim=2)}))


def jax_export(rope):
    batch, seq = jax.export.symbolic_shape("batch, seq")
    x = jax.ShapeDtypeStruct((batch, HEADS, seq, DIM), jnp.float32)
    positions = jax.ShapeDtypeStruct((batch, seq), jnp.int32)
    call = jax.jit(lambda x, positions: rope(x, positions=positions, seq_dim=2))
    exported = jax.export.deserialize(jax.export.export(call)(x, positions).serialize())
    nodes = sum(" = stablehlo." in line for line in exported.mlir_module().splitlines())
    return "StableHLO", nodes, lambda x, positions: np.asarray(exported.call(x, positions.astype(np.int32)))


COLUMNS = {NEAR: "< 2^17", FAR: "int32"}  # columns of errors from the truth, by the limit of positions
BOUNDS = dict.fromkeys(COLUMNS.values(), FROM_TRUTH) | {"eager": FROM_EAGER}
# For each exporter: a function that returns the format, the number of nodes and the program; and the largest position.
EXPORTERS = {
    "torch.export": (torch_export, FAR),
    "torch.export, strict": (partial(torch_export, strict=True), FAR),
    "torch.onnx, dynamo": (torch_onnx, FAR),
    "ndonnx": (from_ndonnx, FAR),
    "ONNX's operator": (lambda rope: onnx_program(to_onnx_rotary_embedding(rope, NEAR)), NEAR),
    "jax.export": (jax_export, FAR),
}


def cases(layout, sizes, limit):
    """Numbers, positions below `limit`, and the rotated pairs as complex numbers. Angles are exact in float64."""
    random = np.random.default_rng(0)
    pool = np.append(random.integers(0 if limit == NEAR else -limit, limit, 100), [0, limit - 1])
    exact = common.exact_rotations(pool)
    for batch, seq in sizes:
        x = random.standard_normal((batch, HEADS, seq, DIM)).clip(-3, 3).astype(np.float32)
        at = random.choice(len(pool), (batch, seq))
        yield x, pool[at], common.complex_pairs(x, layout) * exact[at][:, None]


def measure(sizes, layouts):
    """Yield a row for each exporter and layout."""
    for layout in layouts:
        rope = RotaryEmbedding(head_dim=DIM, layout=layout, base=BASE)
        given = {limit: list(cases(layout, sizes, limit)) for limit in COLUMNS}
        for name, (make, largest) in EXPORTERS.items():
            form, nodes, run = make(rope)
            row, from_eager = {"exporter": name, "layout": layout, "format": form, "nodes": nodes}, []
            for limit in (limit for limit in COLUMNS if limit <= largest):
                from_truth = []
                for x, positions, truth in given[limit]:
                    y = run(x, positions)
                    from_truth.append(common.largest_difference(common.complex_pairs(y, layout), truth))
                    from_eager.append(common.largest_difference(y, rope(x, positions=positions, seq_dim=2)))
                row[COLUMNS[limit]] = float(np.max(from_truth))
            yield row | {"eager": float(np.max(from_eager))}


def main(argv=None):
    arguments = common.option_parser(__doc__).parse_args(argv)
    warnings.simplefilter("ignore")  # exporters warn
    logging.disable(logging.WARNING)  # and log
    sizes = [(1, 1), (3, 17)] if arguments.quick else [(1, 1), (2, 5), (3, 100), (1, 4097)]
    layouts = LAYOUTS[:1] if arguments.quick else LAYOUTS

    rows, tables, headings = list(measure(sizes, layouts)), [], ("exporter", "format", "nodes", *BOUNDS)
    for layout in layouts:
        lines = [[row.get(name) for name in headings] for row in rows if row["layout"] == layout]
        tables.append(common.Table(f"Largest error, {layout}", headings, lines))
    notes = (
        "Exported programs rotate float32 numbers up to 3 at positions below 2^17 and at any int32. Errors are from "
        "the truth, and from the eager result of NumPy. Programs are traced with dynamic batch and sequence at 2 x 5, "
        f"and run at {', '.join(f'{batch} x {seq}' for batch, seq in sizes)}."
    )
    packages = ("torch", "jax", "ndonnx", "onnx", "onnxscript", "onnxruntime")
    common.publish(arguments, "exporters", "Exported programs", notes, packages, tables)
    wrong = [row for row in rows if not all(row.get(name, 0.0) <= bound for name, bound in BOUNDS.items())]
    common.fail_if(wrong, "errors above their bounds")


if __name__ == "__main__":
    main()
