"""Model clients send each request once: retries are the loop's alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from langchain_google_genai import ChatGoogleGenerativeAI
from pydantic import PrivateAttr

from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.models.wire.client_retries import without_client_retries
from tests.support.agents import echo, says
from tests.support.openai_stub import Failure, StubFactory, openai_stub

__all__ = ["openai_stub"]


@contextmanager
def refusing_server() -> Iterator[tuple[str, list[str]]]:
    """A server that answers 503 to every request; yields its address and the paths of the requests so far."""
    paths: list[str] = []

    class Refusal(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            paths.append(self.path)
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.send_response(503)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *_: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusal) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", paths
        finally:
            server.shutdown()
            thread.join()


DOWN = Failure(503, "Try later.", type="server_error", headers={"retry-after": "0"})


@pytest.mark.parametrize("client_retries", [None, 2])
async def test_the_clients_own_retries_are_off(openai_stub: StubFactory, client_retries: int | None) -> None:
    stub = openai_stub(DOWN, DOWN, DOWN, DOWN, DOWN, DOWN)
    async with stub.chat_model(max_retries=client_retries) as model:
        graph = create_graph_agent(model, tools=[echo], config=LoopConfig(model_retries=1))
        result = await graph.ainvoke(says("hi"))
        theirs = (model.max_retries, model.root_async_client.max_retries)

    assert (result["status"], len(stub.requests), theirs) == ("FAILED", 2, (client_retries, 2))


class Client:
    def __init__(self, max_retries: int) -> None:
        self.max_retries = max_retries

    def with_options(self, *, max_retries: int) -> Client:
        return Client(max_retries)


class Other(ScriptedChatModel):
    """Holds a client in a field, in a private attribute, in a cached property and in an attribute that is none."""

    max_retries: int = 6
    client: Any = None
    _private: Any = PrivateAttr(default_factory=lambda: Client(6))

    @cached_property
    def cached(self) -> Client:
        return Client(self.max_retries)


def test_each_client_of_a_copy_has_no_retries_and_other_attributes_stay() -> None:
    theirs = Other(responses=["Hi."], client=Client(6))
    object.__setattr__(theirs, "_use_vertexai", False)
    object.__setattr__(theirs, "_other_client", Client(6))
    before = theirs.cached

    ours: Any = without_client_retries(theirs)

    models: list[Any] = [theirs, ours]
    clients = [[each.client, each._private, each.cached, each._other_client] for each in models]
    assert (
        [[client.max_retries for client in each] for each in clients],
        (theirs.max_retries, ours.max_retries),
        theirs.cached is before,
        ours._use_vertexai,
        type(ours),
    ) == ([[6] * 4, [0] * 4], (6, 0), True, False, Other)


def test_a_client_without_a_field_for_retries_is_replaced() -> None:
    class Bare(ScriptedChatModel):
        client: Any = None

    theirs = Bare(responses=["Hi."], client=Client(6))

    ours: Any = without_client_retries(theirs)

    assert (theirs.client.max_retries, ours.client.max_retries) == (6, 0)


@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")  # of Google's package
async def test_a_request_of_gemini_reaches_its_server_once() -> None:
    with refusing_server() as (url, paths):
        model = ChatGoogleGenerativeAI(model="gemini-2.5-flash", api_key="k", base_url=url, max_retries=6)
        graph = create_graph_agent(model, tools=[echo], config=LoopConfig(model_retries=0))
        result = await graph.ainvoke(says("hi"))

    assert (result["status"], [path.partition(":")[2].partition("?")[0] for path in paths]) == (
        "FAILED",
        ["streamGenerateContent"],
    )


def test_the_retries_of_boto3_are_off_in_a_copy_only() -> None:
    botocore = pytest.importorskip("botocore.session", reason="boto3 is in the environment of `make providers`")
    with refusing_server() as (url, paths):
        session = botocore.get_session()
        session.set_credentials("a", "b")
        theirs = session.create_client("bedrock-runtime", region_name="us-east-1", endpoint_url=url)

        class Bedrock(ScriptedChatModel):
            client: Any = None

        model = Bedrock(responses=["Hi."], client=theirs)
        counts = []
        for client in (without_client_retries(model).client, theirs):  # type: ignore[attr-defined]  # of the class above
            with pytest.raises(Exception, match="503"):
                client.converse(modelId="m", messages=[{"role": "user", "content": [{"text": "hi"}]}])
            counts.append(len(paths))
            paths.clear()
        theirs.close()

    assert (counts[0], counts[1] > 1) == (1, True)


def test_a_model_without_retries_is_taken_as_it_is() -> None:
    model = ScriptedChatModel(["Hi."])

    assert without_client_retries(model) is model
