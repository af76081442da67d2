"""The page of the FastAPI recipe in Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from examples.fastapi_chat import app as recipe
from graph_agent import ScriptedChatModel
from tests.support.a2a_servers import serving
from tests.support.agents import asks

pytestmark = pytest.mark.xdist_group("page")


def test_a_call_is_shown_with_its_result_also_after_a_reload(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = asks(("1", "book", {"room": "Oak", "day": "2026-12-01"}))
    monkeypatch.setenv("CHAT_DB", f"sqlite:///{tmp_path}/chat.db")
    monkeypatch.setattr(recipe, "MODEL", ScriptedChatModel([call, "Oak is yours."]))
    page.on("dialog", lambda asked: asked.accept("token-of-ada"))
    arguments = '{"room":"Oak","day":"2026-12-01"}'
    question = ["user: Book Oak.", f"book {arguments}: waiting"]
    done = ["user: Book Oak.", f"book {arguments}: success Booked Oak for 2026-12-01.", "agent: Oak is yours."]

    with serving(lambda _: recipe.app) as url:
        page.goto(url)
        page.get_by_label("Message").fill("Book Oak.")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("listitem")).to_have_text(question)
        page.reload()
        expect(page.get_by_role("listitem")).to_have_text(question)
        page.get_by_role("button", name="Approve").click()
        expect(page.get_by_role("listitem")).to_have_text(done)
        page.reload()
        expect(page.get_by_role("listitem")).to_have_text(done)
