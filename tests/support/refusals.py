"""Every public function that takes arrays, once for each argument that may be one, and a plain array to give it."""

import inspect
from functools import partial

import numpy as np

import rope_xp
from rope_xp import RotaryEmbedding, XPos, positions

ROPE = RotaryEmbedding(head_dim=14, layout="half", base=10_000.0, attention_factor=1.25)
OTHER = ROPE.replace(base=500.0)
X = np.random.default_rng(0).standard_normal((5, 14)).astype(np.float32)
TABLE = np.random.default_rng(1).standard_normal((5, 7)).astype(np.float32)
WHERE = np.asarray([3, 0, 1, 4, 2], np.int32)
FREQUENCIES = np.asarray([1.0, 0.5, 0.25, 0.1, 0.05, 0.01, 0.001], np.float32)
REAL = np.asarray([[0.5, 1.25], [2.0, -0.75]], np.float32)
TYPES, GRIDS = np.asarray([0, 1, 1, 1, 1, 0]), np.asarray([[1, 4, 4]])
VIDEO_TYPES = np.asarray([0, 2, 2, 2, 2, 0])
ONE, LENGTHS, ENDS = np.asarray(1, np.int32), np.asarray([3, 2], np.int32), np.asarray([0, 3, 5], np.int32)
TIMES, SECONDS = np.asarray([0, 10]), np.asarray([1.5])
IN_PLACE = partial(ROPE.rotate_inplace, seq_dim=0)


def tables(make):
    return make(TABLE), make(TABLE + 1)


def rotated(*arrays, **options):
    return ROPE(*arrays, seq_dim=0, **options)


def learned(inv_freq, x):
    return RotaryEmbedding(head_dim=14, layout="half", inv_freq=inv_freq)(x, seq_dim=0)


def in_place(*arrays, function=IN_PLACE, **options):
    """The last array, rotated with the others."""
    function(*arrays, **options)
    return arrays[-1]


apply, apply_in_place = rope_xp.apply_rotary_pos_emb, partial(in_place, function=rope_xp.apply_rotary_pos_emb_inplace)
# name: (the argument, what a plain one is, the call with it, where `make` gives other arrays of the same library)
CALLS = {
    "rotate_every_two": [("x", X, lambda x, make: rope_xp.rotate_every_two(x))],
    "rotate_half": [("x", X, lambda x, make: rope_xp.rotate_half(x))],
    "apply_rotary_pos_emb": [
        ("x", X, lambda x, make: apply(x, tables(make))),
        ("sin", TABLE, lambda sin, make: apply(make(X), (sin, make(TABLE + 1)))),
        ("cos", TABLE, lambda cos, make: apply(make(X), (make(TABLE), cos))),
    ],
    "apply_rotary_pos_emb_inplace": [
        ("x", X, lambda x, make: apply_in_place(x, sincos=tables(make))),
        ("sin", TABLE, lambda sin, make: apply_in_place(make(X), sincos=(sin, make(TABLE + 1)))),
    ],
    "fixed_pos_embedding": [
        ("x", X, lambda x, make: rope_xp.fixed_pos_embedding(x)),
        ("offset", ONE, lambda offset, make: rope_xp.fixed_pos_embedding(make(X), offset=offset)),
    ],
    "sinusoidal_pos_embedding": [
        ("positions", WHERE, lambda where, make: rope_xp.sinusoidal_pos_embedding(where, 14)),
        ("like", X, lambda x, make: rope_xp.sinusoidal_pos_embedding(WHERE, 14, like=x)),
    ],
    "permute_projection": [("w", X, lambda w, make: rope_xp.permute_projection(w, num_heads=1, to="half", axis=1))],
    "RotaryEmbedding": [("inv_freq", FREQUENCIES, lambda w, make: learned(w, make(X)))],
    "RotaryEmbedding.__call__": [
        ("x", X, lambda x, make: rotated(x)),
        ("x", X, lambda x, make: rotated(make(X), x)),
        ("positions", WHERE, lambda where, make: rotated(make(X), positions=where)),
        ("positions", WHERE, lambda where, make: rotated(make(X), sincos=tables(make), positions=where)),
        ("sin", TABLE, lambda sin, make: rotated(make(X), sincos=(sin, make(TABLE)))),
        ("positions", WHERE, lambda where, make: ROPE.replace(xpos=XPos())(*[make(X)] * 2, positions=where, seq_dim=0)),
    ],
    "RotaryEmbedding.sincos": [
        ("positions", WHERE, lambda where, make: ROPE.sincos(where)),
        ("like", X, lambda x, make: ROPE.sincos(WHERE, like=x)),
    ],
    "RotaryEmbedding.rotate": [
        ("x", X, lambda x, make: ROPE.rotate(x, tables(make), seq_dim=0)),
        ("x", X, lambda x, make: ROPE.rotate(x, tables(make), seq_dim=0, inverse=True)),
        ("cos", TABLE, lambda cos, make: ROPE.rotate(make(X), (make(TABLE), cos), seq_dim=0, inverse=True)),
    ],
    "RotaryEmbedding.rotate_inplace": [
        ("x", X, lambda x, make: in_place(x, sincos=tables(make))),
        ("x", X, lambda x, make: in_place(make(X), x, sincos=tables(make))),
        ("positions", WHERE, lambda where, make: in_place(make(X), sincos=tables(make), positions=where)),
    ],
    "RotaryEmbedding.shift": [
        ("k", X, lambda k, make: ROPE.shift(k, -3, seq_dim=0)),
        ("delta", WHERE, lambda delta, make: ROPE.shift(make(X), delta, seq_dim=0)),
    ],
    "RotaryEmbedding.rerotate": [
        ("k", X, lambda k, make: ROPE.rerotate(k, WHERE, to=OTHER, seq_dim=0)),
        ("positions", WHERE, lambda where, make: ROPE.rerotate(make(X), where, to=OTHER, seq_dim=0)),
    ],
    "RotaryEmbedding.describe": [("x", X, lambda x, make: make(np.asarray(len(ROPE.describe(x)) > 9)))],
    "positions.consecutive": [
        ("offset", ONE, lambda offset, make: positions.consecutive(5, offset)),
        ("offset", WHERE, lambda offset, make: positions.consecutive(5, offset)),
        ("like", X, lambda x, make: positions.consecutive(5, like=x)),
    ],
    "positions.from_mask": [
        ("mask", (WHERE > 1).astype(WHERE.dtype), lambda mask, make: positions.from_mask(mask)),
        ("mask", WHERE > 1, lambda mask, make: positions.from_mask(mask)),
    ],
    "positions.from_lengths": [("lengths", LENGTHS, lambda lengths, make: positions.from_lengths(lengths, 5))],
    "positions.from_cu_seqlens": [("cu_seqlens", ENDS, lambda ends, make: positions.from_cu_seqlens(ends, 5))],
    "positions.context_parallel": [
        ("rank", ONE, lambda rank, make: positions.context_parallel(8, rank, 2)),
        ("seq", TABLE[:4], lambda row, make: positions.context_parallel(row, 0, 7)),
        ("cu_seqlens", 2 * ENDS, lambda ends, make: positions.context_parallel(10, 0, 2, cu_seqlens=ends)),
    ],
    "positions.grid": [
        ("coordinates", WHERE, lambda line, make: positions.grid(line, 2)),
        ("like", X, lambda x, make: positions.grid(2, 3, like=x)),
    ],
    "positions.normalized": [("like", X, lambda x, make: positions.normalized(2, 3, like=x))],
    "positions.join": [("every part", np.asarray([WHERE, WHERE]), lambda part, make: positions.join(part, 2))],
    "positions.augment": [
        ("positions", REAL, lambda x, make: positions.augment(x, np.random.default_rng(0), shift=0.1))
    ],
}


def of_prompt(function):
    return [
        ("token_types", TYPES, lambda types, make: function(types, GRIDS).positions),
        ("image_grids", GRIDS, lambda grids, make: function(TYPES, grids).positions),
        ("mask", TYPES * 0 + 1, lambda mask, make: function(TYPES, GRIDS, mask=mask).positions),
    ]


PACED = partial(positions.qwen2_5_vl, VIDEO_TYPES, None, GRIDS, positions_per_second=2.0)
# Those that read numbers on the host, and take no arrays but NumPy's.
ON_HOST = {
    "positions.grid": [("start", np.asarray([1, 2]), lambda start, make: positions.grid(2, 3, start=start))],
    "positions.prompt": [("times", TIMES, lambda times, make: positions.prompt([2, (times, 1, 2)]).positions)],
    "positions.qwen2_vl": of_prompt(positions.qwen2_vl),
    "positions.qwen3_vl": of_prompt(positions.qwen3_vl),
    "positions.qwen3_omni": of_prompt(positions.qwen3_omni),
    "positions.ernie4_5_vl": of_prompt(positions.ernie4_5_vl),
    "positions.hunyuan_vl": [
        ("image_grids", np.asarray([[1, 4, 2]]), lambda grids, make: positions.hunyuan_vl(TYPES, grids).positions)
    ],
    "positions.qwen2_5_vl": [
        ("token_types", TYPES, lambda types, make: positions.qwen2_5_vl(types, GRIDS).positions),
        ("seconds_per_grid", SECONDS, lambda seconds, make: PACED(seconds_per_grid=seconds).positions),
    ],
}
# What takes no arrays.
OTHERS = {
    "assert_same",
    "compare",
    "from_config",
    "identify",
    "identify_checkpoint",
    "RotaryEmbedding.explain",
    "RotaryEmbedding.extend",
    "RotaryEmbedding.to_config",
    "RotaryEmbedding.replace",
}


def cases(*tables):
    """All of them: (name, argument, what a plain one is, call)."""
    return [(f"{name}: {rest[0]}", *rest) for table in tables for name, rows in table.items() for rest in rows]


def subclasses(kind):
    """All classes below a class."""
    for each in type.__subclasses__(kind):
        yield each
        yield from subclasses(each)


def assert_plain_results(cases, change, make, atol, numbers=lambda x: x):
    """A call gives the same with an array that `change` makes of a plain one. `atol` is for real results."""
    for name, _, plain, call in cases:
        results = [call(given, make) for given in (change(plain), make(plain))]
        results = [map(numbers, each if isinstance(each, tuple) else (each,)) for each in results]
        for one, other in zip(*results, strict=True):
            assert one.dtype.name == other.dtype.name, name
            limit = atol if one.dtype.kind == "f" else 0
            np.testing.assert_allclose(one, other, rtol=0, atol=limit, err_msg=name)


def public_functions():
    """The names of all functions of the package, and the methods of its class."""
    found = {name for name in rope_xp.__all__ if inspect.isfunction(getattr(rope_xp, name))}
    found |= {f"positions.{name}" for name in positions.__all__ if inspect.isfunction(getattr(positions, name))}
    methods = [name for name, _ in inspect.getmembers(RotaryEmbedding, inspect.isfunction)]
    return found | {f"RotaryEmbedding.{name}" for name in methods if not name.startswith("_") or name == "__call__"}
