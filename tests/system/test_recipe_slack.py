"""The recipe of a chat's webhooks, in processes that are killed, before a chat that records what is posted."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.persistence import open_saver
from tests.interfaces.server.process import Served, eventually, running
from tests.support.a2a_servers import serving
from tests.support.doc_pages import ROOT, read_blocks

DAY = 86_400
SECRET = "the chat's signing secret"
PROGRAM = """
import sys, time
real = time.time
time.time = lambda: real() + float(sys.argv[1])
import uvicorn
from examples.slack_webhook.app import app
uvicorn.run(app, port=0)
"""
REFUND = {"tool_calls": [{"id": "c1", "name": "refund", "arguments": {"order": "17", "euros": 900}}]}
QUESTION = 'May this run?\nrefund {"order": "17", "euros": 900}'
REFUNDED = "You have your money back."


class Chat:
    """A chat: what the bot posted, and deliveries with the chat's signature."""

    def __init__(self, folder: Path) -> None:
        self.url, self.folder = "", folder
        self.received: list[str] = []
        self.posted: list[dict[str, Any]] = []
        """What it shows: a message with a known id is dropped."""
        self.is_asked, self.is_reachable = threading.Event(), threading.Event()
        self.is_reachable.set()
        self.app = Starlette(routes=[Route("/chat.postMessage", self.post_message, methods=["POST"])])

    async def post_message(self, request: Request) -> JSONResponse:
        assert request.headers["authorization"] == "Bearer xoxb-1"
        message = await request.json()
        self.is_asked.set()
        if not self.is_reachable.is_set():
            return JSONResponse({"ok": False, "error": "ratelimited"})
        self.received.append(message["text"])
        if message["client_msg_id"] not in {each["client_msg_id"] for each in self.posted}:
            self.posted.append(message)
        return JSONResponse({"ok": True})

    def texts(self) -> list[str]:
        return [message["text"] for message in self.posted]

    @contextmanager
    def bot(self, *replies: Any, days: int = 0) -> Iterator[Served]:
        """Start the recipe in a process whose clock is some days ahead; kill it at the end."""
        program = self.folder / "program.py"
        program.write_text(PROGRAM)
        environment = {
            "CHAT_API": self.url,
            "CHAT_TOKEN": "xoxb-1",
            "CHAT_SECRET": SECRET,
            "CHAT_DB": f"sqlite:///{self.folder}/chat.db",
            "DEBUG_MOCK_RESPONSES": json.dumps(replies),
        }
        options = (str(program), str(days * DAY))
        with running(self.folder, *options, environment=environment) as bot:
            yield bot

    def deliver(self, bot: Served, path: str, body: bytes, *, days: float = 0, signature: str = "") -> int:
        timestamp = str(int(time.time() + days * DAY))
        signed = hmac.new(SECRET.encode(), f"v0:{timestamp}:".encode() + body, hashlib.sha256).hexdigest()
        headers = {"x-slack-request-timestamp": timestamp, "x-slack-signature": signature or f"v0={signed}"}
        with bot.http() as http:
            return http.post(path, content=body, headers=headers).status_code

    def mention(
        self, bot: Served, text: str, event_id: str = "Ev1", *, bot_id: str | None = None, **options: Any
    ) -> int:
        event = {"type": "app_mention", "user": "U-BEN", "channel": "C1", "ts": "100.1", "text": text}
        event |= {"bot_id": bot_id} if bot_id else {}
        body = json.dumps({"type": "event_callback", "event_id": event_id, "event": event})
        return self.deliver(bot, "/events", body.encode(), **options)

    def press(self, bot: Served, name: str, user: str = "U-ADA", **options: Any) -> int:
        """Press a button of the newest question."""
        asked = next(message for message in reversed(self.posted) if "blocks" in message)
        button = next(each for each in asked["blocks"][-1]["elements"] if each["action_id"] == name)
        payload = {
            "type": "block_actions",
            "user": {"id": user},
            "channel": {"id": asked["channel"]},
            "message": {"ts": "100.2", "thread_ts": asked["thread_ts"]},
            "actions": [{"action_id": button["action_id"], "value": button["value"]}],
        }
        return self.deliver(bot, "/buttons", urlencode({"payload": json.dumps(payload)}).encode(), **options)


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Chat]:
    chat = Chat(tmp_path)
    with serving(lambda _: chat.app) as chat.url:
        yield chat


async def decisions(folder: Path) -> list[tuple[str, ...]]:
    """Return each decision and each result of a call in the session of the thread."""
    async with open_saver(f"sqlite:///{folder}/chat.db") as saver:
        agent = create_graph_agent(ScriptedChatModel([]), checkpointer=saver)
        events = await agent.session("C1:100.1").events()
    found: list[tuple[str, ...]] = []
    for event in events:
        if event["type"] == "approval_decision":
            found.append((event["decision"], event["decided_by"]))
        elif event["type"] == "tool_result":
            found.append((event["name"], event["status"]))
    return found


async def test_an_approval_comes_days_later_to_another_process_and_counts_once(chat: Chat) -> None:
    with chat.bot(REFUND) as bot:
        accepted = [chat.mention(bot, "Refund order 17.") for _ in range(3)]
        eventually(lambda: chat.posted)
    with chat.bot(REFUNDED, "You are welcome.", days=9) as bot:
        accepted.append(chat.mention(bot, "Refund order 17.", days=9))
        accepted += [chat.press(bot, name, days=9) for name in ("approve", "approve", "reject")]
        eventually(lambda: REFUNDED in chat.texts())
        accepted += [chat.press(bot, "approve", days=9), chat.mention(bot, "Thanks!", "Ev2", days=9)]
        eventually(lambda: "You are welcome." in chat.texts())

    assert (set(accepted), chat.texts()) == ({200}, [QUESTION, REFUNDED, "You are welcome."])
    assert {(message["channel"], message["thread_ts"]) for message in chat.posted} == {("C1", "100.1")}
    assert await decisions(chat.folder) == [("approve", "U-ADA"), ("refund", "success")]


async def test_what_was_accepted_before_a_kill_is_posted_once_by_the_next_process(chat: Chat) -> None:
    chat.is_reachable.clear()
    with chat.bot(REFUND) as bot:
        accepted = chat.mention(bot, "Refund order 17.")
        eventually(chat.is_asked.is_set)
    chat.is_reachable.set()
    with chat.bot("I refund nothing.") as bot:
        eventually(lambda: chat.posted)
        chat.press(bot, "reject")
        eventually(lambda: len(chat.posted) == 2)

    assert (accepted, chat.texts()) == (200, [QUESTION, "I refund nothing."])
    assert await decisions(chat.folder) == [("reject", "U-ADA"), ("refund", "denied")]


async def test_a_question_is_closed_by_another_message_in_its_thread(chat: Chat) -> None:
    with chat.bot(REFUND, "Good that you waited.") as bot:
        chat.mention(bot, "Refund order 17.")
        eventually(lambda: chat.posted)
        chat.mention(bot, "Wait, I look first.", "Ev2")
        eventually(lambda: len(chat.posted) == 2)
        chat.press(bot, "approve")
        eventually(lambda: len(chat.posted) == 3)

    assert chat.received == [QUESTION, "Good that you waited.", "This can no longer be answered."]
    assert await decisions(chat.folder) == [("refund", "skipped")]


def test_what_is_not_for_the_bot_or_not_signed_runs_nothing(chat: Chat) -> None:
    check = json.dumps({"type": "url_verification", "challenge": "c"}).encode()
    with chat.bot(REFUND, REFUNDED, "You are welcome.") as bot:
        statuses = {
            "checked": chat.deliver(bot, "/events", check),
            "forged": chat.mention(bot, "Refund order 17.", signature="v0=00"),
            "old": chat.mention(bot, "Refund order 17.", days=-0.01),
            "of a bot": chat.mention(bot, "Refund order 17.", "Ev2", bot_id="B1"),
        }
        chat.mention(bot, "Refund order 17.", "Ev3")
        eventually(lambda: chat.posted)
        statuses["of another user"] = chat.press(bot, "approve", user="U-BEN")
        statuses["forged press"] = chat.press(bot, "approve", signature="v0=00")
        statuses["press"] = chat.press(bot, "approve")
        eventually(lambda: len(chat.posted) == 2)
        statuses["again"] = chat.press(bot, "approve") + chat.mention(bot, "Refund order 17.", "Ev3")
        chat.mention(bot, "Thanks!", "Ev4")
        eventually(lambda: len(chat.posted) == 3)

    assert statuses == {
        "checked": 200,
        "forged": 401,
        "old": 401,
        "of a bot": 200,
        "of another user": 403,
        "forged press": 401,
        "press": 200,
        "again": 400,
    }
    assert chat.received == [QUESTION, REFUNDED, "You are welcome."]


def test_the_page_shows_the_code() -> None:
    code, *_ = read_blocks(ROOT / "docs/recipes/slack.md")

    assert code.text == (ROOT / "examples/slack_webhook/app.py").read_text(encoding="utf-8")
