"""Positions of multimodal prompts, against token-by-token writing down."""

from itertools import chain, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompts import hunyuan_prompt, random_prompt

from rope_xp import positions

FAMILIES = {
    "qwen2_vl": (positions.qwen2_vl, {}),
    "qwen2_5_vl": (positions.qwen2_5_vl, {"positions_per_second": 2}),
    "qwen3_vl": (positions.qwen3_vl, {}),
    "qwen3_omni": (positions.qwen3_omni, {"positions_per_second": 13}),
    "ernie4_5_vl": (positions.ernie4_5_vl, {}),
}


def written_down(runs):
    """Positions of runs and of the next token, one token after the other."""
    tokens, following = [], 0
    for run in runs:
        new = [(i, i, i) for i in range(run)] if isinstance(run, int) else product(*map(steps, run))
        tokens += [tuple(following + place for place in cell) for cell in new]
        following = max((max(cell) + 1 for cell in tokens), default=0)
    return np.asarray(tokens).reshape(-1, 3).T, following


def steps(size):
    """The times or the places of an axis."""
    return range(size) if isinstance(size, int) else size


size = st.integers(0, 3)


@given(
    st.lists(size | st.tuples(size | st.lists(st.sampled_from([0.0, 1.5, 4.0]), max_size=3), size, size), max_size=5)
)
def test_prompts(runs):
    """Text counts on from the greatest position; a grid has its own time, height and width from there."""
    is_real = any(not isinstance(run, int) and not isinstance(run[0], int) and run[0] for run in runs)
    (found, delta), (truth, following) = positions.prompt(runs), written_down(runs)
    assert found.dtype == delta.dtype == ("float32" if is_real else "int32")
    np.testing.assert_array_equal(found, truth)
    assert delta.shape == () and delta + found.shape[1] == following


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name):
    """A prompt alone, and among others in a batch, between tokens of padding, which may have any type."""
    function, options = FAMILIES[name]
    rng, dtype = np.random.default_rng(5), "float32" if name == "qwen3_omni" else "int32"
    shape = {"frames": name == "qwen3_vl", "temporal": 2 if name == "ernie4_5_vl" else 1}

    def row():
        """A prompt, the seconds between the time steps of its videos, and its runs."""
        seconds = []

        def times(count):
            seconds.append(float(rng.choice([0.25, 1.0, 3.5])))
            step = seconds[-1] * options["positions_per_second"] if options else 1
            return [step * i if name == "qwen3_omni" else int(step * i) for i in range(count)]

        *prompt, runs = random_prompt(rng, **shape, times=times)
        return *prompt, seconds, runs

    def call(types, images, videos, seconds, **more):
        return function(types, images, videos, **more, **options, **({"seconds_per_grid": seconds} if options else {}))

    for _ in range(10):
        rows = [row() for _ in range(5)]
        length = max(len(own) for own, *_ in rows) + 3
        types, mask = np.full((5, length), 9), np.zeros((5, length), int)
        for index, (own, *_) in enumerate(rows):
            mask[index, rng.permutation(length)[: len(own)]] = 1
            types[index, mask[index] == 1] = own
        grids = [[*chain(*(each[which] for each in rows))] for which in (1, 2, 3)]
        found, delta = call(types, *grids, mask=mask)
        assert found.shape == (3, 5, length) and delta.shape == (5,) and found.dtype == delta.dtype == dtype
        assert (found[:, mask == 0] == 0).all()
        for index, (own, *grids_of_row, runs) in enumerate(rows):
            truth, following = written_down(runs)
            alone = call(own, *grids_of_row)
            assert alone.positions.dtype == alone.delta.dtype == dtype and alone.delta.shape == ()
            for positions_of_row, after in ((found[:, index, mask[index] == 1], delta[index]), alone):
                np.testing.assert_array_equal(positions_of_row, truth)
                assert after + len(own) == following
        for same in (mask.tolist(), mask.astype(bool)):
            np.testing.assert_array_equal(call(types.tolist(), *map(np.asarray, grids), mask=same).positions, found)


def test_times_lose_their_fraction_as_float32_does():
    """0.04 * 25 is one position per step in float64; the float32 nearest 0.04 is below it, their product is 1 again."""
    steps = np.arange(200)
    options = {"video_grids": [[200, 2, 2]], "positions_per_second": 25, "seconds_per_grid": [0.04]}
    found = positions.qwen2_5_vl([2] * 200, **options).positions[0]
    of_a_second = positions.qwen2_5_vl([2] * 200, **{**options, "seconds_per_grid": None}).positions[0]
    np.testing.assert_array_equal(of_a_second, 25 * steps)
    by_seconds = [int(np.float32(np.float32(step) * np.float32(0.04)) * np.float32(25)) for step in steps]
    np.testing.assert_array_equal(found, by_seconds)
    rate_first = positions.qwen2_5_vl([2] * 200, **options, compat="transformers").positions[0]
    np.testing.assert_array_equal(rate_first, steps)
    kept = positions.qwen3_omni([2] * 200, **options).positions[0]  # the fraction, after the same products
    np.testing.assert_array_equal(kept, steps.astype(np.float32) * np.float32(0.04) * np.float32(25))
    assert (found != rate_first).any() and (kept != rate_first).any()


def hunyuan_written_down(types, grids, axes):
    """One row, one token after the other."""
    tokens, grids, number, index = [], iter(grids), 0, 0
    while index < len(types):
        if types[index] != 1:
            tokens += [[index] * axes]
            index += 1
            continue
        _, height, width = next(grids)
        run = next((i for i in range(index, len(types)) if types[i] != 1), len(types)) - index
        cells = [(column, row, number) for row in range(height // 2) for column in range(width // 2 + 1)]
        edge = (run - len(cells)) // 2
        tokens += [[index] * axes] * edge
        tokens += [[index + edge + i] * (axes - 3) + [*cell] for i, cell in enumerate(cells)]
        tokens += [[index + run - 1] * axes] * edge
        number, index = number + 1, index + run
    return np.asarray(tokens).T


@pytest.mark.parametrize("axes", [3, 4])
def test_hunyuan(axes):
    rng = np.random.default_rng(3)
    rows = [hunyuan_prompt(rng) for _ in range(20)]
    length = max(len(row[0]) for row in rows)
    types = [[0] * (length - len(own)) + own for own, _ in rows]
    mask = [[0] * (length - len(own)) + [1] * len(own) for own, _ in rows]
    found, delta = positions.hunyuan_vl(types, [*chain(*(grids for _, grids in rows))], mask=mask, axes=axes)
    assert found.shape == (axes, 20, length) and (delta == 0).all()
    for row, (own, grids) in enumerate(rows):
        truth = hunyuan_written_down(own, grids, axes)
        np.testing.assert_array_equal(found[:, row, length - len(own) :], truth)
        np.testing.assert_array_equal(positions.hunyuan_vl(own, grids, axes=axes).positions, truth)


def test_results_are_where_they_should_be(xp):
    like = xp.like()
    types, grids = [[0, 1, 1, 0], [2, 2, 0, 0]], ([[1, 2, 4]], [[1, 2, 4]])
    calls = {
        "int32": lambda **option: positions.qwen2_vl(types, *grids, **option),
        "float32": lambda **option: positions.qwen3_omni(types, *grids, positions_per_second=13, **option),
    }
    for dtype, call in calls.items():
        host = call()
        for array, truth in zip(call(like=like), host):
            assert isinstance(truth, np.ndarray) and truth.dtype == dtype
            assert xp.dtype_of(array) == dtype and tuple(array.shape) == truth.shape
            np.testing.assert_array_equal(xp.numpy(array), truth)
    for one in (positions.prompt([2, (1, 1, 2)], like=like), positions.hunyuan_vl(types[0][:1], like=like)):
        assert xp.dtype_of(one.positions) == xp.dtype_of(one.delta) == "int32" and tuple(one.delta.shape) == ()


def test_lists_hold_numbers_of_any_kind():
    types, mask = [[0, 1, 1, 3], [0, 0, 0, 1]], [[1, 1, 1, 1], [0, 2, 0, 1]]
    grids = [[1, 2, 4], [1, 2, 2]]
    wanted = positions.qwen2_vl(types, grids, mask=mask)
    kinds = (
        *(lambda rows, kind=kind: np.asarray(rows, kind) for kind in ("int8", "uint8", "uint32", ">i4")),
        lambda rows: [*map(np.asarray, rows)],
        lambda rows: tuple(map(tuple, rows)),
        lambda rows: [tuple(map(np.int16, row)) for row in rows],
        lambda rows: [[*map(np.asarray, row)] for row in rows],
    )
    bools = [[bool(each) for each in row] for row in mask], [[np.bool(each) for each in row] for row in mask]
    for found in (
        *(positions.qwen2_vl(kind(types), kind(grids), mask=kind(mask)) for kind in kinds),
        *(positions.qwen2_vl(types, grids, mask=each) for each in bools),
    ):
        for one, other in zip(found, wanted):
            assert one.dtype == other.dtype and (one == other).all()
