"""Reports in a real browser: nothing is loaded, logged or run, nothing scrolls sideways, and axe finds nothing serious.

Needs Chromium (Debian's `chromium`, or the path in CHROMIUM) and Python's `playwright`; the accessibility checks need
axe-core (`npm install axe-core` in this folder or a parent, or the path of axe.min.js in AXE_CORE).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "reports"))
from fake_records import HOSTILE, audit_record, rounds_file

from gradleak.reports.page import draw
from gradleak.reports.rounds import rounds_record

pytestmark = pytest.mark.browser
SYNC = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install playwright)")
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PAGES = ("audit", "revealed", "hostile", "rounds", "large", "example")
WIDTHS, SCHEMES = (360, 1280), ("light", "dark")
EXAMPLE = Path(__file__).parents[2] / "docs" / "example-report.html"


def chromium() -> str | None:
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def axe() -> Path | None:
    places = [Path(folder) / "node_modules" / "axe-core" / "axe.min.js" for folder in Path(__file__).resolve().parents]
    if os.environ.get("AXE_CORE"):
        places.insert(0, Path(os.environ["AXE_CORE"]))
    return next((place for place in places if place.is_file()), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = chromium()
    if path is None:
        pytest.skip("no Chromium was found: apt-get install chromium, or give its path in CHROMIUM")
    arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with SYNC.sync_playwright() as started:
        found = started.chromium.launch(executable_path=path, args=arguments)
        yield found
        found.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    drawn = {
        "audit": draw(audit_record()),
        "revealed": draw(audit_record(reveal=True)),
        "hostile": draw(audit_record(reveal=True, texts=HOSTILE)),
        "rounds": draw(rounds_record(rounds_file(folder, text=HOSTILE[0]), reveal=True)),
        "large": draw(audit_record(settings=200, sentences=2_000)),
        "example": EXAMPLE.read_text(encoding="utf-8") if EXAMPLE.exists() else draw(audit_record()),
    }
    for name, content in drawn.items():
        (folder / f"{name}.html").write_text(content, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in drawn}


class Visit:
    """A page that is open, and what it has logged and asked for."""

    def __init__(self, browser: Any, path: Path, width: int, scheme: str) -> None:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = context.new_page()
        self.logged: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self.page.on("console", lambda message: self.logged.append(message.text))
        self.page.on("pageerror", lambda error: self.logged.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))
        self.page.goto(path.as_uri(), wait_until="load")

    def close(self) -> None:
        self.page.context.close()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_page_is_quiet_and_fits(browser: Any, pages: dict[str, Path], name: str, width: int, scheme: str) -> None:
    visit = Visit(browser, pages[name], width, scheme)
    try:
        assert visit.logged == []
        assert visit.dialogs == []
        assert visit.requests == [pages[name].as_uri()]
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        assert visit.page.title().startswith(("Leakage audit", "Audit of"))
    finally:
        visit.close()


@pytest.mark.parametrize("name", ["hostile", "rounds"])
def test_hostile_text_is_inert(browser: Any, pages: dict[str, Path], name: str) -> None:
    visit = Visit(browser, pages[name], 1280, "light")
    try:
        assert visit.page.title() != "run"
        assert visit.page.evaluate("document.querySelectorAll('script, img, iframe, [onload], [onerror]').length") == 0
        assert visit.page.evaluate("document.querySelectorAll('style').length") == 1
        assert visit.page.evaluate("getComputedStyle(document.body).display") != "none"
        assert "<script>document.title='run'</script>" in visit.page.inner_text("main")
    finally:
        visit.close()


@pytest.mark.parametrize("scheme", [*SCHEMES, "print"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious(browser: Any, pages: dict[str, Path], name: str, scheme: str) -> None:
    script = axe()
    if script is None:
        pytest.skip("axe-core was not found: npm install axe-core, or give the path of axe.min.js in AXE_CORE")
    visit = Visit(browser, pages[name], 1280, "dark" if scheme == "dark" else "light")
    try:
        if scheme == "print":
            visit.page.emulate_media(media="print")
        visit.page.context.set_default_timeout(60_000)
        visit.page.evaluate(script.read_text(encoding="utf-8"))  # by the debugger: the page's policy allows no script
        found = visit.page.evaluate("axe.run({resultTypes: ['violations']})")
        serious = [
            (rule["id"], rule["nodes"][0]["html"][:200], rule["nodes"][0].get("failureSummary"))
            for rule in found["violations"]
            if rule["impact"] in ("serious", "critical")
        ]
        assert serious == []
    finally:
        visit.close()


@pytest.mark.parametrize("name", PAGES)
def test_page_prints_to_a4(browser: Any, pages: dict[str, Path], name: str) -> None:
    visit = Visit(browser, pages[name], 1280, "dark")
    try:
        content = visit.page.pdf(prefer_css_page_size=True)
        assert content.startswith(b"%PDF")
        assert b"/MediaBox [0 0 594" in content or b"/MediaBox [0 0 595" in content
        visit.page.emulate_media(media="print")
        visit.page.set_viewport_size({"width": 680, "height": 960})  # A4 within its margins
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 680
        assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    finally:
        visit.close()


def test_page_can_be_used_by_keyboard(browser: Any, pages: dict[str, Path]) -> None:
    visit = Visit(browser, pages["audit"], 360, "light")
    try:
        visit.page.keyboard.press("Tab")
        assert visit.page.evaluate("document.activeElement.getAttribute('href')") == "#verdict"
        visit.page.keyboard.press("Tab")
        assert visit.page.evaluate("document.activeElement.getAttribute('role')") == "region"
    finally:
        visit.close()
