"""The Chainlit recipe in Chromium, with two users."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.interfaces.server.process import Served
from tests.support.doc_pages import ROOT, read_blocks
from tests.support.openai_stub import OpenAIStub, StubFactory
from tests.support.ports import reserved_port
from tests.support.recipe_pages import BOOK, Held, new_tab, running_recipe

FILE = ROOT / "examples/chainlit_chat/app.py"


@dataclass
class Chainlit:
    """The recipe that is served, and its provider."""

    served: Served
    stub: OpenAIStub
    browser: Browser

    def page_of(self, user: str) -> Page:
        """Log a user in, in a browser of their own."""
        page = new_tab(self.browser, self.served.url)
        page.get_by_label("Email").fill(user)
        page.get_by_label("Password").first.fill(f"{user}'s password")
        page.get_by_label("Password").first.press("Enter")
        expect(page.locator("#chat-input")).to_be_visible()
        return page


def send(page: Page, text: str) -> None:
    page.locator("#chat-input").fill(text)
    # Enabled once the page has its connection.
    page.locator("#chat-submit").click()


def steps(page: Page) -> Locator:
    """What the chat shows: messages and calls, in order."""
    return page.locator(".message-content, [data-step-type=tool] button")


@pytest.fixture
def chainlit(tmp_path: Path, openai_stub: StubFactory, browser: Browser) -> Iterator[Chainlit]:
    stub, secret = openai_stub(), {"CHAINLIT_AUTH_SECRET": "a secret of 32 characters or more"}
    with reserved_port() as port:
        command = ("-m", "chainlit", "run", str(FILE), "--headless", "--port", str(port))
        with running_recipe("chainlit", tmp_path, stub, *command, listens="available at", **secret) as served:
            yield Chainlit(served, stub, browser)


def test_an_answer_streams_and_a_stopped_one_makes_way_for_the_next(chainlit: Chainlit) -> None:
    streamed, stopped = Held("Good morning, Ada Lovelace."), Held("This is never read by anybody.")
    chainlit.stub.serve_from_now(streamed.reply, stopped.reply, "Here I am.")
    ada = chainlit.page_of("ada")
    send(ada, "Hello!")
    expect(steps(ada)).to_have_text(["Hello!", "Good morning,"])
    streamed.released.set()
    expect(steps(ada)).to_have_text(["Hello!", "Good morning, Ada Lovelace."])
    send(ada, "Tell me more.")
    expect(steps(ada).last).to_have_text("This is")
    ada.locator("#stop-button").click()
    expect(steps(ada).last).to_have_text("Task manually stopped.")
    stopped.released.set()
    send(ada, "Are you there?")

    expect(steps(ada).last).to_have_text("Here I am.")


def test_a_call_runs_when_its_user_approves_and_no_other_user_sees_it(chainlit: Chainlit) -> None:
    chainlit.stub.serve_from_now(BOOK, "Oak is yours.", BOOK, "I booked nothing.")
    ada, ben = chainlit.page_of("ada"), chainlit.page_of("ben")
    send(ada, "Book Oak.")
    expect(ada.get_by_role("button", name="Approve")).to_be_visible()
    ada.reload()
    expect(ada.get_by_text('book {"room": "Oak", "day": "2026-12-01"}')).to_be_visible()
    ada.get_by_role("button", name="Approve").click()
    expect(ada.get_by_text("Oak is yours.")).to_be_visible()
    ben.reload()
    send(ben, "Book Oak.")
    ben.get_by_role("button", name="Reject").click()
    expect(ben.get_by_text("I booked nothing.")).to_be_visible()
    expect(steps(ben).first).to_have_text("Book Oak.")
    ada.reload()
    expect(steps(ada)).to_have_text(["Book Oak.", "Used book", "Oak is yours."])
    steps(ada).nth(1).click()
    expect(ada.get_by_text("Booked Oak for 2026-12-01.")).to_be_visible()

    asked = [[each["content"] for each in body["messages"]] for body in chainlit.stub.bodies]
    assert [sum(each == "Book Oak." for each in contents) for contents in asked] == [1, 1, 1, 1]


def test_the_page_shows_the_code() -> None:
    code, *_ = read_blocks(ROOT / "docs/recipes/chainlit.md")

    assert code.text == FILE.read_text(encoding="utf-8")
