"""How far the programs of exporters are from the truth and from eager code, at sizes they were not made with.

Run: `python benchmarks/exporters.py [--quick]`. It prints a table and writes it to benchmarks/results/exporters.md and
.json. The truth is mpmath's angles and complex products in float64; head_dim is 128, the base 10,000, and numbers are
float32 up to 3. It fails where a program is more than 1e-6 off the eager result, or 2e-6 off the truth.
"""

import argparse
import io
import json
import logging
import sys
import warnings
from importlib.metadata import version
from pathlib import Path

import jax
import jax.numpy as jnp
import mpmath
import ndonnx as ndx
import numpy as np
import onnxruntime
import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from rope_xp import RotaryEmbedding
from rope_xp.onnx import to_onnx_rotary_embedding
from rope_xp.torch import RotaryEmbedding as Module

DIM, BASE, HEADS = 128, 10_000.0, 2
LAYOUTS = ("half", "interleaved")
NEAR, FAR = 2**17, 2**31
RESULTS = Path(__file__).parent / "results"
# Tables are right to 2e-7; two products of numbers up to 3, and three roundings of numbers up to 4.3, of 2**-24 each.
FROM_TRUTH = 2 * 3 * 2e-7 + 3 * 4.3 * 2.0**-24
FROM_EAGER = 1e-6


class RotatesAt(torch.nn.Module):
    def __init__(self, rope):
        super().__init__()
        self.rotary = Module(rope, seq_dim=2)

    def forward(self, x, where):
        return self.rotary(x, positions=where)


def torch_program(rope):
    """The arguments of both of torch's exporters: a module, an example of sizes and which sizes may change."""
    sizes = {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC}, {i: torch.export.Dim.DYNAMIC for i in (0, 1)}
    return RotatesAt(rope).eval(), (torch.ones(2, HEADS, 5, DIM), torch.ones(2, 5, dtype=torch.int64)), sizes


def session(model):
    run = onnxruntime.InferenceSession(model.SerializeToString()).run
    names = [each.name for each in model.graph.input]
    opset = next(each.version for each in model.opset_import if each.domain == "")
    return f"opset {opset}", len(model.graph.node), lambda *given: run(None, dict(zip(names, given)))[0]


def torch_export(rope, strict):
    module, example, sizes = torch_program(rope)
    program = torch.export.export(module, example, dynamic_shapes=sizes, strict=strict)
    saved = io.BytesIO()
    torch.export.save(program, saved)
    saved.seek(0)
    loaded = torch.export.load(saved).module()
    nodes = sum(node.op == "call_function" for node in program.graph.nodes)
    return "ATen", nodes, lambda *given: loaded(*(torch.tensor(each) for each in given)).numpy()


def torch_onnx(rope):
    module, example, sizes = torch_program(rope)
    program = torch.onnx.export(module, example, dynamic_shapes=sizes, dynamo=True, verbose=False)
    return session(program.model_proto)


def from_ndonnx(rope):
    x = ndx.argument(shape=("batch", HEADS, "seq", DIM), dtype=ndx.float32)
    where = ndx.argument(shape=("batch", "seq"), dtype=ndx.int64)
    return session(ndx.build({"x": x, "where": where}, {"y": rope(x, positions=where, seq_dim=2)}))


def operator(rope):
    return session(to_onnx_rotary_embedding(rope, NEAR))


def jax_export(rope):
    batch, seq = jax.export.symbolic_shape("batch, seq")
    x = jax.ShapeDtypeStruct((batch, HEADS, seq, DIM), jnp.float32)
    where = jax.ShapeDtypeStruct((batch, seq), jnp.int32)
    call = jax.jit(lambda x, where: rope(x, positions=where, seq_dim=2))
    exported = jax.export.deserialize(jax.export.export(call)(x, where).serialize())
    nodes = sum(" = stablehlo." in line for line in exported.mlir_module().splitlines())
    return "StableHLO", nodes, lambda x, where: np.asarray(exported.call(x, where.astype(np.int32)))


# name: (packages whose versions are shown, what makes format, number of nodes and what runs it, largest position)
EXPORTERS = {
    "torch.export": (("torch",), lambda rope: torch_export(rope, strict=False), FAR),
    "torch.export, strict": (("torch",), lambda rope: torch_export(rope, strict=True), FAR),
    "torch.onnx, dynamo": (("torch", "onnxscript", "onnxruntime"), torch_onnx, FAR),
    "ndonnx": (("ndonnx", "onnxruntime"), from_ndonnx, FAR),
    "ONNX's operator": (("onnx", "onnxruntime"), operator, NEAR),
    "jax.export": (("jax",), jax_export, FAR),
}


def truths(layout, cases):
    """Every case rotated by complex numbers, with angles whose sines and cosines are exact to float64."""
    used = np.unique(np.concatenate([where.reshape(-1) for _, where in cases]))
    with mpmath.workprec(200):
        w = [mpmath.mpf(BASE) ** (mpmath.mpf(-2 * j) / DIM) for j in range(DIM // 2)]
        exact = np.array([[complex(mpmath.expj(mpmath.mpf(int(p)) * frequency)) for frequency in w] for p in used])
    for x, where in cases:
        turn = exact[np.searchsorted(used, where)][:, None]
        pairs = x.astype(np.float64).reshape(*x.shape[:-1], *((2, -1) if layout == "half" else (-1, 2)))
        axis = -2 if layout == "half" else -1
        turned = (pairs.take(0, axis=axis) + 1j * pairs.take(1, axis=axis)) * turn
        yield np.stack([turned.real, turned.imag], axis=axis).reshape(x.shape)


def cases(sizes, limit):
    random = np.random.default_rng(0)
    pool = np.append(random.integers(0 if limit == NEAR else -limit, limit, 100), [0, limit - 1])
    for batch, seq in sizes:
        x = random.standard_normal((batch, HEADS, seq, DIM)).clip(-3, 3).astype(np.float32)
        yield x, random.choice(pool, (batch, seq))


def measure(sizes):
    """Yield a row for each exporter and layout."""
    for layout in LAYOUTS:
        rope = RotaryEmbedding(head_dim=DIM, layout=layout, base=BASE)
        given = {limit: [*cases(sizes, limit)] for limit in (NEAR, FAR)}
        exact = {limit: [*truths(layout, given[limit])] for limit in (NEAR, FAR)}
        for name, (packages, make, largest) in EXPORTERS.items():
            form, nodes, run = make(rope)
            off = {"truth": {}, "eager": {}}
            for limit in [limit for limit in (NEAR, FAR) if limit <= largest]:
                found = [run(*case) for case in given[limit]]
                eager = [rope(x, positions=where, seq_dim=2) for x, where in given[limit]]
                for what, wanted in (("truth", exact[limit]), ("eager", eager)):
                    off[what][limit] = float(np.max([np.abs(f - one).max() for f, one in zip(found, wanted)]))
            yield {
                "exporter": name,
                "layout": layout,
                "versions": {package: version(package) for package in packages},
                "format": form,
                "nodes": nodes,
                "off the truth": off["truth"],
                "off eager": float(np.max([*off["eager"].values()])),
                "sizes": sizes,
            }


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few sizes, for a test")
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    arguments = parser.parse_args(argv)
    out = arguments.out or RESULTS / ("quick" if arguments.quick else "") / "exporters.md"
    warnings.simplefilter("ignore")  # those of the exporters, and what they log
    logging.disable(logging.WARNING)
    sizes = [(1, 1), (3, 17)] if arguments.quick else [(1, 1), (2, 5), (3, 100), (1, 4097)]

    run = ", ".join(f"{batch} x {seq}" for batch, seq in sizes)
    heads = ["", "layout", "format", "nodes", "<2^17", "int32", "eager"]
    caption = f"traced at 2 x 5; batch x seq run: {run}"
    table = Table(title="Largest error of exported programs", caption=caption, box=SIMPLE, padding=0)
    for head in heads:
        table.add_column(head, justify="right" if head in heads[3:] else "left", no_wrap=True)
    lines = [
        "Largest error of exported programs: of float32 numbers up to 3, rotated at positions below 2^17 and at any",
        "int32, from the truth; and from the eager result of NumPy.",
        "",
        f"Made by `python benchmarks/exporters.py`; traced with dynamic batch and sequence at 2 x 5, and run at {run}.",
        "",
        "| exporter | versions | layout | format | nodes | truth, < 2^17 | truth, int32 | eager |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows = []
    for row in measure(sizes):
        rows.append(row)
        errors = [row["off the truth"].get(limit) for limit in (NEAR, FAR)] + [row["off eager"]]
        cells = ["-" if error is None else f"{error:.1e}" for error in errors]
        table.add_row(row["exporter"], row["layout"], row["format"], str(row["nodes"]), *cells)
        versions = ", ".join(f"{package} {found}" for package, found in row["versions"].items())
        middle = f"{row['layout']} | {row['format']} | {row['nodes']}"
        lines.append(f"| {row['exporter']} | {versions} | {middle} | {' | '.join(cells)} |")
    Console().print(table)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join([*lines, ""]))
    out.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    wrong = [
        f"{row['exporter']}, {row['layout']}"
        for row in rows
        if not (np.max([*row["off the truth"].values()]) <= FROM_TRUTH and row["off eager"] <= FROM_EAGER)
    ]
    if wrong:
        sys.exit(f"too far off: {'; '.join(wrong)}")


if __name__ == "__main__":
    main()
