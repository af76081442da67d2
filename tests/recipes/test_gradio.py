"""The Gradio recipe in Chromium, with two users."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.interfaces.server.process import Served
from tests.support.doc_pages import ROOT, read_blocks
from tests.support.openai_stub import OpenAIStub, StubFactory
from tests.support.recipe_pages import BOOK, Held, new_tab, running_recipe


@dataclass
class Gradio:
    """The recipe that is served, and its provider."""

    served: Served
    stub: OpenAIStub
    browser: Browser

    def page_of(self, user: str) -> Page:
        """Log a user in, in a browser of their own."""
        page = new_tab(self.browser, self.served.url)
        page.get_by_label("username").fill(user)
        page.get_by_label("password").fill(f"{user}'s password")
        page.get_by_role("button", name="Login").click()
        expect(box(page)).to_be_visible()
        return page


def box(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message")


def send(page: Page, text: str) -> None:
    box(page).fill(text)
    box(page).press("Enter")


def bubbles(page: Page) -> Locator:
    return page.get_by_test_id("user").or_(page.get_by_test_id("bot"))


@pytest.fixture
def gradio(tmp_path: Path, openai_stub: StubFactory, browser: Browser) -> Iterator[Gradio]:
    stub, quiet = openai_stub(), {"PORT": "0", "GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1"}
    command = ("-m", "examples.gradio_chat.app")
    with running_recipe("gradio", tmp_path, stub, *command, listens="Uvicorn running on", **quiet) as served:
        yield Gradio(served, stub, browser)


def test_an_answer_streams_and_a_stopped_one_makes_way_for_the_next(gradio: Gradio) -> None:
    streamed, stopped = Held("Good morning, Ada Lovelace."), Held("This is never read by anybody.")
    gradio.stub.serve_from_now(streamed.reply, stopped.reply, "Here I am.")
    ada = gradio.page_of("ada")
    send(ada, "Hello!")
    expect(bubbles(ada)).to_have_text(["Hello!", "Good morning,"])
    streamed.released.set()
    expect(bubbles(ada)).to_have_text(["Hello!", "Good morning, Ada Lovelace."])
    send(ada, "Tell me more.")
    expect(bubbles(ada).last).to_have_text("This is")
    ada.get_by_role("button", name="Stop").click()
    expect(bubbles(ada).last).not_to_contain_text("This is")
    stopped.released.set()
    send(ada, "Are you there?")

    expect(bubbles(ada).last).to_have_text("Here I am.")


def test_a_call_runs_when_its_user_approves_and_no_other_user_sees_it(gradio: Gradio) -> None:
    gradio.stub.serve_from_now(BOOK, "Oak is yours.", BOOK, "I booked nothing.")
    ada, ben = gradio.page_of("ada"), gradio.page_of("ben")
    send(ada, "Book Oak.")
    expect(ada.get_by_role("listitem")).to_have_text('book {"room": "Oak", "day": "2026-12-01"}')
    ada.reload()
    ada.get_by_role("button", name="Approve").click()
    expect(ada.get_by_text("Oak is yours.")).to_be_visible()
    ada.get_by_role("button", name="book: success").click()
    expect(ada.get_by_text("Booked Oak for 2026-12-01.")).to_be_visible()
    expect(ada.get_by_role("button", name="Approve")).to_be_hidden()
    ben.reload()
    expect(bubbles(ben)).to_have_count(0)
    send(ben, "Book Oak.")
    ben.get_by_role("button", name="Reject").click()
    expect(ben.get_by_text("book: denied")).to_be_visible()
    ada.reload()
    expect(bubbles(ada)).to_have_text(["Book Oak.", re.compile("book: success"), "Oak is yours."])

    asked = [[each["content"] for each in body["messages"]] for body in gradio.stub.bodies]
    assert [sum(each == "Book Oak." for each in contents) for contents in asked] == [1, 1, 1, 1]


def test_the_page_shows_the_code() -> None:
    code, *_ = read_blocks(ROOT / "docs/recipes/gradio.md")

    assert code.text == (ROOT / "examples/gradio_chat/app.py").read_text(encoding="utf-8")
