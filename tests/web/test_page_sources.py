"""What an answer rests on, on the page: cited sources, and facts of the memory, which their user edits and forgets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.interfaces.server.process import Served, serving
from tests.support.chat_client import chat
from tests.web.tea_agent import KEYS, TEA

pytestmark = pytest.mark.xdist_group("page")
DONE_MS = 60_000


@pytest.fixture
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose agent has a memory, and cites sources in the second answer of the session `s`."""
    keys = ",".join(f"{name}:{key}" for name, key in KEYS.items())
    with serving(tmp_path_factory.mktemp("tea"), agent=TEA, environment={"GRAPH_AGENT_API_KEYS": keys}) as server:
        with server.http(headers={"x-api-key": KEYS["alice"]}) as http:
            chat(http, "first", "I drink no coffee.", model="tea")
            chat(http, "s", "Which tea grows in Assam?", model="tea")
        yield server


def enter(page: Page, url: str, name: str = "alice") -> None:
    page.goto(url)
    page.get_by_label("API key").fill(KEYS[name])
    page.keyboard.press("Enter")


def test_the_sources_of_an_answer_are_links_to_web_pages_only(page: Page, served: Served) -> None:
    enter(page, f"{served.url}/#s")
    sources = page.locator(".sources li")
    expect(sources).to_have_count(3, timeout=DONE_MS)

    assert [each.inner_text().split("\n") for each in sources.all()] == [
        ["Teas of <b>Assam</b> tea.example", "Assam grows black tea."],
        ["A trap javascript:document.title='owned'"],
        ["notes.pdf"],
    ]
    links = page.locator(".sources a").all()
    assert [(each.get_attribute("href"), each.get_attribute("rel")) for each in links] == [
        ("https://tea.example/assam", "noopener noreferrer nofollow")
    ]


def test_the_facts_that_an_answer_used_are_shown_at_it(page: Page, served: Served) -> None:
    enter(page, f"{served.url}/#s")
    used = page.get_by_text("1 fact of the memory used")
    used.click(timeout=DONE_MS)

    expect(page.locator(".recalled li")).to_have_text(["Drinks no coffee."])
