"""The pictures: what they draw is true, and what they refuse."""

import json
import subprocess
import sys

import array_api_strict
import errors
import matplotlib.image
import matplotlib.pyplot as plt
import mpmath
import numpy as np
import pictures
import pytest
from configs import CONFIGS
from matplotlib.colors import to_rgb

import rope_xp
from rope_xp import Llama3Scaling, RotaryEmbedding, Sections, YarnScaling, from_config, plot
from rope_xp.cli.commands import run

PICTURES = json.loads(pictures.GOLDEN.read_text())
PLAIN = RotaryEmbedding(head_dim=128, layout="half", base=10_000.0)
YARN = YarnScaling(factor=4.0, original_max_position_embeddings=32_768)
LLAMA3 = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
SCALED = RotaryEmbedding(head_dim=128, layout="half", base=5e5, scaling=LLAMA3)
AXES = RotaryEmbedding(head_dim=128, layout="half", base=1e6, sections=Sections((16, 24, 24), order="chunked"))
LEARNED = RotaryEmbedding(head_dim=4, layout="half", inv_freq=array_api_strict.ones(2))
HEADS = RotaryEmbedding(head_dim=4, layout="half", inv_freq=(((1.0, 0.5), (0.5, 0.1)), ((0.0, 0.0), (1.0, 0.5))))


@pytest.fixture(autouse=True)
def no_figure_stays():
    yield
    plt.close("all")


STARTS = {"": "ModuleNotFoundError: rope_xp.plot: ", "plot a.json -o a.png": "rope-xp: "}


@pytest.mark.parametrize("line", STARTS)
def test_without_matplotlib_the_extra_is_named(line):
    call = f"from rope_xp.cli import main; main({line.split()})" if line else "import rope_xp.plot"
    code = f"import sys; sys.modules['matplotlib'] = None; {call}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    said = f"{STARTS[line]}matplotlib must be installed (pip install 'rope-xp[plot]'); got"
    assert found.returncode and found.stderr.splitlines()[-1].startswith(said)


def test_a_broken_matplotlib_is_one_line(monkeypatch, capsys):
    monkeypatch.delattr(rope_xp, "plot")
    monkeypatch.setitem(sys.modules, "rope_xp.plot", None)
    assert run(["plot", "a.json", "-o", "a.png"]) == 2
    assert capsys.readouterr().err.startswith("rope-xp: import of rope_xp.plot halted")


def lines_of(ax):
    return {line.get_label(): line for line in ax.lines}


def test_wavelengths_are_those_of_the_formula_and_lengths_are_marked():
    ax = plot.wavelengths({"a": PLAIN, "scaled": SCALED}, context=131_072)
    np.testing.assert_allclose(lines_of(ax)["a"].get_ydata(), 2 * np.pi * 10_000.0 ** (np.arange(64) / 64), rtol=1e-12)
    marks = {8192: "trained length before scaling", 65_536: "length with scaling", 131_072: "context"}
    assert [text.get_text() for text in ax.texts] == [f"{name}, {length:,}" for length, name in marks.items()]
    assert [line.get_ydata()[0] for line in ax.lines if len(line.get_ydata()) == 2] == [*marks]
    config = {"model_type": "gemma3_text", "head_dim": 64, "sliding_window": 512, "max_position_embeddings": 32_768}
    types = ("full_attention", "sliding_attention")
    ax = plot.wavelengths({each: from_config(config, layer_type=each) for each in types})
    assert [text.get_text() for text in ax.texts] == ["window, 512", "trained length, 32,768"]


def test_colours_fit_the_page():
    """Lines and texts have a contrast of at least 3 with the page; an `ax` that is given keeps its own texts."""
    for name, look in plot.LOOKS.items():
        for colour in (look.ink, *look.lines):
            assert contrast(colour, look.page) >= 3, (name, colour)
        assert len({*look.lines}) == plot.MAX_LINES == len(look.lines)
    with plt.style.context("dark_background"):
        ax = plot.decay(PLAIN)
        assert ax.lines[0].get_color() == plot.LOOKS["dark"].lines[0] and ax.title.get_color() == plot.LOOKS["dark"].ink
        assert plot.decay(PLAIN, ax=plt.figure().add_subplot()).title.get_color() == "white"
    assert plot.decay(PLAIN).lines[0].get_color() == plot.LOOKS["light"].lines[0]
    lightness = [luminance(plot.SCORES(x)[:3]) for x in np.linspace(0, 1, 32)]
    assert np.all(np.diff(lightness) > 0)  # the map of scores reads in grey


def contrast(one, other):
    """As WCAG 2 defines it."""
    light, dark = sorted((luminance(to_rgb(one)), luminance(to_rgb(other))), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(rgb):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    return np.dot(linear, (0.2126, 0.7152, 0.0722))


@pytest.mark.parametrize("kind", plot.OF_ONE)
def test_pictures_of_one_embedding_are_drawn_below_each_other(kind, tmp_path):
    gemma = [from_config(CONFIGS["gemma-3-12b-it"], layer=layer) for layer in (0, 5)]
    plot.save(tmp_path / "a.png", kind, dict(zip("ab", gemma)))
    assert matplotlib.image.imread(tmp_path / "a.png").shape == (740, 600, 4)
    plot.save(tmp_path / "a.svg", kind, dict(zip("ab", gemma)))
    text = (tmp_path / "a.svg").read_text()
    assert "<!-- a: " in text and "<!-- b: " in text


def test_decay_is_the_mean_over_pairs_and_has_the_attention_factor():
    rope = RotaryEmbedding(head_dim=128, layout="half", base=1e6, scaling=YARN)
    line = plot.decay(rope, distance=100).lines[0]  # so short that each point is one distance
    w = np.asarray(rope.inv_freq)
    expected = (0.1 * np.log(4.0) + 1) ** 2 * np.cos(np.outer(np.arange(101), w)).mean(1)
    np.testing.assert_allclose(line.get_ydata(), expected, rtol=1e-12, atol=1e-12)
    for distance, width in ((0, 1), (1, 1), (255, 1), (256, 2), (301, 2), (384, 3)):  # the mean of each range
        count = distance // width
        points = plot.decay(rope, distance=distance).lines[0].get_xdata()
        np.testing.assert_allclose(points, [0, *(width * np.arange(count) + (width + 1) / 2)], rtol=1e-12)


def test_errors_of_phases_are_measured():
    lines = lines_of(plot.phase_error(PLAIN, context=2**17))
    position = int(lines["float32"].get_xdata()[-1])
    w = [mpmath.mpf(10_000.0) ** (-mpmath.mpf(j) / 64) for j in range(64)]
    of_float32 = max(
        abs(float(turn(mpmath.mpf(float(np.float32(position) * np.float32(each)))) - turn(position * each)))
        for each in w
        for turn in (mpmath.sin, mpmath.cos)
    )
    assert lines["float32"].get_ydata()[-1] >= of_float32 > 1e-3
    assert lines["exact"].get_ydata().max() < 2e-7
    for context in (2, 3, 2**24):
        positions = plot.phase_error(PLAIN, context=context).lines[0].get_xdata()
        assert (positions[0], positions[-1]) == (1, context)
    errors_of_bfloat16 = dict(zip(lines["bfloat16"].get_xdata(), lines["bfloat16"].get_ydata()))
    assert errors_of_bfloat16[256] < 1e-4 < 0.5 < errors_of_bfloat16[min(p for p in errors_of_bfloat16 if p > 257)]


def test_scores_and_pair_draw_cosines():
    larger = plot.scores(PLAIN.replace(attention_factor=1.5), distance=10).images[0]
    assert larger.get_array()[0, 0] == larger.get_clim()[1] == 2.25
    ax = plot.scores(PLAIN, distance=10)
    assert not any(line.get_visible() for line in (*ax.get_xgridlines(), *ax.get_ygridlines()))
    image = ax.images[0].get_array()
    np.testing.assert_allclose(image[0], np.cos(np.arange(11)), atol=1e-12)
    assert plot.scores(PLAIN, distance=11).images[0].get_array().shape == (64, 12)
    tips = [text.xy for text in plot.pair(PLAIN, count=3).texts if not text.get_text()]
    np.testing.assert_allclose(tips, [(np.cos(p), np.sin(p)) for p in range(3)], atol=1e-12)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("kind", plot.PICTURES)
def test_every_picture_is_saved_as_it_is_drawn_with_title_and_units(kind, dark, tmp_path):
    rope = AXES if kind == "sections" else SCALED
    plot.save(tmp_path / "a.png", kind, rope, dark=dark)
    picture = matplotlib.image.imread(tmp_path / "a.png")
    assert picture.shape == (370, 600, 4)
    assert picture[0, 0, 3] == 0  # transparent
    opaque = picture[picture[..., 3] == 1][:, :3].mean(1)
    assert np.median(opaque) > 0.5 if dark else opaque.min() < 0.2  # ink that the page shows
    with plt.style.context("dark_background" if dark else "default"):
        ax = plot.PICTURES[kind](ropes=rope)
    assert ax.get_title() and ax.get_xlabel() and ax.get_ylabel()
    ax.figure.savefig(tmp_path / "b.png", transparent=True)
    assert np.array_equal(matplotlib.image.imread(tmp_path / "b.png"), picture)
    plot.save(tmp_path / "a.svg", kind, rope, dark=dark)
    first = (tmp_path / "a.svg").read_bytes()
    plot.save(tmp_path / "a.svg", kind, rope, dark=dark)
    assert first == (tmp_path / "a.svg").read_bytes()
    assert not plt.get_fignums()[1:]  # `save` closes its own


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_pictures_look_as_when_a_person_looked(name):
    assert pictures.drawn(name) == PICTURES[name]


def test_styles_are_as_when_a_person_looked():
    assert pictures.styles() == PICTURES["styles"]


def test_lines_differ_without_colour():
    ropes = {str(base): PLAIN.replace(base=base) for base in (1e3, 1e4, 1e5, 5e5, 1e6, 2e6, 5e6, 1e7)}
    lines = plot.wavelengths(ropes).lines
    assert len({(line.get_linestyle(), line.get_linewidth()) for line in lines}) == len(ropes)
    nine = plot.wavelengths(dict.fromkeys("abc", AXES)).lines
    looks = [(line.get_color(), line.get_linestyle(), line.get_linewidth()) for line in nine]
    assert looks[8] == looks[0] and len({*looks}) == 8


@pytest.mark.parametrize("label", ["_a", r"$\foo$", r"a\$b_$c$", "__"])
def test_labels_are_shown_as_they_are(label, tmp_path, monkeypatch):
    axes = plot.scaling({label: SCALED, "b": SCALED}), plot.decay({label: PLAIN}), plot.wavelengths({label: PLAIN})
    legends = [ax.get_legend().get_texts()[0] for ax in axes]
    assert [shown(text) for text in legends] == [label] * 3
    titles = []
    monkeypatch.setattr(plot.plt, "close", lambda figure: titles.extend(ax.title for ax in figure.axes))
    plot.save(tmp_path / "a.svg", "pair", {label: PLAIN, "b": PLAIN})
    assert [shown(text).partition(": ")[0] for text in titles] == [label, "b"]


def shown(text):
    """The characters that matplotlib draws, but a space at the start."""
    words, is_formula = text._preprocess_math(text.get_text())
    assert not is_formula
    return words.lstrip()


BAD = errors.raising(
    [
        (lambda: plot.decay({}), "decay: ropes must be 1 to 8 embeddings; got 0"),
        (lambda: plot.decay(dict.fromkeys(range(9), PLAIN)), "decay: ropes must be 1 to 8 .*; got 9"),
        (lambda: plot.phase_error(PLAIN, context=1), "phase_error: context must be at least 2; got 1"),
        (lambda: plot.phase_error(PLAIN, context=2**24 + 1), r"phase_error: context must be at most 2\*\*24; got"),
        (lambda: plot.decay(PLAIN, distance=2**24 + 1), r"decay: distance must be at most 2\*\*24; got 16777217"),
        (lambda: plot.scores(PLAIN, distance=10**14), r"scores: distance must be at most 2\*\*18; got 10"),
        (lambda: plot.save("a.png", "scores", {" ": PLAIN}), r"save: labels of ropes must not be empty; got \[' '\]"),
        (lambda: plot.wavelengths({"a": PLAIN, "": AXES}), "wavelengths: labels of ropes must not be empty"),
        (lambda: plot.scores({"a": PLAIN, "b": PLAIN}), "scores: ropes must be one embedding; got 2"),
        (lambda: plot.pair(PLAIN, index=64), "pair: index must be below the number of pairs, 64; got 64"),
        (lambda: plot.sections(HEADS), "sections: frequencies must be floats .*; got those of 2 heads"),
        (lambda: plot.scores(LEARNED), "scores: frequencies must be floats .*; got an array"),
        (lambda: plot.scaling(PLAIN.replace(base=None, inv_freq=(1.0,))), "scaling: embeddings must have"),
        (lambda: plot.save("a.jpg", "pair", PLAIN), "save: output must end in .png or .svg; got 'a.jpg'"),
        (lambda: plot.save("a.png", "pairs", PLAIN), "save: kind must be one of"),
    ],
    types=[
        (lambda: plot.wavelengths([PLAIN]), "wavelengths: ropes must be a RotaryEmbedding or a mapping"),
        (lambda: plot.wavelengths({"a": PLAIN, "b": 2}), "wavelengths: ropes must be .*; got dict"),
    ],
)


def test_bad_input():
    errors.assert_all_raise(BAD)
