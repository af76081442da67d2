"""Traces the calls of a plan that are about to run, and facts for the memory; refuses tainted calls that cannot be
approved."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from graph_agent.base._compat import checkpointer_of
from graph_agent.base._internal.text import text_of
from graph_agent.base.types import Call
from graph_agent.core.extensions.delegation import HANDED_PARTS
from graph_agent.core.extensions.source_marks import sinks_of
from graph_agent.core.planning.origins.sources import Sources
from graph_agent.core.planning.origins.trace import refused, traced, untrusted_parts

if TYPE_CHECKING:
    from langchain_core.messages import AnyMessage

    from graph_agent.core.execution.deps import Task
    from graph_agent.core.planning.answer import AnswerUpdate
    from graph_agent.core.planning.update import PlanUpdate
    from graph_agent.core.state.schema import LoopState

_sources: WeakKeyDictionary[object, tuple[Sources, list[str]]] = WeakKeyDictionary()
"""Run → the texts that the run's model has read, and the ids of the memory's facts among them.

With it, each event is read once in a run.
"""


async def trace_calls(update: PlanUpdate, planned: Sequence[Call], ready: Sequence[Call]) -> list[Call]:
    """Return the ready calls with the origins of their arguments; a tainted call that may not run gets a `fault`, too.

    A call is tainted if an argument that decides where it goes comes from untrusted text. It may not run if
    `on_tainted` is `deny`, or if it is `ask` and the run has no checkpointer, so that no person can be asked. The work
    is done in a thread.

    Args:
        update: The pass through `plan`.
        planned: The calls that `ready` was selected from, with references not replaced.
        ready: The calls that can run.
    """
    task, settings = update.task, update.settings
    sources = await _sources_of(task, update.history, update.loop)
    # Elsewhere "${" is plain text.
    has_references = task.deps.mode(settings) == "wave"
    templates = {call["id"]: call.get("template", call["arguments"]) for call in planned if has_references}

    def work() -> list[Call]:
        sources.follow(update.state.get("events", ()), update.events)
        return [
            traced(sources, call, templates.get(call["id"], {}), sinks_of(task.deps.toolbox, call["name"]))
            for call in ready
        ]

    # In a thread: a long history takes a second to read.
    made = await asyncio.to_thread(work)
    has_no_reviewer = settings.on_tainted == "ask" and checkpointer_of(task.config) is None
    return [refused(call) for call in made] if has_no_reviewer or settings.on_tainted == "deny" else made


async def untrusted_parts_of(answer: AnswerUpdate, texts: Sequence[str]) -> list[list[str]]:
    """Return the parts of each text that come from untrusted text that the run's model has read; empty lists without
    the setting `origins`.

    Args:
        answer: The pass through `finalize`.
        texts: The texts, which the model wrote.
    """
    if not answer.settings.origins:
        return [[] for _ in texts]
    sources = await _sources_of(answer.task, answer.state["messages"], answer.loop)

    def work() -> list[list[str]]:
        sources.follow(answer.state.get("events", ()), answer.events)
        return [untrusted_parts(sources, text) for text in texts]

    return await asyncio.to_thread(work)  # as above


async def _sources_of(task: Task, history: Sequence[AnyMessage], loop: LoopState) -> Sources:
    """Return the texts that the run's model has read, with the conversation and the recalled facts; cached for the run.

    Texts in events are added later, by `Sources.follow`. Facts that the memory cannot return are left out.
    """
    deps = task.deps
    if task.run not in _sources:
        made = Sources(deps.toolbox, [tool.name for tool in deps.memory.tools] if deps.memory else [])
        handed = task.config["configurable"].get(HANDED_PARTS, ())
        made.add_conversation(history, text_of(deps.prompt("")), handed)
        _sources[task.run] = made, []
    sources, known = _sources[task.run]
    recalled = loop.get("recalled")
    if deps.memory is not None and recalled is not None and (ids := [*recalled["facts"]]) != known:
        known[:] = ids
        # A memory that is down has failed for the request, too, so that the model has none of its facts.
        with suppress(Exception):
            for fact in (await deps.memory.get(deps.memory.caller_of(task.runtime), ids)).values():
                sources.add_fact(fact.content, fact.untrusted)
    return sources
