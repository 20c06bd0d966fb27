"""The documentation as a web site: it builds without a warning and needs no other host."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from conftest import skip_without

ROOT = Path(__file__).parents[1]
# As root, and where nothing but the page itself may be asked for.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-q", "-d", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]  # strict: a broken link is an error
    return folder


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its own name
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    skip_without(None if program else "no chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


def test_every_page_is_in_the_navigation(site: Path) -> None:
    pages = {page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")}
    index = (site / "index.html").read_text()
    linked = set(re.findall(r'href="([\w./-]+)\.html', index))
    assert {page.with_suffix("").as_posix() for page in pages} <= linked | {"index"}


def test_pages_name_no_other_host_to_load_from(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(r'<(?:script|img|link)[^>]+(?:src|href)="(https?://[^"]+)', text)
        assert not loaded, page.name


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_it_and_asks_nobody_else(
    address: str, browser: Browser, scheme: str, tmp_path: Path
) -> None:
    page = browser.new_page(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_default_timeout(240_000)
    troubles, asked = watch(page)
    page.goto(address + "quickstart.html")
    assert page.title() == "Quickstart - Holdfast"
    assert page.locator("nav a", has_text="Glossary").count() > 0
    page.goto(address + "index.html")
    assert page.locator("article img").first.evaluate("image => image.naturalWidth") > 0
    dark = page.locator("body").get_attribute("data-md-color-scheme") == "slate"
    assert dark == (scheme == "dark")
    page.screenshot(path=tmp_path / f"{scheme}.png")  # kept with the run, to look at
    page.close()
    assert troubles == []
    assert [other for other in asked if not other.startswith((address, "data:", "blob:"))] == []


def test_search_works_from_a_disk_and_from_a_server(
    site: Path, address: str, browser: Browser
) -> None:
    for place in (site.as_uri() + "/", address):
        page = browser.new_page()
        page.set_default_timeout(100_000)
        troubles, asked = watch(page)
        page.goto(place + "index.html")
        page.locator("input.md-search__input").click()
        page.locator("input.md-search__input").press_sequentially("runbook")
        first = page.locator(".md-search-result__link").first
        first.wait_for(state="attached")
        assert "/runbook.html" in str(first.get_attribute("href"))
        page.close()
        assert troubles == []
        assert [one for one in asked if not one.startswith((place, "data:", "blob:"))] == []


def watch(page: Page) -> tuple[list[str], list[str]]:
    """Return lists that fill with the page's errors and with all that it asks for."""
    troubles: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    return troubles, asked
