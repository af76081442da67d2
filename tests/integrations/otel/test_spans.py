"""OpenTelemetry: spans and metrics of runs, with exporters in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.otel import instrument, uninstrument
from graph_agent.session.trace import Span
from tests.support.agents import ECHO_SCRIPT, asks, echo
from tests.support.approvals import Desk
from tests.support.early_calls import agent_of, calls, found, read
from tests.support.gates import Gate
from tests.support.sessions import new_session

CANARY = "canary-7731"


class Traces:
    """What was exported."""

    def __init__(self, **options: Any) -> None:
        self._exporter, self._metrics = InMemorySpanExporter(), InMemoryMetricReader()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        instrument(tracer_provider=provider, meter_provider=MeterProvider([self._metrics]), **options)

    @property
    def spans(self) -> list[ReadableSpan]:
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def tree(self) -> list[tuple[str, str | None]]:
        """Each span's name with that of its parent, by begin."""
        by_id = {span.context.span_id: span.name for span in self.spans if span.context}
        return [(span.name, by_id.get(span.parent.span_id) if span.parent else None) for span in self.spans]

    def metric_points(self, name: str) -> int:
        """The number of recorded values of a histogram."""
        data = self._metrics.get_metrics_data()
        return sum(
            getattr(point, "count", 0)
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        )

    def metrics(self) -> dict[str, float]:
        """The sum of each metric."""
        data = self._metrics.get_metrics_data()
        return {
            metric.name: sum(getattr(point, "sum", getattr(point, "value", 0)) for point in metric.data.data_points)
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture(autouse=True)
def _uninstrumented() -> Iterator[None]:
    yield
    uninstrument()


async def test_a_run_is_a_tree_of_spans_with_links_to_its_wave() -> None:
    traces = Traces()
    session = new_session(ScriptedChatModel(ECHO_SCRIPT), echo, name="hotel")

    await session.run("go")

    assert traces.tree() == [
        ("invoke_agent hotel", None),
        ("plan", "invoke_agent hotel"),
        ("chat scripted", "plan"),
        ("execute_tool echo", "invoke_agent hotel"),
        ("plan", "invoke_agent hotel"),
        ("chat scripted", "plan"),
        ("chat scripted", "invoke_agent hotel"),
    ]
    by_name = {span.name: span for span in traces.spans}
    linked = [link.context.span_id for link in by_name["execute_tool echo"].links]
    first_plan = next(span for span in traces.spans if span.name == "plan")
    assert linked == [first_plan.context.span_id if first_plan.context else 0]
    assert {str((span.attributes or {}).get("gen_ai.conversation.id")) for span in traces.spans} == {"s1"}
    metrics = traces.metrics()
    assert [name for name in sorted(metrics) if metrics[name] > 0] == [
        "gen_ai.client.inference.duration",
        "gen_ai.client.inference.usage.input_tokens",
        "gen_ai.client.inference.usage.output_tokens",
        "gen_ai.execute_tool.duration",
        "gen_ai.invoke_agent.duration",
        "gen_ai.invoke_agent.inference_calls",
        "gen_ai.invoke_agent.tool_calls",
    ]
    assert (metrics["gen_ai.invoke_agent.inference_calls"], metrics["gen_ai.invoke_agent.tool_calls"]) == (3, 1)


async def test_the_run_of_a_delegate_is_within_its_delegation() -> None:
    traces = Traces()
    inner = create_graph_agent(ScriptedChatModel([asks(("e", "echo", {"text": "x"})), "Found."]), tools=[echo])
    session = new_session(
        ScriptedChatModel([asks(("d", "delegate_to_helper", {"task": "look"})), "Done."]),
        delegates=[GraphDelegate("helper", "Helps.", inner)],
        name="lead",
    )

    await session.run("go")

    assert [each for each in traces.tree() if not each[0].startswith("chat")] == [
        ("invoke_agent lead", None),
        ("plan", "invoke_agent lead"),
        ("invoke_agent helper", "invoke_agent lead"),
        ("invoke_agent agent", "invoke_agent helper"),
        ("plan", "invoke_agent agent"),
        ("execute_tool echo", "invoke_agent agent"),
        ("plan", "invoke_agent agent"),
        ("plan", "invoke_agent lead"),
    ]


async def test_the_run_of_a_background_task_is_within_its_delegation() -> None:
    traces = Traces()
    inner = create_graph_agent(ScriptedChatModel(["Found."]))
    task = asks(("d", "delegate_to_helper", {"task": "look", "background": True}))
    session = new_session(
        ScriptedChatModel([task, asks(("w", "wait_for_background", {})), "Done."]),
        delegates=[GraphDelegate("helper", "Helps.", inner, background=True)],
        name="lead",
    )

    await session.run("go")

    assert [each for each in traces.tree() if each[0].startswith("invoke_agent")] == [
        ("invoke_agent lead", None),
        ("invoke_agent helper", "invoke_agent lead"),
        ("invoke_agent agent", "invoke_agent helper"),
    ]


@pytest.mark.parametrize(("options", "found"), [({}, False), ({"capture_content": True}, True)], ids=["off", "on"])
async def test_content_is_in_spans_only_if_it_is_switched_on(options: dict[str, Any], found: bool) -> None:
    traces = Traces(**options)
    session = new_session(
        ScriptedChatModel([asks(("1", "echo", {"text": CANARY})), f"It is {CANARY}."]),
        echo,
        system_prompt=f"Say {CANARY}.",
    )

    await session.run(f"Find {CANARY}, password=hunter2-of-ana")

    shown = [span.to_json() for span in traces.spans]
    assert (CANARY in "".join(shown), "hunter2" in "".join(shown)) == (found, False)


async def test_approvals_and_limits_are_events_and_a_failed_call_is_an_error() -> None:
    traces = Traces()

    async def fail() -> str:
        """Fail."""
        raise KeyError("away")

    desk = Desk(asks(("1", "write", {"path": "a"}), ("2", "fail", {})), "Done.", config={"max_steps": 1}, tools=[fail])
    await desk.session.run("go")
    await desk.session.resume({"decisions": [{"type": "approve"}]})

    events = [event.name for span in traces.spans for event in span.events]
    calls = [(span.name, span.status.status_code.name) for span in traces.spans if span.name.startswith("execute")]
    assert (sorted(set(events)), calls) == (
        ["graph_agent.approval_decision", "graph_agent.approval_request", "graph_agent.limit"],
        [("execute_tool fail", "ERROR"), ("execute_tool write", "UNSET")],
    )


async def test_an_aborted_call_ends_once_with_the_status_of_its_result() -> None:
    traces, gate = Traces(), Gate()

    async def wait() -> str:
        """Wait."""
        await gate.passing()
        return "opened"

    session = new_session(ScriptedChatModel([asks(("1", "wait", {})), "Done."]), wait)
    run = asyncio.create_task(session.run("go"))
    await gate.reached()
    await session.abort()
    [call] = (await run).calls

    ended = [(span.attributes or {}).get("graph_agent.call.status") for span in traces.spans if "wait" in span.name]
    assert (ended, traces.metric_points("gen_ai.execute_tool.duration")) == ([call.status], 1)


async def test_a_call_that_is_under_way_at_the_end_of_tracing_is_exported() -> None:
    traces = Traces()

    async def end_tracing() -> str:
        """End it."""
        uninstrument()
        return "ended"

    await new_session(ScriptedChatModel([asks(("1", "end_tracing", {})), "Done."]), end_tracing).run("go")

    assert "execute_tool end_tracing" in [span.name for span in traces.spans]


async def test_a_failed_run_is_an_error() -> None:
    class Failing(ScriptedChatModel):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            raise ValueError("no such model")

    traces = Traces()
    session = new_session(Failing(responses=["Hello."]), echo)

    await session.run("hi")

    assert [(span.name, (span.attributes or {}).get("error.type")) for span in traces.spans] == [
        ("invoke_agent agent", "unknown_model"),
        ("plan", None),
        ("chat scripted", "unknown_model"),
    ]


async def test_operations_that_another_instrumentation_traces_are_left_out() -> None:
    traces = Traces(spans=("invoke_agent", "execute_tool"))
    session = new_session(ScriptedChatModel(ECHO_SCRIPT), echo)

    await session.run("go")

    assert traces.tree() == [("invoke_agent agent", None), ("execute_tool echo", "invoke_agent agent")]


async def test_a_needed_call_is_linked() -> None:
    traces = Traces()
    plan = (
        '{"status": "done", "action": "a", "tools": [{"id": "a", "tool": "echo", "args": {"text": "x"}},'
        '{"id": "b", "tool": "echo", "args": {"text": "${a}"}, "needs": ["a"]}]}'
    )
    session = new_session(ScriptedChatModel([plan, "Done."]), echo, config=LoopConfig(tool_calling="wave"))

    await session.run("go")

    links = [
        [(link.attributes or {}).get("graph_agent.link") for link in span.links]
        for span in traces.spans
        if span.name.startswith("execute_tool")
    ]
    assert links == [["wave"], ["wave", "need"]]


def as_exported(span: Span, parent: str | None) -> list[tuple[str, str | None]]:
    """The spans that are exported for a span of the event log, each with the name of its parent."""
    names = {"input": "invoke_agent lead", "plan": "plan", "tool": f"execute_tool {span.name}"}
    names |= {"model": f"chat {span.name}", "delegation": f"invoke_agent {span.name}"}
    inner = name = names.get(span.kind, parent)
    found = [] if span.kind in ("answer", "wait") else [(str(name), parent)]
    if span.kind == "delegation":
        # The delegate's own run is the only input in its history.
        found.append(("invoke_agent agent", name))
        inner = "invoke_agent agent"
    return [*found, *(each for child in span.children for each in as_exported(child, inner))]


async def test_the_exported_tree_is_that_of_the_event_log() -> None:
    traces = Traces()
    inner = create_graph_agent(ScriptedChatModel([asks(("e", "echo", {"text": "x"})), "Found."]), tools=[echo])
    script = [asks(("d", "delegate_to_helper", {"task": "look"})), asks(("1", "echo", {"text": "y"})), *ECHO_SCRIPT]
    session = new_session(
        ScriptedChatModel(script), echo, delegates=[GraphDelegate("helper", "Helps.", inner)], name="lead"
    )

    await session.run("go")

    [root] = await session.trace()
    assert traces.tree() == as_exported(root, None)


async def test_feedback_has_a_span_of_its_own_without_the_note_and_the_person() -> None:
    traces = Traces()
    session = new_session(ScriptedChatModel(["One."]))
    await session.run("first")

    await session.feedback("up", note=CANARY, by=CANARY)

    span = traces.spans[-1]
    assert (span.name, span.parent, dict(span.attributes or {})) == (
        "feedback agent",
        None,
        {
            "gen_ai.operation.name": "feedback",
            "gen_ai.conversation.id": "s1",
            "gen_ai.agent.name": "agent",
            "gen_ai.evaluation.name": "feedback",
            "gen_ai.evaluation.score.value": 1.0,
            "gen_ai.evaluation.score.label": "up",
            "graph_agent.answer": 2,
        },
    )


async def test_what_began_early_is_counted_by_source_and_outcome() -> None:
    traces = Traces()
    session = agent_of(ScriptedChatModel([calls("look", "look"), "Done."], streaming=True), [read("look", found)])

    await session.session("s1").run("go")

    metrics = traces.metrics()
    assert (metrics["graph_agent.speculation.count"], "graph_agent.speculation.cost" in metrics) == (2, False)
    assert metrics["graph_agent.speculation.duration"] >= 0
