"""Images and documents, in the user's message and in a tool's result."""

from __future__ import annotations

import base64
from typing import Any

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool

from tests.providers.exchange import Kind, Reply, Request
from tests.providers.lab import Lab, calls, results_in
from tests.providers.row import Ability
from tests.providers.situations import situation

_PNG = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c626001000000ffff03000006"
        "000557bfabd40000000049454e44ae426082"
    )
).decode()
_PDF = base64.b64encode(b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n").decode()
_IMAGE = {"type": "image", "base64": _PNG, "mime_type": "image/png"}
_DOCUMENT = {"type": "file", "base64": _PDF, "mime_type": "application/pdf", "filename": "report.pdf"}


def _kinds(request: Request) -> set[Kind]:
    parts = [part for message in request.messages for part in message.parts]
    return {part.kind for part in parts if part.kind not in ("text", "reasoning")}


async def _given(lab: Lab, block: dict[str, Any], kind: Kind, ability: Ability, word: str) -> None:
    session = lab.session(Reply("I see it."), Reply("You are welcome."))
    message = HumanMessage([{"type": "text", "text": "What is this?"}, block])

    first = await session.run([message])
    second = await session.run("Thanks!")

    assert [first.answer, second.answer] == ["I see it.", "You are welcome."]
    sent = [_kinds(request) for request in lab.requests]
    assert sent == ([{kind}] * 2 if lab.can(ability) else [set()] * 2)
    assert "What is this?" in lab.requests[-1].text
    if not lab.can(ability):
        assert word in lab.requests[0].text.lower()


async def _returned(lab: Lab, block: dict[str, Any], kind: Kind, ability: Ability, word: str) -> None:
    @tool
    def look(place: str) -> list[Any]:
        """Return what is to be seen."""
        return [{"type": "text", "text": f"Seen in {place}."}, block]

    session = lab.session(
        calls(("look", {"place": "Paris"})), Reply("I see it."), Reply("You are welcome."), tools=[look]
    )

    first = await session.run("Look around in Paris.")
    second = await session.run("Thanks!")

    assert [first.answer, second.answer] == ["I see it.", "You are welcome."]
    assert [_kinds(request) for request in lab.requests[1:]] == ([{kind}] * 2 if lab.can(ability) else [set()] * 2)
    assert "Seen in Paris." in results_in(lab.requests[1])[0]
    if not lab.can(ability):
        assert word in lab.requests[1].text.lower()


@situation("media", adapts="images")
async def image_in(lab: Lab) -> None:
    await _given(lab, _IMAGE, "image", "images", "image")


@situation("media", adapts="documents")
async def document_in(lab: Lab) -> None:
    await _given(lab, _DOCUMENT, "document", "documents", "pdf")


@situation("media", adapts="images")
async def image_out(lab: Lab) -> None:
    await _returned(lab, _IMAGE, "image", "images", "image")


@situation("media", adapts="documents")
async def document_out(lab: Lab) -> None:
    await _returned(lab, _DOCUMENT, "document", "documents", "pdf")
