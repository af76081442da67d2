"""Reads the calls of tools that the provider ran, their results and the citations in a model's reply.

LangChain converts the blocks of each provider to standard ones: `server_tool_call`, `server_tool_result`, and texts
with `annotations`. The providers' own types are named here only where a request sends them back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NotRequired

from langchain_core.messages import AIMessage
from typing_extensions import TypedDict

from graph_agent.base.types import Citation

_CALLS = frozenset(
    {
        *("server_tool_call", "server_tool_call_chunk", "server_tool_use", "mcp_tool_use", "executable_code"),
        *("web_search_call", "file_search_call", "code_interpreter_call", "mcp_call", "image_generation_call"),
    }
)
"""Types of content blocks that hold a call of a provider's tool: LangChain's standard types and those of the
providers."""
_RESULTS = ("_tool_result", "server_tool_result", "code_execution_result")
"""Endings of the types of content blocks that hold the result of a provider's tool and no call."""


class ProviderCall(TypedDict):
    """A call of a tool that the provider ran on its own server, such as a web search, with its result."""

    id: str
    """The provider's id of the call; if it gave none, the id of the message with the position of the block."""
    name: str
    """Name of the tool, such as `web_search`; of an MCP server, the name of the server's tool."""
    server: NotRequired[str]
    """Label of the MCP server; absent for other tools."""
    arguments: dict[str, Any]
    """The arguments, as far as the provider reports them.

    `{"incomplete": text}` if the stream broke off within them.
    """
    status: Literal["success", "error", "unknown"]
    """Outcome of the call.

    `unknown` if the reply has no result of it, so that the call may or may not have had an effect.
    """
    content: str
    """The result as text, without encrypted parts; empty if the reply has none."""


def has_provider_call(message: AIMessage) -> bool:
    """Whether a reply, or one chunk of a streamed reply, has a call of a tool that the provider runs; False if its
    content is plain text.

    Gemini's searches have no block of their own and are recognised by the reply's metadata.
    """
    content = message.content
    if not isinstance(content, list):
        return False
    if any(isinstance(each, dict) and each.get("type") in _CALLS for each in content):
        return True
    return bool((message.response_metadata.get("grounding_metadata") or {}).get("web_search_queries"))


def provider_calls(message: AIMessage) -> list[ProviderCall]:
    """Return the calls of provider-run tools in a reply, in order, each with its result.

    Gemini's search, which is reported in the reply's metadata, comes last. Empty if the provider ran no tool. A call
    without a result has the status `unknown`; a result without an id belongs to the call before it.
    """
    found: dict[str, ProviderCall] = {}
    for at, block in enumerate(_blocks(message)):
        if block["type"] in ("server_tool_call", "server_tool_call_chunk"):
            call = _call(block, _id_of(block, message, at))
            found[call["id"]] = call
        elif block["type"] == "server_tool_result":
            # Gemini's results name no call: they follow it.
            id_ = block.get("tool_call_id") or next(reversed(found), "")
            if id_ in found:
                found[id_] |= _outcome(block)
    return [*found.values(), *_searches(message)]


def _blocks(message: AIMessage) -> list[Mapping[str, Any]]:
    """Return the content of a message as LangChain's standard blocks.

    Empty if the content is a plain string without Gemini's search results, because it then has no call and no source.
    """
    if isinstance(message.content, str) and "grounding_metadata" not in message.response_metadata:
        return []
    return [*message.content_blocks]


def _call(block: Mapping[str, Any], id_: str) -> ProviderCall:
    """Return a standard block of a call as `ProviderCall`, with status `unknown` and without a result.

    Args:
        block: A `server_tool_call` block, whose arguments are a dict or JSON.
        id_: The call's id.
    """
    extras = block.get("extras") or {}
    arguments = block.get("args")
    if isinstance(arguments, str):
        arguments = _read(arguments)
    name = str(block.get("name") or "tool")
    call = ProviderCall(
        id=id_,
        name=str(extras.get("tool_name") or name) if name == "remote_mcp" else name,
        arguments=dict(arguments or {}),
        status="unknown",
        content="",
    )
    if label := extras.get("server_label") or extras.get("server_name"):
        call["server"] = str(label)
    return call


def _read(arguments: str) -> dict[str, Any]:
    """Return the arguments of a call that were streamed as JSON, as a dict.

    Text that is not valid JSON is returned as `{"incomplete": text}`, and a value that is no object as `{"value": …}`.
    """
    try:
        read = json.loads(arguments or "{}")
    except ValueError:
        return {"incomplete": arguments}
    return read if isinstance(read, dict) else {"value": read}


def _outcome(block: Mapping[str, Any]) -> Any:
    """Return the fields `status` and `content` for the call that a result block belongs to.

    Empty if the block reports only that the call is still running.
    """
    output, extras = block.get("output"), block.get("extras") or {}
    failed = block.get("status") == "error" or bool(extras.get("error")) or _is_error(output)
    if "status" not in block and output is None and extras.get("status") not in (None, "completed"):
        return {}
    return {"status": "error" if failed else "success", "content": text_of_result(output or extras.get("error"))}


def _is_error(output: Any) -> bool:
    """Whether the output of a result is an error in the form of Anthropic's API, whose type ends with `_error`."""
    return isinstance(output, Mapping) and str(output.get("type", "")).endswith("_error")


def _searches(message: AIMessage) -> Iterable[ProviderCall]:
    """Yield one call `google_search` if Gemini's API searched for a reply, with the pages found as its result.

    Gemini reports the search in the reply's metadata and not as a content block.
    """
    grounding = message.response_metadata.get("grounding_metadata") or {}
    if queries := grounding.get("web_search_queries"):
        pages = [chunk.get("web") or {} for chunk in grounding.get("grounding_chunks") or ()]
        content = text_of_result([{"title": page.get("title"), "url": page.get("uri")} for page in pages])
        yield ProviderCall(
            id=f"{message.id or 'reply'}-search",
            name="google_search",
            arguments={"queries": [*queries]},
            status="success",
            content=content,
        )


def text_of_result(output: Any) -> str:
    """Return the output of a provider's tool as text, without encrypted parts.

    The titles, addresses and texts in it stand on one line each, at any level of nesting. None becomes an empty text.
    """
    if output is None or isinstance(output, str):
        return output or ""
    if isinstance(output, Mapping):
        fields = [value for key, value in output.items() if key in _SHOWN and value]
        return "\n".join(text for value in fields if (text := text_of_result(value)))
    if isinstance(output, Iterable):
        return "\n".join(text for value in output if (text := text_of_result(value)))
    return str(output)


_SHOWN = (
    *("title", "filename", "url", "text", "content", "output", "outputs", "logs", "stdout", "stderr", "sources"),
    *("results", "error_code", "return_code", "code_execution_result", "message"),
)
"""Fields of a result that `text_of_result` keeps; the others are types, ids and encrypted content."""


def citations_of(message: AIMessage) -> list[Citation]:
    """Return the sources that a reply cites, in the order of its text; empty if there are none.

    The positions in each citation count the characters of the reply's whole text; one without positions cites its whole
    block.
    """
    found: list[Citation] = []
    begin = 0
    for block in _blocks(message):
        if block["type"] != "text":
            continue
        text = str(block.get("text") or "")
        annotations = [each for each in block.get("annotations") or () if each.get("type") == "citation"]
        found += [_citation(each, begin, text) for each in annotations]
        begin += len(text)
    return found


def _citation(given: Mapping[str, Any], begin: int, text: str) -> Citation:
    """Return one citation of a text block in the form of an answer's citations, without fields that the provider left
    out.

    Args:
        given: LangChain's annotation.
        begin: Position of the block's text in the text of the reply, which is added to the positions in the block.
        text: The block's text, all of which is cited if the annotation has no positions.
    """
    extras = given.get("extras") or {}
    title = given.get("title") or extras.get("filename")
    cited = Citation()
    for name, value in (("url", given.get("url")), ("title", title), ("cited_text", given.get("cited_text"))):
        if value:
            cited[name] = str(value)  # type: ignore[literal-required]  # the names are those of the class
    start, end = given.get("start_index"), given.get("end_index")
    if isinstance(end, int):
        cited["start"], cited["end"] = begin + (start or 0), begin + end
    elif text:
        # Anthropic's API cites with a whole block of text.
        cited["start"], cited["end"] = begin, begin + len(text)
    return cited


def text_with_calls(message: AIMessage) -> str:
    """Return a reply as plain text for a model of another provider, with provider-run calls and results in place.

    Each text block and call is a paragraph of its own; a result directly follows its call. Reasoning and encrypted
    parts are left out. Calls that have no block of their own precede the text. A reply without calls is its plain text.
    """
    calls = {call["id"]: call for call in provider_calls(message)}
    if not calls:
        return message.text
    texts: list[str] = []
    for at, block in enumerate(_blocks(message)):
        if block["type"] == "text":
            texts.append(str(block.get("text") or ""))
        elif block["type"] in ("server_tool_call", "server_tool_call_chunk"):
            call = calls.pop(_id_of(block, message, at), None)
            texts += _written([call] if call is not None else [])
    return "\n\n".join(text for text in (*_written(calls.values()), *texts) if text.strip())


def _id_of(block: Mapping[str, Any], message: AIMessage, at: int) -> str:
    """Return the id of a call's block, which is the block `at` of a message; one without an id is named by these."""
    return str(block.get("id") or f"{message.id or 'call'}-{at}")


def _written(calls: Iterable[ProviderCall]) -> list[str]:
    """Return two texts for each call: one with its name and arguments, and one with its result or status."""
    texts = []
    for call in calls:
        texts.append(f"[Call of {call['name']}: {json.dumps(call['arguments'], ensure_ascii=False)}]")
        result = "unknown, it may have run" if call["status"] == "unknown" else call["content"] or call["status"]
        texts.append(f"[Result of {call['name']}: {result}]")
    return texts


def without_unknown_calls(content: list[Any]) -> list[Any]:
    """Replace each provider-run call without a result by a text that names it, because Anthropic's API refuses such
    calls.

    Args:
        content: Content blocks of one message in Anthropic's form.

    Returns:
        A new list, with the other blocks unchanged.
    """
    ended = {block.get("tool_use_id") for block in content if isinstance(block, dict)}
    return [
        {"type": "text", "text": f"[Call of {block.get('name')}, whose result is unknown]"}
        if isinstance(block, dict)
        and block.get("type") in ("server_tool_use", "mcp_tool_use")
        and block.get("id") not in ended
        else block
        for block in content
    ]
