"""The React recipe, built by npm and opened in Chromium, with two users."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.interfaces.server.process import Served, running
from tests.support.doc_pages import ROOT, read_blocks
from tests.support.openai_stub import OpenAIStub, StubFactory
from tests.support.recipe_pages import BOOK, Held, new_tab
from tests.support.required import unavailable

FOLDER = ROOT / "examples/react_chat"
SOURCES = ("package.json", "vite.config.js", "index.html")


@dataclass
class React:
    """The recipe that is served, and its provider."""

    served: Served
    stub: OpenAIStub
    browser: Browser

    def page_of(self, user: str) -> Page:
        """Log a user in, in a browser of their own."""
        page = new_tab(self.browser, self.served.url)
        page.get_by_label("Token").fill(f"the-token-of-{user}")
        page.get_by_role("button", name="Log in").click()
        return page


def send(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    # Enabled when no run is under way.
    page.get_by_role("button", name="Send").click()


def shown(page: Page) -> Locator:
    """Messages, calls and results, in order."""
    return page.locator("article, pre")


@pytest.fixture(scope="module")
def built() -> Path:
    """The folder of the built page; what npm has installed is kept for the next run."""
    if shutil.which("npm") is None:
        unavailable("npm is missing; install Node.js 20 or newer.")
    folder = ROOT / ".venv-recipes/react"
    folder.mkdir(parents=True, exist_ok=True)
    for name in SOURCES:
        shutil.copy(FOLDER / name, folder)
    shutil.copytree(FOLDER / "src", folder / "src", dirs_exist_ok=True)
    for command in (["npm", "install", "--silent", "--no-audit", "--no-fund"], ["npm", "run", "build"]):
        subprocess.run(command, cwd=folder, check=True, timeout=600, stdout=subprocess.DEVNULL)
    return folder / "dist"


@pytest.fixture
def react(tmp_path: Path, built: Path, openai_stub: StubFactory, browser: Browser) -> Iterator[React]:
    stub = openai_stub()
    environment = {
        "CHAT_PAGE": str(built),
        "CHAT_DB": f"sqlite:///{tmp_path}/chat.db",
        "OPENAI_BASE_URL": stub.base_url,
        "OPENAI_API_KEY": "sk-stub-key",
    }
    command = ("uvicorn", "examples.react_chat.app:app", "--port", "0")
    with running(tmp_path, *command, environment=environment) as served:
        yield React(served, stub, browser)


def test_an_answer_streams_through_a_reload_and_a_stopped_one_makes_way_for_the_next(react: React) -> None:
    streamed, stopped = Held("Good morning, Ada Lovelace."), Held("This is never read by anybody.")
    react.stub.serve_from_now(streamed.reply, stopped.reply, "Here I am.")
    ada = react.page_of("ada")
    send(ada, "Hello!")
    expect(shown(ada)).to_have_text(["Hello!", "Good morning,"])
    ada.reload()
    expect(shown(ada)).to_have_text(["Hello!", "Good morning,"])
    streamed.released.set()
    expect(shown(ada)).to_have_text(["Hello!", "Good morning, Ada Lovelace."])
    send(ada, "Tell me more.")
    expect(shown(ada).last).to_have_text("This is")
    ada.get_by_role("button", name="Stop").click()
    expect(ada.get_by_role("button", name="Stop")).to_be_disabled()
    stopped.released.set()
    send(ada, "Are you there?")

    expect(shown(ada).last).to_have_text("Here I am.")


def test_a_call_runs_when_its_user_approves_and_no_other_user_sees_it(react: React) -> None:
    react.stub.serve_from_now(BOOK, "Oak is yours.", BOOK, "I booked nothing.")
    ada, ben = react.page_of("ada"), react.page_of("ben")
    send(ada, "Book Oak.")
    expect(ada.get_by_role("alert")).to_contain_text('book {"room": "Oak", "day": "2026-12-01"}')
    ada.reload()
    ada.get_by_role("button", name="Approve").click()
    call = 'book {"room": "Oak", "day": "2026-12-01"}'
    conversation = ["Book Oak.", call, "Booked Oak for 2026-12-01.", "Oak is yours."]
    expect(shown(ada)).to_have_text(conversation)
    ben.reload()
    send(ben, "Book Oak.")
    ben.get_by_role("button", name="Reject").click()
    expect(shown(ben).last).to_have_text("I booked nothing.")
    ada.reload()
    expect(shown(ada)).to_have_text(conversation)
    expect(ada.get_by_role("alert")).to_have_count(0)

    asked = [[each["content"] for each in body["messages"]] for body in react.stub.bodies if "messages" in body]
    assert [sum(each == "Book Oak." for each in contents) for contents in asked] == [1, 1, 1, 1]


def test_a_wrong_token_shows_no_chat(react: React) -> None:
    page = new_tab(react.browser, react.served.url)
    page.get_by_label("Token").fill("the-token-of-eve")
    page.get_by_role("button", name="Log in").click()

    expect(page.get_by_role("status")).to_contain_text("401")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    assert react.stub.bodies == []


def test_the_page_shows_the_code() -> None:
    blocks = [block.text for block in read_blocks(ROOT / "docs/recipes/react.md")]

    assert [(FOLDER / name).read_text(encoding="utf-8") for name in ("app.py", "src/main.jsx")] == blocks[:2]
