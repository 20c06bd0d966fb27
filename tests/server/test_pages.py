"""The pages in a real browser: headless Chromium, driven by Playwright.

Without JavaScript, without a request that leaves the host, in light and dark. Screenshots go to
the folder that HOLDFAST_SCREENSHOTS names, else to the test's own.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

import holdfast
import servers
from conftest import skip_without
from holdfast.server import Role, new_secret, token_line
from server.serving import ServerProcess, rows_of, serving

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TOKEN = new_secret()
HOSTILE = "<script>document.title='owned'</script><img src=http://evil.test/x>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = servers.find_program("chromium")
    skip_without(None if program else "chromium is not installed: the pages cannot be looked at")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("pages")
    root = folder / "root"
    fill(root)
    with serving(root, log=folder / "log") as running:
        client = running.client()
        for number in range(30):
            client.insert("events", rows_of([number]), txn=f"page/{number}")
        client.close()
        yield running


def fill(root: Path) -> None:
    import pyarrow as pa

    plain = holdfast.create_table(root / "events.lance", rows_of([]).schema, commit_store="sqlite")
    plain.append(rows_of(range(100), HOSTILE))
    plain.close()
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    logged = holdfast.create_table(root / "sensors" / "wind.lance", schema, primary_key=["id"])
    logged.append([{"id": 1, "text": "gale"}], txn=("spark-job", 7))
    logged.create_index("text")
    with logged.claim_writer("unsharded") as writer:
        writer.put([{"id": 2, "text": "breeze"}])
        writer.close(flush=False)
    logged.append([{"id": 3, "text": "calm"}])  # the index lacks it
    stray = holdfast.create_table(root / "stray.lance", schema, commit_store="sqlite")
    stray.close()
    lance.write_dataset(rows_of([1]), root / "stray.lance", mode="append")  # past Holdfast
    broken = holdfast.create_table(root / "broken.lance", schema)
    broken.close()
    for manifest in (root / "broken.lance" / "_versions").iterdir():
        manifest.write_bytes(b"no manifest")


def keep(page: Page, name: str, folder: Path) -> None:
    """Keep a picture of a page."""
    place = Path(os.environ.get("HOLDFAST_SCREENSHOTS", folder))
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{name}.png"
    page.screenshot(path=path, full_page=True)
    assert path.stat().st_size > 10_000


class Watched:
    """A page, what it asked for, and what went wrong in it."""

    def __init__(self, browser: Browser, **settings: Any) -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 900}, **settings)
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", self._asked)
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _asked(self, request: Request) -> None:
        self.requests.append(request.url)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.errors.append(message.text)

    def end(self, url: str) -> None:
        """Close it; nothing left the host, nothing was complained about."""
        assert self.requests
        assert all(one.startswith((url, "data:")) for one in self.requests)
        assert self.errors == []
        self.context.close()


@pytest.mark.requirement("N3")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
def test_the_pages_show_the_tables(
    browser: Browser, server: ServerProcess, tmp_path: Path, scheme: str, scripts: bool
) -> None:
    dark: Any = scheme
    watched = Watched(browser, color_scheme=dark, java_script_enabled=scripts)
    page = watched.page
    page.goto(server.url)
    assert page.title() == "Tables · Holdfast"
    text = page.inner_text("table")
    assert "events" in text and "sensors.wind" in text and "commit-store" in text
    assert "cannot be read" in page.inner_text("tr:has-text('broken')")
    keep(page, f"tables-{scheme}", tmp_path)
    page.click("text=sensors.wind")
    whole = page.inner_text("main")
    for shown in ("spark-job:7", "text_idx", "gale", "breeze", "primary key", "RestNamespace"):
        assert shown in whole, shown
    keep(page, f"log-table-{scheme}", tmp_path)
    page.goto(f"{server.url}/table/events")
    assert page.title() == "events · Holdfast"  # what rows hold is text, and never runs
    assert HOSTILE[:40] in page.inner_text("main")
    assert "page:29" in page.inner_text(".timeline")
    page.click("text=older")
    assert "page:29" not in page.inner_text(".timeline")
    assert "Overwrite" in page.inner_text(".timeline")
    keep(page, f"table-{scheme}", tmp_path)
    if scripts:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert colour == ("rgb(14, 21, 20)" if scheme == "dark" else "rgb(251, 252, 252)")
    watched.end(server.url)


@pytest.mark.requirement("N3")
def test_the_keyboard_and_a_screen_reader_find_their_way(
    browser: Browser, server: ServerProcess
) -> None:
    watched = Watched(browser)
    page = watched.page
    page.goto(f"{server.url}/table/sensors$wind")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert page.get_by_role("main").count() == 1
    assert page.get_by_role("heading", level=1).inner_text() == "sensors.wind"
    assert page.get_by_role("navigation", name="You are here").count() == 1
    assert page.get_by_role("img", name="Commits per second").count() == 1
    unnamed = "[...document.querySelectorAll('img:not([alt]),svg:not([aria-label])')].length"
    assert page.evaluate(unnamed) == 0
    page.set_viewport_size({"width": 390, "height": 800})
    wide = "document.documentElement.scrollWidth > window.innerWidth"
    assert page.evaluate(wide) is False
    watched.end(server.url)


@pytest.mark.requirement("N3")
@pytest.mark.parametrize("name", ["sensors/wind", "stray"])
def test_a_tables_page_shows_what_holdfast_status_shows(
    browser: Browser, server: ServerProcess, name: str
) -> None:
    table = holdfast.open_table(Path(server.root) / f"{name}.lance")
    status = table.status()
    table.close()
    assert status.alerts or status.wants
    watched = Watched(browser)
    page = watched.page
    page.goto(f"{server.url}/table/{name.replace('/', '$')}")
    whole = page.inner_text("main")
    for alert in status.alerts:
        assert alert.what in whole and alert.command in whole
    for want in status.wants:
        assert want.what in whole and want.cost in whole and want.command in whole
    for shard in status.shards:
        assert shard.shard in whole and str(shard.owner) in whole
    page.goto(server.url)
    state = page.inner_text(f"tr:has-text('{name.replace('/', '.')}')")
    assert ("foreign" if status.alerts else "in order") in state
    watched.end(server.url)


@pytest.mark.requirement("N3")
def test_what_a_page_tells_to_copy_runs(browser: Browser, server: ServerProcess) -> None:
    watched = Watched(browser)
    page = watched.page
    page.goto(f"{server.url}/table/sensors$wind")
    texts = dict(
        zip(
            page.locator("#use ~ h3").all_inner_texts(),
            page.locator("#use ~ pre").all_inner_texts(),
            strict=True,
        )
    )
    watched.end(server.url)
    for name in ("pylance", "LanceDB"):
        names: dict[str, Any] = {}
        exec(texts[name], names)
        assert names["table"].count_rows() >= 2
    done = subprocess.run(["bash", "-ec", texts["curl"]], capture_output=True, text=True)  # noqa: PLW1510
    assert done.returncode == 0
    assert '"num_inserted_rows":1' in done.stdout and '"text":"text"' in done.stdout
    assert texts["Spark"].endswith(f'.load("{server.root}/sensors/wind.lance")')


@pytest.mark.requirement("N3")
def test_doctors_findings_come_with_their_age(browser: Browser, server: ServerProcess) -> None:
    watched = Watched(browser)
    page = watched.page
    for _ in range(200):
        page.goto(f"{server.url}/table/events")
        if page.locator("text=What doctor found").count():
            break
        page.wait_for_timeout(100)
    assert "healthy" in page.inner_text("main")
    assert "objects now" in page.inner_text("main")
    age = page.inner_text("#checks + p")
    assert "ago" in age or "just now" in age
    watched.end(server.url)


@pytest.mark.requirement("N3")
def test_a_token_opens_the_pages_and_nothing_else(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "tokens").write_text(token_line(TOKEN, Role.READ, "eve"))
    arguments = ("--token-file", str(tmp_path / "tokens"))
    with serving(tmp_path / "root", *arguments, log=tmp_path / "log") as server:
        watched = Watched(browser)
        page = watched.page
        page.goto(server.url)
        assert page.url == f"{server.url}/login"
        keep(page, "login", tmp_path)
        assert str(tmp_path) not in page.content()
        page.fill("#token", "wrong")
        page.click("text=Log in >> nth=-1")
        assert "no token of this server" in page.inner_text("main")
        watched.errors.clear()  # the browser notes the 401
        page.fill("#token", TOKEN)
        page.keyboard.press("Enter")
        page.wait_for_url(f"{server.url}/")
        (cookie,) = watched.context.cookies()
        assert cookie["httpOnly"] is True and cookie["sameSite"] == "Strict"
        assert TOKEN not in cookie["value"]
        client = server.client()
        called = cookie["name"]
        given = {"cookie": f"{called}={cookie['value']}"}
        assert client.get("/", **given).status == 200
        assert client.post("/v1/namespace/$/list", b"", **given).status == 401
        assert client.get("/metrics", **given).status == 401
        name, expiry, signature = cookie["value"].split(":")
        late = f"{name}:{int(expiry) + 1}:{signature}"
        for forged in (late, f"{name}:{expiry}:{'0' * 64}", "x", f"{name}:1:{signature}"):
            assert client.get("/", cookie=f"{called}={forged}").status == 303
        assert client.post("/", b"", **given).status == 405
        client.close()
        page.click("text=Log out")
        assert page.url == f"{server.url}/login"
        page.goto(server.url)
        assert page.url == f"{server.url}/login"
        watched.end(server.url)
    assert TOKEN not in (tmp_path / "log").read_text()


def test_who_logs_in_to_a_second_server_of_the_host_stays_in_the_first(
    tmp_path: Path, browser: Browser
) -> None:
    def options(name: str) -> tuple[str, str]:
        return "--token-file", str(tmp_path / f"tokens-{name}")

    secrets = (new_secret(), new_secret())
    for number, secret in enumerate(secrets):
        (tmp_path / f"tokens-{number}").write_text(token_line(secret, Role.READ, "eve"))
    with (
        serving(tmp_path / "a", *options("0"), log=tmp_path / "log-a") as first,
        serving(tmp_path / "b", *options("1"), log=tmp_path / "log-b") as second,
    ):
        watched = Watched(browser)
        page = watched.page
        for server, secret in zip((first, second), secrets, strict=True):
            page.goto(server.url)
            page.fill("#token", secret)
            page.keyboard.press("Enter")
            page.wait_for_url(f"{server.url}/")
        page.goto(first.url)
        assert page.url == f"{first.url}/"
        page.click("text=Log out")
        page.wait_for_url(f"{first.url}/login")
        page.goto(second.url)
        assert page.url == f"{second.url}/"
        watched.context.close()
