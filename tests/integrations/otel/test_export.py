"""OpenTelemetry across processes: OTLP to a receiver on loopback, and traces that continue over A2A and MCP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.mcp import open_mcp_tools
from graph_agent.otel import instrument, uninstrument
from tests.support.a2a_delegates import delegating_session
from tests.support.a2a_servers import serving_ours
from tests.support.agents import asks
from tests.support.cli import run_cli
from tests.support.sessions import new_session
from tests.support.terminal import GATED_TOOLS, agent_folder
from tests.support.warm_process import warm_python

CANARY = "canary-7731"
TOOLS = f'def find() -> str:\n    """Find."""\n    return "{CANARY}"\n'


class Receiver:
    """What an OTLP receiver got."""

    def __init__(self) -> None:
        self.bodies: dict[str, list[bytes]] = {}
        self.url = ""

    def spans(self) -> list[tuple[str, str]]:
        """Each span's name with that of its parent, by begin."""
        spans = [
            span
            for body in self.bodies.get("/v1/traces", ())
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        names = {span.span_id: span.name for span in spans}
        ordered = sorted(spans, key=lambda span: span.start_time_unix_nano)
        return [(span.name, names.get(span.parent_span_id, "")) for span in ordered]

    def metrics(self) -> set[str]:
        """The names of the metrics."""
        return {
            metric.name
            for body in self.bodies.get("/v1/metrics", ())
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.bodies.setdefault(self.path, []).append(body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield receiver
        server.shutdown()
        thread.join()


def test_a_command_exports_the_tree_of_its_session_by_otlp_without_content(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, GATED_TOOLS + TOOLS, "find")
    with receiving() as receiver:
        run_cli(
            folder,
            "run",
            "--session",
            "s",
            CANARY,
            script=[asks(("1", "find", {})), f"{CANARY}."],
            GRAPH_AGENT_OTEL="true",
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url,
            OTEL_EXPORTER_OTLP_COMPRESSION="none",
        )

    agent = receiver.spans()[0][0]
    assert receiver.spans() == [
        (agent, ""),
        ("plan", agent),
        ("chat scripted", "plan"),
        ("execute_tool find", agent),
        ("plan", agent),
        ("chat scripted", "plan"),
    ]
    assert agent.startswith("invoke_agent ")
    assert "gen_ai.execute_tool.duration" in receiver.metrics()
    assert CANARY.encode() not in b"".join(receiver.bodies["/v1/traces"] + receiver.bodies["/v1/metrics"])


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    found, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    instrument(tracer_provider=provider)
    yield found
    uninstrument()


async def test_the_run_of_a_remote_agent_is_within_its_delegation(exporter: InMemorySpanExporter) -> None:
    remote = create_graph_agent(ScriptedChatModel(["It rains."]), checkpointer=InMemorySaver(), name="weather")

    with serving_ours(remote) as url:
        session, _ = delegating_session(url, "Bergen")
        await session.run("How is the weather?")

    spans = exporter.get_finished_spans()
    by_id = {span.context.span_id: span for span in spans if span.context}
    [inner] = [span for span in spans if span.name == "invoke_agent weather"]
    parent = by_id[inner.parent.span_id] if inner.parent else None
    assert parent is not None
    assert (
        parent.name.split()[0],
        parent.kind.name,
        len({span.context.trace_id for span in spans if span.context}),
    ) == (
        "invoke_agent",
        "CLIENT",
        1,
    )


SERVER = """
from mcp.server.fastmcp import Context, FastMCP
from tests.support.warm_process import warm_python

server = FastMCP("traced")


@server.tool()
def where(ctx: Context) -> str:
    "Return the trace of the request."
    return str((ctx.request_context.meta.model_extra or {}).get("traceparent"))


server.run()
"""


async def test_an_mcp_server_receives_the_trace_of_the_call(exporter: InMemorySpanExporter, tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    connection = {"transport": "stdio", "command": warm_python(), "args": [str(tmp_path / "server.py")]}

    async with open_mcp_tools({"traced": connection}) as tools:
        session = new_session(ScriptedChatModel([asks(("1", "where", {})), "Done."]), *tools)
        result = await session.run("go")

    calls = [span.context for span in exporter.get_finished_spans() if span.name == "execute_tool where"]
    parents = [f"00-{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags:02x}" for at in calls if at]
    assert [result.results["1"]] == parents
