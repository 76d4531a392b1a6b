"""Positions on grids, against loops over cells; and the call that the docstring gives a family, against its formula."""

import math
import re
from functools import partial
from importlib import import_module

import array_api_strict
import numpy as np
import pytest
from compare import assert_positions
from errors import assert_all_raise, raising
from libraries import LIBRARIES
from samples import embedding

import rope_xp.positions.grids
from rope_xp import positions
from rope_xp.positions import augment, grid, join, normalized

NUMPY = LIBRARIES["numpy"]


def cells(*lines):
    """All combinations, the last fastest."""
    columns = [[line[i] for line, i in zip(lines, cell)] for cell in np.ndindex(*map(len, lines))]
    return np.asarray(columns).reshape(-1, len(lines)).T


@pytest.mark.parametrize("of", ["numbers", "numpy", "own"])
def test_coordinates(xp, of):
    kind = {"numbers": lambda x, _: x, "numpy": lambda x, _: np.asarray(x), "own": xp.array}[of]
    frames, seconds, like = [3, 17, -4, 17], [0.5, 0.75], xp.like()
    given = kind(frames, "int32")
    assert_positions(xp, grid(given, 3, like=like), cells(frames, range(3)))
    assert_positions(xp, grid(3, kind(seconds, "float32"), like=like), cells(range(3), seconds))
    for step in (2, 0.5):
        truth = cells([1 + step * frame for frame in frames], range(3))
        assert_positions(xp, grid(given, 3, start=(1, 0), step=(step, 1), like=like), truth)
    if of == "own":
        assert type(grid(given, 3)) is type(like)


def test_int64_coordinates_of_an_array_stay_int64(xp):
    if "int64" in xp.integers and xp.name != "numpy":  # whose values are checked
        result = grid(xp.array([2**40, 5], "int64"), 2)
        assert xp.dtype_of(result) == "int64"
        np.testing.assert_array_equal(xp.numpy(result), cells([2**40, 5], range(2)))


def test_join(xp):
    one, other = grid(2, 3, like=xp.like()), grid(1, 2, start=7, like=xp.like())
    truth = np.concatenate([np.zeros((2, 2)), cells(range(2), range(3)), np.zeros((2, 1)), [[7, 7], [7, 8]]], axis=1)
    assert_positions(xp, join(2, one, 1, other), truth.astype(int))
    padded = np.concatenate([truth, np.full((2, 4), -1)], axis=1)
    assert_positions(xp, join(2, one, 1, other, total=15, padding=-1), padded.astype(int))
    assert_positions(xp, join(one, 0, total=6), cells(range(2), range(3)))
    # Integers and reals are real, and parts of NumPy go with those of any library.
    real = join(grid(2, like=xp.like()), 1, normalized(2, like=xp.like()))
    assert_positions(xp, real, [[0.0, 1.0, 0.0, -0.5, 0.5]])
    assert_positions(xp, join(grid(2), grid(2, like=xp.like())), [[0, 1, 0, 1]])
    assert_positions(xp, join(grid(2), like=xp.like()), [[0, 1]])


def test_join_in_a_batch_and_without_axes(xp):
    one, other = np.arange(6).reshape(1, 2, 3), np.arange(4).reshape(1, 2, 2)
    truth = np.concatenate([np.zeros((1, 2, 1), int), one, other], axis=-1)
    assert_positions(xp, join(1, xp.array(one, "int32"), xp.array(other, "int32")), truth)
    assert_positions(xp, join(positions.consecutive(2, like=xp.like()), 1), [0, 1, 0])


def test_joined_tokens_are_not_rotated(xp):
    x, where = xp.random(5, 6), join(1, grid(3, start=1, like=xp.like()), 1)[0, :]
    moved, x = xp.numpy(embedding(head_dim=6)(x, positions=where, seq_dim=0)), xp.numpy(x)
    np.testing.assert_array_equal(moved[[0, -1]], x[[0, -1]])
    assert (moved[1:-1] != x[1:-1]).all()


def sources(xp):
    """Random sources for a library, each made anew by a call."""
    yield lambda: np.random.default_rng(7)
    if xp.name == "torch":
        yield lambda: import_module("torch").Generator().manual_seed(7)
    if xp.name == "jax":
        yield lambda: import_module("jax").random.key(7)
        yield lambda: import_module("jax").random.PRNGKey(7)


def test_augment(xp):
    still = normalized(2, 4, like=xp.like())
    x = xp.numpy(still)
    for source in sources(xp):

        def moved(still=still, source=source, **options):
            result = augment(positions=still, source=source(), **options)
            assert xp.dtype_of(result) == "float32"
            return xp.numpy(result)

        np.testing.assert_array_equal(moved(), x)
        np.testing.assert_array_equal(moved(shift=0.25), moved(shift=0.25))
        # Each alone: a number or a factor of each axis, or one of all, within its limits.
        shift, jitter, rescale = moved(shift=0.25) - x, moved(jitter=1.5) / x, moved(rescale=2.0) / x
        limits = ((shift, -0.25, 0.25, 1e-6), (jitter, 1 / 1.5, 1.5, 1e-5), (rescale, 0.5, 2.0, 1e-5))
        for change, least, most, roundings in limits:
            assert np.ptp(change, axis=1).max() < roundings and (least <= change).all() and (change <= most).all()
        assert shift[0, 0] != shift[1, 0] and jitter[0, 0] != jitter[1, 0]
        assert np.ptp(rescale) < 1e-5 and rescale[0, 0] != 1.0
        # All together, in the order shift, jitter, rescale, whose draws come in that order too.
        whole = moved(shift=0.25, jitter=1.5, rescale=2.0)
        numbers = np.log(moved(xp.array(np.ones((5, 1)), "float32"), jitter=math.e))[:, 0]
        truth = (x + 0.25 * numbers[:2, None]) * 1.5 ** numbers[2:4, None] * 2.0 ** numbers[4]
        np.testing.assert_allclose(whole, truth, rtol=0, atol=2e-6)
        # Positions of NumPy go with any source, and float64 stays.
        host = np.asarray(augment(normalized(2, 4), source(), shift=0.25))
        np.testing.assert_array_equal(host, moved(shift=0.25))
        if "float64" in xp.floats:
            assert xp.dtype_of(augment(xp.array(x, "float64"), source(), shift=0.1)) == "float64"
        # Kolmogorov's distance to the uniform distribution, at a level of 1e-6 for these seeds.
        draws = np.sort(moved(xp.array(np.zeros((2000, 1)), "float32"), shift=1.0)[:, 0])
        assert np.abs((draws + 1) / 2 - np.arange(2000) / 2000).max() < 2.7 / math.sqrt(2000)


def test_a_generator_moves_on():
    source = np.random.default_rng(0)
    one, other = (augment(normalized(2, 2), source, shift=1.0) for _ in range(2))
    assert (one != other).all()


def test_positions_lie_on_the_device_of_like(xp):
    elsewhere = {"strict": [array_api_strict.Device("device1")], "torch": ["meta"]}
    for device in elsewhere.get(xp.name, ()):
        x = xp.array(np.zeros((2, 3)), "float32")
        x = x.to(device) if xp.name == "torch" else x.to_device(device)
        results = [*of_an_image(x), grid([0.5, 2], 3, step=0.5, like=x), join(grid(2), 1, like=x)]
        moved = augment(normalized(2, like=x), np.random.default_rng(0), shift=0.5, jitter=1.5, rescale=2.0)
        assert all(str(result.device) == str(x.device) for result in (*results, moved))


def of_an_image(x):
    """Positions of what an image of these sizes may be, which a program leaves open."""
    h, w = x.shape
    return (
        join(4, normalized(h, w, like=x)),
        join(grid(h, w, start=1, axes=(1, 0), like=x), 1),
        grid(2, 2 * h, 2 * w, block=(1, 2, 2), axes=(1, 2), like=x),
    )


def test_one_program_for_images_of_any_size(xp):
    x = xp.array(np.zeros((6, 11)), "float32")
    if xp.name == "torch":
        import torch

        sizes = {0: torch.export.Dim("h", min=2, max=16), 1: torch.export.Dim("w", min=2, max=16)}
        module = torch.nn.Module()
        module.forward = of_an_image
        results = torch.export.export(module, (torch.zeros(5, 7),), dynamic_shapes=(sizes,)).module()(x)
    elif xp.name == "jax":
        import jax
        from jax import export

        shape = jax.ShapeDtypeStruct(export.symbolic_shape("h,w"), x.dtype)
        results = export.export(jax.jit(of_an_image))(shape).call(x)
    else:
        results = of_an_image(x)
    roundings = 2 if xp.name == "jax" else 1
    for result, truth in zip(results, of_an_image(np.zeros((6, 11)))):
        assert_positions(xp, result, truth, roundings=2 * roundings)


def test_numpy_is_the_default():
    assert isinstance(grid(2, 2, step=0.5), np.ndarray) and isinstance(normalized(2), np.ndarray)
    assert isinstance(join(1, grid(2)), np.ndarray)
    assert grid(np.int8(100), np.asarray([1, 2]), start=np.int8(100), axes=(np.int64(0),)).max() == 199


def calls():
    """The calls that the docstring gives for families, by the first words of the family."""
    doc = rope_xp.positions.grids.__doc__
    found = re.findall(r"^(\S.*)\n    ``(.*)``$", doc, flags=re.MULTILINE)
    assert len(found) == doc.count("\n    ``")
    return dict(found)


# Sizes are all different, and none is a multiple of another.
N = {"t": 3, "h": 4, "w": 10, "n": 5, "m": 2, "i": 2, "r": 16, "o": 1, "k": 3, "window": 24, "s": 9, "H": 13, "W": 31}
N |= {"grid_thw": [(1, 4, 6), (3, 2, 8)], "merge_sizes": [1, 2], "sizes": [(4, 6), (3, 5)], "frames": [0, 7, 5]}
N |= {"fps": 16, "a": 2.0, "b": 1.5, "c": 0.7, "top": 2, "left": -3, "bottom": 30, "right": 45}
N |= {"seconds": [0.02, 0.2, 0.53]}
T, HEIGHT, WIDTH = range(N["t"]), range(N["h"]), range(N["w"])


# Families that pad: the size it takes here, and so many tokens of a number at the end.
PADDED = {"Gemma 4": ({"n": 47}, 7, -1), "HiDream": ({"m": 50}, 15, 0)}


def of(family):
    (call,) = [call for name, call in calls().items() if name.startswith(family)]
    scale = math.sqrt(192 * 192 / (N["h"] * N["w"]))
    names = {"grid": grid, "join": join, "normalized": normalized, "np": np}
    own = {"s": scale} if family == "Mochi" else PADDED[family][0] if family in PADDED else {}
    return eval(call, names | N | own)


def merged(t, h, w, m):
    """(t, h, w) of patches, block by block."""
    indices = np.ndindex(t, h // m, w // m, m, m)
    return [(frame, row * m + y, column * m + x) for frame, row, column, y, x in indices]


def cells_of_images(m, axes):
    merges = [m] * 2 if isinstance(m, int) else m
    return np.asarray([cell for thw, m in zip(N["grid_thw"], merges) for cell in merged(*thw, m)]).T[axes]


def text(n, *rows):
    """Text whose tokens count on these axes."""
    return np.asarray([np.arange(n) if row else np.zeros(n, int) for row in rows])


def image(first, y=HEIGHT, x=WIDTH):
    return cells([first], y, x)


def beside(*parts):
    return np.concatenate(parts, axis=1)


def boxed(n, first, end):
    return np.linspace(first, end, n, endpoint=False) if first == 0 else np.linspace(first, end * (n - 1) / n, n)


def centred(n):
    return [i - (n - n // 2) for i in range(n)]


def mochi(n, scale):
    edges = np.linspace(-n * scale / 2, n * scale / 2, n + 1)
    return (edges[:-1] + edges[1:]) / 2


FAMILIES = {
    "Qwen2-VL": lambda: cells_of_images(2, [1, 2]),
    "VideoLLaMA3": lambda: cells_of_images([1, 2], [1, 2]),
    "MiniMax-M3": lambda: cells_of_images(2, [0, 1, 2]),
    "PaddleOCR-VL": lambda: cells_of_images(1, [1, 2]),
    "Kimi-VL": lambda: cells_of_images(1, [2, 1]),
    "Muse Glimmer": lambda: cells_of_images(1, [2, 1]) + 1,
    "Pixtral": lambda: beside(*(cells(range(h), range(w)) for h, w in N["sizes"])),
    "MLCD": lambda: cells(HEIGHT, WIDTH),
    "Gemma 4": lambda: cells(HEIGHT, WIDTH)[::-1],
    "Llama 4": lambda: beside(cells(HEIGHT, WIDTH)[::-1] + 1, [[0], [0]]),
    "SAM 2, EdgeTAM": lambda: cells(HEIGHT, WIDTH)[::-1],
    "SAM 2, keys": lambda: beside(*[cells(HEIGHT, WIDTH)[::-1]] * 5, text(3, 0, 0)),
    "SAM 3, layers": lambda: cells(HEIGHT, WIDTH)[::-1] * 2.4,
    "V-JEPA 2": lambda: cells(T, HEIGHT, WIDTH),
    "EfficientLoFTR": lambda: cells(HEIGHT, WIDTH) + 1,
    "DINOv3": lambda: beside(text(5, 0, 0), cells(*([2 * (i + 0.5) / n - 1 for i in range(n)] for n in (4, 10)))),
    "timm with ``ref_feat_shape=(r, r)``": lambda: cells([y / 4 * 16 for y in HEIGHT], [x / 10 * 16 for x in WIDTH]),
    "timm with ``grid_offset=o``": lambda: cells(HEIGHT, WIDTH)[::-1] + 1,
    "timm with ``in_pixels=True``": lambda: cells(np.linspace(-1, 1, 4), np.linspace(-1, 1, 10)),
    "NeoMME": lambda: beside(text(2, 1, 1), cells(range(2, 6), range(2, 13))),
    "MiniCPM-V": lambda: cells([9], [9, 13, 17, 21], [9, 12, 16, 19, 22, 26, 29, 32, 36, 39]),
    "Flux, Chroma": lambda: beside(text(5, 0, 0, 0), image(0)),
    "HiDream": lambda: image(0),
    "Flux 2": lambda: beside(text(5, 0, 0, 0, 1), cells([0], HEIGHT, WIDTH, [0]), cells([30], HEIGHT, WIDTH, [0])),
    "Ovis Image": lambda: beside(text(5, 0, 1, 1), image(0)),
    "LongCat-Image": lambda: beside(text(5, 0, 1, 1), image(1, range(5, 9), range(5, 15))),
    "Lumina 2": lambda: beside(text(5, 1, 0, 0), image(5)),
    "Z-Image": lambda: beside(text(5, 1, 0, 0) + [[1], [0], [0]], image(6)),
    "ERNIE-Image": lambda: beside(image(5), text(5, 1, 0, 0)),
    "Qwen-Image": lambda: beside(image(2, centred(4), centred(10)), text(5, 1, 1, 1) + 5),
    "CogView 4": lambda: cells([13 * y // 4 for y in HEIGHT], [31 * x // 10 for x in WIDTH]),
    "PRX": lambda: cells(HEIGHT, WIDTH),
    "Wan": lambda: cells(T, HEIGHT, WIDTH),
    "FramePack": lambda: cells([0, 7, 5], HEIGHT, WIDTH),
    "Cosmos": lambda: cells([frame / 16 * 24 for frame in T], HEIGHT, WIDTH),
    "Kandinsky": lambda: cells([i / 2.0 for i in T], [i / 1.5 for i in HEIGHT], [i / 0.7 for i in WIDTH]),
    "CogVideoX 1": lambda: cells(boxed(3, 0, 3), boxed(4, 2, 30), boxed(10, -3, 45)),
    "LTX-Video": lambda: cells(
        *([2 * (i * a / b) - 1 for i in line] for line, a, b in ((T, 2.0, 20), (HEIGHT, 1.5, 2048), (WIDTH, 0.7, 2048)))
    ),
    "LTX-2": lambda: cells(
        [2 * (second / 20) - 1 for second in N["seconds"]],
        *([2 * ((32 * i + 32 * (i + 1)) / 2 / 2048) - 1 for i in line] for line in (HEIGHT, WIDTH)),
    ),
    "Mochi": lambda: cells(T, *(mochi(n, math.sqrt(192 * 192 / 40)) for n in (4, 10))),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_call_of_a_family_is_its_formula(family):
    result, truth = of(family), FAMILIES[family]()
    if family in PADDED:
        _, rest, fill = PADDED[family]
        truth = beside(truth, np.full((len(truth), rest), fill))
    # Formulas round in float64 in another order, at numbers below 64.
    assert_positions(NUMPY, result, truth, atol=64 * 2.0**-52)


def test_every_family_has_a_formula():
    for name in calls():
        assert sum(name.startswith(family) for family in FAMILIES) == 1, name


def bad(xp):
    """Bad calls: (call, error, what it must say)."""
    own, one = xp.array(np.ones(3), "int32"), xp.array(np.asarray(1), "int32")
    real, numpy = normalized(2, 2, like=xp.like()), np.random.default_rng(0)
    uneven = partial(join, grid(2, 2, like=own), grid(3, like=own))
    values = [
        (lambda: grid(one), r"or coordinates of one axis; got shape \(\)"),
        (lambda: grid(own[None, :]), r"or coordinates of one axis; got shape \(1, 3\)"),
        (lambda: join(own, -1), r"a number of tokens must not be negative; got"),
        (lambda: join(one), r"parts must have an axis of tokens.*; got .*\(\)"),
        (uneven, r"parts must have .* same axes before it; got shapes \[\(2, 4\), \(1, 3\)\]"),
        (lambda: join(1, own, total=3), r"total must be at least 4, .*; got 3"),
        (lambda: join(own, total=5, padding=2**31), r"padding must fit in int32; got"),
        (lambda: join(own, total=5, padding=-(2**31) - 1), r"padding must fit in int32; got -2147483649"),
        (lambda: augment(real[0, 0], numpy), r"positions must have a position axis .*; got"),
        (lambda: augment(real, numpy, shift=-0.1), r"shift must be at least 0; got -0.1"),
        (lambda: augment(real, numpy, jitter=0.5), r"jitter must be at least 1; got 0.5"),
        (lambda: augment(real, numpy, rescale=0), r"rescale must be at least 1; got 0"),
    ]
    types = [
        (lambda: grid(np.asarray([True])), r"coordinates must be a number; got"),
        (lambda: grid(xp.array([True], "bool")), r"^grid: coordinates must be .*; got"),
        (lambda: join(own > 0), r"^join: every part must be .*; got bool"),
        (lambda: join(own, total=3.5), r"total must be an int; got float"),
        (lambda: join(own, total=5, padding=0.5), r"padding must be an int; got float"),
        (lambda: augment(own, numpy, shift=0.1), r"^augment: positions must be float32 or float64; got int32"),
        (lambda: augment([0.5], numpy, shift=0.1), r"positions must be an array; got list"),
        (lambda: augment(real, None, shift=0.1), r"source must be a numpy.*; got NoneType"),
        (lambda: augment(real, 0, shift=0.1), r"^augment: source must be a numpy.*; got int"),
        (lambda: augment(real, own, shift=0.1), r"source must be a numpy.*; got"),
        (lambda: augment(real, numpy, rescale="2"), r"rescale must be a number; got"),
    ]
    return raising(values, types)


def test_bad_input(xp):
    assert_all_raise(bad(xp))


@pytest.mark.where(lambda xp: xp.name != "strict")
def test_parts_of_two_libraries(xp):
    foreign, like, said = array_api_strict.asarray([[0, 1]]), xp.like(), r"must be an array of .*, or of NumPy; got"
    calls = (lambda: join(grid(2, like=like), foreign, like=like), lambda: grid(foreign[0, :], like=like))
    assert_all_raise(raising([], [(call, said) for call in calls]))
