"""Having a request answered: by the model in force, by one that takes over, or with a shorter history."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, Self, TypeVar

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.runnables import RunnableConfig

from graph_agent.budgets import LimitMet, usage_of
from graph_agent.config import LoopConfig, Planner
from graph_agent.deps import AgentParts
from graph_agent.errors import SlowSchemaError
from graph_agent.models.binding import Way
from graph_agent.models.cleaning import with_text
from graph_agent.models.finish_reasons import REFUSED, refusal_in, refused_by
from graph_agent.models.metering import metered
from graph_agent.models.pool import ReadyModel
from graph_agent.models.sentinel import is_sentinel, without_sentinel
from graph_agent.models.stream_watch import ReadAloud, Reader, Spoken, Visibility
from graph_agent.models.visibility import UnlessCall, WithoutCalls, WithoutSentinel
from graph_agent.planning.ask import AskingError, PlanningError, RefusedError, ask_for_calls, ask_for_plan, settle
from graph_agent.planning.fallback import InForce
from graph_agent.planning.prompt import answer_request
from graph_agent.planning.reply import Planned
from graph_agent.planning.rollout import planner_of
from graph_agent.planning.text_correction import WrittenCall, written_call
from graph_agent.runs.run import run_of
from graph_agent.state.schema import Bookkeeping
from graph_agent.state.usage import add_usage
from graph_agent.types import NO_USAGE, Usage


class Counts(Protocol):
    """What sends requests and counts what they took."""

    _settings: LoopConfig
    usage: Usage
    cut_off: AIMessage | None


P = ParamSpec("P")
C = TypeVar("C", bound=Counts)


def counts_beside(
    send: Callable[Concatenate[C, P], Awaitable[T]],
) -> Callable[Concatenate[C, P], Coroutine[Any, Any, T]]:
    """Make a method that sends requests count, however it ends, the calls that nobody else does."""

    @functools.wraps(send)
    async def counted(self: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with metered() as beside:
            try:
                return await send(self, *args, **kwargs)
            finally:
                self.cut_off = beside.cut_off
                for reply in beside.replies:
                    self.usage = add_usage(self.usage, usage_of(reply, self._settings.prices))
                self.usage = add_usage(self.usage, {**NO_USAGE, "model_calls": -beside.uncalled})

    return counted


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

        planned = await self._plan()
        if self._mode != "native":
            await settle(self.spoken, planned)
            return planned
        if planned.calls:
            self._note_native_call()
        elif self._may_correct() and not await self._fits(planned) and (hint := self._hint(planned)) is not None:
            return await self._plan_in_text(planned, hint)
        await settle(self.spoken, planned)
        return planned

    async def _plan(self, tail: Sequence[AnyMessage] = (), *, quiet: bool = False) -> Planned:
        async def send(watch: Spoken) -> Planned:
            # A request that failed may have shortened it.
            history = [*self._history, *tail] if tail else self._history
            if self._mode == "wave":
                return await ask_for_plan(self._parts, history, self._settings, self._planner, self._limit_met)
            return await ask_for_calls(
                self._parts,
                history,
                self._settings,
                self._mode,
                watch,
                quiet=quiet or (self._parts.response is not None and self._reader is not None),
                schema=self._schema_of_plan(),
            )

        planned = await self._through(send, visibility=self._visibility())
        self._count(planned.usage, planned.message.usage_metadata)
        return planned

    def _schema_of_plan(self) -> dict[str, Any] | None:
        """The schema that the provider can hold a planning reply without calls to; None for none."""
        parts = self._parts
        # In text, the provider would hold calls to it too.
        if parts.response is None or self._mode != "native" or not parts.may_answer_while_planning(self._settings):
            return None
        schema = parts.response.json_schema
        return schema if parts.client.holds_to(schema) else None

    async def _fits(self, planned: Planned) -> bool:
        """Whether a planning reply is an answer that the provider has held to the schema."""
        if self._parts.response is None or self._schema_of_plan() is None:
            return False
        try:
            await asyncio.to_thread(self._parts.response.read, planned.said)
        except (ValueError, SlowSchemaError):
            return False
        return True

    def _visibility(self) -> type[Visibility]:
        """What holds a part of a planning reply back."""
        if self._schema_of_plan() is not None:
            return WithoutSentinel
        if self._mode == "text":
            return WithoutCalls
        if not self._may_correct():
            return WithoutSentinel
        return UnlessCall if self._takes_tools else WithoutCalls

    @property
    def _takes_tools(self) -> bool:
        """Whether the model is said to take tools, by its profile or by the configuration."""
        return self._model.takes_tools or self._settings.tool_calling == "native"

    def _note_native_call(self) -> None:
        known, name = self.loop.get("native_tools", []), self._model.name
        if not self._takes_tools and name not in known:
            self.loop = {**self.loop, "native_tools": [*known, name]}

    def _may_correct(self) -> bool:
        """Whether a native reply without calls may be asked for once more in text: once an input, before any work."""
        tried = self.loop.get("recovery", {}).get("asked_in_text")
        worked = self.loop["waves"] or self.loop.get("carried") or self._model.name in self.loop.get("native_tools", ())
        return bool(self._parts.toolbox) and not tried and not worked

    def _hint(self, planned: Planned) -> WrittenCall | Literal["sentinel"] | None:
        """What in a reply without calls hints that the model's server ignores tools."""
        if is_sentinel(planned.said):
            return None if self._takes_tools else "sentinel"
        return written_call(planned.said, self._parts.toolbox.names, self._history)

    async def _plan_in_text(self, first: Planned, hint: WrittenCall | Literal["sentinel"]) -> Planned:
        """Ask once more with the tools described in text, and find out which of the two replies counts.

        No call of the first reply is run. It stands where the second has neither calls nor an answer, and where it may
        well be an answer itself.
        """
        watch, sentinel = self.spoken, hint == "sentinel"
        if self._limit_met(NO_USAGE, first.message) is not None:
            await settle(watch, first)
            return first
        self._learn(asked_in_text=True)
        did = "had nothing to do, and has called no tool" if sentinel else "wrote a call as text, which was not run"
        self._warn(f"The model {self._model.name} {did}; it is asked once more, with the tools described in text.")
        notice: list[AnyMessage] = [AIMessage(first.said), HumanMessage(self._parts.prompts.render("written_call"))]
        self._in_text = True
        try:
            second = await self._plan(() if sentinel else notice, quiet=not sentinel)
        finally:
            self._in_text = False
        if second.calls:
            self.loop = {**self.loop, "text_tools": [*self.loop["text_tools"], self._model.name]}
        elif isinstance(hint, WrittenCall) and (hint.may_be_answer or not second.answers):
            self.spoken = watch
            await settle(watch, first)
            return first
        await settle(self.spoken, second)
        return second

    async def answer(
        self, tail: Sequence[AnyMessage] = (), *, quiet: bool = False, schema: dict[str, Any] | None = None
    ) -> AIMessage:
        """Ask for the answer.

        Args:
            tail: What comes after the request, such as a reply and what is wrong with it.
            quiet: Keep the reply's tokens out of the message stream.
            schema: JSON schema of the answer; None for free text. Its tokens are streamed where the provider holds the
                model to it, and nothing reads along that cannot take back an answer that has to be repaired.

        Raises:
            RefusedError, Exception: As for `plan`.
        """

        async def send(watch: Spoken) -> AIMessage:
            request = [*self._answer_request(), *tail]
            whole = quiet or (schema is not None and self._reader is not None)
            reply = await self._parts.client.answer(
                request, self._settings, mode=self._mode, quiet=whole, schema=schema, watch=watch
            )
            if (words := refusal_in(reply, heard=True)) is not None:
                await watch.settle(reply.text, reply.text)
                raise RefusedError.of(reply, words, usage_of(reply, self._settings.prices))
            answer = without_sentinel(reply.text)
            await watch.settle(reply.text, answer or None)
            return with_text(reply, answer)

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
            answer = without_sentinel(message.text)
            await self.spoken.settle(message.text, answer)
            message = with_text(message, answer)
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
        self,
        send: Callable[[Spoken], Awaitable[T]],
        recover: Callable[[Exception], bool] | None = None,
        visibility: type[Visibility] = WithoutSentinel,
    ) -> T:
        """Send a request until it is answered, or nothing is left to try; `recover` in place of the usual ways."""
        while True:
            self.spoken = Spoken(visibility) if self._reader is None else ReadAloud(self._reader, visibility)
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
