"""Loop hooks: what may look at a planning reply before its calls are run, and have the model asked again.

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
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, ToolCall, ToolMessage

from graph_agent.config import LoopConfig
from graph_agent.types import Call, Usage

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

OnError = Literal["fail", "skip"]
"""What an exception of a hook does: `fail` ends the input `FAILED`; `skip` warns, and goes on without the hook."""


@dataclass(frozen=True, slots=True, eq=False)
class HookRequest:
    """The request that a planning reply answers. A patch makes another.

    Each hook is shown a copy, all but the model and the settings: changing it changes nothing.
    """

    model: BaseChatModel | str
    """The chat model that is asked; a name only where a patch gave one."""
    messages: list[AnyMessage]
    """The conversation as the model is sent it; the system prompt is put before it at each request."""
    tools: list[dict[str, Any]]
    """The tools on offer, as OpenAI schemas under their own names."""
    max_tokens: int | None
    """Tokens of one reply; None leaves it to the provider."""
    optional_params: Mapping[str, Any]
    """Options of the model call, e.g. `temperature`."""
    kwargs: Mapping[str, Any]
    """Further keyword arguments of the model call, e.g. `extra_headers`; empty unless a patch gave some."""
    settings: LoopConfig
    """The configuration in force."""
    session_id: str
    """The session; empty for a run without one."""
    step: int
    """The step that is being planned, or the last one for the answer's request; from 1."""
    phase: Literal["plan", "answer"] = "plan"
    """What the reply is: a planning reply, or the answer that is composed after planning."""
    depth: int = 0
    """How many times hooks have had the model asked again for this step: 0 for its first reply."""


@dataclass(frozen=True, slots=True, eq=False)
class HookResponse:
    """A planning reply, copied for each hook."""

    message: AIMessage
    """The reply, as the history would keep it."""
    calls: list[Call]
    """What would be run: `{"id", "name", "arguments"}` each, in every mode; empty when the model wants nothing."""
    usage: Usage
    """What this reply took."""

    @property
    def text(self) -> str:
        """What the model said beside its calls; empty for nothing."""
        return self.message.text

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls in LangChain's form, with `args`."""
        return self.message.tool_calls


@dataclass(frozen=True, slots=True, eq=False)
class RequestPatch:
    """What is to be different when the model is asked again. None, or an empty mapping, leaves things as they are."""

    model: BaseChatModel | str | None = None
    """A chat model, or a `provider:name` that the agent's resolver knows."""
    messages: Sequence[AnyMessage] | None = None
    """The whole conversation of the rerun.

    What it adds to the request's messages, such as a call and its result, is in the later requests of this input too,
    in the same place: further plans, and the answer's. What it leaves out or rewrites is so in the rerun alone. The
    session's history stays as it is. A call without its result behind it is left out, as providers refuse it.
    """
    tools: Sequence[dict[str, Any] | BaseTool | Any] | None = None
    """All tools to offer: OpenAI schemas, or what can be turned into one. Only the agent's own can be run."""
    max_tokens: int | None = None
    """Tokens of one reply."""
    optional_params: Mapping[str, Any] = field(default_factory=dict)
    """Options of the model call, laid over those in force; None for a value takes the option out."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further keyword arguments of the model call, laid over those in force."""

    def apply(self, request: HookRequest) -> HookRequest:
        """The patched request; the one given stays as it is.

        Raises:
            ValueError: When one of `tools` is nothing that a tool's schema can be made of.
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
    """What a hook wants done about a reply. Of several wishes the first counts, in the order of the fields below.

    The default wants nothing: the next hook is asked.
    """

    response_override: str | AIMessage | None = None
    """The answer of this input, in place of the reply: no rerun, no second phase, and none of its calls is run.

    Where the answer is to have a given shape, one that has it is the `structured_response` too; any other leaves that
    empty, with a warning.
    """
    terminate: bool = False
    """End the loop with this reply: none of its calls is run, and its text is the answer.

    Where it says nothing beside its calls, or only that nothing more is to be done, the second phase answers; so it
    does in wave mode, where the text is a plan's reasoning, and where the answer is to have a given shape.
    """
    run_agentic_loop: bool = False
    """Ask the model again, with the request patched; that reply takes the place of this one."""
    request_patch: RequestPatch | None = None
    """What is different then; None for the very same request."""
    keep_messages: Sequence[AnyMessage] = ()
    """Further messages for the later requests of this input, that the rerun itself does not hold.

    They stand behind the conversation as it is now and are no part of the history. What a patch's `messages` add is
    kept without being given here.
    """


class LoopHook:
    """Looks at each reply of the model before it counts. Subclass it; its methods may be coroutines instead.

    A planning reply is shown before its calls are run. The answer is shown before the user gets it, however it was
    made: by planning, by the second phase (`request.phase` is `answer` then), at a limit, or by a tool with
    `return_direct`. One hook serves all sessions, at the same time; a method that is no coroutine runs in a thread, so
    it may block. What models of its own say is not streamed, and is counted.
    """

    on_error: OnError = "fail"
    """What an exception in this hook does."""
    sees_answers: bool = True
    """Whether this hook is shown replies without calls, which may be the answer.

    While any hook is, an answer is streamed only when all hooks have seen it: it comes in one piece. A hook that looks
    at calls alone sets this to False.
    """
    tools: Sequence[Any] = ()
    """Tools offered to the model beside the agent's: OpenAI schemas, or what can be turned into one.

    Nobody runs their calls: the hook fulfils them, by a rerun; a call it lets pass is an error result. One named like a
    tool of the agent adds nothing, and the hook sees that tool's calls.
    """

    def should_run(
        self, response: HookResponse, request: HookRequest
    ) -> tuple[bool, Any] | Awaitable[tuple[bool, Any]]:
        """Whether this hook has something to do, and what `build_plan` is to know of it.

        Args:
            response: The reply.
            request: What it answers.
        """
        return False, None

    def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan | Awaitable[LoopPlan]:
        """What is to be done; asked only after `should_run` said yes.

        Args:
            context: What `should_run` gave.
            response: The reply.
            request: What it answers.
        """
        return LoopPlan()

    def rewrite_results(self, results: list[ToolMessage]) -> Mapping[str, str] | Awaitable[Mapping[str, str]]:
        """Tool results that requests hold with another text; asked before each plan and each answer.

        The history keeps every result as it is, so that each of these is given again the next time.

        Args:
            results: The results in the conversation, oldest first.

        Returns:
            Message id → text; results that are left out are sent as they are.
        """
        return {}


def sees_answers(hook: LoopHook) -> bool:
    """Whether a hook is shown replies without calls: not one that looks at calls alone, or at no reply at all."""
    looks = getattr(type(hook), "should_run", None) is not LoopHook.should_run
    return looks and bool(getattr(hook, "sees_answers", True))


class HookError(Exception):
    """A hook failed, and declares that the input fails with it; the text names it."""


def tool_schema(tool: Any) -> dict[str, Any]:
    """A tool as an OpenAI schema: `{"type": "function", "function": {"name", …}}`.

    Args:
        tool: Such a schema, a LangChain tool, a pydantic class, or a function.

    Raises:
        ValueError: When it is nothing of these.
    """
    # Imported here: only a hook that brings tools needs it.
    from langchain_core.utils.function_calling import convert_to_openai_tool

    try:
        schema = convert_to_openai_tool(tool)
        named = schema["function"]["name"]
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ValueError(f"{tool!r} is no tool; give an OpenAI schema or a LangChain tool ({error}).") from None
    if not isinstance(named, str) or not named:
        raise ValueError(f"{tool!r} is no tool: it has no name.")
    return schema
