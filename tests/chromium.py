"""Chromium without a window, for tests of pages; Debian's packages chromium and chromium-driver have it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

__all__ = ["browser", "needs_chromium"]

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
DRIVER = shutil.which("chromedriver")
needs_chromium = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no browser: apt-get install chromium chromium-driver runs these tests"
)


@contextmanager
def browser(profile: Path) -> Iterator[Any]:
    """Yield the driver of a browser of 1200 x 900 pixels that reaches loopback and files only.

    Args:
        profile: An empty folder for its files.
    """
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        "--headless=new",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-default-apps",
        "--disable-extensions",
        "--disable-sync",
        "--no-proxy-server",
        "--force-prefers-reduced-motion",  # a click waits for no smooth scrolling
        "--window-size=1200,900",
        f"--user-data-dir={profile}",
        "--no-sandbox",  # which root and many containers cannot have
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(30)
    try:
        yield driver
    finally:
        driver.quit()
