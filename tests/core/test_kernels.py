"""Every kernel against the pure expression, wherever it may be used and however arrays lie in memory."""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import permutations, product
from threading import Barrier

import array_api_strict
import ml_dtypes
import numpy as np
import pytest
from cases import for_each
from compare import assert_numbers
from libraries import LIBRARIES, ROUNDOFF
from numpy.lib.array_utils import byte_bounds
from numpy.lib.stride_tricks import as_strided
from programs import PROGRAM, run
from rotations import FOREIGN, WRITABLE, copied, in_bytes
from samples import embedding, radians, random

from rope_xp import apply_rotary_pos_emb, apply_rotary_pos_emb_inplace, kernels
from rope_xp.arrays import memory, signature
from rope_xp.kernels import faults, numba, numba_jobs, reference

NUMPY, HALVES = LIBRARIES["numpy"], reference.Rotation("half", "half")
LAYOUTS = ["half", "interleaved", "interleaved_to_half"]
FLOATS = ["float32", "float64", "float16", "bfloat16"]
# Of float32 numbers below 3: products may have been rounded otherwise, or not at all.
ONE_ROUNDING = 4 * 3 * 2.0**-24


# Sizes that kernels treat in ways of their own: the shape, the order in memory, and `seq_dim`.
LARGE = {
    **{  # an odd number of rows, and more bytes than one thread takes: 2.6 MB in float32
        f"threads, memory {order}": ((3, 331, 5, 130), order, 1)
        for order in [(0, 1, 2, 3), (0, 2, 1, 3), (1, 0, 2, 3), (3, 0, 1, 2)]
    },
    # Tables of 528 KB, of which a row may serve several heads at a time.
    **{f"long_sequence, {heads} heads": ((heads, 1031, 130), (0, 1, 2), 1) for heads in (7, 8)},
    "many axes": ((1, 2, 1, 2, 1, 3, 1, 2, 2, 6), tuple(range(10)), 5),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", LARGE)
def test_large_arrays(xp, kernel, layout, name):
    shape, order, seq_dim = LARGE[name]
    x = xp.array(random(*np.asarray(shape)[list(order)]).transpose(np.argsort(order)))
    wide = shape[-1] == 130
    rope = embedding(layout, head_dim=shape[-1], rotary_dim=96 if wide else 4, first_channel=2 * wide, kernel=kernel)
    sincos = rope.sincos(xp.array(np.arange(shape[seq_dim]), "int32"), like=x)
    truth = rope.replace(kernel="reference").rotate(x, sincos, seq_dim=seq_dim)
    atol = 0.0 if kernel == "numba" else ONE_ROUNDING  # numba has the bits of the reference
    assert_numbers(xp, rope.rotate(x, sincos, seq_dim=seq_dim), truth, atol)
    if xp.name in WRITABLE:
        q, k = copied(xp, x), copied(xp, x[..., :2, :])
        both = (q, k) if seq_dim < len(shape) - 2 else (q,)
        rope.rotate_inplace(*both, sincos=sincos, seq_dim=seq_dim)
        for written, right in zip(both, (truth, truth[..., :2, :])):
            assert_numbers(xp, written, right, atol)


def pairs_of_odd_numbers(dtype, more=()):
    """All pairs of numbers that round, overflow or vanish, each turned by several angles, and by `more`."""
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    limits = ml_dtypes.finfo(kind)
    largest, tiny = float(limits.max), float(limits.smallest_subnormal)
    roundoff = ROUNDOFF[dtype]
    numbers = [np.nan, np.inf, -np.inf, 0.0, -0.0, tiny, -3 * tiny, float(limits.tiny), largest, -largest]
    numbers += [1.0, 1.0 + 2 * roundoff, 1.0 + 4 * roundoff, -7.0]
    # Of (1, 0), (0, 1), ties of the sum in every half dtype, and what is no angle. Rounding adds to the last bits, and
    # would carry from those of a NaN into its sign.
    nan = np.asarray([0x7FF8 << 48, 2**63 - 1, 2**64 - 1], np.uint64).view(np.float64)
    angles = [(0, 1), (0.0, -1), (1, 0), (-0.0, 1), (0.6, 0.8), (0.5, 1.0), (roundoff, 1.0), (np.inf, 0)]
    angles += [*((each, 1) for each in nan), *more]
    x = np.stack(np.meshgrid(numbers, numbers), axis=-1).reshape(-1, 1, 2)
    sin, cos = np.asarray(angles).T[:, None, :, None]
    return np.tile(x, (1, len(angles), 1)), np.tile(sin, (len(x), 1, 1)), np.tile(cos, (len(x), 1, 1))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.where(lambda xp, dtype: dtype in xp.floats)
@pytest.mark.parametrize("dtype", FLOATS)
def test_odd_numbers(xp, kernel, dtype, layout):
    """Numba gives the bits of the reference, -0 and subnormal numbers too; all give NaN where the reference does."""
    with np.errstate(all="ignore"):
        # Products overflow. Where they are not rounded, their difference may be a number.
        more = [(2, 3), (-3, 2)] if kernel == "numba" else []
        x, *sincos = pairs_of_odd_numbers(dtype, more)
        wide = "float64" if dtype == "float64" else "float32"
        x, sincos = xp.array(x, dtype), [xp.array(table, wide) for table in sincos]
        call = partial(apply_rotary_pos_emb, x, sincos, layout=layout, seq_dim=1)
        result, reference = xp.numpy(call(kernel=kernel)), xp.numpy(call(kernel="reference"))
    assert np.isnan(reference[np.isnan(xp.numpy(sincos[0]))[..., 0]]).all()
    finite = np.isfinite(reference)
    np.testing.assert_array_equal(np.where(finite, 0, result), np.where(finite, 0, reference))
    if kernel == "numba":
        np.testing.assert_array_equal(result, reference)
        number = ~np.isnan(reference)
        np.testing.assert_array_equal(np.signbit(result)[number], np.signbit(reference)[number])


@pytest.mark.where(lambda xp: xp.name in WRITABLE)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_channels_that_pass_through_keep_their_bits(xp, kernel, dtype):
    """All numbers of 16 bits, with every NaN there is."""
    x = np.arange(2**16, dtype=np.uint16).view(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype).reshape(-1, 16)
    if xp.name == "torch":
        import torch

        x = torch.from_numpy(x.view(np.int16)).view(getattr(torch, dtype)).to(xp.device)
    rope = embedding(head_dim=16, rotary_dim=2, first_channel=2, kernel=kernel)
    with np.errstate(all="ignore"):
        result = rope(x, seq_dim=0)
    for rest in (slice(2), slice(4, None)):
        assert in_bytes(xp, result[:, rest]) == in_bytes(xp, x[:, rest])


def test_small_float16_is_rounded_once():
    """Results in the middle of any two of the least numbers, and next to it, where fewer bits would lie on it."""
    middles = (np.arange(2**10, dtype=np.float32) + 0.5) * np.float32(2.0**-10)
    cos = np.stack([middles, *(np.nextafter(middles, np.float32(end)) for end in (-1, 2))]).reshape(48, 64)
    x = np.full((48, 32, 128), 2.0**-14, np.float16)
    result = apply_rotary_pos_emb(x, (np.zeros_like(cos), cos), layout="half", kernel="blocked")
    truth = (cos.astype(float) * 2.0**-14).astype(np.float16)
    np.testing.assert_array_equal(result, np.broadcast_to(np.tile(truth, 2)[:, None], x.shape))


@for_each("place", ["rope_xp.kernels.import_module", "rope_xp.kernels.numba.make_ready"])
def test_a_kernel_that_fails_before_it_runs_is_passed_over(monkeypatch, place):
    def broken(given):
        if isinstance(given, str) and "numba" not in given:
            return import_module(given)
        raise SystemError("half of numba")

    monkeypatch.setattr(place, broken)
    monkeypatch.setattr(kernels, "_obstacles", {})
    monkeypatch.setattr(faults, "_told", {})
    kernels._kernel_module.cache_clear()
    signature.forget_plans()
    x, sincos = random(5, 14), NUMPY.tables(radians(5, 7))
    try:
        with pytest.warns(RuntimeWarning, match="kernel='numba' is not used; .*: SystemError: half of numba"):
            apply_rotary_pos_emb(x, sincos)
        with pytest.raises(ValueError, match="kernel='numba' must be usable here; got SystemError: half of numba"):
            apply_rotary_pos_emb(x, sincos, kernel="numba")
    finally:
        kernels._kernel_module.cache_clear()
        signature.forget_plans()


@pytest.mark.parametrize("layout, blocks", [("half", 1), ("half", 3), ("interleaved", 1)])
def test_the_order_of_pairs_is_that_of_their_channels(layout, blocks):
    """It stands for the views where sizes are unknown."""
    x, order = random(2, 12), reference._pair_order(6, layout, blocks)
    first, second = reference.split_pairs(np, x, layout, blocks)
    pairs = np.concatenate([first, second], axis=-1)
    np.testing.assert_array_equal(reference._reorder(np, x, order), pairs)
    np.testing.assert_array_equal(reference._reorder(np, pairs, np.argsort(order)), x)
    np.testing.assert_array_equal(reference.join_pairs(np, first, second, layout, blocks), x)
    assert reference._reorder(np, x, np.arange(12)) is x


def test_small_numbers_of_float16_are_told_by_their_bits():
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    assert [memory.are_small(each) for each in halves[:, None]] == (np.abs(halves) < 2**14).tolist()


@pytest.mark.parametrize("largest", [1.0, 2.0**14, np.inf, np.nan], ids=str)
def test_float16_is_rounded_once(largest, in_blocks):
    """All numbers of float16 and angles enough for ties. NumPy's operations round on the bits, unless one is large."""
    x = np.arange(2**16, dtype=np.uint16).view(np.float16)
    x = np.where(np.abs(x) < 2**14, x, np.float16(1.5)).reshape(-1, 4, 64)
    x = np.concatenate([x, np.random.default_rng(0).permutation(x)], axis=-1)
    sincos = [
        np.concatenate([table, np.full((1, 64), 0.5)])[: len(x)] for table in NUMPY.tables(radians(len(x) - 1, 64))
    ]
    ordinary = apply_rotary_pos_emb(x, sincos, layout="half", kernel="blocked")
    reference = apply_rotary_pos_emb(x, sincos, layout="half", kernel="reference")
    np.testing.assert_array_equal(ordinary, reference)
    np.testing.assert_array_equal(np.signbit(ordinary), np.signbit(reference))
    for sign, factor in product((1, -1), (1, 4)):
        x[7, 3, 5] = sign * largest
        with np.errstate(all="ignore"):
            result, reference = (
                apply_rotary_pos_emb(x, [factor * table for table in sincos], layout="half", kernel=kernel)
                for kernel in ("blocked", "reference")
            )
        np.testing.assert_array_equal(result, reference)


@pytest.mark.where(lambda xp: xp.name in WRITABLE)
def test_one_number_for_many_places_is_read(xp, kernel):
    """Broadcast arrays, whose strides are 0; NumPy's are read-only besides."""
    x, sincos = xp.random(1, 5, 1, 14), xp.tables(radians(1, 7))
    if xp.name == "torch":
        many, wide = x.expand(2, 5, 3, 14), [table.expand(5, 7) for table in sincos]
    else:
        many, wide = np.broadcast_to(x, (2, 5, 3, 14)), [np.broadcast_to(table, (5, 7)) for table in sincos]
    call = partial(apply_rotary_pos_emb, layout="half", seq_dim=1)
    reference = call(xp.array(np.tile(xp.numpy(x), (2, 1, 3, 1)), "float32"), wide, kernel="reference")
    assert_numbers(xp, call(many, wide, kernel=kernel), reference, ONE_ROUNDING)


@pytest.mark.filterwarnings("error")
@pytest.mark.where(lambda xp: xp.name in WRITABLE)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_that_overlap_and_infinity(xp, kernel, layout):
    """Rows may share numbers. Numbers that are not finite change only their pairs, and are no errors."""
    numbers = random(30)
    numbers[6] = np.inf
    whole = xp.array(numbers, "float32")
    x = whole.unfold(0, 14, 2) if xp.name == "torch" else np.lib.stride_tricks.sliding_window_view(whole, 14)[::2]
    for pairs in (3, 7):
        sincos = xp.tables(radians(1, pairs))
        with np.errstate(all="ignore"):
            expected = apply_rotary_pos_emb(
                xp.array(xp.numpy(x).copy(), "float32"), sincos, layout=layout, kernel="reference"
            )
        found = apply_rotary_pos_emb(x, sincos, layout=layout, kernel=kernel)
        assert_numbers(xp, found, expected, ONE_ROUNDING, equal_nan=True)


@pytest.mark.where(lambda xp: xp.name in WRITABLE)
def test_sines_and_cosines_in_another_order_of_memory(xp, kernel):
    """Each has strides of its own, along all axes of tokens."""
    x, (sin, cos) = xp.random(2, 3, 4, 5, 14), xp.tables(radians(2, 3, 4, 7))
    call = partial(apply_rotary_pos_emb, x, layout="half", seq_dim=2)
    reference = call((sin, cos), kernel="reference")
    for order in permutations(range(3)):
        others = []
        for table in (sin, cos):
            host = np.ascontiguousarray(xp.numpy(table).transpose(*order, 3))
            back = (*np.argsort(order).tolist(), 3)
            moved = xp.array(host, "float32")
            others.append(moved.permute(back) if xp.name == "torch" else moved.transpose(back))
        for given in ((others[0], cos), (sin, others[1])):
            assert_numbers(xp, call(given, kernel=kernel), reference, ONE_ROUNDING)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("odd", ["byte order", "unaligned", "in a record"])
def test_numbers_of_another_byte_order_or_alignment(layout, odd):
    x, sincos = random(5, 3, 14), NUMPY.tables(radians(5, 7))
    truth = apply_rotary_pos_emb(x, sincos, layout=layout, kernel="reference")
    record = np.zeros(len(x), dtype=[("first", "i1"), ("numbers", x.dtype, x.shape[1:])])
    record["numbers"] = x
    other = record["numbers"] if odd == "in a record" else FOREIGN[odd](x)
    assert other.dtype != x.dtype or not other.flags.aligned
    result = apply_rotary_pos_emb(other, sincos, layout=layout)
    assert result.dtype == other.dtype
    np.testing.assert_allclose(result, truth, rtol=0, atol=1e-6)
    for kernel in ("blocked", "numba"):
        with pytest.raises(ValueError, match=rf"kernel='{kernel}' must have .* host memory; got .*non-native"):
            apply_rotary_pos_emb(other, sincos, layout=layout, kernel=kernel)
    apply_rotary_pos_emb_inplace(other, sincos, layout=layout)
    np.testing.assert_array_equal(other, result)


def bad_in_place(xp):
    """An array, and others that must not be written with it: (others, tables, error, what it must say)."""
    sincos, q, whole = xp.tables(radians(5, 7)), xp.random(5, 3, 14), xp.random(5, 7 + 14)
    if xp.name == "torch":
        broadcast, overlapping = xp.random(5, 1, 14).expand(5, 3, 14), xp.random(60).as_strided((5, 14), (8, 1))
        foreign = np.ones((5, 3, 14), np.float32)
    else:
        broadcast = as_strided(xp.random(5, 1, 14), (5, 3, 14), (56, 0, 4))
        overlapping = as_strided(xp.random(60), (5, 14), (32, 4))
        foreign = array_api_strict.asarray(np.ones((5, 3, 14)))
    own, apart = "x must hold each element in its own memory; got", "x must share no memory .*; got"
    cases = [
        ([broadcast], sincos, ValueError, own),
        ([overlapping], sincos, ValueError, own),
        ([q, q], sincos, ValueError, apart),
        ([q, q[:, :2]], sincos, ValueError, apart),
        ([q[:, :2], q[:, 1:]], sincos, ValueError, apart),  # they meet in one head
        ([q[:, :2], xp.random(5, 3, 14), q[:, 1:]], sincos, ValueError, apart),
        ([whole[:, 4:18]], (sincos[0], whole[:, :7]), ValueError, apart),
        ([whole[:, 4:18]], (whole[:, :7], sincos[1]), ValueError, apart),
        ([xp.random(4, 3, 14)], sincos, ValueError, r"tables must .*; got shape \(5, 7\)"),
        ([xp.array(np.ones((5, 3, 14)), "int32")], sincos, TypeError, r"array 2 must be float16.*; got int32"),
        ([foreign], sincos, TypeError, "array 2 must be an array of [a-z]+, like the first array; got"),
        ([xp.random(5, 3, 12)], sincos, ValueError, r"array 2 must have head_dim=14 .*; got"),
    ]
    if xp.name == "numpy":
        by_bytes = as_strided(np.zeros(400, "u1")[:56].view("f4"), (5, 14), (54, 4))
        # Asked for by name, a kernel says the second first.
        unaligned = f"({own}|kernel='[a-z]+' must have arrays in host memory; got unaligned)"
        cases.append(([by_bytes], sincos, ValueError, unaligned))
        fixed = xp.random(5, 3, 14)
        fixed.flags.writeable = False
        cases.append(([fixed], sincos, ValueError, "x must be writable; got a read-only array"))
    else:
        learned, elsewhere = (sincos[0].clone().requires_grad_(), sincos[1]), xp.random(5, 3, 14).to("meta")
        cases.append(([xp.random(5, 3, 14).requires_grad_()], sincos, ValueError, "x must not require grad"))
        cases.append(([xp.random(5, 3, 14)], learned, ValueError, "must not require grad"))
        cases.append(([elsewhere], sincos, ValueError, f"array 2 must be on device {q.device}, .*; got meta"))
    return q, cases


@pytest.mark.where(lambda xp: xp.name in WRITABLE)
def test_nothing_is_written_unless_all_is_right(xp, kernel):
    for number in range(len(bad_in_place(xp)[1])):
        q, cases = bad_in_place(xp)
        others, sincos, error, message = cases[number]
        ours = [one for one in (q, *others, *sincos) if type(one) is type(q)]
        watched = [one for one in ours if str(getattr(one, "device", "cpu")) != "meta"]
        before = [in_bytes(xp, one) for one in watched]
        good = q if q is not others[0] else xp.random(5, 3, 14, seed=3)
        with pytest.raises(error, match=rf"^RotaryEmbedding.rotate_inplace: .*{message}"):
            embedding(kernel=kernel).rotate_inplace(good, *others, sincos=sincos, seq_dim=0)
        assert [in_bytes(xp, one) for one in watched] == before


@pytest.mark.where(lambda xp: xp.name not in WRITABLE)
def test_arrays_that_never_change_are_refused_in_place(xp):
    x, sincos = xp.random(5, 3, 14), xp.tables(radians(5, 7))
    for call in (apply_rotary_pos_emb_inplace, partial(embedding().rotate_inplace, seq_dim=0)):
        with pytest.raises(TypeError, match="x must be a mutable array, of NumPy or PyTorch; got"):
            call(x, sincos=sincos)


@pytest.mark.where(lambda xp: xp.name in WRITABLE)
def test_views_of_packed_queries_keys_and_values(xp, kernel):
    """Disjoint views of one array, in each of the ways in which models pack them."""
    rope, sincos = embedding(kernel=kernel), xp.tables(radians(5, 7))
    cut = {
        (2, 5, 3, 4, 14): lambda x: (x[:, :, 0], x[:, :, 1]),
        (2, 5, 4, 42): lambda x: (x[..., :14], x[..., 14:28]),
        (2, 5, 8, 14): lambda x: (x[:, :, :4], x[:, :, 4:6]),
        (2, 5, 6, 14): lambda x: (x[:, :, ::2], x[:, :, 1::2]),
        (2, 5, 1, 28): lambda x: (x[..., ::2], x[..., 1::2]),
        (2, 5, 0, 14): lambda x: (x, x[..., :]),
        (0, 5, 3, 14): lambda x: (x, x[..., :]),
    }
    for shape, views in cut.items():
        whole = xp.random(*shape)
        expected = copied(xp, whole)
        for view in views(expected):
            view[...] = rope.rotate(view, sincos, seq_dim=1)
        rope.rotate_inplace(*views(whole), sincos=sincos, seq_dim=1)
        assert in_bytes(xp, whole) == in_bytes(xp, expected)


def test_describe_says_what_runs(xp, kernel):
    """With `x`, the kernel that runs for it."""

    def row(rope, *x):
        return " ".join(rope.describe(*x).partition("\nkernel ")[2].split())

    of_host = {"numpy": "numba", "torch": "numba", "jax": "xla"}.get(xp.name, "reference")
    fastest, rope = "triton" if xp.device == "cuda" else of_host, embedding()
    x = xp.array(np.ones((2, 14)), "bfloat16" if "bfloat16" in xp.floats else "float32")
    assert row(rope) == f"fastest ({kernels.KERNELS['fastest']})" and row(rope, x).startswith(f"{fastest} (")
    forced = replace(rope, kernel=kernel)
    assert row(forced) == row(forced, x) == f"{kernel} ({kernels.KERNELS[kernel]})"
    assert forced != rope and f"kernel={kernel!r}" in repr(forced) and "kernel" not in repr(rope)


def test_kernels_of_other_memory_are_refused(xp):
    x = xp.random(2, 14)
    for kernel in {"blocked", "numba", "triton", "xla"} - set(xp.kernels):
        rope = embedding(kernel=kernel)
        for call in (partial(rope, x, seq_dim=0), partial(rope.describe, x), partial(rope.shift, x, 1, seq_dim=0)):
            with pytest.raises(ValueError, match=rf"^RotaryEmbedding[.a-z]*: kernel='{kernel}' must .*; got"):
                call()


@pytest.mark.parametrize("shape, given", [((5, 3, 24), (4, 3, 12)), ((5, 24), (5, 13)), ((5, 3, 24), (5, 12))])
def test_tables_of_other_shapes_are_refused(shape, given):
    with pytest.raises(ValueError, match=r"^rotate: tables must broadcast against x of shape .*; got"):
        numba.prepare([random(*shape)], [NUMPY.tables(radians(*given))], HALVES)


def test_each_thread_changes_the_layout_in_a_row_of_its_own(monkeypatch):
    """The second thread begins when the first one has done a part, so that no race decides."""
    jobs = []

    def run(entry, address, parts, count, job, *owners):
        for first, end in ((0, 1), (1, parts)):
            job[numba._TAKEN], job[numba._ALL_PARTS] = first, end
            entry(address)
        jobs.append(job)

    monkeypatch.setattr(numba, "numba_threads", lambda: 2)
    monkeypatch.setattr(numba.threads, "run", run)
    x, tables = random(1, 1030, 4, 130), NUMPY.tables(radians(1, 1030, 1, 50))
    rotation = reference.Rotation("interleaved", "half", first_channel=2)
    truth = reference.rotate_all([x], [tables], rotation)
    program = numba.prepare([x], [tables], rotation, inplace=True)
    np.testing.assert_array_equal(program.run([x], [tables]), truth)
    rows = np.reshape(jobs[0][-2 * program.launches[0].words_per_thread :], (2, -1))
    assert rows.any(axis=1).all()


def test_numba_compiles_where_its_cache_cannot_be_used(monkeypatch):
    def cfunc(signature, cache=False, **options):
        if cache:
            raise OSError("no space left")
        return compiler(signature, **options)

    compiler = numba_jobs.numba.cfunc
    monkeypatch.setattr(numba_jobs.numba, "cfunc", cfunc)
    monkeypatch.setattr(faults, "_told", {})
    with pytest.warns(RuntimeWarning, match="compiles in each process, because .* cannot be used: OSError: no space"):
        assert numba_jobs.compiled_entry(lambda address: address + 1, "a test")(41) == 42


@pytest.mark.parametrize("size", [16, 2**18 - 16, 2**18, 2**22, 2**22 + 16])
def test_memory_between_operations_is_at_least_that_of_two_huge_pages(size):
    """Unless it is little, so that NumPy asks for huge pages."""
    x = memory.empty((2, size // 16), like=np.zeros(1))
    assert x.shape == (2, size // 16) and x.dtype == float and x.flags.c_contiguous
    assert x.base.nbytes == (max(size, 2**22) if size >= 2**18 else size)
    assert memory.complex_numbers(x, -x).base.nbytes == (max(2 * size, 2**22) if size >= 2**17 else 2 * size)


def test_extents_of_memory_are_those_of_numpy():
    whole = np.zeros((4, 6, 8), np.float32)
    for x in (whole, whole[:, ::-2], whole[1:, 1:, 1:7], whole.transpose(1, 0, 2), whole[..., ::-1], whole.T):
        start, low, high = x.__array_interface__["data"][0], *byte_bounds(x)
        assert memory.extent(x) == (low, high) and memory.reach(x) == (low - start, high - start)
    assert memory.extent(whole[:0]) == memory.reach(whole[:0]) == (0, 0)
    for other, are_apart in ((whole[2:], True), (whole[1:, 5:], False), (whole[:2], False), (whole[:1:-1], True)):
        for pieces in ([whole[:2], other], [other, whole[:2]]):
            assert memory.extents(pieces).are_apart(pieces) is are_apart


def test_arrays_overlap_if_it_takes_too_long_to_tell():
    """Arrays of NumPy's own tests, whose strides are hard to compare."""
    whole = np.zeros(192_163_377, np.int8)
    one = as_strided(whole, (1049, 1049, 1049), (36_674, 61_119, 85_569))
    assert memory.may_overlap(one, as_strided(whole[64_023_025:], (1049, 1049, 1), (12_223, 12_224, 1)))
    assert not memory.may_overlap(whole[::2], whole[1::2])


@pytest.mark.slow
def test_threads_at_once(xp, kernel):
    """Eight threads, each of which asks for several more; and eight that write parts of one array.

    Each thread changes the layout in memory of its own.
    """
    rope = embedding("interleaved_to_half", head_dim=64, kernel=kernel)
    arrays = [xp.random(1, 1025, 8, 64, seed=seed) for seed in range(8)]
    sincos = rope.sincos(xp.array(np.arange(1025), "int32"), like=arrays[0])
    truths = [xp.numpy(rope.rotate(x, sincos, seq_dim=1)) for x in arrays]
    barrier = Barrier(8)
    whole = copied(xp, arrays[0]) if xp.name in WRITABLE else None

    def work(index):
        barrier.wait(60)
        for _ in range(3):
            result = rope.rotate(arrays[index], sincos, seq_dim=1)
            np.testing.assert_array_equal(xp.numpy(result), truths[index])
        barrier.wait(60)
        if whole is not None:
            rope.rotate_inplace(whole[:, :, index], sincos=sincos, seq_dim=1)

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(work, index) for index in range(8)]:
            future.result(timeout=120)
    if whole is not None:
        np.testing.assert_array_equal(xp.numpy(whole), truths[0])


WORKERS = """
import multiprocessing
import os

def forked():
    child = os.fork()
    if not child:
        os._exit(0 if is_right() and is_right(kernel="blocked") else 1)
    return os.waitpid(child, 0)[1] == 0

if __name__ == "__main__":
    assert is_right()
    print("parent")
    assert forked() and forked()
    print("fork")
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert all(pool.map(is_right, range(4)))
        print(method)
    assert is_right()
    print("done")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux is it safe to fork a process with threads")
def test_worker_processes(tmp_path):
    """Forked after the parent has had threads, or spawned. `tests/torch/test_kernels.py` does so to PyTorch's."""
    assert run(tmp_path, PROGRAM + WORKERS, timeout=90).endswith("done\n")


@pytest.mark.slow
def test_a_second_process_does_not_compile(tmp_path):
    environment = {"NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_DEBUG_CACHE": "1"}
    script = PROGRAM + "print(is_right())"
    first = run(tmp_path, script, **environment)
    assert "data saved" in first and first.endswith("True\n")
    second = run(tmp_path, script, **environment)
    assert "data loaded" in second and "saved" not in second and second.endswith("True\n")


ENVIRONMENTS = {
    "numba told of no processor": {"NUMBA_CPU_NAME": "generic"},
    "one thread": {"NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_fastest_is_right_in_every_environment(name, tmp_path):
    script = "\nassert is_right()\nx, truth = x.astype(np.float16), halves\nprint(is_right())"
    assert run(tmp_path, PROGRAM + script, **ENVIRONMENTS[name]).endswith("True\n")
