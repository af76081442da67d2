"""Debian's Chromium, in which tests open pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

from tests.support.required import unavailable


@contextmanager
def chromium() -> Iterator[Browser]:
    """Open a browser without a window; skip the test, or fail it, if the machine has none."""
    program = shutil.which("chromium")
    if program is None:
        unavailable("There is no Chromium. Install it, e.g. with: apt-get install chromium")
    with sync_playwright() as playwright:
        # A container has no user namespaces for Chromium's sandbox.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()
