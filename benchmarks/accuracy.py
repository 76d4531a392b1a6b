"""How far sines and cosines are from the truth, ours and those of installed packages, by position.

Run: `python benchmarks/accuracy.py [--quick]`. It prints a table and writes it to benchmarks/results/accuracy.md.
The truth is mpmath's, from exact frequencies; head_dim is 128 and the base 10,000. It fails where an exact table of
ours is more than 2e-7 off.
"""

import argparse
import importlib
import importlib.util
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import mpmath
import numpy as np
from rich.console import Console
from rich.table import Table

import rope_xp

DIM, BASE = 128, 10_000.0
PAIRS = DIM // 2
LIMITS = [2**11, 2**17, 2**20, 2**24, 2**31]
LARGEST_TABLE = 2**20  # positions for which a peer that can only tabulate is asked to do so
RESULTS = Path(__file__).parent / "results"


def truth(positions):
    with mpmath.workprec(200):
        frequencies = [mpmath.mpf(BASE) ** (mpmath.mpf(-2 * j) / DIM) for j in range(PAIRS)]
        angles = [[mpmath.mpf(p) * w for w in frequencies] for p in positions.tolist()]
        sin = np.array([[float(mpmath.sin(a)) for a in row] for row in angles])
        return sin, np.array([[float(mpmath.cos(a)) for a in row] for row in angles])


def ours(backend, phase="exact"):
    """Tables of rope_xp on a backend: numpy, torch, torch.compile, jax.jit or mlx."""
    rope = rope_xp.RotaryEmbedding(head_dim=DIM, layout="half", base=BASE, phase=phase)
    if backend == "numpy":
        return lambda positions: rope.sincos(positions.astype(np.int32))
    if backend == "mlx":
        mx = importlib.import_module("mlx.core")
        return lambda positions: rope.sincos(mx.array(positions.astype(np.int32)))
    if backend == "jax.jit":
        jax = importlib.import_module("jax")
        tables = jax.jit(rope.sincos)
        return lambda positions: tables(positions.astype(np.int32))
    torch = importlib.import_module("torch")
    tables = torch.compile(rope.sincos) if backend == "torch.compile" else rope.sincos
    return lambda positions: tables(torch.tensor(positions))


def notebook():
    """The notebook's float64 product in NumPy, which it hands to JAX as float32."""
    inv_freq = 1.0 / BASE ** (np.arange(0, DIM, 2) / DIM)

    def tables(positions):
        angles = np.outer(positions, inv_freq)
        return np.sin(angles).astype(np.float32), np.cos(angles).astype(np.float32)

    return tables


def transformers(cast=None):
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = {"rope_type": "default", "rope_theta": BASE}
    module = LlamaRotaryEmbedding(LlamaConfig(hidden_size=DIM, num_attention_heads=1, rope_parameters=parameters))
    module = module.to(getattr(torch, cast)) if cast else module

    def tables(positions):
        cos, sin = module(torch.zeros(1), torch.tensor(positions)[None])
        return sin[0, :, :PAIRS], cos[0, :, :PAIRS]

    return tables


def rotary_embedding_torch():
    import torch
    from rotary_embedding_torch import RotaryEmbedding

    module = RotaryEmbedding(dim=DIM, theta=BASE, cache_if_possible=False)

    def tables(positions):
        angles = module(torch.tensor(positions))[:, ::2]
        return angles.sin(), angles.cos()

    return tables


def x_transformers():
    import torch
    from x_transformers.x_transformers import RotaryEmbedding

    module = RotaryEmbedding(DIM, base=BASE)

    def tables(positions):
        angles = module(torch.tensor(positions))[0][0, :, ::2]
        return angles.sin(), angles.cos()

    return tables


def torchtune():
    """Tabulated up to the largest position; no further than memory allows.

    The one file is loaded by itself: the package asks for a torchao that does not load beside a recent torch.
    """
    import torch

    package = importlib.util.find_spec("torchtune")
    if package is None:
        raise ImportError("No module named 'torchtune'")
    file = Path(package.origin).parent / "modules" / "position_embeddings.py"
    spec = importlib.util.spec_from_file_location("torchtune_position_embeddings", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def tables(positions):
        if positions.max() > LARGEST_TABLE:
            return None
        cache = module.RotaryPositionalEmbeddings(DIM, max_seq_len=int(positions.max()) + 1, base=BASE).cache
        rows = cache[torch.tensor(positions)]
        return rows[..., 1], rows[..., 0]

    return tables


def equinox():
    """Tabulated up to the largest position; no further than memory allows."""
    import equinox as eqx
    import jax.numpy as jnp

    def tables(positions):
        if positions.max() > LARGEST_TABLE:
            return None
        peer = eqx.nn.RotaryPositionalEmbedding
        cos, sin = peer.precompute_freqs_cis(DIM, int(positions.max()) + 1, BASE, jnp.float32)
        return np.asarray(sin)[positions], np.asarray(cos)[positions]

    return tables


def mlx():
    """Read off what mx.fast.rope makes of vectors that point along the first channel of each pair."""
    import mlx.core as mx

    first = mx.array(np.concatenate([np.ones(PAIRS), np.zeros(PAIRS)]).astype(np.float32))[None, None, None]

    def tables(positions):
        turned = [
            np.array(mx.fast.rope(first, DIM, traditional=False, base=BASE, scale=1.0, offset=p))[0, 0, 0]
            for p in positions.tolist()
        ]
        return np.stack(turned)[:, PAIRS:], np.stack(turned)[:, :PAIRS]

    return tables


# row: (package whose version is shown, what makes its tables)
ROWS = {
    "rope_xp, NumPy": ("numpy", lambda: ours("numpy")),
    "rope_xp, torch": ("torch", lambda: ours("torch")),
    "rope_xp, torch.compile": ("torch", lambda: ours("torch.compile")),
    "rope_xp, jax.jit": ("jax", lambda: ours("jax.jit")),
    "rope_xp, MLX": ("mlx", lambda: ours("mlx")),
    'rope_xp, phase="float32"': ("numpy", lambda: ours("numpy", "float32")),
    "the notebook (float64)": ("numpy", notebook),
    "transformers Llama": ("transformers", transformers),
    "  .to(bfloat16)": ("transformers", lambda: transformers("bfloat16")),
    "  .half()": ("transformers", lambda: transformers("float16")),
    "rotary-embedding-torch": ("rotary-embedding-torch", rotary_embedding_torch),
    "x-transformers": ("x-transformers", x_transformers),
    "torchtune": ("torchtune", torchtune),
    "equinox": ("equinox", equinox),
    "mx.fast.rope": ("mlx", mlx),
}


EXACT = ("rope_xp, NumPy", "rope_xp, torch", "rope_xp, torch.compile", "rope_xp, jax.jit", "rope_xp, MLX")
BOUND = 2e-7


def to_numpy(table):
    table = table.detach().float().numpy() if hasattr(table, "detach") else np.array(table)
    return table.astype(np.float64)


def measure(count):
    """Yield a row for each candidate: its name, its package's version, and its largest error below each limit."""
    random = np.random.default_rng(0)
    groups = [np.append(random.integers(0, limit, count), limit - 1) for limit in LIMITS]
    truths = [truth(positions) for positions in groups]
    for name, (package, make) in ROWS.items():
        try:
            shown = f"{package} {version(package)}"
            tables = make()
        except (PackageNotFoundError, ImportError) as missing:
            if name in EXACT:
                raise
            yield name, f"not measured: {' '.join(str(missing).split())}", [None] * len(LIMITS)
            continue
        errors = []
        for positions, exact in zip(groups, truths):
            found = tables(positions)
            both = None if found is None else zip(found, exact)
            errors.append(None if both is None else max(np.abs(to_numpy(f) - e).max() for f, e in both))
        yield name, shown, errors


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few positions, for a test")
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    arguments = parser.parse_args(argv)
    out = arguments.out or RESULTS / ("quick" if arguments.quick else "") / "accuracy.md"
    warnings.simplefilter("ignore")  # those of the packages compared with

    heads = [f"2^{limit.bit_length() - 1}" for limit in LIMITS]
    table = Table(title="Largest error of sin and cos at positions below", caption="-: not asked for such a table")
    table.add_column("", no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right")
    lines = [f"| | version | {' | '.join(heads)} |", f"|---|---|{'---|' * len(heads)}"]
    results = {}
    for name, shown, errors in measure(20 if arguments.quick else 400):
        cells = ["-" if error is None else f"{error:.1e}" for error in errors]
        results[name.strip()] = errors
        table.add_row(name, *cells)
        lines.append(f"| {name.strip()} | {shown} | {' | '.join(cells)} |")
    Console().print(table)
    out.parent.mkdir(parents=True, exist_ok=True)
    title = f"Largest error of sin and cos, head_dim {DIM}, base {BASE:g}, at positions below the head of the column.\n"
    made = "Made by `python benchmarks/accuracy.py`; the truth is mpmath's.\n"
    out.write_text("\n".join([title, made, *lines, ""]))
    off = {name: errors for name, errors in results.items() if name in EXACT and not np.max(errors) <= BOUND}
    if off:
        sys.exit(f"more than {BOUND} off: {off}")


if __name__ == "__main__":
    main()
