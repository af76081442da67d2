"""What an answer rests on, on the page: cited sources, and facts of the memory, which their user edits and forgets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
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
    expect(page.locator(".message.agent")).to_have_text("Assam grows black tea.")

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


def test_a_person_edits_and_forgets_what_the_agent_remembers(page: Page, served: Served) -> None:
    enter(page, f"{served.url}/#s")
    page.on("dialog", lambda dialog: dialog.accept())
    opener = page.get_by_role("button", name="Memory")
    opener.click(timeout=DONE_MS)
    facts = page.get_by_role("list", name="Facts").get_by_role("listitem")
    expect(facts).to_have_text([re.compile("Drinks no coffee")])
    page.get_by_role("button", name="Edit: Drinks no coffee.").click()
    page.get_by_label("Text of the fact").fill("Drinks <b>tea</b> only.")
    page.get_by_role("button", name="Save").click()
    expect(facts).to_have_text([re.compile(r"Drinks <b>tea</b> only\. 1 min ago")])
    page.get_by_label("Search facts").fill("coffee")
    expect(page.get_by_text("None matches.")).to_be_visible()
    page.get_by_label("Search facts").fill("tea")
    expect(facts).to_have_count(1)
    page.get_by_role("button", name="Forget: Drinks <b>tea</b> only.").click()
    expect(facts).to_have_count(0)
    expect(page.get_by_label("Search facts")).to_be_focused()
    # In a search field, the first Escape would clear the text.
    page.get_by_label("Search facts").fill("")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(opener).to_be_focused()
    page.get_by_text("1 fact of the memory used").click()

    expect(page.locator(".recalled li")).to_have_text(["forgotten since"])
    with served.http(headers={"x-api-key": KEYS["alice"]}) as http:
        assert http.get("/memory/facts").json()["facts"] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_sources_and_facts(page: Page, served: Served, theme: Any) -> None:
    page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    page.set_viewport_size({"width": 360, "height": 800})
    enter(page, f"{served.url}/#s")
    page.get_by_text("1 fact of the memory used").click(timeout=DONE_MS)
    page.get_by_role("button", name="Good answer").click()
    page.get_by_role("button", name="Add to evaluation").wait_for()
    found = Axe().run(page).response["violations"]
    page.get_by_role("button", name="Edit or forget").click()
    page.get_by_role("button", name="Edit: Drinks no coffee.").click()
    found += Axe().run(page).response["violations"]

    serious = [each for each in found if each["impact"] in ("serious", "critical")]
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in serious] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_person_sees_no_facts_of_another(page: Page, served: Served) -> None:
    enter(page, served.url, "bob")
    page.get_by_role("button", name="Memory").click(timeout=DONE_MS)

    expect(page.get_by_text("Nothing yet.")).to_be_visible()
    expect(page.get_by_role("listitem")).to_have_count(0)


def test_a_fact_that_the_server_refuses_stays_in_its_form(page: Page, served: Served) -> None:
    enter(page, f"{served.url}/#s")
    page.get_by_role("button", name="Memory").click(timeout=DONE_MS)
    page.get_by_role("button", name="Edit: Drinks no coffee.").click()
    with served.http(headers={"x-api-key": KEYS["alice"]}) as http:
        [fact] = http.get("/memory/facts").json()["facts"]
        http.delete(f"/memory/facts/{fact['id']}")
    page.get_by_label("Text of the fact").fill("Drinks tea.")
    page.get_by_role("button", name="Save").click()

    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text(fact["id"])
    expect(page.get_by_label("Text of the fact")).to_have_value("Drinks tea.")
