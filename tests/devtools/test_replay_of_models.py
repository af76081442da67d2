"""Replays of sessions with a provider's client: the form of each request is that of the recorded model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from graph_agent import LoopConfig, LoopHook, LoopPlan, ScriptedChatModel, Session, create_graph_agent
from graph_agent.hooks import HookRequest, HookResponse
from graph_agent.testing import replay
from tests.support.agents import echo
from tests.support.openai_stub import Failure, Reply, StubFactory, openai_stub

__all__ = ["openai_stub"]


class City(BaseModel):
    name: str


CALL = Reply(tool_calls=(("echo", {"text": "Bergen"}),))
IN_TEXT = json.dumps({"tool_calls": [{"name": "echo", "arguments": {"text": "Bergen"}}]})
PLAN = json.dumps({"status": "done", "action": "answer", "tools": [], "answer": "Hi."})
CITY = '{"name": "Bergen"}'


def refusing(word: str, accepted: Callable[[dict[str, Any]], bool]) -> Callable[[dict[str, Any]], Any]:
    """A reply of a server that refuses requests of another form."""
    return lambda body: "Done." if accepted(body) else Failure(400, f"Unknown parameter: '{word}'.")


@pytest.mark.parametrize(
    ("model", "replies", "options", "config"),
    [
        ("gpt-4o-mini", [CALL, CITY], {"response_format": City}, {}),
        ("gpt-4o-mini", [CALL, "Bergen", CITY], {"response_format": City}, {}),
        ("gpt-4o-mini", [CALL, "Enough.", "Done."], {}, {"finalize": "compose"}),
        ("gpt-4o-mini", [PLAN], {}, {"tool_calling": "wave"}),
        ("gpt-5", [CALL, "Done."], {}, {"temperature": 0}),
        ("of-no-known-provider", [CALL, CITY], {"response_format": City}, {}),
        ("smollm2:135m", [IN_TEXT, "Done."], {}, {}),
        ("smollm2:135m", [IN_TEXT, CITY, CITY], {"response_format": City}, {}),
        ("smollm2:135m", [PLAN, PLAN], {}, {"tool_calling": "wave"}),
    ],
)
async def test_a_replay_sends_the_recorded_requests_of_a_client(
    openai_stub: StubFactory, model: str, replies: list[Any], options: dict[str, Any], config: dict[str, Any]
) -> None:
    stub = openai_stub(*replies)
    async with stub.chat_model(model) as client:
        agent = create_graph_agent(
            client,
            [echo],
            config=LoopConfig(record_requests=True, **config),
            checkpointer=InMemorySaver(),
            **options,
        )
        talk = Session(agent, "s1")
        result = await talk.run("Where?")
        sent = len(stub.requests)

        outcome = await replay(talk, agent)

    assert (result.status, outcome.differences, outcome.stopped, len(stub.requests)) == ("COMPLETED", (), "", sent)


async def test_a_replay_knows_what_the_endpoint_had_refused(openai_stub: StubFactory) -> None:
    stub = openai_stub(*[refusing("temperature", lambda body: "temperature" not in body)] * 3)
    config = LoopConfig(record_requests=True, temperature=0.5)
    saver = InMemorySaver()
    async with stub.chat_model("of-no-known-provider", api_key="sk-first") as client:
        agent = create_graph_agent(client, [echo], config=config, checkpointer=saver)
        await Session(agent, "s1").run("Teach it.")
        talk = Session(agent, "s2")
        await talk.run("It is known now.")
    async with stub.chat_model("of-no-known-provider", api_key="sk-second") as client:
        untaught = create_graph_agent(client, [echo], config=config, checkpointer=saver)

        outcomes = [await replay(Session(untaught, name), untaught) for name in ("s1", "s2")]

    assert ([each.differences for each in outcomes], len(stub.requests)) == ([(), ()], 3)


class ChoosingModel(BaseChatModel):
    """A model of a program's own, which sends the tool choice also where there is none."""

    @property
    def _llm_type(self) -> str:
        return "own"

    def bind_tools(self, tools: Any, *, tool_choice: str | None = None, **options: Any) -> Runnable[Any, AIMessage]:
        return self.bind(tools=tools, tool_choice=tool_choice, **options)

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("Done."))])


async def test_a_replay_sends_the_options_of_a_model_of_the_programs_own() -> None:
    config = LoopConfig(record_requests=True)
    talk = Session(
        agent := create_graph_agent(ChoosingModel(), [echo], config=config, checkpointer=InMemorySaver()), "a"
    )
    await talk.run("Hi.")

    outcome = await replay(talk, agent)

    assert (outcome.differences, outcome.steps) == ((), 1)


class Failing(LoopHook):
    """Fails at its only reply."""

    def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, None]:
        return True, None

    def build_plan(self, context: None, response: HookResponse, request: HookRequest) -> LoopPlan:
        raise RuntimeError("No plan.")


@pytest.mark.parametrize("inputs", [1, 2])
async def test_a_replay_ends_where_a_hook_failed_in_the_first_plan(inputs: int) -> None:
    agent = create_graph_agent(ScriptedChatModel(["Hi."] * inputs), hooks=[Failing()], checkpointer=InMemorySaver())
    talk = Session(agent, "s1")
    ends = [(await talk.run("Hi.")).status for _ in range(inputs)]

    outcome = await replay(talk, agent, number=inputs)

    assert (set(ends), outcome.differences, outcome.stopped) == (
        {"FAILED"},
        (),
        "The model is asked for a reply that is not recorded.",
    )
