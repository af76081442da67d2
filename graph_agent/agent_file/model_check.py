"""Asks a model with one small tool, for `doctor --ask-model`: how it calls tools, and how much it reads."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from graph_agent.models.wire.learn import Endpoint

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check of `doctor`."""

    check: str
    """What was checked, such as `model`."""
    status: Status
    """`problem` if agents fail, `warning` if they work, but not as may be expected."""
    text: str
    """What was found, in one line."""
    fix: str = ""
    """What to do about it; empty for `ok`."""


_ANSWER_S = 60.0
"""Maximum seconds for the model's answer."""
_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Return the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_SYSTEM = "Answer with a call of the tool that is offered."
_QUESTION = "What is the weather in Bergen?"


async def ask_with_tool(name: str, model: BaseChatModel, config: Mapping[str, Any]) -> AsyncIterator[CheckResult]:
    """Send a model one request with a tool, and a second one without it if tools are refused; yield what was found.

    An error of the model is a result, too, and is then the only one. Each request waits `_ANSWER_S` seconds at most.

    Yields:
        Whether the model answered; whether it calls tools natively or must be asked in text; the rules of its endpoint,
        with those that a refusal has changed; and its context window, if the server reports it.

    Args:
        name: The model's name in the agent file.
        model: The model.
        config: The configuration of the agent file (`config:`).
    """
    from graph_agent.base.settings.config import LoopConfig
    from graph_agent.base.usage import name_of_model
    from graph_agent.models.errors import classify_model_error
    from graph_agent.models.wire.client_retries import without_client_retries
    from graph_agent.models.wire.learn import endpoint_of
    from graph_agent.models.wire.shape import adapted_copy

    rules = LoopConfig(model_rules=config.get("model_rules") or {})
    endpoint = endpoint_of(model, rules.rules_of(name, name_of_model(model)))
    # Without the client's own retries: the time of one answer is shown.
    model = adapted_copy(without_client_retries(model), model)
    begun = time.monotonic()
    try:
        state, text, fix = await asyncio.wait_for(_state_of_tools(model, endpoint), _ANSWER_S)
    except Exception as error:  # noqa: BLE001 - a provider may raise anything
        if classify_model_error(error) != "tools_rejected":
            yield _no_answer(name, error)
            return
        try:
            await asyncio.wait_for(model.ainvoke("Reply with the word OK."), _ANSWER_S)
        except Exception as second:  # noqa: BLE001 - as above
            yield _no_answer(name, second)
            return
        # The second request shows whether the server refuses tools or everything.
        state, text, fix = "text", "its server refuses tools", ""
    yield CheckResult("model", "ok", f"{name} answered in {time.monotonic() - begun:.1f} s")
    mode = config.get("tool_calling", "auto")
    if state == "dropped" and mode == "native":
        yield CheckResult("tools", "problem", f"{name}: {state}: {text}", fix)
    elif state == "dropped" and mode == "auto":
        yield CheckResult("tools", "warning", f"{name}: {state}: {text}; calls are asked for in text", fix)
    else:
        yield CheckResult("tools", "ok", f"{name}: {state}: {text}" + ("" if mode == "auto" else f"; set: {mode}"))
    yield _rules(name, endpoint)
    if (result := await _window(name, model, config)) is not None:
        yield result


def _rules(name: str, endpoint: Endpoint) -> CheckResult:
    """Return a result with the name of the endpoint's rules, and what a refusal has changed in them, as a warning."""
    text = f"{name}: those of {endpoint.rules.provider}"
    if not endpoint.learned:
        return CheckResult("rules", "ok", text)
    changed = {key: sorted(value) if isinstance(value, frozenset) else value for key, value in endpoint.learned.items()}
    fix = f"Write into config: model_rules: {json.dumps({name: changed})}"
    return CheckResult("rules", "warning", f"{text}, and a refusal has changed {', '.join(changed)}", fix)


def _no_answer(name: str, error: Exception) -> CheckResult:
    """Return the problem of a model that did not answer."""
    from graph_agent.models.errors import describe_model_error

    fix = "Check the key, the model's name and the network; `base_url` in the agent file selects another server."
    return CheckResult("model", "problem", f"{name} did not answer: {describe_model_error(error)}", fix)


async def _state_of_tools(model: BaseChatModel, endpoint: Endpoint) -> tuple[str, str, str]:
    """Ask the model with a tool; return how it calls tools, a reason, and a fix, which is empty if none is needed.

    `native` is by structured calls, `text` by calls in its text, `dropped` means that the server accepts tools and
    leaves them out of the prompt. Tested in this order: a structured call, dropped tools by the reported tokens, a call
    in the text, a model's name that is known for calls in text; otherwise `native`.

    Raises:
        Exception: The provider's error.
    """
    from langchain_core.messages import HumanMessage, SystemMessage

    from graph_agent.base.settings.config import LoopConfig
    from graph_agent.models.capabilities import choose_tool_calling
    from graph_agent.models.client import ModelClient
    from graph_agent.models.dropped_tools import drops_tools, fewest_tokens_of_tools, input_tokens
    from graph_agent.models.stream_watch import StreamWatch
    from graph_agent.models.wire.parsing.calls import parse_tool_calls

    watch = StreamWatch()
    client = ModelClient(model, [_TOOL], endpoint=endpoint)
    reply = await client.ask(
        "plan",
        [SystemMessage(_SYSTEM), HumanMessage(_QUESTION)],
        # One attempt, because an error is a result here.
        LoopConfig(model_retries=0),
        mode="native",
        quiet=True,
        watch=watch,
    )
    used, tools = reply.usage_metadata, watch.sent[1]
    if reply.tool_calls:
        return "native", "it has called the tool that was offered", ""
    reported = input_tokens(used) if used is not None else 0
    if used is not None and drops_tools(reported, [_SYSTEM, _QUESTION], fewest_tokens_of_tools(tools)):
        text = f"its server accepts tools and leaves them out of the prompt, which has {reported} tokens"
        fix = "Set tool_calling: text in config, or serve the model with a chat template that has tools."
        return "dropped", text, fix
    if parse_tool_calls(reply.text, tools=["weather"]):
        return "text", "it has written the call as text", ""
    if choose_tool_calling(model, "auto") == "text":
        return "text", "models of this name call no tools natively", ""
    return "native", "its server accepts tools; the model has answered without a call", ""


async def _window(name: str, model: BaseChatModel, config: Mapping[str, Any]) -> CheckResult | None:
    """Return a result with the context window that the server reports; None if it reports none.

    It is a problem if the agent file's `context_window` is larger.
    """
    from graph_agent.models.resolve import served_window

    served, given = await served_window(model), config.get("context_window")
    if served is None:
        return None
    text = f"{name} reads {served:,} tokens"
    if isinstance(given, int) and given > served:
        fix = f"Write context_window: {served} into config, or start the server with a larger window."
        return CheckResult("window", "problem", f"{text}, and config.context_window is {given:,}", fix)
    return CheckResult("window", "ok", text)
