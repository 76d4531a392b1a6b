"""Every page of the built site in a browser. `open_page` fails a test if a page reports an error or loads from elsewhere."""


def test_page_fits(open_page, path):
    page = open_page(path)
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    for image in page.locator("img:visible").all():
        image.scroll_into_view_if_needed()
        assert image.evaluate("async (image) => (await image.decode(), image.naturalWidth)")
