"""Selects the planner, tracks the current model and its fallbacks, and prepares the history for requests.

The planner is selected by the environment variable `AGENTIC_LOOP_ENABLED`, else by the configuration.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, assert_never

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage

from graph_agent.base._internal.failure_log import IN_HISTORY, get_logger
from graph_agent.base._internal.media import estimated_tokens
from graph_agent.base._internal.text import to_json_safe
from graph_agent.base.errors import ConfigError
from graph_agent.base.history_notes import is_kept_note
from graph_agent.base.input_messages import STEERING_MARK
from graph_agent.base.model_error_text import FALLBACK_SENTENCE
from graph_agent.base.settings.config import LoopConfig, Planner, Price
from graph_agent.base.types import Call
from graph_agent.base.usage import TimedRequest, usage_of
from graph_agent.core.execution.deps import AgentDeps
from graph_agent.core.hooks.protocol import HookAction, HookRequest
from graph_agent.core.hooks.request_messages import with_message_text, with_texts
from graph_agent.core.planning.compaction import compacted_view, shorten, summarized_view
from graph_agent.core.planning.kept_results import KeptResults, with_kept_results
from graph_agent.core.planning.reply import REPLACED
from graph_agent.core.state.events import ModelCallRecord, Purpose, StoredEvent, event
from graph_agent.core.state.messages import FAILURE_MARK, without_failure_report
from graph_agent.core.state.schema import LoopState, RequestOnlyMessages
from graph_agent.core.tools.truncation import with_cuts
from graph_agent.models.client import Mode
from graph_agent.models.errors import (
    brief_model_error,
    classify_model_error,
    describe_model_error,
    is_used_up,
    window_in_error,
)
from graph_agent.models.finish import REFUSAL_WARNING
from graph_agent.models.parsing.calls import UNFINISHED
from graph_agent.models.pool import BoundModel
from graph_agent.models.prompts import Prompts
from graph_agent.models.sanitize import SafeMessages, sanitized, without_calls
from graph_agent.models.wire.traits import traits_of

if TYPE_CHECKING:
    from graph_agent.core.state.model_requests import RequestLog


def plan_request(
    deps: AgentDeps, history: Sequence[AnyMessage], settings: LoopConfig, mode: Mode, planner: Planner
) -> SafeMessages:
    """The request for the next wave.

    Args:
        history: The conversation; it is not prepared again if it is the result of a `PreparedHistory`.
        planner: The session's planner; used in wave mode only.
    """
    prompt = deps.prompt(deps.instructions(settings, mode, planner) if deps.toolbox else "")
    messages = history if isinstance(history, SafeMessages) else PreparedHistory().of(history, deps.prompts)
    if not prompt:
        return SafeMessages(messages, traits=messages.traits)
    system = sanitized(SystemMessage(prompt))
    return SafeMessages([system, *messages], traits=messages.traits | traits_of(system, None))


class PreparedHistory:
    """The conversation of one run in the form of its requests; each message is converted once, unless it is edited."""

    def __init__(self) -> None:
        self._source: list[AnyMessage] = []
        self._prepared = SafeMessages()
        self._counted, self._tokens = 0, 0
        self.hashes: dict[int, tuple[Any, str]] = {}
        """Cache of a `RequestLog`."""

    @cached_property
    def kept(self) -> KeptResults:
        """The kept results of the whole conversation, which only a shortened one needs."""
        return KeptResults()

    def of(self, history: Sequence[AnyMessage], prompts: Prompts) -> SafeMessages:
        """Return the messages in the form of requests.

        Args:
            history: The conversation; usually the one of the last call and some new messages.
        """
        known = len(self._prepared)
        # Equal messages are the same objects, which makes this comparison cheap.
        if history[:known] != self._source:
            known, self._source, self._prepared = 0, [], SafeMessages()
            self._counted, self._tokens = 0, 0
        for message in history[known:]:
            self._prepared.add(sanitized(_converted(message, prompts) if _is_marked(message) else message))
        self._source += history[known:]
        return self._prepared

    def estimated_tokens(self) -> int:
        """Return an estimate of the tokens of the newest messages that `of` returned; each message is counted once."""
        self._tokens += estimated_tokens(self._prepared[self._counted :])
        self._counted = len(self._prepared)
        return self._tokens


def with_carried(history: Sequence[AnyMessage], carried: Sequence[RequestOnlyMessages]) -> list[AnyMessage]:
    """Insert the messages that hooks carry from request to request into the history."""
    messages, done = list[AnyMessage](), 0
    for piece in carried:
        messages += [*history[done : piece["at"]], *piece["messages"]]
        done = piece["at"]
    return [*messages, *history[done:]]


def _is_marked(message: AnyMessage) -> bool:
    """Whether a message has another form in a request than in the history; few have."""
    if STEERING_MARK in message.additional_kwargs or FAILURE_MARK in message.response_metadata:
        return True
    if isinstance(message, AIMessage):
        calls = message.tool_calls
        return bool(calls) and calls[0]["name"] == UNFINISHED
    return message.name == UNFINISHED


def _converted(message: AnyMessage, prompts: Prompts) -> AnyMessage:
    """A message of a person's steering, of a failed input, or of a cut-off reply, as the model receives it.

    Earlier versions stored a call without a name for a reply that was cut off; it is the text that it was.
    """
    if isinstance(message, HumanMessage) and STEERING_MARK in message.additional_kwargs:
        return with_message_text(message, prompts.render("steering", content=message.text))
    if isinstance(message, AIMessage) and any(call["name"] == UNFINISHED for call in message.tool_calls):
        message = without_calls(with_message_text(message, message.text or "A call that was cut off."))
    if isinstance(message, ToolMessage) and message.name == UNFINISHED:
        return HumanMessage(f"[Notice from the agent framework, not from the user: {message.text}]", id=message.id)
    return without_failure_report(message)


def closing(deps: AgentDeps, mode: Mode) -> list[AnyMessage]:
    """The closing message of the request for the answer; empty for an agent without tools and response format."""
    if not deps.toolbox and deps.response is None:
        return []
    schema = deps.response.json_schema if deps.response else None
    plan = bool(deps.toolbox) and mode == "wave"
    return [HumanMessage(deps.prompts.render("finalize", schema=schema, plan=plan))]


_VARIABLE = "AGENTIC_LOOP_ENABLED"


logger = get_logger("graph_agent.planning.request_state")


def planner_of(session_id: str, settings: LoopConfig, agentic_loop: bool | None) -> Planner:
    """The planner of a session; the same in every process and at any time.

    Args:
        settings: `rollout` is the share of sessions that plan wave by wave; if it is None, `planner` applies.
        agentic_loop: The operator's setting for every session; None if it is not set.
    """
    if agentic_loop is not None:
        return "wave" if agentic_loop else "dag"
    if settings.rollout is None:
        return settings.planner
    position = int.from_bytes(hashlib.sha256(session_id.encode()).digest()[:8]) / 2**64
    return "wave" if position < settings.rollout else "dag"


def agentic_loop_from_env(environ: Mapping[str, str] = os.environ) -> bool | None:
    """Read the operator's setting from `AGENTIC_LOOP_ENABLED`; None if it is not set.

    Raises:
        ConfigError: If it is neither `true` nor `false`.
    """
    text = environ.get(_VARIABLE, "").strip().lower()
    if text in ("true", "false", ""):
        return {"true": True, "false": False, "": None}[text]
    raise ConfigError(f"{_VARIABLE}={text!r}: write 'true' or 'false', or unset it.")


class RequestState:
    """The current model, how it is called, and the recovery from failed requests.

    A failed request can be sent again after one of these changes: the next fallback model, if the model stays
    unavailable; a shorter request, if it is too long, repeated while something can be left out; calls in text, if the
    provider rejects tools. The change is recorded in `loop` and holds for the rest of the input.

    Args:
        chain: The run's models; see `ModelPool.chain`.
        planner: The session's planner; used in wave mode only.
        prepared: The conversation in the form of the run's earlier requests.
    """

    def __init__(
        self,
        agent: AgentDeps,
        chain: Sequence[BoundModel],
        settings: LoopConfig,
        conversation: Sequence[AnyMessage],
        loop: LoopState,
        planner: Planner,
        prepared: PreparedHistory,
    ) -> None:
        self.agent = agent
        self.settings = settings
        self.conversation = conversation
        self.planner: Planner = planner
        self.hashes = prepared.hashes
        self.request_log: RequestLog | None = None
        """The recorded requests of the session; None if none are recorded."""
        self.loop: LoopState = loop
        """The loop state, with the recoveries of these requests."""
        self.events: list[StoredEvent] = []
        """Warnings, oldest first."""
        self.result_texts: Mapping[str, str] = {}
        """Message id → text that replaces a tool result in requests."""
        self.summary: str | None = None
        """The text of the current summary; None if there is none."""
        self._chain = chain
        self._prepared = prepared
        self._text_mode = False
        self._patch: tuple[HookRequest, BoundModel | None] | None = None
        # A resumed run may bring fewer fallbacks than the one that was interrupted.
        self._use_model(min(loop.get("recovery", {}).get("fallback", 0), len(chain) - 1))

    def _use_model(self, index: int) -> None:
        """Use a model of the chain in the requests from now on."""
        self._index, agent = index, self.agent
        request, other = self._patch or (None, None)
        self.model = other or self._chain[index]
        """The current model."""
        client = agent.offering(self.model.client)
        if client is not agent.client:
            agent = replace(agent, client=client, planner=self.model.planner, tool_calling=self.model.tool_calling)
        agent = agent.without(self.loop.get("withheld", ()))
        self.deps = agent if request is None else _with_patch(agent, request)
        """The agent with the current model, without withheld tools."""
        self._choose_mode()
        self._warn_of_unsupported_options()

    def _choose_mode(self) -> None:
        mode = self.deps.mode(self.settings)
        in_text = self._text_mode or self.model.name in self.loop["text_tools"]
        self.mode: Mode = "text" if mode == "native" and in_text else mode
        """How the current model is asked for calls."""

    @property
    def window(self) -> int | None:
        """Tokens that the current model can read; None if unknown, and for the model of a hook's request."""
        if self._patch is not None and self._patch[1] is not None:
            return None
        return self.settings.context_window or self.model.window or self.model.learned_window

    @property
    def summarizes(self) -> bool:
        """Whether the model summarizes the older part of the conversation when requests become too long."""
        return self.settings.summarize_at is not None and not self.loop.get("recovery", {}).get("unsummarized")

    @property
    def history(self) -> Sequence[AnyMessage]:
        """The conversation as requests hold it: with carried messages and rewritten results, summarized and cut."""
        if self._patch is not None:
            return self._patch[0].messages
        kept_from, carried = self.loop.get("kept_from"), self.loop.get("request_only_messages")
        messages = with_carried(self.conversation, carried) if carried else self.conversation
        if self.result_texts:
            messages = with_texts(messages, self.result_texts)
        whole = messages
        if self.summary is not None and (summary := self.loop.get("summary")) is not None:
            messages = summarized_view(messages, self.summary, summary["kept_from"], summary["inputs"])
        # The note of a compacted view quotes messages in the form in which requests hold them.
        view = (
            compacted_view([without_failure_report(message) for message in messages], kept_from)
            if kept_from
            else messages
        )
        if cuts := self.loop.get("truncations"):
            view = with_cuts(view, cuts)
        if (kept_from is None and messages is whole) or self.loop.get("recovery", {}).get("unkept"):
            return view
        return with_kept_results(view, self._prepared.kept.of(whole), self.window)

    @property
    def prepared_history(self) -> SafeMessages:
        """`history` in the form of requests."""
        # A hook's messages would displace those that later requests hold.
        prepared = self._prepared if self._patch is None else PreparedHistory()
        return prepared.of(self.history, self.agent.prompts)

    def estimated_request_tokens(self) -> int:
        """Return an estimate of the tokens of the next planning request, without its tools."""
        self._prepared.of(self.history, self.agent.prompts)
        head = plan_request(self.deps, SafeMessages(), self.settings, self.mode, self.planner)
        return estimated_tokens(head) + self._prepared.estimated_tokens()

    @contextmanager
    def patched(self, request: HookRequest, model: BoundModel | None) -> Iterator[None]:
        """Send the request of a hook inside the block.

        Its messages are the hook's, so that neither a shorter history nor another mode changes it after a failure.

        Args:
            model: Its model; None for the current one, which has fallbacks.
        """
        self._patch = request, model
        self._use_model(self._index)
        try:
            yield
        finally:
            self._patch = None
            self._use_model(self._index)

    @property
    def is_patched(self) -> bool:
        """Whether the requests are those of a hook."""
        return self._patch is not None

    @contextmanager
    def text_mode(self) -> Iterator[None]:
        """Send native requests in text mode inside the block."""
        self._text_mode = True
        self._choose_mode()
        try:
            yield
        finally:
            self._text_mode = False
            self._choose_mode()

    def use_text_tools(self) -> None:
        """Ask the current model for calls in text from now on."""
        self.loop = {**self.loop, "text_tools": [*self.loop["text_tools"], self.model.name]}
        self._choose_mode()

    def record_native_call(self) -> None:
        """Record that a model whose profile does not state it has called a tool natively."""
        known, name = self.loop.get("native_tools", []), self.model.name
        self.agent.models.drops_tools[name] = False
        if not (self.model.takes_tools and self.model.is_known) and name not in known:
            self.loop = {**self.loop, "native_tools": [*known, name]}

    def recover(self, error: Exception) -> bool:
        """Change the model, the history or the mode after a failed request; False if no change can help."""
        kind = classify_model_error(error)
        if self._patch is not None:
            return self._patch[1] is None and kind == "transient" and self.fall_back(error)
        match kind:
            case "transient":
                return self.fall_back(error)
            case "auth" | "permission" | "unknown_model":
                # The user must fix these for the first model, unless its quota is used up; after a fallback, the next
                # model may still work.
                return (self._index > 0 or is_used_up(error)) and self.fall_back(error)
            case "context_overflow":
                self._learn_window(error)
                return self.shorten()
            case "tools_rejected":
                return self._ask_in_text(error)
            case "content_filter" | "other":
                return False
            case _:
                assert_never(kind)

    @property
    def has_fallback(self) -> bool:
        """Whether another model can be asked if the current one stays unavailable."""
        return self._index + 1 < len(self._chain) and (self._patch is None or self._patch[1] is None)

    def _learn_window(self, error: Exception) -> None:
        """Record the context window that a refusal names, if the model's own is unknown."""
        if self.window is None and self._patch is None and (window := window_in_error(error)) is not None:
            self.model.learn_window(window)

    def fall_back(self, error: Exception) -> bool:
        """Switch to the next fallback model; False if there is none."""
        index = self._index + 1
        if index >= len(self._chain):
            return False
        failed, following = self.model.name, self._chain[index].name
        self._use_model(index)
        self.record(fallback=index)
        self.loop.get("recovery", {}).pop("too_long", None)  # the windows of models differ
        what, then = FALLBACK_SENTENCE
        public, logged = [
            f"The model {failed} {what}{f' ({brief})' if brief else ''}; {then} {following}."
            for brief in (brief_model_error(error, public=True), brief_model_error(error))
        ]
        self.warn(public, logged)
        return True

    def fit(self) -> None:
        """Shorten the next request if it is as long as one that the model has refused in this input."""
        refused = self.loop.get("recovery", {}).get("too_long") if self._patch is None else None
        while refused is not None and self.estimated_request_tokens() >= refused and self._shorten(refused):
            pass

    def shorten(self) -> bool:
        """Leave the older part of the conversation out of requests, or cut results; False if neither is possible."""
        tokens = self.estimated_request_tokens()
        self.record(too_long=min(tokens, self.loop.get("recovery", {}).get("too_long", tokens)))
        return self._shorten(self.window)

    def _shorten(self, window: int | None) -> bool:
        request = plan_request(self.deps, self.prepared_history, self.settings, self.mode, self.planner)
        found = shorten(request, window)
        if found is None and any(map(is_kept_note, request)):
            self.record(unkept=True)
            return True
        if found is None:
            return False
        recovery = self.loop.get("recovery", {})
        if found.kept_from is not None:
            self.loop = {**self.loop, "kept_from": found.kept_from}
        if found.cuts:
            sent = {message.id for message in request}
            before = {id_: chars for id_, chars in self.loop.get("truncations", {}).items() if id_ in sent}
            self.loop = {**self.loop, "truncations": {**before, **found.cuts}}
        # One warning of each kind per input.
        if found.kept_from is not None and not recovery.get("compacted"):
            self.record(compacted=True)
            self.warn(
                f"The conversation is longer than {self.model.name} can read; requests hold a note in place of its "
                "older part. The history keeps everything."
            )
        if found.cuts and not recovery.get("cut"):
            self.record(cut=True)
            self.warn(
                f"Results of tools are longer than {self.model.name} can read; they are cut further in requests. "
                "The history keeps everything."
            )
        return True

    def _ask_in_text(self, error: Exception) -> bool:
        if self.mode != "native":
            return False
        self.use_text_tools()
        public, logged = [
            f"The model takes no tools ({text}); calls are asked for in text from now on."
            for text in (describe_model_error(error, public=True), describe_model_error(error))
        ]
        self.warn(public, logged)
        return True

    def warn(self, message: str, logged: str = "", **fields: Any) -> None:
        """Log a warning and record it as an event with these fields; `logged` replaces the message in the log."""
        logger.warning("%s", logged or message, extra=IN_HISTORY)
        self.events.append(event("warning", self.loop["step"], message=message, **fields))

    def warn_of_replaced(self, texts: list[str]) -> None:
        """Make streamed texts that middleware or a hook has replaced commentary, and empty the list."""
        while texts:
            self.warn(REPLACED, commentary=texts.pop(0))

    def warn_of_refusal(self) -> None:
        """Warn that the model or its provider refused the request."""
        self.warn(f"{self.model.name} {REFUSAL_WARNING}")

    def warn_of_withheld_choice(self) -> None:
        """Warn once per input that the tool the caller requires is withheld."""
        choice, warned = self.agent.client_tool_choice, self.loop.get("recovery", {}).get("free_choice")
        if warned or choice not in self.loop.get("withheld", ()) or choice in self.deps.toolbox.names:
            return
        self.record(free_choice=True)
        self.warn(f"Tool {choice} is disabled for this input; the tool choice is ignored.")

    def _warn_of_unsupported_options(self) -> None:
        """Warn once per input and model of options that the model's class cannot send."""
        names = self.deps.client.unsupported_options(self.settings) if self.settings.model_options() else ()
        warned = self.loop.get("recovery", {}).get("unsupported", [])
        if not names or self.model.name in warned:
            return
        self.record(unsupported=[*warned, self.model.name])
        self.warn(
            f"{self.model.name} is asked without {', '.join(sorted(names))}: {type(self.deps.client.model).__name__} "
            "has no such option for this model."
        )

    def report_hook(
        self,
        name: str,
        action: HookAction,
        reply: tuple[str, Sequence[Call]] | None,
        added: Sequence[AnyMessage] = (),
        *,
        plans: bool,
    ) -> None:
        """Add a `hook` event; the text and the calls of the reply are the model's own, None if no model was asked."""
        text, calls = reply or ("", ())
        fields: dict[str, Any] = {} if reply is None else {"reply": text}
        if calls:
            fields["calls"] = [{"name": each["name"], "arguments": to_json_safe(each["arguments"])} for each in calls]
        if added:
            fields["messages"] = [{"type": each.type, "content": to_json_safe(each.content)} for each in added]
        self.events.append(event("hook", self.loop["step"] + plans, name=name, action=action, **fields))

    def record(self, **recovery: Any) -> None:
        """Store keys of `Recovery` in the loop state."""
        self.loop = {**self.loop, "recovery": {**self.loop.get("recovery", {}), **recovery}}  # type: ignore[typeddict-item]  # keys of Recovery

    def record_model_calls(self, sent: Sequence[TimedRequest], purpose: Purpose) -> None:
        """Store the times of requests in the loop state, until an event reports them, and their content as events."""
        if not sent:
            return
        records = [_record(each, purpose, self.settings.prices) for each in sent]
        self.loop = {**self.loop, "model_calls": [*self.loop.get("model_calls", ()), *records]}
        for each in records:
            logger.info(
                "The model %s took %.3f s for the %s: %d + %d tokens%s",
                each["model"],
                each["duration_s"],
                each["purpose"],
                each.get("input_tokens", 0),
                each.get("output_tokens", 0),
                f", {each['error']}" if "error" in each else "",
            )
        if self.request_log is not None:
            step = self.loop["step"] + (purpose == "plan")
            learned = self.deps.client.endpoint.learned
            made = [self.request_log.record(*each, step, learned) for each in zip(sent, records, strict=True)]
            self.events += [entry for entry in made if entry is not None]


def _record(request: TimedRequest, purpose: Purpose, prices: Mapping[str, Price] | None = None) -> ModelCallRecord:
    """Return the record of a request to a model, for an event; arguments as for `usage_of`."""
    reply = request.reply
    named = reply.response_metadata.get("model_name") or reply.response_metadata.get("model") if reply else None
    record = ModelCallRecord(
        purpose=purpose,
        model=str(named or request.model),
        started=request.started.isoformat(timespec="microseconds"),
        duration_s=round(request.duration_s, 6),
    )
    if request.first_token_s is not None:
        record["first_token_s"] = round(request.first_token_s, 6)
    # LangChain gives a reply from a model's cache only its cost.
    if reply is not None and reply.usage_metadata is not None and "input_tokens" in reply.usage_metadata:
        usage = usage_of(reply, prices)
        record["input_tokens"], record["output_tokens"] = usage["input_tokens"], usage["output_tokens"]
        if "cost" in usage:
            record["cost"] = usage["cost"]
    if request.error:
        record["error"] = request.error
    return record


def _with_patch(deps: AgentDeps, request: HookRequest) -> AgentDeps:
    """Return the agent with the tools and options of a hook's request."""
    options = {**request.optional_params, **request.kwargs}
    if request.max_tokens is not None:
        options["max_tokens"] = request.max_tokens
    return replace(
        deps,
        client=deps.client.with_overrides(request.tools, options),
        planner=deps.planner.with_overrides(options),
        toolbox=deps.toolbox.offering(request.tools),
        # A hook may patch the same request differently each time.
        cache=None,
    )
