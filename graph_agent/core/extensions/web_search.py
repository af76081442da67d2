"""Fulfils a model's `web_search` calls with any search function."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

from graph_agent.base._internal.failure_log import exception_text, get_logger, log_user_error
from graph_agent.base._internal.sync_bridge import call_in_thread
from graph_agent.base._internal.text import as_text, clean
from graph_agent.base.calls import canonical_calls
from graph_agent.base.types import Call
from graph_agent.core.extensions.hook_protocol import (
    HookRequest,
    HookResponse,
    LoopHook,
    LoopPlan,
    OnError,
    RequestPatch,
)
from graph_agent.core.extensions.output import textless_fault, textless_in

logger = get_logger("graph_agent.hooks.web_search")

Search = Callable[[str], Any | Awaitable[Any]]
"""A query → its results: text, or plain JSON."""


class WebSearchInterception(LoopHook):
    """Runs a search for each `web_search` call of a reply, and asks the model again with the results.

    The hook offers the tool, so the agent needs none; if the agent has a tool of that name, its calls are fulfilled by
    the hook. The results stay in the requests until the input is answered. Other calls of the same reply do not run;
    the model can repeat them after reading the results. A failed search is an error result, so that the model may try
    another query. A call that depends on another's result (`needs`) is not handled.

    Args:
        search: The search, a function or a coroutine function of the query; a function runs in a thread.
        name: Name of the tool whose calls are fulfilled.
        description: The tool's description for the model.
        on_error: Effect of a failure of the hook itself, which a failed search is not: `fail` ends the input as
            `FAILED`; `skip` warns and continues without the hook.

    Raises:
        TypeError: `search` is not callable.
    """

    sees_answers = False

    def __init__(
        self,
        search: Search,
        *,
        name: str = "web_search",
        description: str = "Search the web. Returns what was found.",
        on_error: OnError = "fail",
    ) -> None:
        if not callable(search):
            raise TypeError(f"search must be a function of the query, not {search!r}")
        self.on_error = on_error
        self._search = search
        self._name = name
        query = {"type": "string", "description": "What to search for."}
        parameters = {"type": "object", "properties": {"query": query}, "required": ["query"]}
        self.tools = [
            {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
        ]

    async def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, list[Call]]:
        """Return whether the reply calls the search tool, and these calls as the context.

        A call with `needs` is left to the loop.
        """
        searches = [call for call in response.calls if call["name"] == self._name and not call.get("needs")]
        return bool(searches), searches

    async def build_plan(self, context: list[Call], response: HookResponse, request: HookRequest) -> LoopPlan:
        """Run all searches concurrently, and return the decision to ask the model again with their results.

        Args:
            context: The search calls, from `should_run`.
            response: The reply, whose other calls are dropped.
            request: The request, to which the calls and results are added.
        """
        results = await asyncio.gather(*(self._fulfil(call) for call in context))
        calls = AIMessage(response.text, tool_calls=canonical_calls(context))
        # Only the searches, as providers refuse calls without results.
        added: list[AnyMessage] = [calls, *results]
        return LoopPlan(run_agentic_loop=True, request_patch=RequestPatch(messages=[*request.messages, *added]))

    async def _fulfil(self, call: Call) -> ToolMessage:
        """Run one search and return its result message.

        It is an error result if the query is no text or blank, if the search fails (which is logged), or if it returns
        an object without a text, or one that cannot be converted to text. An empty text becomes `Nothing was found.`
        """
        query = call["arguments"].get("query")
        if not isinstance(query, str) or not query.strip():
            fault = f"{self._name} takes the query as text: {{'query': '…'}}, not {call['arguments']!r}."
            return _result(call, fault, failed=True)
        try:
            found = await self._run(query)
            text = clean(as_text(found))
        except Exception as error:  # noqa: BLE001 - a search may raise anything; the error is a result for the model
            log_user_error(logger, "The search of a hook", error)
            return _result(call, clean(f"The search failed: {exception_text(error)}"), failed=True)
        if (kind := textless_in(found, text)) is not None:
            return _result(call, textless_fault("The search", kind), failed=True)
        return _result(call, text or "Nothing was found.")

    async def _run(self, query: str) -> Any:
        """Call the search function with a query; a function that is no coroutine function runs in a thread.

        Raises its exceptions.
        """
        if asyncio.iscoroutinefunction(self._search):
            return await self._search(query)
        found = await call_in_thread(self._search, query)
        return await found if isinstance(found, Awaitable) else found


def _result(call: Call, content: str, *, failed: bool = False) -> ToolMessage:
    """Return the message with a call's result; with `failed`, its status is `error`."""
    return ToolMessage(content, tool_call_id=call["id"], name=call["name"], status="error" if failed else "success")
