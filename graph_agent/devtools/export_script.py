"""Writes the script, the results and the agent of a recorded input as Python source, for a test.

The script is the list of what happens in place of the model: replies, steering messages, stops and failures (see
`graph_agent.devtools.script`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Self

from graph_agent.base._internal.text import text_of
from graph_agent.base.calls import is_delegation
from graph_agent.base.history.call_events import is_text
from graph_agent.base.history.events import SUCCESSES, StoredEvent, is_own
from graph_agent.base.settings.config import LoopConfig
from graph_agent.base.types import SessionStatus
from graph_agent.core.extensions.output import effect_text
from graph_agent.devtools.recording import RecordedCall, RecordedInput, RecordedResult
from graph_agent.devtools.script import Failure, Reply, Result, ScriptItem, Steering, Stop, Tokens, was_stopped
from graph_agent.models.stream_filters import SENTINEL
from graph_agent.session.built_agent import builder_of

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph

LINE_WIDTH = 88
"""Maximum columns of a line that can be broken."""
_LONG = 160
"""Characters from which on a value, or a text of several lines, gets a name of its own."""


@dataclass(frozen=True, slots=True)
class Code:
    """A Python expression: a name, a call, or a dict with further keys."""

    name: str
    """A name, or that of the called function; empty for a dict."""
    arguments: tuple[Any, ...] | None = None
    """Positional arguments of a call; None for a bare expression."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of a call."""
    merged_with: Mapping[str, Any] | None = None
    """Items of a dict that follow those of the only argument; None for another expression."""
    comment: str = ""
    """Comment on the line before; empty if there is none."""

    @classmethod
    def call(cls, name: str, arguments: Sequence[Any], options: Mapping[str, Any] | None = None) -> Self:
        """Return a call of the function `name` with positional `arguments` and keyword `options`; None for no
        options.
        """
        return cls(name, tuple(arguments), options or {})

    @classmethod
    def merged(cls, code: Code, others: Mapping[str, Any]) -> Self:
        """Return the dict `{**code, …}` with the items of `others`."""
        return cls("", (code,), merged_with=others)


def rendered(value: Any, indent: int = 0, *, prefix: str = "", suffix: str = "") -> str:
    """Return a value as Python source, in as few lines of at most `WIDTH` columns as fit.

    Args:
        value: JSON, a tuple or `Code`, also within each other.
        indent: Columns before the first line, which are not a part of the result.
        prefix: Source in front of the value, in the first line.
        suffix: Source behind the value, in the last line.
    """
    flat = _flat(value)
    if flat is not None and indent + len(prefix) + len(flat) + len(suffix) <= LINE_WIDTH:
        return f"{prefix}{flat}{suffix}"
    opening, items, closing = _parts(value)
    if not items:
        return f"{prefix}{flat if flat is not None else opening + closing}{suffix}"
    lines = [prefix + opening]
    inner = indent + 4
    for before, item in items:
        if isinstance(item, Code) and item.comment:
            lines.append(f"{' ' * inner}# {item.comment}")
        lines.append(" " * inner + rendered(item, inner, prefix=before, suffix=","))
    lines.append(" " * indent + closing + suffix)
    return "\n".join(lines)


def assignment(name: str, items: Sequence[Any]) -> list[str]:
    """Return the lines that assign a list to a name, one item a line; `NAME = []` without items."""
    lines = [f"{name} = ["]
    for item in items:
        if isinstance(item, Code) and item.comment:
            lines.append(f"    # {item.comment}")
        lines.append("    " + rendered(item, 4, suffix=","))
    return [*lines, "]"] if items else [f"{name} = []"]


def comparison(left: str, right: str, indent: int) -> list[str]:
    """Return the lines of an assertion that compares with a text, in parentheses if it is too long.

    `left` is the source up to the text, such as `assert run.answer == `; `indent` are the columns before each line.
    """
    text = _text(right)
    if indent + len(left) + len(text) <= LINE_WIDTH:
        return [left + text]
    keyword, _, compared = left.partition(" ")
    if indent + 4 + len(compared) + len(text) <= LINE_WIDTH:
        return [f"{keyword} (", f"    {compared}{text}", ")"]
    return [f"{keyword} (", f"    {compared.removesuffix(' == ')}", f"    == {text}", ")"]


class Constants:
    """The long values of a test file, each of which gets a name; equal values share one."""

    def __init__(self) -> None:
        self._names: dict[str, tuple[str, Any]] = {}

    def of(self, value: Any, name: str) -> Any:
        """Return the name of a long value as `Code`, and register it; return any other value unchanged.

        Long is a text of several lines, or an object or list, of at least `_LONG` characters. `name` is the preferred
        name; a number follows if another value has it. An equal value keeps the name that it has.
        """
        if isinstance(value, Code) or not _is_long(value):
            return value
        taken = {known for known, _ in self._names.values()}
        numbered = (f"{name}_{at}" for at in count(2))
        chosen = next(each for each in chain([name], numbered) if each not in taken)
        return Code(self._names.setdefault(_key(value), (chosen, value))[0])

    def known(self, value: Any) -> Any:
        """Return a value in which each long value that has a name is replaced by the name. Nothing is registered."""
        if not isinstance(value, str | dict | list | tuple):
            return value
        if not isinstance(value, tuple) and _is_long(value) and _key(value) in self._names:
            return Code(self._names[_key(value)][0])
        if isinstance(value, dict):
            return {key: self.known(each) for key, each in value.items()}
        return value if isinstance(value, str) else type(value)(self.known(each) for each in value)

    def lines(self) -> Iterator[str]:
        """Yield the source lines of all assignments, with a blank line after each."""
        for name, value in self._names.values():
            if not isinstance(value, str):
                yield from [rendered(value, prefix=f"{name} = "), ""]
                continue
            # Each quote before another one, and the last character, so that none of them ends the literal.
            body = re.sub(r'"(?="|\Z)', r'\\"', value.replace("\\", "\\\\"))
            body = "".join(char if char == "\n" or char.isprintable() else _escaped(char) for char in body)
            yield from [f'{name} = """\\', f'{body}"""', ""]


def _is_long(value: Any) -> bool:
    """Whether a value gets a name: a text of several lines, or an object or list, of at least `_LONG` characters."""
    if isinstance(value, str):
        return "\n" in value and len(value) >= _LONG
    return isinstance(value, dict | list) and len(repr(value)) >= _LONG


def _key(value: Any) -> str:
    """Return the text (`repr`) by which equal values are recognized."""
    return repr(value)


def _escaped(char: str) -> str:
    """Return a character as in a string literal, without quotes."""
    return repr(char)[1:-1]


def _text(value: str) -> str:
    """Return a string literal with the quotes that need fewer escapes; double quotes if equal."""
    quote = "'" if value.count('"') > value.count("'") else '"'
    body = "".join(
        f"\\{char}" if char in (quote, "\\") else char if char.isprintable() else _escaped(char) for char in value
    )
    return f"{quote}{body}{quote}"


def _flat(value: Any) -> str | None:
    """Return a value in one line; None if an item in it has a comment, which needs a line of its own."""
    opening, items, closing = _parts(value)
    if not items:
        return opening + closing
    inner = [(before, _flat(item)) for before, item in items]
    if any(text is None for _, text in inner) or any(isinstance(item, Code) and item.comment for _, item in items):
        return None
    joined = ", ".join(f"{before}{text}" for before, text in inner)
    one = isinstance(value, tuple) and len(value) == 1
    return f"{opening}{joined}{',' if one else ''}{closing}"


def _parts(value: Any) -> tuple[str, list[tuple[str, Any]], str]:
    """Return the source of an expression in three parts: the opening, the items, and the closing.

    An item is a pair of the source before it and its value. A dict gives `("{", [("'a': ", 1)], "}")`. A value without
    items, such as a text, has its whole source in the opening.
    """
    if isinstance(value, Code):
        if value.merged_with is not None:
            assert value.arguments is not None
            rest = [(f"{_text(key)}: ", each) for key, each in value.merged_with.items()]
            return "{", [("**", value.arguments[0]), *rest], "}"
        if value.arguments is None:
            return value.name, [], ""
        options = [(f"{name}=", each) for name, each in value.options.items()]
        return f"{value.name}(", [*(("", each) for each in value.arguments), *options], ")"
    if isinstance(value, Mapping):
        return "{", [(f"{_parts(key)[0]}: ", each) for key, each in value.items()], "}"
    if isinstance(value, tuple):
        return "(", [("", each) for each in value], ")"
    if isinstance(value, list):
        return "[", [("", each) for each in value], "]"
    if isinstance(value, str):
        return _text(value), [], ""
    return (repr(value) if value is None or isinstance(value, bool | int | float) else json.dumps(value)), [], ""


_UNKNOWN = ("Unknown tool ", "Unknown delegate ")
"""Begins of the results of calls of a tool or a delegate that does not exist."""


def is_unknown(each: RecordedCall) -> bool:
    """Whether a call got the result that the agent has no tool or delegate of its name."""
    return each.result is not None and text_of(each.result.content).startswith(_UNKNOWN)


def identifier(text: str) -> str:
    """Return a text as a part of a Python name, such as `my_session_1` for `My session 1`; `session` if nothing is
    left.
    """
    return re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_").lower() or "session"


@dataclass(slots=True)
class ScriptWriter:
    """Writes items of a script and results of calls as calls of the functions in `graph_agent.testing`."""

    constants: Constants
    """Receives the long values."""
    has_agent: bool
    """Whether the test builds the real agent, with its hooks and its response format."""
    several: bool
    """Whether the test has several inputs."""
    names: set[str]
    """Receives the names of the functions that the test must import."""

    def script(self, recorded: RecordedInput, items: Sequence[ScriptItem]) -> Iterator[Code]:
        """Yield the code of each item of an input's script, except summaries.

        The first item of each step has a comment with the number of the step.
        """
        # A summary depends on the context window of the real model.
        given = [item for item in items if not (isinstance(item, Reply) and item.purpose == "summary")]
        newest: int | None = -1
        for at, item in enumerate(given):
            code = self._item(recorded, item, given[at + 1 :])
            if not isinstance(item, Failure) and item.step != newest:
                place = f"Input {recorded.number}, step {item.step}" if self.several else f"Step {item.step}"
                code, newest = replace(code, comment=place), item.step
            yield code

    def _item(self, recorded: RecordedInput, item: ScriptItem, following: Sequence[ScriptItem]) -> Code:
        """Return the code of one item; `following` are the items after it."""
        match item:
            case Reply():
                return self._reply(recorded, item, following)
            case Steering():
                return self._call("steer", [item.text])
            case Stop():
                return self._call("stop", [item.cause], _at(item))
            case Failure():
                return self._call("fail", [item.kind, item.message])

    def _reply(self, recorded: RecordedInput, item: Reply, following: Sequence[ScriptItem]) -> Code:
        """Return the code of a reply, with its text, calls, tokens, finish reason and time.

        A structured plan is `plan(…)`, any other reply `reply(…)`, without an empty text if it has calls.
        """
        options: dict[str, Any] = {"tokens": _tokens(item.tokens)}
        if item.finish_reason:
            options["finish_reason"] = item.finish_reason
        options |= _at(item)
        calls = [self._planned(call) for call in item.calls]
        if item.plan_fields is not None:
            return self._call("plan", calls, {**item.plan_fields, **options})
        content = self._content(recorded, item, following)
        name = f"REPLY_{recorded.number}_{item.step}" if self.several else f"REPLY_{item.step}"
        shown = [self.constants.of(content, name)] if content or not calls else []
        return self._call("reply", [*shown, *calls], options)

    def _content(self, recorded: RecordedInput, item: Reply, following: Sequence[ScriptItem]) -> Any:
        """Return the text of a reply, as the test's model gives it.

        With stub tools, the text of a plan without calls is replaced: by the sentence that ends planning (`SENTINEL`)
        if a second request in the same step asked for the answer, or else, in the last step of a completed input, by
        the answer that the real agent gave. Any other text is unchanged.
        """
        if self.has_agent or item.purpose != "plan" or item.calls:
            return item.content
        # An agent of stub tools has no hook and no response format, so nothing else refuses or replaces this text.
        if any(isinstance(each, Reply) and each.step == item.step and each.purpose == "answer" for each in following):
            return SENTINEL
        answers = [entry["content"] for entry in recorded.events if entry["type"] == "agent_response"]
        is_last = item.step == recorded.steps[-1].number and recorded.status == SessionStatus.COMPLETED
        return answers[-1] if answers and is_last else item.content

    def _planned(self, call: Mapping[str, Any]) -> Code:
        """Return the code of one call of a reply."""
        needs = {"needs": [*call["needs"]]} if call["needs"] else {}
        return self._call("call", [call["id"], call["name"], dict(call["arguments"])], needs)

    def results(self, recorded: RecordedInput, results: Sequence[Result]) -> Iterator[Code]:
        """Yield the code of the results of calls that ran or wait for a person.

        Calls that were skipped, refused or decided by a person are left out, as their results come from the framework
        or from the decision; with stub tools, results by middleware and invalid arguments are included.

        Args:
            recorded: The input.
            results: The results in the script of the input, one for each recorded call.
        """
        decided = {entry["id"] for entry in recorded.events if is_own(entry, "approval_decision")}
        for (_, each), item in zip(recorded.calls, results, strict=True):
            given = [item.step, item.id, item.name, dict(item.arguments)]
            if (found := each.result) is None:
                if each.started:
                    yield self._call("result", given, {"waits": True})
                continue
            by_middleware = found.event.get("decided_by") not in (None, "loop_detection") and each.id not in decided
            if was_stopped(recorded, each):
                yield self._call("result", given, {"stops": item.stops, **_at(item)})
            elif found.status == "invalid" and not self.has_agent and not is_unknown(each):
                yield self._call("result", given, {"invalid": text_of(found.content), **_at(item)})
            elif each.started or (by_middleware and not self.has_agent):
                name = identifier(each.name).upper()
                fields = {key: self.constants.of(value, name) for key, value in _outcome(found).items()}
                returned = [fields.pop("returns")] if "returns" in fields else []
                yield self._call("result", [*given, *returned], {**fields, **_at(item)})

    def _call(self, name: str, arguments: Sequence[Any], options: Mapping[str, Any] | None = None) -> Code:
        """Return a call of a function of `graph_agent.testing`, and note that it must be imported.

        `arguments` are positional, `options` keyword arguments; None for no options.
        """
        self.names.add(name)
        return Code.call(name, arguments, options or {})


def _at(item: Reply | Stop | Result) -> dict[str, float]:
    """Return the option `at_s` with the time of an item; empty without a time."""
    return {} if item.at_s is None else {"at_s": item.at_s}


def _outcome(found: RecordedResult) -> dict[str, Any]:
    """Return the options of `result` for a result.

    These are `unknown` or `error` for one that is no success, else `returns` for a text and `content` for content
    blocks; and `usage` or `artifact`, if there is any.
    """
    usage = {"usage": {name: count for name, count in found.usage.items() if name != "cost"}} if found.usage else {}
    if found.status not in SUCCESSES:
        return {"unknown" if found.status == "unknown" else "error": found.content, **usage}
    # A test compares values, so the text of a JSON value may have another form.
    if is_text(found.content):
        return {"returns": found.value, **usage}
    return {"content": found.content, **({} if found.artifact is None else {"artifact": found.artifact})}


def _tokens(usage: Tokens | None) -> Any:
    """Return tokens as a pair if there are only counts of the request and the reply, which add up.

    Else, and for None, they are returned unchanged.
    """
    if not isinstance(usage, Mapping):
        return usage
    given, made = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
    is_plain = usage.keys() <= {"input_tokens", "output_tokens", "total_tokens"}
    return (given, made) if is_plain and usage.get("total_tokens") == given + made else dict(usage)


_COURSE = (
    *("max_steps", "max_turns", "on_limit", "max_calls_per_wave", "deadline_s", "max_tokens_total"),
    *("max_cost", "prices", "loop_window", "loop_max_period", "planner"),
)
"""Fields of the agent's configuration that decide on the course of a recorded input."""
_LIMITS = {
    "step_limit": "max_steps",
    "turn_limit": "max_turns",
    "token_limit": "max_tokens_total",
    "cost_limit": "max_cost",
    "deadline": "deadline_s",
}
"""Reason of a limit → the field of the configuration."""


def agent_file_options(inputs: Sequence[RecordedInput], agent: str, *, lost_replies: bool) -> dict[str, Any]:
    """Return the options of `RecordedSession` for the agent of a file.

    `agent` is the path of the file, absolute or relative to the test. With `lost_replies`, replies that hooks replaced
    and the session did not store, the test leaves the hooks out.
    """
    options: dict[str, Any] = {"agent": Code.call("Path(__file__).parent.joinpath", [agent])}
    return {**options, **_recursion_limit(inputs), **({"hooks": False} if lost_replies else {})}


def stub_options(
    inputs: Sequence[RecordedInput], graph: CompiledStateGraph[Any, Any, Any, Any] | None
) -> dict[str, Any]:
    """Return the options of `RecordedSession` for stub tools: tools, `reads`, `return_direct`, configuration.

    Schemas, effects and configuration are those of the agent `graph`; without it, or for another graph, they are
    derived from the inputs. `tools` maps the name of each called tool to a short schema; a recording with a plan and no
    call gets one tool, so that its model is asked for a plan. Empty options are left out.
    """
    builder = builder_of(graph) if graph is not None else None
    schemas: dict[str, Any] = {}
    if builder is not None:
        functions = [each["function"] for each in builder.deps.toolbox.schemas]
        schemas = {each["name"]: each.get("parameters", {}) for each in functions}
    names = [name for name in _called(inputs) if not is_delegation(name)]
    if not names and any(reply.purpose == "plan" for each in inputs for step in each.steps for reply in step.replies):
        names = [*schemas][:1] or ["unused"]  # without a tool, the model is asked for the answer alone
    direct = builder.deps.toolbox.return_direct if builder is not None else _direct(inputs)
    read = _only_read(inputs)
    options: dict[str, Any] = {
        "tools": {name: _brief_schema(schemas.get(name, {})) for name in names},
        "reads": [name for name in names if name in read or (builder is not None and not builder.writes(name))],
        "return_direct": [name for name in names if name in direct],
        "config": _settings(inputs, builder.config if builder is not None else None),
        **_recursion_limit(inputs),
    }
    return {name: value for name, value in options.items() if value}


def _called(inputs: Sequence[RecordedInput]) -> list[str]:
    """Return the names of the calls that the agent had a tool for, each once, including the names that decisions
    gave.
    """
    called = [each.name for recorded in inputs for _, each in recorded.calls if not is_unknown(each)]
    edited = [entry["edited_name"] for entry in _events(inputs) if "edited_name" in entry]
    return [*dict.fromkeys([*called, *asked_about(inputs), *edited])]


def asked_about(inputs: Sequence[RecordedInput]) -> list[str]:
    """Return the names of the calls that the agent's own policy asked a person about, each once; delegates do not
    count.
    """
    requests = [entry for entry in _events(inputs) if is_own(entry, "approval_request")]
    return [*dict.fromkeys(call["name"] for entry in requests for call in entry["calls"])]


def _events(inputs: Sequence[RecordedInput]) -> list[StoredEvent]:
    """Return the events of all inputs."""
    return [entry for each in inputs for entry in each.events]


def _recursion_limit(inputs: Sequence[RecordedInput]) -> dict[str, int]:
    """Return the option `recursion_limit` if the limit was reached; empty if not."""
    limits = [
        entry["limit"] for entry in _events(inputs) if entry["type"] == "limit" and entry["reason"] == "recursion_limit"
    ]
    return {"recursion_limit": int(limits[0])} if limits else {}


def _brief_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return `properties`, `required` and `$defs` of a JSON schema, as far as they are not empty."""
    return {name: schema[name] for name in ("properties", "required", "$defs") if schema.get(name)}


def _only_read(inputs: Sequence[RecordedInput]) -> set[str]:
    """Return the names of the tools that are known to be marked as reading, from the results of interrupted calls.

    The result of a call that was interrupted ends with a sentence on whether its tool may write; of other calls, a
    recording does not show it.
    """
    results = [(each.name, each.result) for recorded in inputs for _, each in recorded.calls]
    # A result after an interruption names whether its tool may write.
    reads = effect_text(writes=False)
    return {name for name, result in results if result is not None and text_of(result.content).endswith(reads)}


def _direct(inputs: Sequence[RecordedInput]) -> set[str]:
    """Return the names of tools whose results were the answer, so that they need `return_direct` in the test.

    These are the tools of the last step of a completed input, if no model was asked for the answer, and the answer is
    the results with blank lines between them.
    """
    found: set[str] = set()
    for each in inputs:
        last = each.steps[-1] if each.steps else None
        if last is None or each.status != SessionStatus.COMPLETED or not last.calls:
            continue
        # Without the agent, only an answer that equals the results shows that they were returned directly.
        results = [text_of(call.result.content) for call in last.calls if call.result is not None]
        if all(reply.purpose == "plan" for reply in last.replies) and "\n\n".join(results) == each.answer:
            found |= {call.name for call in last.calls}
    return found


def _settings(inputs: Sequence[RecordedInput], config: LoopConfig | None) -> dict[str, Any]:
    """Return the fields of `LoopConfig` for the test, as plain JSON, such as `{"max_steps": 5, "approve": ["pay"]}`.

    With the agent's configuration, they are its fields that decide the course and differ from their defaults. Without
    it (`config` is None), they are derived from the recording: the limits that were reached, `on_limit="message"` if no
    model wrote an answer then, a price at which the recorded tokens have the recorded cost, and a `max_steps` that is
    high enough. Both add the kind of planner and the tools that a person was asked about.
    """
    planners = {entry["planner"] for entry in _events(inputs) if "planner" in entry}
    found: dict[str, Any] = {"tool_calling": "wave"} if planners else {}
    if "dag" in planners:
        found["planner"] = "dag"
    if asked := asked_about(inputs):
        found["approve"] = asked
    if config is not None:
        default, values = LoopConfig(), config.model_dump(mode="json", include=set(_COURSE))
        return {**{name: values[name] for name in _COURSE if getattr(config, name) != getattr(default, name)}, **found}
    for each in inputs:
        limits = [entry for entry in each.events if entry["type"] == "limit" and entry["reason"] in _LIMITS]
        for entry in limits:
            found[_LIMITS[entry["reason"]]] = entry["limit"]
            if entry["reason"] == "cost_limit":
                # The price table is not stored: with this price, the recorded tokens reach the recorded cost.
                price = 1e6 * each.usage.get("cost", 0.0) / max(1, each.usage["total_tokens"])
                found["prices"] = {"recorded": {"input": price, "output": price}}
        composed = any(reply.purpose == "answer" for step in each.steps for reply in step.replies)
        if limits and not composed and "\n\n" not in each.answer:
            found["on_limit"] = "message"
    most = max((step.number for each in inputs for step in each.steps), default=0)
    # With the default, the test would end before the session did.
    if most >= LoopConfig().max_steps:
        found.setdefault("max_steps", most + 1)
    return found
