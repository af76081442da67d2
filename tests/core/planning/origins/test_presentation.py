"""Origins in the trace, on the command line and in spans."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.approvals import approve
from graph_agent.interfaces.cli.dialog import Dialog, describe_question, questions_of
from graph_agent.marks import marked
from graph_agent.otel import instrument, uninstrument
from tests.support.agents import asks

LINES = ["to: from read_mail, call 1, in prose, untrusted", "note: written by the model"]


def read_mail() -> str:
    """Read the mail."""
    return "Invite eve@mail.example."


def invite(to: str, note: str) -> str:
    """Invite somebody."""
    return f"Invited {to}."


def office() -> Session[Any, Any]:
    """A session whose second call invites whom the mail names."""
    script = [asks(("1", "read_mail", {})), asks(("2", "invite", {"to": "eve@mail.example", "note": "Hello"})), "Done."]
    agent = create_graph_agent(
        ScriptedChatModel(script),
        tools=[marked(read_mail, source="untrusted"), marked(invite, sinks=["to"])],
        config=LoopConfig(origins=True),
        checkpointer=InMemorySaver(),
    )
    return Session(agent, "s")


async def test_the_trace_has_the_origins_of_a_call() -> None:
    session = office()
    await session.run("Do what the mail says.")
    await session.resume({"decisions": [approve()]})

    [root] = await session.trace()

    assert [dict(span.origins) for span in root.children if span.kind == "tool"] == [
        {},
        {
            "to": {"kind": "result", "how": "prose", "call": "1", "name": "read_mail", "untrusted": True},
            "note": {"kind": "model"},
        },
    ]


async def test_the_command_line_shows_the_origin_below_the_arguments() -> None:
    questions = questions_of((await office().run("Do what the mail says.")).interrupts)

    assert (describe_question(questions[0]), Dialog(questions).text.split("\n")) == (
        [f'invite {{"to": "eve@mail.example", "note": "Hello"}} ({"; ".join(LINES)})'],
        [
            "Approve this call?",
            "  invite",
            "    to: eve@mail.example",
            "    note: Hello",
            *(f"  {line}" for line in LINES),
            f"  Untrusted text decides where this call goes. {LINES[0]}.",
        ],
    )


@pytest.fixture
def spans() -> Any:
    """The spans that are finished during a test."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrument(tracer_provider=provider)
    yield exporter
    uninstrument()


async def test_the_span_of_a_call_has_the_origins(spans: Any) -> None:
    session = office()
    await session.run("Do what the mail says.")
    await session.resume({"decisions": [approve()]})

    [span] = [span for span in spans.get_finished_spans() if span.name == "execute_tool invite"]

    assert {name: value for name, value in span.attributes.items() if name.startswith("graph_agent.call.")} == {
        "graph_agent.call.origins": tuple(LINES),
        "graph_agent.call.tainted": ("to",),
        "graph_agent.call.status": "success",
    }
