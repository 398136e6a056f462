"""A real browser for tests of pages: Debian's Chromium without a window, and the accessibility engine axe.

A missing browser fails the test: the pages are what users look at, so a suite that passes has looked at them too.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService

DESKTOP = (1100, 800)
PHONE = (360, 740)
IMAGES_VARIABLE = "GRISTMILL_DOCS_IMAGES"
"""Set to 1, the tests write the screenshots of the documentation into docs/images/."""
IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"


class Browser:
    """A window without a screen. It reaches files and this machine, and no other: a page that asks fails its test.

    Attributes:
        driver: Selenium's driver, for what is not wrapped here.
    """

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, address: str | Path, *, size: tuple[int, int] = DESKTOP, dark: bool = False) -> None:
        """Load a page in a window of this size (CSS pixels), in the light or the dark scheme."""
        self.look(size=size, dark=dark)
        self.driver.get_log("browser")  # forget what other pages have said
        self.driver.get(Path(address).resolve().as_uri() if "://" not in str(address) else str(address))

    def look(self, *, size: tuple[int, int] = DESKTOP, dark: bool = False) -> None:
        """Change the size and the scheme of the open page."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        # Without movement, so that neither axe nor a screenshot meets a colour halfway.
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme, still]})

    def run(self, script: str, *values: Any) -> Any:
        """What a script in the page returns; its `arguments` are the values."""
        return self.driver.execute_script(script, *values)

    def text(self, selector: str) -> str:
        """The text of the first element, as a reader sees it."""
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements."""
        found = self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)", selector)
        return [str(one) for one in found]

    def problems(self) -> list[str]:
        """Errors and warnings in the console since the page was opened, and refused requests."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]

    def requests(self) -> list[str]:
        """Every address that the page has loaded, its own left out."""
        return [str(name) for name in self.run("return performance.getEntriesByType('resource').map(e => e.name)")]

    def violations(self) -> list[str]:
        """What axe finds wrong with the page as it stands: the rule, the element and the reason."""
        engine = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
        # Not by a tag: a strict Content-Security-Policy would refuse it.
        self.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": engine})
        expression = "axe.run(document).then(found => JSON.stringify(found.violations))"
        asked = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        found = json.loads(self.driver.execute_cdp_cmd("Runtime.evaluate", asked)["result"]["value"])
        return [f"{one['id']}: {node['html']}: {node['failureSummary']}" for one in found for node in one["nodes"]]

    def is_wider_than_window(self) -> bool:
        """Whether the page has to be scrolled sideways."""
        return bool(self.run("return document.documentElement.scrollWidth > window.innerWidth"))

    def picture(self, name: str, *, height: int | None = None, top: int = 0) -> bytes:
        """A screenshot (PNG) as wide as the window, from `top` on; kept in docs/images/ when asked by the variable.

        Args:
            name: The file's name without its ending.
            height: How much of the page; the whole page by default.
            top: Where it begins.
        """
        width = self.run("return window.innerWidth")
        whole = self.run("return document.documentElement.scrollHeight")
        clip = {"x": 0, "y": top, "width": width, "height": height or whole - top, "scale": 1}
        asked = {"format": "png", "clip": clip, "captureBeyondViewport": True, "optimizeForSpeed": False}
        data = base64.b64decode(self.driver.execute_cdp_cmd("Page.captureScreenshot", asked)["data"])
        if os.environ.get(IMAGES_VARIABLE) == "1":
            IMAGES.mkdir(exist_ok=True)
            (IMAGES / f"{name}.png").write_bytes(data)
        return data


@contextmanager
def opened_browser() -> Iterator[Browser]:
    """A browser of its own, ended afterwards."""
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.fail("The tests of pages need a browser: apt-get install chromium chromium-driver")
    options = ChromeOptions()
    options.binary_location = chromium
    for one in (
        "--headless=new",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--force-color-profile=srgb",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
    ):
        options.add_argument(one)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium refuses to start as root otherwise
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=ChromeService(executable_path=chromedriver))
    try:
        driver.set_script_timeout(60)
        yield Browser(driver)
    finally:
        driver.quit()
