"""Tables of a rotary class of transformers, queries and keys that its model rotates, and those of rope_xp."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

import rope_xp

# Positions of the comparison, below 512, where float32 phases have an error of at most 512 * 2**-24 = 3e-5.
SHORT = np.array([0, 1, 511, 3, 8, 8, 127, 64, 300, 257, 33, 510, 2, 90, 205, 17, 450, 399, 5])
# Positions for phase="float32" with the frequencies of transformers: both sides must compute the same products.
LONG = np.array([8192, 8193, 12_345, 20_000, 32_767, 65_537, 99_999, 131_071])
TOLERANCE = 5e-5
# Both sides round the same product to float32. Then sines have an error of one ulp (2**-23, relative) in the library,
# half an ulp in rope_xp, and half an ulp for the attention factor. A rotation rounds two products and a sum below 1.
LONG_TABLES = 2 * 2.0**-23
LONG_ROTATED = 2 * LONG_TABLES + 3 * 2.0**-24


@dataclass(frozen=True)
class Observation:
    """The results of one module of transformers for some positions."""

    positions: Any  # as `RotaryEmbedding` takes them
    dim: int  # channels of a head
    rotate: Callable[..., Any]  # takes queries, keys, values (heads, seq, dim); returns those that the model rotates
    cos: Any = None  # "seq pairs"; None if the module has no tables
    sin: Any = None
    frequencies: Any = None  # the module's own, float32
    heads: int = 2
    softmax: float = 1.0  # factor of the attention's scale
    long: Callable[[], "Observation"] | None = None  # the same at LONG


@dataclass(frozen=True)
class Run:
    """A rotary class, a config for it, a layer type and the positions of each call; the last call is compared."""

    subject: Any
    module: Any
    cls: type
    config: Any
    label: str | None = None
    calls: tuple[Any, ...] = (SHORT,)


def half_width(table, blocks=1):
    """A table with one column for each pair. Columns may be repeated: as halves, as neighbours, or in each block."""
    table = np.asarray(table.detach(), dtype=np.float64)
    pairs = table.shape[-1] // 2
    if table.shape[-1] % (2 * blocks) == 0:
        first, second = np.split(np.stack(np.split(table, blocks, -1), -2), 2, -1)
        if np.array_equal(first, second) and not (blocks == 1 and pairs == 1):
            return first.reshape(*table.shape[:-1], pairs)
    if table.shape[-1] % 2 == 0 and np.array_equal(table[..., ::2], table[..., 1::2]):
        return table[..., ::2]
    return table


def applied(function, *tables, tokens_first=False, batched=True, crop=None, **options):
    """A function of queries, keys and values (heads, seq, dim) that calls a function of a model.

    `tokens_first`: the axes of that function are seq, heads, dim. `crop`: the number of channels that it gets.
    """
    names = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    count = 1 if names[0] in ("x", "hidden_states", "tensor", "qk") else 3 if "v" in names else 2

    def rotate(*given):
        given = [x.transpose(0, 1) if tokens_first else x for x in given[:count]]
        given = [x[None] if batched else x for x in given]
        rotated = function(*(x[..., :crop] for x in given), *tables, **options)
        rotated = (rotated,) if count == 1 else rotated
        whole = (torch.cat([y, x[..., crop:]], -1) if crop else y for x, y in zip(given, rotated))
        whole = (y[0] if batched else y for y in whole)
        return tuple(y.transpose(0, 1) if tokens_first else y for y in whole)

    return rotate


def observed(positions, dim, tables, function, *more, blocks=1, rotate=None, heads=2, **options):
    """An observation of tables, with or without a batch axis, and of the function that applies them, or of `rotate`."""
    cos, sin = (half_width(table.reshape(-1, table.shape[-1]), blocks) for table in tables)
    return Observation(positions, dim, rotate or applied(function, *tables, *more, **options), cos, sin, heads=heads)


def vectors(observation, draw):
    """Random queries, keys and values that fit an observation. `draw` takes their shape."""
    return draw(size=(3, observation.heads, observation.positions.shape[-1], observation.dim)).astype(np.float32)


def head_width(run):
    """The number of channels of a head that the model passes to its apply function."""
    config, subject = run.config, run.subject
    if subject.width is not None:
        return subject.width(run)
    dim = getattr(config, "qk_rope_head_dim", None) or getattr(config, "head_dim", None)
    return dim or (getattr(config, "embed_dim", None) or config.hidden_size) // config.num_attention_heads


def apply_name(run):
    """The name of the function that rotates queries and keys."""
    own = "apply_rotary_pos_emb_interleave"
    if run.subject.function:
        return run.subject.function
    if hasattr(run.module, own) and getattr(run.config, "rope_interleave", True):
        return own
    return "apply_rotary_pos_emb" if hasattr(run.module, "apply_rotary_pos_emb") else "apply_rotary_emb"


def text(run, calls=None):
    """Observe a module that takes positions: of text, also with several axes, or of a tower with one axis."""
    calls = run.calls if calls is None else calls
    count, module = run.subject.axes, run.cls(run.config)
    labels = () if run.label is None else (run.label,)
    for positions in calls:
        rows = [np.roll(positions, a) if positions is LONG else positions * (a + 1) % 509 for a in range(count)]
        rows = [positions] * count if run.subject.equal_axes else rows
        axes = torch.tensor(np.stack(rows))
        tables = module(torch.zeros(1), axes[:, None] if count > 1 else axes, *labels)
    function = getattr(run.module, apply_name(run))
    if isinstance(tables, torch.Tensor):
        cos, sin = tables.real[0], tables.imag[0]
        rotate = applied(function, tables, tokens_first=run.subject.tokens_first)
    else:
        cos, sin = half_width(tables[0][0]), half_width(tables[1][0])
        rotate = applied(function, *tables, crop=2 * cos.shape[-1] if run.subject.cropped else None)
    scale = getattr(run.module, "yarn_apply_mscale", None) if run.label is None else None
    return Observation(
        positions=axes.numpy() if count > 1 else axes[0].numpy(),
        dim=head_width(run),
        rotate=rotate,
        cos=np.asarray(cos, dtype=np.float64),
        sin=np.asarray(sin, dtype=np.float64),
        frequencies=getattr(module, "_".join([*labels, "inv_freq"])).numpy(),
        softmax=scale(run.config.rope_parameters, 1.0) if scale else 1.0,
        long=(lambda: text(run, (LONG,))) if calls is run.calls and calls[-1] is SHORT else None,
    )


def observe(run, checked=True):
    """The observations of a run. If `checked`, try the function of transformers with heads of the observed width."""
    found = run.subject.observer(run)
    found = found if isinstance(found, list) else [found]
    if checked:
        found[0].rotate(*torch.zeros(3, found[0].heads, found[0].positions.shape[-1], found[0].dim))
    return found


def largest(errors):
    """The largest number, or NaN if any is NaN."""
    return float(np.max([0.0, *errors]))


def differences(rope, observation, sign):
    """Largest differences of tables and of rotated queries and keys."""
    errors = {}
    if rope is None:
        raise ValueError("rope_xp rotates nothing")
    if rope.head_dim != observation.dim:
        raise ValueError(f"head_dim is {rope.head_dim}, that of transformers {observation.dim}")
    sin, cos = rope.sincos(observation.positions, like=np.zeros(1, np.float32))
    if observation.cos is not None:
        if cos.shape != observation.cos.shape:
            raise ValueError(f"tables have shape {cos.shape}, those of transformers {observation.cos.shape}")
        errors["tables"] = largest([np.abs(cos - observation.cos).max(), np.abs(sign * sin - observation.sin).max()])
    x = vectors(observation, partial(np.random.default_rng(0).uniform, -0.7, 0.7))
    theirs = observation.rotate(*torch.tensor(x))
    mine = rope.rotate(x[: len(theirs)], (sin, cos), seq_dim=2)
    errors["rotated"] = largest(np.abs(ours - np.asarray(y.detach())).max() for ours, y in zip(mine, theirs))
    return errors


def with_float32_phases(rope, observation):
    """`rope` with float32 phases, and with the float32 frequencies of transformers' buffer."""
    own = np.asarray(rope.inv_freq)
    upstream = np.asarray(observation.frequencies, dtype=np.float64)
    nearest = upstream[np.argmin(np.abs(np.abs(own)[..., None] - upstream), -1)]
    inv_freq = np.where(own == 0, 0.0, np.copysign(nearest, own)).tolist()
    names = ("head_dim", "layout", "rotary_dim", "first_channel", "blocks", "attention_factor")
    return rope_xp.RotaryEmbedding(**{n: getattr(rope, n) for n in names}, inv_freq=inv_freq, phase="float32")


def check(rope, observations, sign):
    """The largest errors of all observations, and whether they are within their bounds."""
    errors, factor = {}, max(1.0, rope.attention_factor) if rope is not None else 1.0
    if rope is not None and (difference := abs(rope.softmax_scale / observations[0].softmax - 1)) > 2.0**-50:
        raise ValueError(f"the scale of the softmax differs by {difference:.1e}")
    for observation in observations:
        for name, error in differences(rope, observation, sign).items():
            errors[name] = largest([error, errors.get(name, 0.0)])
    good = all(error <= TOLERANCE * factor for error in errors.values())
    if good and observations[0].long is not None:
        far = differences(with_float32_phases(rope, observations[0]), observations[0].long(), sign)
        errors |= {f"{name}, float32": error for name, error in far.items()}
        good = far["tables"] <= LONG_TABLES * factor and far["rotated"] <= LONG_ROTATED * factor
    return errors, good
