"""Requests for a plan: the session's planner, the temperature, and the provider's form."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import AgentContext, LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.core.planning.planner import agentic_loop_from_env, planner_of
from graph_agent.errors import ConfigError, ModelFailedError
from tests.support.agents import asks, echo
from tests.support.openai_stub import Failure, Reply, StubFactory, openai_stub
from tests.support.wave_helpers import DONE, of_type, plan, plan_requests, use, waves

__all__ = ["openai_stub"]

A = use("a", "echo", text="x")
PLAN = json.loads(plan(A, status="done"))
IDS = [f"session-{number}" for number in range(10_000)]


async def test_the_dag_planner_plans_once() -> None:
    model = ScriptedChatModel([plan(A, use("b", "echo", text="${a}")), "Answer."])
    session = waves(model, tools=[echo], settings={"planner": "dag"})

    result = await session.run("go")

    model.assert_spent()
    prompt = model.requests[0].messages[0].text
    recorded = of_type(await session.events(), "plan", "status", "planner")
    assert (len(plan_requests(model)), result.results, recorded, "There is one plan" in prompt) == (
        1,
        {"a": "x", "b": "x"},
        [("done", "dag")],
        True,
    )


async def test_the_dag_planner_may_mend_its_plan_once() -> None:
    model = ScriptedChatModel([plan(A, A), plan(A), "Answer."])

    result = await waves(model, tools=[echo], settings={"planner": "dag"}).run("go")

    model.assert_spent()
    assert (result.results, result.iterations) == ({"a": "x"}, 1)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_a_rollouts_share_is_kept(share: float) -> None:
    settings = LoopConfig(tool_calling="wave", rollout=share)

    arms = [planner_of(id_, settings, None) for id_ in IDS]

    assert abs(arms.count("wave") / len(IDS) - share) <= (0.01 if 0 < share < 1 else 0)


def test_a_sessions_arm_never_changes_and_a_growing_share_only_adds() -> None:
    few, more = (LoopConfig(tool_calling="wave", rollout=share) for share in (0.1, 0.3))

    in_few = [id_ for id_ in IDS if planner_of(id_, few, None) == "wave"]

    assert (
        in_few[:5],
        all(planner_of(id_, more, None) == "wave" for id_ in in_few),
        {planner_of("session-1", few, None) for _ in range(10)},
    ) == (
        ["session-19", "session-29", "session-31", "session-58", "session-59"],
        True,
        {"dag"},
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [("true", True), (" TRUE ", True), ("false", False), ("False", False), ("", None), (None, None)],
)
def test_the_environment_variable_is_parsed(value: str | None, expected: bool | None) -> None:
    assert agentic_loop_from_env({} if value is None else {"AGENTIC_LOOP_ENABLED": value}) is expected


@pytest.mark.parametrize("value", ["1", "yes", "on", "tru"])
def test_an_unknown_value_of_the_variable_is_an_error_at_construction(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTIC_LOOP_ENABLED", value)

    with pytest.raises(ConfigError, match=f"AGENTIC_LOOP_ENABLED='{value}': write 'true' or 'false', or unset it"):
        create_graph_agent(ScriptedChatModel([]))


@pytest.mark.parametrize(("value", "arm"), [("true", "wave"), ("false", "dag")])
async def test_the_environment_variable_overrides_every_setting(
    value: str, arm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTIC_LOOP_ENABLED", value)
    other: Literal["wave", "dag"] = "dag" if arm == "wave" else "wave"
    settings = {"planner": other, "rollout": 0.0 if arm == "wave" else 1.0}
    session = waves([plan(A, status="done"), "Answer."], tools=[echo], settings=settings)

    await session.run("go", context=AgentContext(planner=other))

    assert of_type(await session.events(), "plan", "planner") == [(arm,)]


@pytest.mark.parametrize("context", [None, {"tool_calling": "native"}], ids=["own", "of the run"])
@pytest.mark.parametrize("tool_calling", ["auto", "native", "text", "wave"])
async def test_without_an_agentic_loop_everything_is_planned_up_front(
    tool_calling: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTIC_LOOP_ENABLED", "false")
    model = ScriptedChatModel([plan(A, status="continue"), "Answer."])
    config = LoopConfig(tool_calling=tool_calling, finalize="compose")
    session = Session(create_graph_agent(model, tools=[echo], config=config, checkpointer=InMemorySaver()), "s1")

    result = await session.run("go", context=context)

    model.assert_spent()
    assert (result.results, result.answer, of_type(await session.events(), "plan", "planner")) == (
        {"a": "x"},
        "Answer.",
        [("dag",)],
    )


async def test_with_an_agentic_loop_other_modes_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTIC_LOOP_ENABLED", "true")
    model = ScriptedChatModel([asks(("1", "echo", {"text": "x"})), "No more actions.", "Answer."])
    config = LoopConfig(tool_calling="native", finalize="compose")
    session = Session(create_graph_agent(model, tools=[echo], config=config, checkpointer=InMemorySaver()), "s1")

    result = await session.run("go")

    assert (result.results, result.answer) == ({"1": "x"}, "Answer.")


async def test_each_sessions_arm_is_in_its_events() -> None:
    config = LoopConfig(tool_calling="wave", rollout=0.5)
    arms = {}
    for id_ in IDS[:20]:
        graph = waves([plan(A, status="done"), "Answer."], tools=[echo], settings={"rollout": 0.5}).graph
        session = Session(graph, id_)
        await session.run("go")
        arms[id_] = of_type(await session.events(), "plan", "planner")

    assert arms == {id_: [(planner_of(id_, config, None),)] for id_ in IDS[:20]}


@pytest.mark.parametrize(
    ("settings", "sent"),
    [({}, {"temperature": 0}), ({"temperature": 0.7}, {"temperature": 0.7}), ({"temperature": 0}, {"temperature": 0})],
    ids=["default", "configured", "zero"],
)
async def test_the_temperature_of_a_planning_request(settings: dict[str, Any], sent: dict[str, Any]) -> None:
    model = ScriptedChatModel([plan(A, status="done"), "Answer."])
    await waves(model, tools=[echo], settings=settings).run("go")

    assert [request.kwargs for request in model.requests] == [sent, settings]


class NoTemperatureError(Exception):
    status_code = 400

    def __str__(self) -> str:
        return "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) is supported."


class Particular(ScriptedChatModel):
    """A model that takes no temperature."""

    async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
        if "temperature" in kwargs:
            await super()._agenerate(*args, **kwargs)
            raise NoTemperatureError
        return await super()._agenerate(*args, **kwargs)


async def test_a_model_that_refuses_a_temperature_is_asked_without_from_then_on() -> None:
    model = Particular(responses=["refused", plan(A), DONE, "Answer."])

    result = await waves(model, tools=[echo]).run("go")

    model.assert_spent()
    assert ([request.kwargs for request in model.requests], result.answer, result.usage["model_calls"]) == (
        [{"temperature": 0}, {}, {}, {}],
        "Answer.",
        3,
    )


async def test_a_configured_temperature_that_is_refused_is_the_users_to_mend() -> None:
    model = Particular(responses=["refused"])
    session = waves(model, tools=[echo], settings={"temperature": 0.7})

    result = await session.run("go")

    with pytest.raises(ModelFailedError) as raised:
        result.raise_for_status()
    kinds = [kind for (kind,) in of_type(await session.events(), "error", "kind")]
    assert (kinds, "temperature" in str(raised.value.__cause__)) == (["other"], True)


def ways(bodies: list[dict[str, Any]]) -> list[str]:
    """How each request to a provider asked for a plan."""
    return ["schema" if "response_format" in body else "tool" if body.get("tools") else "text" for body in bodies]


NO_SCHEMA = Failure(400, "'response_format' of type 'json_schema' is not supported with this model.")
NO_TOOLS = Failure(400, "stub-model does not support tools")


@pytest.mark.parametrize(
    ("model_name", "replies", "asked"),
    [
        pytest.param("gpt-4o-mini", [json.dumps(PLAN)], ["schema", "text"], id="schema"),
        pytest.param("stub-model", [json.dumps(PLAN)], ["schema", "text"], id="unknown-model"),
        pytest.param("stub-model", [NO_SCHEMA, ("make_plan", PLAN)], ["schema", "tool", "text"], id="unknown-tool"),
        pytest.param("gpt-4o-mini", [NO_SCHEMA, ("make_plan", PLAN)], ["schema", "tool", "text"], id="no-schema"),
        pytest.param(
            "gpt-4o-mini", [NO_SCHEMA, NO_TOOLS, json.dumps(PLAN)], ["schema", "tool", "text", "text"], id="neither"
        ),
        pytest.param(
            "stub-model", [NO_SCHEMA, NO_TOOLS, json.dumps(PLAN)], ["schema", "tool", "text", "text"], id="no-tools"
        ),
    ],
)
async def test_a_plan_is_asked_for_by_the_best_way_the_provider_takes(
    openai_stub: StubFactory,
    model_name: str,
    replies: list[Any],
    asked: list[str],
) -> None:
    served = [Reply(tool_calls=(reply,)) if isinstance(reply, tuple) else reply for reply in replies]
    stub = openai_stub(*served, "Answer.")
    async with stub.chat_model(model_name) as model:
        result = await waves(model, tools=[echo]).run("go")

    planning = [body.get("temperature") for body in stub.bodies[:-1]]
    assert (ways(stub.bodies), result.results, result.answer, planning, result.error) == (
        asked,
        {"a": "x"},
        "Answer.",
        [0] * (len(asked) - 1),
        "",
    )


async def test_a_refused_way_of_planning_is_not_requested_again(openai_stub: StubFactory) -> None:
    more = json.dumps({**PLAN, "status": "continue"})
    stub = openai_stub(NO_SCHEMA, NO_TOOLS, more, DONE, "Answer.", DONE, "Again.")
    async with stub.chat_model("gpt-4o-mini") as model:
        session = waves(model, tools=[echo])
        first, second = await session.run("go"), await session.run("again")

    assert (ways(stub.bodies), first.answer, second.answer) == (
        ["schema", "tool", "text", "text", "text", "text", "text"],
        "Answer.",
        "Again.",
    )


async def test_a_wrong_key_ends_the_run_at_once(openai_stub: StubFactory) -> None:
    stub = openai_stub(Failure(401, "Incorrect API key provided.", code="invalid_api_key"))
    async with stub.chat_model("gpt-4o-mini") as model:
        session = waves(model, tools=[echo])
        result = await session.run("go")

    assert (len(stub.bodies), of_type(await session.events(), "error", "kind"), result.status) == (
        1,
        [("auth",)],
        "FAILED",
    )
