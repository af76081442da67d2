"""Processes results and questions of background delegations: tasks of delegates that go on while the agent continues.

Parts of background tasks in other files:

- `nodes/plan.py`: the rule `receive_notes`, which receives results between two steps
- `core/planning/wait_tool.py`: `wait_tools`, the tool by which the model waits for them
- `core/extensions/delegation.py`: `BackgroundDelegate`, the protocol; `started_in_background`
- `core/execution/delegate_call.py`: the part at a call, which starts a task
- `base/delegate_tasks.py`: `BackgroundTask`, stored in the state field `remote`
- `base/history/events.py`: `BackgroundResultEvent`
- `integrations/delegates/graph.py`: runs the task of a compiled graph
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from graph_agent.base._internal.failure_log import get_logger, log_failure
from graph_agent.base._internal.text import text_of
from graph_agent.base.calls import delegation_name
from graph_agent.base.delegate_tasks import BackgroundTask
from graph_agent.base.history.call_events import stored_value
from graph_agent.base.history.events import event
from graph_agent.base.types import NO_USAGE, Call
from graph_agent.core.extensions.delegation import BackgroundDelegate, DelegationResult
from graph_agent.core.extensions.output import fenced, source_of
from graph_agent.core.extensions.toolbox import Toolbox
from graph_agent.core.extensions.truncation import truncate_output
from graph_agent.core.planning.update import PlanUpdate
from graph_agent.core.state.channels import NOTHING_REMOTE
from graph_agent.core.state.run import WorkStoppedError

logger = get_logger("graph_agent.planning.background")

_ENDED = "[Notice of the framework: the background task {id} of the agent {name!r} has ended: {status}.]\n{content}"
_ASKS = (
    "[Notice of the framework: the background task {id} of the agent {name!r} waits for a person, who can answer in "
    "{session!r}.]\n{content}"
)


async def receive_background(update: PlanUpdate) -> bool:
    """Add a notice for the model about each background task that has ended or asks a person.

    A background task is a delegation that goes on while the agent continues. The notice is a user message that chat
    windows hide. A task that has ended also adds a `background_result` event and its usage, and leaves the state; a
    question adds a `delegation_progress` event.
    Nothing is added if the run is stopped meanwhile.

    Returns:
        Whether a notice was added.
    """
    changed = update.changes.get("remote", {}).get("background", {})
    stored: Mapping[str, BackgroundTask] = (update.state.get("remote") or NOTHING_REMOTE).get("background", {})
    tasks = {id_: task for id_ in stored if (task := changed.get(id_, stored[id_])) is not None}
    if not tasks:
        return False
    try:
        found = await update.run.stop.stoppable(_collect(update.deps.toolbox, tasks), "Reading background tasks")
    except WorkStoppedError:
        return False
    for id_, result in found.items():
        _report(update, id_, tasks[id_], result)
    return bool(found)


async def _collect(toolbox: Toolbox, tasks: Mapping[str, BackgroundTask]) -> dict[str, DelegationResult]:
    """Read the background tasks from their delegates, all at the same time.

    Returns:
        Call id → result, for each task that has ended or asks a person; running tasks are left out. If a delegate is
        missing or raises, which is logged, the result has the status `unknown`.
    """

    async def collect(id_: str, task: BackgroundTask) -> DelegationResult | None:
        delegate: Any = toolbox.delegates.get(delegation_name(task["delegate"]))
        if not isinstance(delegate, BackgroundDelegate):
            return DelegationResult(f"The agent has no delegate {task['delegate']!r} any more.", "unknown")
        try:
            return await delegate.collect(id_, task)
        except Exception as error:  # noqa: BLE001 - a delegate may raise anything; the model must not wait for it
            log_failure(logger, f"The delegate {task['delegate']!r}", error)
            return DelegationResult("The task could not be read, so it is not known how it ended.", "unknown")

    results = await asyncio.gather(*(collect(*each) for each in tasks.items()))
    return {id_: result for id_, result in zip(tasks, results, strict=True) if result is not None}


def _report(update: PlanUpdate, id_: str, task: BackgroundTask, result: DelegationResult) -> None:
    """Add the event and the notice of a background task's result or question, and add its usage to the input.

    A question gets a `delegation_progress` event, a result a `background_result` event. The text in the notice is
    truncated, and fenced if the delegate is untrusted; the event has the whole text. The task's entry in the state is
    replaced, or removed if the task has ended.

    Args:
        update: The pass through `plan`, which is changed.
        id_: Id of the call that started the task.
        task: The stored task.
        result: The result, or the question (then `result.background` is the task).
    """
    name, step = task["delegate"], update.loop["step"]
    call: Call = {"id": id_, "name": delegation_name(name), "arguments": {}}
    # `read_result` would find the result of the call itself, which reports the start.
    settings = update.settings.model_copy(update={"offload_over_chars": None})
    content = text_of(truncate_output(result.content, settings, {}, call)[0])
    if result.untrusted:
        content = text_of(fenced(content, source_of(name)))
    if result.background is not None:
        text = _ASKS.format(id=id_, name=name, session=task["session_id"], content=content)
        recorded = event("delegation_progress", step, id=id_, target=name, content=text_of(result.content))
    else:
        text = _ENDED.format(id=id_, name=name, status=result.status, content=content)
        stored = {} if result.value is None else stored_value(result.content, result.value)
        recorded = event(
            "background_result", step, id=id_, target=name, status=result.status, content=result.content, **stored
        )
    if result.usage != NO_USAGE:
        recorded["usage"] = result.usage
        update.count_usage(result.usage, turns=0)
    update.events.append(recorded)
    update.add_notice(text)
    update.change_remote(background={id_: result.background})
