"""The page shows where the arguments of a call come from."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from tests.interfaces.server.process import serving
from tests.web.office_agent import OFFICE


def test_a_question_and_the_details_of_a_call_show_the_origin_of_each_argument(page: Page, tmp_path: Path) -> None:
    found = [f"{name} from read_mail, call c1, body, in prose, untrusted" for name in ("account", "amount")]
    with serving(tmp_path, agent=OFFICE) as served:
        page.goto(served.url)
        page.get_by_label("Message", exact=True).fill("What does mail 7 want?")
        page.keyboard.press("Enter")
        expect(page.locator(".approval .origins li.untrusted")).to_have_text(found)
        page.get_by_role("button", name="Send decision").click()
        page.locator("[role=status] .completed").wait_for()
        page.get_by_role("button", name="pay").last.click()

        expect(page.locator(".detail .origins li")).to_have_text(found)
