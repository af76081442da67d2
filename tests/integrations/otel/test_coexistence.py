"""OpenTelemetry with LangSmith and other instrumentations of LangChain: each call has one span in each."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.warm_process import warm_python

# Instrumentations patch LangChain for the whole process, so each has a process of its own.
_PROGRAM = """
import asyncio, collections, importlib, sys
from langgraph.checkpoint.memory import InMemorySaver
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.otel import instrument
from tests.support.agents import ECHO_SCRIPT, echo

module, name, kind = sys.argv[1:]
exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
getattr(importlib.import_module(module), name)().instrument(tracer_provider=provider)
instrument(tracer_provider=provider, spans=())
agent = create_graph_agent(ScriptedChatModel(ECHO_SCRIPT), tools=[echo], checkpointer=InMemorySaver())
asyncio.run(Session(agent, "s1").run("go"))
spans = exporter.get_finished_spans()
kinds = collections.Counter(str((span.attributes or {}).get(kind)).lower() for span in spans)
traces = {span.context.trace_id for span in spans}
print(kinds["llm"] + kinds["chat"], kinds["tool"] + kinds["execute_tool"], len(traces))
"""


@pytest.mark.parametrize(
    ("module", "name", "kind"),
    [
        ("openinference.instrumentation.langchain", "LangChainInstrumentor", "openinference.span.kind"),
        ("opentelemetry.instrumentation.langchain", "LangchainInstrumentor", "gen_ai.operation.name"),
    ],
    ids=["openinference", "traceloop"],
)
def test_without_spans_of_its_own_each_call_is_in_the_other_ones_trace_once(module: str, name: str, kind: str) -> None:
    program = [warm_python(), "-c", _PROGRAM, module, name, kind]

    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=180)

    assert (done.stdout.split(), done.stderr) == (["3", "1", "1"], "")


_WITH_LANGSMITH = """
import asyncio, collections, os, re, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

received = []

class Receiver(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply()

    def do_POST(self):
        received.append(self.rfile.read(int(self.headers["content-length"])))
        self.reply()

    def reply(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ |= {"LANGSMITH_TRACING": "true", "LANGSMITH_API_KEY": "key", "LANGSMITH_DISABLE_RUN_COMPRESSION": "true",
               "LANGSMITH_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}

from langchain_core.tracers.langchain import get_client, wait_for_all_tracers
from langgraph.checkpoint.memory import InMemorySaver
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.otel import instrument
from tests.support.agents import ECHO_SCRIPT, echo

exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
instrument(tracer_provider=provider)
agent = create_graph_agent(ScriptedChatModel(ECHO_SCRIPT), tools=[echo], checkpointer=InMemorySaver())
asyncio.run(Session(agent, "s1").run("go"))
wait_for_all_tracers()
get_client().flush()
server.shutdown()
body = b"".join(received)
sent = collections.Counter(re.findall(rb'"run_type":"(llm|tool)"', body))
traces = set(re.findall(rb'"trace_id":"([^"]+)"', body))
spans = exporter.get_finished_spans()
own = collections.Counter((span.attributes or {}).get("gen_ai.operation.name") for span in spans)
print(sent[b"llm"], sent[b"tool"], len(traces), own["chat"], own["execute_tool"])
"""


def test_langsmith_and_the_own_spans_each_have_every_call_once() -> None:
    done = subprocess.run(
        [warm_python(), "-c", _WITH_LANGSMITH], capture_output=True, text=True, check=False, timeout=180
    )

    assert (done.stdout.split(), done.stderr) == (["3", "1", "1", "3", "1"], "")
