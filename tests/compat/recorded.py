"""Recorded requests of coding clients, each sent again as it was, with the answer that the client must read from it.

Long texts of the clients are cut; their fields, headers and tools are as sent. A file holds one conversation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

REQUESTS = Path(__file__).parent / "requests"


def faults(url: str, key: str) -> dict[str, list[str]]:
    """Send every recorded request again; return what differs from the recorded answers, by client."""
    found: dict[str, list[str]] = {}
    with httpx.Client(base_url=url, trust_env=False, timeout=60, headers={"authorization": f"Bearer {key}"}) as http:
        for file in sorted(REQUESTS.glob("*.json")):
            recorded = json.loads(file.read_text())
            found[recorded["client"]] = [
                f"{answer!r}\n  and not {each['answer']!r}"
                for each in recorded["requests"]
                if (answer := _answer(http, each)) != each["answer"]
            ]
        listed = http.get("/sessions").json()["sessions"]
    found["sessions of these clients"] = [each["id"] for each in listed if each["id"].startswith("ses_")]
    return found


def _answer(http: httpx.Client, request: dict[str, Any]) -> Any:
    """Return the text of an answer and its calls, `[name, arguments]`; the error's text for an error."""
    response = http.post(request["path"], json=request["body"], headers=request["headers"])
    if not response.is_success:
        return [response.status_code, response.text]
    parts = list(_parts(response.text))
    calls = [[name, json.loads("".join(text for kind, text in parts if kind == name))] for name in _called(parts)]
    return ["".join(text for kind, text in parts if kind == "text"), calls]


def _called(parts: list[tuple[str, str]]) -> list[str]:
    return list(dict.fromkeys(kind for kind, _ in parts if kind != "text"))


def _parts(stream: str) -> Iterator[tuple[str, str]]:
    """Yield the pieces of a stream of any API: `text` or the name of a called tool, and a piece of it."""
    name = ""
    for line in stream.splitlines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        data = json.loads(line.removeprefix("data: "))
        match data.get("type"):
            case "response.output_text.delta":
                yield "text", data["delta"]
            case "response.output_item.added":
                name = data["item"].get("name", "")
            case "response.function_call_arguments.delta":
                yield name, data["delta"]
            case "content_block_start":
                name = data["content_block"].get("name", "")
            case "content_block_delta" if data["delta"]["type"] == "text_delta":
                yield "text", data["delta"]["text"]
            case "content_block_delta" if data["delta"]["type"] == "input_json_delta":
                yield name, data["delta"]["partial_json"]
            case None:
                for choice in data["choices"]:
                    yield "text", choice["delta"].get("content") or ""
                    for call in choice["delta"].get("tool_calls") or []:
                        name = call["function"].get("name") or name
                        yield name, call["function"]["arguments"]
