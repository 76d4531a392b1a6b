"""Calls that must raise, shared by the eager, the jitted and the compiled tests: (call, error, what it must say)."""

import subprocess
import sys
from dataclasses import replace
from functools import partial

import array_api_strict
import numpy as np
from errors import raising
from samples import embedding

from rope_xp import (
    Sections,
    XPos,
    apply_rotary_pos_emb,
    apply_rotary_pos_emb_inplace,
    fixed_pos_embedding,
    rotate_every_two,
    rotate_half,
    sinusoidal_pos_embedding,
)
from rope_xp.positions import (
    augment,
    consecutive,
    context_parallel,
    from_cu_seqlens,
    from_lengths,
    from_mask,
    grid,
    join,
    normalized,
    prompt,
    qwen2_vl,
)

ROPE = embedding()


# What `to` of `rerotate` may not be, for keys of ROPE.
OTHER_CHANNELS = [
    ({"head_dim": 16}, r"head_dim=14, like the embedding that rotated k; got 16"),
    ({"layout": "interleaved"}, r"layout='half', .*; got 'interleaved'"),
    ({"head_dim": 14, "rotary_dim": 10}, r"rotary_dim=14, .*; got 10"),
    ({"blocks": 7}, r"blocks=1, .*; got 7"),
    ({"sections": Sections((4, 3))}, r"axes=1, .*; got 2"),
]


def to(rope):
    return {"to": rope, "seq_dim": 1}


def table(xp, *shape, dtype="float32"):
    return xp.array(np.zeros(shape), dtype), xp.array(np.ones(shape), dtype)


def apply(x, sincos, **options):
    return lambda: apply_rotary_pos_emb(x, sincos, **{"seq_dim": 1, **options})


def arrays(xp, x):
    """Bad calls on `x`, a float32 array of shape (2, 5, 3, 14): batch seq heads dim."""
    odd, none = x[..., :13], x[..., :0]
    whole = xp.array(np.ones((2, 5, 3, 14)), "int32")
    good = table(xp, 5, 7)

    def at(where, **options):
        return partial(ROPE, x, **{"positions": xp.array(np.asarray(where), "int32"), "seq_dim": 1, **options})

    in_place, decayed = partial(partial, apply_rotary_pos_emb_inplace), replace(ROPE, xpos=XPos())
    both_ways = {"sincos": good, "seq_dim": 1, "inverse": True, "transpose": True}
    boolean, five = xp.array(np.ones(5), "bool"), np.arange(5)
    values = [
        (lambda: rotate_every_two(odd), r"^rotate_every_two: .*even.*; got .*13"),
        (lambda: rotate_half(odd), r"^rotate_half: .*even.*; got .*13"),
        (apply(odd, table(xp, 5, 6)), r"^apply_rotary_pos_emb: .*even.*; got .*13"),
        (lambda: rotate_half(none), r"^rotate_half: .*even .*; got .*, 0\)"),
        (lambda: fixed_pos_embedding(none), r"^fixed_pos_embedding: .*even .*; got .*, 0\)"),
        (lambda: rotate_half(x[0, 0, 0, 0]), r"x must have a last axis.*; got an array without"),
        (apply(x, good, layout="neox"), r'layout must be "half".*"interleaved".*; got .neox'),
        (apply(x, good, layout=True), r"layout must be \"half\" .*; got True"),
        (apply(x, good, kernel="fast"), r'^apply_rotary_pos_emb: kernel must be "fastest" .*"reference" .*; got .fast'),
        (apply(x, good, kernel=None), r"kernel must be .*; got None"),
        *[(apply(x, good, kernel="triton"), r"^apply_rotary_pos_emb: kernel='triton' must .*; got")]
        * (xp.device == "cpu"),
        (in_place(x, good, kernel="fast"), r"^apply_rotary_pos_emb_inplace: kernel .*; got .fast"),
        (in_place(odd, good), r"^apply_rotary_pos_emb_inplace: .*even.*; got .*13"),
        (lambda: ROPE.rotate_inplace(x[..., :12], sincos=good, seq_dim=1), r"inplace: x must have head_dim=14 .*12"),
        (at(range(4), sincos=good), r"^RotaryEmbedding: positions must .*; got shape \(4,\) for x of shape"),
        (at(range(5), sincos=table(xp, 2, 5, 7)), r"^RotaryEmbedding: tables .*\(rows, pairs\) .*; got .*\(2, 5, 7\)"),
        (at(range(5), sincos=table(xp, 0, 7)), r"tables must be \(rows, pairs\) .*; got shape \(0, 7\)"),
        (at(range(5), sincos=table(xp, 7)), r"tables must be \(rows, pairs\) .*; got shape \(7,\)"),
        (at(range(5), sincos=table(xp, 9, 5)), r"7 pairs, .*; got .*\(9, 5\)"),
        (partial(embedding(rotary_dim=10), x, sincos=good, seq_dim=1), r"5 pairs, .*; got .*\(5, 7\)"),
        (at(range(5), sincos=good, heads_dim=2), r"positions must select rows of .*; got heads=None and heads_dim=2"),
        (apply(x, table(xp)), r"tables must have 1 to 7 pairs on .*; got tables of shape \(\) for x of shape"),
        (partial(decayed, x, sincos=good, seq_dim=1), r"sincos must be given without xpos; got xpos=XPos"),
        (apply(x, table(xp, 5, 8)), r"1 to 7 pairs.*; got .*\(5, 8\).*\(2, 5, 3, 14\)"),
        (apply(x, table(xp, 5, 14)), r"1 to 7 pairs.*; got .*\(5, 14\)"),
        (apply(x, table(xp, 5, 0)), r"1 to 7 pairs.*; got .*\(5, 0\)"),
        (apply(x, table(xp, 4, 7)), r"tables must .* as many axes .*; got shape \(4, 7\) .*\(2, 5, 3, 14\)"),
        (apply(x, good, seq_dim=2), r"seq_dim=2.*; got .*\(5, 7\)"),
        (apply(x, table(xp, 1, 2, 5, 3, 7)), r"tables must .* as many axes .*; got shape \(1, 2, 5, 3, 7\)"),
        (apply(x[:1, ...], table(xp, 2, 5, 1, 7)), r"tables must .* as many axes .*; got shape \(2, 5, 1, 7\)"),
        (apply(x, (good[0], table(xp, 5, 6)[1])), r"same shape; got \(5, 7\) and \(5, 6\)"),
        (apply(x, table(xp, 2, 5, 3, 7), seq_dim=7), r"seq_dim must name .*; got seq_dim=7"),
        (apply(x, good, seq_dim=3), r"seq_dim must name .*before the last; got"),
        (apply(x, good, seq_dim=-5), r"seq_dim.*; got seq_dim=-5"),
        (lambda: fixed_pos_embedding(x, 3), r"^fixed_pos_embedding: seq_dim"),
        (lambda: fixed_pos_embedding(x, base=0.5), r"base must be at least 1; got 0.5"),
        (lambda: fixed_pos_embedding(x, offset=np.int32(2**31 - 1)), r"fit in int32; got offset=2147483647"),
        (lambda: fixed_pos_embedding(x, offset=whole[0, 0, 0, :2]), r"offset must have no axis; got shape \(2,\)"),
        (lambda: fixed_pos_embedding(x, phase="fast"), r'phase must be "exact".*; got'),
        (at(4), r"\(seq\) or \(batch, seq\) with batch=2 and seq=5 of x \(seq_dim=1\), or .*; got shape \(\) .* 14\)"),
        (lambda: ROPE(x[..., :12], seq_dim=1), r"^RotaryEmbedding: x must have head_dim=14 .*; got .*12"),
        (lambda: ROPE(x, x[..., :12], seq_dim=1), r"^RotaryEmbedding: array 2 must have head_dim=14 .*; got .*12"),
        (lambda: ROPE.rotate(x, table(xp, 5, 5), seq_dim=1), r"7 pairs, .*; got .*\(5, 5\)"),
        (
            partial(ROPE.rotate, x, **both_ways),
            r"^RotaryEmbedding.rotate: only one of inverse and transpose .*; got both",
        ),
        (partial(ROPE.rotate_inplace, x, **both_ways), r"^RotaryEmbedding.rotate_inplace: only one of inverse and"),
        (lambda: ROPE(x, x[:, :4, ...], seq_dim=1), r"positions must be given.*; got \[5, 4\]"),
        (lambda: ROPE.shift(x[..., :12], 1, seq_dim=1), r"shift: k must have head_dim=14 .*; got .*12"),
        (lambda: ROPE.shift(x, 2**31, seq_dim=1), r"int32; got delta=2147483648"),
        (lambda: ROPE.shift(x, xp.array(np.arange(4), "int32"), seq_dim=1), r"shift: delta must .*; got shape \(4,\)"),
        (lambda: ROPE.rerotate(x[..., :12], five, **to(ROPE)), r"rerotate: k must have head_dim=14 .*; got .*12"),
        (lambda: ROPE.rerotate(x, five[:4], **to(ROPE)), r"rerotate: positions must .*; got shape \(4,\)"),
        *(
            (lambda other=other: ROPE.rerotate(x, five, **to(embedding(**other))), rf"rerotate: to must have {message}")
            for other, message in OTHER_CHANNELS
        ),
        (lambda: sinusoidal_pos_embedding(np.arange(4), 5, like=x), r"dim must be even, at least 2; got 5"),
    ]
    types = [
        (apply(whole, good), r"x must be float16.*; got int32"),
        (lambda: rotate_half(whole), r"^rotate_half: x must be .*; got int32"),
        (lambda: fixed_pos_embedding(whole), r"^fixed_pos_embedding: x must be float16 .*; got int32"),
        (lambda: rotate_half([1.0, 2.0]), r"must be an array; got list"),
        (at([], positions=x[0, :, 0, 0], sincos=good), r"positions must be an array of integers .*; got float32"),
        (lambda: ROPE.describe([1.0, 2.0]), r"^RotaryEmbedding.describe: x must be an array; got list"),
        (lambda: ROPE.rotate(x, good, seq_dim=1, transpose=1), r"RotaryEmbedding.rotate: transpose must .*; got int"),
        (apply(x, good, inverse="no"), r"inverse must be a bool; got str"),
        (apply(x, good[0]), r"sincos must be a pair \(sin, cos\); got"),
        (apply(x, (whole[0, :, 0, :7], good[1])), r"sin must be float32.*; got int32"),
        (apply(x, good, seq_dim=int), r"seq_dim must be an int; got type"),
        (apply(x, good, seq_dim="1"), r"seq_dim must be an int; got str"),
        (lambda: fixed_pos_embedding(x, base="1e4"), r"base must be a number; got '1e4'"),
        (lambda: fixed_pos_embedding(x, offset=0.5), r"offset must be .*; got float"),
        (lambda: ROPE.sincos(boolean), r"positions must be .*; got bool"),
        (lambda: ROPE.sincos([1, 2]), r"positions must be an array; got list: numpy.asarray makes one of it"),
        (lambda: ROPE(x, positions=4, seq_dim=1), r"must be an array; got int: .* at 4, consecutive\(1, 4, like=x\)"),
        (lambda: ROPE(x, five, seq_dim=1), r"array 2 must be .*; got int64: give positions by name, positions=..."),
        (lambda: ROPE(x), r"missing 1 required keyword-only argument: 'seq_dim'"),
        (lambda: ROPE.shift(x, 0.5, seq_dim=1), r"^RotaryEmbedding.shift: delta must be an int"),
        (lambda: ROPE.shift(x, None, seq_dim=1), r"delta must be an int or an array of real numbers; got None"),
        (lambda: ROPE.shift(x, True, seq_dim=1), r"delta must be an int.*; got bool"),
        (lambda: ROPE.rerotate(x, five, to=500.0, seq_dim=1), r"rerotate: to must be a RotaryEmbedding; got float"),
        (lambda: ROPE.rerotate(x, 5, **to(ROPE)), r"^RotaryEmbedding.rerotate: positions must be an array; got int"),
        (lambda: ROPE.rerotate(x, boolean, **to(ROPE)), r"^RotaryEmbedding.rerotate: positions must be .*; got bool"),
    ]
    if xp.name != "ndonnx":
        number = xp.array(np.ones(5), "complex64")
        types.append((lambda: ROPE.sincos(number), r"positions must be .*; got complex64"))
        types.append((lambda: rotate_half(number[:4]), r"x must be .*; got complex64"))
    for half in set(xp.floats) & {"float16", "bfloat16"}:
        low = xp.array(np.arange(5), half)
        types.append((lambda low=low: ROPE.sincos(low), r"positions must be .*; got b?float16"))
        types.append((apply(x, table(xp, 5, 7, dtype=half)), r"sin must be float32 or float64"))
    if "float64" in xp.floats:
        double = xp.array(np.zeros((2, 5, 3, 14)), "float64")
        types += [
            (call, r"float64.*; got sin in float32")
            for call in (apply(double, good), partial(ROPE, x, double, sincos=good, seq_dim=1))
        ]
    return raising(values, types)


def builders(xp):
    """Bad calls of the builders of positions."""
    integers = xp.array(np.asarray([0, 3, 5]), "int32")
    least, greatest = np.asarray([-(2**31) - 1, 0]), np.asarray([0, 2**31 - 3], np.int32)
    ones, one, image = xp.array(np.ones(3), "int32"), xp.array(np.asarray(1), "int32"), [0, 1, 1]
    real, numpy = normalized(2, 2, like=xp.like()), np.random.default_rng(0)
    other = xp.array(np.asarray(image), "int32") if xp.name != "numpy" else array_api_strict.asarray(image)
    values = [
        (lambda: consecutive(3, integers[None, :]), r"no axis or one; got"),
        (lambda: consecutive(5, greatest), r"fit in int32; got offset=2147483645 and 5 tokens"),
        (lambda: from_cu_seqlens([0, 3, 5], total=6, like=integers), r"the last boundary, 5 .*; got 6"),
        (lambda: from_mask(np.asarray(True)), r"mask must have an axis of tokens; got none"),
        (lambda: context_parallel(8, np.asarray(5), 2), r"size=2; got 5"),
        (lambda: from_cu_seqlens(integers[:0], 4), r"cu_seqlens .*start with 0.*; got"),
        (lambda: from_lengths(integers[None, :], 4), r"one axis; got"),
        (lambda: from_lengths(integers[0], 4), r"lengths must have one axis; got shape \(\)"),
        (lambda: context_parallel(8, integers, 2), r"rank must have no axis"),
        (lambda: context_parallel(xp.array(5, "int32"), 0, 1), r"seq must have a last axis .*; got shape \(\)"),
        (lambda: context_parallel(integers, 0, 2), r"last axis of seq must be divisible by 2.*; got 3"),
        (lambda: context_parallel(integers, 0, 3, cu_seqlens=[0, 6]), r"last axis of seq .* last boundary, 6; got 3"),
        (lambda: context_parallel(8, 0, 2, cu_seqlens=integers[None, :]), r"cu_seqlens must have one axis"),
        (lambda: context_parallel(8, 0, 2, cu_seqlens=integers[:0]), r"cu_seqlens .*start with 0.*; got"),
        (lambda: grid(one), r"or coordinates of one axis; got shape \(\)"),
        (lambda: grid(ones[None, :]), r"or coordinates of one axis; got shape \(1, 3\)"),
        (lambda: join(ones, -1), r"a number of tokens must not be negative; got"),
        (lambda: join(one), r"parts must have an axis of tokens.*; got .*\(\)"),
        (
            partial(join, grid(2, 2, like=ones), grid(3, like=ones)),
            r"parts must have .* same axes before it; got shapes \[\(2, 4\), \(1, 3\)\]",
        ),
        (lambda: join(1, ones, total=3), r"total must be at least 4, .*; got 3"),
        (lambda: join(ones, padding=2**31), r"padding must fit in int32; got"),
        (lambda: join(ones, total=5, padding=-(2**31) - 1), r"padding must fit in int32; got -2147483649"),
        (lambda: augment(real[0, 0], numpy), r"positions must have a position axis .*; got"),
        (lambda: augment(real, numpy, shift=-0.1), r"shift must be at least 0; got -0.1"),
        (lambda: augment(real, numpy, jitter=0.5), r"jitter must be at least 1; got 0.5"),
        (lambda: augment(real, numpy, rescale=0), r"rescale must be at least 1; got 0"),
    ]
    if xp.name == "jax":
        ends = r"^consecutive: positions must fit in int32; got offset=2147483646 and 3 tokens"
        values.append((lambda: consecutive(3, np.asarray([0, 2**31 - 2]), like=integers), ends))
        values.append((lambda: consecutive(3, least, like=integers), r"fit in int32; got"))
    else:
        ends = r"^consecutive: positions must fit in int64; got offset=9223372036854775806 and 3 tokens"
        values.append((lambda: consecutive(3, np.asarray([0, 2**63 - 2])), ends))
        values.append((lambda: consecutive(3, -(2**31) - 1), r"fit in int32; got offset=-2147483649"))
        values.append((lambda: consecutive(0, 2**31), r"fit in int32; got offset=2147483648 and 0 tokens"))
    if xp.name == "numpy":
        values.append((lambda: from_cu_seqlens([1, 3]), r"start with 0.*; got \[1, 3\]"))
        values.append((lambda: prompt([([2**63], 1, 1)]), r"must fit in int64; got 9223372036854775808"))
    else:
        values.append((lambda: context_parallel(2**32, integers[0], 2), r"fit in int32; got 4294967296 tokens"))
        values.append((lambda: from_cu_seqlens(integers), r"total must be given for a tensor or a JAX array; got None"))
    if xp.name == "torch" and xp.device == "cpu":  # numbers on a GPU are not read
        values += [
            (lambda: from_cu_seqlens(integers[1:], 7), r"start with 0 and never decrease; got \[3, 5\]"),
            (lambda: from_cu_seqlens(integers, 4), r"total must be at least the last boundary, 5; got 4"),
            (
                lambda: context_parallel(4, 0, 1, cu_seqlens=integers),
                r"seq must be at least the last boundary, 5; got 4",
            ),
            (lambda: from_lengths(-integers, 7), r"lengths must not be negative; got -3"),
            (lambda: from_lengths(xp.array([2**31 - 1, 5], "int32"), 7), r"fit in int32; got 2147483652"),
            (lambda: from_lengths(integers, 7), r"total must be at least 8, the sum of lengths; got 7"),
            (lambda: context_parallel(8, 0, 2, cu_seqlens=integers), r"divisible by 2, .*; got 3 tokens in sequence 0"),
        ]
    types = [
        (lambda: from_mask(np.ones(3, dtype=bool), like="a"), r"^from_mask: like must be an array; got str"),
        (lambda: from_mask(xp.array(np.ones(3), "float32")), r"^from_mask: .*float32"),
        *(
            (partial(call, each), r"^\w+: \w+ must be an array of integers .*; got float")
            for each in (np.ones(3), xp.array(np.ones(3), "float32"))
            for call in (
                lambda reals: consecutive(3, reals),
                lambda reals: consecutive(3, reals[0]),
                lambda reals: from_lengths(reals, 3),
                lambda reals: from_cu_seqlens(reals, 3),
                lambda reals: context_parallel(8, reals[0], 2),
            )
        ),
        (lambda: context_parallel(8, 0, 2, zigzag=integers), r"zigzag must be a bool; got"),
        (lambda: context_parallel(8, 0, 2, like=[1]), r"like must be an array; got list"),
        (lambda: context_parallel(8, 0, 2, cu_seqlens=[0.0, 8.0]), r"cu_seqlens must be a sequence of int .*; got"),
        (lambda: qwen2_vl(other), r"^qwen2_vl: token_types must be lists .*; got"),
        (lambda: qwen2_vl([other]), r"token_types must be .*on the host; got list"),
        (lambda: qwen2_vl(image, [other]), r"image_grids must be .*; got list of"),
        (lambda: qwen2_vl(image, [[1, 2, 4]], mask=other), r"mask must be .*; got"),
        (lambda: grid(np.asarray([True])), r"coordinates must be a number; got"),
        (lambda: grid(xp.array([True], "bool")), r"^grid: coordinates must be .*; got"),
        (lambda: join(ones > 0), r"^join: every part must be .*; got bool"),
        (lambda: join(ones, total=3.5), r"total must be an int; got float"),
        (lambda: join(ones, total=5, padding=0.5), r"padding must be an int; got float"),
        (lambda: augment(ones, numpy, shift=0.1), r"^augment: positions must be float32 or float64; got int32"),
        (lambda: augment([0.5], numpy, shift=0.1), r"positions must be an array; got list"),
        (lambda: augment(real, None, shift=0.1), r"source must be a numpy.*; got NoneType"),
        (lambda: augment(real, 0, shift=0.1), r"^augment: source must be a numpy.*; got int"),
        (lambda: augment(real, ones, shift=0.1), r"source must be a numpy.*; got"),
        (lambda: augment(real, numpy, rescale="2"), r"rescale must be a number; got"),
    ]
    if xp.name != "numpy":  # where the numbers of an array are no arrays
        types.append((lambda: from_lengths([integers[1]], 3), r"lengths must .*\]: \S+\.stack makes an array of it$"))
    if xp.name == "jax":
        import jax

        traced = jax.jit(lambda types: qwen2_vl(types).positions)
        types.append((lambda: traced(other), r"token_types must be .* on the host; got"))
    return raising(values, types)


def import_error(module, before):
    """What another process says that runs a statement and then imports a module, which must be an ImportError."""
    code = f"{before}\ntry:\n    import {module}\nexcept ImportError as error:\n    print(error)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
