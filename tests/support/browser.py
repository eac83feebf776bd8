"""A headless Chromium that opens pages, and what it has requested and complained about."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
DESKTOP = 1280  # pixels of the window's width
PHONE = 390


class Browser:
    """One tab of a browser."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.run = driver.execute_script

    def open(self, page: Path, *, width: int = DESKTOP, dark: bool = False) -> None:
        """Open a file in a window of this width, in light or dark mode."""
        self.complaints()
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.prefer("dark" if dark else "light")
        self.driver.get(page.as_uri())
        # the charts are drawn after the first layout
        wait = "const done = arguments[0]; requestAnimationFrame(() => setTimeout(done, 50));"
        self.driver.execute_async_script(wait)

    def prefer(self, scheme: str) -> None:
        """Set the color scheme that the user prefers: light or dark."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def complaints(self) -> list[str]:
        """The console's errors and warnings since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> set[str]:
        """The schemes of all addresses that the page has requested."""
        schemes = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            request = message["params"]
            is_request = message["method"] == "Network.requestWillBeSent"
            if is_request and request["documentURL"] == self.driver.current_url:
                schemes.add(request["request"]["url"].partition(":")[0])
        return schemes

    def texts(self, selector: str) -> list[str]:
        """The texts of the elements that a CSS selector finds."""
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        return list(self.run(script, selector))

    def click(self, selector: str) -> None:
        """Click on the first element that a CSS selector finds."""
        self.run("document.querySelector(arguments[0]).click()", selector)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a list."""
        script = """
            const list = document.querySelector(arguments[0]);
            list.value = arguments[1];
            list.dispatchEvent(new Event("change"));
        """
        self.run(script, selector, value)

    def keys(self, selector: str, *keys: str) -> None:
        """Type keys into an element."""
        self.driver.find_element("css selector", selector).send_keys(*keys)

    def hover(self, selector: str, share: float = 0.5) -> None:
        """Move the pointer over an element, to a share of its width."""
        actions = pytest.importorskip("selenium.webdriver").ActionChains
        element = self.driver.find_element("css selector", selector)
        self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        offset = round((share - 0.5) * element.size["width"])
        actions(self.driver).move_to_element_with_offset(element, offset, 0).perform()


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start a browser with an empty profile; skip the test if there is none.

    Needs the package selenium, and Debian's chromium and chromium-driver or the like.
    """
    webdriver = pytest.importorskip("selenium.webdriver", reason="a development requirement")
    service = pytest.importorskip("selenium.webdriver.chrome.service")
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    driver_program = shutil.which("chromedriver")
    if program is None or driver_program is None:
        pytest.skip("no Chromium with its chromedriver on this machine")

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.add_experimental_option("perfLoggingPrefs", {"enablePage": False})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=service.Service(driver_program))
    try:
        driver.set_script_timeout(30)
        yield Browser(driver)
    finally:
        driver.quit()
