"""What is in force for a node's requests: the model, how it is asked, what it is shown; the ways on when it fails."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, assert_never

from langchain_core.messages import AIMessage, AnyMessage

from graph_agent.budgets import usage_of
from graph_agent.config import LoopConfig, Planner
from graph_agent.deps import AgentParts
from graph_agent.events.types import IN_HISTORY, StoredEvent, event
from graph_agent.models.client import Mode
from graph_agent.models.errors import brief_model_error, classify_model_error, describe_model_error
from graph_agent.models.pool import ReadyModel
from graph_agent.planning.compaction import compacted_view
from graph_agent.planning.prompt import plan_request, with_carried
from graph_agent.planning.result_texts import result_texts, with_texts
from graph_agent.planning.shortening import shorten
from graph_agent.state.failure_message import as_sent
from graph_agent.state.schema import Bookkeeping
from graph_agent.state.usage import add_usage
from graph_agent.tools.result_cuts import with_cuts
from graph_agent.types import NO_USAGE, Usage

logger = logging.getLogger(__name__)


class InForce:
    """What is in force for one node's requests, and what was learnt when one failed.

    There is another way in each of these cases: the next fallback model, when the model stays unavailable; a shorter
    request, when it is too long, as often as there is something left to leave out; calls asked for in text, when the
    provider takes no tools. What was learnt holds for the rest of the input.

    Args:
        parts: The agent.
        chain: The run's models; see `ModelPool.chain`.
        settings: The run's configuration.
        history: The conversation.
        loop: Where the loop is.
        planner: Which planner the session has; counts in wave mode only.
    """

    def __init__(
        self,
        parts: AgentParts,
        chain: Sequence[ReadyModel],
        settings: LoopConfig,
        history: Sequence[AnyMessage],
        loop: Bookkeeping,
        planner: Planner,
    ) -> None:
        self._agent = parts
        self._chain = chain
        self._settings = settings
        self._whole = history
        self._planner: Planner = planner
        self._result_texts: Mapping[str, str] = {}
        self.loop: Bookkeeping = loop
        """Where the loop is, with what was learnt."""
        self._in_text = False
        """Whether the request at hand is made in text, where it would be native."""
        self.usage: Usage = NO_USAGE
        """What all replies used, those that could not be used included."""
        self.events: list[StoredEvent] = []
        """Warnings, in the order in which they came up."""

    @property
    def _place(self) -> int:
        # A resumed run may bring fewer fallbacks than the one that was interrupted.
        return min(self.loop.get("recovery", {}).get("fallback", 0), len(self._chain) - 1)

    @property
    def _model(self) -> ReadyModel:
        return self._chain[self._place]

    @property
    def _parts(self) -> AgentParts:
        """The agent, with the model in force."""
        model, agent = self._model, self._agent
        client = agent.offering(model.client)
        if client is not agent.client:
            agent = replace(agent, client=client, planner=model.planner, tool_calling=model.tool_calling)
        return agent.without(self.loop.get("withheld", ()))

    @property
    def _mode(self) -> Mode:
        mode = self._parts.mode(self._settings)
        in_text = self._in_text or self._model.name in self.loop["text_tools"]
        return "text" if mode == "native" and in_text else mode

    @property
    def _history(self) -> Sequence[AnyMessage]:
        cut, carried = self.loop.get("kept_from"), self.loop.get("carried")
        whole = with_carried(self._whole, carried) if carried else self._whole
        if self._result_texts:
            whole = with_texts(whole, self._result_texts)
        # The note on what is left out repeats what was said, as requests hold it.
        view = compacted_view([as_sent(message) for message in whole], cut) if cut else whole
        return with_cuts(view, cuts) if (cuts := self.loop.get("cuts")) else view

    async def rewrite_results(self) -> None:
        """Have the hooks rewrite the tool results that these requests hold.

        Raises:
            HookError: When a hook fails that declares `on_error = "fail"`.
        """
        self._result_texts = await result_texts(self._agent.rewriters, self._history, self._warn, self._heard)

    def _heard(self, reply: AIMessage) -> None:
        self.usage = add_usage(self.usage, usage_of(reply, self._settings.prices))

    def _recover(self, error: Exception) -> bool:
        """Find another way after a failure; False when there is none."""
        match classify_model_error(error):
            case "transient":
                return self._fall_back(error)
            case "auth" | "permission" | "unknown_model":
                # Of the first model these are for the user to put right; of a substitute, the next one may still help.
                return self._place > 0 and self._fall_back(error)
            case "context_overflow":
                return self._shorten()
            case "tools_rejected":
                return self._ask_in_text(error)
            case "content_filter" | "other":
                return False
            case kind:
                assert_never(kind)

    def _fall_back(self, error: Exception) -> bool:
        place = self._place + 1
        if place >= len(self._chain):
            return False
        silent, following = self._model.name, self._chain[place].name
        self._learn(fallback=place)
        self._warn(f"The model {silent} does not answer ({brief_model_error(error)}); going on with {following}.")
        return True

    def _shorten(self) -> bool:
        request = plan_request(self._parts, self._history, self._settings, self._mode, self._planner)
        found = shorten(request, self._model.window)
        if found is None:
            return False
        recovery = self.loop.get("recovery", {})
        if found.kept_from is not None:
            self.loop = {**self.loop, "kept_from": found.kept_from}
        if found.cuts:
            sent = {message.id for message in request}
            before = {id_: chars for id_, chars in self.loop.get("cuts", {}).items() if id_ in sent}
            self.loop = {**self.loop, "cuts": {**before, **found.cuts}}
        # Each is told once an input, however often it takes.
        if found.kept_from is not None and not recovery.get("compacted"):
            self._learn(compacted=True)
            self._warn(
                f"The conversation is longer than {self._model.name} can read; its older part is left out of what the "
                "model is sent and told in a note. The history keeps everything."
            )
        if found.cuts and not recovery.get("cut"):
            self._learn(cut=True)
            self._warn(
                f"Results of tools are longer than {self._model.name} can read; they are cut further in what the model "
                "is sent. The history keeps everything."
            )
        return True

    def _ask_in_text(self, error: Exception) -> bool:
        if self._mode != "native":
            return False
        self.loop = {**self.loop, "text_tools": [*self.loop["text_tools"], self._model.name]}
        why = describe_model_error(error)
        self._warn(f"The model takes no tools ({why}); calls are asked for in text from now on.")
        return True

    def _warn_of_refusal(self) -> None:
        self._warn(f"{self._model.name} or its provider refused to answer because of what the request says.")

    def _warn(self, message: str) -> None:
        logger.warning("%s", message, extra=IN_HISTORY)
        self.events.append(event("warning", self.loop["step"], message=message))

    def _learn(self, **learnt: Any) -> None:
        self.loop = {**self.loop, "recovery": {**self.loop.get("recovery", {}), **learnt}}  # type: ignore[typeddict-item]  # keys of Recovery
