"""Failed runs over HTTP: an error with its category, whatever `on_failure` is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.interfaces.server.chat.run import RunEnded, ServerRun
from graph_agent.session.results import Token
from tests.interfaces.server.hosting import ask, running, spec_of
from tests.support.agents import asks, echo


class OverloadedError(Exception):
    """The error of a failing provider."""

    status_code = 529


class Later(ScriptedChatModel):
    """A model whose provider answers once."""

    async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
        if self.requests:
            raise OverloadedError("overloaded")
        return await super()._agenerate(*args, **kwargs)

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        if self.requests:
            raise OverloadedError("overloaded")
        async for chunk in super()._astream(*args, **kwargs):
            yield chunk


@pytest.mark.parametrize("streams", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("on_failure", ["answer", "raise"])
async def test_a_run_that_fails_is_answered_by_its_problem_alone(on_failure: Any, streams: bool) -> None:
    model = Later(responses=[asks(("1", "echo", {"text": "a"}))])
    config = LoopConfig(on_failure=on_failure, model_retries=0, finalize="compose")
    async with running(create_graph_agent(model, tools=[echo], config=config)) as runs:
        run = ServerRun(runs.host, await spec_of(runs.host, ask()), runs.metrics, streams=streams)
        texts, part = [], await run.part(30)
        while not isinstance(part, RunEnded):
            texts += [part.text] if isinstance(part, Token) else []
            part = await run.part(30)
        await run.close()

    problem = part.outcome.problem
    assert problem is not None
    assert (texts, problem.kind, problem.category, problem.status, problem.headers) == (
        [],
        "upstream",
        "transient",
        502,
        {"retry-after": "5"},
    )


@pytest.mark.parametrize("streams", [True, False], ids=["streamed", "whole"])
async def test_an_answer_after_a_limit_has_no_words_of_the_provider(streams: bool) -> None:
    config = LoopConfig(model_retries=0, max_steps=1)
    async with running(
        create_graph_agent(Later(responses=[asks(("1", "echo", {"text": "a"}))]), tools=[echo], config=config)
    ) as runs:
        run = ServerRun(runs.host, await spec_of(runs.host, ask()), runs.metrics, streams=streams)
        texts: list[str] = []
        while not isinstance(part := await run.part(), RunEnded):
            texts += [part.text] if isinstance(part, Token) else []

    assert (part.outcome.problem, "(HTTP 529);" in part.outcome.text) == (None, True)
    assert "overloaded" not in "".join([part.outcome.text, *texts])
