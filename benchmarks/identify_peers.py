"""What other packages compute, found out by calling them; and nine mistakes, each found and named.

`rope_xp.identify` calls a function with unit vectors at chosen positions. It needs no source and no config. The table
has one row for each package, and one for each mistake that people make when they port a model. A package that is not
installed has a row that says so. Run: `python benchmarks/identify_peers.py`. It exits with 1 if a row is not as
expected.
"""

import logging
import sys
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from math import ceil, floor, log, pi
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from rope_xp import RotaryEmbedding, YarnScaling, from_config, identify

HEAD_DIM = 64
Found = Any  # the report that `identify` returns


class Row(NamedTuple):
    """A function, what it is said to compute, and how it differs, by the names that `differences` gives."""

    name: str
    found: Callable[[], Found]
    stated: RotaryEmbedding
    differs: tuple[str, ...] = ()


def differences(found: Found, stated: RotaryEmbedding) -> tuple[str, ...]:
    """How what was found differs from what was stated."""
    rope, names = found.rope, []
    if rope is None:
        swapped = any("sin and cos are swapped" in reason for reason in found.reasons)
        return ("sincos order",) if swapped else ("no rotation",) if found.is_rotation is False else ("unknown",)
    same = {
        "axis": found.axis == "seq",
        "layout": rope.layout == stated.layout,
        "width": (rope.rotary_dim, rope.first_channel) == (stated.rotary_dim, stated.first_channel),
        "direction": (found.direction == -1) == stated.reverse,
        "base": rope.base == stated.base or rope.base is None,
        "offset": found.offset == 0,
    }
    names = [name for name, equal in same.items() if not equal]
    if not {"width", "base", "direction"} & {*names}:
        equal = np.allclose(rope.inv_freq, stated.inv_freq, rtol=1e-5, atol=1e-12)
        names += [] if equal else ["scaling"]
    if "scaling" not in names and abs(rope.attention_factor / stated.attention_factor - 1) > 1e-5:
        names.append("attention factor")
    return (*names, *([f"{found.precision} phases"] if found.precision != "exact" else []))


# transformers: the rotary module of a family, and the function that its attention calls


def family(model_type: str, **changes: Any) -> Row:
    """A family of transformers. The value that its config states is expected."""
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[model_type](**changes)
    stated = from_config(config)

    def found() -> Found:
        module = import_module(f"transformers.models.{model_type}.modeling_{model_type}")
        rotary = next(value for name, value in vars(module).items() if name.endswith("RotaryEmbedding"))(config)
        interleave = getattr(module, "apply_rotary_pos_emb_interleave", None)
        apply = interleave if stated.layout == "interleaved_to_half" else module.apply_rotary_pos_emb
        return identify(lambda x, positions: apply(x, x, *rotary(x, positions))[0], stated.head_dim)

    return Row(f"transformers: {model_type}", found, stated, ("float32 phases",))


def gpt_j() -> Found:
    """GPT-J has a table of all positions, and no rotary module."""
    gptj = import_module("transformers.models.gptj.modeling_gptj")
    table = gptj.create_sinusoidal_positions(2048, HEAD_DIM)

    def fn(x: Any, positions: Any) -> Any:  # batch seq heads dim
        sin, cos = table[positions].chunk(2, dim=-1)
        return gptj.apply_rotary_pos_emb(x, sin, cos)

    return identify(fn, HEAD_DIM, shape="batch seq heads dim")


def v_jepa_2() -> Found:
    vjepa2 = import_module("transformers.models.vjepa2.modeling_vjepa2")
    return identify(lambda x, positions: vjepa2.rotate_queries_or_keys(x, positions[None, None]), HEAD_DIM)


def nanochat(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """The formula of karpathy/nanochat: the sign of sin is the opposite of the usual one."""
    angle = positions[:, None] * 100_000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    one, other = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([one * cos + other * sin, -one * sin + other * cos], axis=-1)


# Other packages


def lucidrains() -> Found:
    """In bfloat16, rotary-embedding-torch also has its positions in bfloat16."""
    torch, package = import_module("torch"), import_module("rotary_embedding_torch")
    module = package.RotaryEmbedding(dim=HEAD_DIM)
    like = torch.zeros(1, dtype=torch.bfloat16)
    return identify(lambda x, positions: module.rotate_queries_or_keys(x), HEAD_DIM, like=like, seq_len=1024)


def lucidrains_float32() -> Found:
    package = import_module("rotary_embedding_torch")
    module = package.RotaryEmbedding(dim=HEAD_DIM)
    return identify(lambda x, positions: package.apply_rotary_emb(module(positions), x), HEAD_DIM)


def x_transformers() -> Found:
    package = import_module("x_transformers.x_transformers")
    module = package.RotaryEmbedding(HEAD_DIM)

    def fn(x: Any, positions: Any) -> Any:
        angles, scale = module(positions)
        return package.apply_rotary_pos_emb(x, angles, scale)

    return identify(fn, HEAD_DIM)


def equinox(theta: float) -> Callable[[], Found]:
    """Equinox keeps its tables by width and dtype, whatever theta is: the first theta of a process is that of all."""

    def found() -> Found:
        eqx, jnp = import_module("equinox"), import_module("jax.numpy")
        module = eqx.nn.RotaryPositionalEmbedding(HEAD_DIM, theta=theta)
        return identify(lambda x, positions: module(x), HEAD_DIM, like=jnp.zeros(1), shape="seq dim", seq_len=256)

    return found


def mlx() -> Found:
    mx = import_module("mlx.core")
    options = {"traditional": False, "base": 10_000.0, "scale": 1.0}

    def fn(x: Any, positions: Any) -> Any:  # one row of a batch for each position
        return mx.fast.rope(x[:, None, None], HEAD_DIM, offset=positions, **options)[:, 0, 0]

    return identify(fn, HEAD_DIM, like=mx.zeros(1), shape="seq dim")


def torchtune() -> Found:
    """One file of torchtune, because the package needs others that are large."""
    folder = folder_of("torchtune")
    spec = spec_from_file_location("torchtune_embeddings", folder / "modules" / "position_embeddings.py")
    module = module_from_spec(spec)  # pyright: ignore[reportArgumentType]
    spec.loader.exec_module(module)  # pyright: ignore[reportOptionalMemberAccess]
    rope = module.RotaryPositionalEmbeddings(HEAD_DIM, max_seq_len=4096)
    return identify(lambda x, p: rope(x, input_pos=p), HEAD_DIM, shape="batch seq heads dim")


def timm() -> Found:
    """One file of timm, because the package needs torchvision. A grid of one column has one axis of positions."""
    folder = folder_of("timm")
    with mock.patch.dict(sys.modules):
        for name, place in (("timm", folder), ("timm.layers", folder / "layers")):
            sys.modules[name] = package = ModuleType(name)
            package.__path__ = [str(place)]
        module = import_module("timm.layers.pos_embed_sincos")

    def fn(x: Any, positions: Any) -> Any:
        sin, cos = module.build_rotary_pos_embed((int(positions.max()) + 1, 1), dim=HEAD_DIM, in_pixels=False)
        return module.apply_rot_embed(x, sin[positions], cos[positions])

    return identify(fn, HEAD_DIM, shape="seq dim", seq_len=4096)


def folder_of(package: str) -> Path:
    """The folder of a package, which is not imported."""
    spec = PathFinder.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return Path(spec.origin).parent


# Mistakes: a port of a model with YaRN to NumPy, with one thing wrong

YARN = YarnScaling(factor=8.0, original_max_position_embeddings=8192)
STATED = RotaryEmbedding(head_dim=HEAD_DIM, layout="half", base=500_000.0, scaling=YARN)
FACTOR = 0.1 * log(8.0) + 1.0


def frequencies(base: float = 500_000.0, rotary_dim: int = HEAD_DIM) -> np.ndarray:
    """The formulas of the YaRN paper."""
    pair = np.arange(rotary_dim // 2)
    ends = [rotary_dim * log(8192 / (turns * 2 * pi)) / (2 * log(base)) for turns in (32, 1)]
    first, last = floor(ends[0]), ceil(ends[1])
    divided = np.clip((pair - first) / (last - first), 0.0, 1.0)
    return base ** (-2 * pair / rotary_dim) * (1.0 - divided + divided / 8.0)


def port(
    x: np.ndarray,
    positions: np.ndarray,
    *,
    w: np.ndarray | None = None,
    factor: float = FACTOR,
    interleaved: bool = False,
    swapped: bool = False,
    rounded: Callable[[np.ndarray], np.ndarray] | None = None,
) -> np.ndarray:
    """Channels of x, rotated in pairs. The arguments are the mistakes."""
    angle = positions[..., None] * (frequencies() if w is None else w)
    angle = angle if rounded is None else rounded(angle)
    cos, sin = factor * np.cos(angle), factor * np.sin(angle)
    cos, sin = (sin, cos) if swapped else (cos, sin)
    y, pairs = x.copy(), angle.shape[-1]
    first, second = np.s_[..., :pairs], np.s_[..., pairs : 2 * pairs]
    if interleaved:
        first, second = np.s_[..., 0 : 2 * pairs : 2], np.s_[..., 1 : 2 * pairs : 2]
    y[first], y[second] = x[first] * cos - x[second] * sin, x[first] * sin + x[second] * cos
    return y


def to_float32(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32).astype(np.float64)


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """Numbers rounded to 8 significant bits."""
    fraction, exponent = np.frexp(x)
    return np.ldexp(np.round(fraction * 256) / 256, exponent)


def of_index(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """The axis before the last is taken for the sequence, but x is (batch, seq, heads, dim)."""
    return port(x, np.arange(x.shape[-2]))


unscaled = 500_000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
MISTAKES: dict[str, tuple[Callable[..., np.ndarray], str]] = {
    "no mistake": (port, ""),
    "layout swapped": (partial(port, interleaved=True), "layout"),
    "base 10,000 for 500,000": (partial(port, w=frequencies(10_000.0)), "base"),
    "scaling lost": (partial(port, w=unscaled, factor=1.0), "scaling"),
    "partial width": (partial(port, w=frequencies(rotary_dim=32)), "width"),
    "positions off by one": (lambda x, positions: port(x, positions + 1), "offset"),
    "attention factor applied twice": (partial(port, factor=FACTOR**2), "attention factor"),
    "sin and cos swapped": (partial(port, swapped=True), "sincos order"),
    "heads in place of positions": (of_index, "axis"),
    "float32 phases": (partial(port, rounded=to_float32), "float32 phases"),
    "bfloat16 phases": (partial(port, rounded=to_bfloat16), "bfloat16 phases"),
}


def mistakes() -> list[Row]:
    return [
        Row(name, partial(identify, fn, HEAD_DIM, shape=shape), STATED, (cause,) if cause else ())
        for name, (fn, cause) in MISTAKES.items()
        for shape in ["batch seq heads dim" if cause == "axis" else "batch heads seq dim"]
    ]


def half(base: float = 10_000.0, **options: Any) -> RotaryEmbedding:
    return RotaryEmbedding(**{"head_dim": HEAD_DIM, "layout": "half", "base": base, **options})


def peers() -> list[Row]:
    """The packages. Those that are not installed raise ImportError when they are called."""
    float32, interleaved = ("float32 phases",), half(layout="interleaved")
    return [
        Row("transformers: gptj", gpt_j, interleaved, float32),
        Row("transformers: vjepa2", v_jepa_2, interleaved, ("no rotation",)),
        Row("nanochat", partial(identify, nanochat, HEAD_DIM), half(100_000.0), ("direction",)),
        Row("rotary-embedding-torch", lucidrains_float32, interleaved, float32),
        Row("the same in bfloat16", lucidrains, interleaved, ("bfloat16 phases",)),
        Row("x-transformers", x_transformers, interleaved, float32),
        Row("torchtune", torchtune, interleaved, float32),
        Row("timm", timm, half(layout="interleaved", rotary_dim=HEAD_DIM // 2), float32),
        Row("equinox", equinox(10_000.0), half(), float32),
        Row("equinox, another theta", equinox(1_000_000.0), half(1_000_000.0), ("base", *float32)),
        Row("MLX", mlx, half(), float32),
    ]


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {
        "rope_parameters": {
            "rope_theta": 500_000.0,
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    },
    "qwen3": {},
    "gpt_neox": {},
    "glm": {},
    "cohere": {},
    "deepseek_v3": {},
    "gpt_oss": {},
}


def families() -> list[Row]:
    try:
        import_module("transformers")
    except ImportError as error:
        return [Row("transformers", partial(raised, error), STATED)]
    return [family(model_type, **changes) for model_type, changes in FAMILIES.items()]


def raised(error: Exception) -> Found:
    raise error


def in_words(found: Found) -> str:
    """The value in few words."""
    rope = found.rope
    if rope is None:
        return "no RotaryEmbedding"
    width = "" if rope.rotary_dim == rope.head_dim else f", {rope.rotary_dim} of {rope.head_dim}"
    scaling = "" if rope.scaling is None else f", {rope.scaling.rope_type}"
    return f"{rope.layout}{width}, " + ("given frequencies" if rope.base is None else f"base {rope.base:,g}") + scaling


def show(title: str, rows: list[Row], results: dict[str, bool | None]) -> None:
    """Print a table, and record for each row whether it is as expected; None if the package is not installed."""
    table = Table(title=title, width=80, box=box.SIMPLE)
    for name, width in (("function", 27), ("found", 21), ("differs in", 14), ("named", 5)):
        table.add_column(name, width=width)
    for row in rows:
        try:
            found = row.found()
        except ImportError as error:
            results[row.name] = None
            table.add_row(row.name, f"not installed: {error.name}", "", "")
            continue
        names = differences(found, row.stated)
        results[row.name] = names == row.differs
        table.add_row(row.name, in_words(found), ", ".join(names), "yes" if results[row.name] else "NO")
        if not results[row.name]:
            print(f"{row.name}: expected {row.stated}, differing in {row.differs or 'nothing'}\n{found}\n")
    Console(width=80).print(table)


def main() -> dict[str, bool | None]:
    """Whether each row is as expected; None for packages that are not installed."""
    warnings.simplefilter("ignore")  # packages warn about themselves
    logging.disable(logging.WARNING)
    results: dict[str, bool | None] = {}
    show("What packages compute", families() + peers(), results)
    show("What is wrong with a port", mistakes(), results)
    return results


if __name__ == "__main__":
    sys.exit(1 if False in main().values() else 0)
