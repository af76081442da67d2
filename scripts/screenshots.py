"""Writes the screenshots of the page in docs/images; needs Chromium. Run with `make screenshots`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, FilePayload, Page, sync_playwright

from tests.interfaces.server.process import serving
from tests.support.chat_client import chat
from tests.web.conftest import TRAVEL
from tests.web.hotel_agent import HOTELS
from tests.web.office_agent import OFFICE
from tests.web.tea_agent import KEYS, TEA

IMAGES = Path(__file__).parents[1] / "docs" / "images"
WIDTH, HEIGHT = 1440, 820
WITHIN_MS = 60_000


SKY = "<body style='margin:0;height:220px;background:linear-gradient(#16305c,#e8875a 62%,#27404f 63%,#0e1a22)'>"
"""A picture to attach: a sunset over the sea."""


def main() -> None:
    """Open the pages of three agents without a provider, and photograph them."""
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if program is None:
        sys.exit("There is no Chromium. Install it, e.g. with: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        _travel(browser, Path(folder))
        _tea(browser, Path(folder))
        _office(browser, Path(folder))
        _hotels(browser, Path(folder))
        browser.close()


def _travel(browser: Browser, folder: Path) -> None:
    """Write the pictures of calls, decisions, the queue and attachments."""
    with serving(folder, agent=TRAVEL, environment={"TRAVEL_PACE_S": "0.4"}) as served:
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.set_content(SKY)
        sky: FilePayload = {
            "name": "fjord.png",
            "mimeType": "image/png",
            "buffer": page.screenshot(clip={"x": 0, "y": 0, "width": 320, "height": 220}),
        }
        plan: FilePayload = {
            "name": "timetable.pdf",
            "mimeType": "application/pdf",
            "buffer": b"%PDF-1.4" + bytes(90_000),
        }
        page.goto(served.url)
        message = page.get_by_label("Message", exact=True)
        message.fill("Plan a trip to Bergen")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="search_hotels, running", exact=True).wait_for(timeout=WITHIN_MS)
        page.locator(".reasoning summary").click()
        message.fill("I would rather go by train.")
        page.keyboard.press("Enter")
        message.fill("And what do I pack?")
        page.get_by_role("button", name="Follow up").click()
        page.get_by_role("button", name="Withdraw: And what do I pack?").wait_for(timeout=WITHIN_MS)
        _write(page, "page-queue")
        page.get_by_role("button", name="Withdraw: And what do I pack?").click()
        page.locator("[role=status] .completed").wait_for(timeout=WITHIN_MS)
        page.goto(served.url)
        message.fill("Plan a trip to Bergen")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Send decisions").wait_for(timeout=WITHIN_MS)
        _write(page, "page-approval")
        page.get_by_role("button", name="Send decisions").click()
        page.locator("[role=status] .completed").wait_for(timeout=WITHIN_MS)
        page.get_by_role("button", name="search_flights").last.click()
        _write(page, "page")
        page.goto(served.url)
        page.get_by_label("Files to attach").set_input_files([sky])
        message.fill("Where was this photo taken?")
        page.keyboard.press("Enter")
        page.locator("[role=status] .completed").wait_for(timeout=WITHIN_MS)
        page.get_by_label("Files to attach").set_input_files([plan])
        message.fill("Which of these trains goes there?")
        page.get_by_text("Filter").click()
        _write(page, "page-attachments")


def _tea(browser: Browser, folder: Path) -> None:
    """Write the pictures of sources and facts."""
    keys = ",".join(f"{name}:{key}" for name, key in KEYS.items())
    agent = {**TEA, "model": "tests.web.tea_agent:make_for_pictures"}
    (folder / "tea").mkdir()
    with serving(folder / "tea", agent=agent, environment={"GRAPH_AGENT_API_KEYS": keys}) as served:
        with served.http(headers={"x-api-key": KEYS["alice"]}) as http:
            chat(http, "monday", "I live in Bergen, and drink tea with milk, no coffee.", model="tea")
            chat(http, "tuesday", "Which tea grows in Assam?", model="tea")
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(f"{served.url}/#tuesday")
        page.get_by_label("API key").fill(KEYS["alice"])
        page.keyboard.press("Enter")
        page.locator(".recalled summary").click()
        page.locator(".recalled li").first.wait_for(timeout=WITHIN_MS)
        page.get_by_role("button", name="Good answer").click()
        page.get_by_role("button", name="Add to evaluation").wait_for(timeout=WITHIN_MS)
        _write(page, "page-sources")
        page.get_by_role("button", name="Memory").click()
        page.get_by_role("button", name="Forget: Lives in Bergen.").wait_for(timeout=WITHIN_MS)
        page.mouse.move(0, 0)
        _write(page, "page-memory")


def _office(browser: Browser, folder: Path) -> None:
    """Write the picture of a question with the origins of arguments."""
    (folder / "office").mkdir()
    with serving(folder / "office", agent=OFFICE) as served:
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(served.url)
        page.get_by_label("Message", exact=True).fill("What does mail 7 want?")
        page.keyboard.press("Enter")
        page.locator(".origins").first.wait_for(timeout=WITHIN_MS)
        _write(page, "page-origins")


def _hotels(browser: Browser, folder: Path) -> None:
    """Write the picture of calls that begin early."""
    (folder / "hotels").mkdir()
    with serving(folder / "hotels", agent=HOTELS) as served:
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(served.url)
        message = "Find a hotel with breakfast in Bergen, and hold a room. Do I need an umbrella?"
        page.get_by_label("Message", exact=True).fill(message)
        page.keyboard.press("Enter")
        page.locator("[role=status] .completed").wait_for(timeout=WITHIN_MS)
        page.get_by_role("button", name="details").first.click()
        _write(page, "page-early")


def _write(page: Page, name: str) -> None:
    """Write the page as `NAME.png` in its light theme, and as `NAME-dark.png` in its dark one."""
    page.wait_for_timeout(300)  # the list of sessions is read once more
    page.screenshot(path=IMAGES / f"{name}.png")
    page.emulate_media(color_scheme="dark")
    page.screenshot(path=IMAGES / f"{name}-dark.png")
    page.emulate_media(color_scheme="light")


if __name__ == "__main__":
    main()
