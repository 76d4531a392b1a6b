"""Programs of the compiled kernel: made from the dtypes, shapes and strides of a call, and run with any numbers."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from libraries import LIBRARIES
from numpy.lib.array_utils import byte_bounds
from numpy.lib.stride_tricks import as_strided
from samples import radians

from rope_xp.arrays import exact_phases, memory, signature
from rope_xp.kernels import blocked, faults, numba_jobs, reference
from rope_xp.kernels import numba as kernel
from rope_xp.kernels.reference import Rotation

ROTATIONS = [
    Rotation("half", "half"),
    Rotation("interleaved", "interleaved", inverse=True),
    Rotation("half", "interleaved", first_channel=3),
    Rotation("interleaved", "half", first_channel=2),
    Rotation("half", "half", first_channel=1, blocks=3),
]
LIMITS = {"int32": 2**31, "int64": 2**63}


def pytest_generate_tests(metafunc):
    """The libraries whose memory the kernel reads, if they are tested at all."""
    if "host" in metafunc.fixturenames:
        names = [name for name in ("numpy", "torch") if name in metafunc.config.libraries]
        metafunc.parametrize("host", [LIBRARIES[name] for name in names], ids=names)


def copied(x):
    return x.copy() if hasattr(x, "copy") else x.clone()


def assert_equals_the_reference(host, xs, angles, rotation, program=None):
    """New arrays and written ones, bit for bit; NaN where it has NaN."""
    truths = [host.numpy(y) for y in reference.rotate_all(xs, reference.tables_of(angles), rotation)]
    program = program or kernel.prepare(xs, angles, rotation, inplace=False)
    results = program.run(xs, angles)
    written = [copied(x) for x in xs]
    in_place = kernel.prepare(written, angles, rotation, inplace=True)
    assert all(one is other for one, other in zip(in_place.run(written, angles), written, strict=True))
    for x, result, y, truth in zip(xs, results, written, truths, strict=True):
        assert result.dtype == x.dtype and result is not x
        np.testing.assert_array_equal(host.numpy(result), truth)
        np.testing.assert_array_equal(host.numpy(y), truth)


def rows_and_positions(host, dtype, integer, pairs=36):
    """Eleven rows of tables, and positions "batch seq 1": in range, beyond it on both sides, and the largest ones."""
    limit = LIMITS[integer]
    positions = np.asarray([[0, 10, 3, 11, -1], [-11, 5, 5, limit - 1, -limit]])
    wide = "float64" if dtype == "float64" else "float32"
    return (*host.tables(radians(11, pairs), wide), host.array(positions[..., None], integer))


@pytest.mark.where(lambda host, dtype: dtype in host.floats)
@pytest.mark.parametrize("rotation", ROTATIONS, ids=str)
@pytest.mark.parametrize("integer", LIMITS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_positions_select_rows(host, dtype, integer, rotation):
    """Six positions of ten are in range. The width is neither one vector nor many."""
    angles = rows_and_positions(host, dtype, integer)
    xs = [host.random(2, 5, heads, 76, seed=heads, dtype=dtype) for heads in (3, 1)]
    assert_equals_the_reference(host, xs, [angles, angles], rotation)
    (result, _) = kernel.rotate_all(xs, [angles, angles], rotation)
    turned = host.numpy(result)[..., rotation.first_channel : rotation.first_channel + 72]
    assert (np.isnan(turned).all(axis=(-2, -1)) == [[0, 0, 0, 1, 1], [1, 0, 0, 1, 1]]).all()
    assert np.isnan(turned).sum() == 5 * 3 * 72


@pytest.mark.parametrize("rotation", ROTATIONS, ids=str)
def test_dtypes_differ_within_a_call(host, rotation):
    """Tables of each dtype, with positions and without; of axes in several orders."""
    kinds = ["float32", "float16", "float64", "float32"]
    xs = [host.random(2, 5, 4, 80, seed=seed, dtype=kind) for seed, kind in enumerate(kinds)]
    xs[1], xs[3] = xs[1].swapaxes(1, 2).swapaxes(0, 1), xs[3][:, ::2]
    tables = [host.tables(radians(1, 5, 1, 36), "float64" if kind == "float64" else "float32") for kind in kinds]
    tables[1] = [table.swapaxes(1, 2).swapaxes(0, 1) for table in tables[1]]
    tables[3] = [table[:, ::2] for table in tables[3]]
    assert_equals_the_reference(host, xs, tables, rotation)
    positions = rows_and_positions(host, "float32", "int64")
    given = [positions, (*positions[:2], positions[2].swapaxes(1, 2).swapaxes(0, 1))]
    given += [rows_and_positions(host, "float64", "int32"), (*positions[:2], positions[2][:, ::2])]
    assert_equals_the_reference(host, xs, given, rotation)


def test_a_program_rotates_other_numbers_of_its_signature(host):
    xs, others = ([host.random(2, 5, heads, 24, seed=seed + heads) for heads in (4, 2)] for seed in (0, 7))
    tables, turned = host.tables(radians(1, 5, 1, 12)), host.tables(radians(1, 5, 1, 12, seed=3))
    program = kernel.prepare(xs, [tables, tables], ROTATIONS[0])
    assert_equals_the_reference(host, others, [turned, turned], ROTATIONS[0], program)
    without_axes = [table[0, :, 0] for table in turned]
    for result, truth in zip(program.run(others, [without_axes] * 2), program.run(others, [turned] * 2), strict=True):
        np.testing.assert_array_equal(host.numpy(result), host.numpy(truth))


@pytest.mark.where(lambda host, wrong: host.name == "numpy" or wrong != "foreign numbers")
@pytest.mark.parametrize("wrong", ["strided tables", "small integers", "unsigned integers", "foreign numbers"])
def test_angles_that_need_a_conversion_have_no_program(host, wrong):
    sin, cos, positions = rows_and_positions(host, "float32", "int64", pairs=12)
    x = host.random(2, 5, 3, 24)
    if wrong == "strided tables":
        sin, cos = (host.array(np.repeat(host.numpy(table), 2, axis=1), "float32")[:, ::2] for table in (sin, cos))
    elif wrong == "foreign numbers":
        sin, cos, positions = sin.astype(">f4"), cos.astype(">f4"), positions.astype(">i8")
    else:
        positions = host.array(np.clip(host.numpy(positions), 0, 20), "int16" if wrong == "small integers" else "uint8")
    given = [(sin, cos, positions)]
    assert kernel.prepare([x], given, ROTATIONS[0]) is None
    (result,) = kernel.rotate_all([x], given, ROTATIONS[0])
    (truth,) = reference.rotate_all([x], reference.tables_of(given), ROTATIONS[0])
    np.testing.assert_array_equal(host.numpy(result), host.numpy(truth))


@pytest.mark.parametrize("shape, given", [((5, 3, 24), (4, 3, 12)), ((5, 24), (5, 13)), ((5, 3, 24), (5, 12))])
def test_tables_of_other_shapes_are_refused(host, shape, given):
    with pytest.raises(ValueError, match=r"^rotate: tables must broadcast against x of shape .*; got"):
        kernel.prepare([host.random(*shape)], [host.tables(radians(*given))], ROTATIONS[0])


@pytest.mark.parametrize("given", ["tables", "positions"])
def test_threads_share_a_program(host, given):
    """Parts of two arrays, which change their layout in place: each thread needs a row of its own."""
    rotation = Rotation("interleaved", "half", first_channel=2)
    xs = [[host.random(1, 515, heads, 130, seed=seed + heads) for heads in (8, 3)] for seed in (0, 20, 40, 60)]
    angles = (*host.tables(radians(515, 50)), host.array(np.arange(515)[::-1].copy()[None, :, None], "int64"))
    if given == "tables":
        angles = [table[None, :, None] for table in angles[:2]]
    truths = [reference.rotate_all(each, reference.tables_of([angles, angles]), rotation) for each in xs]
    program = kernel.prepare(xs[0], [angles, angles], rotation, inplace=True)
    assert program.launches[0].most_threads > 2
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda each: program.run(each, [angles, angles]), xs, timeout=120))
    for result, truth in zip(results, truths, strict=True):
        for one, other in zip(result, truth, strict=True):
            np.testing.assert_array_equal(host.numpy(one), host.numpy(other))


def test_each_thread_changes_the_layout_in_a_row_of_its_own(monkeypatch):
    """The second thread begins when the first one has done a part, so that no race decides."""
    jobs = []

    def run(entry, address, parts, count, job, *owners):
        for first, end in ((0, 1), (1, parts)):
            job[kernel._TAKEN], job[kernel._ALL_PARTS] = first, end
            entry(address)
        jobs.append(job)

    monkeypatch.setattr(kernel, "numba_threads", lambda: 2)
    monkeypatch.setattr(kernel.threads, "run", run)
    host = LIBRARIES["numpy"]
    x, tables = host.random(1, 1030, 4, 130), host.tables(radians(1, 1030, 1, 50))
    truth = reference.rotate_all([x], [tables], ROTATIONS[3])
    program = kernel.prepare([x], [tables], ROTATIONS[3], inplace=True)
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


def test_programs_keep_no_array(host):
    x, tables = host.random(2, 5, 3, 26), host.tables(radians(1, 5, 1, 13))
    kernel.rotate_all([x], [tables], ROTATIONS[0])
    program = kernel.prepare([x], [tables], ROTATIONS[0])
    program.run([x], [tables])
    kept = [weakref.ref(each) for each in (x, *tables)]
    del x, tables
    gc.collect()
    assert [each() for each in kept] == [None] * 3


def test_the_programs_that_are_kept_are_limited(host, monkeypatch):
    monkeypatch.setattr(signature, "MAX_PLANS", 4)
    tables = host.tables(radians(1, 4))
    for rows in range(6):
        kernel.rotate_all([host.random(rows, 8)], [tables], ROTATIONS[0])
        assert len(kernel._programs) <= 4


@pytest.mark.parametrize("dtype", ["i4", "i8", "f4", "f8"])
def test_rows_of_tables_have_the_same_bits_alone_and_among_others(dtype):
    """At each number of digits, of both signs, with fractions and without; the sine of 0 has no sign."""
    sizes = [0, 1, 2, 255, 256, 257, 65_535, 65_536, 2**24 - 1, 2**31 - 1]
    sizes += [2**40 + 3, 2**62] if "8" in dtype else []
    tokens = np.asarray([*sizes, *(-size for size in sizes)])
    where = (tokens + (0.25 * (np.abs(tokens) < 300) if "f" in dtype else 0)).astype(dtype)
    where = np.concatenate([where, tokens[:3].astype(dtype)])
    frequencies = exact_phases.Frequencies((1.0, 0.3, 0.01))
    orders = [slice(None), slice(None, None, -1), slice(0, 12), slice(12, None), slice(3), slice(1, 4)]
    alone = [np.stack(blocked.exact_tables(where[k : k + 1], frequencies)) for k in range(len(where))]
    alone = np.stack(alone, 1)[:, :, 0]
    assert not np.signbit(alone[0, where == 0]).any()
    assert (np.isnan(alone).all(-1) == (np.abs(where) >= 2.0**31 if dtype == "f4" else False)).all()
    for order in orders:
        among = np.stack(blocked.exact_tables(where[order], frequencies))
        assert among.tobytes() == np.ascontiguousarray(alone[:, order]).tobytes()


def test_addresses_of_numpy_arrays():
    whole = np.zeros((4, 6))
    for x in (whole, whole[1:, ::-2], whole[::-1].T, np.zeros((0, 3)), np.zeros(3).view(np.recarray)):
        assert memory.functions(x).addresses([x]) == [x.__array_interface__["data"][0]]


def test_views_of_arrays_hold_the_same_numbers():
    """Their extents are those of NumPy; complex numbers and halves of rows need adjacent numbers."""
    whole = np.random.default_rng(0).uniform(-1.0, 1.0, (4, 6, 8)).astype(np.float32)
    apart = [whole[..., ::-1], whole[..., ::2], whole.T, np.broadcast_to(whole[..., :1], whole.shape)]
    for x in (
        whole,
        whole[:, ::-2],
        whole[1:, 1:, 1:7],
        whole.transpose(1, 0, 2),
        whole.astype(float),
        whole[0],
        *apart,
    ):
        start, low, high = x.__array_interface__["data"][0], *byte_bounds(x)
        assert memory.extent(x) == (low, high) and memory.reach(x) == (low - start, high - start)
        numbers, halves = memory.complex_view(x), memory.views_as_halves(whole, x)
        adjacent = not any(x is each for each in apart)
        assert (numbers is not None) == (halves is not None) == memory.has_contiguous_rows(x) == adjacent
        if adjacent:
            assert np.shares_memory(numbers, x) and np.shares_memory(halves[1], x)
            np.testing.assert_array_equal(np.stack([numbers.real, numbers.imag], -1).reshape(x.shape), x)
            assert halves[1].shape == (*x.shape[:-1], 2) and halves[1].tobytes() == x.tobytes()
        rows = memory.with_contiguous_rows(x)
        assert (rows is x) == adjacent and memory.has_contiguous_rows(rows) and (rows == x).all()
    assert (
        memory.complex_view(whole.astype(">f4")) is None and memory.with_contiguous_rows(whole.astype(">f4")) is not x
    )
    assert memory.extent(whole[:0]) == memory.reach(whole[:0]) == (0, 0) and memory.complex_view(whole[:0]) is None
    for other, are_apart in ((whole[2:], True), (whole[1:, 5:], False), (whole[:2], False), (whole[:1:-1], True)):
        for pieces in ([whole[:2], other], [other, whole[:2]]):
            assert memory.extents(pieces).are_apart(pieces) is are_apart


@pytest.mark.parametrize("size", [16, 2**18 - 16, 2**18, 2**22, 2**22 + 16])
def test_memory_between_operations_is_at_least_that_of_two_huge_pages(size):
    """Unless it is little, so that NumPy asks for huge pages."""
    x = memory.empty((2, size // 16), like=np.zeros(1))
    assert x.shape == (2, size // 16) and x.dtype == float and x.flags.c_contiguous
    assert x.base.nbytes == (max(size, 2**22) if size >= 2**18 else size)
    assert memory.complex_numbers(x, -x).base.nbytes == (max(2 * size, 2**22) if size >= 2**17 else 2 * size)


def test_arrays_overlap_if_it_takes_too_long_to_tell():
    """Arrays of NumPy's own tests, whose strides are hard to compare."""
    whole = np.zeros(192_163_377, np.int8)
    one = as_strided(whole, (1049, 1049, 1049), (36_674, 61_119, 85_569))
    assert memory.may_overlap(one, as_strided(whole[64_023_025:], (1049, 1049, 1), (12_223, 12_224, 1)))
    assert not memory.may_overlap(whole[::2], whole[1::2])
