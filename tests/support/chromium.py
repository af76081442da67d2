"""Debian's Chromium, in which tests open pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

from tests.support.required import unavailable

INSTALL = "There is no Chromium. Install it, e.g. with: apt-get install chromium-headless-shell"


def chromium_program() -> str | None:
    """Return the path of Debian's Chromium; None if none is installed.

    The shell has no window, and takes half of the CPU time of the browser that hides its own.
    """
    return shutil.which("chromium-headless-shell") or shutil.which("chromium")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Open a browser without a window; skip the test, or fail it, if the machine has none."""
    program = chromium_program()
    if program is None:
        unavailable(INSTALL)
    with sync_playwright() as playwright:
        # A container has no user namespaces for Chromium's sandbox.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()
