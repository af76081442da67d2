"""Tools that providers run, in the formats of their APIs: the calls and results of a reply, and the citations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.providers.protocols.framing import pieces
from tests.providers.signatures import signature

Json = dict[str, Any]


@dataclass(frozen=True)
class ProviderRun:
    """A call that the provider ran for a reply, before its text, with its result."""

    kind: Literal["search", "code", "files", "mcp"]
    given: str
    """The query, the code, or the arguments of the MCP tool as JSON."""
    found: str = ""
    """The output; of a search, the title of the page at `url`."""
    url: str = ""
    has_result: bool = True
    """Whether the reply has the result."""
    fails: bool = False


@dataclass(frozen=True)
class Source:
    """A source of the whole text of a reply."""

    url: str
    title: str
    quote: str = field(default="as the page states")


# OpenAI's Responses API


def openai_items(runs: tuple[ProviderRun, ...], number: int, include: list[str]) -> list[Json]:
    """Return the items of calls; results are included as far as `include` asks for them."""
    return [_openai_item(run, f"{number}{at}", include) for at, run in enumerate(runs)]


def _openai_item(run: ProviderRun, id_: str, include: list[str]) -> Json:
    status = "failed" if run.fails else "completed"
    match run.kind:
        case "search":
            action: Json = {"type": "search", "query": run.given, "queries": [run.given]}
            if "web_search_call.action.sources" in include:
                action["sources"] = [{"type": "url", "url": run.url}]
            return {"type": "web_search_call", "id": f"ws_{id_}", "status": status, "action": action}
        case "files":
            found = [{"file_id": "file_1", "filename": "notes.md", "score": 0.9, "text": run.found, "attributes": {}}]
            results = found if "file_search_call.results" in include else None
            item = {"type": "file_search_call", "id": f"fs_{id_}", "status": status, "queries": [run.given]}
            return {**item, "results": results}
        case "code":
            logs = [{"type": "logs", "logs": run.found}] if "code_interpreter_call.outputs" in include else None
            item = {"type": "code_interpreter_call", "id": f"ci_{id_}", "status": status, "code": run.given}
            return {**item, "container_id": "cntr_1", "outputs": logs}
        case "mcp":
            error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "no such room"}]}
            ended = {"error": error, "output": None} if run.fails else {"error": None, "output": run.found}
            named = {"name": "book", "server_label": "hotel", "arguments": run.given, "approval_request_id": None}
            return {"type": "mcp_call", "id": f"mcp_{id_}", "status": status, **named, **ended}


def openai_events(item: Json) -> Iterator[Json]:
    """Yield the events of an item between its `added` and its `done`, which have it, too."""
    at = {"item_id": item["id"]}
    begun = {**item, "status": "in_progress"}
    for name in ("outputs", "results", "output"):
        if name in begun:
            begun[name] = None
    if item["type"] == "web_search_call":
        begun.pop("action")
    yield {"type": "response.output_item.added", "item": begun}
    kind = item["type"]
    yield {"type": f"response.{kind}.in_progress", **at}
    if kind in ("web_search_call", "file_search_call"):
        yield {"type": f"response.{kind}.searching", **at}
    elif kind == "code_interpreter_call":
        for piece in pieces(item["code"]):
            yield {"type": "response.code_interpreter_call_code.delta", **at, "delta": piece}
        yield {"type": "response.code_interpreter_call_code.done", **at, "code": item["code"]}
        yield {"type": "response.code_interpreter_call.interpreting", **at}
    else:
        yield {"type": "response.mcp_call_arguments.delta", **at, "delta": item["arguments"]}
        yield {"type": "response.mcp_call_arguments.done", **at, "arguments": item["arguments"]}
    yield {"type": f"response.{kind}.{'failed' if item['status'] == 'failed' else 'completed'}", **at}
    yield {"type": "response.output_item.done", "item": item}


def openai_annotations(sources: tuple[Source, ...], text: str) -> list[Json]:
    """Return the annotations of a text, all of which each source supports."""
    return [
        {"type": "url_citation", "start_index": 0, "end_index": len(text), "url": each.url, "title": each.title}
        for each in sources
    ]


# Anthropic's Messages API

_ANTHROPIC_NAMES = {"search": "web_search", "code": "code_execution", "mcp": "book"}


def anthropic_blocks(runs: tuple[ProviderRun, ...], number: int) -> Iterator[Json]:
    """Yield the block of each call, and that of its result."""
    for at, run in enumerate(runs):
        name = _ANTHROPIC_NAMES[run.kind]
        if run.kind == "mcp":
            id_ = f"mcptoolu_{number}{at}"
            given = {"name": name, "server_name": "hotel", "input": json.loads(run.given)}
            yield {"type": "mcp_tool_use", "id": id_, **given}
            if run.has_result:
                content = [{"type": "text", "text": run.found}]
                yield {"type": "mcp_tool_result", "tool_use_id": id_, "is_error": run.fails, "content": content}
            continue
        id_ = f"srvtoolu_{number}{at}"
        yield {"type": "server_tool_use", "id": id_, "name": name, "input": _anthropic_input(run)}
        if run.has_result:
            yield {"type": f"{name}_tool_result", "tool_use_id": id_, "content": _anthropic_result(run, name)}


def _anthropic_input(run: ProviderRun) -> Json:
    return {"query": run.given} if run.kind == "search" else {"code": run.given}


def _anthropic_result(run: ProviderRun, name: str) -> Any:
    if run.fails:
        return {"type": f"{name}_tool_result_error", "error_code": "unavailable"}
    if run.kind == "code":
        done = {"stdout": run.found, "stderr": "", "return_code": 0, "content": []}
        return {"type": "code_execution_result", **done}
    secret = signature(run.url, "anthropic-page")
    page = {"type": "web_search_result", "url": run.url, "title": run.found, "encrypted_content": secret}
    return [{**page, "page_age": None}]


def anthropic_citations(sources: tuple[Source, ...]) -> list[Json]:
    """Return the citations of a block of text."""
    return [
        {
            "type": "web_search_result_location",
            "url": each.url,
            "title": each.title,
            "encrypted_index": signature(each.url, "anthropic-index"),
            "cited_text": each.quote,
        }
        for each in sources
    ]


# Gemini's API


def gemini_parts(runs: tuple[ProviderRun, ...]) -> Iterator[Json]:
    """Yield the parts of code that ran, and of its output; a search has no part."""
    for run in runs:
        if run.kind == "code":
            yield {"executableCode": {"language": "PYTHON", "code": run.given}}
            if run.has_result:
                outcome = "OUTCOME_FAILED" if run.fails else "OUTCOME_OK"
                yield {"codeExecutionResult": {"outcome": outcome, "output": run.found}}


def gemini_grounding(runs: tuple[ProviderRun, ...], sources: tuple[Source, ...], text: str) -> Json | None:
    """Return the metadata of a search; None if there was none."""
    searches = [run for run in runs if run.kind == "search"]
    if not searches:
        return None
    segment = {"startIndex": 0, "endIndex": len(text.encode()), "text": text}
    supports = [{"segment": segment, "groundingChunkIndices": [*range(len(sources))]}] if sources else []
    return {
        "webSearchQueries": [run.given for run in searches],
        "groundingChunks": [{"web": {"uri": each.url, "title": each.title}} for each in sources],
        "groundingSupports": supports,
    }


def is_signed(block: Mapping[str, Any]) -> bool:
    """Whether the encrypted parts of a result of Anthropic's API are unchanged."""
    content = block.get("content")
    return not isinstance(content, list) or all(
        page.get("encrypted_content") == signature(str(page.get("url")), "anthropic-page")
        for page in content
        if page.get("type") == "web_search_result"
    )
