"""Every rotary class of transformers, rebuilt from its config alone and compared with the class itself.

Run: `python benchmarks/parity.py [--quick] [--only NAME]`. It walks `transformers.models`, finds every class whose
name speaks of rotation, makes it with the default config and with changed ones, builds ours with `rope_xp.from_config`,
and compares tables and what the model's own apply function makes of queries and keys; where layers differ it also
watches whole small models. Then it reads every part of every composite config. It prints a summary, writes
benchmarks/results/coverage-VERSION.md, and fails where ours is neither upstream's nor said to differ. Classes that a
newer transformers adds are listed.
"""

import argparse
import ast
import importlib
import inspect
import json
import logging
import os
import re
import sys
import types
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")

import numpy as np
import torch
import transformers

import rope_xp
from rope_xp import positions as places
from rope_xp._core.config.families import FAMILIES
from rope_xp._core.config.parts import PARTS

MODELS = Path(transformers.__file__).parent / "models"
RESULTS = Path(__file__).parent / "results"

# Positions of the comparison, below 512, where float32 phases are at most 512 * 2**-24 = 3e-5 off.
SHORT = np.array([0, 1, 511, 3, 8, 8, 127, 64, 300, 257, 33, 510, 2, 90, 205, 17, 450, 399, 5])
TOLERANCE = 5e-5
# Positions where the same float32 products must be made: phase="float32", with upstream's own frequencies.
LONG = np.array([8192, 8193, 12_345, 20_000, 32_767, 65_537, 99_999, 131_071])
# Both round one product to float32, and then each its sine: an ulp (2**-23, relative) of the library's own, a half of
# ours, a half for the product with the attention factor. Rotations add two products and a sum of numbers below 1.
LONG_TABLES = 2 * 2.0**-23
LONG_ROTATED = 2 * LONG_TABLES + 3 * 2.0**-24


# What upstream does, seen from outside.


@dataclass(frozen=True)
class Seen:
    """What one module of upstream made of some positions."""

    positions: Any  # as ours takes them
    dim: int  # channels of a head
    rotate: Callable[..., tuple[Any, ...]]  # queries, keys, values (heads, seq, dim) to what the model makes of each
    cos: Any = None  # half width, "seq pairs"; None where the module has no tables
    sin: Any = None
    frequencies: Any = None  # the module's own, float32
    heads: int = 2
    seq_len: int | None = None
    softmax: float = 1.0  # by which the attention multiplies its scale
    long: Callable[[], "Seen"] | None = None  # the same at LONG


@dataclass(frozen=True)
class Run:
    """A module of upstream with its config, to be driven."""

    subject: "Subject"
    module: Any
    cls: type
    config: Any
    label: str | None = None
    calls: tuple[Any, ...] = (SHORT,)


def halves(table, blocks=1):
    """A table of upstream at half width, whether it has every angle once, repeated in place or block by block."""
    table = np.asarray(table.detach(), dtype=np.float64)
    pairs = table.shape[-1] // 2
    if table.shape[-1] % (2 * blocks) == 0:
        pieces = np.stack(np.split(table, blocks, -1), -2)
        first, second = np.split(pieces, 2, -1)
        if np.array_equal(first, second) and not (blocks == 1 and pairs == 1):
            return first.reshape(*table.shape[:-1], pairs)
    if table.shape[-1] % 2 == 0 and np.array_equal(table[..., ::2], table[..., 1::2]):
        return table[..., ::2]
    return table


def applied(function, *tables, tokens_first=False, crop=None):
    """The model's function on queries and keys (heads, seq, dim)."""
    required = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    single = required[0].name in ("x", "hidden_states")

    def rotate(*both):
        both = [x[None] for x in both[: 1 if single else 2]]
        if tokens_first:
            return tuple(y[0].transpose(0, 1) for y in function(*(x.transpose(1, 2) for x in both), *tables))
        rotated = function(*(x[..., :crop] for x in both), *tables)
        rotated = (rotated,) if single else rotated
        return tuple((torch.cat([y, x[..., crop:]], -1) if crop else y)[0] for x, y in zip(both, rotated))

    return rotate


def text(run, calls=None):
    """Modules that are called with positions: text, also on several axes, and one-axis towers."""
    calls = run.calls if calls is None else calls
    subject, module = run.subject, run.cls(run.config)
    labels = () if run.label is None else (run.label,)
    for positions in calls:
        axes = torch.tensor(np.stack([positions * (a + 1) % 509 for a in range(subject.axes)]))
        given = axes[:, None] if subject.axes > 1 else axes
        if calls[0] is LONG:
            given = torch.tensor(np.stack([np.roll(positions, a) for a in range(subject.axes)]))
            axes, given = given, given[:, None] if subject.axes > 1 else given
        tables = module(torch.zeros(1), given, *labels)
    function = getattr(run.module, subject.function(run.config) if callable(subject.function) else subject.function)
    frequencies = getattr(module, "_".join([*labels, "inv_freq"]))
    if isinstance(tables, torch.Tensor):
        cos, sin = tables.real[0], tables.imag[0]
        rotate = applied(function, tables, tokens_first=subject.tokens_first)
    else:
        cos, sin = halves(tables[0][0]), halves(tables[1][0])
        rotate = applied(function, *tables, crop=2 * cos.shape[-1] if subject.cropped else None)
    return Seen(
        positions=axes.numpy() if subject.axes > 1 else axes[0].numpy(),
        dim=width(run),
        rotate=rotate,
        cos=np.asarray(cos, dtype=np.float64),
        sin=np.asarray(sin, dtype=np.float64),
        frequencies=frequencies.numpy(),
        seq_len=int(axes.max()) + 1,
        softmax=run.module.yarn_apply_mscale(run.config.rope_parameters, 1.0)
        if run.label is None and hasattr(run.module, "yarn_apply_mscale")
        else 1.0,
        long=(lambda: text(run, (LONG,))) if calls is run.calls and calls[-1] is SHORT else None,
    )


def width(run):
    """Channels of a head that the model hands to its apply function, as its attention computes it."""
    config, subject = run.config, run.subject
    if subject.width is not None:
        return subject.width(run)
    if getattr(config, "qk_rope_head_dim", None) and run.subject.latent:
        return config.qk_rope_head_dim
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def hunyuan_vl(run):
    """Where the axes differ this is no rotation, see NOT_ROTATIONS; text has all of them equal."""
    module = run.cls(run.config)
    ours = np.stack([SHORT] * 4)
    cos, sin = module(torch.zeros(1), torch.tensor(ours)[:, None])
    rotate = applied(run.module.apply_rotary_pos_emb, cos, sin)
    return Seen(ours, width(run), rotate, halves(cos[0]), halves(sin[0]))


GRIDS = [(2, 6, 50), (1, 126, 8)]


def tower(run):
    """Qwen-like vision towers: positions (tokens, axes) of a video and an image of other shape."""
    from transformers.vision_utils import get_vision_position_ids

    config, subject = run.config, run.subject
    merge = getattr(config, subject.merge) if isinstance(subject.merge, str) else subject.merge
    ids = get_vision_position_ids(torch.tensor(GRIDS), merge, include_temporal=subject.axes == 3)
    axes = None if subject.axes == 3 else (1, 2)
    ours = places.join(*(places.grid(*thw, block=(1, merge, merge), axes=axes) for thw in GRIDS))
    if subject.flip:  # the model itself flips these to (w, h) and counts from 1 before its module
        ids = ids.flip(-1) + 1
        ours = places.join(*(places.grid(*thw, start=1, axes=(2, 1)) for thw in GRIDS))
    same(ids.T, ours)
    module = run.cls(config)
    cos, sin = module(torch.zeros(1), ids)
    function = run.module.apply_rotary_pos_emb_vision
    batched = "MiniMax" in run.cls.__name__

    def rotate(q, k, *_):
        both = [x.transpose(0, 1)[None] if batched else x.transpose(0, 1) for x in (q, k)]
        return tuple((y[0] if batched else y).transpose(0, 1) for y in function(*both, cos, sin))

    dim = getattr(config, "embed_dim", None) or config.hidden_size
    dim = getattr(config, "head_dim", None) or dim // config.num_attention_heads
    return Seen(ours, dim, rotate, halves(cos), halves(sin))


def same(theirs, ours):
    """Upstream's positions are those of our builder."""
    if not np.array_equal(np.asarray(theirs), ours):
        raise AssertionError("positions of upstream are not those of rope_xp.positions")


def pixtral(run):
    """Two images, one after the other; the odd pairs turn with the column."""
    ours = places.join(places.grid(3, 5), places.grid(40, 2))
    cos, sin = run.cls(run.config)(torch.zeros(1), torch.tensor(ours.T))

    def rotate(q, k, *_):
        return tuple(y[0] for y in run.module.apply_rotary_pos_emb(q[None], k[None], cos, sin, unsqueeze_dim=0))

    return Seen(ours, run.config.head_dim, rotate, halves(cos), halves(sin))


def gemma4_vision(run):
    ours = places.join(places.grid(3, 25, axes=(1, 0)), total=80, padding=-1)
    ids = torch.tensor(ours.T)[None]
    cos, sin = run.cls(run.config)(torch.zeros(1), ids)

    def rotate(x, *_):
        return (run.module.apply_multidimensional_rope(x.transpose(0, 1)[None], cos, sin, ids)[0].transpose(0, 1),)

    return Seen(ours, run.config.head_dim, rotate, halves(cos[0], 2), halves(sin[0], 2))


def llama4_vision(run):
    config = run.config
    table = run.cls(config)(torch.zeros(1))  # (tokens + 1, 1, pairs), complex
    side = config.image_size // config.patch_size
    ours = places.join(places.grid(side, side, start=1, axes=(1, 0)), 1)

    def rotate(q, k, *_):
        both = (x.transpose(0, 1)[None] for x in (q, k))
        return tuple(y[0].transpose(0, 1) for y in run.module.vision_apply_rotary_emb(*both, table))

    dim = config.hidden_size // config.num_attention_heads
    return Seen(ours, dim, rotate, np.asarray(table.real[:, 0]), np.asarray(table.imag[:, 0]))


def memory_tables(run, module_class):
    """Tables of the memory attention of SAM 2 and those after it, over a grid of 3 rows and 5 columns."""
    stack = next(c for name, c in vars(run.module).items() if name.endswith("MemoryAttention"))
    run.config.memory_attention_rope_feat_sizes = [5, 3]  # here, as SAM 3's tracker replaces what it is given
    ids = stack.precompute_positions(run.config)
    ours = places.grid(3, 5, axes=(1, 0))
    same(ids.T, ours)
    return ours, module_class(run.config)(torch.zeros(1), ids)


def memory_width(config):
    inner = config.memory_attention_hidden_size // config.memory_attention_downsample_rate
    return inner // config.memory_attention_num_attention_heads


def memory(run):
    ours, (cos, sin) = memory_tables(run, run.cls)
    name = "apply_rotary_pos_emb_2d"
    function = getattr(run.module, name, None) or getattr(run.module, f"{name}_self_attn")

    def rotate(q, k, *_):
        return tuple(y[0] for y in function(q[None], k[None], cos, sin))

    return Seen(ours, memory_width(run.config), rotate, halves(cos[0]), halves(sin[0]))


class Given(torch.nn.Module):
    """A projection that gives this, whatever its input."""

    def __init__(self, x):
        super().__init__()
        self.x = x

    def forward(self, _):
        return self.x


def attention(run, inputs, keys=None, **kwargs):
    """Run an attention class without its projections, and return the queries and keys that reach its kernel."""
    run.config._attn_implementation = "eager"
    layer = run.cls(run.config, **kwargs.pop("make", {}))
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        setattr(layer, name, torch.nn.Identity() if keys is None or name != "k_proj" else Given(keys))
    caught = {}

    def kernel(_, query, key, value, *args, **more):
        caught.update(query=query, key=key)
        return query.transpose(1, 2), None

    own, run.module.eager_attention_forward = run.module.eager_attention_forward, kernel
    try:
        layer(*inputs, **kwargs)
    finally:
        run.module.eager_attention_forward = own
    return caught["query"][0], caught["key"][0]


def flat(x):
    """(heads, seq, dim) as hidden states (1, 1, seq, heads * dim)."""
    return x.transpose(0, 1).reshape(1, 1, x.shape[1], -1)


def memory_attention(run):
    """Attention over memories: keys are those of several frames, then of object pointers, which stay as they are."""
    rotary = next(c for name, c in vars(run.module).items() if name.endswith("VideoVisionRotaryEmbedding"))
    ours, tables = memory_tables(run, rotary)
    dim, heads = memory_width(run.config), run.config.memory_attention_num_attention_heads
    cells = ours.shape[-1]
    many = places.join(ours, ours, 3)

    def queries(q, k, *_):
        return attention(run, (flat(q), flat(k), flat(k)), flat(k), position_embeddings=tables)

    def keys(x, *_):
        more = {"make": {"rope_k_repeat": True}, "num_k_exclude_rope": 3}
        return attention(run, (flat(x[:, :cells]), flat(x), flat(x)), position_embeddings=tables, **more)[1:]

    cos, sin = halves(tables[0][0]), halves(tables[1][0])
    first = Seen(ours, dim, queries, cos, sin, heads=heads)
    if "Self" in run.cls.__name__:
        return first
    return [first, Seen(many, dim, keys, heads=heads)]


def edgetam_cross_attention(run):
    """Keys: three memories of two latents and a grid of 4 x 4, of which the grid turns, then four object pointers."""
    ours, tables = memory_tables(run, run.module.EdgeTamVideoVisionRotaryEmbedding)
    small = places.grid(2, 4, axes=(1, 0))
    tables_k = run.module.EdgeTamVideoVisionRotaryEmbedding(run.config)(torch.zeros(1), torch.tensor(small.T))
    dim, heads = memory_width(run.config), run.config.memory_attention_num_attention_heads
    many = places.join(2, small, 2, small, 2, small, 4)
    make = {"make": {"kv_in_dim": dim * heads}}
    extra = {"num_k_exclude_rope": 4, "rope_k_repeat": 3, "position_embeddings_k": tables_k}

    def queries(x, *_):
        k = torch.zeros(heads, many.shape[-1], dim)
        return attention(run, (flat(x), flat(k), flat(k)), position_embeddings=tables, **make, **extra)[:1]

    def keys(x, *_):
        q = torch.zeros(heads, ours.shape[-1], dim)
        return attention(run, (flat(q), flat(x), flat(x)), position_embeddings=tables, **make, **extra)[1:]

    cos, sin = halves(tables[0][0]), halves(tables[1][0])
    return [Seen(ours, dim, queries, cos, sin, heads=heads), Seen(many, dim, keys, heads=heads)]


def sam3_tables(run):
    config = run.config
    ids = run.module.Sam3ViTLayer.precompute_positions(config, 0)
    wide, high = (side // config.patch_size for side in config.image_size)  # upstream reads image_size as (w, h)
    ours = places.grid(high, wide, step=config.window_size / wide, axes=(1, 0))
    if np.abs(ids.numpy().T - ours).max() > 2.0**-20:  # the product with a scale, rounded once or twice
        raise AssertionError("positions of upstream are not those of rope_xp.positions")
    return ours, high, wide, run.module.Sam3ViTRotaryEmbedding(config)(torch.zeros(1), ids)


def sam3_vit(run):
    ours, _, _, (cos, sin) = sam3_tables(run)

    def rotate(q, k, *_):
        return tuple(y[0] for y in run.module.apply_rotary_pos_emb_2d(q[None], k[None], cos, sin))

    dim = run.config.hidden_size // run.config.num_attention_heads
    return Seen(ours, dim, rotate, halves(cos[0]), halves(sin[0]))


def sam3_attention(run):
    ours, high, wide, tables = sam3_tables(run)
    heads = run.config.num_attention_heads
    dim = run.config.hidden_size // heads

    def rotate(*both):
        hidden, keys = (x.transpose(0, 1).reshape(1, high, wide, -1) for x in both[:2])
        return attention(run, (hidden,), keys, position_embeddings=tables)

    return Seen(ours, dim, rotate, halves(tables[0][0]), halves(tables[1][0]), heads=heads)


def dinov3(run):
    """The module takes pixels; class and register tokens come first and stay as they are."""
    config, prefix, high, wide = run.config, 5, 3, 5
    pixels = torch.zeros(1, 3, high * config.patch_size, wide * config.patch_size)
    cos, sin = run.cls(config).eval()(pixels)
    ours = places.join(prefix, places.normalized(high, wide))

    def rotate(q, k, *_):
        return tuple(y[0] for y in run.module.apply_rotary_pos_emb(q[None], k[None], cos, sin))

    still = np.zeros((prefix, halves(cos).shape[-1]))
    dim = config.hidden_size // config.num_attention_heads
    return Seen(ours, dim, rotate, np.concatenate([still + 1, halves(cos)]), np.concatenate([still, halves(sin)]))


def loftr(run):
    """Takes a map of features; turns all heads as one."""
    stride, config = run.config.q_aggregation_stride, run.config
    cos, sin = (y.flatten(1, 2) for y in run.cls(config)(torch.zeros(1, 8, 3 * stride, 5 * stride)))
    ours = places.grid(3, 5, start=1)

    def rotate(q, k, *_):
        both = (x.transpose(0, 1)[None] for x in (q, k))
        rotated = run.module.apply_rotary_pos_emb(*both, cos, sin, unsqueeze_dim=2)
        return tuple(y[0].transpose(0, 1) for y in rotated)

    return Seen(ours, config.hidden_size, rotate, halves(cos[0]), halves(sin[0]))


def vjepa2(run):
    layer = run.cls(run.config, run.config.hidden_size, run.config.num_attention_heads)
    high = wide = layer.grid_size
    ids = [p.float() for p in layer.get_position_ids(torch.zeros(1, 2 * high * wide, 1))]
    ours = places.grid(2, high, wide)
    same(torch.stack(ids), ours)

    def rotate(x, *_):
        return (layer.apply_rotary_embeddings(x[None], [p.view(1, 1, -1) for p in ids])[0],)

    return Seen(ours, layer.attention_head_size, rotate)


def counted(run):
    """Speech encoders: positions from the length, and hidden states turned before the projections."""
    heads = getattr(run.config, run.subject.heads)
    dim, n = run.config.hidden_size // heads, 300
    table = run.cls(run.config)(torch.zeros(1, n, run.config.hidden_size))  # (2, seq, 1, 1, dim)
    owner = next(c for c in vars(run.module).values() if hasattr(c, "_apply_rotary_embedding"))

    def rotate(x, *_):
        me = types.SimpleNamespace(num_heads=x.shape[0], head_size=dim)
        y = owner._apply_rotary_embedding(me, x.transpose(0, 1).reshape(1, n, -1), table)
        return (y.view(n, -1, dim).transpose(0, 1),)

    cos, sin = (halves(part[:, 0, 0]) for part in table)
    return Seen(np.arange(n), dim, rotate, cos, sin)


def clvp(run):
    """Angles of the first channels; queries, keys and values turn."""
    n = 300
    angles = run.cls(run.config)(torch.zeros(1, n, 1))
    turned = angles.shape[-1]
    cos, sin = angles.cos()[0], angles.sin()[0]

    def rotate(*all_three):
        first = (x[None, ..., :turned] for x in all_three)
        rotated = run.module.apply_rotary_pos_emb(*first, cos, sin, torch.arange(n)[None])
        return tuple(torch.cat([y[0], x[..., turned:]], -1) for x, y in zip(all_three, rotated))

    dim = run.config.hidden_size // run.config.num_attention_heads
    return Seen(np.arange(n), dim, rotate, halves(cos), halves(sin))


def dit(run):
    seen = text(run)
    cos, sin = run.cls(run.config)(torch.zeros(1), torch.tensor(seen.positions)[None])

    def rotate(q, k, *_):
        both = (run.module.deinterleave_head_dim(x[None]) for x in (q, k))
        return tuple(y[0] for y in run.module.apply_rotary_pos_emb(*both, cos, sin))

    return replace(seen, rotate=rotate, long=None)


def esmfold2(run):
    random = np.random.default_rng(1)
    xyz, uid = random.normal(size=(3, 13)).astype(np.float32) * 30, random.integers(0, 512, 13)
    cos, sin = run.cls(run.config)(torch.tensor(xyz.T)[None], torch.tensor(uid)[None], torch.float32)
    ours = np.concatenate([xyz, uid[None].astype(np.float32)])
    return Seen(
        ours, run.config.head_dim, applied(run.module.apply_rotary_pos_emb, cos, sin), halves(cos[0]), halves(sin[0])
    )


def musicflamingo(run):
    """Positions are products of the time with the window and with the frame."""
    frames, longest = 9, run.config.rope_parameters["rope_theta"]
    step = run.config.audio_frame_step * 4
    seconds = (2 * frames + np.arange(frames)) * step  # the third window
    cos, sin = run.cls(run.config)(torch.tensor(seconds, dtype=torch.float32)[None], frames)
    window = np.round(seconds[0] / (step * frames)) / longest
    angle = -2 * np.pi * seconds
    ours = np.stack([angle * window, angle * 2 * np.pi * np.arange(frames) / longest])

    def rotate(x, *_):
        return (run.module.apply_rotary_time_emb(x, cos, sin),)

    return Seen(ours, run.config.head_dim, rotate, halves(cos[0]), halves(sin[0]))


def roformer(run):
    """Sine first, then cosine."""
    n, dim = 300, run.config.hidden_size // run.config.num_attention_heads
    module = run.cls(run.config.max_position_embeddings, dim)
    module.weight = torch.nn.Parameter(module.create_weight())
    table = module(torch.Size((1, n))).detach()
    sin, cos = table.chunk(2, -1)

    def rotate(q, k, *_):
        function = run.module.RoFormerSelfAttention.apply_rotary_position_embeddings
        return tuple(y[0] for y in function(table[None, None], q[None], k[None]))

    return Seen(np.arange(n), dim, rotate, np.asarray(cos), np.asarray(sin))


def gptj(run):
    """The attention class keeps its sines and cosines in a buffer, sine first."""
    config = run.config
    dim, turned = config.n_embd // config.n_head, config.rotary_dim
    rows = run.module.create_sinusoidal_positions(1024, turned or config.n_embd)
    rows = rows[torch.tensor(SHORT)]
    sin, cos = rows.chunk(2, -1)

    def rotate(x, *_):
        x = x.transpose(0, 1)[None]  # batch seq heads dim
        first = run.module.apply_rotary_pos_emb(x[..., :turned], sin[None], cos[None])
        return (torch.cat([first, x[..., turned:]], -1)[0].transpose(0, 1),)

    return Seen(SHORT, dim, rotate, np.asarray(cos), np.asarray(sin))


# What is made, and with which configs.


@dataclass(frozen=True)
class Subject:
    """One config class that a rotary class serves."""

    config: str = ""  # its name, where the signature of the rotary class says another or none
    drive: Callable[[Run], Any] = text
    axes: int = 1
    needs: Any = field(default_factory=dict)  # changes without which the default config does not run, or a function
    why: str = ""  # the reason for them
    off: bool = False  # without them nothing is rotated, which ours must say too
    part: str = ""  # "model_type/part" where the config has no model_type of its own
    function: Any = "apply_rotary_pos_emb"
    tokens_first: bool = False  # axes of queries: batch seq heads dim
    cropped: bool = False  # the attention cuts the head before it applies
    width: Callable[[Run], int] | None = None
    latent: bool = True  # multi-head latent attention where the config has qk_rope_head_dim
    keep: tuple[str, ...] = ("mrope_section", "partial_rotary_factor")  # of a default block, in changed ones
    rules: bool = True  # whether the config has rope_parameters that may be changed
    more: Any = field(default_factory=dict)  # changed configs of its own, by name
    merge: Any = "spatial_merge_size"
    heads: str = "num_attention_heads"
    flip: bool = False
    without: tuple[str, ...] = ()  # parts of a composite config that ours is not given
    skip: str = "$."  # changed configs that make no sense here, a regular expression
    sign: int = 1  # of the sines in our tables, where the apply function of upstream turns the other way
    also: tuple[str, ...] = ()  # other values of model_type that mean the same


@dataclass(frozen=True)
class Case:
    """A changed config."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    legacy: bool = False  # ours reads the changes as they are, not as a config object of transformers 5 writes them
    calls: tuple[Any, ...] = (SHORT,)  # positions of each call; the last is compared
    seq_len: int | None = None  # the longest call that decides, where upstream remembers
    key: str = ""  # a key in the changes that most classes do not read
    without: Mapping[str, Any] = field(default_factory=dict)  # the changes without it
    silent: tuple[str, ...] = ()  # keys that ours is not given
    contradicts: bool = False  # itself, so that ours raises one of `REFUSALS`


def rules(pairs):
    """Blocks of every scaling rule; the original length is below the positions of the comparison."""
    ramp = np.linspace(0, 1, pairs)
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    return {
        "linear": {"rope_type": "linear", "factor": 4.0},
        "yarn": yarn,
        "yarn, truncate false": {**yarn, "truncate": False, "beta_fast": 24.0, "beta_slow": 1.5},
        "yarn, mscale": {**yarn, "mscale": 0.7, "mscale_all_dim": 0.4},
        "yarn, attention_factor": {**yarn, "attention_factor": 1.25},
        "llama3": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        "longrope": {
            "rope_type": "longrope",
            "factor": 16.0,
            "original_max_position_embeddings": 256,
            "short_factor": (1 + 0.5 * ramp).round(3).tolist(),
            "long_factor": (1 + 30 * ramp).round(3).tolist(),
        },
        "proportional": {"rope_type": "proportional", "factor": 2.0, "partial_rotary_factor": 0.25},
    }


BELOW, BEYOND, LONGEST = np.arange(97), np.arange(301), np.arange(450)
BASE = 12_345.0


def two(*types, **more):
    """A config of two layers, one of each type, where the default has layers of one type alone."""
    return {"num_hidden_layers": 2, "layer_types": list(types), **more}


def vision(axes=2, **more):
    return Subject(drive=tower, axes=axes, more={"heads": {"num_heads": 4, "num_attention_heads": 4}}, **more)


def sectioned(sections, config="", *, head_dim, **more):
    """Text on three position axes, and the same with other sections and another width."""
    changed = {"rope_type": "default", "rope_theta": 54_321.0, "mrope_section": list(sections)}
    more["more"] = {"sections and width": {"head_dim": head_dim, "rope_parameters": changed}, **more.get("more", {})}
    return Subject(config=config, axes=3, **more)


def interleave(config):
    return "apply_rotary_pos_emb_interleave" if config.rope_interleave else "apply_rotary_pos_emb"


LATENT = Subject(function="apply_rotary_pos_emb_interleave")
LATENT_EITHER = Subject(function=interleave, more={"rope_interleave false": {"rope_interleave": False}})
MEMORY = Subject(drive=memory, rules=True)
CHUNKED, TURNS = (10, 18, 20), (20, 14, 14)
HALF = {"partial_rotary_factor": 0.5}
HALF_WHY = "the default config rotates 64 pairs, but its sections are for 32"
TIMM = "timm_wrapper, the default config of its vision part, needs timm, which has no part in rotation"
HALF_IN_BLOCK = {
    "half the head": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": BASE,
            "partial_rotary_factor": 0.5,
            "mrope_section": [24, 20, 20],
        }
    }
}
NOT_ABSOLUTE = {"position_embedding_type": "rotary"}


def without_timm(run_module):
    plain = transformers.PreTrainedConfig()
    if run_module.__name__.endswith("modeling_pe_video"):
        return {"vision_config": plain}
    return {"video_config": plain}


def by_layer_type(run):
    """Gemma 4 widens the heads of its layers of full attention."""
    config = run.config.to_dict()
    wider = [row["head_dim"] for row in (config.get("per_layer_config") or {}).values()]
    return wider[0] if run.label == "full_attention" and wider else config["head_dim"]


def of_heads(name):
    return lambda run: run.config.hidden_size // getattr(run.config, name)


def phimoe_cases():
    """Its long-range rule has magnitudes of its own."""
    block = rules(64)["longrope"] | {"rope_theta": BASE, "short_mscale": 1.1, "long_mscale": 1.3}
    return {
        "longrope, short": Case("longrope, short", {"rope_parameters": block}, calls=(BELOW,)),
        "longrope, long": Case("longrope, long", {"rope_parameters": block}, calls=(BEYOND,)),
    }


def phi3_cases():
    """As in its checkpoints: the old name of the rule, and the original length beside the block."""
    block = {key: rules(48)["longrope"][key] for key in ("short_factor", "long_factor")} | {"type": "su"}
    changes = {
        "head_dim": 96,
        "max_position_embeddings": 1024,
        "original_max_position_embeddings": 256,
        "rope_theta": BASE,
        "rope_scaling": {**block, "original_max_position_embeddings": 256},
    }
    return {
        "longrope, legacy su, short": Case("longrope, legacy su, short", changes, legacy=True, calls=(BELOW,)),
        "longrope, legacy su, long": Case("longrope, legacy su, long", changes, legacy=True, calls=(BEYOND,)),
    }


NULL_HEAD_WHY = "head_dim is null by default, with which dynamic, yarn and longrope raise upstream"
NULL_HEAD = (Subject(), Subject(needs={"head_dim": 64}, why=NULL_HEAD_WHY))


def alpha_cases():
    block = {"rope_type": "dynamic", "rope_theta": BASE, "alpha": 50.0, "factor": 2.0}
    changes = {"head_dim": 64, "max_position_embeddings": 256, "rope_parameters": block}
    return {
        "alpha, short": Case("alpha, short", changes, calls=(BELOW,)),
        "alpha, long": Case("dynamic alpha, long", changes, calls=(BEYOND,)),
    }


ALPHA = (Subject(more=alpha_cases()), Subject(needs={"head_dim": 64}, why=NULL_HEAD_WHY))

CONFORMER: dict[str, Any] = {
    "needs": {"position_embeddings_type": "rotary"},
    "why": "rotates only then",
    "off": True,
    "rules": False,
}
SUBJECTS: dict[str, Subject | tuple[Subject, ...]] = {
    # Several configs, or not the one in the signature.
    "BltRotaryEmbedding": tuple(
        Subject(f"Blt{name}Config") for name in ("LocalEncoder", "LocalDecoder", "GlobalTransformer", "Patcher")
    ),
    "CsmRotaryEmbedding": (Subject("CsmConfig"), Subject("CsmDepthDecoderConfig")),
    "DeepseekOcr2VisionRotaryEmbedding": Subject("DeepseekOcr2VisionEncoderConfig"),
    "DiaRotaryEmbedding": (Subject("DiaEncoderConfig"), Subject("DiaDecoderConfig")),
    "Emu3RotaryEmbedding": Subject("Emu3TextConfig"),
    "GlmAsrRotaryEmbedding": Subject("GlmAsrEncoderConfig"),
    "MiniMaxM3VLRotaryEmbedding": Subject("MiniMaxM3VLTextConfig"),
    "MuseGlimmerTextRotaryEmbedding": Subject("MuseGlimmerTextConfig"),
    "Nemotron3DiarizationRotaryEmbedding": Subject("Nemotron3DiarizationAudioConfig"),
    "Qwen3OmniMoeRotaryEmbedding": (
        Subject("Qwen3OmniMoeTalkerCodePredictorConfig"),
        Subject("Qwen3OmniMoeCode2WavConfig", part="qwen3_omni_moe/code2wav"),
    ),
    "T5GemmaRotaryEmbedding": Subject("T5GemmaModuleConfig"),
    "T5Gemma2RotaryEmbedding": (Subject("T5Gemma2TextConfig"), Subject("T5Gemma2DecoderConfig")),
    "VoxtralRealtimeRotaryEmbedding": (Subject("VoxtralRealtimeEncoderConfig"), Subject("VoxtralRealtimeTextConfig")),
    "PeVideoEncoderRotaryEmbedding": Subject(needs=without_timm, why=TIMM),
    "PeAudioVideoEncoderRotaryEmbedding": Subject(needs=without_timm, why=TIMM),
    # Multi-head latent attention.
    "AXK1RotaryEmbedding": LATENT_EITHER,
    "AXK2RotaryEmbedding": LATENT,
    "DeepseekV3RotaryEmbedding": replace(LATENT_EITHER, also=("kimi_k2",)),
    "DeepseekV32RotaryEmbedding": LATENT,
    "DeepseekV2RotaryEmbedding": Subject(function="apply_rotary_emb"),
    "Glm4MoeLiteRotaryEmbedding": LATENT_EITHER,
    "GlmMoeDsaRotaryEmbedding": LATENT,
    "LongcatFlashRotaryEmbedding": Subject(
        function="apply_rotary_pos_emb_interleave",
        skip="^width$",  # its width has two keys
        more={"both widths": {"head_dim": 32, "qk_rope_head_dim": 32}},
    ),
    "YoutuRotaryEmbedding": LATENT_EITHER,
    "Mistral4RotaryEmbedding": LATENT_EITHER,
    # Others of text.
    "Llama4TextRotaryEmbedding": Subject(function="apply_rotary_emb", tokens_first=True),
    "GPTNeoXJapaneseRotaryEmbedding": Subject(cropped=True),
    "PersimmonRotaryEmbedding": Subject(cropped=True),
    "PhiRotaryEmbedding": Subject(cropped=True),
    "StableLmRotaryEmbedding": Subject(cropped=True),
    "MiniMaxRotaryEmbedding": NULL_HEAD,
    "MinistralRotaryEmbedding": NULL_HEAD,
    "MixtralRotaryEmbedding": NULL_HEAD,
    "HunYuanDenseV1RotaryEmbedding": ALPHA,
    "HunYuanMoEV1RotaryEmbedding": ALPHA,
    "Glm4MoeRotaryEmbedding": (
        Subject(),
        Subject(needs={"head_dim": 128}, why="half of the default head of 42 is odd"),
    ),
    "PhimoeRotaryEmbedding": Subject(more=phimoe_cases()),
    "Phi3RotaryEmbedding": Subject(more=phi3_cases(), also=("phi3_v",)),
    "Phi4MultimodalRotaryEmbedding": Subject(more=phi3_cases(), also=("phi4mm",)),
    "NanoChatRotaryEmbedding": Subject(sign=-1),
    "DeepseekV4RotaryEmbedding": Subject(
        latent=False,
        width=lambda run: run.config.head_dim,
        skip="half|proportional",  # the model splits qk_rope_head_dim channels off, whatever the share says
    ),
    "Gemma4TextRotaryEmbedding": Subject(keep=(), width=by_layer_type),
    "Gemma4UnifiedTextRotaryEmbedding": Subject(keep=(), width=by_layer_type),
    "DiffusionGemmaTextRotaryEmbedding": Subject(keep=(), width=by_layer_type),
    "LagunaRotaryEmbedding": Subject(
        needs=two("full_attention", "sliding_attention"), why="the default has full attention alone"
    ),
    "MellumRotaryEmbedding": Subject(
        needs=two("full_attention", "sliding_attention"), why="the default has full attention alone"
    ),
    "Step3p7RotaryEmbedding": Subject(
        "Step3p7TextConfig",
        needs=two("full_attention", "sliding_attention"),
        why="the default has full attention alone",
    ),
    "ZayaRotaryEmbedding": Subject(
        needs=two("hybrid", "hybrid_sliding", sliding_window=64), why="the default has one type of layers"
    ),
    "Zamba2RotaryEmbedding": Subject(needs={"use_mem_rope": True}, why="rotates only then", off=True),
    "GraniteMoeHybridRotaryEmbedding": Subject(
        needs={"position_embedding_type": "rope"}, why="rotates only then", off=True
    ),
    "EsmRotaryEmbedding": Subject(
        needs=NOT_ABSOLUTE, why="rotates only then", off=True, rules=False, more={"base": {"rope_theta": 5_000.0}}
    ),
    "EvollaSaProtRotaryEmbedding": Subject(
        part="evolla/protein_encoder", rules=False, more={"base": {"rope_theta": 5_000.0}}
    ),
    "MoonshineRotaryEmbedding": Subject(width=of_heads("decoder_num_attention_heads")),
    "Qwen2_5OmniDiTRotaryEmbedding": Subject(drive=dit),
    # Text on several axes.
    "Qwen2VLRotaryEmbedding": sectioned(CHUNKED, "Qwen2VLTextConfig", head_dim=96),
    "Qwen2_5_VLRotaryEmbedding": sectioned(CHUNKED, "Qwen2_5_VLTextConfig", head_dim=96),
    "Qwen2_5OmniRotaryEmbedding": (
        sectioned(CHUNKED, "Qwen2_5OmniTextConfig", head_dim=96),
        sectioned(CHUNKED, "Qwen2_5OmniTalkerConfig", head_dim=96),
    ),
    "PaddleOCRRotaryEmbedding": sectioned(CHUNKED, "PaddleOCRTextConfig", head_dim=96),
    "Glm4vTextRotaryEmbedding": sectioned((8, 8, 8), head_dim=96, needs=HALF, why=HALF_WHY),
    "GlmOcrTextRotaryEmbedding": sectioned((8, 20, 20), head_dim=96),
    "Glm4vMoeTextRotaryEmbedding": sectioned(
        (8, 8, 8), head_dim=96, needs={"head_dim": 128}, why="the default head of 42 does not fit its sections"
    ),
    "GlmImageTextRotaryEmbedding": sectioned((8, 8, 8), head_dim=96, needs=HALF, why=HALF_WHY),
    "Qwen3VLTextRotaryEmbedding": sectioned(TURNS, head_dim=96),
    "Qwen3VLMoeTextRotaryEmbedding": sectioned(TURNS, head_dim=96),
    "Qwen3OmniMoeThinkerTextRotaryEmbedding": sectioned(
        TURNS, head_dim=96, needs={"head_dim": 128}, why="the default head of 73 is odd"
    ),
    "Qwen3OmniMoeTalkerRotaryEmbedding": sectioned(
        TURNS,
        "Qwen3OmniMoeTalkerTextConfig",
        head_dim=96,
        needs={"head_dim": 128},
        why="the default sections are for heads of 128, the default heads have 64",
    ),
    "Cosmos3EdgeTextRotaryEmbedding": sectioned(TURNS, head_dim=96),
    "Qwen3_5TextRotaryEmbedding": sectioned((4, 4, 4), head_dim=96, more=HALF_IN_BLOCK),
    "Qwen3_5MoeTextRotaryEmbedding": sectioned((4, 4, 4), head_dim=96, more=HALF_IN_BLOCK),
    "Qwen4ExpTextRotaryEmbedding": sectioned(
        (4, 4, 4), head_dim=96, needs={"partial_rotary_factor": 0.25}, why="the default sections are for a quarter"
    ),
    "Ernie4_5_VLMoeTextRotaryEmbedding": sectioned((14, 14, 20), head_dim=96),
    "BailingHybridRotaryEmbedding": LATENT,
    "BeamRotaryEmbedding": (
        Subject(rules=False),
        Subject(
            needs=two("sliding_attention", "sliding_attention"), why="the block of layers of full attention is null"
        ),
    ),
    "Dots3NoteTextRotaryEmbedding": Subject(
        function="apply_rotary_pos_emb_interleave",
        width=lambda run: run.config.per_layer_config[run.label].qk_rope_head_dim,
        skip="half|width|proportional",  # the class computes the share from the widths, whatever the block says
        more={
            "widths": {
                "qk_rope_head_dim": 32,
                "swa_head_dim": 320,
                "swa_qk_nope_head_dim": 224,
            }
        },
    ),
    "Dots3NoteAudioRotaryEmbedding": Subject("Dots3NoteAudioConfig", cropped=False, skip="^width$"),
    "EmbeddingGemma2RotaryEmbedding": Subject("EmbeddingGemma2TextConfig", keep=(), width=by_layer_type),
    "Lfm3RotaryEmbedding": Subject(keep=()),
    "MistralLarge4TextRotaryEmbedding": LATENT,
    "Molmo2RotaryEmbedding": Subject("Molmo2TextConfig"),
    "MuseSparkTextRotaryEmbedding": Subject("MuseSparkTextConfig"),
    "Nemotron3_5TranscribeRotaryEmbedding": (
        Subject("Nemotron3_5TranscribeAsrAudioConfig"),
        Subject("Nemotron3_5TranscribeWordTimestampConfig"),
    ),
    "UnlimitedOcrTextRotaryEmbedding": Subject("UnlimitedOcrTextConfig", skip="^width$"),
    "CohereCompassRotaryEmbedding": Subject(
        axes=3,
        needs=two(
            "sliding_attention",
            "full_attention",
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 50_000.0},
                "full_attention": None,
            },
        ),
        why="the default has no base",
        rules=False,
        more={
            "sections and width": {
                "head_dim": 96,
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default", "rope_theta": 9_000.0, "mrope_section": [16, 16, 16]},
                    "full_attention": None,
                },
            },
        },
    ),
    "HunYuanVLRotaryEmbedding": Subject(
        drive=hunyuan_vl,
        axes=4,
        needs={"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [16, 16, 16, 16]}},
        why="the default config has no sections",
        rules=False,
    ),
    "NeoMMERotaryEmbedding": Subject(axes=2),
    # Towers.
    "CohereCompassVisionRotaryEmbedding": vision(),
    "Dots3NoteVisionRotaryEmbedding": vision(),
    "Inkling2VisionRotaryEmbedding": vision(),
    "Lfm3VlVisionRotaryEmbedding": vision(),
    "MuseSparkVisionRotaryEmbedding": vision(merge=1, flip=True),
    "Ernie4_5_VLMoeVisionRotaryEmbedding": vision(),
    "Exaone4_5_VisionRotaryEmbedding": vision(),
    "Glm4vVisionRotaryEmbedding": vision(),
    "Glm4vMoeVisionRotaryEmbedding": vision(),
    "Glm5NextVisionRotaryEmbedding": vision(),
    "GlmOcrVisionRotaryEmbedding": vision(),
    "Qwen2VLVisionRotaryEmbedding": vision(),
    "Qwen2_5OmniVisionRotaryEmbedding": vision(),
    "Qwen2_5_VLVisionRotaryEmbedding": vision(),
    "Qwen3OmniMoeVisionRotaryEmbedding": vision(),
    "Qwen3VLVisionRotaryEmbedding": vision(),
    "Qwen3VLMoeVisionRotaryEmbedding": vision(),
    "Qwen3_5VisionRotaryEmbedding": vision(),
    "Qwen3_5MoeVisionRotaryEmbedding": vision(),
    "Qwen4ExpVisionRotaryEmbedding": vision(),
    "VideoLlama3VisionRotaryEmbedding": vision(merge=2),
    "MLCDRotaryEmbedding": vision(merge=1),
    "PaddleOCRVisionRotaryEmbedding": vision(merge=1),
    "Step3p7VisionRotaryEmbedding": vision(merge=1),
    "Kimi_K25VisionRotaryEmbedding": vision(merge=1),
    "MuseGlimmerVisionRotaryEmbedding": vision(merge=1, flip=True),
    "MiniMaxM3VLVisionRotaryEmbedding": vision(axes=3),
    "PixtralVisionRotaryEmbedding": Subject(drive=pixtral, more={"heads": {"num_attention_heads": 8}}),
    "Gemma4VisionRotaryEmbedding": Subject(drive=gemma4_vision, more={"head_dim": {"head_dim": 48}}),
    "Llama4VisionRotaryEmbedding": Subject(
        drive=llama4_vision,
        skip="linear",  # the class never reads rope_type
        more={"heads": {"num_attention_heads": 8}},
    ),
    "Sam2VideoVisionRotaryEmbedding": MEMORY,
    "Sam3TrackerVideoVisionRotaryEmbedding": MEMORY,
    "EdgeTamVideoVisionRotaryEmbedding": MEMORY,
    "Sam2VideoRoPEAttention": Subject("Sam2VideoConfig", memory_attention),
    "Sam3TrackerVideoRoPEAttention": Subject("Sam3TrackerVideoConfig", memory_attention),
    "EdgeTamVideoRoPESelfAttention": Subject("EdgeTamVideoConfig", memory_attention),
    "EdgeTamVideoRoPECrossAttention": Subject("EdgeTamVideoConfig", edgetam_cross_attention),
    "Sam3ViTRotaryEmbedding": Subject(drive=sam3_vit, needs={"image_size": [70, 42]}, why="a grid that is not square"),
    "Sam3ViTRoPEAttention": Subject(
        drive=sam3_attention, needs={"image_size": [70, 42]}, why="a grid that is not square"
    ),
    "DINOv3ViTRopePositionEmbedding": Subject(drive=dinov3, rules=False, more={"base": {"rope_theta": 50.0}}),
    "Sapiens2RopePositionEmbedding": Subject(drive=dinov3, rules=False, more={"base": {"rope_theta": 50.0}}),
    "EomtDinov3RotaryEmbedding": Subject(drive=dinov3),
    "EfficientLoFTRRotaryEmbedding": Subject(drive=loftr),
    "VJEPA2RopeAttention": Subject(drive=vjepa2, rules=False),
    # Speech, molecules, and classes that no name gives away.
    "Wav2Vec2BertRotaryPositionalEmbedding": Subject(
        "Wav2Vec2BertConfig",
        counted,
        **CONFORMER,
        more={"base and heads": {"rotary_embedding_base": 500, "num_attention_heads": 8}},
    ),
    "Wav2Vec2ConformerRotaryPositionalEmbedding": Subject(
        "Wav2Vec2ConformerConfig",
        counted,
        **CONFORMER,
        more={"base and heads": {"rotary_embedding_base": 500, "num_attention_heads": 8}},
    ),
    "SeamlessM4TConformerRotaryPositionalEmbedding": Subject(
        "SeamlessM4TConfig",
        counted,
        **CONFORMER,
        heads="speech_encoder_attention_heads",
        more={"base and heads": {"rotary_embedding_base": 500, "speech_encoder_attention_heads": 8}},
    ),
    "ClvpRotaryPositionalEmbedding": Subject(
        "ClvpEncoderConfig", clvp, rules=False, more={"width": {"projection_dim": 1024, "num_attention_heads": 8}}
    ),
    "EsmFold2RotaryEmbedding": Subject(
        "EsmFold2AtomEncoderConfig",
        esmfold2,
        part="esmfold2/atom_encoder",
        rules=False,
        more={"bases": {"spatial_rope_base_frequency": 30.0, "uid_rope_base_frequency": 5_000.0}},
    ),
    "MusicFlamingoRotaryEmbedding": Subject(drive=musicflamingo, without=("text_config",)),
    "RoFormerSinusoidalPositionalEmbedding": Subject(
        "RoFormerConfig", roformer, rules=False, more={"heads": {"num_attention_heads": 8}}
    ),
    "GPTJAttention": Subject("GPTJConfig", gptj, rules=False, more={"width": {"rotary_dim": 32}}),
    "CodeGenAttention": Subject("CodeGenConfig", gptj, rules=False, more={"width": {"rotary_dim": 16}}),
}

# Rotary, though the name does not say so: (folder, class).
UNNAMED = [
    ("roformer", "RoFormerSinusoidalPositionalEmbedding"),
    ("gptj", "GPTJAttention"),
    ("codegen", "CodeGenAttention"),
]


NAMED = re.compile("Rotary|RoPE|Rope")


def found():
    """Every class of transformers whose name speaks of rotation: (folder, file, class)."""
    for file in sorted(MODELS.glob("*/modeling_*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and (NAMED.search(node.name) or (file.parent.name, node.name) in UNNAMED):
                yield file.parent.name, file.stem, node.name


SHARE, WIDTH = "partial_rotary_factor", "rotary_dim"


def cases(subject: Subject, default: Any, pairs: Mapping[str | None, int], quick: bool) -> Iterator[Case]:
    """The default config, and changed ones as far as the config class has what they change."""
    yield Case("default")
    for name, changes in subject.more.items():
        yield changes if isinstance(changes, Case) else Case(name, changes)
    blocks = getattr(default, "rope_parameters", None)
    base = {"rope_theta": BASE} if subject.rules and blocks else {}
    for key, value in ((SHARE, 0.5), (WIDTH, 16)):
        yield Case(f"legacy {key}", {**base, key: value}, legacy=True, key=key, without=base)
    names = {*LEGACY_BASE.findall(source_of(default))} - {"rope_theta", "layer_rope_theta"}
    bases = {name: BASE * (2 + at) for at, name in enumerate(sorted(names))}
    for name, value in bases.items():
        yield Case(f"legacy {name}", {name: value}, legacy=True, key=name)
    if len(bases) > 1:
        yield Case("legacy bases", bases, legacy=True)
    if not subject.rules or not blocks:
        return

    def changed(make):
        """A rotary block for each layer type, each with a base of its own."""
        made = {}
        for i, (label, count) in enumerate(pairs.items()):
            kept = blocks if label is None else blocks[label]
            kept = {name: kept[name] for name in subject.keep if name in kept}
            made[label] = {"rope_theta": BASE * (1 + i), **kept, **make(count)}
        return {"rope_parameters": made.get(None, made)}

    plain = changed(lambda _: {"rope_type": "default"})
    yield Case("base", plain)
    half = {"rope_type": "default", SHARE: 0.5}
    yield Case(SHARE, changed(lambda _: half), key=SHARE, without=plain)
    if subject.drive is not text:
        return
    yarn = changed(lambda count: rules(count)["yarn"])
    yield Case("yarn", yarn)
    yield Case(f"yarn, {SHARE}", changed(lambda count: {**rules(count)["yarn"], SHARE: 0.5}), key=SHARE, without=yarn)
    if quick:
        return
    if subject.axes > 1:
        yield Case("linear", changed(lambda count: rules(count)["linear"]))
    else:
        short = {"max_position_embeddings": 256}
        for name in rules(4):
            block = changed(lambda count, name=name: rules(count)[name])
            if name == "longrope":
                yield Case("longrope, short", {**block, **short}, calls=(BELOW,))
                yield Case("longrope, long", {**block, **short}, calls=(BEYOND,))
                yield Case("longrope, long twice", {**block, **short}, calls=(BEYOND, LONGEST))
                yield Case("longrope, short after long", {**block, **short}, calls=(BEYOND, BELOW))
            elif name != "yarn":
                yield Case(name, block)
        dynamic = {**changed(lambda _: {"rope_type": "dynamic", "factor": 4.0}), **short}
        yield Case("dynamic, short", dynamic, calls=(BELOW,))
        yield Case("dynamic, long", dynamic, calls=(BEYOND,))
        yield Case("dynamic, longer and longer", dynamic, calls=(BEYOND, LONGEST))
        yield Case("dynamic, short after long", dynamic, calls=(LONGEST, BELOW))
        yield Case("dynamic, long after longer", dynamic, calls=(LONGEST, BEYOND), seq_len=len(LONGEST))
    keys = default.to_dict()
    if subject.axes == 1:
        latent = keys.get("qk_rope_head_dim") and subject.latent
        own = "qk_rope_head_dim" if latent else "head_dim" if keys.get("head_dim") else None
        yield Case(
            "width", {own: 48 if own == "head_dim" else 32} if own else {"hidden_size": 768, "num_attention_heads": 8}
        )
    yarn = rules(4)["yarn"]
    old = {"rope_theta": BASE, "rope_scaling": yarn}
    yield Case("legacy yarn", old, legacy=True)
    yield Case("legacy yarn without rope_theta", {"rope_scaling": yarn}, legacy=True)
    if None not in pairs:
        return
    yield Case("legacy rope_theta", {"rope_theta": BASE}, legacy=True)
    linear = {"type": "linear", "factor": 4.0}
    yield Case("legacy linear", {"rope_theta": BASE, "rope_scaling": linear}, legacy=True)
    yield Case("legacy yarn, original length beside", {**old, ORIGINAL: 32}, legacy=True, contradicts=True)
    yield Case("yarn without rope_theta", {"rope_parameters": yarn}, legacy=True)
    for name in ("yarn", "llama3", "longrope"):
        block = {key: value for key, value in rules(pairs[None])[name].items() if key != ORIGINAL}
        changes = {"rope_theta": BASE, "rope_scaling": block}
        yield Case(f"{name} without {ORIGINAL}", changes, legacy=True, calls=(BELOW,), silent=(ORIGINAL,))


ORIGINAL = "original_max_position_embeddings"
# Keys of bases in a file of upstream.
LEGACY_BASE = re.compile(
    r"\b(?!default_)((?:\w+_)?(?:rope_theta|rotary_emb_base|rotary_embedding_base|rope_local_base_freq))\b"
)


def source_of(config):
    """The file of a config class."""
    return inspect.getsource(sys.modules[type(config).__module__])


# What ours makes of it.


@dataclass(frozen=True)
class Outcome:
    config: str
    case: str
    label: str | None
    status: str  # a key of STATUSES
    errors: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    rope: Any = None  # ours


STATUSES = {
    "agrees": "ours is upstream's",
    "deviates": "ours differs on purpose, and is upstream's with compat='transformers'",
    "refused upstream": "upstream raises",
    "refused": "ours raises, rather than guess",
    "wrong": "ours differs, or raises",
    "unknown": "a family that ours does not have",
}

# Where ours differs from upstream on purpose: (classes, cases as a regular expression, reason).
ONLY_BEFORE = "upstream before"
DEVIATIONS = [
    (
        ("Cohere2MoeRotaryEmbedding",),
        "legacy (linear|yarn.*)|(yarn|llama3|longrope) without original.*",
        "`rope_scaling` is not read upstream",
    ),
    (
        (
            "HiggsAudioV2RotaryEmbedding",
            "Ministral3RotaryEmbedding",
        ),
        "(legacy )?yarn without rope_theta",
        "a block without a base has 10,000 upstream, and not that of the default block",
    ),
    (
        ("PeAudioEncoderRotaryEmbedding", "PeAudioVideoEncoderRotaryEmbedding", "PeVideoEncoderRotaryEmbedding"),
        "(legacy )?yarn without rope_theta",
        "a block without a base has 10,000 upstream before 5.23, and not that of the default block",
    ),
    (
        ("GPTNeoXRotaryEmbedding", "GPTNeoXJapaneseRotaryEmbedding"),
        "legacy (rope_theta|linear|yarn.*)|(yarn|llama3|longrope) without original.*",
        "`rope_theta` is not read upstream",
    ),
    (
        ("ModernBertRotaryEmbedding", "ModernBertDecoderRotaryEmbedding", "Olmo3RotaryEmbedding"),
        "legacy yarn",
        "`rope_theta` is not read upstream",
    ),
    (
        ("HunYuanDenseV1RotaryEmbedding", "HunYuanMoEV1RotaryEmbedding"),
        "dynamic alpha, long",
        "`alpha` is forgotten upstream before 5.23 beyond max_position_embeddings",
    ),
    (("MiniMaxM3VLRotaryEmbedding",), ".*", "`rotary_dim` is not read upstream, which turns the whole head"),
    (("CohereCompassRotaryEmbedding",), ".*", "sections alternate upstream before 5.23, and are [22, 22, 20]"),
    (
        ("Dots3NoteTextRotaryEmbedding",),
        "legacy yarn.*",
        "`swa_rope_theta` is not read upstream where there is a `rope_scaling`",
    ),
    (("Step3p7VisionRotaryEmbedding",), ".*", "axes are (h, w) upstream before 5.23"),
    (
        ("MistralLarge4TextRotaryEmbedding",),
        ".*",
        "refused: frequencies are multiplied by the exponential of a weight, which is 0 before training",
    ),
    (("PhimoeRotaryEmbedding",), "longrope, long", "`long_factor` is never used upstream"),
    (
        (
            "ApertusRotaryEmbedding",
            "Cosmos3EdgeTextRotaryEmbedding",
            "CwmRotaryEmbedding",
            "HiggsAudioV2RotaryEmbedding",
            "Ministral3RotaryEmbedding",
            "Mistral4RotaryEmbedding",
            "MoonshineStreamingRotaryEmbedding",
            "MuseSparkTextRotaryEmbedding",
            "Nemotron3_5TranscribeRotaryEmbedding",
        ),
        "legacy (rope_theta|partial_rotary_factor|rotary_dim)",
        "the default block hides `rope_theta` upstream",
    ),
    (
        ("PeAudioEncoderRotaryEmbedding", "PeAudioVideoEncoderRotaryEmbedding", "PeVideoEncoderRotaryEmbedding"),
        "legacy (rope_theta|partial_rotary_factor|rotary_dim)",
        "the default block hides `rope_theta` upstream before 5.23",
    ),
    (
        (
            "BeamRotaryEmbedding",
            "DeepseekV4RotaryEmbedding",
            "DiffusionGemmaTextRotaryEmbedding",
            "Dots3NoteTextRotaryEmbedding",
            "EmbeddingGemma2RotaryEmbedding",
            "Lfm3RotaryEmbedding",
            "UltrabertRotaryEmbedding",
            "Gemma3RotaryEmbedding",
            "Gemma3nRotaryEmbedding",
            "Gemma4TextRotaryEmbedding",
            "Gemma4UnifiedTextRotaryEmbedding",
            "LagunaRotaryEmbedding",
            "MellumRotaryEmbedding",
            "MiMoV2FlashRotaryEmbedding",
            "ModernBertRotaryEmbedding",
            "ModernBertDecoderRotaryEmbedding",
            "Olmo3RotaryEmbedding",
            "Step3p7RotaryEmbedding",
            "T5Gemma2RotaryEmbedding",
            "ZayaRotaryEmbedding",
        ),
        "yarn, truncate false",
        "`truncate` of a block that is nested by layer type is not read upstream",
    ),
]
# Not rotations, which nothing of ours can be: (class, what upstream does).
NOT_ROTATIONS = {
    "VJEPA2RopeAttention": "angles are laid out for halves, pairs are neighbours",
    "HunYuanVLRotaryEmbedding": "channels of a pair follow different axes (it is one, and ours, where all axes agree)",
}
DRIVES_APART = {"HunYuanVLRotaryEmbedding": text}  # text has all axes equal, which `hunyuan_vl` drives


def make(run_module, name, changes):
    """A config; sub-configs that the module imports, too."""
    config_class = getattr(run_module, name, None)
    if config_class is None:
        folder = run_module.__name__.split(".")[-2]
        config_class = getattr(importlib.import_module(f"transformers.models.{folder}.configuration_{folder}"), name)
    return config_class(**changes)


def as_given(subject, config, case, default):
    """What ours is given: the config as its object writes it, or as a config.json of older versions has it."""
    given = config.to_dict()
    if case.legacy:
        silent = ("rope_parameters", "rope_theta", "rope_scaling", "layer_rope_theta", *case.silent)
        needs = {} if callable(subject.needs) else subject.needs
        given = {key: value for key, value in (default.to_dict() | needs).items() if key not in silent} | case.changes
    return as_file(subject, given)


def as_file(subject, given):
    """The same as a file has it, within a composite config where it has no type of its own."""
    given = {key: value for key, value in given.items() if key not in subject.without}
    part = None
    if subject.part:
        whole, part = subject.part.split("/")
        path, _ = PARTS[whole][part]
        for key in reversed(path.split(".")):
            given = {key: given}
        given["model_type"] = whole
    return given, part


def ours(subject, config, case, default, label, seq_len, compat=None):
    given, part = as_given(subject, config, case, default)
    lengths = ("dynamic", "longrope")
    seq_len = (case.seq_len or seq_len) if case.name.startswith(lengths) else None
    return rope_xp.from_config(given, part=part, layer_type=label, seq_len=seq_len, compat=compat)


def compare(rope, seen, sign):
    """Largest differences of tables and of rotated queries and keys."""
    errors = {}
    if rope is None:
        raise ValueError("ours rotates nothing")
    if rope.head_dim != seen.dim:
        raise ValueError(f"head_dim is {rope.head_dim}, upstream's {seen.dim}")
    like = np.zeros(1, np.float32)
    sin, cos = rope.sincos(seen.positions, like=like)
    if seen.cos is not None:
        if cos.shape != seen.cos.shape:
            raise ValueError(f"tables have shape {cos.shape}, upstream's {seen.cos.shape}")
        errors["tables"] = largest([np.abs(cos - seen.cos).max(), np.abs(sign * sin - seen.sin).max()])
    random = np.random.default_rng(0)
    x = random.uniform(-0.7, 0.7, (3, seen.heads, seen.positions.shape[-1], seen.dim)).astype(np.float32)
    theirs = seen.rotate(*torch.tensor(x))
    mine = rope.rotate(x[: len(theirs)], (sin, cos), seq_dim=2)
    errors["rotated"] = largest(np.abs(ours - np.asarray(y.detach())).max() for ours, y in zip(mine, theirs))
    return errors


def largest(errors):
    """The largest of any, and NaN where there is one."""
    return float(np.max([0.0, *errors]))


def float32(rope, seen):
    """`rope` with the frequencies of upstream's own buffer, float32, and its float32 phases."""
    own = np.asarray(rope.inv_freq)
    theirs = np.asarray(seen.frequencies, dtype=np.float64)
    nearest = theirs[np.argmin(np.abs(np.abs(own)[..., None] - theirs), -1)]
    injected = np.where(own == 0, 0.0, np.copysign(nearest, own))
    kept = {name: getattr(rope, name) for name in ("head_dim", "layout", "rotary_dim", "first_channel", "blocks")}
    return rope_xp.RotaryEmbedding(
        **kept, inv_freq=injected.tolist(), attention_factor=rope.attention_factor, phase="float32"
    )


def check(rope, seens, sign, factor=1.0):
    """Errors of all that upstream did, and whether they are within their bounds."""
    errors: dict[str, float] = {}
    if rope is not None and (apart := abs(rope.softmax_scale / seens[0].softmax - 1)) > 2.0**-50:
        raise ValueError(f"the scale of the softmax differs by {apart:.1e}")
    for seen in seens:
        for name, error in compare(rope, seen, sign).items():
            errors[name] = largest([error, errors.get(name, 0.0)])
    good = all(error <= TOLERANCE * factor for error in errors.values())
    first = seens[0]
    if good and first.long is not None:
        far = first.long()
        at_long = compare(float32(rope, first), far, sign)
        errors |= {f"{name}, float32": error for name, error in at_long.items()}
        good = at_long["tables"] <= LONG_TABLES * factor and at_long["rotated"] <= LONG_ROTATED * factor
    return errors, good


def outcomes(folder: str, file: str, name: str, quick: bool) -> Iterator[Outcome]:
    """Every case of one class."""
    module = importlib.import_module(f"transformers.models.{folder}.{file}")
    cls = getattr(module, name)
    for subject in listed(SUBJECTS.get(name, Subject())):
        yield from outcomes_of(subject, module, cls, quick)
    if name in LAYERED:
        yield from layers(module, cls)


def listed(subjects):
    return subjects if isinstance(subjects, tuple) else (subjects,)


def annotated(cls):
    """The config class in the signature of a rotary class."""
    return re.search(r"\w+Config", str(inspect.signature(cls.__init__))).group()


def outcomes_of(subject, module, cls, quick):
    name = subject.config or annotated(cls)
    needs = subject.needs(module) if callable(subject.needs) else dict(subject.needs)
    default = make(module, name, needs)
    pairs = {}
    for label in labels(default):
        try:
            seen = subject.drive(Run(subject, module, cls, default, label))
            seen = seen[0] if isinstance(seen, list) else seen
            pairs[label] = 0 if seen.cos is None else seen.cos.shape[-1]
        except Exception as error:
            yield Outcome(name, "default", label, "refused upstream", note=said(error))
    if not pairs:
        return
    if subject.off:
        unrotated = rope_xp.from_config(make(module, name, {}).to_dict())
        status = "agrees" if unrotated is None else "wrong"
        yield Outcome(name, "not rotated", None, status, note="" if unrotated is None else f"ours is {unrotated}")
    if default.model_type not in FAMILIES and not subject.part and cls.__name__ not in NOT_ROTATIONS:
        yield Outcome(name, "default", None, "unknown", note=f"model_type {default.model_type!r} is not in FAMILIES")
        return
    for case in cases(subject, default, pairs, quick):
        if re.search(subject.skip, case.name):
            continue
        for label in pairs:
            yield outcome(subject, module, cls, name, needs, default, case, label)
    yield from unstated(subject, module, cls, name, needs, default)


def outcome(subject, module, cls, name, needs, default, case, label):
    """What became of one changed config, for one layer type."""

    def one(*rest):
        return Outcome(name, case.name, label, *rest)

    try:
        if case.legacy:
            needs = {key: value for key, value in needs.items() if key != "rope_parameters"}
        config = make(module, name, {**needs, **deepcopy(dict(case.changes))})
        seen = subject.drive(Run(subject, module, cls, config, label, case.calls))
        seens = seen if isinstance(seen, list) else [seen]
        compare_shapes(seens[0])
    except Exception as error:
        return one("refused upstream", {}, said(error))

    def read(compat):
        return ours(subject, config, case, default, label, seens[0].seq_len, compat)

    def ignored():
        """Whether upstream makes the same of the config without the key in question."""
        config = make(module, name, {**needs, **deepcopy(dict(case.without))})
        other = subject.drive(Run(subject, module, cls, config, label, case.calls))
        other = other[0] if isinstance(other, list) else other
        return case.key and np.array_equal(seens[0].cos, other.cos) and np.array_equal(seens[0].sin, other.sin)

    def without():
        """Whether ours is upstream's without the key, and without the `compat` of another version."""
        config = make(module, name, {**needs, **deepcopy(dict(case.without))})
        try:
            rope = ours(subject, config, replace(case, changes=case.without), default, label, seens[0].seq_len)
        except ValueError:
            return False
        return ignored() and check(rope, seens, subject.sign, max(1.0, rope.attention_factor))[1]

    lenient = bool(case.key) or "without" in case.name
    return one(
        *judged(cls, case.name, read, seens, subject.sign, case.contradicts, case.key, ignored, without, lenient)
    )


def judged(cls, case, read, seens, sign, contradicts=False, key="", ignored=bool, without=bool, lenient=False):
    """The rest of an `Outcome`: what ours is beside what upstream did.

    `read` gives ours, for a `compat`. Where it differs, it must be in `DEVIATIONS`, or contradict itself, or
    follow from a key that upstream does not read and `describe` names. Where `lenient`, ours may raise with `compat`.
    """
    notes, own = [], None
    for compat in (None, "transformers"):
        try:
            rope = read(compat)
            factor = max(1.0, rope.attention_factor) if rope is not None else 1.0
            errors, good = check(rope, seens, sign, factor)
        except Exception as error:
            notes.append(said(error))
            if cls.__name__ in NOT_ROTATIONS and "model_type must be one of the" in str(error):
                return "refused", {}, "ours refuses"
            continue
        if good and compat is None:
            return "agrees", errors, "", rope
        if good:
            reason = next((why for c, n, why in DEVIATIONS if cls.__name__ in c and re.fullmatch(n, case)), "")
            if not reason and notes and (contradicts or lenient):
                reason = next((why for error, why in REFUSALS.items() if re.search(error, notes[0])), "")
            if not reason and key and ignored():
                reason = f"`{key}` is not read upstream"
                if own is not None and not re.search(
                    f"remark .* does not read .*{key}", " ".join(own.describe().split())
                ):
                    return "wrong", errors, f"describe does not say that {reason}", rope
            return "deviates" if reason else "wrong", errors, reason or f"only with compat: {notes[0]}", rope
        notes.append("differs by " + ", ".join(f"{key} {value:.1e}" for key, value in errors.items()))
        own = rope if compat is None else own
    if key and not version("transformers").startswith(COMPAT) and without():
        return "deviates", {}, f"`{key}` is not read upstream"
    if lenient and all(REFUSAL.match(note) for note in notes):
        return "refused", {}, notes[0]
    return "wrong", {}, "; with compat: ".join(notes)


# Errors of ours for a contradiction, and what upstream does with it.
REFUSALS = {
    f"{ORIGINAL} must be \\w+ once": "refused: the length trained on is there twice; upstream takes the outer",
    f"{SHARE} must be \\w+ once": "refused: the share is there twice; upstream takes that of the block",
    "mrope_section must sum|sizes must fit": "refused: sections do not fit; upstream cuts them",
}
# An error of ours, as it should be.
REFUSAL = re.compile(r"(ValueError|TypeError): (from_config|RotaryEmbedding|Sections|\w+Scaling): .*; got ")


def compare_shapes(seen):
    """Upstream's own function runs on its own head."""
    seen.rotate(*torch.zeros(3, seen.heads, seen.positions.shape[-1], seen.dim))


def said(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


# Keys that a file may leave to its class: those that speak of rotation, and widths of heads.
ROTARY = re.compile(r"rope|rotary|theta|yarn|original_max_position|head_dim")


def unstated(subject, module, cls, name, needs, default):
    """The default config without all of its rotary keys, with its type alone, and without each single key.

    Upstream reads what is left as a file, and so does ours. Where both are as with nothing left out, which is
    compared by itself, there is nothing to be driven.
    """
    whole = plain(default)
    files = {
        "no rotary key": {key: value for key, value in whole.items() if key in needs or not ROTARY.search(key)},
        "nothing but its type": {key: value for key, value in whole.items() if key in needs or key == "model_type"},
        **{f"without {key}": {k: v for k, v in whole.items() if k != key} for key in whole if key != "model_type"},
    }
    for model_type in (default.model_type, *subject.also):
        full = {label: tried(subject, whole, label) for label in labels(default)}
        for case, rest in files.items():
            said_case = case if model_type == default.model_type else f"{case}, {model_type}"
            given = rest if subject.part else {**rest, "model_type": model_type}
            try:
                config = type(default).from_dict(deepcopy(rest))
                as_default = case.startswith("without") and plain(config) == whole
                types = labels(config)
            except Exception as error:
                if ROTARY.search(case):
                    yield Outcome(name, said_case, None, "refused upstream", {}, said(error))
                continue
            if subject.off and not needs.keys() <= rest.keys():
                rope = rope_xp.from_config(as_file(subject, given)[0])
                yield Outcome(name, said_case, None, "agrees" if rope is None else "wrong", {}, f"ours is {rope}")
                continue
            for label in types:
                rope = tried(subject, given, label)
                if not as_default or rope is None or rope != full.get(label):
                    yield driven(subject, module, cls, name, config, given, said_case, label)
                elif ROTARY.search(case):
                    yield Outcome(name, said_case, label, "agrees", {}, "", rope)


def plain(config):
    """What a config holds, as JSON has it."""
    return json.loads(json.dumps(config.to_dict(), default=str))


def tried(subject, given, label):
    """Ours, or None where it raises."""
    file, part = as_file(subject, given)
    try:
        return rope_xp.from_config(file, part=part, layer_type=label)
    except (TypeError, ValueError):
        return None


def driven(subject, module, cls, name, config, given, case, label):
    """What became of a file that leaves keys out."""

    def read(compat):
        file, part = as_file(subject, given)
        return rope_xp.from_config(file, part=part, layer_type=label, compat=compat)

    try:
        seen = subject.drive(Run(subject, module, cls, config, label))
        seens = seen if isinstance(seen, list) else [seen]
        compare_shapes(seens[0])
    except Exception as error:
        return Outcome(name, case, label, "refused upstream", {}, said(error))
    return Outcome(name, case, label, *judged(cls, case, read, seens, subject.sign, lenient=True))


def labels(config):
    """The layer types by which the rotary block is nested, or None alone."""
    blocks = getattr(config, "rope_parameters", None) or {}
    nested = sorted(label for label, block in blocks.items() if isinstance(block, Mapping))  # some come from a set
    return nested or [None]


# Layers: whole models of eight small layers, whose apply function is watched.

TINY = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 64,
    "num_hidden_layers": 8,
    "vocab_size": 64,
    "vocab_size_per_layer_input": 64,
    "pad_token_id": 0,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "max_position_embeddings": 128,
}
# Lists of one entry for each layer, which config objects write and older files leave out.
BY_LAYER = ("layer_types", "mlp_layer_types", "no_rope_layers", "layer_rope_theta", "per_layer_config")
ONE_GROUP = {"n_group": 1, "topk_group": 1, "num_key_value_heads": 4}
DOTS3 = {"num_key_value_heads": 4, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4}
SLIDING_AND_FULL = ["sliding_attention", "full_attention"] * 4
# rotary class: (model, changed configs)
LAYERED: dict[str, tuple[str, tuple[dict[str, Any], ...]]] = {
    "AfmoeRotaryEmbedding": ("AfmoeModel", ({}, {"global_attn_every_n_layers": 3})),
    "Cohere2RotaryEmbedding": ("Cohere2Model", ({}, {"sliding_window_pattern": 3}, {"layer_types": SLIDING_AND_FULL})),
    "Cohere2MoeRotaryEmbedding": (
        "Cohere2MoeModel",
        ({}, {"first_k_dense_replace": 3}, {"first_k_dense_replace": 3, "prefix_dense_sliding_window_pattern": 2}),
    ),
    "BailingHybridRotaryEmbedding": ("BailingHybridModel", ({**ONE_GROUP}, {**ONE_GROUP, "layer_group_size": 3})),
    "BeamRotaryEmbedding": ("BeamModel", ({**ONE_GROUP},)),
    "DeepseekV4RotaryEmbedding": ("DeepseekV4Model", ({},)),
    "Dots3NoteTextRotaryEmbedding": (
        "Dots3NoteTextModel",
        ({**DOTS3}, {**DOTS3, "use_dsa": False}, {**DOTS3, "use_sliding_window": False}),
    ),
    "EmbeddingGemma2RotaryEmbedding": ("EmbeddingGemma2TextModel", ({}, {"sliding_window_pattern": 3})),
    "FlintRotaryEmbedding": ("FlintModel", ({}, {"num_hidden_layers": 7})),
    "Kolibri1RotaryEmbedding": ("Kolibri1Model", ({},)),
    "Lfm3RotaryEmbedding": ("Lfm3Model", ({}, {"layer_types": ["conv", *SLIDING_AND_FULL[1:]]})),
    "Molmo2RotaryEmbedding": (
        "Molmo2TextModel",
        ({}, {"rope_scaling_layers": [1, 3], "rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
    ),
    "MuseSparkTextRotaryEmbedding": (
        "MuseSparkTextModel",
        ({}, {"num_hidden_layers": 7}, {"layer_rope_theta": [0, 1, 1, 0, 1, 1, 1, 0]}),
    ),
    "UltrabertRotaryEmbedding": ("UltrabertModel", ({}, {"attention_windows": [0, 4, 4, 0, 4, 4, 4, 4]})),
    "Exaone4RotaryEmbedding": ("Exaone4Model", ({}, {"sliding_window": None, "layer_types": ["full_attention"] * 8})),
    "ExaoneMoeRotaryEmbedding": ("ExaoneMoeModel", ({}, {"sliding_window_pattern": 3})),
    "Gemma3RotaryEmbedding": ("Gemma3TextModel", ({}, {"sliding_window_pattern": 3})),
    "Gemma4TextRotaryEmbedding": ("Gemma4TextModel", ({},)),
    "Gemma4UnifiedTextRotaryEmbedding": ("Gemma4UnifiedTextModel", ({},)),
    "BambaRotaryEmbedding": (
        "BambaModel",
        ({"attn_layer_indices": [0, 3], "mamba_n_heads": 4, "mamba_d_head": 32},),
    ),
    "Gemma3nRotaryEmbedding": (
        "Gemma3nTextModel",
        (
            {
                "num_hidden_layers": 10,
                "num_kv_shared_layers": 0,
                "activation_sparsity_pattern": [0.0] * 10,
                "intermediate_size": [64] * 10,
            },
        ),
    ),
    "GraniteMoeHybridRotaryEmbedding": (
        "GraniteMoeHybridModel",
        (
            {
                "position_embedding_type": "rope",
                "layer_types": ["attention", "mamba"] * 4,
                "mamba_n_heads": 4,
                "mamba_d_head": 32,
            },
        ),
    ),
    "Lfm2MoeRotaryEmbedding": ("Lfm2MoeModel", ({"layer_types": ["conv", "full_attention"] * 4},)),
    "Step3p7RotaryEmbedding": ("Step3p7TextModel", ({"layer_types": SLIDING_AND_FULL, "sliding_window": 4},)),
    "ZayaRotaryEmbedding": (
        "ZayaModel",
        ({"num_experts_per_tok": 1, "sliding_window": 4, "layer_types": ["hybrid", "hybrid_sliding"] * 4},),
    ),
    "GraniteSWARotaryEmbedding": (
        "GraniteSWAModel",
        ({}, {"layer_rope_theta": [0, 100.0, 1e4, 0, 1e4, 100.0, 0, 5e5]}),
    ),
    "GraniteMoeSWARotaryEmbedding": (
        "GraniteMoeSWAModel",
        ({}, {"layer_rope_theta": [0, 100.0, 1e4, 0, 1e4, 100.0, 0, 5e5]}),
    ),
    "LagunaRotaryEmbedding": ("LagunaModel", ({}, {"layer_types": SLIDING_AND_FULL, "sliding_window": 4})),
    "Lfm2RotaryEmbedding": ("Lfm2Model", ({}, {"layer_types": ["conv", "full_attention"] * 4})),
    "Llama4TextRotaryEmbedding": (
        "Llama4TextModel",
        ({}, {"no_rope_layer_interval": 3}, {"no_rope_layers": [1, 0, 0, 1, 1, 1, 0, 1]}),
    ),
    "MellumRotaryEmbedding": ("MellumModel", ({}, {"layer_types": SLIDING_AND_FULL, "sliding_window": 4})),
    "MiMoV2FlashRotaryEmbedding": ("MiMoV2FlashModel", ({},)),
    "MiniMaxRotaryEmbedding": ("MiniMaxModel", ({},)),
    "ModernBertRotaryEmbedding": ("ModernBertModel", ({}, {"global_attn_every_n_layers": 4})),
    "ModernBertDecoderRotaryEmbedding": ("ModernBertDecoderModel", ({}, {"global_attn_every_n_layers": 4})),
    "MuseGlimmerTextRotaryEmbedding": (
        "MuseGlimmerTextModel",
        ({}, {"num_hidden_layers": 7}, {"layer_rope_theta": [0, 1, 1, 0, 1, 1, 1, 0]}),
    ),
    "Olmo3RotaryEmbedding": ("Olmo3Model", ({}, {"layer_types": SLIDING_AND_FULL})),
    "OlmoHybridRotaryEmbedding": ("OlmoHybridModel", ({}, {"rope_parameters": {"rope_theta": None}})),
    "Qwen3NextRotaryEmbedding": ("Qwen3NextModel", ({}, {"full_attention_interval": 3})),
    "RecurrentGemmaRotaryEmbedding": ("RecurrentGemmaModel", ({},)),
    "SmolLM3RotaryEmbedding": (
        "SmolLM3Model",
        ({}, {"no_rope_layer_interval": 3}, {"no_rope_layers": [1, 0, 0, 1, 1, 1, 0, 1]}),
    ),
}


def watched(module, model, count, name):
    """The cosines and sines that each layer of a model applies by the function of this name, by layer."""
    function, layer, seen = getattr(module, name), [0], {}
    signature = inspect.signature(function)

    def watching(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        complex_table = given.get("freqs_cis")
        tables = (given["cos"], given["sin"]) if complex_table is None else (complex_table.real, complex_table.imag)
        seen.setdefault(layer[0], tuple(halves(table.reshape(-1, table.shape[-1])) for table in tables))
        return function(*args, **kwargs)

    for index, each in enumerate(model.layers):
        each.register_forward_pre_hook(lambda *_, index=index: layer.__setitem__(0, index))
    setattr(module, name, watching)
    try:
        with torch.no_grad():
            model(input_ids=torch.arange(1, count + 1)[None])
    finally:
        setattr(module, name, function)
    return seen


def layers(module, cls):
    """Every layer of a model turns as ours does for that layer, or neither does."""
    model_name, changed = LAYERED[cls.__name__]
    subject, count = listed(SUBJECTS.get(cls.__name__, Subject()))[0], 7
    name = subject.config or annotated(cls)
    for changes in changed:
        case = ", ".join(["every layer", *changes])
        config_class = type(make(module, name, {}))
        known = {*config_class.__dataclass_fields__, *config_class.attribute_map}
        try:
            config = make(module, name, {k: v for k, v in TINY.items() if k in known} | deepcopy(changes))
            config._attn_implementation = "eager"
            seen = watched(module, getattr(module, model_name)(config).eval(), count, subject.function)
        except Exception as error:
            yield Outcome(name, case, None, "refused upstream", {}, said(error))
            continue
        whole = config.to_dict()
        older = {key: value for key, value in whole.items() if key not in BY_LAYER} | changes
        for kind, given in (("", whole), (", lists left out", older)):
            errors, wrong, refused = [], [], []
            for index in range(config.num_hidden_layers):
                try:
                    rope = rope_xp.from_config(given, layer=index)
                    if (rope is None) != (index not in seen):
                        wrong.append(f"layer {index}: ours {'rotates' if rope else 'does not rotate'}")
                    elif rope is not None:
                        sin, cos = rope.sincos(np.arange(count))
                        errors += [float(np.abs(x - y).max()) for x, y in zip((cos, sin), seen[index])]
                except ValueError as error:
                    refused.append(f"layer {index}: {said(error)}")
            good = not wrong and largest(errors) <= TOLERANCE
            status = "agrees" if good and not refused else "refused" if good and kind else "wrong"
            note = "; ".join([*wrong, *refused])[:300]
            yield Outcome(name, case + kind, None, status, {"tables": largest(errors)}, note)


# Parts of composite configs.


def composites():
    """Every type of config that has configs within it, and its class."""
    for model_type in transformers.CONFIG_MAPPING:
        try:
            config_class = transformers.CONFIG_MAPPING[model_type]
            config = config_class()
        except Exception:  # it needs arguments, or a package that is missing
            continue
        if within(config):
            yield model_type, config


def within(config, path=""):
    """The configs within a config, by path."""
    found = {}
    for key, value in vars(config).items():
        if isinstance(value, transformers.PreTrainedConfig) and not key.startswith("_"):
            found |= {path + key: value, **within(value, f"{path}{key}.")}
    return found


def parts(model_type, whole):
    """Every part that is rotated, which ours must find and read as upstream's config of that part is read alone."""
    known, own = PARTS.get(model_type, {}), within(whole)
    kinds = dict(known.values())
    kinds |= {path: each.model_type for path, each in own.items() if path not in kinds and each.model_type in FAMILIES}
    kinds = {path: kind for path, kind in kinds.items() if path in own or path in dict(known.values())}
    names = [(name, path) for name, (path, _) in known.items()]
    names += [(path, path) for path in kinds if path not in dict(known.values())]
    config = type(whole).__name__
    if (
        model_type not in FAMILIES or not FAMILIES[model_type].divides_axes
    ):  # what stands beside the parts is of text, too
        names += [(None, path) for name, path in names if name == "text"]
    for name, path in names:
        pieces = {piece.removesuffix("_config") for piece in path.split(".")}
        if name not in (path, None) and not set(name.split(".")) <= pieces:
            yield Outcome(config, name, None, "wrong", {}, f"{path} is not what upstream calls so")
    for case, file in files_of(whole, kinds).items():
        try:
            made = type(whole).from_dict(deepcopy(file))
        except Exception as error:
            yield Outcome(config, case, None, "refused upstream", {}, said(error))
            continue
        theirs = within(made)
        for name, path in names:
            if path in theirs:
                yield Outcome(config, f"{name}: {case}", None, *beside(file, name, theirs[path], kinds[path], case))
            elif getattr(whole, path, ...) is not None:
                yield Outcome(config, f"{name}: {case}", None, "wrong", {}, f"upstream has no {path}")


def files_of(whole, paths):
    """Files by what they leave out of each part; where they leave out nothing, each has a base of its own."""
    files = {name: plain(whole) for name in ("whole", "no rotary key", "no model_type", "left out", "nothing")}
    for at, path in enumerate(paths):
        *outer, last = path.split(".")
        for case, file in files.items():
            holder = file
            for key in outer:
                holder = holder.get(key) or {}
            part = holder.get(last)
            if not isinstance(part, dict):
                continue
            if case == "whole":
                blocks = part.get("rope_parameters") or {}
                for block in [each for each in blocks.values() if isinstance(each, dict)] or [blocks] * bool(blocks):
                    block["rope_theta"] = 7000.0 + at
            elif case == "no model_type":
                part.pop("model_type", None)
            elif case == "no rotary key":
                holder[last] = {key: value for key, value in part.items() if not ROTARY.search(key)}
    firsts = {path.split(".")[0] for path in paths}
    files["left out"] = {key: value for key, value in files["left out"].items() if key not in firsts}
    files["nothing"] = files["left out"]
    for case in ("no rotary key", "nothing"):
        files[case] = {key: value for key, value in files[case].items() if not ROTARY.search(key)}
    return files


def beside(file, name, theirs, kind, case):
    """The rest of an `Outcome`: ours of a part of a file, beside ours of upstream's config of that part."""
    alone = {key: value for key, value in plain(theirs).items() if not key.endswith("_config")} | {"model_type": kind}
    for compat in (None, "transformers"):
        ours, wanted = (read(given, part, labels(theirs), compat) for given, part in ((file, name), (alone, None)))
        if ours == wanted:
            return "agrees", {}, ""
        refusal = next((note for note in ours.values() if isinstance(note, str)), "")
    if REFUSAL.match(refusal) and (case != "whole" or "must stand in the part, not beside it" in refusal):
        return "refused", {}, refusal
    return "wrong", {}, f"{ours}, but alone {wanted}"[:600]


def read(given, part, types, compat):
    """Ours by layer type, or its error."""
    found = {}
    for label in types:
        try:
            found[label] = rope_xp.from_config(given, part=part, layer_type=label, compat=compat)
        except Exception as error:
            found[label] = said(error)
    return found


def state_base(config, base):
    """Another base than those of other parts."""
    blocks = config.get("rope_parameters") or {}
    nested = [block for block in blocks.values() if isinstance(block, dict)]
    for block in nested or [blocks] * bool(blocks):
        block["rope_theta"] = base


# The report.

# Versions of transformers of which every class must be covered. Of others, what is new is only listed.
VERSIONS = ("5.18.0", "5.23.0")
# Whose mistakes `compat` makes.
COMPAT = "5.18."


def is_known():
    """Whether the installed transformers is one of them."""
    return version("transformers") in VERSIONS


def norms(folder, file, name):
    """The smallest and largest factor by which a class that is no rotation changes the length of a token's vector."""
    module = importlib.import_module(f"transformers.models.{folder}.{file}")
    cls, subject = getattr(module, name), replace(SUBJECTS[name], drive=DRIVES_APART.get(name, SUBJECTS[name].drive))
    config = make(module, subject.config or annotated(cls), subject.needs)
    seen = subject.drive(Run(subject, module, cls, config))
    x = np.random.default_rng(0).normal(size=(3, seen.heads, seen.positions.shape[-1], seen.dim)).astype(np.float32)
    ratio = np.linalg.norm(seen.rotate(*torch.tensor(x))[0].numpy(), axis=-1) / np.linalg.norm(x[0], axis=-1)
    return float(ratio.min()), float(ratio.max())


def behaviour(ropes):
    """What a class does, in a few words, from ours for the default config."""
    rope = ropes[0]
    words = [rope.layout]
    if rope.sections is not None:
        words.insert(0, f"{rope.axes} axes, {rope.sections.order}")
    elif rope.axes > 1:
        words.insert(0, f"{rope.axes} axes, frequencies of its own")
    if rope.reverse:
        words.append("reversed")
    if rope.blocks > 1:
        words.append(f"{rope.blocks} blocks")
    if rope.rotary_dim < rope.head_dim:
        words.append("last channels" if rope.first_channel else "part of the head")
    if len(ropes) > 1:
        words.append("by layer type")
    return ", ".join(words)


@dataclass
class Result:
    """One class."""

    folder: str
    name: str
    behaviour: str
    rows: list[Outcome]
    reason: str = ""  # why it cannot be covered

    @property
    def covered(self):
        """Whether ours is upstream's at least once, and never what it must not be."""
        return not self.reason and not self.wrong and any(row.status in ("agrees", "deviates") for row in self.rows)

    @property
    def unstated(self):
        """The outcome with no rotary key stated."""
        found = [row for row in self.rows if row.case == "no rotary key"]
        return ", ".join(dict.fromkeys(row.status for row in found)) or "-"

    @property
    def why(self):
        """Why it is not covered."""
        notes = [row.note for row in (*self.wrong, *self.rows) if row.note]
        return self.reason or (notes[0] if notes else "nothing was compared")

    @property
    def wrong(self):
        """Outcomes that must not be; of a class that is no rotation, none is looked at."""
        statuses = ("wrong", "unknown") if is_known() else ("wrong",)
        return [row for row in self.rows if row.status in statuses] if not self.reason else []

    def worst(self, key):
        return max((row.errors[key] for row in self.rows if key in row.errors), default=None)


def measure(quick, only=()):
    """A result for each class."""
    for folder, file, name in found():
        if only and name not in only and folder not in only:
            continue
        reason = ""
        try:
            rows = list(outcomes(folder, file, name, quick))
            if name in NOT_ROTATIONS:
                low, high = norms(folder, file, name)
                reason = f"{NOT_ROTATIONS[name]}: lengths change by {low:.3f} to {high:.3f}"
        except ImportError as error:
            rows, reason = [], f"cannot be imported: {said(error)}"
        except Exception as error:
            # What a class needs that this file has never seen is not known.
            status = "wrong" if is_known() or name in SUBJECTS else "unknown"
            rows = [Outcome("", "", None, status, {}, said(error))]
        yield Result(folder, name, what(rows), rows, reason)


def what(rows):
    """The behaviour of the first config that agrees, over its layer types."""
    first = [row for row in rows if row.rope is not None]
    first = [row for row in first if (row.config, row.case) == (first[0].config, first[0].case)]
    return behaviour([row.rope for row in first]) if first else "not a rotation"


def show(results, console):
    clusters = defaultdict(list)
    for result in results:
        clusters[result.behaviour].append(result)
    from rich.table import Table

    table = Table(title=f"Rotary classes of transformers {version('transformers')} that ours equals, by behaviour")
    table.add_column("behaviour", overflow="fold")
    for head in ("classes", "tables", "q and k"):
        table.add_column(head, justify="right")
    for name, group in sorted(clusters.items(), key=lambda item: -len(item[1])):
        covered = sum(result.covered for result in group)
        table.add_row(name, f"{covered} of {len(group)}", *(shown(worst(group, key)) for key in ("tables", "rotated")))
    console.print(table)
    for status, count in Counter(row.status for result in results for row in result.rows).items():
        console.print(f"{count} configs: {STATUSES[status]}")
    far = [worst(results, f"{key}, float32") for key in ("tables", "rotated")]
    console.print(
        f"float32 phases at positions {LONG[0]} to {LONG[-1]}: tables {shown(far[0])}, q and k {shown(far[1])}"
    )
    console.print(f"\n{sum(r.covered for r in results)} of {len(results)} classes", style="bold")
    for result in results:
        if not result.covered:
            console.print(f"not covered: {result.name}: {result.why}", soft_wrap=True)


def worst(results, key):
    return max((found for result in results if (found := result.worst(key)) is not None), default=None)


def shown(error):
    return "-" if error is None else f"{error:.1e}"


def deviations(results):
    """Reasons, with the classes and configs that have them."""
    groups = defaultdict(lambda: defaultdict(set))
    for result in results:
        for row in result.rows:
            if row.status == "deviates":
                groups[row.note][result.name].add(row.case)
    return groups


def write(results, of_parts, out, quick):
    """Markdown."""
    unnamed = {name for _, name in UNNAMED}
    named = [result for result in results if result.name not in unnamed]
    lines = [
        f"Rotary classes of transformers {version('transformers')}, rebuilt from their configs alone.\n",
        f"Made by `python benchmarks/parity.py{' --quick' if quick else ''}`. Each class is made with its default "
        "config and with changed ones, also with files that state no rotary key (column unstated) or all keys but one; "
        "ours comes from `rope_xp.from_config` of the same. Compared are the scale of the softmax, tables, "
        "and what the model's own function makes of queries and keys, float32, at positions below 512: within "
        f"{TOLERANCE:g}, times the attention factor where it is above 1. Errors are largest differences. float32: with "
        '`phase="float32"` and the frequencies of upstream\'s own buffer, at positions '
        f"{LONG[0]} to {LONG[-1]}: within {LONG_TABLES:.1e} (tables) and {LONG_ROTATED:.1e} (queries and keys), times "
        "the same.\n",
        f"**{sum(r.covered for r in named)} of {len(named)} classes** whose name speaks of rotation, and "
        f"{sum(r.covered for r in results) - sum(r.covered for r in named)} of {len(results) - len(named)} others.\n",
    ]
    lines += ["| configs | |", "|---|---|"]
    for status, count in Counter(row.status for result in results for row in result.rows).items():
        lines.append(f"| {count} | {STATUSES[status]} |")
    lines += ["\n| not covered | why |", "|---|---|"]
    lines += [f"| {r.name} | {r.why} |" for r in results if not r.covered]
    lines += ["\n| ours differs on purpose | classes | configs |", "|---|---|---|"]
    for reason, classes in deviations(results).items():
        cases = sorted(set().union(*classes.values()))
        names = ", ".join(classes) if len(classes) < 20 else f"{len(classes)} classes"
        lines.append(f"| {reason} | {names} | {'; '.join(cases)} |")
    needs = {name: subject for name, subjects in SUBJECTS.items() for subject in listed(subjects) if subject.why}
    names = {result.name for result in results}
    lines += ["\n| not with the default config alone | why |", "|---|---|"]
    lines += [f"| {name} | {subject.why} |" for name, subject in needs.items() if name in names]
    lines.append(f"\n{of_parts_in_words(of_parts)}\n")
    heads = "class | behaviour | configs | agree | unstated | tables | q and k | tables, float32 | q and k, float32"
    lines += [f"| {heads} |", "|---|---|---|---|---|---|---|---|---|"]
    for result in results:
        errors = [result.worst(f"{key}{far}") for far in ("", ", float32") for key in ("tables", "rotated")]
        tried = [row for row in result.rows if row.status != "refused upstream"]
        agree = sum(row.status == "agrees" for row in tried)
        cells = [result.name, result.behaviour, len(tried), agree, result.unstated, *map(shown, errors)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join([*lines, ""]))


def of_parts_in_words(rows):
    counts = Counter(row.status for row in rows)
    configs = len({row.config for row in rows})
    statuses = "; ".join(f"{count}: {STATUSES[status]}" for status, count in counts.items())
    return f"Parts of {configs} composite configs, in files that state them in four ways: {statuses}."


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the default config and two changed ones of each class")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a class, or a folder of models")
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    arguments = parser.parse_args(argv)
    minor = version("transformers").rpartition(".")[0]
    out = arguments.out or RESULTS / ("quick" if arguments.quick else "") / f"coverage-{minor}.md"
    warnings.simplefilter("ignore")  # those of configs that upstream finds odd
    logging.disable(logging.CRITICAL)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # thousands of small products: threads only wait for each other

    from rich.console import Console  # here, as the tests use this file without it

    console = Console(width=80)
    results = list(measure(arguments.quick, arguments.only))
    of_parts = [] if arguments.only else [row for each in composites() for row in parts(*each)]
    for result in results if arguments.only else ():
        for row in result.rows:
            errors = ", ".join(f"{key} {error:.1e}" for key, error in row.errors.items())
            console.print(f"{row.status}: {row.config}, {row.case}, {row.label}: {errors} {row.note}", soft_wrap=True)
    show(results, console)
    if not arguments.only:
        console.print(of_parts_in_words(of_parts))
        write(results, of_parts, out, arguments.quick)
    wrong = {result.name: [f"{row.case}: {row.note}" for row in result.wrong] for result in results if result.wrong}
    for row in of_parts:
        if row.status == "wrong":
            wrong.setdefault(row.config, []).append(f"{row.case}: {row.note}")
    if is_known():
        wrong |= {each.name: [each.why] for each in results if not (each.covered or each.reason or each.wrong)}
        if not (arguments.quick or arguments.only):
            wrong |= {name: [f"it does not differ any more: {why}"] for name, why in unused(results)}
    if wrong:
        sys.exit(f"{len(wrong)} classes disagree: {json.dumps(wrong, indent=1)}")


def unused(results):
    """Classes of `DEVIATIONS` that are here and do not differ."""
    seen = {(result.name, row.note) for result in results for row in result.rows if row.status == "deviates"}
    here = {result.name for result in results if result.rows}
    for names, _, why in DEVIATIONS:
        yield from (
            (name, why) for name in names if name in here and (name, why) not in seen and ONLY_BEFORE not in why
        )


if __name__ == "__main__":
    main()
