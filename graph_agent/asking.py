"""Having a request answered: by the model in force, by one that takes over, or with a shorter history."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self, TypeVar

from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.runnables import RunnableConfig

from graph_agent.config import LoopConfig, Planner
from graph_agent.counting import counts_beside
from graph_agent.in_force import InForce
from graph_agent.limits import LimitMet
from graph_agent.models.binding import Way
from graph_agent.models.pool import ReadyModel
from graph_agent.models.refusals import REFUSED, refusal_in, refused_by
from graph_agent.models.spoken import ReadAloud, Reader, Spoken
from graph_agent.parts import AgentParts
from graph_agent.planned import Planned, usage_of
from graph_agent.planning import AskingError, PlanningError, RefusedError, ask_for_calls, ask_for_plan
from graph_agent.request import answer_request
from graph_agent.rollout import planner_of
from graph_agent.runs import run_of
from graph_agent.state import Bookkeeping, add_usage
from graph_agent.types import NO_USAGE, Usage

logger = logging.getLogger(__name__)

T = TypeVar("T")
_CROWDED = 0.8
"""Share of the context window from which on the user is warned."""


class Asking(InForce):
    """One node's requests, and what it took to have them answered.

    A request that fails before its first token is sent again as long as there is another way, as `InForce` has them.

    Args:
        parts: The agent.
        chain: The run's models; see `ModelPool.chain`.
        settings: The run's configuration.
        history: The conversation.
        loop: Where the loop is.
        planner: Which planner the session has; counts in wave mode only.
        reader: Who reads along what is not quiet; None for nobody.
    """

    def __init__(
        self,
        parts: AgentParts,
        chain: Sequence[ReadyModel],
        settings: LoopConfig,
        history: Sequence[AnyMessage],
        loop: Bookkeeping,
        planner: Planner,
        reader: Reader | None = None,
    ) -> None:
        super().__init__(parts, chain, settings, history, loop, planner)
        self._reader = reader
        self.spoken = Spoken()
        """What of the newest request's reply has reached the reader."""
        self.cut_off: AIMessage | None = None
        """What there is of the newest request's reply where it was cut off, with its tokens; None otherwise."""
        self.budget_met: Callable[[Usage, AIMessage], LimitMet | None] = lambda used, newest: None
        """Of what these requests have used, and the newest reply: the budget that has no room for another."""

    @classmethod
    async def begin(
        cls,
        parts: AgentParts,
        settings: LoopConfig,
        history: Sequence[AnyMessage],
        loop: Bookkeeping,
        config: RunnableConfig,
    ) -> Self:
        """Make ready to ask; arguments as for the class.

        Raises:
            ConfigError: When the run names a model that cannot be had.
        """
        planner = planner_of(config["configurable"].get("thread_id", ""), settings, parts.agentic_loop)
        reader = run_of(config).reader
        return cls(parts, await parts.models.chain(settings), settings, history, loop, planner, reader)

    async def plan(self) -> Planned:
        """Ask for the next wave.

        Raises:
            RefusedError: When the model or its provider will not answer; its message is the answer.
            PlanningError: When a structured plan is wrong still after its repair.
            LimitMetError: When it is wrong, and a limit forbids the repair.
            Exception: What the last provider asked has raised.
        """

        async def send(watch: Spoken) -> Planned:
            if self._mode == "wave":
                return await ask_for_plan(self._parts, self._history, self._settings, self._planner, self._limit_met)
            return await ask_for_calls(self._parts, self._history, self._settings, self._mode, watch)

        planned = await self._through(send)
        self._count(planned.usage, planned.message.usage_metadata)
        return planned

    async def answer(
        self, tail: Sequence[AnyMessage] = (), *, quiet: bool = False, schema: dict[str, Any] | None = None
    ) -> AIMessage:
        """Ask for the answer.

        Args:
            tail: What comes after the request, such as a reply and what is wrong with it.
            quiet: Keep the reply's tokens out of the message stream.
            schema: JSON schema of the answer; None for free text.

        Raises:
            RefusedError, Exception: As for `plan`.
        """

        async def send(watch: Spoken) -> AIMessage:
            request = [*self._answer_request(), *tail]
            reply = await self._parts.client.answer(
                request, self._settings, mode=self._mode, quiet=quiet, schema=schema, watch=watch
            )
            if (words := refusal_in(reply, heard=True)) is not None:
                raise RefusedError.of(reply, words, usage_of(reply, self._settings.prices))
            return reply

        reply = await self._through(send)
        self._count(usage_of(reply, self._settings.prices), reply.usage_metadata)
        return reply

    @counts_beside
    async def answer_after(self, sentence: str, hint: str = "") -> tuple[AIMessage, Exception | None]:
        """Ask for an answer that stands below a sentence of ours, streamed as one message.

        Args:
            sentence: What the message begins with.
            hint: What it ends with, where the model answers; empty for nothing.

        Returns:
            The message, and what the last model asked has failed with when the sentence had to stand alone.
        """

        def recover(error: Exception) -> Way | None:
            if not self._recover(error):
                return None
            return self._parts.client.answering(self._answer_request(), self._settings, mode=self._mode)

        message, failure = await self._parts.client.answer_after(
            sentence,
            self._answer_request(),
            self._settings,
            mode=self._mode,
            recover=recover,
            watch=self.spoken,
            hint=hint,
        )
        if failure is None:
            self._count(usage_of(message, self._settings.prices), message.usage_metadata)
            below = message.model_copy(
                update={"content": message.text.removeprefix(sentence).removesuffix(hint).strip()}
            )
            words = refusal_in(below, heard=True)
        else:
            words = REFUSED if refused_by(failure) else None
        if words is None:
            return message, failure
        self._warn_of_refusal()
        return message.model_copy(update={"content": f"{sentence}\n\n{words}"}), None

    @counts_beside
    async def _through(
        self, send: Callable[[Spoken], Awaitable[T]], recover: Callable[[Exception], bool] | None = None
    ) -> T:
        """Send a request until it is answered, or nothing is left to try; `recover` in place of the usual ways."""
        while True:
            self.spoken = Spoken() if self._reader is None else ReadAloud(self._reader)
            try:
                return await send(self.spoken)
            except RefusedError as refused:
                self._count(refused.usage, refused.message.usage_metadata)
                self._warn_of_refusal()
                raise
            except PlanningError as error:
                self._count(error.usage, None)
                raise
            except AskingError as stopped:
                self._count(stopped.usage, None)
                failure = stopped.error
            except Exception as error:  # noqa: BLE001 - a provider may raise anything; it is raised again below
                failure = error
            if refused_by(failure):
                self._warn_of_refusal()
                raise RefusedError(AIMessage(REFUSED), NO_USAGE) from failure
            if self.spoken.seen or not (recover or self._recover)(failure):
                raise failure

    def _limit_met(self, used: Usage, newest: AIMessage) -> LimitMet | None:
        """The limit that forbids another request for a plan; `used` is what `usage` does not count yet."""
        asked, most = add_usage(self.usage, used), self._settings.max_turns
        if most is not None and self.loop["turn"] + asked["model_calls"] >= most:
            return "turn_limit", most
        return self.budget_met(asked, newest)

    def _answer_request(self) -> list[AnyMessage]:
        return answer_request(self._parts, self._history, self._settings, self._mode, self._planner)

    def _count(self, usage: Usage, last: UsageMetadata | None) -> None:
        """Add what a reply used, and warn once when its request nearly filled the model's window."""
        self.usage = add_usage(self.usage, usage)
        window, recovery = self._model.window, self.loop.get("recovery", {})
        if last is None or window is None or recovery.get("crowded") or last["input_tokens"] < _CROWDED * window:
            return
        self._learn(crowded=True)
        share = last["input_tokens"] / window
        self._warn(
            f"The request took {last['input_tokens']:,} of the {window:,} tokens that {self._model.name} can read "
            f"({share:.0%}); once it is full, the older part of the conversation is left out."
        )
