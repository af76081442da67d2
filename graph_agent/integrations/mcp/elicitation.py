"""Turns a server's questions during a call into interrupts of the graph, and answers its sampling requests.

An elicitation is a question of an MCP server to the user during a call, a sampling request one to the agent's model. A
call that waits is suspended: it stays open on the server while its session waits, and the answer is delivered to it,
with a Store also from another process. If the call is lost before the answer arrives, because its process or its server
has ended, a call that may be repeated is made again, and equal questions receive the answers that were given before.
The outcome of any other lost call is unknown.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import mcp.types as types
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import ToolException
from langgraph.checkpoint.serde.types import INTERRUPT
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp
from langgraph.runtime import get_runtime
from langgraph.types import interrupt
from mcp.shared.session import ProgressFnT

from graph_agent.base._compat import checkpointer_of, count_resume_values
from graph_agent.base._internal.failure_log import get_logger, log_failure
from graph_agent.base._internal.text import text_of
from graph_agent.base.approvals.elicitation import (
    ElicitationAnswer,
    ElicitationRequest,
    is_elicitation,
    question_digest,
    read_elicitation_answer,
    response_schema,
)
from graph_agent.base.calls import key_of_current_call, running_call
from graph_agent.base.errors import DecisionError
from graph_agent.base.inbox import StoreInbox
from graph_agent.base.sampling import Sampler, current_sampler
from graph_agent.base.types import NO_USAGE, Call
from graph_agent.base.usage import LimitMetError, add_usage
from graph_agent.core.state.own_checkpoint import load, running_checkpoint
from graph_agent.core.state.run import run_of
from graph_agent.integrations.mcp.connections import ServerConfig
from graph_agent.integrations.mcp.loop_bridge import LoopBridge
from graph_agent.integrations.mcp.messages import McpCallError, UrlsRequiredError
from graph_agent.integrations.mcp.server import McpServer, is_repeatable
from graph_agent.integrations.mcp.suspended import (
    HANDOVER,
    NO_SAMPLING,
    UNSUPPORTED,
    Asked,
    ClientReply,
    OpenQuestion,
    SuspendedCall,
    answer_elsewhere,
)

logger = get_logger("graph_agent.mcp")

MAX_SAMPLES = 16
"""Maximum requests to the model that a server may make during one call."""
_STOP_REASONS = {"length": "maxTokens", "max_tokens": "maxTokens", "MAX_TOKENS": "maxTokens"}
"""A provider's finish reason → stop reason of MCP; `endTurn` for others."""


async def answer_with(
    sampler: Sampler, params: types.CreateMessageRequestParams, config: ServerConfig
) -> types.CreateMessageResult | types.ErrorData:
    """Return the reply to a server's sampling request, made by the agent's model.

    It is a refusal for a request with tools or with content that models do not accept, and if the agent's budget is
    used up. Any other error of the model is logged, and an error is returned. Only cancellation raises.

    Args:
        sampler: Sends the request, as usage of the run.
        params: The request.
        config: The server's connection, whose `sampling_max_tokens` limits the reply.
    """
    if params.tools:
        return sampling_refusal("This client does not offer tools in sampling.")
    try:
        request = _messages(params)
    except ValueError as error:
        return sampling_refusal(str(error))
    try:
        reply = await sampler.sample(
            request,
            max_tokens=max(1, min(params.maxTokens, config.sampling_max_tokens)),
            temperature=params.temperature,
            stop=params.stopSequences,
        )
    except LimitMetError as error:
        return sampling_refusal(f"The agent's budget is used up: {error}")
    except Exception as error:  # noqa: BLE001 - a provider may raise anything; the server gets an error answer
        log_failure(logger, f"The model's reply to the MCP server {config.name!r}", error)
        return types.ErrorData(code=types.INTERNAL_ERROR, message=f"The model failed: {type(error).__name__}.")
    metadata = reply.response_metadata
    reason = metadata.get("finish_reason") or metadata.get("stop_reason")
    return types.CreateMessageResult(
        role="assistant",
        content=types.TextContent(type="text", text=text_of(reply.content)),
        model=str(metadata.get("model_name") or metadata.get("model") or "unknown"),
        stopReason=_STOP_REASONS.get(str(reason), "endTurn"),
    )


def sampling_refusal(why: str) -> types.ErrorData:
    """Return the error reply, with the reason `why`, to a sampling request that was not sent to the model."""
    return types.ErrorData(code=types.INVALID_REQUEST, message=why)


def _messages(params: types.CreateMessageRequestParams) -> list[BaseMessage]:
    """Return a sampling request as LangChain messages; raise `ValueError` for content that models do not accept."""
    request: list[BaseMessage] = [SystemMessage(params.systemPrompt)] if params.systemPrompt else []
    for message in params.messages:
        blocks = [_block(block) for block in message.content_as_list]
        texts = [block["text"] for block in blocks if block["type"] == "text"]
        content: str | list[Any] = texts[0] if len(texts) == len(blocks) == 1 else blocks
        request.append(HumanMessage(content) if message.role == "user" else AIMessage(content))
    return request


def _block(block: types.SamplingMessageContentBlock) -> dict[str, Any]:
    """Return a content block of a sampling request for LangChain; raise `ValueError` for a type that models do not
    accept.
    """
    match block:
        case types.TextContent():
            return {"type": "text", "text": block.text}
        case types.ImageContent() | types.AudioContent():
            return {"type": block.type, "base64": block.data, "mime_type": block.mimeType}
        case _:
            raise ValueError(f"Content of type {block.type!r} is not supported in sampling.")


_MAX_REFUSALS = 5
"""Maximum times in a row that a server may refuse a call until the user has opened an address."""


async def call_and_ask(
    server: McpServer,
    bridge: LoopBridge,
    tool: types.Tool,
    arguments: dict[str, Any],
    on_progress: ProgressFnT | None,
    meta: dict[str, Any] | None,
) -> types.CallToolResult:
    """Call a tool; a question of the server interrupts the graph, and the resumed run continues the same call.

    Outside an agent's call, or for a server that neither asks users nor samples, the tool is only called. Without a
    checkpointer, a question is answered as unsupported. If another process has begun the call, the questions that it
    asked are asked again; a call that may not be repeated is continued there.

    Args:
        server: The server.
        bridge: Runs code on the event loop of the server's session.
        tool: The tool's definition.
        arguments: Its arguments.
        on_progress: Receives the progress of the call; None to request none.
        meta: The `_meta` of the request.

    Raises:
        GraphInterrupt: A question waits for the user.
        McpCallError: The server will not answer the call.
        SyncInLoopError: The event loop of the server's session is blocked.
        ToolException: The server answered with a protocol error.
    """
    running, key = running_call(), key_of_current_call()
    if not (server.asks_people or server.samples) or running is None or key is None:
        return await bridge.run(lambda: server.call(tool, arguments, on_progress, meta))
    session_id, call, wave = running
    config = get_config()

    async def take() -> SuspendedCall | None:
        """Return the suspended call of an earlier task, if there is one."""
        return server.suspended.take(key)

    async def start() -> SuspendedCall:
        """Start the call in a task of its own, and register it."""
        started = SuspendedCall(key, session_id, wave)
        report = started.report if on_progress is not None else None
        started.start(_call(server, tool, arguments, report, meta, started))
        server.suspended.add(started)
        return started

    suspended = await bridge.run(take)
    asked: list[Asked] = []
    answers: dict[str, list[Any]] = {}
    if suspended is None and (before := await _asked_before(config, call)) is not None:
        for digest in before["questions"]:
            # Raises for a question that is open still, so that the call is not made.
            answers.setdefault(digest, []).append(interrupt(before, response_schema=response_schema(before)))
            asked.append(Asked(before))
        if not before["repeatable"]:
            return await _continue_elsewhere(server, tool, key, before, answers[before["questions"][-1]][-1])
    continued = suspended is not None
    if suspended is None:
        suspended = await bridge.run(start)
        suspended.asked, suspended.answers = asked, answers
    suspended.on_progress = on_progress
    return await _Conversation(server, tool, bridge, call, suspended).run(continued=continued)


async def _call(
    server: McpServer,
    tool: types.Tool,
    arguments: dict[str, Any],
    on_progress: ProgressFnT | None,
    meta: dict[str, Any] | None,
    suspended: SuspendedCall,
) -> types.CallToolResult:
    """Call a tool; if the server refuses until the user has opened an address, ask the user and call again.

    `suspended` is the call, by which the server's questions and addresses reach the user. Raises `ToolException` if the
    user does not open an address, `UrlsRequiredError` if the server refuses more than `_MAX_REFUSALS` times or names no
    address, and the errors of `McpServer.call`.
    """
    refusals = 0
    while True:
        try:
            return await server.call(tool, arguments, on_progress, meta, (suspended.session_id, suspended.ask))
        except UrlsRequiredError as error:
            refusals += 1
            # A server that never accepts the call would ask the user forever.
            if refusals > _MAX_REFUSALS or not error.elicitations:
                raise
            suspended.refused = True
            for params in error.elicitations:
                answer = await suspended.ask(params)
                action = answer.action if isinstance(answer, types.ElicitResult) else "it cannot be asked"
                if action != "accept":
                    raise ToolException(f"{error} The person did not open {params.url}: {action}.") from None
            suspended.refused = False


async def _continue_elsewhere(
    server: McpServer, tool: types.Tool, key: str, asked: ElicitationRequest, answer: Any
) -> types.CallToolResult:
    """Send an answer to the process that holds the call, and return the call's result.

    Args:
        server: The server.
        tool: The tool that is called.
        key: The idempotency key of the call.
        asked: The question that was answered.
        answer: The user's answer.

    Raises:
        GraphInterrupt: The call's next question waits for the user.
        McpCallError: The run has no Store, no process holds the call, or the server will not answer it.
        ToolException: The server answered with a protocol error.
    """
    store = get_runtime().store
    while store is not None:
        found = await answer_elsewhere(StoreInbox(store, HANDOVER), key, asked["questions"][-1], answer)
        if "result" in found:
            return types.CallToolResult.model_validate(found["result"])
        if "error" in found:
            raise McpCallError(found["error"], may_have_run=True) if found["lost"] else ToolException(found["error"])
        if "question" not in found:
            break
        asked = found["question"]
        answer = interrupt(asked, response_schema=response_schema(asked))
    raise McpCallError(_lost(server, tool), may_have_run=True)


class _Conversation:
    """The part of a call that one task of the graph runs: interrupts for questions, passes answers to the server.

    Args:
        server: The server.
        tool: The tool's definition.
        bridge: Runs code on the event loop of the server's session.
        call: The agent's call.
        suspended: The call on the server, which may have begun in an earlier task.
    """

    def __init__(
        self, server: McpServer, tool: types.Tool, bridge: LoopBridge, call: Call, suspended: SuspendedCall
    ) -> None:
        self._server = server
        self._may_repeat = is_repeatable(tool) or server.config.elicitation == "repeat"
        self._bridge = bridge
        self._call = call
        self._suspended = suspended
        self._sampler = current_sampler.get()
        self._store = get_runtime().store
        suspended.continue_for = self._continue_for
        self._can_ask = server.asks_people and checkpointer_of(get_config()) is not None

    async def run(self, *, continued: bool) -> types.CallToolResult:
        """Return the result of the call; raise `GraphInterrupt` for a question that has no answer yet.

        Requests for sampling are answered on the way, and a question that cannot be asked is answered as unsupported. A
        call that interrupts stays open on the server. After any other error, and at its end, it is removed from the
        suspended calls.

        Args:
            continued: Whether an earlier task in this process has begun the call.
        """
        self._report_usage()
        try:
            if continued:
                await self._repeat_interrupts()
            while True:
                outcome = await self._bridge.run(self._suspended.step)
                if isinstance(outcome, types.CallToolResult):
                    break
                if isinstance(outcome.params, types.CreateMessageRequestParams):
                    await self._reply(outcome, await self._sample(outcome.params))
                elif self._can_ask:
                    await self._answer(outcome)
                else:
                    await self._reply(outcome, UNSUPPORTED)
        except GraphBubbleUp:
            # The interrupted task reports nothing, so the next one does.
            if self._sampler is not None:
                self._suspended.usage = self._sampler.usage
            await self._bridge.run(self._leave)
            raise
        except BaseException:
            await self._bridge.run(self._end)
            raise
        await self._bridge.run(self._end)
        return outcome

    async def _leave(self) -> None:
        """Leave the call waiting for a later task, or for another process through the Store."""
        self._server.suspended.leave(self._suspended)
        if self._store is not None:
            self._server.suspended.watch(StoreInbox(self._store, HANDOVER))

    async def _continue_for(self, digest: str, answer: Any) -> dict[str, Any]:
        """Continue the call with an answer that another process received for the question with a digest.

        Returns `{"result": …}` when the call has ended, `{"error": text, "lost": bool}` if it failed, or `{"question":
        …}` for the next question, or for the same one with an error if the answer does not fit.
        """
        given, error = [answer], ""
        try:
            while isinstance(outcome := await self._suspended.step(), OpenQuestion):
                if isinstance(outcome.params, types.CreateMessageRequestParams):
                    self._suspended.answer(outcome, NO_SAMPLING)  # the run whose model could answer has ended
                    continue
                asked = next((each for each in self._suspended.asked if each.question is outcome), None)
                if asked is not None and asked.value["questions"][-1] == digest and given:
                    asked.question = None
                    try:
                        valid = await asyncio.to_thread(read_elicitation_answer, asked.value, given.pop())
                    except DecisionError as misfit:
                        asked, error = None, str(misfit)
                    else:
                        result = types.ElicitResult(action=valid.action, content=valid.content)
                        self._suspended.answer(outcome, result)
                        continue
                if asked is None:
                    value = self._request(outcome)
                    asked = Asked({**value, "error": error} if error else value, outcome)
                    self._suspended.asked.append(asked)
                return {"question": asked.value}
        except ToolException as failure:
            return {"error": str(failure), "lost": isinstance(failure, McpCallError)}
        return {"result": outcome.model_dump(mode="json", by_alias=True)}

    async def _end(self) -> None:
        """Remove the call, and cancel it if it runs."""
        self._server.suspended.end(self._suspended)

    async def _repeat_interrupts(self) -> None:
        """Raise the interrupts of earlier tasks again, in order, as LangGraph requires; deliver the newest answer."""
        for each in [*self._suspended.asked]:
            answer = interrupt(each.value, response_schema=response_schema(each.value))
            question, each.question = each.question, None
            if question is not None:
                await self._deliver(question, each.value, answer)

    async def _answer(self, question: OpenQuestion) -> None:
        """Answer a question by an answer that was given before, or interrupt the graph for one.

        Questions are recognized by a digest of their content. An earlier answer that no longer fits is dropped, and the
        question is not answered; the next step returns it again.
        """
        value = self._request(question)
        digest = value["questions"][-1]
        if known := self._suspended.answers.get(digest):
            try:
                valid = await asyncio.to_thread(read_elicitation_answer, value, known.pop(0))
            except DecisionError:
                return  # the next step returns the question again
            await self._give(question, digest, valid)
            return
        self._suspended.asked.append(Asked(value, question))
        answer = interrupt(value, response_schema=response_schema(value))
        self._suspended.asked[-1].question = None
        await self._deliver(question, value, answer)

    async def _deliver(self, question: OpenQuestion, value: ElicitationRequest, answer: Any) -> None:
        """Deliver the user's answer to a question.

        While the answer does not fit, interrupt the graph again with the same question and the error.
        """
        while True:
            try:
                valid = await asyncio.to_thread(read_elicitation_answer, value, answer)
            except DecisionError as error:
                # Not raised: LangGraph has stored the answer, and would use it again for every later resume.
                value = {**self._request(question), "error": str(error)}
                self._suspended.asked.append(Asked(value, question))
                answer = interrupt(value, response_schema=response_schema(value))
                self._suspended.asked[-1].question = None
            else:
                return await self._give(question, value["questions"][-1], valid)

    async def _give(self, question: OpenQuestion, digest: str, answer: ElicitationAnswer) -> None:
        """Pass a valid answer to the server, or keep it for the repeated call if the session has ended."""
        if not await self._reply(question, types.ElicitResult(action=answer.action, content=answer.content)):
            # The server's session has ended, and a repeated call asks the question again.
            self._suspended.answers.setdefault(digest, []).append(answer.as_value())

    async def _reply(self, question: OpenQuestion, reply: ClientReply) -> bool:
        """Send a reply to a question; return False if the question is void."""

        async def give() -> bool:
            """Send the reply, on the event loop of the session."""
            return self._suspended.answer(question, reply)

        return await self._bridge.run(give)

    def _report_usage(self) -> None:
        """Add the usage of the call's requests to the model that no task has reported yet."""
        if self._sampler is not None:
            self._sampler.usage = add_usage(self._sampler.usage, self._suspended.usage)
            self._suspended.usage = NO_USAGE

    async def _sample(self, params: types.CreateMessageRequestParams) -> ClientReply:
        """Return the reply of the agent's model to a sampling request, and count the request.

        A refusal if there is no sampler, the connection does not permit sampling, or the call has made more than
        `MAX_SAMPLES` requests.
        """
        self._suspended.samples += 1
        if self._sampler is None or not self._server.samples:
            return NO_SAMPLING
        if self._suspended.samples > MAX_SAMPLES:
            return sampling_refusal(f"This call has made {MAX_SAMPLES} requests to the model, which is its limit.")
        return await answer_with(self._sampler, params, self._server.config)

    def _request(self, question: OpenQuestion) -> ElicitationRequest:
        """Return a question in the form of the interrupt's value.

        It has the server, the call, the message, the form or the address, the digests of all questions of the call so
        far, this one last, and whether the call may be repeated.
        """
        params = question.params
        assert not isinstance(params, types.CreateMessageRequestParams)
        schema = params.requestedSchema if isinstance(params, types.ElicitRequestFormParams) else None
        url = params.url if isinstance(params, types.ElicitRequestURLParams) else None
        # With all digests so far, a repeated call in another process knows which questions it must ask first.
        before = [each.value["questions"][-1] for each in self._suspended.asked]
        value: ElicitationRequest = {
            "type": "elicitation",
            "server": self._server.config.name,
            "id": self._call["id"],
            "name": self._call["name"],
            "mode": params.mode,
            "message": params.message,
            "questions": [*before, question_digest(params.mode, params.message, schema, url)],
            "repeatable": self._may_repeat or self._suspended.refused,
        }
        if schema is not None:
            value["requested_schema"] = schema
        return value if url is None else {**value, "url": url}


async def _asked_before(config: RunnableConfig, call: Call) -> ElicitationRequest | None:
    """Return the newest question that a task of an earlier run asked for this call; None if there is none.

    None also for a call that this run has planned and that was not resumed, without reading the checkpoint.
    """
    if not count_resume_values(config) and call["id"] in run_of(config).calls.planned:
        return None
    runtime = get_runtime()
    saver, at = checkpointer_of(config), running_checkpoint(config, runtime)
    if saver is None or at is None or runtime.execution_info is None:
        return None
    found = await load(saver, at)
    for task, channel, value in reversed((found.pending_writes or []) if found is not None else []):
        if (task, channel) == (runtime.execution_info.task_id, INTERRUPT):
            asked = [each.value for each in value if is_elicitation(each.value)]
            return cast("ElicitationRequest", asked[-1]) if asked else None
    return None


def _lost(server: McpServer, tool: types.Tool) -> str:
    """Return the text for a call that ended while it waited for a person's answer: it may have taken effect."""
    return (
        f"MCP server {server.config.name!r}: the call of {tool.name!r} ended while it waited for a person's answer, "
        "which was not delivered; it may have taken effect."
    )
