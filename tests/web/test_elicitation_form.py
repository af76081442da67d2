"""The page's form for the question of an MCP server, on the screen of a phone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.interfaces.server.process import PARROT, Served, serving
from tests.support.mcp_servers.running import asking


@pytest.fixture(scope="module")
def asks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("asks")
    with serving(folder, agent={**PARROT, "mcp_servers": {"hotel": asking(folder)}}) as served:
        yield served


def asked(page: Page, served: Served, order: str) -> Locator:
    """The form that a message to the agent leads to."""
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(served.url)
    page.get_by_label("Message", exact=True).fill(order)
    page.keyboard.press("Enter")
    form = page.get_by_role("form", name="Answer to a question")
    expect(form.get_by_role("heading")).to_have_text("hotel asks")
    return form


def test_the_fields_of_a_schema_are_filled_in_and_accepted(page: Page, asks: Served) -> None:
    form = asked(page, asks, "!call furnish {}")
    form.get_by_role("button", name="Accept").click()
    name = form.get_by_label("Guest")
    assert name.evaluate("input => input.validity.valueMissing")
    name.fill("Ann")
    form.get_by_label("price").fill("9.5")
    form.get_by_label("bed").select_option("One bed")
    form.get_by_label("extras").select_option(["crib", "desk"])
    width = page.evaluate("document.documentElement.scrollWidth")
    form.get_by_role("button", name="Accept").click()

    shown = page.get_by_text("furnish said: accept")
    expect(shown).to_contain_text('{"bed": "king", "breakfast": true, "extras": ["crib", "desk"], ')
    expect(shown).to_contain_text('"name": "Ann", "nights": 2, "price": 9.5}')
    assert width == 390


@pytest.mark.sampled(2)
@pytest.mark.parametrize("action", ["Decline", "Cancel"])
def test_a_question_with_an_address_is_not_accepted(page: Page, asks: Served, action: str) -> None:
    form = asked(page, asks, "!call pay {}")
    expect(form.get_by_role("link")).to_have_attribute("href", "https://pay.example/1")
    form.get_by_role("button", name=action).click()

    expect(page.get_by_text("pay said:")).to_contain_text(f"pay: {action.lower()}")


def test_a_second_question_of_a_call_has_a_form_of_its_own(page: Page, asks: Served) -> None:
    form = asked(page, asks, '!call look {"room": "1"}')
    form.get_by_label("Sure").check()
    form.get_by_role("button", name="Accept").click()
    expect(form).to_contain_text("Who asks?")
    form.get_by_label("Name").fill("Bo")
    form.get_by_role("button", name="Accept").click()

    expect(page.get_by_text("look said:")).to_contain_text("1 for Bo, 1 night(s)")
