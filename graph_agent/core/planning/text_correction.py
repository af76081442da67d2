"""Asks again if a reply shows that the model's server ignores native tools: then tools are described in text.

Native tools are those passed by the provider's API. Some servers accept them and leave them out of the prompt.
"""

from __future__ import annotations

from typing import Literal

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from graph_agent.base.types import NO_USAGE
from graph_agent.core.planning.ask import finish_stream, finished_plan, fits, plan_once
from graph_agent.core.planning.exchange import Exchange
from graph_agent.core.planning.reply import Planned, WrittenCall, with_answer, without_invention, written_call
from graph_agent.models.dropped_tools import drops_tools, fewest_tokens_of_tools, input_tokens
from graph_agent.models.stream_filters import is_sentinel

Sign = WrittenCall | Literal["sentinel", "dropped"]
"""Why a native reply without calls is requested again in text.

A call written in its text; `sentinel`: it has only the sentinel; `dropped`: its input tokens are too few to include
tools.
"""
_DROPS_TOOLS = (
    "accepts tools and leaves them out of the prompt, as the input tokens of its reply show; calls are asked for in "
    "text from now on. Set tool_calling: text to begin with it."
)


def apply_known_drop(exchange: Exchange) -> None:
    """Switch to text mode, with a warning, before the first request: another session found that the server drops tools.

    Does nothing if the request is not in native mode.
    """
    if exchange.request.mode == "native":
        exchange.warn(_warning_of(exchange))
        exchange.request = exchange.request.with_text_tools()


async def sign_of_ignored_tools(exchange: Exchange, planned: Planned) -> Sign | None:
    """Return the sign in a native reply without calls that the model's server ignored the offered tools; None if none.

    In order of precedence: `dropped` if the input tokens show it; None if the reply fits an enforced schema; `sentinel`
    if the reply is only the sentinel (`No more actions.`), unless the model is known to take tools, or the settings are
    `tool_calling="native"` and `finalize="compose"`; a `WrittenCall` if the text ends in calls.

    Args:
        exchange: Has sent the requests of the pass; the plan is the reply to the newest one.
        planned: The plan, before any work of the input.
    """
    if _drops_tools(exchange, planned):
        return "dropped"
    request = exchange.request
    if await fits(request, planned):
        return None
    if is_sentinel(planned.raw_text):
        settings = request.settings
        # With `compose`, every model without calls replies so, and the correction costs a request.
        trusted = settings.tool_calling == "native" and settings.finalize == "compose"
        return None if trusted or request.model.takes_tools else "sentinel"
    return written_call(planned.raw_text, request.deps.toolbox.names, request.history)


def _drops_tools(exchange: Exchange, planned: Planned) -> bool:
    """Whether the number of input tokens shows that the server left the tools out of the prompt.

    False if no tools were sent, if the reply has no usage, for an endpoint with the rules of a known provider or
    server, and after a native call of the model.
    """
    request, used = exchange.request, planned.message.usage_metadata
    (messages, tools), name = exchange.stream.sent, request.model.name
    known = request.model.is_known or name in request.loop.get("native_tools", ())
    if known or used is None or not tools or request.agent.models.drops_tools.get(name) is False:
        return False
    # The newest message, and a system prompt, are those that no server leaves out of a long conversation.
    prompt = [message.text for message in {0: messages[0], len(messages) - 1: messages[-1]}.values()]
    return drops_tools(input_tokens(used), prompt, fewest_tokens_of_tools(tools))


async def plan_in_text(exchange: Exchange, first: Planned, sign: Sign) -> Planned:
    """Ask again with the tools described in text, and return the plan of the reply that counts. A warning is added.

    Calls in the text of the first reply do not run. The first reply is used if a limit forbids another request, or if
    the second has no calls and either has no answer or the first may be an answer; after `sentinel`, the second is used
    in any case. If the second has calls, later requests to this model are in text, too. The rest of the reply that
    counts is streamed.

    Args:
        exchange: Sends the requests of the pass.
        first: The plan of the native reply.
        sign: The sign in it that the server ignores tools; `dropped` is handled by `_plan_without_native_tools`.

    Raises:
        Exception: The errors of `plan_once`.
    """
    if sign == "dropped":
        return await _plan_without_native_tools(exchange, first)
    request, stream, sentinel = exchange.request, exchange.stream, sign == "sentinel"
    # The reader of a model that is known to take tools may have received all of the reply.
    if isinstance(sign, WrittenCall) and sign.end is not None and len(stream.text) <= sign.end:
        first = without_invention(first, sign.end)
        exchange.warn_of_invention(first.invented)
    answer = first
    if isinstance(sign, WrittenCall) and sign.prose is not None and len(stream.text) <= len(sign.prose):
        answer = with_answer(first, sign.prose)
    if exchange.limit_met(NO_USAGE, first.message) is not None:
        await finish_stream(stream, answer)
        return answer
    exchange.record(asked_in_text=True)
    did = "had nothing to do, and has called no tool" if sentinel else "wrote a call as text, which was not run"
    exchange.warn(f"The model {request.model.name} {did}; it is asked once more, with the tools described in text.")
    notice: list[AnyMessage] = [AIMessage(first.raw_text), HumanMessage(request.deps.prompts.render("written_call"))]
    in_text = exchange.request.override(in_text=True)
    second = await plan_once(exchange, in_text, () if sentinel else notice, quiet=not sentinel)
    if second.calls:
        exchange.request = exchange.request.with_text_tools()
    elif isinstance(sign, WrittenCall) and (sign.may_be_answer or not second.answers):
        exchange.stream = stream
        await finish_stream(stream, answer)
        return answer
    await finish_stream(exchange.stream, second)
    return second


async def _plan_without_native_tools(exchange: Exchange, first: Planned) -> Planned:
    """Ask again in text, with a warning, after input tokens showed that the server drops tools. All later requests are
    in text, too.

    The server is remembered for other sessions of this process. The text of the first reply becomes commentary of the
    warning.

    Args:
        exchange: Sends the requests of the pass.
        first: The plan of the native reply; it is returned if a limit forbids another request, or if the second reply
            has no calls, complete or unreadable, and no answer.

    Raises:
        Exception: The errors of `plan_once`.
    """
    stream, models = exchange.stream, exchange.request.agent.models
    models.drops_tools[exchange.request.model.name] = True
    exchange.request = exchange.request.with_text_tools()
    if exchange.limit_met(NO_USAGE, first.message) is not None:
        exchange.warn(_warning_of(exchange))
        await finish_stream(stream, first)
        return first
    # A reader that is served whole replies receives what a streaming reader has received.
    await stream.finish(first.raw_text, None, first.message.id)
    exchange.warn(_warning_of(exchange), **({"commentary": stream.text} if stream.text else {}))
    second = await plan_once(exchange, exchange.request)
    if not second.calls and not second.answers and not second.unread:
        return first
    return await finished_plan(exchange, second)


def _warning_of(exchange: Exchange) -> str:
    """Return the warning that the model's server drops tools."""
    return f"The server of {exchange.request.model.name} {_DROPS_TOOLS}"
