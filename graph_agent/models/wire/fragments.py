"""Assigns the fragments of a streamed reply's calls to their calls, and decides whether the calls may run.

LangChain merges fragments by their index alone. Many servers send no index, one index for all calls, the index on the
first fragment only, or a new id on each fragment. `CallAssembler` gives each fragment the index of its call before
LangChain merges it, and `judged` refuses the calls of a reply whose fragments cannot be assigned.

A fragment without an index belongs to the call opened last; a new id or name opens a call. A fragment with an index
belongs to the newest call opened with that index.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from langchain_core.messages import AIMessage, AIMessageChunk, InvalidToolCall, ToolCall
from langchain_core.messages.tool import ToolCallChunk, invalid_tool_call, tool_call, tool_call_chunk

from graph_agent.base._internal.lenient_json import is_several_objects
from graph_agent.base._internal.text import clean

UNASSIGNED = "graph_agent_unassigned"
"""Key in `response_metadata` of a streamed reply whose calls must not run: the reason, as a clause."""

_NO_IDS = frozenset({"", "null", "None"})
"""Values of an id that mean there is none: Mistral's API sends the text "null"."""
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_EMPTY_START = re.compile(r"\A\s*+\{\s*+\}(?=\s*+\{)")
_CALL_BLOCKS = frozenset(
    {"tool_use", "tool_call", "tool_call_chunk", "invalid_tool_call", "function_call", "input_json_delta"}
)
"""Types of content blocks that hold a call or a fragment of one."""


@dataclass(slots=True)
class _Call:
    """A call of a reply that is still being received, with the fragments so far."""

    index: int
    """The index under which LangChain merges the call's fragments; unique in the reply."""
    given: Any
    """The index in the call's first fragment as sent; None if it had none."""
    id: str
    name: str
    pieces: list[str] = field(default_factory=list)
    is_inferred: bool = False
    """Whether a fragment was assigned to this call although it had neither an index nor an id."""

    @property
    def raw(self) -> str:
        """The arguments received so far, with split surrogate pairs joined."""
        if len(self.pieces) > 1:
            self.pieces[:] = ["".join(self.pieces)]
        text = self.pieces[0] if self.pieces else ""
        return text if text.isascii() else clean(_PAIR.sub(_joined, text))


class CallAssembler:
    """Assigns the call fragments in the chunks of one streamed reply to calls. Create one object for each reply."""

    def __init__(self) -> None:
        self.has_homeless = False
        """Whether there was a fragment with arguments that belongs to no call."""
        self.is_rearranged = False
        """Whether any fragment was given another index than the provider's; content blocks are then merged wrongly."""
        self._calls: list[_Call] = []
        self._newest_at: dict[Any, _Call] = {}
        self._newest_with: dict[str, _Call] = {}
        self._taken: set[int] = set()
        self._doubtful: list[_Call] = []

    def __bool__(self) -> bool:
        """Whether any fragment was received."""
        return bool(self._calls) or self.has_homeless

    @property
    def arguments(self) -> list[str]:
        """The JSON text of each call's arguments so far, in order of the calls."""
        return [call.raw for call in self._calls]

    def receive(self, message: AIMessageChunk) -> None:
        """Assign the fragments of a chunk, in place: set the index of their call, remove repeated ids and names.

        Fragments that belong to no call are removed from the chunk.
        """
        raw = message.additional_kwargs.get("tool_calls") if message.additional_kwargs else None
        if isinstance(raw, list):
            _complete(message, raw)
        if not (pieces := message.tool_call_chunks):
            return
        with_home = [piece for piece in pieces if self.add(piece)]
        if len(with_home) < len(pieces):
            message.tool_call_chunks = with_home
        elif isinstance(raw, list) and len(raw) == len(pieces):
            for entry, piece in zip(raw, pieces, strict=True):
                if isinstance(entry, dict):
                    # LangChain merges this list by the same index.
                    entry["index"] = piece["index"]

    def add(self, piece: ToolCallChunk) -> bool:
        """Assign one fragment to its call, in place; return False if it belongs to no call.

        A fragment with a known id, or at the index of a call, continues that call unless it begins another one (see
        `_home_of`). Else one with an id or a name opens a call; a name alone does not if calls of this name have ids.
        Other arguments set `has_homeless`.
        """
        id_, name, given, text = piece["id"] or "", piece["name"] or "", piece["index"], piece["args"] or ""
        if id_ in _NO_IDS:
            id_ = ""
        call = self._home_of(id_, name, given, text)
        if call is None and (not (id_ or name) or (not id_ and any(twin.id for twin in self._named(name)))):
            # Without a name, or with one that it repeats where the calls of this name have ids, it opens none.
            self.has_homeless = self.has_homeless or bool(text.strip())
            return False
        if call is None:
            call = self._open(id_, name, given)
            piece["id"] = id_ or None
        else:
            piece["id"] = self._adopted(call, "id", id_)
            piece["name"] = self._adopted(call, "name", name)
        if piece["index"] != call.index:
            piece["index"] = call.index
            self.is_rearranged = True
        if text:
            call.pieces.append(text)
        return True

    def _home_of(self, id_: str, name: str, given: Any, text: str) -> _Call | None:
        """Return the earlier call that a fragment continues; None if it begins a new call or belongs to none.

        It continues the call of its id; without a known id, the newest call at its index, or the last call if it has no
        index. It begins a new one if it has another id or name than that call, or begins a second object of arguments.
        Also records whether the call was only inferred, and which later calls the fragment may belong to instead.

        Args:
            id_: The fragment's id; empty if it has none.
            name: Its tool name; empty if it has none.
            given: Its index as sent; None if it has none.
            text: Its piece of the arguments.
        """
        last = self._calls[-1] if self._calls else None
        near = last if given is None else self._newest_at.get(given)
        if (known := self._newest_with.get(id_) if id_ else None) is not None:
            # Kimi's ids repeat: a further call may have the id and the name of a whole one.
            is_further = name and (name != known.name or _restarts(known, text) or (near is None and _is_whole(known)))
            return None if is_further else known
        if near is None:
            return None
        has_other_id = bool(id_ and near.id)
        if name and (has_other_id or (near.name and (name != near.name or _restarts(near, text)))):
            return None
        if has_other_id and given is None:
            return None
        if text.strip():
            near.is_inferred = near.is_inferred or (given is None and not id_)
            if near is not last:
                # The index may be wrong: the fragment may belong to a later call, which has no arguments then.
                self._doubtful += self._calls[self._calls.index(near) + 1 :]
        return near

    def _named(self, name: str) -> list[_Call]:
        """Return the calls with a name; empty for an empty name."""
        return [call for call in self._calls if call.name == name] if name else []

    def _open(self, id_: str, name: str, given: Any) -> _Call:
        """Begin a new call, and return it; its index is the given one, or a free one if that is taken or no number.

        If earlier calls have the same name and the id is not a new one at a free index, all of these are noted as
        doubtful, because the fragment may belong to one of them.

        Args:
            id_: The id in the fragment; empty if it has none.
            name: The name in the fragment; may be empty.
            given: The index in the fragment.
        """
        is_free = isinstance(given, int) and given not in self._taken
        index = given if is_free else max(self._taken, default=-1) + 1
        call = _Call(index, given, id_, name)
        is_new = is_free and id_ and id_ not in self._newest_with
        if not is_new and (twins := self._named(name)):
            # The first fragment of a further call, or a later one of an earlier call that repeats its name.
            self._doubtful += [*twins, call]
        self._calls.append(call)
        self._taken.add(index)
        if given is not None:
            self._newest_at[given] = call
        if id_:
            self._newest_with[id_] = call
        return call

    def _adopted(self, call: _Call, key: Literal["id", "name"], value: str) -> str | None:
        """Set the id or name of a call that has none yet, so that later fragments with a new id find the call. Returns
        the value; None if the call had one, or if `value` is empty.

        LangChain would append a repeated id or name to the first one.

        Args:
            call: The call, which is changed.
            key: `id` or `name`.
            value: The value in the fragment.
        """
        if not value or getattr(call, key):
            return None
        setattr(call, key, value)
        if key == "id":
            self._newest_with[value] = call
        return value

    def read(self) -> Sequence[_ReadCall]:
        """Return the calls received so far, with their parsed arguments.

        The prefix `{}` that some proxies send before the arguments is ignored, unless one of several calls has no
        arguments: it may then be the arguments of another call.
        """
        # A call without arguments, whose own are those of the next call, has the same form.
        keeps_prefix = len(self._calls) > 1 and any(not call.raw.strip() for call in self._calls)
        return [_ReadCall(call.id, call.name, call.raw, _object_in(call.raw, keeps_prefix)) for call in self._calls]

    def reason_not_to_run(self, *, is_cut_off: bool) -> str | None:
        """Return why none of the reply's calls may run, as a clause; None if they may.

        They may run if each call has a name and exactly one JSON object of arguments, and it is certain to which call
        each fragment belongs. Damaged arguments are no reason if they can be repaired: those of a single call, or of
        the last call of a reply that was cut off.

        Args:
            is_cut_off: Whether the reply was cut off.
        """
        if self.has_homeless:
            return "a fragment of arguments belongs to no call"
        if any(not call.name and call.raw.strip() for call in self._calls):
            return "a call has arguments and no name"
        if any(not call.raw.strip() for call in self._doubtful):
            return "a fragment of arguments may belong to another call"
        *others, last = [call.arguments is None for call in self.read()] or [False]
        is_repairable = is_cut_off or (not others and not self._calls[-1].is_inferred) if last else True
        if is_repairable and not any(others):
            return None
        damaged = [call for call in self.read() if call.arguments is None]
        return f"the arguments of {damaged[0].name!r} are not one JSON object"


class _ReadCall(NamedTuple):
    id: str
    name: str
    raw: str
    arguments: dict[str, Any] | None
    """None if they are not exactly one JSON object."""


def judged(reply: AIMessage, assembler: CallAssembler, *, is_cut_off: bool) -> AIMessage:
    """Return a streamed reply with exactly the calls that were sent.

    - If none of them may run, all become invalid calls, with the reason under `UNASSIGNED` in `response_metadata` and
      in each call.
    - A single call whose arguments are several objects becomes invalid, too, without a reason.
    - Damaged arguments that can be repaired are left to the caller: the reply is unchanged.
    - A reply with a call that `assembler` has not received is unchanged, too.

    Args:
        reply: The complete reply.
        assembler: Has received all chunks of the reply.
        is_cut_off: Whether the reply was cut off.
    """
    calls, own = assembler.read(), [*reply.tool_calls, *reply.invalid_tool_calls]
    ids = {call.id for call in calls}
    if not (own or assembler.has_homeless) or any(call["id"] and call["id"] not in ids for call in own):
        return reply
    reason = assembler.reason_not_to_run(is_cut_off=is_cut_off)
    if reason is not None:
        named = [call for call in calls if call.name] or [*calls, _ReadCall("", "", "", None)][:1]
        return _with_calls(
            reply,
            [],
            [invalid_tool_call(name=call.name, args=call.raw, id=call.id or None, error=reason) for call in named],
            {UNASSIGNED: reason},
        )
    if calls and calls[-1].arguments is None:
        last = calls[-1]
        if len(calls) > 1 or not is_several_objects(_EMPTY_START.sub("", last.raw)):
            return reply
        return _with_calls(reply, [], [invalid_tool_call(name=last.name, args=last.raw, id=last.id or None)])
    named = [call for call in calls if call.name or call.id]
    made = [tool_call(name=call.name, args=call.arguments or {}, id=call.id or None) for call in named]
    bare = _without_call_blocks(reply) if assembler.is_rearranged else reply
    if not reply.invalid_tool_calls and all(call in made for call in reply.tool_calls):
        return bare
    return _with_calls(bare, made, [])


def with_blank_arguments(reply: AIMessage) -> AIMessage:
    """Turn invalid calls that have a name, and blank arguments or `null`, into valid calls without arguments.

    LangChain parses such calls of a reply that is not streamed as invalid. Returns the same object if there are none.
    """
    if not reply.invalid_tool_calls:
        return reply
    blank = [call for call in reply.invalid_tool_calls if (call["args"] or "").strip() in {"", "null"} and call["name"]]
    if not blank:
        return reply
    calls = [*reply.tool_calls, *(tool_call(name=call["name"] or "", args={}, id=call["id"]) for call in blank)]
    return _with_calls(reply, calls, [call for call in reply.invalid_tool_calls if call not in blank])


def _joined(pair: re.Match[str]) -> str:
    """Return the character that a pair of surrogate halves stands for."""
    return pair[0].encode("utf-16", "surrogatepass").decode("utf-16")


def _with_calls(
    reply: AIMessage, calls: list[ToolCall], invalid: list[InvalidToolCall], metadata: Mapping[str, Any] | None = None
) -> AIMessage:
    """Return a copy of a reply with other valid and invalid calls, and additional metadata."""
    update: dict[str, Any] = {"tool_calls": calls, "invalid_tool_calls": invalid}
    if metadata:
        update["response_metadata"] = {**reply.response_metadata, **metadata}
    return reply.model_copy(update=update)


def _without_call_blocks(reply: AIMessage) -> AIMessage:
    """Return a copy of a reply without content blocks that contain a call; the same object if its content is text."""
    content = reply.content
    if isinstance(content, str):
        return reply
    kept = [block for block in content if not (isinstance(block, dict) and block.get("type") in _CALL_BLOCKS)]
    return reply.model_copy(update={"content": kept})


def _restarts(call: _Call, text: str) -> bool:
    """Whether a fragment begins a second object of arguments, after those of a call are complete."""
    if not text.lstrip().startswith("{"):
        return False
    return _is_whole(call)


def _is_whole(call: _Call) -> bool:
    """Whether the arguments of a call received so far are one complete JSON object; False for `{}`, with which some
    proxies begin a call.
    """
    before = call.raw.strip()
    # The object `{}` may be the empty input with which some proxies begin a call.
    return before.endswith("}") and len(before) > 2 and _object_in(before, keeps_prefix=True) is not None


def _object_in(raw: str, keeps_prefix: bool) -> dict[str, Any] | None:
    """Parse the arguments in a text: a JSON object, or a JSON string that contains one. None for anything else.

    A blank text or `null` gives an empty dict.

    Args:
        raw: The text.
        keeps_prefix: Whether `{}` before another object is kept, which some proxies send before the arguments.
    """
    text = raw.strip() if keeps_prefix else _EMPTY_START.sub("", raw).strip()
    for _ in range(2):
        if not text:
            return {}
        try:
            value = json.loads(text, strict=False)
        except (ValueError, RecursionError):
            return None
        if value is None:
            return {}
        if isinstance(value, dict):
            return value
        if not isinstance(value, str):
            return None
        text = value.strip()
    return None


def _complete(message: AIMessageChunk, raw: list[Any]) -> None:
    """Correct the fragments of a chunk, in place, by the provider's own list, where LangChain's package has changed
    them. A list with an entry that is no dict is ignored.

    Some packages drop the fragments of a chunk that lack a name or an index, and generate missing ids: then all
    fragments are made again from the list, or the generated ids are removed.

    Args:
        message: The chunk.
        raw: The provider's own list of call fragments.
    """
    entries = [entry for entry in raw if isinstance(entry, dict)]
    if len(entries) != len(raw):
        return
    pieces = message.tool_call_chunks
    if len(pieces) != len(entries):
        message.tool_call_chunks = [_piece_of(entry) for entry in entries]
        return
    for piece, entry in zip(pieces, entries, strict=True):
        if piece["id"] and not entry.get("id"):
            piece["id"] = None


def _piece_of(entry: Mapping[str, Any]) -> ToolCallChunk:
    """Convert an entry of the provider's own list of calls to LangChain's fragment; arguments that are no text become
    JSON.
    """
    function = entry.get("function")
    named: Mapping[str, Any] = function if isinstance(function, dict) else {}
    arguments = named.get("arguments")
    return tool_call_chunk(
        name=named.get("name"),
        args=arguments if isinstance(arguments, str) or arguments is None else json.dumps(arguments),
        id=entry.get("id"),
        index=entry.get("index"),
    )
