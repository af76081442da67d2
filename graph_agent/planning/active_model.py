"""The planner and the model in force for a node's requests, its fallbacks, and the history as requests hold it.

The planner is selected by the environment variable `AGENTIC_LOOP_ENABLED`, else by the configuration.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, assert_never

from langchain_core.messages import AnyMessage
from langchain_core.messages.utils import count_tokens_approximately

from graph_agent._internal.failure_log import IN_HISTORY
from graph_agent.config import LoopConfig, Planner
from graph_agent.deps import AgentDeps
from graph_agent.errors import ConfigError
from graph_agent.events.types import StoredEvent, event
from graph_agent.models.cleaning import SafeMessages
from graph_agent.models.client import Mode
from graph_agent.models.errors import FALLBACK_SENTENCE, brief_model_error, classify_model_error, describe_model_error
from graph_agent.models.finish_reasons import REFUSAL_WARNING
from graph_agent.models.pool import ReadyModel
from graph_agent.planning.compaction import compacted_view, shorten, summarized_view
from graph_agent.planning.prompt import PreparedHistory, plan_request, with_carried
from graph_agent.planning.result_texts import with_texts
from graph_agent.state.messages import without_failure_report
from graph_agent.state.schema import Bookkeeping
from graph_agent.tools.truncation import with_cuts

_VARIABLE = "AGENTIC_LOOP_ENABLED"


logger = logging.getLogger(__name__)


def planner_of(session_id: str, settings: LoopConfig, agentic_loop: bool | None) -> Planner:
    """The planner of a session; the same in every process and at any time.

    Args:
        session_id: The session's id.
        settings: `rollout` is the share of sessions that plan wave by wave; if it is None, `planner` applies.
        agentic_loop: The operator's setting for every session; None for none.
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


class ActiveModel:
    """The model in force, how it is called, and the recovery from failed requests.

    A failed request can be sent again after one of these changes: the next fallback model, if the model stays
    unavailable; a shorter request, if it is too long, repeated while something can be left out; calls in text, if the
    provider rejects tools. The change is recorded in `loop` and holds for the rest of the input.

    Args:
        agent: The agent.
        chain: The run's models; see `ModelPool.chain`.
        settings: The run's configuration.
        conversation: The stored messages.
        loop: The bookkeeping of the loop.
        planner: The session's planner; used in wave mode only.
        prepared: The conversation in the form of the run's earlier requests.
    """

    def __init__(
        self,
        agent: AgentDeps,
        chain: Sequence[ReadyModel],
        settings: LoopConfig,
        conversation: Sequence[AnyMessage],
        loop: Bookkeeping,
        planner: Planner,
        prepared: PreparedHistory,
    ) -> None:
        self.agent = agent
        self.settings = settings
        self.conversation = conversation
        self.planner: Planner = planner
        self.loop: Bookkeeping = loop
        """The bookkeeping, with the recoveries of these requests."""
        self.events: list[StoredEvent] = []
        """Warnings, oldest first."""
        self.result_texts: Mapping[str, str] = {}
        """Message id → text that replaces a tool result in requests."""
        self.summary: str | None = None
        """The text of the summary in force; None for none."""
        self._chain = chain
        self._prepared = prepared
        self._deps: tuple[Any, AgentDeps] = (None, agent)
        """The newest `deps`, and the model, client and withheld tools that they were made for."""
        self._text_mode = False

    @property
    def _index(self) -> int:
        # A resumed run may bring fewer fallbacks than the one that was interrupted.
        return min(self.loop.get("recovery", {}).get("fallback", 0), len(self._chain) - 1)

    @property
    def model(self) -> ReadyModel:
        """The model in force."""
        return self._chain[self._index]

    @property
    def deps(self) -> AgentDeps:
        """The agent with the model in force, without withheld tools."""
        model, agent, withheld = self.model, self.agent, self.loop.get("withheld", ())
        client = agent.offering(model.client)
        made_for, deps = self._deps
        if made_for != (model, client, withheld):
            if client is not agent.client:
                agent = replace(agent, client=client, planner=model.planner, tool_calling=model.tool_calling)
            deps = agent.without(withheld)
            self._deps = (model, client, withheld), deps
        return deps

    @property
    def mode(self) -> Mode:
        """How the model in force is asked for calls."""
        mode = self.deps.mode(self.settings)
        in_text = self._text_mode or self.model.name in self.loop["text_tools"]
        return "text" if mode == "native" and in_text else mode

    @property
    def window(self) -> int | None:
        """Tokens that the model in force can read; None if unknown."""
        return self.settings.context_window or self.model.window

    @property
    def summarizes(self) -> bool:
        """Whether the model summarizes the older part of the conversation when requests become too long."""
        return self.settings.summarize_at is not None and not self.loop.get("recovery", {}).get("unsummarized")

    @property
    def history(self) -> Sequence[AnyMessage]:
        """The conversation as requests hold it: with carried messages and rewritten results, summarized and cut."""
        kept_from, carried = self.loop.get("kept_from"), self.loop.get("carried")
        messages = with_carried(self.conversation, carried) if carried else self.conversation
        if self.result_texts:
            messages = with_texts(messages, self.result_texts)
        if self.summary is not None and (summary := self.loop.get("summary")) is not None:
            messages = summarized_view(messages, self.summary, summary["kept_from"], summary["inputs"])
        # The note of a compacted view quotes messages in the form in which requests hold them.
        view = (
            compacted_view([without_failure_report(message) for message in messages], kept_from)
            if kept_from
            else messages
        )
        return with_cuts(view, cuts) if (cuts := self.loop.get("cuts")) else view

    @property
    def prepared_history(self) -> SafeMessages:
        """`history` in the form of requests."""
        return self._prepared.of(self.history, self.agent.prompts)

    @contextmanager
    def text_mode(self) -> Iterator[None]:
        """Send native requests in text mode inside the block."""
        self._text_mode = True
        try:
            yield
        finally:
            self._text_mode = False

    def use_text_tools(self) -> None:
        """Ask the model in force for calls in text from now on."""
        self.loop = {**self.loop, "text_tools": [*self.loop["text_tools"], self.model.name]}

    def record_native_call(self) -> None:
        """Record that a model whose profile does not state it has called a tool natively."""
        known, name = self.loop.get("native_tools", []), self.model.name
        if not self.model.takes_tools and name not in known:
            self.loop = {**self.loop, "native_tools": [*known, name]}

    def recover(self, error: Exception) -> bool:
        """Change the model, the history or the mode after a failed request; False if no change can help."""
        match classify_model_error(error):
            case "transient":
                return self.fall_back(error)
            case "auth" | "permission" | "unknown_model":
                # The user must fix these for the first model; after a fallback, the next model may still work.
                return self._index > 0 and self.fall_back(error)
            case "context_overflow":
                return self.shorten()
            case "tools_rejected":
                return self._ask_in_text(error)
            case "content_filter" | "other":
                return False
            case kind:
                assert_never(kind)

    def fall_back(self, error: Exception) -> bool:
        """Switch to the next fallback model; False if there is none."""
        index = self._index + 1
        if index >= len(self._chain):
            return False
        failed, following = self.model.name, self._chain[index].name
        self.record(fallback=index)
        self.loop.get("recovery", {}).pop("too_long", None)  # the windows of models differ
        what, then = FALLBACK_SENTENCE
        self.warn(f"The model {failed} {what} ({brief_model_error(error)}); {then} {following}.")
        return True

    def fit(self) -> None:
        """Shorten the next request if it is as long as one that the model has refused in this input."""
        refused = self.loop.get("recovery", {}).get("too_long")
        while refused is not None and self._request_tokens() >= refused and self._shorten(refused):
            pass

    def shorten(self) -> bool:
        """Leave the older part of the conversation out of requests, or cut results; False if neither is possible."""
        tokens = self._request_tokens()
        self.record(too_long=min(tokens, self.loop.get("recovery", {}).get("too_long", tokens)))
        return self._shorten(self.window)

    def _request(self) -> list[AnyMessage]:
        return plan_request(self.deps, self.prepared_history, self.settings, self.mode, self.planner)

    def _request_tokens(self) -> int:
        """Estimated tokens of the next request, without its tools."""
        return count_tokens_approximately(self._request())

    def _shorten(self, window: int | None) -> bool:
        request = self._request()
        found = shorten(request, window)
        if found is None:
            return False
        recovery = self.loop.get("recovery", {})
        if found.kept_from is not None:
            self.loop = {**self.loop, "kept_from": found.kept_from}
        if found.cuts:
            sent = {message.id for message in request}
            before = {id_: chars for id_, chars in self.loop.get("cuts", {}).items() if id_ in sent}
            self.loop = {**self.loop, "cuts": {**before, **found.cuts}}
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
        self.warn(f"The model takes no tools ({describe_model_error(error)}); calls are asked for in text from now on.")
        return True

    def warn(self, message: str) -> None:
        """Log a warning and record it as an event."""
        logger.warning("%s", message, extra=IN_HISTORY)
        self.events.append(event("warning", self.loop["step"], message=message))

    def warn_of_refusal(self) -> None:
        """Warn that the model or its provider refused the request."""
        self.warn(f"{self.model.name} {REFUSAL_WARNING}")

    def warn_of_withheld_choice(self) -> None:
        """Warn once per input that the tool the caller requires is withheld."""
        choice, warned = self.agent.client_tool_choice, self.loop.get("recovery", {}).get("free_choice")
        if warned or choice not in self.loop.get("withheld", ()) or choice in self.deps.toolbox.names:
            return
        self.record(free_choice=True)
        self.warn(f"{choice} is to be called, and is withheld for now; the model is free to choose.")

    def record(self, **recovery: Any) -> None:
        """Store keys of `Recovery` in the bookkeeping."""
        self.loop = {**self.loop, "recovery": {**self.loop.get("recovery", {}), **recovery}}  # type: ignore[typeddict-item]  # keys of Recovery
