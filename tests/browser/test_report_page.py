"""The page of a run in a real browser: a headless Chromium, driven by selenium. Skipped where they aren't installed.

`DDP_RUN_SCREENSHOTS=FOLDER` keeps a picture of each page.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.loaded_process import COMMAND
from tests.made_run import HOSTILE, SECRET, made_run
from tests.process.test_report import DDP_RUN
from tests.waiting import limit

selenium = pytest.importorskip("selenium", reason="selenium isn't installed")
CHROMIUM, DRIVER = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow_system,
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="needs chromium and chromedriver"),
]
AXE = "axe-core@4.10"
CASES = ("one", "failure", "many", "hang", "retry", "nodes", "success", "torn", "log")
OPENS_WITHIN_S = 2.0
LARGEST = 5 << 20
LISTENS = """
window.seen = [];
document.addEventListener("securitypolicyviolation", (event) => seen.push(event.violatedDirective));
addEventListener("error", (event) => seen.push(event.message));
window.alert = (text) => seen.push("alert " + text);
"""


class Browser:
    """A Chromium. `open` looks at a page as on a screen of that size."""

    def __init__(self) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = str(CHROMIUM)
        for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(word)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver: Any = webdriver.Chrome(options=options, service=Service(DRIVER))
        self.ask("Page.addScriptToEvaluateOnNewDocument", source=LISTENS)

    def ask(self, command: str, **arguments: object) -> Any:
        return self.driver.execute_cdp_cmd(command, arguments)

    def open(self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False, media: str = "") -> float:
        """Seconds that it took."""
        self.ask(
            *("Emulation.setDeviceMetricsOverride",),
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", media=media, features=[scheme])
        begun = time.monotonic()
        self.driver.get(page.as_uri())
        return time.monotonic() - begun

    def eval(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def picture(self, path: Path, height: int = 8000) -> None:
        """The whole page as it is now."""
        size = self.eval("return [innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": min(size[1], height), "scale": 1}
        shot = self.ask("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.driver.quit()


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text of axe-core, which checks accessibility."""
    folder = tmp_path_factory.mktemp("axe")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm isn't installed, so there is no axe-core")
    done = subprocess.run([npm, "pack", AXE], cwd=folder, capture_output=True, text=True, timeout=limit(120))
    if done.returncode != 0:
        pytest.skip(f"axe-core can't be had: {done.stderr.strip()[-200:]}")
    with tarfile.open(next(folder.glob("*.tgz"))) as packed:
        script = packed.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("pages")
    runs = root / "runs"
    made_run(runs / "20261127-100000-0000", ranks=2, end="success")
    made = {
        "one": made_run(runs / "20261127-100000-0001", ranks=1, end="failure"),
        "failure": made_run(runs / "20261127-100000-0002", ranks=8, end="failure"),
        "many": made_run(runs / "20261127-100000-0003", ranks=512, end="failure"),
        "hang": made_run(runs / "20261127-100000-0004", ranks=8, end="hang"),
        "retry": made_run(runs / "20261127-100000-0005", ranks=8, end="failure", attempts=3),
        "success": made_run(runs / "20261127-100000-0006", ranks=8, end="success"),
        "torn": made_run(runs / "20261127-100000-0007", ranks=8, end="failure", torn=True),
    }
    found = {}
    for name, folder in made.items():
        assert COMMAND.run(DDP_RUN, "report", str(folder), cwd=root).returncode == 0
        found[name] = folder / "report.html"
    nodes = [str(made_run(root / f"n{n}" / "r", ranks=8, end="failure", nodes=2, node=n)) for n in range(2)]
    (root / "torchrun.log").write_text(f"Traceback (most recent call last):\nValueError: {HOSTILE}\n")
    for name, words in (("nodes", nodes), ("log", ["torchrun.log"])):
        found[name] = root / f"{name}.html"
        assert COMMAND.run(DDP_RUN, "report", *words, "-o", str(found[name]), cwd=root).returncode == 0
    return found


@pytest.mark.parametrize("case", CASES)
def test_it_opens_and_nothing_is_refused(browser: Browser, pages: dict[str, Path], case: str) -> None:
    assert pages[case].stat().st_size < LARGEST
    assert min(browser.open(pages[case]) for _ in range(2)) < OPENS_WITHIN_S
    assert browser.eval("return window.seen") == []
    assert browser.driver.get_log("browser") == []
    assert browser.eval("return document.images.length + document.querySelectorAll('b, iframe, object').length") == 0
    text = browser.eval("return document.body.textContent")
    assert "</script><img src=x onerror=" in text or case in ("torn", "success")
    assert SECRET not in text
    if folder := os.environ.get("DDP_RUN_SCREENSHOTS"):
        browser.picture(Path(folder) / f"{case}.png")


@pytest.mark.parametrize("case", CASES)
def test_a_phone_shows_it_without_scrolling_sideways(browser: Browser, pages: dict[str, Path], case: str) -> None:
    browser.open(pages[case], width=390, height=844)
    assert browser.eval("return document.documentElement.scrollWidth") <= 390
    browser.eval("for (const each of document.querySelectorAll('details')) each.open = true")
    assert browser.eval("return document.documentElement.scrollWidth") <= 390
    if folder := os.environ.get("DDP_RUN_SCREENSHOTS"):
        browser.picture(Path(folder) / f"{case}-phone.png")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("case", CASES)
def test_axe_finds_nothing(browser: Browser, pages: dict[str, Path], axe: str, case: str, dark: bool) -> None:
    browser.open(pages[case], dark=dark)
    browser.eval("for (const each of document.querySelectorAll('details')) each.open = true")
    browser.driver.set_script_timeout(limit(60))
    browser.eval(axe)
    found = browser.driver.execute_async_script("axe.run().then(arguments[0])")
    told = [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found["violations"]]
    assert told == []
    assert len(found["passes"]) > 10
    if folder := os.environ.get("DDP_RUN_SCREENSHOTS"):
        browser.picture(Path(folder) / f"{case}-{'dark' if dark else 'light'}-open.png")


def test_dark_mode_is_dark(browser: Browser, pages: dict[str, Path]) -> None:
    shades = []
    for dark in (False, True):
        browser.open(pages["failure"], dark=dark)
        shades.append(browser.eval("return getComputedStyle(document.body).backgroundColor"))
    assert shades == ["rgb(255, 255, 255)", "rgb(20, 23, 27)"]


def test_print_shows_all_and_no_buttons(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["failure"], media="print")
    assert browser.eval("return [...document.querySelectorAll('button')].every((b) => !b.checkVisibility())")
    printed = browser.ask("Page.printToPDF")
    assert len(base64.b64decode(printed["data"])) > 10_000
    assert browser.eval("return [...document.querySelectorAll('details')].every((each) => each.open)")


def test_it_can_be_read_without_script(browser: Browser, pages: dict[str, Path]) -> None:
    browser.ask("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(pages["failure"])
        text = browser.driver.find_element("tag name", "body").text
        assert "rank 1 raised OSError" in text
        assert "In which order ranks failed" in text
        assert "Copy as Markdown" not in text
    finally:
        browser.ask("Emulation.setScriptExecutionDisabled", value=False)


def test_the_buttons(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["failure"])
    permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    browser.ask("Browser.grantPermissions", permissions=permissions)
    browser.driver.find_element("id", "copy").click()
    copied = browser.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0], arguments[0])")
    assert copied.startswith("### error[DDP600]: rank 1 raised OSError")
    assert "\n```text\n" in copied
    before = browser.eval("return document.querySelector('.lanes svg').getBoundingClientRect().width")
    browser.driver.find_element("css selector", ".zoom [data-zoom='1']").click()
    assert browser.eval("return document.querySelector('.lanes svg').getBoundingClientRect().width") == 2 * before
    browser.driver.find_element("id", "filter").send_keys("step 199")
    shown = "return [...document.querySelectorAll('.log .line')].filter((each) => each.checkVisibility()).length"
    assert 0 < browser.eval(shown) < 10
    assert browser.eval("return window.seen") == []


def test_keys_reach_everything(browser: Browser, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser.open(pages["failure"])
    reached = set()
    for _ in range(80):
        ActionChains(browser.driver).send_keys(Keys.TAB).perform()
        reached.add(browser.eval("const e = document.activeElement; return e.id || e.localName + '.' + e.className"))
    assert {"copy", "summary.", "filter", "a.", "div.scroll", "pre.block"} <= reached
