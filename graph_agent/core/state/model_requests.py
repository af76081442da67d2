"""Records the requests that models receive, each as the difference to the one before, and reads them back.

A part of a request, which is a message or a tool, is stored once, under its hash, with secrets replaced by `***` as in
logs. Recording is on with the setting `record_requests`.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from graph_agent.base._internal.lru import BoundedCache
from graph_agent.base._internal.secrets import mask_secrets
from graph_agent.base._internal.text import common_length, reasoning_text, text_of, to_json_safe
from graph_agent.base.history.call_events import call_of
from graph_agent.base.history.events import StoredEvent, event
from graph_agent.base.history.plan_parts import ModelCallRecord, Purpose
from graph_agent.base.input_messages import RECALL_MARK

if TYPE_CHECKING:
    from graph_agent.base.usage import TimedRequest

TYPE = "model_request"
"""The `type` of the events that record requests."""
_HASH_CHARS = 16
_KEYS: BoundedCache[tuple[str, int], str] = BoundedCache(20_000)
"""Hash of a part as given, and the limit of its recorded length → hash of the part as recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One request that a model received."""

    step: int
    """Number of the plan that the request belongs to, from 1; 0 before the first plan of an input."""
    purpose: Purpose
    """What the reply is for: `plan`, `answer` or `summary`."""
    model: str
    """Name of the model, as configured or reported; empty if unknown."""
    messages: tuple[Mapping[str, Any], ...]
    """The messages as plain JSON: `type` (`system`, `human`, `ai` or `tool`), `content`, and if present `name`,
    `tool_calls` and `tool_call_id`. Content beyond the recorded length is cut, with `omitted_chars`. The message with
    facts of the memory has their ids as `recalled`, and not their texts."""
    kept_first: int = 0
    """Number of leading messages that the request before has at its beginning, too."""
    kept_last: int = 0
    """Number of trailing messages that the request before has at its end, too."""
    removed: int = 0
    """Number of messages of the request before that this one does not have."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """The offered tools, in OpenAI's function format."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the call, such as `temperature` and `tool_choice`."""
    reconstructed: bool = False
    """Whether the request was not recorded, so that it is derived from the history: without system prompt, tools and
    options."""
    reasoning: str = ""
    """The reasoning of the reply, as far as the provider shows it; cut at the recorded length. Empty if it shows none,
    and for a request that was not recorded."""
    seq: int = 0
    """Index of the event that records the request, or that it led to; for a delegate's request, of the event of its
    answer."""
    delegate: str = ""
    """Name of the delegate in this process that sent the request, as `outer/inner` if it is nested; empty for the
    agent."""

    @property
    def added(self) -> tuple[Mapping[str, Any], ...]:
        """The messages that the request before did not have, in order."""
        return self.messages[self.kept_first : len(self.messages) - self.kept_last]


class RequestLog:
    """The requests recorded in a session's events up to a point; it reads the next event, or records the next request.

    Args:
        events: The session's events up to that point, oldest first.
        limit: Maximum characters of JSON that `record` stores of one message or tool; longer content is cut.
        hashes: Cache of `id()` of a message or tool → the object and its hash, shared by the logs of a run; None for a
            new one.
    """

    def __init__(
        self, events: Iterable[Mapping[str, Any]], limit: int = 0, hashes: dict[int, tuple[Any, str]] | None = None
    ) -> None:
        self._limit = limit
        self._hashes = {} if hashes is None else hashes
        self._parts: dict[str, Any] = {}
        self._messages: list[str] = []
        self._tools: list[str] = []
        self._options: Mapping[str, Any] = {}
        self._newest: StoredEvent | None = None
        """The newest event that `record` returned."""
        for entry in events:
            if entry["type"] == TYPE:
                self._apply(entry)

    def _apply(self, entry: Mapping[str, Any]) -> None:
        """Take over the request that a `model_request` event records, as the newest request of the log."""
        self._parts |= entry["parts"]
        # In place: a copy for each record would cost the square of the session's length.
        self._messages[entry["kept_first"] : len(self._messages) - entry["kept_last"]] = entry["added"]
        self._tools = entry.get("tools", self._tools)
        self._options = entry.get("options", self._options)

    def read(self, entry: Mapping[str, Any], seq: int = 0) -> ModelRequest:
        """Return the request that the next `model_request` event records, and make it the newest one of the log.

        Args:
            entry: The event; those before it must have been read.
            seq: Index of the event in the session's history.
        """
        first, last, before = entry["kept_first"], entry["kept_last"], len(self._messages)
        self._apply(entry)
        return ModelRequest(
            step=entry["step"],
            purpose=entry["purpose"],
            model=entry["model"],
            messages=tuple(self._parts[key] for key in self._messages),
            kept_first=first,
            kept_last=last,
            removed=before - first - last,
            tools=tuple(self._parts[key] for key in self._tools),
            options=self._options,
            reasoning=entry.get("reasoning", ""),
            seq=seq,
        )

    def record(
        self, sent: TimedRequest, call: ModelCallRecord, step: int, learned: Mapping[str, Any] | None = None
    ) -> StoredEvent | None:
        """Return the `model_request` event for a request, which becomes the newest one of the log; None if it equals
        the one before.

        The event names the messages that differ from the request before by keys; a part is stored once, with secrets
        masked and cut to the log's limit. Tools and options are left out if they are unchanged. The reasoning of the
        reply is recorded in the event, or in that of the equal request before.

        Args:
            sent: The request, with its messages, tools and options.
            call: The record of the model call, from which purpose, model and start are copied.
            step: Number of the plan for the event.
            learned: Fields of `WireRules` (what an endpoint accepts) that differ from the known ones, because the
                endpoint refused another form of the request; None if nothing differs.
        """
        new: dict[str, Any] = {}

        def key_of(part: Any) -> str:
            if (found := self._hashes.get(id(part))) is not None and found[0] is part:
                return found[1]
            plain = _as_json(part)
            shown = functools.cache(lambda: _bounded(masked(plain), self._limit))
            # Masking costs more than all else; in a later run the same parts are other objects.
            given = _digest(json.dumps(plain)), self._limit
            key = _KEYS.get(given, lambda: _digest(json.dumps(shown(), sort_keys=True)))
            if key not in self._parts:
                new[key] = shown()
            self._hashes[id(part)] = part, key
            return key

        keys, tools = [*map(key_of, sent.messages)], [*map(key_of, sent.options.get("tools") or ())]
        others = masked(to_json_safe({name: value for name, value in sent.options.items() if name != "tools"}))
        before = self._messages
        thoughts = reasoning_text(sent.reply) if sent.reply is not None else ""
        reasoning = {"reasoning": mask_secrets(thoughts[: self._limit])} if thoughts else {}
        if (keys, tools, others) == (before, self._tools, self._options):
            if self._newest is not None:
                self._newest.update(reasoning)
            return None
        first = common_length(keys, before)
        last = common_length(keys[first:][::-1], before[first:][::-1])
        # Both ends are compared, because compaction replaces messages in the middle of a request.
        fields: dict[str, Any] = {"kept_first": first, "added": keys[first : len(keys) - last], "kept_last": last}
        if tools != self._tools:
            fields["tools"] = tools
        if others != self._options:
            fields["options"] = others
        about: dict[str, Any] = {"purpose": call["purpose"], "model": call["model"], "started": call["started"]}
        # An ignored schema is learned from the reply of the request that had it.
        is_new = "response_format" in {*sent.options, *(sent.options.get("extra_body") or ())}
        if used := {name: value for name, value in (learned or {}).items() if name != "json_schema" or not is_new}:
            about["learned"] = {
                name: sorted(value) if isinstance(value, frozenset) else value for name, value in used.items()
            }
        self._newest = made = event(TYPE, step, **about, **fields, **reasoning, parts=new)
        self._apply(made)
        return made


def learned_rules(events: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what endpoints had been found to refuse when requests were recorded: model name → fields of `WireRules`.

    Of several values of a field the newest counts, but of `json_schema` only that of the model's first request. Models
    without any are left out.
    """
    found: dict[str, dict[str, Any]] = {}
    for entry in events:
        if entry["type"] == TYPE:
            learned = dict(entry.get("learned", {}))
            if entry["model"] in found:
                learned.pop("json_schema", None)  # that a schema is ignored is learned again from the same reply
            found.setdefault(entry["model"], {}).update(learned)
    return {model: fields for model, fields in found.items() if fields}


def requests_of(events: Iterable[Mapping[str, Any]]) -> list[ModelRequest]:
    """Return the requests of a session and of its delegates in this process, oldest first.

    A request that was not recorded is reconstructed from the history and marked so: one for each event that reports
    model calls, and for each plan that came from no cache. The requests of a delegate stand where its answer arrived;
    each is the difference to the delegate's request before.

    Args:
        events: The session's events from its beginning.
    """
    log, found = RequestLog(()), list[ModelRequest]()
    conversation: list[dict[str, Any]] = []
    sent, is_recorded = 0, False
    for seq, entry in enumerate(events):
        if entry["type"] == TYPE:
            found.append(log.read(entry, seq))
            is_recorded = True
            continue
        if entry["type"] == "delegation_response":
            for each in requests_of(entry.get("history", ())):
                path = f"{entry['target']}/{each.delegate}".rstrip("/")
                found.append(replace(each, seq=seq, delegate=path))
        asked = entry.get("model_calls") or (entry["type"] == "plan" and not entry.get("cached"))
        if asked and not is_recorded:
            unknown: dict[str, Any] = {"purpose": "plan", "model": ""}
            calls = entry.get("model_calls") or [unknown]
            found.append(
                ModelRequest(
                    step=entry["step"],
                    purpose=calls[-1]["purpose"],
                    model=calls[-1]["model"],
                    messages=tuple(conversation),
                    kept_first=sent,
                    reconstructed=True,
                    seq=seq,
                )
            )
            sent = len(conversation)
        if asked:
            is_recorded = False
        _continue(conversation, masked(entry))
    return found


def _continue(conversation: list[dict[str, Any]], entry: StoredEvent) -> None:
    """Append the message that an event stands for, in the form of `ModelRequest.messages`; a call is added to the
    newest plan's message.

    Events that stand for no message, and plans without calls, change nothing.

    Args:
        conversation: The messages so far; changed in place.
        entry: The event.
    """
    match entry["type"]:
        case "user_message" | "steering":
            conversation.append({"type": "human", "content": entry["content"]})
        case "plan" if entry["calls"]:
            conversation.append({"type": "ai", "content": entry["reasoning"], "tool_calls": []})
        case "tool_call" | "delegation_request" if conversation and (call := call_of(entry)) is not None:
            # A call that a person added belongs to the newest plan, even if other messages followed it.
            newest = next((each for each in reversed(conversation) if "tool_calls" in each), conversation[-1])
            made = {"id": call["id"], "name": call["name"], "args": call["arguments"]}
            newest.setdefault("tool_calls", []).append(made)
        case "tool_result" | "delegation_response":
            conversation.append({"type": "tool", "tool_call_id": entry["id"], "content": entry["content"]})
        case "agent_response":
            conversation.append({"type": "ai", "content": entry["content"]})


def _digest(text: str) -> str:
    """Return the first `_HASH_CHARS` hexadecimal digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARS]


def _as_json(part: Any) -> Any:
    """Return a message or a tool as plain JSON. A message has the fields of `ModelRequest.messages`.

    Facts of the memory are replaced by their ids. Raises `ValueError` for content that is nested too deeply.
    """
    if isinstance(part, Mapping):
        return to_json_safe(dict(part))
    if recalled := part.additional_kwargs.get(RECALL_MARK):
        # Without the texts, which a recorded request would keep after their user has forgotten them.
        return {"type": part.type, "content": "[Facts of the memory]", "recalled": list(recalled)}
    shown = {"type": part.type, "content": to_json_safe(part.content)}
    for name in ("name", "tool_calls", "tool_call_id"):
        if value := getattr(part, name, None):
            shown[name] = to_json_safe(value)
    for call in shown.get("tool_calls", ()):
        call.pop("type", None)
    return shown


def masked(value: Any) -> Any:
    """Return plain JSON with secrets replaced by `***`: those recognized in texts, and texts under a key such as
    `api_key`."""
    if isinstance(value, str):
        return mask_secrets(value)
    if isinstance(value, list):
        return [masked(each) for each in value]
    if isinstance(value, dict):
        return {key: "***" if _is_secret(key, each) else masked(each) for key, each in value.items()}
    return value


def _is_secret(name: str, value: Any) -> bool:
    """Whether a value must be masked because of its key's name, whatever the text is."""
    if not isinstance(value, str) or not _names_secret(name):
        return False
    shown = json.dumps({name: value}, ensure_ascii=False)
    return mask_secrets(shown) != shown


@functools.lru_cache(1024)
def _names_secret(name: str) -> bool:
    """Whether a key's name, such as `password`, makes any text under it a secret."""
    shown = json.dumps({name: "a-single-word"})
    return mask_secrets(shown) != shown


def _bounded(part: Any, limit: int) -> Any:
    """Return a message or tool cut to about `limit` characters of JSON; unchanged if it is not longer.

    A cut tool keeps only its name and type. A cut message keeps its type, name, call id and the beginning of its text,
    loses its tool calls, and names the types of its other blocks in `omitted_blocks`. Both have `omitted_chars`.
    """
    text = json.dumps(part, ensure_ascii=False)
    if len(text) <= limit:
        return part
    if "function" in part:
        return {"type": "function", "function": {"name": part["function"]["name"]}, "omitted_chars": len(text)}
    if "content" not in part:  # a tool in the format of another provider
        return {**{name: part[name] for name in ("type", "name") if name in part}, "omitted_chars": len(text)}
    blocks = part["content"] if isinstance(part["content"], list) else []
    others = [each.get("type", "block") for each in blocks if isinstance(each, Mapping) and "text" not in each]
    content = text_of(part["content"])
    if not content and not others:
        content = json.dumps(part["content"], ensure_ascii=False)
    kept = {name: part[name] for name in ("type", "name", "tool_call_id") if name in part}
    omitted = {"omitted_blocks": others} if others else {}
    return {**kept, "content": content[:limit], **omitted, "omitted_chars": max(0, len(text) - limit)}
