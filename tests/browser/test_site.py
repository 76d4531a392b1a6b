"""Every page of the built site in a browser. An error, or a request to another host, fails the test (`open_page`)."""

import pytest

# Blocks of code that are cut off: too wide, and without a bar to scroll. Signatures may not even be too wide.
CUT_OFF = """() => [...document.querySelectorAll("pre > code")].filter((code) => code.offsetParent)
    .filter((code) => code.scrollWidth > code.clientWidth + 1)
    .filter((code) => code.closest(".doc-signature") || code.offsetHeight - code.clientHeight < 6)
    .map((code) => code.textContent)"""


def test_page_fits(open_page, path):
    page = open_page(path)
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CUT_OFF) == []
    for image in page.locator("img:visible").all():
        image.scroll_into_view_if_needed()
        assert image.evaluate("async (image) => (await image.decode(), image.naturalWidth)")


@pytest.mark.parametrize("name", ["seq_dim", "from_lengths", "describe"])
def test_the_search_finds_the_reference_first(open_page, name):
    page = open_page("index.html")
    query = page.locator("[data-md-component=search-query]")
    query.click()
    query.press_sequentially(name)
    first = page.locator(".md-search-result__item .md-search-result__link").first
    first.wait_for()
    assert "/reference/" in first.get_attribute("href")


def test_the_search_finds_a_word_among_numbers(open_page):
    """Without docs/scripts/search.py, lunr does not find 34969, and typing its first digit raises an error."""
    page = open_page("index.html")
    numbers = {"location": "numbers/", "title": "", "text": " ".join(str(n * n) for n in range(10_000))}
    page.route("**/search_index.json", lambda route: route.fulfill(json={**route.fetch().json(), "docs": [numbers]}))
    page.reload()
    query = page.locator("[data-md-component=search-query]")
    query.click()
    query.press_sequentially("34969")
    page.locator(".md-search-result__meta", has_text="1 matching document").wait_for()
    assert page.locator(".md-search-result__item mark").first.text_content() == "34969"


def test_the_dials_rest_if_motion_is_not_wanted(open_page):
    page = open_page("index.html")
    running = "document.getAnimations().filter((each) => each.animationName === 'rope-turn').length"
    assert page.evaluate(running) == 4
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(running) == 0
