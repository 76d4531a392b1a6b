"""How far sines and cosines are from the truth, ours and those of installed packages, by position.

Run: `python benchmarks/accuracy.py [--quick] [--out FILE]`. It prints a table and writes it to
benchmarks/results/accuracy.md and accuracy.json. The truth is computed by mpmath from exact frequencies; head_dim is
128 and the base is 10,000. It fails where an exact table of rope_xp is more than 2e-7 off.
"""

import importlib
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python -P leaves it out
import common
from common import BASE, DIM

import rope_xp

PAIRS = DIM // 2
LIMITS = {f"2^{bits}": 2**bits for bits in (11, 17, 20, 24, 31)}
LARGEST_TABLE = 2**20  # for packages that make a table of all positions below the largest
WHOLE_TABLES = ("torchtune", "equinox")
BOUND = 2e-7  # for the exact tables of rope_xp


def ours(backend, phase="exact"):
    """Tables of rope_xp on numpy, torch, torch.compile, jax.jit or mlx."""
    sincos = rope_xp.RotaryEmbedding(head_dim=DIM, layout="half", base=BASE, phase=phase).sincos
    if backend == "numpy":
        return lambda positions: sincos(positions.astype(np.int32))
    if backend == "jax.jit":
        tables = importlib.import_module("jax").jit(sincos)
        return lambda positions: tables(positions.astype(np.int32))
    if backend == "mlx":
        array = importlib.import_module("mlx.core").array
        return lambda positions: sincos(array(positions.astype(np.int32)))
    tables = torch.compile(sincos) if backend == "torch.compile" else sincos
    return lambda positions: tables(torch.tensor(positions))


def notebook():
    """The notebook multiplies in float64 of NumPy, and gives the tables to JAX as float32."""
    inv_freq = 1.0 / BASE ** (np.arange(0, DIM, 2) / DIM)
    return lambda positions: [f(np.outer(positions, inv_freq)).astype(np.float32) for f in (np.sin, np.cos)]


def of_angles(angles):
    """Tables of a function that computes angles, in torch."""
    return lambda positions: (angles(positions).sin(), angles(positions).cos())


def transformers(cast=None):
    module = common.llama_tables()
    module = module.to(getattr(torch, cast)) if cast else module

    def tables(positions):
        cos, sin = module(torch.zeros(1), torch.tensor(positions)[None])
        return sin[0, :, :PAIRS], cos[0, :, :PAIRS]

    return tables


def rotary_embedding_torch():
    from rotary_embedding_torch import RotaryEmbedding

    module = RotaryEmbedding(dim=DIM, theta=BASE, cache_if_possible=False)
    return of_angles(lambda positions: module(torch.tensor(positions))[:, ::2])


def x_transformers():
    from x_transformers.x_transformers import RotaryEmbedding

    module = RotaryEmbedding(DIM, base=BASE)
    return of_angles(lambda positions: module(torch.tensor(positions))[0][0, :, ::2])


def torchtune():
    peer = common.load_file("torchtune", "modules/position_embeddings.py").RotaryPositionalEmbeddings

    def tables(positions):
        rows = peer(DIM, max_seq_len=int(positions.max()) + 1, base=BASE).cache[torch.tensor(positions)]
        return rows[..., 1], rows[..., 0]

    return tables


def equinox():
    from equinox.nn import RotaryPositionalEmbedding

    def tables(positions):
        count = int(positions.max()) + 1
        cos, sin = RotaryPositionalEmbedding.precompute_freqs_cis(DIM, count, BASE, np.float32)
        return np.asarray(sin)[positions], np.asarray(cos)[positions]

    return tables


def mlx():
    """mx.fast.rope has no tables: it rotates vectors of cos 1 and sin 0, which gives them."""
    mx = importlib.import_module("mlx.core")
    x, options = mx.array(np.repeat([1.0, 0.0], PAIRS).astype(np.float32))[None, None, None], {"traditional": False}

    def tables(positions):
        rotated = [mx.fast.rope(x, DIM, base=BASE, scale=1.0, offset=p, **options) for p in positions.tolist()]
        rotated = np.array(rotated)[:, 0, 0, 0]
        return rotated[:, PAIRS:], rotated[:, :PAIRS]

    return tables


# For each row: the package whose tables they are, and a function that makes the function of positions.
EXACT = {
    "rope_xp, NumPy": ("numpy", lambda: ours("numpy")),
    "rope_xp, torch": ("torch", lambda: ours("torch")),
    "rope_xp, torch.compile": ("torch", lambda: ours("torch.compile")),
    "rope_xp, jax.jit": ("jax", lambda: ours("jax.jit")),
    "rope_xp, MLX": ("mlx", lambda: ours("mlx")),
}
OTHERS = {
    'rope_xp, phase="float32"': ("numpy", lambda: ours("numpy", "float32")),
    "the notebook (float64)": ("numpy", notebook),
    "transformers Llama": ("transformers", transformers),
    "Llama .to(bfloat16)": ("transformers", lambda: transformers("bfloat16")),
    "Llama .half()": ("transformers", lambda: transformers("float16")),
    "rotary-embedding-torch": ("rotary-embedding-torch", rotary_embedding_torch),
    "x-transformers": ("x-transformers", x_transformers),
    "torchtune": ("torchtune", torchtune),
    "equinox": ("equinox", equinox),
    "mx.fast.rope": ("mlx", mlx),
}


def measure(count, missing):
    """Yield the largest error of each row below each limit; None where a package makes no such table."""
    random = np.random.default_rng(0)
    groups = [np.append(random.integers(0, limit, count), limit - 1) for limit in LIMITS.values()]
    truths = [common.exact_rotations(positions) for positions in groups]
    for name, (package, make) in (EXACT | OTHERS).items():
        try:
            version(package)
            tables = make()
        except (PackageNotFoundError, ImportError) as error:
            if name in EXACT:
                raise
            missing[name] = " ".join(str(error).split())
            continue
        errors = dict.fromkeys(LIMITS)
        for head, positions, truth in zip(LIMITS, groups, truths):
            if name not in WHOLE_TABLES or positions.max() <= LARGEST_TABLE:
                sin, cos = (common.to_numpy(table) for table in tables(positions))
                errors[head] = common.largest_difference(cos + 1j * sin, truth)
        yield {"tables": name, "errors": errors}


def main(argv=None):
    arguments = common.parser(__doc__).parse_args(argv)
    warnings.simplefilter("ignore")  # the other packages warn
    missing = {}
    rows = list(measure(20 if arguments.quick else 400, missing))
    lines = []
    for row in rows:
        errors = row["errors"].values()
        lines.append([row["tables"], *("-" if error is None else f"{error:.1e}" for error in errors)])
    note = "-: this package makes no table of so many positions here."
    table = common.Table("Largest error of sin and cos, by largest position", ("", *LIMITS), lines, note)
    packages = dict.fromkeys(package for package, _ in (EXACT | OTHERS).values())
    made_with = common.facts(__file__, argv, *packages) | ({"not measured": missing} if missing else {})
    notes = f"Errors at random positions below the head of a column; head_dim {DIM}, base {BASE:g}; truth by mpmath."
    common.publish(arguments, "accuracy", "Accuracy", notes, made_with, [table], rows)
    off = [row for row in rows if row["tables"] in EXACT and not np.max([*row["errors"].values()]) <= BOUND]
    if off:
        sys.exit(f"more than {BOUND} off: {off}")


if __name__ == "__main__":
    main()
