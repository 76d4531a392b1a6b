"""The interactive page in a browser: its controls, and what it draws. `tests/docs` has its formulas."""

import json
from math import log10, pi

import interactive
import numpy as np
import pytest
from configs import CONFIGS

from rope_xp import from_config

PAGE = "interactive/"
READY = "#rope-page figure svg"


@pytest.fixture
def page(open_page):
    page = open_page(PAGE)
    page.wait_for_selector(READY)
    return page


def rows(page):
    """The table of pairs: its texts, without those of the header."""
    return page.eval_on_selector_all(
        "#rope-page tbody tr", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )


def number(text):
    return float(text.replace(",", ""))


def explained(page):
    """The embedding that the page's program makes, and its report."""
    rope, printed = interactive.made_and_printed(page.locator("#rope-page pre code").first.text_content())
    return rope, printed


def test_every_preset_is_its_config(page):
    for name in page.eval_on_selector_all("[name=preset] option", "options => options.map(each => each.value)"):
        page.select_option("[name=preset]", name)
        config, _, layer_type = name.partition(" ")
        expected = from_config(CONFIGS[config], layer_type=layer_type or None)
        seq_len = number(page.input_value("input[type=number][name=target]"))
        if hasattr(expected.scaling, "seq_len"):
            expected = from_config(CONFIGS[config], layer_type=layer_type or None, seq_len=int(seq_len))
        rope, _ = explained(page)
        assert (rope.inv_freq, rope.attention_factor) == (expected.inv_freq, expected.attention_factor)
        assert (rope.head_dim, rope.layout) == (expected.head_dim, expected.layout)


def check_drawn(page):
    """Dots, triangles, the table and the blocks must be those of the embedding that the page's program makes."""
    rope, _ = explained(page)
    trained, target = (int(page.input_value(f"input[type=number][name={name}]")) for name in ("trained", "target"))
    wavelengths = [2 * pi / w if w else None for w in rope.inv_freq]
    for row, wavelength in zip(rows(page), wavelengths, strict=True):
        assert row[2] == "not rotated" if wavelength is None else abs(number(row[2]) / wavelength - 1) < 6e-3
    unseen = [p for p in rope.explain(target, trained_length=trained).unseen_from.values() if p < target]
    assert page.locator("#rope-page path.unseen").count() == len(unseen)
    assert page.locator("#rope-page circle.seen").count() == len(rope.inv_freq) - len(unseen) - wavelengths.count(None)
    assert json.loads(page.locator("#rope-page pre code").nth(1).text_content())["rope_parameters"] == rope.to_config()
    heights = page.eval_on_selector_all("circle.seen", "dots => dots.map(dot => Number(dot.getAttribute('cy')))")
    drawn = [w for w, p in zip(wavelengths, pairs_unseen(rope, trained, target)) if w and not p]
    if len(drawn) > 2:  # a straight line of the logarithm
        slope, start = np.polyfit(np.log10(drawn), heights, 1)
        np.testing.assert_allclose(slope * np.log10(drawn) + start, heights, atol=1e-6)
        mark = float(page.locator("line.trained").first.get_attribute("y1"))
        assert mark == pytest.approx(slope * log10(trained) + start, abs=1e-6)


def pairs_unseen(rope, trained, target):
    """Whether each pair has unseen angles."""
    found = rope.explain(target, trained_length=trained).unseen_from
    return [found.get(pair, target) < target for pair in range(len(rope.inv_freq))]


def test_which_training_showed_angles_is_said(page):
    """The first preset is Llama 3.1, at its own length. Its note is about its own rule and lengths only."""
    text = page.locator("#rope-page").text_content()
    assert "The config states 131,072 tokens, with this scaling. If the model was trained with it" in text
    assert "29 of them have angles that training before scaling did not show." in text
    assert "trained length before scaling 8,192" in text
    page.fill("input[type=number][name=trained]", "4096")
    assert "The config states" not in page.locator("#rope-page").text_content()
    page.select_option("[name=preset]", "llama-2-7b")
    assert "training before scaling" not in page.locator("#rope-page").text_content()
    page.select_option("[name=preset]", "gemma-4-e2b-it full_attention")  # its rule only stops pairs
    assert "training before scaling" not in page.locator("#rope-page").text_content()


def test_controls_change_what_is_drawn(page):
    check_drawn(page)
    for rule in ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional"):
        page.select_option("[name=rule]", rule)
        check_drawn(page)
    page.select_option("[name=rule]", "yarn")
    before = page.locator("#rope-page path.with").get_attribute("d")
    for name, value in {
        "base": "10000",
        "rotary_dim": "64",
        "trained": "2048",
        "target": "100000",
        "beta_fast": "16",
    }.items():
        page.fill(f"input[type=number][name={name}]", value)
        check_drawn(page)
    assert page.locator("#rope-page path.with").get_attribute("d") != before


def test_sliders_work_with_the_keyboard(page):
    for name in ("base", "rotary_dim", "trained", "target", "factor"):
        slider, field = (page.locator(f"input[type={kind}][name={name}]") for kind in ("range", "number"))
        before = number(field.input_value())
        slider.focus()
        page.keyboard.press("ArrowRight")
        after, place = number(field.input_value()), number(slider.input_value())
        # Bases are rounded to two digits. The slider itself is rounded to its steps.
        expected = place if name == "rotary_dim" else (10 if name == "base" else 2) ** place
        assert after > before and after == pytest.approx(expected, rel=0.06)
        assert number(slider.get_attribute("aria-valuetext")) == pytest.approx(after, rel=1e-2)
        check_drawn(page)


def test_the_address_holds_the_setting(page, open_page):
    def check_address():
        again = open_page(PAGE + "?" + page.url.partition("?")[2])
        again.wait_for_selector(READY)
        assert explained(again) == explained(page)

    page.select_option("[name=preset]", "deepseek-v3")
    check_address()
    page.select_option("[name=rule]", "llama3")
    check_address()
    page.select_option("[name=preset]", "qwen2.5-7b-instruct-yarn")
    page.fill("input[type=number][name=factor]", "7")
    page.fill("input[type=number][name=mscale]", "0.5")
    page.locator("[name=truncate]").uncheck()
    check_address()
    assert explained(page)[0].scaling.factor == 7


def test_blocks_are_copied(page):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for number, button in enumerate(page.locator("#rope-page .rope-copy").all()):
        button.click()
        page.wait_for_function("button => button.textContent === 'Copied'", arg=button.element_handle())
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == page.locator("#rope-page pre code").nth(number).text_content()


def test_a_bad_value_is_named(page):
    page.fill("input[type=number][name=rotary_dim]", "7")
    assert "rotary_dim must be an even number" in page.locator("#rope-page [role=alert]").first.text_content()
    page.fill("input[type=number][name=rotary_dim]", "64")
    check_drawn(page)


def test_every_control_has_a_name(page):
    unnamed = "controls => controls.filter(each => !(each.labels?.length || each.ariaLabel)).map(each => each.name)"
    for rule in interactive.RULES:
        page.select_option("[name=rule]", rule)
        assert not page.eval_on_selector_all("#rope-page :is(input, select, textarea)", unnamed)


CONTRAST = """selector => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const light = (colours) => {
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((each) => each / 255)
      .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const style = getComputedStyle(document.querySelector(selector));
  const background = getComputedStyle(document.body).backgroundColor;
  const both = [light([background, style.fill === "none" ? style.stroke : style.fill]), light([background])];
  return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
}"""


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_have_contrast(open_page, screenshots, width, scheme):
    """WCAG 2 requires a contrast of 3 for graphics and 4.5 for text."""
    page = open_page(PAGE, width=width, scheme=scheme)
    page.wait_for_selector(READY)
    for _ in range(2):  # the second time in the other palette
        for selector, least in (("circle.seen", 3), ("path.unseen", 3), ("path.with", 3), ("text.tick", 4.5)):
            assert page.evaluate(CONTRAST, selector) >= least
        page.screenshot(path=screenshots / f"interactive-{width}-{scheme}.png", full_page=True)
        page.locator("label[for^=__palette]:visible").click()
        scheme += "-toggled"
