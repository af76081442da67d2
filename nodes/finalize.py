"""`finalize`: turn what was gathered into the answer, stream it, and close the input."""

from __future__ import annotations

import logging
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from graph_agent.asking import Asking
from graph_agent.config import LoopConfig
from graph_agent.errors import UserError
from graph_agent.events import StoredEvent, event
from graph_agent.models.errors import classify_model_error, describe_model_error
from graph_agent.parts import AgentParts
from graph_agent.planning import RefusedError
from graph_agent.state import AgentState, Outcome
from graph_agent.types import NO_USAGE, STATUS_OF, StopReason, Usage

logger = logging.getLogger(__name__)

_IN_WORDS = "No tool can be called any more. Answer in words, from what you know."

REPAIRS = 2
"""Times an answer that does not fit its schema is sent back."""


async def finalize_node(
    state: AgentState, config: RunnableConfig, runtime: Runtime[Any], *, parts: AgentParts
) -> dict[str, Any]:
    """Answer, by a streamed model call where the plan gave no answer itself.

    Returns:
        An update with the answer, its event and the session's status. A failed model leaves the status `FAILED` and an
        `error` event, and no message: nothing was said.
    """
    answering = _Answering(state, parts.settings(runtime), parts)
    await answering.run(config)
    return answering.update()


class _Answering:
    """One pass through `finalize`: what it reads, and the update it gathers."""

    def __init__(self, state: AgentState, settings: LoopConfig, parts: AgentParts) -> None:
        self.loop = state["loop"]
        outcome: Outcome = self.loop["outcome"] or {"stop_reason": "completed"}
        self.state = state
        self.settings = settings
        self.parts = parts
        self.outcome = outcome
        self.reason: StopReason = outcome["stop_reason"]
        self.step = self.loop["step"]
        self.answer: AIMessage | None = None
        self.structured: Any = None
        self.usage: Usage = NO_USAGE
        self.events: list[StoredEvent] = []

    async def run(self, config: RunnableConfig) -> None:
        """Find the answer."""
        if self.reason == "failed":
            return
        draft = self.outcome.get("draft")
        if draft is not None:
            self.answer = draft
            return
        sentence = self._sentence()
        if sentence and self.settings.on_limit == "message":
            self.answer = AIMessage(sentence)
            return
        asking = await Asking.begin(self.parts, self.settings, self.state["messages"], self.loop, config)
        try:
            await (self._structured(asking, sentence) if self.parts.response else self._compose(asking, sentence))
        except UserError:
            raise
        except RefusedError as refused:
            self.answer = _below(sentence, refused.message)
        except Exception as error:  # noqa: BLE001 - a provider may raise anything; the outcome says what
            logger.error("The request for the answer failed: %s", describe_model_error(error))
            self._fail(classify_model_error(error), describe_model_error(error))
            if sentence:
                self.answer = AIMessage(sentence)
        self.loop, self.usage = asking.loop, asking.usage
        self.events[:0] = asking.events
        if sentence:
            # The limit is what ended this input, whatever became of the answer.
            self.reason = self.outcome["stop_reason"]

    async def _compose(self, asking: Asking, sentence: str) -> None:
        if sentence:
            self.answer, failure = await asking.answer_after(sentence)
            if isinstance(failure, UserError):
                raise failure
            if failure is not None:
                self._fail(classify_model_error(failure), describe_model_error(failure))
            return
        self.answer = await asking.answer()
        if not self.answer.text.strip() and self.parts.toolbox:
            # It called a tool all the same, and that call was left out.
            self.answer = await asking.answer([HumanMessage(_IN_WORDS)])

    async def _structured(self, asking: Asking, sentence: str) -> None:
        """Ask for an answer that fits the schema. Its tries are not streamed: only one of them is the answer."""
        assert self.parts.response is not None
        fault = ""
        tail: list[AnyMessage] = []
        for _ in range(1 + REPAIRS):
            reply = await asking.answer(tail, quiet=True, schema=self.parts.response.json_schema)
            self.answer = reply
            try:
                self.structured = self.parts.response.read(reply.text)
            except ValueError as error:
                fault = str(error)
                tail += [reply, HumanMessage(f"That does not fit: {fault} Send the corrected object.")]
            else:
                break
        else:
            times = f"{REPAIRS} repairs"
            self._fail("response_format", f"The answer did not fit the response format after {times}: {fault}")
        if sentence and self.answer is not None:
            self.answer = _below(sentence, self.answer)

    def _sentence(self) -> str:
        if self.reason == "completed":
            return ""
        return self.parts.prompts.render("limit", reason=self.reason, limit=self.outcome.get("limit"))

    def _fail(self, kind: str, message: str) -> None:
        self.reason = "failed"
        self.events.append(event("error", self.step, kind=kind, message=message))

    def update(self) -> dict[str, Any]:
        """Everything gathered."""
        status = STATUS_OF[self.reason].value
        if self.answer is not None:
            self.events.append(event("agent_response", self.step, content=self.answer.content))
        self.events.append(event("status", self.step, **{"from": self.state["status"], "to": status}))
        return {
            **({"messages": [self.answer]} if self.answer is not None else {}),
            "events": self.events,
            "status": status,
            "stop_reason": self.reason,
            "structured_response": self.structured,
            "loop": {**self.loop, "outcome": None},
            "usage": self.usage,
        }


def _below(sentence: str, answer: AIMessage) -> AIMessage:
    """The answer below a sentence of ours; itself without one."""
    return AIMessage(f"{sentence}\n\n{answer.text}", id=answer.id) if sentence else answer
