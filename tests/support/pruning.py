"""Sessions that are pruned: an agent with every kind of step, and the complete reading of a database."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.pregel._checkpoint import achannels_from_checkpoint
from langgraph.types import interrupt

from graph_agent import GraphDelegate, ScriptedChatModel, Session, create_graph_agent
from graph_agent.persistence import open_saver, prune
from graph_agent.storage.checkpoints.pruning import plan
from tests.support.agents import asks, echo, says, thread

STEPS = ("answer", "wave", "ask", "delegate", "delegate_asks", "cancelled", "resume", "fork", "edit", "go_back")
"""What a session can do; see `take_step`."""
RANDOM_STEPS = st.lists(
    st.one_of(st.tuples(st.sampled_from(STEPS), st.integers(0, 40)), st.tuples(st.just("prune"), st.just(0))),
    min_size=2,
    max_size=9,
)
"""Steps, some of which are prunings."""
PRUNINGS: dict[str, st.SearchStrategy[Any]] = {
    "steps": RANDOM_STEPS,
    "position": st.integers(0, 40),
    "replayed": st.booleans(),
    "joined": st.booleans(),
}
"""Arguments of `pruned_and_unpruned`."""
_ENDED = ["No more actions.", "Done."]


@tool
def question(text: str) -> str:
    """Ask a person."""
    return f"answered {interrupt(text)}"


@tool
async def endless() -> str:
    """Never finish."""
    await asyncio.Event().wait()
    return "unreachable"


@tool("endless")
async def ended() -> str:
    """Finish at once, in a replay of a wave that was cancelled."""
    return "ended"


def agent(
    saver: Any,
    script: Sequence[str | AIMessage],
    helper: Sequence[str | AIMessage] = (),
    *,
    ends: bool = False,
    **options: Any,
) -> Any:
    """An agent with a delegate in its own checkpoints.

    Args:
        saver: The saver.
        script: The replies of its model.
        helper: The replies of the delegate's model.
        ends: Whether its tool `endless` ends.
        options: Further options of `create_graph_agent`.
    """
    inner = create_graph_agent(ScriptedChatModel([*helper]), tools=[echo, question], checkpointer=True, name="helper")
    delegate = GraphDelegate("helper", "Helps.", inner)
    model = ScriptedChatModel([*script])
    tools = [echo, question, ended if ends else endless]
    return create_graph_agent(model, tools=tools, delegates=[delegate], checkpointer=saver, **options)


async def take_step(saver: Any, step: str, number: int, at: str | None = None) -> None:
    """Let session `s1` do one thing.

    Args:
        saver: The saver.
        step: One of `STEPS`.
        number: Number of the step, which makes its texts unique.
        at: The checkpoint from which `fork` and `go_back` continue.
    """
    text = f"text {number}"
    wave = asks((f"a{number}", "echo", {"text": text}), (f"b{number}", "echo", {"text": text}))
    delegation = asks((f"d{number}", "delegate_to_helper", {"task": text}))
    config = _at(at)
    match step:
        case "answer":
            await agent(saver, [f"Reply {number}."]).ainvoke(says(text), thread())
        case "fork":
            await agent(saver, [wave, *_ENDED]).ainvoke(says(text), config)
        case "wave":
            await agent(saver, [wave, *_ENDED]).ainvoke(says(text), thread())
        case "ask":
            asking = asks((f"a{number}", "echo", {"text": text}), (f"q{number}", "question", {"text": text}))
            await agent(saver, [asking]).ainvoke(says(text), thread())
        case "delegate":
            await agent(saver, [delegation, *_ENDED], [wave, *_ENDED]).ainvoke(says(text), thread())
        case "delegate_asks":
            asking = asks((f"q{number}", "question", {"text": text}))
            await agent(saver, [delegation], [asking]).ainvoke(says(text), thread())
        case "resume":
            graph = agent(saver, _ENDED, _ENDED)
            if await Session(graph, "s1").interrupts():
                await Session(graph, "s1").resume(f"yes {number}")
        case "cancelled":
            calls = asks((f"a{number}", "echo", {"text": text}), (f"e{number}", "endless", {}))
            await _cancel_in_wave(agent(saver, [calls]), text, f"a{number}", saver)
        case "edit":
            await _edit(saver, _at(None), text)
        case "go_back":
            await _edit(saver, config, text)


def _at(checkpoint_id: str | None) -> Any:
    config = {"thread_id": "s1", "checkpoint_ns": ""}
    return {"configurable": config if checkpoint_id is None else {**config, "checkpoint_id": checkpoint_id}}


async def _edit(saver: Any, config: Any, text: str) -> None:
    await agent(saver, []).aupdate_state(config, {"messages": [HumanMessage(text)]}, as_node="finalize")


async def _cancel_in_wave(graph: Any, text: str, call: str, saver: Any) -> None:
    """Cancel a run once the first call of its wave is stored."""
    run = asyncio.create_task(graph.ainvoke(says(text), thread()))
    while not run.done():
        found = await saver.aget_tuple(thread())
        writes = found.pending_writes or [] if found is not None else []
        if any(channel == "messages" and call in str(value) for _, channel, value in writes):
            break
        await asyncio.sleep(0)
    run.cancel()
    with suppress(asyncio.CancelledError):
        await run


async def read_all(saver: BaseCheckpointSaver[Any], session_id: str = "s1") -> dict[tuple[str, str], Any]:
    """Read each checkpoint of a session, in every namespace.

    Returns:
        Namespace and id → state values, pending writes, metadata, versions and parent.
    """
    channels = agent(saver, []).channels
    found: dict[tuple[str, str], Any] = {}
    # LangGraph's saver holds its lock while it lists.
    for each in [stored async for stored in saver.alist({"configurable": {"thread_id": session_id}})]:
        at = each.config["configurable"]
        rebuilt, _ = await achannels_from_checkpoint(channels, each.checkpoint, saver=saver, config=each.config)
        values = {name: channel.get() for name, channel in rebuilt.items() if channel.is_available()}
        found[at["checkpoint_ns"], at["checkpoint_id"]] = (
            {name: _plain(value) for name, value in values.items()},
            [(task, channel, _plain(value)) for task, channel, value in each.pending_writes or []],
            each.metadata,
            (each.checkpoint["channel_versions"], each.checkpoint["versions_seen"], each.checkpoint["ts"]),
            each.parent_config["configurable"]["checkpoint_id"] if each.parent_config else None,
        )
    return found


def differences(before: Mapping[tuple[str, str], Any], after: Mapping[tuple[str, str], Any]) -> list[Any]:
    """Compare two readings.

    Returns:
        Checkpoints that read differently, that have another parent while theirs remains, or that are new; and the
        newest one of a remaining namespace if it is gone.
    """
    found: list[Any] = [at for at in after if at not in before]
    for at, read in after.items():
        *was, parent = before.get(at, (None,))
        *now, new_parent = read
        if was != now:
            found.append((at, [(old, new) for old, new in zip(was, now, strict=False) if old != new]))
        # A parent that was not listed either only held a part of the history.
        is_listed = (at[0], parent) in before
        if (
            parent != new_parent
            and is_listed
            and ((at[0], parent) in after or not _descends(before, (at[0], parent), new_parent))
        ):
            found.append((at, "parent", parent, new_parent))
    namespaces = {namespace for namespace, _ in after}
    newest = {namespace: max(id_ for space, id_ in before if space == namespace) for namespace in namespaces}
    return [*found, *(at for at in newest.items() if at not in after), *(["root"] if "" not in namespaces else [])]


def _descends(tree: Mapping[tuple[str, str], Any], at: tuple[str, str], ancestor: str | None) -> bool:
    while at in tree and tree[at][-1] is not None:
        if tree[at][-1] == ancestor:
            return True
        at = (at[0], tree[at][-1])
    return ancestor is None or at not in tree  # it is not listed


async def continuation(saver: Any, at: str | None = None, *, replayed: bool = False) -> Any:
    """Give the session two further inputs; return all that a user and a model see of it.

    Args:
        saver: The saver; its session changes.
        at: The checkpoint from which the first input continues; None for the newest.
        replayed: Whether that checkpoint is first continued without an input.
    """
    wave = asks(("z1", "echo", {"text": "on"}))
    if replayed:
        await agent(saver, _ENDED, _ENDED, ends=True).ainvoke(None, _at(at))
    graph = agent(saver, [wave, *_ENDED, "Last."])
    await graph.ainvoke(says("continue"), _at(None if replayed else at))
    result = await Session(graph, "s1").run("and again")
    state = (await graph.aget_state(thread())).values
    events = _without_times(await Session(graph, "s1").events())
    messages = [(type(each).__name__, each.content, getattr(each, "tool_calls", None)) for each in state["messages"]]
    return result.answer, result.status, result.results, result.usage, messages, events, state["loop"]["turn"]


async def pruned_and_unpruned(
    steps: Sequence[tuple[str, int]], position: int, *, replayed: bool = False, joined: bool = False
) -> tuple[list[Any], Any, Any]:
    """Let a session take random steps, prune it in between and at the end, and continue it and an unpruned copy.

    Args:
        steps: Steps and their choice of a checkpoint.
        position: Choice of the checkpoint from which both continue.
        replayed: Whether it is first continued without an input.
        joined: Whether a part of the history has one checkpoint only.

    Returns:
        The differences that pruning made to remaining checkpoints and to its own dry run, and both continuations.
    """
    part_bytes = 0 if joined else plan.PART_BYTES
    with tempfile.TemporaryDirectory() as name, patch.object(plan, "PART_BYTES", part_bytes):
        folder = Path(name)
        url = f"sqlite:///{folder / 'a.db'}"
        found: list[Any] = []
        async with open_saver(url) as saver:
            await take_step(saver, "answer", 0)
            for number, (step, choice) in enumerate(steps, 1):
                before = await read_all(saver)
                if step != "prune":
                    ids = sorted(id_ for namespace, id_ in before if not namespace)
                    await take_step(saver, step, number, ids[choice % len(ids)])
                    continue
                await prune(url, keep_last=1)
                found += differences(before, await read_all(saver))
            before = await read_all(saver)
        await asyncio.to_thread(shutil.copytree, folder, folder / "twin")
        planned = await prune(url, keep_last=1, dry_run=True)
        done = await prune(url, keep_last=1)
        if done.sessions != planned.sessions:
            found.append((planned, done))
        async with open_saver(url) as saver:
            after = await read_all(saver)
            found += differences(before, after)
            ids = sorted(id_ for namespace, id_ in after if not namespace)
            at = ids[position % len(ids)]
            pruned = await continuation(saver, at, replayed=replayed)
        async with open_saver(f"sqlite:///{folder / 'twin' / 'a.db'}") as twin:
            return found, pruned, await continuation(twin, at, replayed=replayed)


_TIMES = {"ts", "started", "resumed_at", "queued_s", "waited_s", "duration_s"}


def _without_times(value: Any) -> Any:
    """Events, and those of delegates within them, without their times."""
    if isinstance(value, list):
        return [_without_times(each) for each in value]
    if isinstance(value, dict):
        return {key: _without_times(each) for key, each in value.items() if key not in _TIMES}
    return value


def _plain(value: Any) -> Any:
    """A value that compares by content."""
    if isinstance(value, BaseMessage):
        return value.model_dump()
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value if isinstance(value, str | int | float | bool | None) else repr(value)
