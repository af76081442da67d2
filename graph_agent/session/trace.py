"""Projects the events of a session onto spans: what ran when, in parallel with what, for how long and at which cost.

Also draws the spans on a time axis, as SVG for a notebook. An input is one message of a user with everything up to its
answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar

from graph_agent.base._internal.secrets import mask_named_secrets
from graph_agent.base._internal.svg import svg_document, text
from graph_agent.base._internal.text import printable, text_of
from graph_agent.base.history.events import NOT_RUN
from graph_agent.base.history.plan_parts import ModelCallRecord
from graph_agent.base.origins import ArgumentOrigin
from graph_agent.base.types import needed_ids
from graph_agent.session.early_work import NO_EARLY_WORK, EarlyWork, early_work_of
from graph_agent.session.time_axis import TimeAxis, gaps_of

E = TypeVar("E", bound=Mapping[str, Any])
SpanKind = Literal["input", "plan", "answer", "model", "tool", "delegation", "wait"]
_PROBLEMS = ("loop_detected", "limit", "warning", "error")
NOTED = frozenset({"recall", "steering", "background_result", "summary", "middleware", "hook", *_PROBLEMS})
"""Types of events that become notes of their input's span."""
SUPERSEDED = "SUPERSEDED"
"""Status of an input that had not ended when the next input began."""
INTERRUPTED = "INTERRUPTED"
"""Status of the newest input if a crash cut it off and no process runs it."""
_JSON_FIELDS = ("duration_s", "status", "step", "id", "queued_s", "early_s", "waited_s", "first_token_s", "origins")
_CALLS = ("tool_call", "delegation_request")
_RESULTS = ("tool_result", "delegation_response")
_NOTE_CHARS = 500
"""Maximum characters of a note."""


@dataclass(frozen=True, slots=True)
class SpanNote:
    """One event within a span, which has a time but no duration."""

    type: str
    """The event's type, one of `NOTED`."""
    at: datetime
    """When the event happened."""
    text: str
    """The event's content, reason or message, at most 500 characters."""
    seq: int
    """Index of the event in the history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A part of a session with a begin and an end, and the parts that it contains."""

    kind: SpanKind
    """`input` is the root; a `wait` is for a person, or a gap: its status is `interrupted` until a resume, `retry`
    until a failed request is sent again, and `idle` if two seconds or more have no record. `model` spans are in a
    `plan`, an `answer` or an `input`."""
    name: str
    """The user's text, or the name of the model, tool or delegate; for a `wait`, the names of the calls."""
    start: datetime
    """Begin, in UTC. A call begins when it leaves its queue."""
    duration_s: float | None = None
    """Seconds until the end; None if it has not ended, did not run, was cut off by a crash, or has no stored times."""
    status: str = ""
    """Of an input, its `SessionStatus`, `INTERRUPTED`, or `SUPERSEDED` if a newer input began before its end; of a
    call, its `ResultStatus`, `running` or `interrupted`; of a wait, `waiting` if it is open, or the kind of a gap; of a
    model call, the kind of its error. Empty for any other span."""
    step: int = 0
    """The step (a plan and its calls) that the span belongs to; 0 before the first plan, and for an input."""
    seq: int = 0
    """Index of the event that ended the span; of the event that began it, if the span is open."""
    id: str = ""
    """Id of the call; empty for other kinds."""
    needs: tuple[str, ...] = ()
    """Ids of the calls that this call waited for."""
    queued_s: float = 0.0
    """Seconds that a call waited for a slot, or an input for its session, before `start`."""
    early_s: float = 0.0
    """The part of a call's duration, from `start` on, in which its plan was not complete."""
    early: EarlyWork = NO_EARLY_WORK
    """What began before a plan of the input asked for it; empty for other kinds."""
    waited_s: float = 0.0
    """Seconds that a call waited for a person's answer to its own question."""
    origins: Mapping[str, ArgumentOrigin] = field(default_factory=dict[str, ArgumentOrigin])
    """Path of an argument of the call → where it comes from; empty unless origins are traced."""
    first_token_s: float | None = None
    """Seconds to the first token of a model call; None if it was not streamed."""
    input_tokens: int = 0
    """Tokens of the requests, those of its children included; 0 if unknown."""
    output_tokens: int = 0
    """Tokens of the replies, those of its children included; 0 if unknown."""
    cost: float | None = None
    """Cost, that of its children included; None without prices."""
    children: tuple[Span, ...] = ()
    """The spans within this one, in the order of their begin."""
    notes: tuple[SpanNote, ...] = ()
    """Limits, warnings, errors and the like, oldest first."""

    @property
    def end(self) -> datetime:
        """Time at which the span ended; its begin if it has no duration."""
        return self.start + timedelta(seconds=self.duration_s or 0.0)

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Span]]:
        """Yield this span and all spans within it, each with its depth, in the order of their begin.

        Args:
            depth: Depth of this span.
        """
        yield depth, self
        for child in self.children:
            yield from child.walk(depth + 1)

    def as_json(self) -> dict[str, Any]:
        """Return the span and those within it as plain JSON, with times in ISO 8601.

        Fields with their default are left out, but `seq` is always there.
        """
        found: dict[str, Any] = {"kind": self.kind, "name": self.name, "start": self.start.isoformat()}
        for name in (*_JSON_FIELDS, "input_tokens", "output_tokens"):
            if value := getattr(self, name):
                found[name] = value
        if self.early.started:
            found["early"] = self.early.as_json()
        found["seq"] = self.seq
        if self.cost is not None:
            found["cost"] = self.cost
        if self.needs:
            found["needs"] = list(self.needs)
        if self.notes:
            found["notes"] = [{**asdict(note), "at": note.at.isoformat()} for note in self.notes]
        if self.children:
            found["children"] = [child.as_json() for child in self.children]
        return found


def spans_of(events: Iterable[Mapping[str, Any]], first: int = 0, *, is_interrupted: bool = False) -> list[Span]:
    """Return one span for each input, oldest first.

    Args:
        events: Events of a session, from the beginning of an input on.
        first: Index of the first event in the history, if the events have no `seq`.
        is_interrupted: Whether the session is `interrupted`, as `session_activity` returns it.
    """
    spans: list[Span] = []
    collected: _Input | None = None
    for own in inputs_of(events):
        if collected is not None:
            spans.append(collected.span(ended=_at(own[0])))
        collected = _Input(own[0], early_work_of(own))
        for seq, entry in enumerate(own, first):
            collected.add(entry, entry.get("seq", seq))
        first += len(own)
    return [*spans, collected.span(is_interrupted=is_interrupted)] if collected is not None else spans


def inputs_of(events: Iterable[E]) -> Iterator[list[E]]:
    """Yield the events of each input as a list. Consecutive user messages belong to one input."""
    own: list[E] = []
    for entry in events:
        if own and entry["type"] == "user_message" and own[-1]["type"] != "user_message":
            yield own
            own = []
        own.append(entry)
    if own:
        yield own


@dataclass
class _Input:
    """Collects the spans of one input from its events."""

    first: Mapping[str, Any]
    early: EarlyWork
    name: str = ""
    status: str = "RUNNING"
    ended: datetime | None = None
    """When the input ended; None while it has not."""
    last_seq: int = 0
    newest: datetime | None = None
    """Time of the newest event that a run recorded itself: results that a resume adds for lost calls do not count."""
    spans: list[Span] = field(default_factory=list)
    notes: list[SpanNote] = field(default_factory=list)
    resumes: set[datetime] = field(default_factory=set)
    """Times at which runs resumed the input without an answer."""
    open_calls: dict[str, tuple[int, Mapping[str, Any]]] = field(default_factory=dict)
    """Call id → index and event of the call's start, for calls without a result."""
    open_wait: tuple[int, Mapping[str, Any]] | None = None
    """Index and event of the open approval request; None if there is none."""
    needs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Call id → ids of the calls that it waits for."""

    def add(self, entry: Mapping[str, Any], seq: int) -> None:
        """Process the next event of the input, which begins or ends a span, or becomes a note. The begin of a call or a
        wait is kept until its end.

        Args:
            entry: The event.
            seq: Index of the event in the history.
        """
        self.last_seq = seq
        type_ = entry["type"]
        if "resumed_at" in entry:
            self.resumes.add(datetime.fromisoformat(entry["resumed_at"]))
        if type_ == "user_message":
            self.name = " ".join([self.name, text_of(entry["content"])]).strip()
        elif type_ == "plan":
            self.needs |= needed_ids(entry)
            self.spans.append(_asked(entry, seq, "plan", entry["action"]))
        elif type_ in _CALLS:
            self.open_calls[entry["id"]] = seq, entry
        elif type_ in _RESULTS:
            self._end_call(entry, seq)
        elif type_ == "approval_request":
            self._end_wait()
            self.open_wait = seq, entry
        elif type_ == "approval_decision":
            self._end_wait(entry, seq)
        elif type_ == "status":
            self.status = entry["to"]
            self.ended = None if entry["to"] == "RUNNING" else _at(entry)
        elif type_ in NOTED:
            self.notes.append(SpanNote(type_, _at(entry), _text(entry)[:_NOTE_CHARS], seq))
        if type_ not in _RESULTS or "duration_s" in entry:
            self.newest = max(self.newest or _at(entry), _at(entry))
        if "model_calls" in entry and type_ != "plan":
            kind: SpanKind = "answer" if type_ == "agent_response" else "plan"
            self.spans.append(_asked(entry, seq, kind, type_))

    def _end_call(self, entry: Mapping[str, Any], seq: int) -> None:
        """Add the span of a call that the event `entry` ends. A call without a stored start begins at this event.

        If the call waited for a person and the input has no span of a wait yet, one is added before it. For a call with
        an unknown outcome, a wait is added for the time in which no process ran the input.
        """
        _, begun = self.open_calls.pop(entry["id"], (seq, entry))
        start, duration_s = _at(begun), entry.get("duration_s")
        if duration_s is not None:
            start = _at(entry) - timedelta(seconds=duration_s + entry.get("lead_s", 0.0))
            duration_s += entry.get("early_s", 0.0)
            if (waited_s := entry.get("waited_s", 0.0)) and not any(each.kind == "wait" for each in self.spans):
                asked = Span(kind="wait", name=entry.get("name") or entry["target"], start=start, step=entry["step"])
                self.spans.append(
                    replace(asked, start=start - timedelta(seconds=waited_s), duration_s=waited_s, seq=seq)
                )
        elif entry["status"] == "unknown":
            # Settled after a crash: until when the call ran is not known.
            self._add_dead_time(entry, seq)
        elif entry["status"] not in NOT_RUN and begun is not entry:
            # Of an older version.
            duration_s = _seconds(start, _at(entry))
        self.spans.append(
            _call(
                entry,
                seq,
                start=start,
                duration_s=duration_s,
                status=entry["status"],
                needs=self.needs.get(entry["id"], ()),
                queued_s=0.0 if "lead_s" in entry else entry.get("queued_s", 0.0),
                early_s=entry.get("early_s", 0.0),
                waited_s=entry.get("waited_s", 0.0),
                origins=begun.get("origins", {}),
            )
        )

    def _add_dead_time(self, entry: Mapping[str, Any], seq: int) -> None:
        """Add a wait with the status `interrupted`, from the newest event before a crash to the resume that recorded
        `entry`.

        Does nothing if the wait is there already, because one resume may settle several calls.
        """
        start = self.newest or _at(entry)
        # One resume may settle several calls.
        if any(each.status == "interrupted" and each.start == start for each in self.spans):
            return
        duration_s = _seconds(start, _at(entry))
        wait = Span(kind="wait", name="", start=start, duration_s=duration_s, status="interrupted", step=entry["step"])
        self.spans.append(replace(wait, seq=seq))

    def _end_wait(
        self, decision: Mapping[str, Any] | None = None, seq: int = 0, *, ended: datetime | None = None
    ) -> None:
        """Add the span of the open wait, ended by a decision, by the end of the input, or still open.

        Does nothing if no wait is open, because further decisions of one answer follow at the same time.

        Args:
            decision: The event of the decision; None if there is none.
            seq: Index of the decision in the history.
            ended: When the input ended without a decision; None if it has not.
        """
        if self.open_wait is None:
            return
        began, request = self.open_wait
        duration_s, status = None, "waiting"
        if decision is not None:
            duration_s, status = _seconds(_at(request), _at(decision)), ""
            self.open_wait = None
        elif ended is not None:
            duration_s, status = _seconds(_at(request), ended), ""
        names = ", ".join(call["name"] for call in request["calls"])
        self.spans.append(
            Span(
                kind="wait",
                name=names,
                start=_at(request),
                duration_s=duration_s,
                status=status,
                step=request["step"],
                seq=seq if decision is not None else began,
            )
        )

    def span(self, *, ended: datetime | None = None, is_interrupted: bool = False) -> Span:
        """Return the span of the input, with all other spans in it. May be called only once.

        Args:
            ended: When the next input began, which superseded this one unless it had ended by then; None for the newest
                input.
            is_interrupted: Whether a crash cut off the input, unless it has ended.
        """
        start = _at(self.first)
        is_interrupted = is_interrupted and self.ended is None
        if is_interrupted:
            self.status = INTERRUPTED
        # A crash leaves no event of an end: the next input is the first sign of it.
        if self.ended is None and ended is not None:
            self.status, self.ended = SUPERSEDED, ended
        self._end_wait(ended=self.ended)
        for seq, begun in self.open_calls.values():
            self.spans.append(
                _call(
                    begun,
                    seq,
                    start=_at(begun),
                    status="interrupted" if is_interrupted else "running",
                    needs=self.needs.get(begun["id"], ()),
                    origins=begun.get("origins", {}),
                )
            )
        self._add_gaps(start)
        # In the order of their begin, because a call ends before calls that began earlier.
        self.spans.sort(key=lambda span: span.start)
        return _with_usage(
            Span(
                kind="input",
                name=self.name,
                start=start,
                duration_s=_seconds(start, self.ended) if self.ended is not None else None,
                status=self.status,
                seq=self.last_seq,
                queued_s=self.first.get("queued_s", 0.0),
                early=self.early,
                children=tuple(self.spans),
                notes=tuple(self.notes),
            )
        )

    def _add_gaps(self, start: datetime) -> None:
        """Add a wait for each gap between the spans of the input, which began at `start`."""
        # A plan has gaps of its own, between the attempts of a request.
        spans = [one for each in self.spans for one in (each.children if each.kind in ("plan", "answer") else [each])]
        end = self.ended or max((span.end for span in spans), default=start)
        # An open call or wait has no end yet.
        work = [(span.start, end if span.status in ("running", "waiting") else span.end) for span in spans]
        failed = {span.end for span in spans if span.kind == "model" and span.status not in ("", "cancelled")}
        for begin, ended, kind in gaps_of(work, start, end, self.resumes, failed):
            duration_s = _seconds(begin, ended)
            self.spans.append(Span(kind="wait", name="", start=begin, duration_s=duration_s, status=kind))


def _asked(entry: Mapping[str, Any], seq: int, kind: SpanKind, name: str) -> Span:
    """Return the span of an event and its model calls, from the begin of the first call to the end of the last.

    The calls are its children, and their usage is added up. Without a call it starts at the event, and `duration_s` is
    None. The status is `error` if the last call failed, and empty otherwise. `kind` and `name` are those of the span,
    and `seq` is the index of the event.
    """
    models = [_model_call(call, entry, seq) for call in entry.get("model_calls", ())]
    start = min((model.start for model in models), default=_at(entry))
    ended = max((model.end for model in models), default=_at(entry))
    span = Span(
        kind=kind,
        name=name,
        start=start,
        duration_s=(ended - start).total_seconds() if models else None,
        status="error" if models and models[-1].status else "",
        step=entry["step"],
        seq=seq,
        children=tuple(models),
    )
    return _with_usage(span)


def _model_call(call: ModelCallRecord, entry: Mapping[str, Any], seq: int) -> Span:
    """Return the span of a model call that the event `entry`, with the index `seq`, reports; the status is its error,
    if any.
    """
    return Span(
        kind="model",
        name=call["model"],
        start=datetime.fromisoformat(call["started"]),
        duration_s=call["duration_s"],
        status=call.get("error", ""),
        step=entry["step"],
        seq=seq,
        first_token_s=call.get("first_token_s"),
        input_tokens=call.get("input_tokens", 0),
        output_tokens=call.get("output_tokens", 0),
        cost=call.get("cost"),
    )


def _call(entry: Mapping[str, Any], seq: int, **fields: Any) -> Span:
    """Return the span of a tool call or delegation, from the event of its begin or its result.

    A delegate in this process has its own spans as children; a remote delegate has only its usage. If the delegate had
    one input, that input's spans and notes are taken.

    Args:
        entry: The event.
        seq: Index of the event in the history.
        fields: Further fields of the span.
    """
    common = {"step": entry["step"], "seq": seq, "id": entry["id"], **fields}
    if entry["type"] in ("tool_call", "tool_result"):
        return Span(kind="tool", name=entry["name"], **common)
    # A delegate in this process has its events in the event of its answer.
    inner = spans_of(entry.get("history", ()))
    # The only input of a delegate is the delegation itself.
    children = inner[0].children if len(inner) == 1 else tuple(inner)
    notes = inner[0].notes if len(inner) == 1 else ()
    span = _with_usage(Span(kind="delegation", name=entry["target"], children=children, notes=notes, **common))
    if (usage := entry.get("usage")) is None:
        return span
    # A remote delegate has no events here.
    return replace(
        span,
        input_tokens=usage["input_tokens"],
        output_tokens=usage["output_tokens"],
        cost=usage.get("cost", span.cost),
    )


def _with_usage(span: Span) -> Span:
    """Return a span with the sums of its children's tokens and costs. The cost is None if no child has one."""
    costs = [child.cost for child in span.children if child.cost is not None]
    return replace(
        span,
        input_tokens=sum(child.input_tokens for child in span.children),
        output_tokens=sum(child.output_tokens for child in span.children),
        cost=sum(costs) if costs else None,
    )


def _at(entry: Mapping[str, Any]) -> datetime:
    """Return the time of an event."""
    return datetime.fromisoformat(entry["ts"])


def _seconds(start: datetime, end: datetime) -> float:
    """Return the seconds between two times of the wall clock; 0 if it was set back between them."""
    return max(0.0, (end - start).total_seconds())


def _text(entry: Mapping[str, Any]) -> str:
    """Return the text of the note for an event whose type is in `NOTED`, e.g. `step_limit: 8`; the event's `content`
    for a type without a form of its own."""
    match entry["type"]:
        case "limit":
            return f"{entry['reason']}: {entry['limit']:g}"
        case "loop_detected":
            return f"{entry['count']} times: {', '.join(entry['pattern'])}"
        case "recall":
            count = len(entry["facts"]) or len(entry.get("kept", ()))
            return f"{count} {'fact' if count == 1 else 'facts'} {'of' if entry['facts'] else 'kept in'} the memory"
        case "background_result":
            return f"{entry['target']} {entry['status']}: {text_of(entry['content'])}"
        case "middleware":
            return f"{entry['name']}.{entry['hook']}"
        case "hook":
            return f"{entry['name']}: {entry['action']}"
        case "warning" | "error":
            return str(entry["message"])
        case _:
            return text_of(entry["content"])


def axis_of(root: Span) -> TimeAxis:
    """Return the time axis of an input, from its begin to the latest end of a span within it."""
    spans: Sequence[Span] = [span for _, span in root.walk()]
    waits = ((span.start, span.end) for span in spans if span.kind == "wait" and span.duration_s)
    return TimeAxis(root.start, max(span.end for span in spans), waits)


_WIDTH, _LABEL, _TIME, _ROW = 760, 216, 64, 20
_LABEL_CHARS, _TITLE_CHARS = 34, 96
_MOST_INPUTS = 20
"""Maximum number of inputs that are drawn."""
_FAILED = ("error", "unknown")


def session_svg(roots: Sequence[Span]) -> str:
    """Draw the 20 newest inputs as SVG text, oldest first, each on its own time axis; without any, "No input yet."

    Args:
        roots: The spans of all inputs, oldest first.
    """
    y, parts = 12, []
    if not roots:
        return svg_document(_WIDTH, 34, "Session", [text(14, 22, "No input yet.", "note")])
    for number, root in list(enumerate(roots, 1))[-_MOST_INPUTS:]:
        y += 14
        parts.append(text(14, y, _cut(f"{number}: {root.name}", _TITLE_CHARS)))
        y += 16
        parts.append(text(14, y, _facts(root), "note"))
        axis = axis_of(root)
        for depth, span in _rows(root.children):
            y += _ROW
            parts += _row(span, depth, y, axis)
        y += 12
    return svg_document(_WIDTH, y, "What the session did, on a time axis", parts)


def _rows(spans: Sequence[Span], depth: int = 0) -> Iterator[tuple[int, Span]]:
    """Yield each span with its depth. The model call of a plan is left out if it is the only one."""
    for span in spans:
        yield depth, span
        # A plan is as long as its model call, if there is only one.
        if not (len(span.children) == 1 and span.children[0].kind == "model"):
            yield from _rows(span.children, depth + 1)


def _row(span: Span, depth: int, y: int, axis: TimeAxis) -> list[str]:
    """Return the SVG elements of a span at the height `y`: its label, its bar on the axis, and its duration.

    `depth` indents the label.
    """
    room = _WIDTH - _LABEL - _TIME - 28
    begin, end = axis.at(span.start), axis.at(span.end)
    x, width = 14 + _LABEL + begin * room, max(2.0, (end - begin) * room)
    kind: str = "model" if span.kind in ("plan", "answer") else span.kind
    if span.status in _FAILED:
        kind = "error"
    label = _cut("   " * depth + _label(span), _LABEL_CHARS)
    bar = f'<rect class="{kind}" x="{x:g}" y="{y - 9}" width="{width:g}" height="11" rx="2"/>'
    return [text(14, y, label), bar, text(_WIDTH - 14, y, _duration(span.duration_s), "note", "end")]


def _label(span: Span) -> str:
    """Return the text that names a span, such as `plan 2 gpt-4o`, `person: book` or `✗ search`.

    The sign before a call is `✗` for an error, `?` for an unknown outcome or an interrupted call, none for a success or
    an answered question, and `–` for anything else.
    """
    if span.kind == "wait":
        return f"person: {span.name}" if span.name else span.status
    if span.kind in ("plan", "answer"):
        model = span.children[-1].name if span.children else span.name
        return f"plan {span.step} {model}" if span.kind == "plan" else f"answer {model}"
    sign = {"success": "", "answered": "", "error": "✗ ", "unknown": "? ", "interrupted": "? "}.get(span.status, "– ")
    return f"{sign}{span.name}" if span.kind in ("tool", "delegation") else span.name


def _facts(root: Span) -> str:
    """Return the line below the name of an input: status, duration, tokens and cost, as far as known."""
    tokens = f"{root.input_tokens:,} + {root.output_tokens:,} tokens" if root.input_tokens else ""
    cost = f"cost {root.cost:.4f}" if root.cost is not None else ""
    return ", ".join(filter(None, [root.status, _duration(root.duration_s) or "not ended", tokens, cost]))


def _duration(duration_s: float | None) -> str:
    """Return a duration such as `420 ms` or `1.3 s`; empty if it is unknown (None)."""
    if duration_s is None:
        return ""
    return f"{duration_s * 1000:.0f} ms" if duration_s < 1 else f"{duration_s:,.1f} s"


def _cut(content: str, most: int) -> str:
    """Return a text as one line of at most `most` characters, ending in `…` if it was cut, with secrets masked."""
    # Printable text has no line breaks; leading blanks are the depth.
    shown = printable(mask_named_secrets(content.replace("\n", " ")[: 10 * most])).replace(" ", "\u00a0")
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"
