"""Pages of recipes in environments of their own, which tests open as their users would."""

from __future__ import annotations

import re
import threading
from contextlib import AbstractContextManager
from pathlib import Path

from playwright.sync_api import Browser, Page, Route

from tests.interfaces.server.process import Served, running
from tests.support.doc_pages import ROOT
from tests.support.openai_stub import OpenAIStub, Reply
from tests.support.required import unavailable

_LOOPBACK = re.compile(r"(?:data:|blob:|https?://(?:127\.0\.0\.1|localhost)[:/])")
BOOK = Reply(tool_calls=(("book", {"room": "Oak", "day": "2026-12-01"}),))


class Held:
    """A streamed reply that stops after its second word until it is released."""

    def __init__(self, text: str) -> None:
        self.released = threading.Event()
        # The first chunk holds the role.
        self.reply = Reply(text, before=lambda chunk: chunk < 3 or self.released.wait(60))


def running_recipe(
    name: str, folder: Path, stub: OpenAIStub, *command: str, listens: str, **variables: str
) -> AbstractContextManager[Served]:
    """Run a program with the Python of a recipe's environment, before a provider that is a stub.

    Args:
        name: Name of the environment in `.venv-recipes`.
        folder: Folder of its database and its log.
        stub: The provider.
        command: Arguments of Python.
        listens: What it prints before its address.
        variables: Additional variables.
    """
    python = ROOT / f".venv-recipes/{name}/bin/python"
    if not python.exists():
        unavailable(f"{python} is missing; make recipes installs it.")
    provider = {"OPENAI_BASE_URL": stub.base_url, "OPENAI_API_KEY": "sk-stub-key"}
    own = {"CHAT_DB": f"sqlite:///{folder}/chat.db", **provider, **variables}
    return running(folder, *command, environment=own, python=python, listens=listens)


def new_tab(browser: Browser, url: str) -> Page:
    """Open a page in a browser without cookies, which reaches no other machine."""
    context = browser.new_context(viewport={"width": 1000, "height": 900})
    context.set_default_timeout(60_000)
    context.route("**/*", _continue_on_loopback)
    page = context.new_page()
    page.goto(url)
    return page


def _continue_on_loopback(route: Route) -> None:
    if _LOOPBACK.match(route.request.url):
        route.continue_()
    else:
        route.abort()
