"""Slack's form of webhooks and messages: signatures, buttons, and posts with an id."""

import hashlib
import hmac
import json
import os
import time
import uuid
from typing import Any
from urllib.parse import parse_qs

import httpx
from starlette.requests import Request


async def signed_body(request: Request) -> bytes | None:
    """Return the body of a delivery; None if its signature is wrong or older than five minutes."""
    timestamp = request.headers.get("x-slack-request-timestamp", "")
    body, secret = await request.body(), os.environ["CHAT_SECRET"].encode()
    mac = hmac.new(secret, f"v0:{timestamp}:".encode() + body, hashlib.sha256)
    signature = request.headers.get("x-slack-signature", "").encode()
    fits = hmac.compare_digest(f"v0={mac.hexdigest()}".encode(), signature)
    return body if fits and abs(time.time() - int(timestamp)) < 300 else None


def mention_in(sent: dict[str, Any]) -> dict[str, Any] | None:
    """Return where a person wrote to the bot, and the text; None for other events, also of bots."""
    event = sent["event"]
    if event["type"] != "app_mention" or not event.get("text") or "bot_id" in event:
        return None
    thread = event.get("thread_ts", event["ts"])
    return {"channel": event["channel"], "thread": thread, "text": event["text"]}


def decision_in(body: bytes) -> dict[str, Any]:
    """Return where a button was pressed, by whom, and what it decides on which question."""
    sent = json.loads(parse_qs(body.decode())["payload"][0])
    button = sent["actions"][0]
    return {
        "channel": sent["channel"]["id"],
        "thread": sent["message"]["thread_ts"],
        "user": sent["user"]["id"],
        "question": button["value"],
        "approved": button["action_id"] == "approve",
    }


def question(id_: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the message that asks about calls, with two buttons."""
    lines = ["May this run?", *(f"{call['name']} {json.dumps(call['args'])}" for call in calls)]
    text = {"type": "plain_text", "text": "\n".join(lines)}
    buttons = [
        {
            "type": "button",
            "action_id": name,
            "value": id_,
            "text": {"type": "plain_text", "text": name},
        }
        for name in ("approve", "reject")
    ]
    blocks = [{"type": "section", "text": text}, {"type": "actions", "elements": buttons}]
    return {"text": text["text"], "blocks": blocks}


async def post(id_: str, channel: str, thread: str, message: dict[str, Any]) -> None:
    """Post a message into a thread; the chat drops a second one with the same id.

    Raises:
        RuntimeError: When the chat refuses it.
    """
    once = str(uuid.uuid5(uuid.NAMESPACE_OID, id_))
    url = os.environ.get("CHAT_API", "https://slack.com/api")
    async with httpx.AsyncClient() as http:
        sent = await http.post(
            f"{url}/chat.postMessage",
            json={"channel": channel, "thread_ts": thread, "client_msg_id": once, **message},
            headers={"Authorization": f"Bearer {os.environ['CHAT_TOKEN']}"},
        )
    if not sent.raise_for_status().json()["ok"]:
        raise RuntimeError(sent.text)
