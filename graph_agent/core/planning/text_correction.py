"""Asks again where a reply shows that the model's server ignores native tools, or that a call cannot be read."""

from __future__ import annotations

from typing import Literal

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from graph_agent.base.types import NO_USAGE
from graph_agent.core.planning.ask import finish_stream
from graph_agent.core.planning.reply import Planned, WrittenCall, with_answer, without_invention, written_call
from graph_agent.core.planning.request_state import RequestState
from graph_agent.core.planning.requests import ModelRequests, finished_plan
from graph_agent.models.dropped_tools import drops_tools, fewest_tokens_of_tools, input_tokens
from graph_agent.models.stream_filters import is_sentinel

Sign = WrittenCall | Literal["sentinel", "dropped"]
"""Why a reply without calls is requested again in text: a call in its text, the sentinel, or its input tokens."""
_DROPS_TOOLS = (
    "accepts tools and leaves them out of the prompt, as the input tokens of its reply show; calls are asked for in "
    "text from now on. Set tool_calling: text to begin with it."
)


def apply_known_drop(active: RequestState) -> None:
    """Ask in text from the first request, because another session has found that the model's server drops tools."""
    if active.mode == "native":
        active.warn(_warning_of(active))
        active.use_text_tools()


async def sign_of_ignored_tools(requests: ModelRequests, planned: Planned) -> Sign | None:
    """Return the sign that the server ignores tools, in a native reply without calls before any work; None without."""
    if _drops_tools(requests, planned):
        return "dropped"
    active = requests.active
    if await requests.fits(planned):
        return None
    if is_sentinel(planned.raw_text):
        settings = active.settings
        # With `compose`, every model without calls replies so, and the correction costs a request.
        trusted = settings.tool_calling == "native" and settings.finalize == "compose"
        return None if trusted or active.model.takes_tools else "sentinel"
    return written_call(planned.raw_text, active.deps.toolbox.names, active.history)


def _drops_tools(requests: ModelRequests, planned: Planned) -> bool:
    """Whether the input tokens of a reply without calls show that the server has left the tools out of the prompt.

    Decided only for endpoints that are not known to take tools, before a native call of the model.
    """
    active, used = requests.active, planned.message.usage_metadata
    (messages, tools), name = requests.stream.sent, active.model.name
    known = active.model.is_known or name in active.loop.get("native_tools", ())
    if known or used is None or not tools or active.agent.models.drops_tools.get(name) is False:
        return False
    # The newest message, and a system prompt, are those that no server leaves out of a long conversation.
    prompt = [message.text for message in {0: messages[0], len(messages) - 1: messages[-1]}.values()]
    return drops_tools(input_tokens(used), prompt, fewest_tokens_of_tools(tools))


async def plan_in_text(requests: ModelRequests, first: Planned, sign: Sign) -> Planned:
    """Ask again with the tools described in text, and return the reply that counts.

    No call of the first reply is run. The first reply counts if a limit forbids another request, if the second has
    neither calls nor an answer, or if the first may be an answer itself.
    """
    if sign == "dropped":
        return await _plan_without_native_tools(requests, first)
    active, stream, sentinel = requests.active, requests.stream, sign == "sentinel"
    # The reader of a model that is known to take tools may have received all of the reply.
    if isinstance(sign, WrittenCall) and sign.end is not None and len(stream.text) <= sign.end:
        first = without_invention(first, sign.end)
        requests.warn_of_invention(first.invented)
    answer = first
    if isinstance(sign, WrittenCall) and sign.prose is not None and len(stream.text) <= len(sign.prose):
        answer = with_answer(first, sign.prose)
    if requests.limit_met(NO_USAGE, first.message) is not None:
        await finish_stream(stream, answer)
        return answer
    active.record(asked_in_text=True)
    did = "had nothing to do, and has called no tool" if sentinel else "wrote a call as text, which was not run"
    active.warn(f"The model {active.model.name} {did}; it is asked once more, with the tools described in text.")
    notice: list[AnyMessage] = [AIMessage(first.raw_text), HumanMessage(active.deps.prompts.render("written_call"))]
    with active.text_mode():
        second = await requests.plan_once(() if sentinel else notice, quiet=not sentinel)
    if second.calls:
        active.use_text_tools()
    elif isinstance(sign, WrittenCall) and (sign.may_be_answer or not second.answers):
        requests.stream = stream
        await finish_stream(stream, answer)
        return answer
    await finish_stream(requests.stream, second)
    return second


async def _plan_without_native_tools(requests: ModelRequests, first: Planned) -> Planned:
    """Ask again in text, and in text from now on; the words of the first reply become commentary."""
    active, stream = requests.active, requests.stream
    active.agent.models.drops_tools[active.model.name] = True
    active.use_text_tools()
    if requests.limit_met(NO_USAGE, first.message) is not None:
        active.warn(_warning_of(active))
        await finish_stream(stream, first)
        return first
    # A reader that is served whole replies receives what a streaming reader has received.
    await stream.finish(first.raw_text, None, first.message.id)
    active.warn(_warning_of(active), **({"commentary": stream.text} if stream.text else {}))
    second = await requests.plan_once()
    if not second.calls and not second.answers and not second.unread:
        return first
    return await finished_plan(requests, second)


def _warning_of(active: RequestState) -> str:
    return f"The server of {active.model.name} {_DROPS_TOOLS}"
