"""Parses a planning reply into calls or an answer.

The sentinel is the text by which a model declares that it has no more calls. Mode `text` means that calls are written
in the reply's text, `wave` that the reply is a structured plan.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from graph_agent.base._internal.text import after_reasoning, clean
from graph_agent.base.calls import calls_of, canonical_calls, checked_call, known_name, with_unique_ids
from graph_agent.base.errors import SlowSchemaError
from graph_agent.base.finish import cause_of, cut_off, text_cut_off
from graph_agent.base.history.events import StoredEvent, event
from graph_agent.base.settings.config import Price
from graph_agent.base.settings.response_format import ResponseSchema
from graph_agent.base.types import Call, CutOff, Usage
from graph_agent.base.usage import usage_of
from graph_agent.core.execution.deps import AgentDeps
from graph_agent.core.extensions.hook_copies import copied
from graph_agent.core.extensions.hook_protocol import HookResponse
from graph_agent.core.state.messages import with_name
from graph_agent.models.client import Mode
from graph_agent.models.reply_end import ended_at
from graph_agent.models.sanitize import with_text, without_call_blocks, without_calls
from graph_agent.models.stream_filters import is_blank, may_begin_with_call, without_sentinel
from graph_agent.models.wire.fragments import UNASSIGNED
from graph_agent.models.wire.parsing.calls import read_text_calls, split_tool_calls, unfinished_call
from graph_agent.models.wire.parsing.plans import answer_of_plans
from graph_agent.models.wire.parsing.tags import FAMILY, FUNCTION_START, TAG
from graph_agent.models.wire.parsing.turns import without_leading
from graph_agent.models.wire.text_form import with_call_ids

_FIXES: dict[CutOff, str] = {
    "length": "Call it again with shorter arguments, or do the work in several smaller calls.",
    "content_filter": "Put the arguments in other words, or go on without it.",
    "interrupted": "Call it again.",
}
"""Kind of cut-off → advice to the model for a call of a reply that was cut off so."""
_UNREADABLE = "The call is no valid JSON of the form described there."
_MARKUP = re.compile(rf"{TAG.pattern}|{FUNCTION_START.pattern}|{FAMILY.pattern}")


@dataclass(frozen=True, slots=True)
class Planned(HookResponse):
    """The plan that a reply of the model states: calls to run, or an answer.

    `message` is the reply as the history stores it, with its calls in one form for all providers. `calls` is the wave,
    each call after those it needs.
    """

    last: bool
    """Whether planning ends after these calls, so that the model is not asked for another wave."""
    action: str
    """Short description of the plan, such as `call search` or `answer`."""
    reasoning: str
    """The text that the model wrote with the calls; for a structured plan its field `reasoning`."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the `plan` event, such as `slots` and `planner` in wave mode, `cached`, `reruns` or
    `candidates`."""
    answers: bool = False
    """Whether `message` may be the answer: it has text, no calls, and is not the sentinel."""
    raw_text: str = ""
    """The whole text of the reply as the model sent it."""
    empty: bool = False
    """Whether the reply has neither calls nor text."""
    final: bool = False
    """Whether `message` is the answer whatever the configuration is; its calls do not run."""
    ended: bool = False
    """Whether a hook ended the loop with this reply, so that `calls` do not run."""
    unread: str = ""
    """Why a call written in the text cannot be parsed, as a sentence for the model; empty if there is no such call."""
    invented: int = 0
    """Number of characters of an invented tool result or user turn that were removed from the end of the reply."""

    def named(self, name: str) -> Planned:
        """Return the plan with the agent's name on its message."""
        return replace(self, message=with_name(self.message, name))

    def event(self, step: int) -> StoredEvent:
        """Return the `plan` event, whose calls have no arguments.

        Args:
            step: Number of this plan.
        """
        return event(
            "plan",
            step,
            status="done" if self.last else "continue",
            action=self.action,
            reasoning=self.reasoning,
            calls=[_brief(call) for call in self.calls],
            **self.extra,
        )


def plan_of_calls(message: AIMessage, calls: list[Call], usage: Usage, raw_text: str) -> Planned:
    """Build the plan of a reply in native or text mode. Without calls, planning is over and the text may be the answer.

    The sentinel (`No more actions.`) is removed from an answer; a text of nothing else is kept. From text with calls,
    white space and assistant headers at its beginning are removed. The plan is `empty` if the reply has neither calls
    nor visible text.

    Args:
        message: The reply as the history stores it.
        calls: The calls of the reply.
        usage: Usage of the reply.
        raw_text: The whole text as the model sent it.
    """
    reasoning = str(message.text)
    answer = "" if calls else without_sentinel(reasoning)
    if (answer or calls) and (kept := answer or without_leading(reasoning)) != reasoning:
        message, reasoning = with_text(message, kept), kept
    empty = not calls and not answer and is_blank(reasoning)
    return Planned(
        message,
        calls,
        usage,
        not calls,
        action_of(calls),
        reasoning,
        answers=bool(answer),
        raw_text=raw_text,
        empty=empty,
    )


def plan_of_answer(answer: AIMessage, usage: Usage) -> Planned:
    """Return a composed answer in the form of a plan without calls, so that loop hooks receive it like a planning
    reply."""
    return Planned(answer, [], usage, True, "answer", answer.text, answers=True, final=True)


REPLACED = "A hook or middleware replaced a text that had been streamed already; that text is not the answer."
"""Message of the `warning` event about a streamed text that is not the answer any more."""


def ended_plan(planned: Planned, override: str | AIMessage) -> Planned:
    """Return a copy of a plan that answers with a hook's text or message and runs no call. Its message has no id, and
    no calls.
    """
    message = without_calls(override) if isinstance(override, AIMessage) else AIMessage(override)
    # A message that a hook returns twice, or took from the history, would replace the stored one by its id.
    message = copied(message).model_copy(update={"id": None})
    return replace(planned, message=message, calls=[], last=True, action="answer", reasoning="", final=True)


def action_of(calls: list[Call]) -> str:
    """Return a short description of calls for the `plan` event: `call search, read_file`, or `answer` without calls."""
    names = list(dict.fromkeys(call["name"] for call in calls))
    return f"call {', '.join(names)}" if names else "answer"


def _brief(call: Call) -> dict[str, Any]:
    """Return a call for the `plan` event: id, plan id, name and needs, each only if it is set, and no arguments."""
    fields: dict[str, Any] = {**call}
    return {name: fields[name] for name in ("id", "plan_id", "name", "needs") if fields.get(name)}


def read_reply(
    reply: AIMessage,
    tools: list[str],
    *,
    text: bool,
    prices: Mapping[str, Price] | None = None,
    max_tokens: int | None = None,
) -> Planned:
    """Parse a reply into a plan: its calls, or its text as the answer.

    - Calls written in the text count only in text mode, and only without structured calls. The text then ends before
      results or user turns that the model invented (`invented` is the number of dropped characters), and calls are
      removed from it.
    - If the reply was cut off, or the arguments of streamed calls cannot be assigned to them, each call gets a `fault`
      and is skipped, so that none runs with incomplete arguments. A call that was cut off in the text becomes one
      without arguments.
    - If the text holds a call that cannot be parsed and no other, `unread` states why.
    - Calls get unique ids, and stand in the message in one form for all providers.

    Args:
        reply: The model's reply.
        tools: Names of the available tools and delegations; damaged names in calls are repaired by them.
        text: Whether calls were asked for in text.
        prices: Prices by model name; None to compute no cost.
        max_tokens: Maximum tokens of the reply, for the text of a fault; None if unknown.
    """
    # The calls of a reply that was cut off must not run.
    cut = cut_off(reply)
    names, message = frozenset(tools), reply
    requested: list[Call] = [{**call, "name": known_name(call["name"], names)} for call in calls_of(reply)]
    invented, unread = 0, ""
    # A model that can call natively may quote a call in its text.
    if text and not requested:
        found = read_text_calls(reply.text, tools)
        reply, invented = ended_at(reply, found.end)
        prose = found.visible
        cut = text_cut_off(reply, unclosed=found.unclosed, partial=found.partial)
        requested = [checked_call(call["id"], call["name"], call["arguments"]) for call in found.calls]
        if not requested and cut is not None and (begun := unfinished_call(reply.text, tools)) and begun[0] in names:
            name, prose = begun
            requested = [Call(id="", name=name, arguments={})]
        if requested:
            message = reply.model_copy(update={"content": clean(prose)})
        else:
            message = reply if prose == reply.text.strip() else with_text(reply, clean(prose))
            if found.damaged:
                unread = f"It was cut off {cause_of(cut, reply, max_tokens)}. {_FIXES[cut]}" if cut else _UNREADABLE
    calls = with_unique_ids(requested)
    unassigned = reply.response_metadata.get(UNASSIGNED)
    if cut is not None or unassigned:
        fault = (
            f"Not run, and no other call of this reply: {unassigned}. Make the calls again, each with one JSON object."
            if unassigned or cut is None
            else f"Not run: the reply that holds this call was cut off {cause_of(cut, reply, max_tokens)}, so its "
            f"arguments may be incomplete. {_FIXES[cut]}"
        )
        calls = [Call({**call, "fault": fault, "skipped": True}) for call in calls]
    if calls:
        canonical = canonical_calls(calls)
        if cut is not None or unassigned or canonical != message.tool_calls or message.invalid_tool_calls:
            # The provider's own blocks hold the replaced ids and the damaged arguments, which it refuses in a history.
            bare = without_call_blocks(message)
            message = bare.model_copy(update={"tool_calls": canonical, "invalid_tool_calls": []})
    planned = plan_of_calls(message, calls, usage_of(reply, prices), str(reply.text))
    if not invented and not unread:
        return planned
    return replace(planned, invented=invented, unread=unread, empty=planned.empty and not unread)


def with_free_ids(planned: Planned, taken: Container[str], *, structured: bool = False) -> Planned:
    """Return a plan whose call ids are unique in the session. A call whose id is taken gets a numbered one, in the
    message as well.

    The model's own id stays in `plan_id`, by which references find it.

    Args:
        planned: The plan; returned unchanged if it is not structured and no id is taken.
        taken: Ids that the calls must not have.
        structured: Whether it is a structured plan. Each call of a structured plan gets a `plan_id`; in other plans,
            only a call with a replaced id does.
    """
    used, names = {call["id"] for call in planned.calls}, dict[str, str]()
    if not structured and not any(id_ in taken for id_ in used):
        return planned
    calls: list[Call] = []
    for call in planned.calls:
        own = call["id"]
        if own in taken:
            names[own] = _numbered_id(own, taken, used)
        calls.append({**call, "id": names.get(own, own), "plan_id": own} if structured or own in names else call)
    message = planned.message
    canonical = canonical_calls(calls)
    if canonical != message.tool_calls:
        message = with_call_ids(without_call_blocks(message), names)
        message = message.model_copy(update={"tool_calls": canonical})
    return replace(planned, message=message, calls=calls)


def _numbered_id(id_: str, taken: Container[str], used: set[str]) -> str:
    """Return `<id>#<number>` for the lowest number from 2 on that is in neither `taken` nor `used`, and add it to
    `used`.

    A long id is shortened to `_MOST_ID_CHARS` characters first.
    """
    number = 2
    # No id of a structured plan has this character.
    while (free := f"{id_[:_MOST_ID_CHARS]}#{number}") in used or free in taken:
        number += 1
    used.add(free)
    return free


_MOST_ID_CHARS = 34
"""Characters of an id that are kept when a number is appended; OpenAI accepts ids of at most 40 characters."""


class WrittenCall(NamedTuple):
    """A reply that ends with calls written in its text, although calls were asked for through the provider's tools."""

    may_be_answer: bool
    """Whether the reply may be an answer with an example of a call: it begins with prose, and the call has no tag or
    envelope."""
    end: int | None = None
    """Index in the text where an invented result or turn begins, which is dropped; None if there is none."""
    prose: str | None = None
    """The text before a call in the markup of a model family, without that markup; None if the calls are JSON."""


def written_call(text: str, tools: Sequence[str], conversation: Iterable[AnyMessage]) -> WrittenCall | None:
    """Find calls that the model wrote at the end of a reply's text; None if there are none, or the reply only quotes
    them.

    Text after a call makes it an example in an answer, unless the text is a result or turn that the model invented. A
    call that occurs verbatim in the user's messages or in results is a quote: to run it would let the author of that
    text issue calls.

    Args:
        text: The reply's text.
        tools: Names of the available tools and delegations.
        conversation: The messages in which a call may occur verbatim.
    """
    read = read_text_calls(text, list(tools))
    whole, prose = text[: read.end].strip(), read.visible
    if not (read.calls or read.damaged) or not whole.startswith(prose):
        return None
    written = _core(whole[len(prose) :])
    # The model's own messages may repeat a call that it has made.
    outside = [message for message in conversation if isinstance(message, HumanMessage | ToolMessage)]
    quoted = any(written in _compact(message.text) for message in outside)
    may_be_answer = bool(prose) and not read.damaged and not split_tool_calls(whole, [])[0]
    is_markup = _MARKUP.search(whole, len(prose)) is not None
    return None if quoted else WrittenCall(may_be_answer, read.end, prose if is_markup else None)


def with_answer(planned: Planned, answer: str) -> Planned:
    """Return a copy of a plan without calls, with another text as its answer. For an empty text, `answers` is False, so
    that the answer needs a request of its own.
    """
    return replace(planned, message=with_text(planned.message, answer), reasoning=answer, answers=bool(answer))


def without_invention(planned: Planned, end: int) -> Planned:
    """Return a copy of a plan whose text ends at an index, because the model invented a result or turn after it.

    `invented` is the number of characters that were cut; the sentinel (`No more actions.`) is removed from the answer.

    Args:
        planned: A plan without calls, whose text was taken for an answer.
        end: Index in `raw_text`.
    """
    message, invented = ended_at(with_text(planned.message, planned.raw_text), end)
    answer = with_text(message, without_sentinel(message.text))
    return replace(planned, message=answer, raw_text=message.text, invented=invented)


def _core(written: str) -> str:
    """Return the JSON of a call, without tags, fences and white space."""
    starts = [at for bracket in "{[" if (at := written.find(bracket)) >= 0]
    end = max(written.rfind("}"), written.rfind("]")) + 1
    return _compact(written[min(starts) : end] if starts and end > min(starts) else written)


def _compact(text: str) -> str:
    """Return a text without white space."""
    return "".join(text.split())


def answer_in(reply: AIMessage, deps: AgentDeps, mode: Mode, history: Iterable[AnyMessage]) -> str:
    """Return the text of the answer in a reply, without the sentinel (`No more actions.`); empty if there is no answer.

    There is none in a blank reply, a reply of only calls, complete or cut off, and a structured plan without answer; of
    one with an answer, mode `wave` returns that. In a text with prose, a call that can be parsed or is quoted stays,
    and one that cannot be parsed is removed.

    Args:
        reply: The reply to a request for the answer.
        deps: The agent, whose tools and delegations a call may name.
        mode: How the model was asked for calls: `native`, `text` or `wave`.
        history: The conversation; calls that occur in it count as quotes.
    """
    answer = without_sentinel(reply.text)
    body = after_reasoning(answer).strip()
    # Most answers begin with prose, and need no parsing.
    if not deps.toolbox.names or not may_begin_with_call(body):
        return answer
    if mode == "wave" and (planned := answer_of_plans(body)) is not None:
        return without_sentinel(planned)
    names = list(deps.toolbox.names)
    read = read_text_calls(body, names)
    if read.calls:
        return answer if read.prose or written_call(body, names, history) is None else ""
    unfinished = unfinished_call(body, names) if cut_off(reply) is not None else None
    if unfinished is not None and unfinished[0] in names and not unfinished[1]:
        return ""
    return answer if read.visible == body else read.visible


async def is_better(answer: str, text: str, response: ResponseSchema | None) -> bool:
    """Whether the result of `answer_in` should replace the whole text of a structured reply.

    True if it is another, non-empty text, and the whole text does not fit the schema.

    Args:
        answer: The result of `answer_in`.
        text: The whole text of the reply.
        response: The schema of the answer; None if any text fits.
    """
    return (
        bool(answer) and answer != text and not (response is not None and await schema_misfit(response, text) is None)
    )


async def schema_misfit(response: ResponseSchema, text: str) -> str | None:
    """Return why a text does not fit the schema of the answer; None if it fits. The check runs in a thread."""
    try:
        await asyncio.to_thread(response.read, text)
    except (ValueError, SlowSchemaError) as error:
        return str(error)
    return None
