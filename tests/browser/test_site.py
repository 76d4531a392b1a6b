"""Every page of the built site in a browser. An error, or a request to another host, fails the test (`open_page`)."""


def test_page_fits(open_page, path):
    page = open_page(path)
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    for image in page.locator("img:visible").all():
        image.scroll_into_view_if_needed()
        assert image.evaluate("async (image) => (await image.decode(), image.naturalWidth)")
