"""Checks checkpoints as they are read: their format number is known, and no part of them is lost.

A checkpoint's metadata has the number; version 0.1.0 stored none. A version that only adds fields keeps the number: an
older process ignores them, so both can serve one database during a rolling upgrade. A version whose checkpoints an
older one would misread increases it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property, partial
from itertools import count
from json import JSONDecodeError
from typing import TYPE_CHECKING, Any, Final, cast

from graph_agent.base._internal.sync_bridge import call_in_thread
from graph_agent.base._internal.text import check_session_id
from graph_agent.base.errors import NewerFormatError, UnreadableValueError
from graph_agent.core.state.lengths import checked, damaged, lengths_of, removed

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointMetadata, CheckpointTuple, DeltaChannelHistory

    from graph_agent.storage.checkpoints.history_cache import HistoryCache


FORMAT = 3
"""The format of this version's checkpoints, and the newest that it reads. 0.1.0 has format 1, 0.2.0 format 2."""
FORMAT_KEY = "graph_agent_format"
"""Key of the number in a checkpoint's metadata."""
JOINED: Final = "graph_agent_joined"
"""Key in the metadata of a checkpoint that holds the writes of removed descendants, and the task id of these writes.

A history is rebuilt from it, but a run that continued it would also have what happened later. It is therefore not
listed, and it is read only with a config of `part_of_history`.
"""
_PATCHED = "_guards_reads"
_REMEMBERED = 1000
"""Checkpoints whose lengths and parent are remembered until their history is read: pruning may change them later."""
_MOST_READS = 5
"""Times that a history is read again while prunings make it short."""
_FIELDS = frozenset({"id", "ts", "channel_values", "channel_versions"})
_VALUES = frozenset({"status", "loop"})
"""Channels of an agent that have a value from their first write on."""
_RENAMED = {
    "ask": "next_node",
    "asked": "awaiting_approval",
    "carried": "request_only_messages",
    "changed": "config_overrides",
    "cuts": "truncations",
    "reply": "reply_id",
    "taken": "consumed_notes",
}
"""Keys of the loop state in version 0.2.0 → their present names."""
_WAVE_FINISHED = {"arrived": "wave_finished"}
"""The channel whose name has changed since version 0.2.0."""
_TASKS = "__pregel_tasks"
"""Channel of the tasks that LangGraph's `Send` makes."""
_KEYS = ("thread_id", "checkpoint_ns", "checkpoint_id")
_NAMES = {"thread_id": "session_id"}
"""Names of keys in messages, where they differ."""
_Address = tuple[str, str, str]
"""A thread, a checkpoint namespace, and a checkpoint's id; an empty id for the newest."""
_Read = tuple[str, Any]
"""What a read needs next: a checkpoint, `checked` or as `stored`, the `history`, or `work` that another thread does."""


_own_lists: ContextVar[tuple[str, Mapping[str, list[Any]]] | None] = ContextVar("graph_agent_own_lists", default=None)


def has_tasks(checkpoint: Mapping[str, Any]) -> bool:
    """Whether a checkpoint of a graph with named edges has tasks to run, so that its input has not ended."""
    values = checkpoint["channel_values"]
    # The channel of an edge has a value only until the node behind it has run.
    return bool(values.get(_TASKS)) or any(name.startswith(("branch:", "__start__")) for name in values)


def check_format(metadata: Mapping[str, Any], thread_id: str) -> None:
    """Check that this version can read a checkpoint; raise `NewerFormatError` if it cannot."""
    found = metadata.get(FORMAT_KEY, 1)
    if found > FORMAT:
        raise NewerFormatError(
            f"Session {thread_id!r} was stored by a newer version of graph-agent: its checkpoints have format {found}, "
            f"and this version reads formats up to {FORMAT}. Upgrade this process."
        )


def with_format(metadata: CheckpointMetadata) -> CheckpointMetadata:
    """Return the metadata of a checkpoint with the format number of this version."""
    return cast("CheckpointMetadata", {**metadata, FORMAT_KEY: FORMAT})


def guard_reads(saver: BaseCheckpointSaver[Any]) -> None:
    """Patch a saver to refuse checkpoints of a newer format and damaged ones, also in the list of one thread, and ids
    that no database can store, and to keep long histories (see `HistoryCache`).

    Checkpoints of other graphs have no number.
    """
    if getattr(saver, _PATCHED, False):
        return
    get_tuple, aget_tuple, list_, alist = saver.get_tuple, saver.aget_tuple, saver.list, saver.alist
    history, ahistory = saver.get_delta_channel_history, saver.aget_delta_channel_history
    known: dict[_Address, CheckpointTuple] = {}
    cache = _LazyCache()

    def check(found: CheckpointTuple | None, *, parts: Any = True) -> CheckpointTuple | None:
        if found is None or (not parts and JOINED in found.metadata):
            return None
        at = _address(found.config)
        check_format(found.metadata, at[0])
        check_values(found.checkpoint, found.metadata, at[0])
        if len(known) > _REMEMBERED:
            known.clear()
        bare: Any = {"id": found.checkpoint["id"]}
        known[at] = found._replace(checkpoint=bare, pending_writes=None)
        return upgraded(found)

    def reading(config: RunnableConfig) -> CheckpointTuple | None:
        with readable(config):
            return check(get_tuple(config), parts=config["configurable"].get(JOINED))

    async def areading(config: RunnableConfig) -> CheckpointTuple | None:
        with readable(config):
            return check(await aget_tuple(config), parts=config["configurable"].get(JOINED))

    # A listing of all threads is not refused for the sake of one.
    def listing(config: RunnableConfig | None, **options: Any) -> Iterator[CheckpointTuple]:
        page: _Page | None = _Page(config, options)
        with readable(config, options.get("before")):
            while page is not None:
                for found in list_(config, **page.options):
                    if page.shows(found):
                        yield upgraded(found) if config is None else cast("CheckpointTuple", check(found))
                page = page.next()

    async def alisting(config: RunnableConfig | None, **options: Any) -> AsyncIterator[CheckpointTuple]:
        page: _Page | None = _Page(config, options)
        with readable(config, options.get("before")):
            while page is not None:
                async for found in alist(config, **page.options):
                    if page.shows(found):
                        yield upgraded(found) if config is None else cast("CheckpointTuple", check(found))
                page = page.next()

    def read(at: _Address, channels: Sequence[str]) -> Generator[_Read, Any, Mapping[str, DeltaChannelHistory]]:
        """Read a history, and again while it is not whole: a pruning between two statements makes a read short."""
        before: Mapping[str, int] | None = None
        for attempt in count():
            copied: Mapping[str, Any] = {}
            if attempt or at not in known:
                again = yield "checked", part_of_history(_config(at))
                copied = again.checkpoint["channel_values"] if again is not None and attempt else {}
            if (target := known.pop(at, None)) is None:
                if at[2]:
                    raise removed(at[0], at[2])
                break
            lengths = lengths_of(target.metadata)
            kept = None if attempt else (yield from search(at, target, channels))
            found = (yield "work", partial(cache.histories.restore, kept)) if kept else (yield "history", None)
            # The pruning may have stored full copies in the checkpoint itself before it removed the ancestors.
            found = {**found, **{name: {"seed": copied[name], "writes": []} for name in found if name in copied}}
            is_whole, entries = cache.histories.is_whole(found, lengths), cache.histories.count(found)
            if is_whole and kept is None and cache.histories.is_long(found):
                yield "work", partial(cache.histories.keep, target, found)
            # If the same was read twice, it is what the database holds.
            if is_whole or entries == before or attempt == _MOST_READS:
                return checked(found, lengths, at[0])
            before = entries
        return cast("Mapping[str, DeltaChannelHistory]", (yield "history", None))

    def search(at: _Address, target: CheckpointTuple, channels: Sequence[str]) -> Generator[_Read, Any, Any]:
        ids = cache.histories.find(target, channels)
        try:
            id_ = next(ids)
            while True:
                id_ = ids.send((yield "stored", _config((*at[:2], id_))))
        except StopIteration as done:
            return done.value

    def reading_history(*, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
        steps, result = read(_address(config), channels), cast("Any", None)
        with readable(config):
            while True:
                try:
                    kind, what = steps.send(result)
                except StopIteration as done:
                    return cast("Mapping[str, DeltaChannelHistory]", done.value)
                match kind:
                    case "checked":
                        result = reading(what)
                    case "stored":
                        result = get_tuple(what)
                    case "history":
                        result = history(config=config, channels=channels)
                    case _:
                        result = what()

    async def areading_history(*, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
        at = _address(config)
        if (own := _own_lists.get()) is not None and own[0] == at[2] and own[1].keys() >= {*channels}:
            return {name: {"seed": own[1][name], "writes": []} for name in channels}
        steps, result = read(at, channels), cast("Any", None)
        with readable(config):
            while True:
                try:
                    kind, what = steps.send(result)
                except StopIteration as done:
                    return cast("Mapping[str, DeltaChannelHistory]", done.value)
                match kind:
                    case "checked":
                        result = await areading(what)
                    case "stored":
                        result = await aget_tuple(what)
                    case "history":
                        result = await ahistory(config=config, channels=channels)
                    case _:
                        result = await call_in_thread(what)

    # Patched in place: `database_identity` reads the saver's connection, which a wrapper would hide.
    saver.get_tuple = reading  # type: ignore[method-assign]
    saver.aget_tuple = areading  # type: ignore[method-assign]
    saver.list = listing  # type: ignore[method-assign]
    saver.alist = alisting  # type: ignore[method-assign]
    saver.get_delta_channel_history = reading_history  # type: ignore[method-assign]
    saver.aget_delta_channel_history = areading_history  # type: ignore[method-assign]
    setattr(saver, _PATCHED, True)


class _Page:
    """Checkpoints that a saver lists, without those that only hold a part of the history."""

    def __init__(self, config: RunnableConfig | None, options: dict[str, Any]) -> None:
        self._config = config
        self.options = options
        """The arguments of the saver's list."""
        self._listed = self._shown = 0
        self._last: RunnableConfig | None = None

    def shows(self, found: CheckpointTuple) -> bool:
        """Count a listed checkpoint, and return whether it is one that a run can continue."""
        self._listed, self._last = self._listed + 1, found.config
        is_shown = JOINED not in found.metadata
        self._shown += is_shown
        return is_shown

    def next(self) -> _Page | None:
        """Return the page for what the limit still permits; None if nothing is left to list."""
        limit = self.options.get("limit")
        if limit is None or self._listed < limit or self._shown == limit or self._config is None:
            return None
        return _Page(self._config, {**self.options, "limit": limit - self._shown, "before": self._last})


def part_of_history(config: RunnableConfig) -> RunnableConfig:
    """Return the config with which a checkpoint is read, also if it only holds a part of the history."""
    return {**config, "configurable": {**config["configurable"], JOINED: True}}


@contextmanager
def with_own_lists(lists: tuple[str, Mapping[str, list[Any]]] | None) -> Iterator[None]:
    """Let asynchronous reads of a checkpoint that a run has stored return the run's own lists.

    `lists` are the checkpoint's id, and its lists by channel; None for no effect.
    """
    reset = _own_lists.set(lists)
    try:
        yield
    finally:
        _own_lists.reset(reset)


class _LazyCache:
    """Makes the `HistoryCache` of a saver when a history is first read, as it imports LangGraph."""

    @cached_property
    def histories(self) -> HistoryCache:
        """The cache."""
        from graph_agent.storage.checkpoints.history_cache import HistoryCache

        return HistoryCache()


@contextmanager
def readable(config: RunnableConfig | None, before: RunnableConfig | None = None) -> Iterator[None]:
    """Check the ids of a read, and name the session in an error about a stored value that cannot be decoded.

    `config` is None for all threads; `before` is where a list ends. Each such error becomes a `DamagedSessionError`; an
    id with a lone surrogate is an `InputError`.
    """
    for at in (config, before):
        for key in _KEYS:
            check_session_id(str((at or {}).get("configurable", {}).get(key) or ""), _NAMES.get(key, key))
    try:
        yield
    except (UnreadableValueError, JSONDecodeError, UnicodeDecodeError) as error:
        session_id = _address(config)[0] if config is not None else "unknown"
        raise damaged(session_id, f"a stored value cannot be decoded: {error}") from error


def check_values(checkpoint: Any, metadata: Mapping[str, Any], thread_id: str) -> None:
    """Check that a checkpoint of an agent is complete; raise `DamagedSessionError` if it is not."""
    if not isinstance(checkpoint, Mapping) or not checkpoint.keys() >= _FIELDS:
        raise damaged(thread_id, "a checkpoint is no mapping with the fields of one")
    if FORMAT_KEY in metadata and (
        lost := _VALUES & checkpoint["channel_versions"].keys() - checkpoint["channel_values"].keys()
    ):
        raise damaged(thread_id, f"the checkpoint {checkpoint['id']} has no value of {', '.join(sorted(lost))}")


def upgraded(found: CheckpointTuple) -> CheckpointTuple:
    """Return a checkpoint with the present names of the loop state's keys and of the channels.

    Checkpoints of every format are checked: PostgreSQL stores the values of channels that have not changed
    once, so a checkpoint of this version may have a value of an older one.
    """
    values, writes = found.checkpoint["channel_values"], found.pending_writes or []
    old_writes = any(name in _WAVE_FINISHED or _is_old(name, value) for _, name, value in writes)
    old_channels = not _WAVE_FINISHED.keys().isdisjoint(found.checkpoint["channel_versions"])
    if not (old_writes or old_channels or _is_old("loop", values.get("loop"))):
        return found
    checkpoint: Any = {
        **found.checkpoint,
        "channel_values": {_WAVE_FINISHED.get(name, name): _renamed(name, value) for name, value in values.items()},
        "channel_versions": _with_new_names(found.checkpoint["channel_versions"]),
        "versions_seen": {node: _with_new_names(seen) for node, seen in found.checkpoint["versions_seen"].items()},
    }
    pending = [(task, _WAVE_FINISHED.get(name, name), _renamed(name, value)) for task, name, value in writes]
    return found._replace(checkpoint=checkpoint, pending_writes=pending)


def _is_old(name: str, value: Any) -> bool:
    return name == "loop" and isinstance(value, dict) and not _RENAMED.keys().isdisjoint(value)


def _renamed(name: str, value: Any) -> Any:
    return {_RENAMED.get(key, key): each for key, each in value.items()} if _is_old(name, value) else value


def _with_new_names(versions: Mapping[str, Any]) -> dict[str, Any]:
    return {_WAVE_FINISHED.get(name, name): version for name, version in versions.items()}


def _config(at: _Address) -> RunnableConfig:
    return {"configurable": dict(zip(_KEYS, at, strict=True))}


def _address(config: RunnableConfig) -> _Address:
    at = config["configurable"]
    return str(at["thread_id"]), at.get("checkpoint_ns", ""), at.get("checkpoint_id") or ""
