"""Writes the screenshots of the page in docs/images; needs Chromium. Run with `make screenshots`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.interfaces.server.process import serving
from tests.web.conftest import TRAVEL

IMAGES = Path(__file__).parents[1] / "docs" / "images"
WIDTH, HEIGHT = 1440, 820
WITHIN_MS = 60_000


def main() -> None:
    """Open the page of an agent without a provider, and photograph it."""
    program = shutil.which("chromium")
    if program is None:
        sys.exit("There is no Chromium. Install it, e.g. with: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        with serving(Path(folder), agent=TRAVEL, environment={"TRAVEL_PACE_S": "0.2"}) as served:
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
            page.goto(served.url)
            page.get_by_label("Message", exact=True).fill("Plan a trip to Bergen")
            page.keyboard.press("Enter")
            page.get_by_role("button", name="Send decisions").wait_for(timeout=WITHIN_MS)
            _write(page, "page-approval")
            page.get_by_role("button", name="Send decisions").click()
            page.locator("[role=status] .completed").wait_for(timeout=WITHIN_MS)
            page.get_by_role("button", name="search_flights").last.click()
            _write(page, "page")
            page.emulate_media(color_scheme="dark")
            _write(page, "page-dark")
            page.set_viewport_size({"width": 390, "height": HEIGHT})
            _write(page, "page-phone")
        browser.close()


def _write(page: Page, name: str) -> None:
    page.wait_for_timeout(300)  # the list of sessions is read once more
    page.screenshot(path=IMAGES / f"{name}.png")


if __name__ == "__main__":
    main()
