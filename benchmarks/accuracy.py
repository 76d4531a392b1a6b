"""Errors of sines and cosines by position, those of rope_xp and of installed packages, and what they do to attention.

Run: `python benchmarks/accuracy.py [--quick] [--out FILE]`. It prints tables and writes them to
benchmarks/results/accuracy.md. Below 2^17 it measures every position, beyond a random sample. The truth
is computed by mpmath from exact frequencies, that of every position in np.longdouble from mpmath's
turns per position; head_dim is 128 and the base is 10,000. It fails if an exact table of rope_xp has
an error above 2e-7.
"""

import importlib
import warnings
from importlib.metadata import version
from pathlib import Path

import common
import mpmath
import numpy as np
import torch
from common import BASE, DIM
from ml_dtypes import bfloat16

import rope_xp

PAIRS = DIM // 2
LIMITS = {f"2^{bits}": 2**bits for bits in (11, 17, 20, 24, 31)}
LARGEST_TABLE = 2**20  # for packages that make a table of all positions below the largest
EVERY = 2**17  # every position below it is measured
TRUTH_BOUND = 1e-10  # for the truth in np.longdouble, where that has the 53 bits of a float64, against mpmath's
WHOLE_TABLES = ("torchtune", "equinox")
BOUND = 2e-7  # for the exact tables of rope_xp
MOVED_AT = (1_000, 100_000, 10_000_000)  # positions at which attention is compared


def rope_xp_tables(backend, **options):
    """Tables of rope_xp on numpy, torch, torch.compile, jax.jit or mlx."""
    sincos = rope_xp.RotaryEmbedding(head_dim=DIM, layout="half", base=BASE, **options).sincos
    if backend.startswith("torch"):
        tables = torch.compile(sincos) if backend == "torch.compile" else sincos
        return lambda positions: tables(torch.tensor(positions))
    tables = importlib.import_module("jax").jit(sincos) if backend == "jax.jit" else sincos
    array = importlib.import_module("mlx.core").array if backend == "mlx" else np.asarray
    return lambda positions: tables(array(positions.astype(np.int32)))


def notebook():
    """The notebook computes tables in float64 with NumPy. JAX converts them to float32."""
    inv_freq = 1.0 / BASE ** (np.arange(0, DIM, 2) / DIM)
    return lambda positions: [f(np.outer(positions, inv_freq)).astype(np.float32) for f in (np.sin, np.cos)]


def from_angles(angles):
    """Tables from a function that computes angles in torch."""
    return lambda positions: (angles(positions).sin(), angles(positions).cos())


def transformers(cast=None):
    module = common.llama_rotary()
    module = module.to(getattr(torch, cast)) if cast else module

    def tables(positions):
        cos, sin = module(torch.zeros(1), torch.tensor(positions)[None])
        return sin[0, :, :PAIRS], cos[0, :, :PAIRS]

    return tables


def rotary_embedding_torch():
    from rotary_embedding_torch import RotaryEmbedding

    module = RotaryEmbedding(dim=DIM, theta=BASE, cache_if_possible=False)
    return from_angles(lambda positions: module(torch.tensor(positions))[:, ::2])


def x_transformers():
    from x_transformers.x_transformers import RotaryEmbedding

    module = RotaryEmbedding(DIM, base=BASE)
    return from_angles(lambda positions: module(torch.tensor(positions))[0][0, :, ::2])


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
    """mx.fast.rope has no tables. Rotating the pair (1, 0) gives the cosine and the sine."""
    mx = importlib.import_module("mlx.core")
    x, options = mx.array(np.repeat([1.0, 0.0], PAIRS).astype(np.float32)), {"traditional": False}

    def tables(positions):
        rows, offset = mx.broadcast_to(x, (len(positions), 1, 1, DIM)), mx.array(positions.astype(np.int32))
        rotated = np.array(mx.fast.rope(rows, DIM, base=BASE, scale=1.0, offset=offset, **options))[:, 0, 0]
        return rotated[:, PAIRS:], rotated[:, :PAIRS]

    return tables


# For each row: the package that makes the tables, and a function that returns a function from positions to tables.
MAKERS = {
    "rope_xp, NumPy": ("numpy", lambda: rope_xp_tables("numpy")),
    "rope_xp, NumPy without numba": ("numpy", lambda: rope_xp_tables("numpy", kernel="blocked")),
    "rope_xp, torch": ("torch", lambda: rope_xp_tables("torch")),
    "rope_xp, torch.compile": ("torch", lambda: rope_xp_tables("torch.compile")),
    "rope_xp, jax.jit": ("jax", lambda: rope_xp_tables("jax.jit")),
    "rope_xp, MLX": ("mlx", lambda: rope_xp_tables("mlx")),
    'rope_xp, phase="float32"': ("numpy", lambda: rope_xp_tables("numpy", phase="float32")),
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
EXACT = list(MAKERS)[:6]  # these must be measured, and be within the bound


def every_rotation(count):
    """cos + i sin of the positions below `count` times frequency, "positions pairs", in complex128."""
    with mpmath.workprec(200):
        per_position = [mpmath.mpf(BASE) ** (mpmath.mpf(-2 * j) / DIM) / (2 * mpmath.pi) for j in range(PAIRS)]
        per_position = np.array([mpmath.nstr(turns, 30) for turns in per_position], dtype=np.longdouble)
    turns = np.arange(count, dtype=np.longdouble)[:, None] * per_position
    rotations = np.exp(2j * np.pi * (turns - np.rint(turns)).astype(np.float64))
    sample = np.append(np.random.default_rng(1).integers(0, count, 50), count - 1)
    error = common.largest_difference(rotations[sample], common.exact_rotations(sample))
    common.fail_if([error] * (not error <= TRUTH_BOUND), f"the truth is wrong by more than {TRUTH_BOUND}")
    return rotations


def positions_and_truths(count, every):
    """For each limit: every position below it, or a sample of `count` and the last one; and the exact rotations."""
    random, rotations = np.random.default_rng(0), every_rotation(every)
    for limit in LIMITS.values():
        if limit <= every:
            yield np.arange(limit), rotations[:limit]
        else:
            positions = np.append(random.integers(0, limit, count), limit - 1)
            yield positions, common.exact_rotations(positions)


def measure(groups, missing):
    """Yield the largest errors of each row, below each limit; None if a package is not measured up to this limit."""
    for name, (package, make) in MAKERS.items():
        try:
            version(package)
            tables = make()
        except ImportError as error:
            if name in EXACT:
                raise
            missing[name] = common.message(error)
            continue
        errors, largest = dict.fromkeys(LIMITS), 0.0
        for limit, (positions, truth) in zip(LIMITS, groups):
            if name not in WHOLE_TABLES or positions.max() <= LARGEST_TABLE:
                sin, cos = (common.to_numpy(table) for table in tables(positions))
                largest = errors[limit] = float(np.maximum(largest, common.largest_difference(cos + 1j * sin, truth)))
        yield {"tables": name, "errors": errors}


def attention(rope, q, k, positions):
    """Weights of causal attention, "heads queries keys"."""
    q, k = rope(q, k, positions=positions, seq_dim=0)
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
    weights = np.exp(np.where(np.tri(len(q), dtype=bool), scores - scores.max(-1, keepdims=True), -np.inf))
    return weights / weights.sum(-1, keepdims=True)


def moved_attention():
    """For each position, the share of a query's attention that moves to other tokens with rounded phases.

    Of 256 tokens before the position, the query for which the share is largest. Queries and keys are random.
    """
    rope = rope_xp.from_config(Path(__file__).parents[1] / "examples/llama-3.1-8b.json")
    q, k = np.random.default_rng(0).standard_normal((2, 256, 8, DIM), np.float32)
    for last in MOVED_AT:
        positions = np.arange(last - 256, last)
        true = attention(rope, q, k, positions)
        rounded = positions, positions.astype(bfloat16).astype(np.float32)
        found = [attention(rope.replace(phase="float32"), q, k, each) for each in rounded]
        yield [f"{last:,}", *(f"{50 * np.abs(each - true).sum(-1).max():.2g} %" for each in found)]


def main(argv=None):
    arguments = common.option_parser(__doc__).parse_args(argv)
    warnings.simplefilter("ignore")  # the other packages warn
    count, every = (20, LIMITS["2^11"]) if arguments.quick else (400, EVERY)
    missing = {}
    rows = list(measure(list(positions_and_truths(count, every)), missing))
    heads = [head if limit <= every else f"{head}, sample" for head, limit in LIMITS.items()]
    lines = [[row["tables"], *row["errors"].values()] for row in rows]
    note = (
        f"Every position below {every:,} is measured. A column marked as a sample has {count + 1} positions more, "
        "below its head: other positions may have larger errors. -: this package makes no table of so many positions."
    )
    table = common.Table("Largest error of sin and cos, by largest position", ("", *heads), lines, note)
    packages = dict.fromkeys([package for package, _ in MAKERS.values()] + ["numba"])
    notes = f"Errors at positions below the head of a column; head_dim {DIM}, base {BASE:g}; "
    notes += "truth by mpmath, or checked against it."
    note = (
        "The largest share of a query's attention that goes to other tokens than with exact phases: 256 tokens before "
        "the position attend to each other with the frequencies of Llama 3.1 8B; queries and keys are random."
    )
    heads = ("before position", "phases in float32", "positions in bfloat16, phases in float32")
    moved = common.Table("Attention that moves to other tokens", heads, [*moved_attention()], note)
    common.publish(arguments, "accuracy", "Accuracy", notes, packages, [table, moved], **{"not measured": missing})
    wrong = [row for row in rows if row["tables"] in EXACT and not np.max([*row["errors"].values()]) <= BOUND]
    common.fail_if(wrong, f"errors above {BOUND}")


if __name__ == "__main__":
    main()
