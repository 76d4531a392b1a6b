"""Positions on grids, against loops over cells; and the call that the docstring gives a family, against its formula."""

import math
import re
from importlib import import_module
from itertools import product

import array_api_strict
import numpy as np
import pytest
from compare import assert_positions
from libraries import LIBRARIES

import rope_xp.positions.grids
from rope_xp.positions import augment, grid, join, normalized

NUMPY = LIBRARIES["numpy"]


def cells(*lines):
    """All combinations, the last fastest."""
    columns = [[line[i] for line, i in zip(lines, cell)] for cell in np.ndindex(*map(len, lines))]
    return np.asarray(columns).reshape(-1, len(lines)).T


def sources(xp):
    """Random sources for a library, each made anew by a call."""
    yield lambda: np.random.default_rng(7)
    if xp.name == "torch":
        yield lambda: import_module("torch").Generator(xp.device).manual_seed(7)
    if xp.name == "jax":
        yield lambda: import_module("jax").random.key(7)
        yield lambda: import_module("jax").random.PRNGKey(7)


def test_augment(xp):
    """One shift and one factor of each axis, and one factor of all, drawn in this order."""
    still = normalized(2, 4, like=xp.like())
    for source, (shift, jitter, rescale) in product(
        sources(xp), product((None, 0.0, 0.25), (None, 1.0, 1.5), (None, 2.0))
    ):

        def moved(where=still, source=source, **options):
            result = augment(positions=where, source=source(), **options)
            assert xp.dtype_of(result) == "float32"
            return xp.numpy(result)

        count = 2 * (shift is not None) + 2 * (jitter is not None) + (rescale is not None)
        drawn = np.log(moved(xp.array(np.ones((count, 1)), "float32"), jitter=math.e))[:, 0]
        numbers, truth = iter(drawn), xp.numpy(still)
        if shift is not None:
            truth = truth + shift * np.asarray([[next(numbers)], [next(numbers)]])
        if jitter is not None:
            truth = truth * jitter ** np.asarray([[next(numbers)], [next(numbers)]])
        if rescale is not None:
            truth = truth * rescale ** next(numbers)
        options = {"shift": shift, "jitter": jitter, "rescale": rescale}
        np.testing.assert_allclose(moved(**options), truth, rtol=0, atol=2e-6)
        used = source()
        host = augment(normalized(2, 4), used, **options)  # positions of NumPy go with any source
        host = host if isinstance(host, np.ndarray) else xp.numpy(host)
        np.testing.assert_allclose(host, truth, rtol=0, atol=2e-6)
        if isinstance(used, np.random.Generator):  # no more is drawn than is used
            same = source()
            np.testing.assert_allclose(drawn, 2 * same.random(count, dtype=np.float32) - 1, rtol=0, atol=1e-6)
            assert used.bit_generator.state == same.bit_generator.state
    for source in sources(xp):
        if "float64" in xp.floats:
            assert xp.dtype_of(augment(xp.array(truth, "float64"), source(), shift=0.1)) == "float64"
        # Kolmogorov's distance to the uniform distribution, at a level of 1e-6 for these seeds.
        draws = np.sort(xp.numpy(augment(xp.array(np.zeros((2000, 1)), "float32"), source(), shift=1.0))[:, 0])
        assert np.abs((draws + 1) / 2 - np.arange(2000) / 2000).max() < 2.7 / math.sqrt(2000)


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
    "VGGT": lambda: beside(text(5, 0, 0), cells(HEIGHT, WIDTH) + 1),
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
