"""The page shows and sends numbers exactly that a script's own numbers cannot hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.interfaces.server.process import PARROT, Served, serving
from tests.support.cli import run_cli
from tests.support.mcp_servers.running import asking

pytestmark = pytest.mark.xdist_group("page, second half")
NUMBERS = (2**53 + 1, -(2**63), 2**64 - 1)
"""Integers that a database holds; it stores larger ones as texts. Each test has them in another order, and `make test`
runs one number of each."""


def transfers(page: Page, served: Served, account: int, amount: str) -> Any:
    """The form that asks about a transfer."""
    page.goto(served.url)
    page.get_by_label("Message", exact=True).fill(f'!call [["transfer", {{"account": {account}, "amount": {amount}}}]]')
    page.keyboard.press("Enter")
    form = page.get_by_role("form", name="Decisions on calls")
    form.wait_for()
    return form


def results_of(served: Served, page: Page) -> list[Any]:
    events = httpx.get(f"{served.url}/memory/sessions/{page.evaluate('location.hash').removeprefix('#')}/events").json()
    return [json.loads(event["content"]) for event in events["events"] if event["type"] == "tool_result"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("account", NUMBERS)
def test_a_person_approves_the_number_that_is_run(page: Page, travel: Served, account: int) -> None:
    form = transfers(page, travel, account, "1.0")
    expect(form.locator("pre")).to_have_text(f'{{\n  "account": {account},\n  "amount": 1.0\n}}')
    form.get_by_role("button", name="Send decision").click()
    expect(page.get_by_role("status")).to_have_text("completed")

    assert results_of(travel, page) == [{"account": account, "amount": 1.0}]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("account", [*NUMBERS[1:], NUMBERS[0]])
def test_an_edit_of_another_argument_leaves_a_number_as_it_was(page: Page, travel: Served, account: int) -> None:
    form = transfers(page, travel, account, "0.1")
    form.get_by_label("edit").check()
    box = form.get_by_label("New arguments, as JSON")
    box.fill(box.input_value().replace("0.1", "2.0"))
    form.get_by_role("button", name="Send decision").click()
    expect(page.get_by_role("status")).to_have_text("completed")

    assert results_of(travel, page) == [{"account": account, "amount": 2.0}]


def test_the_details_and_an_export_show_numbers_as_they_were_run(page: Page, travel: Served, tmp_path: Path) -> None:
    account = NUMBERS[-1]
    transfers(page, travel, account, "2.50").get_by_role("button", name="Send decision").click()
    expect(page.get_by_role("status")).to_have_text("completed")
    session = page.evaluate("location.hash").removeprefix("#")
    page.get_by_role("button", name="transfer, succeeded").last.click()
    shown = page.get_by_role("region", name="Details").locator("pre").all_inner_texts()
    file = tmp_path / "session.html"
    database = f"sqlite:///{travel.log.parent / 'sessions.db'}"
    run_cli(tmp_path, "sessions", "export", session, "--html", "--db", database, "--out", str(file))
    page.goto(file.as_uri())
    page.get_by_role("button", name="transfer, succeeded").last.click()
    exported = page.get_by_role("region", name="Details").locator("pre").all_inner_texts()

    assert (shown, exported) == ([f'{{\n  "account": {account},\n  "amount": 2.5\n}}'] * 2, shown)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("nights", [NUMBERS[2], *NUMBERS[:2]])
def test_a_field_for_an_integer_is_sent_as_it_was_typed(page: Page, tmp_path: Path, nights: int) -> None:
    with serving(tmp_path, agent={**PARROT, "mcp_servers": {"hotel": asking(tmp_path)}}) as served:
        page.goto(served.url)
        page.get_by_label("Message", exact=True).fill("!call furnish {}")
        page.keyboard.press("Enter")
        form = page.get_by_role("form", name="Answer to a question")
        form.get_by_label("Guest").fill("Ann")
        form.get_by_label("nights").fill(str(nights))
        form.get_by_label("bed").select_option("One bed")
        form.get_by_role("button", name="Accept").click()

        expect(page.get_by_text("furnish said: accept")).to_contain_text(f'"nights": {nights}')
