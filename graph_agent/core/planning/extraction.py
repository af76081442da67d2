"""Has the agent's model extract facts about the user from an input, after its answer, for a memory that asks for it.

The request holds what the user wrote, the answer, and the facts that are known already; no results of tools, so that a
web page cannot write into the memory. It is a request as any other: by the rules of the endpoint, counted in the usage,
within the budgets and the deadline of the input. Without a usable reply nothing is kept, and the answer stays.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, HumanMessage

from graph_agent.base._internal.failure_log import get_logger, log_failure
from graph_agent.base._internal.lenient_json import parse_lenient_json
from graph_agent.base._internal.text import as_text
from graph_agent.base.history.events import event
from graph_agent.base.usage import add_usage, usage_of
from graph_agent.core.execution.deps import answer_left_s
from graph_agent.core.extensions.memory import AgentMemory
from graph_agent.core.extensions.truncation import truncate
from graph_agent.core.planning.compaction import newest_input
from graph_agent.core.planning.exchange import Exchange
from graph_agent.core.planning.next_request import NextRequest
from graph_agent.core.planning.summary import by_fallback
from graph_agent.core.planning.traced_calls import untrusted_parts_of
from graph_agent.core.state.caller import caller_of_input
from graph_agent.core.state.run import WorkStoppedError
from graph_agent.models.stream_watch import StreamWatch

if TYPE_CHECKING:
    from graph_agent.core.planning.answer import AnswerUpdate

logger = get_logger("graph_agent.planning.extraction")

_MOST_FACTS = 5
"""Maximum number of facts of one input."""
_MOST_KNOWN = 20
"""Maximum number of known facts in the request."""
_CHARS = 8_000
"""Characters to which each message in the request is truncated."""
_FACT = {
    "type": "object",
    "properties": {"fact": {"type": "string"}, "replaces": {"type": ["string", "null"]}},
    "required": ["fact", "replaces"],
    "additionalProperties": False,
}
_SCHEMA: dict[str, Any] = {
    "title": "facts",
    "type": "object",
    "properties": {"facts": {"type": "array", "items": _FACT}},
    "required": ["facts"],
    "additionalProperties": False,
}
_IDS = uuid.UUID("0c3b6e2f-4f0e-4c1c-9d0a-5a3b8b6a2f17")
"""Namespace of the ids of extracted facts."""
_FAILED = "No facts about the user could be extracted from this input; the answer is not concerned."


async def extract_facts(answer: AnswerUpdate, memory: AgentMemory) -> None:
    """Ask the model for facts about the user in an answered input, and store them in the memory.

    Usage, loop state and events of `answer` receive those of the request; if facts were stored, a `recall` event lists
    their ids. A failure is logged, adds a `warning` event, and never changes the answer. Nothing happens without an
    answer or a text of the user. If the run is stopped or the deadline passes first, no further fact is stored,
    and only the log reports it.

    Args:
        answer: The pass through `finalize`, with the answer.
        memory: The agent's memory.

    Raises:
        ConfigError: The input has no known caller.
    """
    words = "\n\n".join(_short(message.text) for message in newest_input(answer.state["messages"]))
    if answer.answer is None or not words.strip():
        return
    caller = caller_of_input(memory.caller_of, answer.task.config, answer.task.runtime)
    stop, left_s = answer.active_run.stop, answer_left_s(answer.active_run, answer.loop, answer.settings)
    conversation = f"User: {words}\n\nAssistant: {_short(answer.answer.text)}"
    try:
        kept = await stop.stoppable(_extract(answer, memory, caller, conversation), "Extracting facts", left_s)
    except WorkStoppedError:
        logger.info("The input ended before facts could be extracted from it")
    except Exception as error:  # noqa: BLE001 - a provider or a database may raise anything; the input has its answer
        log_failure(logger, "The request for facts", error)
        answer.events.append(event("warning", answer.step, message=_FAILED))
    else:
        if kept:
            answer.events.append(event("recall", answer.step, facts=[], kept=kept))


async def _extract(answer: AnswerUpdate, memory: AgentMemory, caller: str, conversation: str) -> list[str]:
    """Send the request for facts, store the facts in the memory, and return their ids.

    A fact that replaces a known one keeps its id. The ids of new facts are derived from session and input, so that no
    fact is stored twice if the node runs again after a crash; without a session they are random. Exceptions of the
    model and of the memory are raised, after the usage of the request was added to `answer`.

    Args:
        answer: The pass through `finalize`, which receives loop state, usage and events of the request.
        memory: The agent's memory.
        caller: Id of the user whose facts they are.
        conversation: The input and its answer, as text.

    Raises:
        ValueError: The reply has no list of facts.
        Exception: The model or the memory raised it.
    """
    known = await memory.recall(caller, conversation, most=_MOST_KNOWN)
    prompt = answer.deps.prompts.render("facts", conversation=conversation, known=known, most=_MOST_FACTS)
    request = await NextRequest.of(answer.task, answer.settings, answer.state["messages"], answer.loop)
    exchange = Exchange(request)

    async def ask(request: NextRequest, stream: StreamWatch) -> AIMessage:
        messages, client = [HumanMessage(prompt)], request.deps.client
        return await client.ask(
            "answer", messages, request.settings, mode="text", quiet=True, schema=_SCHEMA, watch=stream
        )

    async def work() -> AIMessage:
        reply = await exchange.send(request, ask, purpose="memory", recover=by_fallback)
        exchange.count(usage_of(reply, answer.settings.prices), None)
        return reply

    outcome = await exchange.outcome_of(work())
    answer.loop, answer.usage = outcome.loop, add_usage(answer.usage, outcome.usage)
    answer.events += outcome.events
    facts = _facts_in(outcome.result().text, {fact.id for fact in known})
    # The same ids if the node runs again after a crash, so that no fact is kept twice.
    place = f"{request.thread_id or uuid.uuid4()}/{answer.loop['last_input_id']}"
    # The answer may quote what outsiders wrote.
    parts = await untrusted_parts_of(answer, [text for text, _ in facts])
    return [
        await memory.keep(caller, text, replaced or str(uuid.uuid5(_IDS, f"{place}/{at}")), untrusted=untrusted)
        for at, ((text, replaced), untrusted) in enumerate(zip(facts, parts, strict=True))
    ]


def _facts_in(reply: str, known: Collection[str]) -> list[tuple[str, str | None]]:
    """Return `(fact, replaced)` pairs from the model's reply; `replaced` is the id of the known fact that it replaces,
    None for a new one.

    Only the first `_MOST_FACTS` entries count; invalid and blank ones are skipped, and what is no known id gives
    None.

    Args:
        reply: Text of the reply: JSON, an object with `facts` or the list itself.
        known: Ids of the known facts.

    Raises:
        ValueError: The reply is not JSON with a list of facts.
    """
    value = parse_lenient_json(reply)
    given = value.get("facts") if isinstance(value, dict) else value
    if not isinstance(given, list):
        raise ValueError(f"The reply has no list of facts: {as_text(value)}")
    facts = [each for each in given[:_MOST_FACTS] if isinstance(each, dict) and isinstance(each.get("fact"), str)]
    return [
        (each["fact"], replaced if isinstance(replaced := each.get("replaces"), str) and replaced in known else None)
        for each in facts
        if each["fact"].strip()
    ]


def _short(text: str) -> str:
    """Return the text, truncated with a marker if it exceeds `_CHARS` characters."""
    return truncate(text, max_chars=_CHARS, max_lines=_CHARS).text
