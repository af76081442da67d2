"""Checks checkpoints as they are read: their format number is known, and no part of them is lost.

A checkpoint's metadata has the number; version 0.1.0 stored none. A version that only adds fields keeps the number: an
older process ignores them, so both can serve one database during a rolling upgrade. A version whose checkpoints an
older one would misread increases it.

A session is one LangGraph thread. Its messages and events are in delta channels: LangGraph stores only what each step
wrote, and a history is what the value of such a channel is rebuilt from: the last full copy of the value (the seed),
and the writes after it.
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
"""Key in the metadata of a checkpoint that pruning made to hold the writes of the checkpoints that it removed.

It is also the task id of these writes. A history is rebuilt from such a checkpoint, but a run that continued it would
also have what happened later. It is therefore not listed, and it is read only with a config of `part_of_history`.
"""
_PATCHED = "_guards_reads"
"""Name of the attribute that marks a saver as patched by `guard_reads`."""
_REMEMBERED = 1000
"""Maximum checkpoints whose lengths and parent are remembered between the read of a checkpoint and that of its history.
"""
_MOST_READS = 5
"""Maximum further reads of a history that is not whole because a pruning removes checkpoints at the same time."""
_FIELDS = frozenset({"id", "ts", "channel_values", "channel_versions"})
"""Keys that each checkpoint of LangGraph has."""
_VALUES = frozenset({"status", "loop"})
"""Channels of an agent's state that have a value from their first write on."""
_RENAMED = {
    "ask": "next_node",
    "asked": "awaiting_approval",
    "carried": "request_only_messages",
    "changed": "config_overrides",
    "cuts": "truncations",
    "reply": "reply_id",
    "taken": "consumed_notes",
}
"""Key of the loop state (the channel `loop`) in version 0.2.0 → its present name."""
_WAVE_FINISHED = {"arrived": "wave_finished"}
"""Channel in version 0.2.0 → its present name."""
_TASKS = "__pregel_tasks"
"""LangGraph's channel of the tasks that nodes create with `Send`."""
_KEYS = ("thread_id", "checkpoint_ns", "checkpoint_id")
"""Keys of `configurable` that address a checkpoint, in the order of `_Address`."""
_NAMES = {"thread_id": "session_id"}
"""Key of `_KEYS` → its name in error messages, where the two differ."""
_Address = tuple[str, str, str]
"""A thread's id, a checkpoint namespace, and a checkpoint's id, which is empty for the newest checkpoint."""
_Read = tuple[str, Any]
"""What a read asks its driver for: a kind and its argument.

`checked` and a config: the checkpoint, with all checks. `stored` and a config: the checkpoint as the saver returns it.
`history` and None: the history from the saver. `work` and a function: what the function returns, which takes time.
"""


_own_lists: ContextVar[tuple[str, Mapping[str, list[Any]]] | None] = ContextVar("graph_agent_own_lists", default=None)
"""The lists of the current run for reads in its context: a checkpoint's id, and channel → list; None if there are none.
"""


def has_tasks(checkpoint: Mapping[str, Any]) -> bool:
    """Whether a checkpoint has nodes to run next, so that the input that stored it has not ended.

    The checkpoint is a mapping in LangGraph's form, of a graph whose edges are named (not of the functional API).
    """
    values = checkpoint["channel_values"]
    # The channel of an edge has a value only until the node behind it has run.
    return bool(values.get(_TASKS)) or any(name.startswith(("branch:", "__start__")) for name in values)


def check_format(metadata: Mapping[str, Any], thread_id: str) -> None:
    """Raise `NewerFormatError` if a newer version of this package stored a checkpoint, by its metadata.

    Metadata without a format number, of version 0.1.0 or of another graph, passes. The error names the session
    `thread_id`.
    """
    found = metadata.get(FORMAT_KEY, 1)
    if found > FORMAT:
        raise NewerFormatError(
            f"Session {thread_id!r} was stored by a newer version of graph-agent: its checkpoints have format {found}, "
            f"and this version reads formats up to {FORMAT}. Upgrade this process."
        )


def with_format(metadata: CheckpointMetadata) -> CheckpointMetadata:
    """Return a copy of a checkpoint's metadata with the format number of this version."""
    return cast("CheckpointMetadata", {**metadata, FORMAT_KEY: FORMAT})


def guard_reads(saver: BaseCheckpointSaver[Any]) -> None:
    """Patch the read methods of a saver, in place, to check and upgrade the checkpoints that they return.

    `get_tuple`, `list`, `get_delta_channel_history` and their asynchronous forms then:

    - raise `NewerFormatError` for a checkpoint of a newer format, and `DamagedSessionError` for an incomplete one or a
      history that is shorter than recorded; a list of all threads (config None) checks nothing, so that one damaged
      session cannot block it
    - raise `InputError` for an id with a lone surrogate, which no database can store
    - return the names that this version gives to channels and to keys of the loop state
    - omit checkpoints that only hold a part of a history (`JOINED`), unless the config is one of `part_of_history`
    - read a history again if a pruning removes checkpoints during the read
    - keep long histories in memory (see `HistoryCache`)

    A second call has no effect. Checkpoints of other graphs have no format number, and pass.
    """
    if getattr(saver, _PATCHED, False):
        return
    get_tuple, aget_tuple, list_, alist = saver.get_tuple, saver.aget_tuple, saver.list, saver.alist
    history, ahistory = saver.get_delta_channel_history, saver.aget_delta_channel_history
    known: dict[_Address, CheckpointTuple] = {}
    cache = _LazyCache()

    def check(found: CheckpointTuple | None, *, parts: Any = True) -> CheckpointTuple | None:
        """Check a checkpoint, remember its parent and lengths, and return it with present names of channels and keys.

        None if `found` is None, or, unless `parts` is true, if the checkpoint only holds a part of a history. Raises
        `NewerFormatError` or `DamagedSessionError`.
        """
        if found is None or (not parts and JOINED in found.metadata):
            return None
        at = _address(found.config)
        check_format(found.metadata, at[0])
        check_values(found.checkpoint, found.metadata, at[0])
        # Needed later: a pruning may remove the parent or change the metadata before the history is read.
        if len(known) > _REMEMBERED:
            known.clear()
        bare: Any = {"id": found.checkpoint["id"]}
        known[at] = found._replace(checkpoint=bare, pending_writes=None)
        return upgraded(found)

    def reading(config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that the saver's `get_tuple` returns, checked and with present names; None if there is
        none.
        """
        with readable(config):
            return check(get_tuple(config), parts=config["configurable"].get(JOINED))

    async def areading(config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that the saver's `aget_tuple` returns, checked and with present names; None if there is
        none.
        """
        with readable(config):
            return check(await aget_tuple(config), parts=config["configurable"].get(JOINED))

    # A listing of all threads is not refused for the sake of one.
    def listing(config: RunnableConfig | None, **options: Any) -> Iterator[CheckpointTuple]:
        """Yield what the saver's `list` yields, without checkpoints that only hold a part of a history. Checkpoints are
        checked if the list is of one thread.

        `options` are the keyword arguments of `list`. A limit counts the yielded checkpoints only.
        """
        page: _Page | None = _Page(config, options)
        with readable(config, options.get("before")):
            while page is not None:
                for found in list_(config, **page.options):
                    if page.shows(found):
                        yield upgraded(found) if config is None else cast("CheckpointTuple", check(found))
                page = page.next()

    async def alisting(config: RunnableConfig | None, **options: Any) -> AsyncIterator[CheckpointTuple]:
        """Yield what the saver's `alist` yields, without checkpoints that only hold a part of a history. Checkpoints
        are checked if the list is of one thread.

        `options` are the keyword arguments of `alist`. A limit counts the yielded checkpoints only.
        """
        page: _Page | None = _Page(config, options)
        with readable(config, options.get("before")):
            while page is not None:
                async for found in alist(config, **page.options):
                    if page.shows(found):
                        yield upgraded(found) if config is None else cast("CheckpointTuple", check(found))
                page = page.next()

    def read(
        config: RunnableConfig, channels: Sequence[str]
    ) -> Generator[_Read, Any, Mapping[str, DeltaChannelHistory]]:
        """Read the history of a checkpoint. While it is incomplete, read it again, up to `_MOST_READS` times or until
        two reads agree.

        A generator without I/O, so that the blocking and the asynchronous method share it: it yields a `_Read`, which
        names what to read, and the caller sends it the result. Returns channel → seed and writes. The writes compare
        the number of rebuilt entries with the recorded one when they are applied, and raise `DamagedSessionError` if
        there are fewer. Raises `CheckpointRemovedError` if the checkpoint with the id in `config` does not exist.
        """
        before: Mapping[str, int] | None = None
        # Imported here: a command that only reads a session needs no run.
        from graph_agent.core.state.run import handle_of

        at, run = _address(config), handle_of(config["configurable"]).run
        # A run may be lent objects at its first read; any other reader is given objects of its own.
        borrower = run if run is not None and run.stored is None and not run.updates_only else None
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
            found = (
                (yield "work", partial(cache.histories.restore, kept, borrower)) if kept else (yield "history", None)
            )
            # The pruning may have stored full copies in the checkpoint itself before it removed the ancestors.
            found = {**found, **{name: {"seed": copied[name], "writes": []} for name in found if name in copied}}
            entries = cache.histories.count(found)
            is_whole = cache.histories.is_whole(found, entries, lengths)
            if is_whole and kept is None and cache.histories.is_long(found):
                yield "work", partial(cache.histories.keep, target, found, borrower)
            # If the same was read twice, it is what the database holds.
            if is_whole or entries == before or attempt == _MOST_READS:
                return checked(found, lengths, at[0])
            before = entries
        return cast("Mapping[str, DeltaChannelHistory]", (yield "history", None))

    def search(at: _Address, target: CheckpointTuple, channels: Sequence[str]) -> Generator[_Read, Any, Any]:
        """Look for a kept history of an ancestor of `target`, the checkpoint at `at`; None if the whole history must be
        read.

        A generator without I/O, as `read`: it yields a `stored` read for each checkpoint on the way, and the caller
        sends the checkpoint.
        """
        ids = cache.histories.find(target, channels)
        try:
            id_ = next(ids)
            while True:
                id_ = ids.send((yield "stored", _config((*at[:2], id_))))
        except StopIteration as done:
            return done.value

    def reading_history(*, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
        """Return a history as `get_delta_channel_history` does: run the generator `read`, and perform the reads that it
        yields with blocking calls.
        """
        steps, result = read(config, channels), cast("Any", None)
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
        """Return a history as `aget_delta_channel_history` does: run the generator `read`, and perform the reads that
        it yields with awaited calls.

        Work on long histories runs in a thread. Within `with_own_lists`, the given lists are returned, and nothing is
        read.
        """
        at = _address(config)
        if (own := _own_lists.get()) is not None and own[0] == at[2] and own[1].keys() >= {*channels}:
            return {name: {"seed": own[1][name], "writes": []} for name in channels}
        steps, result = read(config, channels), cast("Any", None)
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
    """One request to list checkpoints, of which those that only hold a part of a history are omitted.

    With a limit, the omitted ones make the request too short; `next` returns the request for the rest. `config` is None
    for all threads; `options` are the keyword arguments of the saver's `list`.
    """

    def __init__(self, config: RunnableConfig | None, options: dict[str, Any]) -> None:
        self._config = config
        self.options = options
        """The keyword arguments of the saver's `list`."""
        self._listed = self._shown = 0
        self._last: RunnableConfig | None = None

    def shows(self, found: CheckpointTuple) -> bool:
        """Count a listed checkpoint, and return whether it is shown, i.e. not only a part of a history."""
        self._listed, self._last = self._listed + 1, found.config
        is_shown = JOINED not in found.metadata
        self._shown += is_shown
        return is_shown

    def next(self) -> _Page | None:
        """Return the request for the checkpoints that the limit still permits; None if the list is complete.

        It is complete without a limit, if fewer were listed than the limit, or if all of them are shown. None also for
        a list of all threads, which is not continued.
        """
        limit = self.options.get("limit")
        if limit is None or self._listed < limit or self._shown == limit or self._config is None:
            return None
        return _Page(self._config, {**self.options, "limit": limit - self._shown, "before": self._last})


def part_of_history(config: RunnableConfig) -> RunnableConfig:
    """Return a copy of a config with which `guard_reads` also returns checkpoints that only hold a part of a
    history.
    """
    return {**config, "configurable": {**config["configurable"], JOINED: True}}


@contextmanager
def with_own_lists(lists: tuple[str, Mapping[str, list[Any]]] | None) -> Iterator[None]:
    """Return a run's own lists for asynchronous reads of a history within the block, instead of reading the database.

    This holds for one checkpoint, which the run has stored itself, and only if the lists include all requested
    channels. `lists` are the id of that checkpoint and channel → complete list; None changes nothing.
    """
    reset = _own_lists.set(lists)
    try:
        yield
    finally:
        _own_lists.reset(reset)


class _LazyCache:
    """Creates the `HistoryCache` of a saver at the first read of a history, since that module imports LangGraph."""

    @cached_property
    def histories(self) -> HistoryCache:
        """The cache, created at the first access."""
        from graph_agent.storage.checkpoints.history_cache import HistoryCache

        return HistoryCache()


@contextmanager
def readable(config: RunnableConfig | None, before: RunnableConfig | None = None) -> Iterator[None]:
    """Check the ids in the configs of a read, and convert decoding errors of the block.

    Args:
        config: The config of the read; None for a list of all threads.
        before: The config at which a list ends; None without one.

    Raises:
        InputError: If a thread id, namespace or checkpoint id has a lone surrogate, which no database can store.
        DamagedSessionError: If the block raises an error about a stored value that cannot be decoded. It names the
            session.
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
    """Raise `DamagedSessionError` if a checkpoint lacks a field of LangGraph's checkpoints, or a value of an agent's
    state.

    The values are those of the channels `status` and `loop`; each must exist once the channel has a version. They are
    only required if the metadata has a format number. `thread_id` is for the error.
    """
    if not isinstance(checkpoint, Mapping) or not checkpoint.keys() >= _FIELDS:
        raise damaged(thread_id, "a checkpoint is no mapping with the fields of one")
    if FORMAT_KEY in metadata and (
        lost := _VALUES & checkpoint["channel_versions"].keys() - checkpoint["channel_values"].keys()
    ):
        raise damaged(thread_id, f"the checkpoint {checkpoint['id']} has no value of {', '.join(sorted(lost))}")


def upgraded(found: CheckpointTuple) -> CheckpointTuple:
    """Return a checkpoint in which old names of channels and of keys of the loop state are replaced by the present
    ones.

    Its pending writes are renamed, too. If no name is old, the same object is returned.
    """
    # For checkpoints of every format: PostgreSQL stores the value of a channel once until it changes, so that a
    # checkpoint of this version may have a value of an older one.
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
    """Whether a value of the channel `name` is a loop state with keys of version 0.2.0."""
    return name == "loop" and isinstance(value, dict) and not _RENAMED.keys().isdisjoint(value)


def _renamed(name: str, value: Any) -> Any:
    """Return a value of the channel `name` with present keys if it is an old loop state; else the value itself."""
    return {_RENAMED.get(key, key): each for key, each in value.items()} if _is_old(name, value) else value


def _with_new_names(versions: Mapping[str, Any]) -> dict[str, Any]:
    """Return channel → version with the present names of the channels."""
    return {_WAVE_FINISHED.get(name, name): version for name, version in versions.items()}


def _config(at: _Address) -> RunnableConfig:
    """Return the config that addresses a checkpoint; an empty checkpoint id addresses the newest of the namespace."""
    return {"configurable": dict(zip(_KEYS, at, strict=True))}


def _address(config: RunnableConfig) -> _Address:
    """Return the address in a config; an absent namespace or checkpoint id is empty.

    Raises `KeyError` if the config has no `thread_id`.
    """
    at = config["configurable"]
    return str(at["thread_id"]), at.get("checkpoint_ns", ""), at.get("checkpoint_id") or ""
