"""Sends requests that offer tools which the provider runs, and records the calls of these tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage
from langchain_core.outputs import ChatGenerationChunk, GenerationChunk
from langchain_core.runnables.config import ensure_config, merge_configs, var_child_runnable_config

from graph_agent.base.settings.config import LoopConfig
from graph_agent.base.usage import PROVIDER_CALLS, record_event, record_warning
from graph_agent.models.binding import Binding
from graph_agent.models.client import Mode, ModelClient, Phase
from graph_agent.models.continuation import joined_turn
from graph_agent.models.provider_tools import ProviderTool, is_offered
from graph_agent.models.schema_modes import WireFormat
from graph_agent.models.stream_watch import StreamWatch
from graph_agent.models.wire.clients import keeps_provider_calls
from graph_agent.models.wire.learn import Endpoint
from graph_agent.models.wire.provider_calls import ProviderCall, citations_of, has_provider_call, provider_calls
from graph_agent.models.wire.rules import WireRules
from graph_agent.models.wire.traits import CITATIONS

_RESULTS = {
    "web_search": "web_search_call.action.sources",
    "file_search": "file_search_call.results",
    "code_interpreter": "code_interpreter_call.outputs",
}
"""Tool of OpenAI's API → value of `include` by which a reply has its results."""


class ProviderToolClient(ModelClient):
    """A `ModelClient` whose requests also offer tools that the provider runs, as far as the model's endpoint has them.

    Each call of such a tool is recorded as a `provider_call` event. A request that fails after such a call is not sent
    again, because the call may have changed something; the event of a call without a result has the status `unknown`.
    """

    def __init__(
        self,
        model: BaseChatModel,
        schemas: Sequence[dict[str, Any]],
        tools: Sequence[ProviderTool],
        *,
        endpoint: Endpoint,
    ) -> None:
        super().__init__(model, schemas, endpoint=endpoint)
        self._provided = [tool for tool in tools if is_offered(tool, model, endpoint.rules)]
        self.has_provider_tools = bool(self._provided)
        self.hides_calls = any(tool.api == "openai" for tool in self._provided)
        offered = {"tools": [dict(tool.definition) for tool in self._provided]}
        self._keeps_provider_calls = keeps_provider_calls(model, offered)

    async def ask(
        self,
        phase: Phase,
        request: Sequence[AnyMessage],
        settings: LoopConfig,
        *,
        watch: StreamWatch | None = None,
        **options: Any,
    ) -> AIMessage:
        """Send one request and return the reply, like `ModelClient.ask`, whose arguments it has.

        Nothing is sent again after the provider has begun to run a tool.
        """
        # The watch is what forbids to send a request again.
        watch = watch or StreamWatch()
        with self._guarded(watch):
            return await super().ask(phase, request, settings, watch=watch, **options)

    def _in_own_terms(self, reply: AIMessage) -> AIMessage:
        return self._recorded(super()._in_own_terms(reply))

    async def answer_after(
        self, sentence: str, request: Sequence[AnyMessage], settings: LoopConfig, **options: Any
    ) -> tuple[AIMessage, Exception | None]:
        """Request an answer that follows a fixed sentence, like `ModelClient.answer_after`, and record the calls of the
        provider's tools as events.

        Returns:
            The message, and None if the answer is complete, else the last model's error.
        """
        with self._guarded(options["watch"]):
            message, failure = await super().answer_after(sentence, request, settings, **options)
            return self._recorded(message), failure

    @contextmanager
    def _guarded(self, watch: StreamWatch) -> Iterator[None]:
        """Watch the replies inside the `with` block for calls of the provider's tools, after which nothing is sent
        again.

        If the block raises, the calls so far are recorded as events; if they cannot be seen, a warning states that a
        tool may have run.
        """
        guard = _CallGuard(watch, is_hidden=self.hides_calls)
        token = var_child_runnable_config.set(merge_configs(ensure_config(), {"callbacks": [guard]}))
        try:
            yield
        except BaseException:
            _record(calls := guard.calls())
            if guard.has_begun and not calls:
                names = ", ".join(tool.name for tool in self._provided)
                record_warning(f"The reply broke off; a tool that the provider runs ({names}) may have run unseen.")
            raise
        finally:
            var_child_runnable_config.reset(token)

    def _recorded(self, reply: AIMessage) -> AIMessage:
        """Record the calls of the provider's tools in a reply as events, and return the reply with their number and its
        citations in the metadata.

        A text content becomes a block then, because only blocks are converted for another model. A reply without calls
        and citations is returned unchanged.
        """
        calls = provider_calls(reply)
        _record(calls)
        metadata: dict[str, Any] = {}
        if counted := _counted(calls):
            metadata[PROVIDER_CALLS] = counted
        if cited := citations_of(reply):
            metadata[CITATIONS] = cited
        if not calls and not metadata:
            return reply
        update: dict[str, Any] = {"response_metadata": {**reply.response_metadata, **metadata}}
        if isinstance(text := reply.content, str):
            # Only content blocks are converted for another model, which then receives the calls.
            update["content"] = [{"type": "text", "text": text}] if text else []
        return reply.model_copy(update=update)

    def _bind(
        self, phase: Phase, settings: LoopConfig, form: WireFormat | None, rules: WireRules, *, mode: Mode
    ) -> Binding:
        """Build the model of a request like `ModelClient._bind`, and ask OpenAI to include the results of its tools in
        the reply, by the option `include`; other values in it stay.

        Nothing is added for tools without such results, and for a model class without the option.
        """
        bound = super()._bind(phase, settings, form, rules, mode=mode)
        wanted = [_RESULTS[tool.name] for tool in self._provided if tool.api == "openai" and tool.name in _RESULTS]
        model: Any = bound.runnable
        if not wanted or not hasattr(model, "include"):
            return bound
        given = bound.options.get("include") or model.include or ()
        return bound._replace(options={**bound.options, "include": [*dict.fromkeys([*given, *wanted])]})

    def _offer(self, phase: Phase, rules: WireRules) -> tuple[list[dict[str, Any]], Any]:
        """Return the tools to send, those of the provider last, and the tool choice; None as choice if the agent has no
        tools.

        They are offered for answers, too.
        """
        schemas, choice = super()._offer(phase, rules) if self.schemas else ([], None)
        return [*schemas, *(dict(tool.definition) for tool in self._provided)], choice


class _CallGuard(AsyncCallbackHandler):
    """Callback that notices when the provider runs a tool, and collects the pieces of the reply with such calls.

    Args:
        watch: The watch of the reply. From the first call on, it forbids sending the request again, as does the watch
            of a request that continues a paused turn.
        is_hidden: Whether a call may have begun before any piece of the reply shows it; see `ModelClient.hides_calls`.
    """

    run_inline = True
    """LangChain calls the handler directly, without creating a task for each token."""

    def __init__(self, watch: StreamWatch, *, is_hidden: bool) -> None:
        self._watch = watch
        self._is_hidden = is_hidden
        self._pieces: dict[UUID, list[AIMessageChunk]] = {}
        """Run of a request → the pieces of its reply, from the first call of the turn on."""
        self.has_begun = False
        """Whether the provider may have begun to run a tool."""

    async def on_llm_new_token(
        self, *_: Any, chunk: GenerationChunk | ChatGenerationChunk | None = None, run_id: UUID, **__: Any
    ) -> None:
        """Look for a call of a provider's tool in a piece of the reply. From the first call on, pieces are kept, and
        the watch (the record of what readers have received) forbids sending the request again.

        For a model whose calls cannot be seen in the stream, the first piece has the same effect.
        """
        message = chunk.message if isinstance(chunk, ChatGenerationChunk) else None
        if not isinstance(message, AIMessageChunk):
            return
        has_call = has_provider_call(message)
        if self._pieces or has_call:
            self._pieces.setdefault(run_id, []).append(message)
        if has_call or self._is_hidden:
            self._watch.ran_tools = self.has_begun = True
            if self._watch.continuation is not None:
                self._watch.continuation.ran_tools = True

    def calls(self) -> list[ProviderCall]:
        """Return the calls of a reply that broke off; those without a result have the status `unknown`."""
        parts: list[AIMessage] = [first + others if others else first for first, *others in self._pieces.values()]
        return provider_calls(reduce(joined_turn, parts)) if parts else []


def _record(calls: Sequence[ProviderCall]) -> None:
    """Record an event for each call."""
    for call in calls:
        record_event("provider_call", **call)


def _counted(calls: Sequence[ProviderCall]) -> Mapping[str, int]:
    """Return tool name → number of calls that the provider charges, i.e. that did not fail."""
    counted: dict[str, int] = {}
    for call in calls:
        if call["status"] != "error":
            counted[call["name"]] = counted.get(call["name"], 0) + 1
    return counted
