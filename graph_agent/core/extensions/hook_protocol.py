"""Defines the protocol of loop hooks, which inspect a planning reply before its calls run and may rerun the model.

```python
class Shorter(LoopHook):
    def should_run(self, response, request):
        return len(response.calls) > 8, None

    def build_plan(self, context, response, request):
        ask = HumanMessage("Plan at most eight calls.")
        return LoopPlan(run_agentic_loop=True, request_patch=RequestPatch(messages=[*request.messages, ask]))
```
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, ToolCall, ToolMessage

from graph_agent.base.settings.config import LoopConfig
from graph_agent.base.types import Call, Usage

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

OnError = Literal["fail", "skip"]
"""Effect of a hook's exception: `fail` ends the input as `FAILED`; `skip` warns and continues without the hook."""


@dataclass(frozen=True, slots=True, eq=False)
class HookRequest:
    """The request that led to a reply, as hooks receive it. A patch creates a new one.

    Each hook receives a copy, except for the model and the settings, so mutations have no effect.
    """

    model: BaseChatModel | str
    """The chat model; the name `provider:name` only if a patch set one."""
    messages: list[AnyMessage]
    """The conversation as sent to the model, without the system prompt, which is prepended to each request."""
    tools: list[dict[str, Any]]
    """The offered tools, as OpenAI schemas under their own names."""
    max_tokens: int | None
    """Maximum tokens of one reply; None for the provider's default."""
    optional_params: Mapping[str, Any]
    """Options of the model call, e.g. `temperature`."""
    kwargs: Mapping[str, Any]
    """Additional keyword arguments of the model call, e.g. `extra_headers`; empty unless a patch set some."""
    settings: LoopConfig
    """The current configuration."""
    session_id: str
    """The session id; empty for a run without a session."""
    step: int
    """Number of the plan, from 1: the one being made, or the last one for the request of the answer."""
    phase: Literal["plan", "answer"] = "plan"
    """Kind of the reply: a planning reply, or the answer composed after planning."""
    depth: int = 0
    """Number of reruns by hooks in this step; 0 for the first reply."""


@dataclass(frozen=True, slots=True, eq=False)
class HookResponse:
    """A reply of the model, copied for each hook."""

    message: AIMessage
    """The reply, as the history would keep it."""
    calls: list[Call]
    """The calls that would run, each `{"id", "name", "arguments"}` in every mode; empty if there are none."""
    usage: Usage
    """Tokens and model calls of this reply."""

    @property
    def text(self) -> str:
        """Text of the reply without its calls; empty if there is none."""
        return self.message.text

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls in LangChain's form, with `args`; empty in modes in which the model writes calls as text."""
        return self.message.tool_calls


@dataclass(frozen=True, slots=True, eq=False)
class RequestPatch:
    """Changes to a request for a rerun of the model. None or an empty mapping leaves a field unchanged."""

    model: BaseChatModel | str | None = None
    """A chat model, or a `provider:name` for the agent's resolver."""
    messages: Sequence[AnyMessage] | None = None
    """The whole conversation of the rerun.

    Messages added to the request's, such as a call and its result, are also added at the same position to the later
    requests of this input, for plans and the answer. Removed or rewritten messages are so in the rerun only. The
    session's history is not changed. A call without a result after it is dropped, as providers refuse it.
    """
    tools: Sequence[dict[str, Any] | BaseTool | Any] | None = None
    """All tools to offer: OpenAI schemas, or objects convertible to one. Only the agent's own tools can run."""
    max_tokens: int | None = None
    """Maximum tokens of one reply."""
    optional_params: Mapping[str, Any] = field(default_factory=dict)
    """Options of the model call, merged over the current ones; a None value removes the option."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Additional keyword arguments of the model call, merged over the current ones."""

    def apply(self, request: HookRequest) -> HookRequest:
        """Return the request with the patch applied, as a new object; `request` is not changed.

        Fields of the patch that are None keep the request's value; options are merged, and the patch's win.

        Raises:
            ValueError: One of `tools` cannot be converted to a tool schema, or has no name.
        """
        return replace(
            request,
            model=request.model if self.model is None else self.model,
            messages=list(request.messages if self.messages is None else self.messages),
            tools=request.tools if self.tools is None else [tool_schema(tool) for tool in self.tools],
            max_tokens=request.max_tokens if self.max_tokens is None else self.max_tokens,
            optional_params={**request.optional_params, **self.optional_params},
            kwargs={**request.kwargs, **self.kwargs},
        )


@dataclass(frozen=True, slots=True, eq=False)
class LoopPlan:
    """A hook's decision about a reply. If several fields are set, the first one below takes effect.

    The default changes nothing, and the next hook is called.
    """

    # The order of these fields is their precedence.
    response_override: str | AIMessage | None = None
    """The answer of this input in place of the reply: no rerun, no second phase, and none of the reply's calls runs.

    With a response format, an override that matches it also becomes the `structured_response`; another one leaves that
    empty, with a warning.
    """
    terminate: bool = False
    """End the loop with this reply: none of its calls runs, and its text is the answer.

    The second phase answers if the reply has no text or only the sentinel, in wave mode, where the text is a plan's
    reasoning, and with a response format.
    """
    run_agentic_loop: bool = False
    """Rerun the model with the patched request; the new reply replaces this one."""
    request_patch: RequestPatch | None = None
    """Changes to the request for the rerun; None repeats the same request."""
    keep_messages: Sequence[AnyMessage] = ()
    """Additional messages for the later requests of this input, not included in the rerun itself.

    They are placed after the current conversation and are not part of the history. Messages added by a patch's
    `messages` are kept anyway.
    """


HookAction = Literal["replaced", "ended", "rerun"]
"""What a hook did to a reply, in its event.

`replaced`: it gave another answer. `ended`: it ended the loop with this reply. `rerun`: it had the model asked again.
"""


class LoopHook:
    """Inspects each reply of the model before it takes effect. Subclass it; methods may be coroutine functions.

    A planning reply is passed before its calls run. An answer is passed before it is emitted, whether it comes from
    planning, the second phase (the request for the answer after planning, with `request.phase` `answer`), a limit, or a
    tool with `return_direct`. One hook object serves all sessions concurrently. A method that is not a coroutine
    function runs in a thread, so it may block. Model calls made by a hook are not streamed; their usage is counted.
    """

    # A failed check must not let a reply pass unless the author has decided so.
    on_error: OnError = "fail"
    """Effect of an exception in this hook: `fail` ends the input as `FAILED`, `skip` warns and goes on without it."""
    sees_answers: bool = True
    """Whether this hook receives replies without calls, which may be the answer.

    If any hook does, an answer is emitted in one piece after all hooks have processed it. A hook that inspects only
    calls sets this to False.
    """
    tools: Sequence[Any] = ()
    """Tools offered to the model in addition to the agent's: OpenAI schemas, or objects convertible to one.

    The loop does not run their calls: the hook fulfils them by a rerun, and a remaining call becomes an error result. A
    tool with the name of an agent's tool is not added, and the hook receives that tool's calls.
    """

    def should_run(
        self, response: HookResponse, request: HookRequest
    ) -> tuple[bool, Any] | Awaitable[tuple[bool, Any]]:
        """Return whether this hook acts on a reply, and a context value for `build_plan`. The default acts on none.

        Args:
            response: A copy of the reply.
            request: A copy of the reply's request.
        """
        # Not abstract: a hook may only rewrite results.
        return False, None

    def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan | Awaitable[LoopPlan]:
        """Return the hook's decision; called only if `should_run` returned True. The default changes nothing.

        Args:
            context: The context value from `should_run`.
            response: A copy of the reply.
            request: A copy of the reply's request.
        """
        return LoopPlan()

    def rewrite_results(self, results: list[ToolMessage]) -> Mapping[str, str] | Awaitable[Mapping[str, str]]:
        """Return replacement texts of tool results for requests; called before each plan and each answer.

        The history keeps the original results, so the replacements must be returned each time. The default replaces
        none.

        Args:
            results: Copies of the results in the conversation, oldest first.

        Returns:
            Message id → text; results without an entry are sent unchanged.
        """
        return {}


class Middleware(Protocol):
    """An `AgentMiddleware` of the `langchain` package, for type checkers of programs that may lack the package."""

    @property
    def name(self) -> str:
        """The name, unique among the middleware of an agent."""
        ...

    @property
    def state_schema(self) -> type[Any]:
        """The `TypedDict` class whose fields are those of the state that the middleware reads and writes."""
        ...


def sees_answers(hook: LoopHook) -> bool:
    """Whether a hook receives replies without calls, which may be the answer.

    False for a hook that does not override `should_run`, or sets `sees_answers` to False.
    """
    # A hook that overrides nothing would otherwise keep answers from being streamed.
    inspects_replies = getattr(type(hook), "should_run", None) is not LoopHook.should_run
    return inspects_replies and bool(getattr(hook, "sees_answers", True))


def tool_schema(tool: Any) -> dict[str, Any]:
    """Return a tool as OpenAI function schema: `{"type": "function", "function": {"name": …, "parameters": …}}`.

    Args:
        tool: An OpenAI schema, a LangChain tool, a pydantic class, or a function.

    Raises:
        ValueError: It is none of these, or has no name.
    """
    # Imported here: only hooks with tools need it.
    from langchain_core.utils.function_calling import convert_to_openai_tool

    try:
        schema = convert_to_openai_tool(tool)
        name = schema["function"]["name"]
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ValueError(f"{tool!r} is no tool; give an OpenAI schema or a LangChain tool ({error}).") from None
    if not isinstance(name, str) or not name:
        raise ValueError(f"{tool!r} is no tool: it has no name.")
    return schema
