"""Calls that must raise, shared by the eager, the jitted and the compiled tests: (call, error, what it must say)."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from rope_xp import (
    RotaryEmbedding,
    XPos,
    YarnScaling,
    apply_rotary_pos_emb,
    apply_rotary_pos_emb_inplace,
    fixed_pos_embedding,
    positions,
    rotate_every_two,
    rotate_half,
    sinusoidal_pos_embedding,
)

ROPE = RotaryEmbedding(head_dim=14, layout="half", base=10_000.0)


def table(xp, *shape, dtype="float32"):
    return xp.array(np.zeros(shape), dtype), xp.array(np.ones(shape), dtype)


def apply(x, sincos, **options):
    return lambda: apply_rotary_pos_emb(x, sincos, **{"seq_dim": 1, **options})


def arrays(xp, x):
    """Bad calls on `x`, a float32 array of shape (2, 5, 3, 14): batch seq heads dim."""
    odd, none = x[..., :13], x[..., :0]
    whole = xp.array(np.ones((2, 5, 3, 14)), "int32")
    good = table(xp, 5, 7)
    boolean, complex_ = (
        xp.array(np.ones(5), "bool"),
        None if xp.name in ("ndonnx",) else xp.array(np.ones(5), "complex64"),
    )
    calls = {
        "odd width, every two": (lambda: rotate_every_two(odd), ValueError, r"^rotate_every_two: .*even.*; got .*13"),
        "odd width, half": (lambda: rotate_half(odd), ValueError, r"^rotate_half: .*even.*; got .*13"),
        "odd width": (apply(odd, table(xp, 5, 6)), ValueError, r"^apply_rotary_pos_emb: .*even.*; got .*13"),
        "no width": (lambda: rotate_half(none), ValueError, r"^rotate_half: .*even .*; got .*, 0\)"),
        "no width, tables": (
            lambda: fixed_pos_embedding(none),
            ValueError,
            r"^fixed_pos_embedding: .*even .*; got .*, 0\)",
        ),
        "no axes": (lambda: rotate_half(x[0, 0, 0, 0]), ValueError, r"x must have a last axis.*; got an array without"),
        "integers": (apply(whole, good), TypeError, r"x must be float16.*; got int32"),
        "integers, half": (lambda: rotate_half(whole), TypeError, r"^rotate_half: x must be .*; got int32"),
        "integers, tables": (
            lambda: fixed_pos_embedding(whole),
            TypeError,
            r"^fixed_pos_embedding: x must be float16 .*; got int32",
        ),
        "a list": (lambda: rotate_half([1.0, 2.0]), TypeError, r"must be an array; got list"),
        "unknown layout": (
            apply(x, good, layout="neox"),
            ValueError,
            r'layout must be "half".*"interleaved".*; got .neox',
        ),
        "layout of a type": (apply(x, good, layout=True), ValueError, r"layout must be \"half\" .*; got True"),
        "unknown kernel": (
            apply(x, good, kernel="fast"),
            ValueError,
            r'^apply_rotary_pos_emb: kernel must be "fastest" .*"reference" .*; got .fast',
        ),
        "kernel of a type": (apply(x, good, kernel=None), ValueError, r"kernel must be .*; got None"),
        "kernel of another device": (
            apply(x, good, kernel="triton"),
            ValueError,
            r"^apply_rotary_pos_emb: kernel='triton' must .*; got",
        ),
        "unknown kernel in place": (
            lambda: apply_rotary_pos_emb_inplace(x, good, seq_dim=1, kernel="fast"),
            ValueError,
            r"^apply_rotary_pos_emb_inplace: kernel must be .*; got .fast",
        ),
        "odd width in place": (
            lambda: apply_rotary_pos_emb_inplace(odd, table(xp, 5, 6), seq_dim=1),
            ValueError,
            r"^apply_rotary_pos_emb_inplace: .*even.*; got .*13",
        ),
        "another head_dim in place": (
            lambda: ROPE.rotate_inplace(x[..., :12], sincos=good, seq_dim=1),
            ValueError,
            r"^RotaryEmbedding.rotate_inplace: x must have head_dim=14 .*; got .*12",
        ),
        "real positions of rows": (
            lambda: ROPE(x, positions=xp.array(np.arange(5), "float32"), sincos=good, seq_dim=1),
            TypeError,
            r"^RotaryEmbedding: positions must be an array of integers .*; got float32",
        ),
        "positions of rows, of another length": (
            lambda: ROPE(x, positions=xp.array(np.arange(4), "int32"), sincos=good, seq_dim=1),
            ValueError,
            r"^RotaryEmbedding: positions must .*; got shape \(4,\) for x of shape \(2, 5, 3, 14\)",
        ),
        "rows of many axes": (
            lambda: ROPE(x, positions=xp.array(np.arange(5), "int32"), sincos=table(xp, 2, 5, 7), seq_dim=1),
            ValueError,
            r"^RotaryEmbedding: tables must be \(rows, pairs\) .*; got shape \(2, 5, 7\)",
        ),
        "no rows": (
            lambda: ROPE(x, positions=xp.array(np.arange(5), "int32"), sincos=table(xp, 0, 7), seq_dim=1),
            ValueError,
            r"tables must be \(rows, pairs\) .*; got shape \(0, 7\)",
        ),
        "rows of another rotary_dim": (
            lambda: ROPE(x, positions=xp.array(np.arange(5), "int32"), sincos=table(xp, 9, 5), seq_dim=1),
            ValueError,
            r"7 pairs, .*; got .*\(9, 5\)",
        ),
        "rows for heads": (
            lambda: ROPE(x, positions=xp.array(np.arange(5), "int32"), sincos=good, seq_dim=1, heads_dim=2),
            ValueError,
            r"^RotaryEmbedding: positions must select rows of tables .*; got heads=None .* heads_dim=2",
        ),
        "tables and decay": (
            lambda: replace(ROPE, xpos=XPos())(x, sincos=good, seq_dim=1),
            ValueError,
            r"^RotaryEmbedding: sincos must be given without xpos; got xpos=XPos",
        ),
        "a description of a list": (
            lambda: ROPE.describe([1.0, 2.0]),
            TypeError,
            r"^RotaryEmbedding.describe: x must be an array; got list",
        ),
        "wide tables": (apply(x, table(xp, 5, 8)), ValueError, r"1 to 7 pairs.*; got .*\(5, 8\).*\(2, 5, 3, 14\)"),
        "full-width tables": (apply(x, table(xp, 5, 14)), ValueError, r"1 to 7 pairs.*; got .*\(5, 14\)"),
        "empty tables": (apply(x, table(xp, 5, 0)), ValueError, r"1 to 7 pairs.*; got .*\(5, 0\)"),
        "tables of another length": (
            apply(x, table(xp, 4, 7)),
            ValueError,
            r"tables must have as many axes .*; got shape \(4, 7\) .*\(2, 5, 3, 14\)",
        ),
        "tables of length one": (
            apply(x, table(xp, 1, 7)),
            ValueError,
            r"tables must have as many axes .*; got shape \(1, 7\)",
        ),
        "tables on the heads' axis": (apply(x, good, seq_dim=2), ValueError, r"seq_dim=2.*; got .*\(5, 7\)"),
        "tables of another batch": (
            apply(x, table(xp, 3, 5, 7)),
            ValueError,
            r"tables must have as many axes .*; got shape \(3, 5, 7\)",
        ),
        "tables with heads": (
            apply(x, table(xp, 5, 3, 7)),
            ValueError,
            r"tables must have as many axes .*; got shape \(5, 3, 7\)",
        ),
        "tables of more axes": (
            apply(x, table(xp, 1, 2, 5, 3, 7)),
            ValueError,
            r"tables must have as many axes .*; got shape \(1, 2, 5, 3, 7\)",
        ),
        "tables that grow x": (
            apply(x[:1, ...], table(xp, 2, 5, 1, 7)),
            ValueError,
            r"tables must have as many axes .*; got shape \(2, 5, 1, 7\)",
        ),
        "batch after the sequence": (
            apply(x, table(xp, 1, 2, 7), seq_dim=0),
            ValueError,
            r"\(batch, seq, pairs\) with seq=2 on axis seq_dim=0 .*; got shape \(1, 2, 7\)",
        ),
        "tables without a sequence": (
            apply(x, table(xp, 7)),
            ValueError,
            r"tables must have as many axes .*; got shape \(7,\)",
        ),
        "tables of two shapes": (
            apply(x, (good[0], table(xp, 5, 6)[1])),
            ValueError,
            r"same shape; got \(5, 7\) and \(5, 6\)",
        ),
        "seq_dim out of range of tables that fit": (
            apply(x, table(xp, 2, 5, 3, 7), seq_dim=7),
            ValueError,
            r"seq_dim must name .*; got seq_dim=7",
        ),
        "inverse of a type": (apply(x, good, inverse="no"), TypeError, r"inverse must be a bool; got str"),
        "no pair": (apply(x, good[0]), TypeError, r"sincos must be a pair \(sin, cos\); got"),
        "integer tables": (apply(x, (whole[0, :, 0, :7], good[1])), TypeError, r"sin must be float32.*; got int32"),
        "seq_dim that is a type": (apply(x, good, seq_dim=int), TypeError, r"seq_dim must be an int; got type"),
        "seq_dim of channels": (apply(x, good, seq_dim=3), ValueError, r"seq_dim must name .*before the last; got"),
        "seq_dim out of range": (apply(x, good, seq_dim=-5), ValueError, r"seq_dim.*; got seq_dim=-5"),
        "seq_dim of a type": (apply(x, good, seq_dim="1"), TypeError, r"seq_dim must be an int; got str"),
        "notebook seq_dim": (lambda: fixed_pos_embedding(x, 3), ValueError, r"^fixed_pos_embedding: seq_dim"),
        "base of zero": (lambda: fixed_pos_embedding(x, base=0.0), ValueError, r"base must be at least 1; got 0"),
        "base of a string": (
            lambda: fixed_pos_embedding(x, base="1e4"),
            TypeError,
            r"base must be a number; got '1e4'",
        ),
        "base below one": (lambda: fixed_pos_embedding(x, base=0.5), ValueError, r"base must be at least 1; got 0.5"),
        "NumPy offset out of int32": (
            lambda: fixed_pos_embedding(x, offset=np.asarray(2**31 - 1, dtype=np.int32)),
            ValueError,
            r"fit in int32; got offset=2147483647",
        ),
        "offset out of int32": (lambda: fixed_pos_embedding(x, offset=2**31 - 1), ValueError, r"fit in int32; got"),
        "real offset": (lambda: fixed_pos_embedding(x, offset=0.5), TypeError, r"offset must be .*; got float"),
        "offset per row": (
            lambda: fixed_pos_embedding(x, offset=xp.array([1, 2], "int32")),
            ValueError,
            r"offset must have no axis; got shape \(2,\)",
        ),
        "unknown phase": (lambda: fixed_pos_embedding(x, phase="fast"), ValueError, r'phase must be "exact".*; got'),
        "boolean positions": (lambda: ROPE.sincos(boolean), TypeError, r"positions must be .*; got bool"),
        "positions in a list": (lambda: ROPE.sincos([1, 2]), TypeError, r"positions must be an array; got list"),
        "positions of another length": (
            lambda: ROPE(x, positions=xp.array(np.arange(4), "int32"), seq_dim=1),
            ValueError,
            r"^RotaryEmbedding: positions must .*; got shape \(4,\) for x of shape \(2, 5, 3, 14\)",
        ),
        "positions without axes": (
            lambda: ROPE(x, positions=xp.array(np.asarray(4), "int32"), seq_dim=1),
            ValueError,
            r"positions must have one axis less than x, or be \(seq\) .*; got shape \(\)",
        ),
        "a number for positions": (lambda: ROPE(x, positions=4, seq_dim=1), TypeError, r"must be an array; got int"),
        "another head_dim": (
            lambda: ROPE(x[..., :12], seq_dim=1),
            ValueError,
            r"^RotaryEmbedding: x must have head_dim=14 .*; got .*12",
        ),
        "tables of another rotary_dim": (
            lambda: ROPE.rotate(x, table(xp, 5, 5), seq_dim=1),
            ValueError,
            r"7 pairs, .*; got .*\(5, 5\)",
        ),
        "no seq_dim": (lambda: ROPE(x), TypeError, r"missing 1 required keyword-only argument: 'seq_dim'"),
        "two lengths": (
            lambda: ROPE(x, x[:, :4, ...], seq_dim=1),
            ValueError,
            r"positions must be given.*; got \[5, 4\]",
        ),
        "another head_dim of keys": (
            lambda: ROPE.shift(x[..., :12], 1, seq_dim=1),
            ValueError,
            r"^RotaryEmbedding.shift: k must have head_dim=14 .*; got .*12",
        ),
        "real delta": (
            lambda: ROPE.shift(x, 0.5, seq_dim=1),
            TypeError,
            r"^RotaryEmbedding.shift: delta must be an int",
        ),
        "delta of a truth": (lambda: ROPE.shift(x, True, seq_dim=1), TypeError, r"delta must be an int.*; got bool"),
        "delta out of int32": (lambda: ROPE.shift(x, 2**31, seq_dim=1), ValueError, r"int32; got delta=2147483648"),
        "delta of another length": (
            lambda: ROPE.shift(x, xp.array(np.arange(4), "int32"), seq_dim=1),
            ValueError,
            r"^RotaryEmbedding.shift: delta must .*; got shape \(4,\)",
        ),
        "odd sinusoidal": (
            lambda: sinusoidal_pos_embedding(xp.array(np.arange(4), "int32"), 5),
            ValueError,
            r"^sinusoidal_pos_embedding: dim must be even, at least 2; got 5",
        ),
    }
    if complex_ is not None:
        calls["complex positions"] = (lambda: ROPE.sincos(complex_), TypeError, r"positions must be .*; got complex64")
        calls["complex x"] = (lambda: rotate_half(complex_[:4]), TypeError, r"x must be .*; got complex64")
    for half in set(xp.floats) & {"float16", "bfloat16"}:
        low = xp.array(np.arange(5), half)
        calls[f"{half} positions"] = (
            lambda low=low: ROPE.sincos(low),
            TypeError,
            r"positions must be .*; got b?float16",
        )
        calls[f"{half} tables"] = (apply(x, table(xp, 5, 7, dtype=half)), TypeError, r"sin must be float32 or float64")
    if "float64" in xp.floats:
        double = xp.array(np.zeros((2, 5, 3, 14)), "float64")
        calls["float32 tables for float64"] = (apply(double, good), TypeError, r"float64; got sin in float32")
    return calls


def embeddings():
    """Bad embeddings: (arguments, error, what it must say)."""
    good = {"head_dim": 14, "layout": "half", "base": 10_000.0}
    return {
        "no layout": ({"head_dim": 14, "base": 1e4}, TypeError, r"missing 1 required keyword-only argument: 'layout'"),
        "unknown layout": ({**good, "layout": "neox"}, ValueError, r"^RotaryEmbedding: layout must be .*; got 'neox'"),
        "odd head_dim": ({**good, "head_dim": 13}, ValueError, r"head_dim must be even, at least 2; got 13"),
        "no head_dim": ({**good, "head_dim": 0}, ValueError, r"head_dim must be even, at least 2; got 0"),
        "head_dim of a type": ({**good, "head_dim": "14"}, TypeError, r"head_dim must be an int; got str"),
        "odd rotary_dim": ({**good, "rotary_dim": 5}, ValueError, r"rotary_dim must be even.*; got 5"),
        "wide rotary_dim": ({**good, "rotary_dim": 16}, ValueError, r"at most 14; got 16"),
        "no frequencies": (
            {"head_dim": 14, "layout": "half"},
            ValueError,
            r"base or inv_freq must be given; got neither",
        ),
        "base below one": ({**good, "base": 0.5}, ValueError, r"base must be at least 1; got 0.5"),
        "huge base": ({**good, "base": 10**400}, ValueError, r"base must be finite; got 1000"),
        "huge frequency": (
            {"head_dim": 14, "layout": "half", "inv_freq": (1.0, 10**400)},
            ValueError,
            r"inv_freq must be below 65536",
        ),
        **{
            f"frequencies {frequencies!r:.20}": (
                {"head_dim": 14, "layout": "half", "inv_freq": frequencies},
                TypeError,
                r"inv_freq must be .*; got",
            )
            for frequencies in (
                "1234",
                b"12",
                [True],
                {1.0},
                {1.0: 2},
                ["1"],
                np.ones(2, dtype=np.float16),
                np.ones(2, dtype=complex),
            )
        },
        "a frequency alone": (
            {"head_dim": 14, "layout": "half", "inv_freq": np.asarray(1.0)},
            ValueError,
            r"inv_freq must be a non-empty \(pairs\), .*; got shape \(\)",
        ),
        "no frequency": (
            {"head_dim": 14, "layout": "half", "inv_freq": []},
            ValueError,
            r"at least one number.*; got \[\]",
        ),
        "another base by replace": (
            {**good, "inv_freq": ROPE.inv_freq, "base": 500.0},
            ValueError,
            r"must not contradict inv_freq .*; got base=500.0",
        ),
        "negative base": ({**good, "base": -1.0}, ValueError, r"base must be at least 1; got -1"),
        "base not a number": ({**good, "base": float("nan")}, ValueError, r"base must be finite; got nan"),
        "too many frequencies": (
            {"head_dim": 14, "layout": "half", "inv_freq": [1.0] * 8},
            ValueError,
            r"fit into head_dim; got 8",
        ),
        "frequencies and width": (
            {"head_dim": 14, "layout": "half", "inv_freq": [1.0] * 4, "rotary_dim": 10},
            ValueError,
            r"rotary_dim / 2.*; got 4",
        ),
        "frequencies and base": (
            {**good, "inv_freq": [1.0, 0.5]},
            ValueError,
            r"must not contradict inv_freq .*; got base=",
        ),
        "infinite frequency": (
            {"head_dim": 14, "layout": "half", "inv_freq": [1.0, float("inf")]},
            ValueError,
            r"inv_freq must be below 65536 .*; got",
        ),
        "fast frequency": (
            {"head_dim": 14, "layout": "half", "inv_freq": np.asarray([1.0, -65536.0])},
            ValueError,
            r"inv_freq must be below 65536 .*; got",
        ),
        "words for frequencies": (
            {"head_dim": 14, "layout": "half", "inv_freq": ["a"]},
            TypeError,
            r"inv_freq must be a sequence of floats or an array; got \['a'\]",
        ),
        "attention_factor of zero": (
            {**good, "attention_factor": 0.0},
            ValueError,
            r"attention_factor must be greater than 0; got 0.0",
        ),
        "unknown phase": ({**good, "phase": "fast"}, ValueError, r"phase must be \"exact\" .*; got 'fast'"),
        "unknown kernel": ({**good, "kernel": "fast"}, ValueError, r"^RotaryEmbedding: kernel must be .*; got 'fast'"),
    }


def builders(xp):
    """Bad calls of the builders of positions."""
    integers = xp.array(np.asarray([0, 3, 5]), "int32")
    return {
        "negative seq": (
            lambda: positions.consecutive(-1),
            ValueError,
            r"^consecutive: seq must not be negative; got -1",
        ),
        "real seq": (lambda: positions.consecutive(2.0), TypeError, r"seq must be an int; got float"),
        "offset out of int32": (
            lambda: positions.consecutive(3, 2**31),
            ValueError,
            r"fit in int32; got offset=2147483648",
        ),
        "offset of two axes": (lambda: positions.consecutive(3, integers[None, :]), ValueError, r"no axis or one; got"),
        "NumPy offsets out of int32": (
            lambda: positions.consecutive(5, np.asarray([0, 2**31 - 3], dtype=np.int32)),
            ValueError,
            r"fit in int32; got offset=2147483645 and 5 tokens",
        ),
        "NumPy offsets out of int64": (
            lambda: positions.consecutive(3, np.asarray([0, 2**63 - 2])),
            ValueError,
            r"^consecutive: positions must fit in int64; got offset=9223372036854775806 and 3 tokens",
        )
        if xp.name != "jax"
        else (
            lambda: positions.consecutive(3, np.asarray([0, 2**31 - 2]), like=integers),
            ValueError,
            r"^consecutive: positions must fit in int32; got offset=2147483646 and 3 tokens",
        ),
        "many tokens of a rank": (
            lambda: positions.context_parallel(2**32, integers[0], 2),
            ValueError,
            r"^context_parallel: positions must fit in int32; got 4294967296 tokens",
        )
        if xp.name != "numpy"
        else (
            lambda: positions.context_parallel(2**33, 1, 2),
            ValueError,
            r"^context_parallel: positions must fit in int32; got rank \* chunk=4294967296",
        ),
        "tokens beyond the last boundary": (
            lambda: positions.from_cu_seqlens([0, 3, 5], total=6, like=integers),
            ValueError,
            r"^from_cu_seqlens: total must be the last boundary, 5 .*; got 6",
        ),
        "more tokens beyond the last boundary": (
            lambda: positions.from_cu_seqlens([0, 1000], total=1001),
            ValueError,
            r"^from_cu_seqlens: total must be the last boundary, 1000 .*; got 1001",
        ),
        "mask without axes": (
            lambda: positions.from_mask(np.asarray(True)),
            ValueError,
            r"mask must have an axis of tokens; got none",
        ),
        "mask beside a word": (
            lambda: positions.from_mask(np.ones(3, dtype=bool), like="a"),
            TypeError,
            r"^from_mask: like must be an array; got str",
        ),
        "no such NumPy rank": (lambda: positions.context_parallel(8, np.asarray(5), 2), ValueError, r"size=2; got 5"),
        "lengths of lengths": (
            lambda: positions.from_lengths([[1, 2]]),
            TypeError,
            r"lengths must be a sequence of int .*; got \[\[1, 2\]\]",
        ),
        "lengths out of int32": (
            lambda: positions.from_lengths([2**31]),
            ValueError,
            r"positions must fit in int32; got 2147483648 tokens",
        ),
        "real mask": (
            lambda: positions.from_mask(xp.array(np.ones(3), "float32")),
            TypeError,
            r"^from_mask: .*float32",
        ),
        "no boundary": (
            lambda: positions.from_cu_seqlens(integers[:0], 4),
            ValueError,
            r"cu_seqlens .*start with 0.*; got",
        ),
        "lowest offset": (
            lambda: positions.consecutive(3, np.asarray([-(2**31) - 1, 0]), like=xp.array(np.ones(1), "int32")),
            ValueError,
            r"fit in int32; got",
        )
        if xp.name == "jax"
        else (lambda: positions.consecutive(3, -(2**31) - 1), ValueError, r"fit in int32; got offset=-2147483649"),
        "total unknown": (
            lambda: positions.from_cu_seqlens(integers),
            ValueError,
            r"total must be given for an array that cannot be read .*; got",
        )
        if xp.name != "numpy"
        else (lambda: positions.from_cu_seqlens([1, 3]), ValueError, r"start with 0.*; got \[1, 3\]"),
        "falling": (lambda: positions.from_cu_seqlens([0, 3, 2]), ValueError, r"never decrease; got \[0, 3, 2\]"),
        "negative length": (
            lambda: positions.from_lengths([3, -1]),
            ValueError,
            r"boundaries .* never decrease; got \[0, 3, 2\]",
        ),
        "real lengths": (
            lambda: positions.from_lengths([1.5]),
            TypeError,
            r"lengths must be a sequence of int.*; got \[1.5\]",
        ),
        "short total": (lambda: positions.from_lengths([3, 2], 4), ValueError, r"total must be at least .*5; got 4"),
        "nothing": (lambda: positions.from_cu_seqlens([]), ValueError, r"boundaries that start with 0 .*; got \[\]"),
        "lengths of two axes": (lambda: positions.from_lengths(integers[None, :], 4), ValueError, r"one axis; got"),
        "ranks that do not divide": (
            lambda: positions.context_parallel(7, 0, 2),
            ValueError,
            r"divisible by 2.*; got 7",
        ),
        "zigzag that does not divide": (
            lambda: positions.context_parallel(6, 0, 2, zigzag=True),
            ValueError,
            r"divisible by 4.*; got 6",
        ),
        "no such rank": (lambda: positions.context_parallel(8, 2, 2), ValueError, r"less than size=2; got 2"),
        "ranks with axes": (lambda: positions.context_parallel(8, integers, 2), ValueError, r"rank must have no axis"),
        "no ranks": (lambda: positions.context_parallel(8, 0, 0), ValueError, r"size must be at least 1; got 0"),
        "no grid": (lambda: positions.grid(), ValueError, r"^grid: .*; got none"),
        "negative grid": (lambda: positions.grid(2, -1), ValueError, r"must not be negative; got -1"),
        "like a list": (lambda: positions.grid(2, like=[1]), TypeError, r"like must be an array; got list"),
    }


def check_beginnings(module):
    """What the module of a framework may not begin from."""
    scaling = YarnScaling(factor=40.0, original_max_position_embeddings=4096, mscale=1.0, mscale_all_dim=1.0)
    scaled = RotaryEmbedding(head_dim=14, layout="half", base=10_000.0, scaling=scaling)
    assert module(scaled, seq_dim=1).rope.softmax_scale == scaled.softmax_scale > 1
    with pytest.raises(ValueError, match=r"^RotaryEmbedding: learned .* with softmax_scale 1.*; got 1\.\d+"):
        module(scaled, seq_dim=1, learned=True)
    with pytest.raises(TypeError, match=r"^RotaryEmbedding: rope must be a rope_xp.RotaryEmbedding; got dict"):
        module({"head_dim": 14}, seq_dim=1)
    with pytest.raises(TypeError, match=r"^RotaryEmbedding: rope or its arguments must be given; got neither"):
        module(None, seq_dim=1)  # as from_config gives for a layer that is not rotated


def import_error(module, before):
    """What another process says that runs a statement and then imports a module, which must be an ImportError."""
    code = f"{before}\ntry:\n    import {module}\nexcept ImportError as error:\n    print(error)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
