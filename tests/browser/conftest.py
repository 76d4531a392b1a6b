"""A browser that runs headless, and the built site on a local server."""

import os
import re
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
SITE = Path(os.environ.get("SITE", ROOT / "site"))
SCREENSHOTS = SITE.parent / "screenshots"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Print nothing for each request."""


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The address of the built site, in the folder where it will be published."""
    assert (SITE / "index.html").exists(), f"{SITE} must be the built site: `nox -s docs-browser` builds it"
    (folder,) = re.findall(r'rel="canonical" href="https://[^/]+/([^"]*)/"', (SITE / "index.html").read_text())
    root = tmp_path_factory.mktemp("server")
    (root / folder).symlink_to(SITE, target_is_directory=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=root)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/{folder}/"
        server.shutdown()


@pytest.fixture(scope="session")
def screenshots():
    """The folder of the session's output."""
    SCREENSHOTS.mkdir(exist_ok=True)
    return SCREENSHOTS


def pytest_generate_tests(metafunc):
    """A test that takes a `path` runs for every page of the site."""
    if "path" in metafunc.fixturenames:
        metafunc.parametrize("path", sorted(page.relative_to(SITE).as_posix() for page in SITE.rglob("*.html")))


@pytest.fixture(scope="session")
def browser():
    """The program of the variable CHROMIUM, or Chromium on PATH. Its cache is kept."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert program, "the variable CHROMIUM must be the path of a browser: `nox -s docs-browser` sets it"
    with sync_playwright() as playwright:
        # Scroll bars belong to what is tested.
        options = {"args": ["--no-sandbox"], "ignore_default_args": ["--hide-scrollbars"]}
        running = playwright.chromium.launch(executable_path=program, **options)
        yield running.new_context()
        running.close()


@pytest.fixture
def open_page(browser, site):
    """A function that opens a page of the site. Errors on the console and requests to other hosts fail the test."""
    complaints, pages = [], []

    def open_at(path, width=1280, scheme="light"):
        page = browser.new_page()
        pages.append(page)
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith((site, "data:")) or complaints.append(request.url))
        page.goto(site + path, wait_until="load")
        return page

    yield open_at
    for page in pages:
        page.evaluate("localStorage.clear()")  # the palette
        page.close()
    assert not complaints
