"""Keeps histories of delta channels that were read, so that a session's next input reads only the newer writes.

LangGraph stores only what each step wrote to a delta channel. A history is what the value is rebuilt from: the last
full copy (the seed), and the values written after it.

A history is kept as pickled chunks. A read by a run may return the objects that the session's last run had, if they
are unchanged (see `loans`); any other read returns objects of its own, so no mutation of a message reaches another run.
A history extends only by writes read from the database, never by the state of a run. A checkpoint with ancestors never
changes, except that `import --replace` may store other content under the same ids. Imported checkpoints have the id of
their import in their metadata, which is compared.
"""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from graph_agent.base._compat.checkpoints import copied_list, delta_snapshot, replay_delta
from graph_agent.base._internal.garbage import paused_collection
from graph_agent.core.state.channels import MessagesChannel
from graph_agent.core.state.lengths import lengths_of
from graph_agent.core.state.stored_messages import Facts, StoredMessages
from graph_agent.storage.checkpoints.loans import Loan

if TYPE_CHECKING:
    from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory

    from graph_agent.core.state.run import Run

    History = Mapping[str, DeltaChannelHistory]

IMPORT_ID = "graph_agent_import"
"""Key in the metadata of an imported checkpoint, whose value is the id of the import."""
MOST_BYTES = 128 * 2**20
"""Maximum bytes of all kept histories of one saver, with their loans. First the loans of the least recently used ones
are dropped, then these histories."""
FEWEST_ENTRIES = 200
"""Number of writes and list entries from which a history is kept; a shorter one is read as fast."""
_MOST_STEPS = 600
"""Maximum checkpoints read one by one before the whole history is read instead, if that is short."""
_BYTES_A_STEP = 50_000
"""Bytes of a kept history whose reading takes as long as that of one checkpoint; a long history permits more steps."""
_CHUNK = 250
"""Entries from which a chunk is full. The newest chunk is pickled again at each input until then."""
_LENT = 4
"""Bytes that lent entries and the copies of their fields take in memory, for each byte of the pickled chunks."""
_LISTS = frozenset({"messages", "events"})
"""Channels whose consecutive lists of entries are kept as one list: thousands of short lists take longer to read and to
replay. Reducers of users' own channels may depend on where one write ends. Only these lists are lent."""

Chunks = tuple[bytes, ...]
"""Pickled lists of values, oldest first."""


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """What the cache uses of a checkpoint: its address, its parent, and the import that stored it."""

    thread_id: str
    namespace: str
    id: str
    parent_id: str | None
    """Id of the parent checkpoint; None for the first one of a thread."""
    import_id: str | None
    """Id of the import that stored it; None if a run did."""
    messages: int
    """Number of messages that the session has there; 0 if it was not recorded."""

    @classmethod
    def of(cls, found: CheckpointTuple) -> _Checkpoint:
        """Extract the fields from a checkpoint that a saver returned; only its config, id, parent and metadata are
        used.
        """
        at, parent = found.config["configurable"], (found.parent_config or {}).get("configurable", {})
        import_id = found.metadata.get(IMPORT_ID)
        return cls(
            str(at["thread_id"]),
            at.get("checkpoint_ns", ""),
            found.checkpoint["id"],
            parent.get("checkpoint_id"),
            import_id if isinstance(import_id, str) else None,
            lengths_of(found.metadata).get("messages", 0),
        )


@dataclass(frozen=True, slots=True)
class _Channel:
    """The pickled history of one channel."""

    copy: Chunks | None
    """The last full copy, in parts; None if there is none."""
    writes: Chunks
    """The values written after it, oldest first."""
    last: int
    """Number of entries in the last chunk of `writes`; 0 without chunks."""
    copied: int
    """Number of entries in `copy`."""
    loan: Loan | None = None
    """The objects of these entries that the last run was given; None if there are none."""
    is_lendable: bool = True
    """Whether the entries may be lent; False once one of them could not be."""

    @property
    def size(self) -> int:
        """Bytes of all chunks."""
        return sum(map(len, (*(self.copy or ()), *self.writes)))

    def lend(self, name: str, values: Iterable[Any], borrower: Run | None, before: Loan | None = None) -> _Channel:
        """Return a copy of the channel with a loan of these values, added after the loan `before`, None for no earlier
        one.

        If the values cannot be lent, the copy has no loan, and its entries are never lent again. `borrower` is the run
        that is given the values; None if no run is.
        """
        loan = Loan.of(name, values, borrower, before) if self.is_lendable and name in _LISTS else None
        return replace(self, loan=loan, is_lendable=loan is not None)


@dataclass(frozen=True, slots=True)
class _Kept:
    """The kept histories of some channels, up to and without the writes of one checkpoint."""

    id: str
    """The id of that checkpoint."""
    import_id: str | None
    """The import that stored the checkpoint; None if a run did."""
    channels: Mapping[str, _Channel]
    """Channel → its pickled history."""
    facts: Facts = field(default_factory=dict)
    """What the session's runs know about the messages that they were lent."""

    @property
    def pickled(self) -> int:
        """Bytes of the chunks of all channels."""
        return sum(channel.size for channel in self.channels.values())

    @property
    def size(self) -> int:
        """Estimated bytes of the chunks of all channels, and of the objects that are lent."""
        return self.pickled + _LENT * sum(each.size for each in self.channels.values() if each.loan is not None)

    def without_loans(self) -> _Kept:
        """Return the histories as pickled chunks only."""
        channels = {name: replace(channel, loan=None) for name, channel in self.channels.items()}
        return _Kept(self.id, self.import_id, channels)


@dataclass(frozen=True, slots=True)
class KnownHistory:
    """A kept history of an ancestor, with the writes between it and the checkpoint that is read."""

    at: _Checkpoint
    """The checkpoint that is read."""
    kept: _Kept
    """The kept history."""
    newer: Mapping[str, Sequence[Any]]
    """Channel → values written after the kept history, oldest first."""


class HistoryCache:
    """The kept histories of one saver. Thread-safe.

    When all are larger than `most_bytes` together, the least recently used are dropped.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[tuple[str, str, tuple[str, ...]], _Kept] = OrderedDict()
        self._guard = threading.Lock()
        self.size = 0
        """Bytes of all kept histories, with their loans."""

    def find(
        self, target: CheckpointTuple, channels: Sequence[str]
    ) -> Generator[str, CheckpointTuple | None, KnownHistory | None]:
        """Find a kept history of an ancestor of a checkpoint, and the writes after it.

        A generator without I/O: it yields the id of each checkpoint to load (in the thread and namespace of the
        target), and the caller sends it that checkpoint, or None if it does not exist. It returns None if the whole
        history must be read: nothing is kept, the kept history is of another branch or import, a checkpoint between is
        missing or has a full copy, or so many checkpoints lie between that one complete read is faster.

        `target` is the checkpoint whose history is read, `channels` are the names of its delta channels. Only its
        config, id, parent and metadata are used.
        """
        at = _Checkpoint.of(target)
        with self._guard:
            kept = self._kept.get(_key(at, channels))
        if kept is None:
            return None
        batches: list[list[tuple[str, Any]]] = []
        id_, parent_id, import_id, names = at.id, at.parent_id, at.import_id, frozenset(channels)
        for _ in range(max(_MOST_STEPS, kept.pickled // _BYTES_A_STEP)):
            if id_ == kept.id:
                if import_id != kept.import_id:
                    return None
                newer = [write for batch in reversed(batches) for write in batch]
                return KnownHistory(
                    at, kept, {name: [value for channel, value in newer if channel == name] for name in channels}
                )
            # The ids of a checkpoint's ancestors are lower than its own.
            if parent_id is None or parent_id < kept.id:
                return None
            found = yield parent_id
            if found is None:
                return None
            before = _Checkpoint.of(found)
            id_, parent_id, import_id = before.id, before.parent_id, before.import_id
            if id_ != kept.id and not names.isdisjoint(found.checkpoint["channel_values"]):
                return None  # the history begins at this full copy
            batches.append([(name, value) for _, name, value in found.pending_writes or () if name in names])
        return None

    def restore(self, known: KnownHistory, borrower: Run | None = None) -> History:
        """Return the history of the checkpoint that `find` was called for, and keep it in place of the ancestor's.

        It has the form in which a saver returns it, with empty task ids.

        Args:
            known: What `find` returned.
            borrower: The run to lend the objects to, whose `stored` is set; None for another reader.
        """
        # Unpickling makes many objects that all live on: the garbage collector would traverse them again and again.
        with paused_collection():
            return self._restore(known, borrower)

    def _restore(self, known: KnownHistory, borrower: Run | None) -> History:
        """Return the whole history at the checkpoint that is read, and keep it under this checkpoint.

        It has the kept entries, followed by the newer writes. Entries come from a loan that the borrower may use, else
        from unpickled chunks. Only the newer writes, and the last chunk that is not full, are pickled again.
        """
        lent = self._lent(known.at, known.kept, borrower)
        extended: dict[str, _Channel] = {}
        history: dict[str, DeltaChannelHistory] = {}
        for name, channel in known.kept.channels.items():
            newer, loan = known.newer[name], lent.get(name)
            if loan is not None:
                copied, entries = loan.entries[: channel.copied], loan.entries[channel.copied :]
                chunks = [[entries]] if entries else []
                last = [entries[-channel.last :]] if channel.last else []
            else:
                copied = [entry for part in channel.copy or () for entry in _unpickled(part)]
                chunks = [_unpickled(chunk) for chunk in channel.writes]
                last = chunks[-1] if chunks else []
            values = [value for chunk in (*chunks, newer) for value in chunk]
            if newer:
                is_full = not chunks or channel.last >= _CHUNK
                sealed, last = (channel.writes, []) if is_full else (channel.writes[:-1], last)
                tail, left = _pickled([*last, *newer], name)
                channel = replace(channel, writes=(*sealed, *tail), last=left)  # noqa: PLW2901 - its newer version
            if not self._fits(known.kept.pickled):
                channel = replace(channel, loan=None)  # noqa: PLW2901
            elif borrower is not None:
                channel = channel.lend(name, newer if loan else [copied, *values], borrower, loan)  # noqa: PLW2901
            elif channel.loan is not None and newer:
                # The reader has these objects, so the next run must be given others.
                channel = channel.lend(name, pickle.loads(pickle.dumps(newer, 5)), None, channel.loan)  # noqa: PLW2901
            extended[name] = channel
            history[name] = {"writes": [("", name, value) for value in values]}
            if channel.copy is not None:
                history[name]["seed"] = delta_snapshot(copied)
        self._put(known.at, replace(known.kept, id=known.at.id, import_id=known.at.import_id, channels=extended))
        return history

    def _lent(self, at: _Checkpoint, kept: _Kept, borrower: Run | None) -> dict[str, Loan]:
        """Return channel → loan that the borrower may use: one that no other run uses, and whose entries are unchanged.

        Sets the borrower's `stored`, and makes the borrower the holder of every loan that no other run uses, also of a
        changed one. Empty if the borrower is None.
        """
        if borrower is None:
            return {}
        with self._guard:
            borrower.stored = StoredMessages(at.messages, kept.facts)
            loans = [(name, channel.loan) for name, channel in kept.channels.items()]
            claimed = {name: loan for name, loan in loans if loan is not None and loan.claim(borrower)}
        return {name: loan for name, loan in claimed.items() if loan.is_intact()}

    def _fits(self, pickled: int) -> bool:
        """Whether a history of so many pickled bytes may be kept with loans of all its entries."""
        return (1 + _LENT) * pickled <= self._most_bytes

    @staticmethod
    def count(history: History) -> dict[str, int]:
        """Return channel → number of entries in the full copy and the writes; a list that was written counts its
        elements.
        """
        return {
            name: len(copied_list(each.get("seed")) or ())
            + sum(len(value) if isinstance(value, list) else 1 for _, _, value in each["writes"])
            for name, each in history.items()
        }

    @staticmethod
    def is_whole(history: History, entries: Mapping[str, int], lengths: Mapping[str, int]) -> bool:
        """Whether each channel has as many entries as its checkpoint records; a channel without a recorded length is
        whole.

        `entries` are the numbers that `count` returned, `lengths` the recorded ones, by channel. The messages are
        rebuilt if the two differ, which takes time.
        """
        for name, number in entries.items():
            if number == lengths.get(name, number):
                continue
            # Messages may have been replaced or removed, which only their replay shows.
            if name != "messages" or len(replay_delta(MessagesChannel(), history[name])) != lengths[name]:
                return False
        return True

    @staticmethod
    def is_long(history: History) -> bool:
        """Whether a history has at least `FEWEST_ENTRIES` writes and entries of full copies, so that it is worth
        keeping.
        """
        entries = sum(len(each["writes"]) + len(copied_list(each.get("seed")) or ()) for each in history.values())
        return entries >= FEWEST_ENTRIES

    def keep(self, target: CheckpointTuple, history: History, borrower: Run | None = None) -> None:
        """Keep a complete history that the saver has returned for the checkpoint `target`.

        One history is kept for each thread, namespace and set of channels. Nothing is kept if that of a newer
        checkpoint is kept already, if a value cannot be pickled, or if a full copy is no list.

        Args:
            target: The checkpoint.
            history: Its history.
            borrower: The run that is given these objects, and whose `stored` is set; None for another reader.
        """
        at = _Checkpoint.of(target)
        with self._guard:
            kept = self._kept.get(_key(at, history))
        if kept is not None and kept.id > at.id:
            return
        channels: dict[str, _Channel] = {}
        for name, each in history.items():
            copied = copied_list(each["seed"]) if "seed" in each else []
            if copied is None:
                return
            values = [value for _, _, value in each["writes"]]
            try:
                copy = _pickled(copied, name)[0] if "seed" in each else None
                writes, last = _pickled(values, name)
            except (pickle.PicklingError, TypeError, AttributeError):
                return
            channels[name] = _Channel(copy, writes, last, len(copied))
        new = _Kept(at.id, at.import_id, channels)
        if borrower is not None:
            borrower.stored = StoredMessages(at.messages, new.facts)
            if self._fits(new.pickled):
                with paused_collection():
                    for name, each in history.items():
                        values = [copied_list(each.get("seed")) or [], *(value for _, _, value in each["writes"])]
                        channels[name] = channels[name].lend(name, values, borrower)
        self._put(at, new)

    def _put(self, at: _Checkpoint, new: _Kept) -> None:
        """Store a kept history as the most recently used. Above the limit of bytes, drop first the loans, then the
        histories, of the least recently used ones.

        A history of a newer checkpoint that another thread has kept meanwhile stays instead.
        """
        key = _key(at, new.channels)
        with self._guard:
            before = self._kept.pop(key, None)
            if before is not None and before.id > new.id:
                new = before  # another thread has read a newer checkpoint
            self.size += new.size - (before.size if before is not None else 0)
            self._kept[key] = new
            while self.size > self._most_bytes:
                oldest = next((at for at, kept in self._kept.items() if kept.size > kept.pickled), None)
                if oldest is not None:
                    dropped = self._kept[oldest]
                    self._kept[oldest] = dropped.without_loans()
                    self.size -= dropped.size - dropped.pickled
                else:
                    self.size -= self._kept.popitem(last=False)[1].size


def _key(at: _Checkpoint, channels: Iterable[str]) -> tuple[str, str, tuple[str, ...]]:
    """Return the key of a kept history: one for each thread, namespace and set of channels, whatever the checkpoint."""
    return at.thread_id, at.namespace, tuple(sorted(channels))


def _pickled(values: Sequence[Any], channel: str) -> tuple[Chunks, int]:
    """Return the values of a channel as pickled chunks, and the number of entries in the last chunk, 0 for no values.

    A value that is a list counts its elements: pruning stores many entries as one write. In a chunk of a channel of
    `_LISTS`, consecutive lists are joined.
    """
    chunks: list[list[Any]] = []
    entries = 0
    for value in values:
        if not chunks or entries >= _CHUNK:
            chunks.append([])
            entries = 0
        chunk, is_list = chunks[-1], isinstance(value, list)
        if not (is_list and channel in _LISTS):
            chunk.append(value)
        elif chunk and isinstance(chunk[-1], list):
            chunk[-1] += value
        else:
            chunk.append([*value])
        entries += len(value) if is_list else 1
    return tuple(pickle.dumps(chunk, 5) for chunk in chunks), entries


def _unpickled(chunk: bytes) -> list[Any]:
    """Return the values of one chunk."""
    values: list[Any] = pickle.loads(chunk)  # made by this process, and never stored
    return values
