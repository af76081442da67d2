"""A run that has ended is freed at once, without garbage collection."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.server import ServerSettings, create_app, of_file
from tests.support.agents import asks, echo
from tests.support.gates import until

AGENT = '{name: bench, model: "benchmarks.serve_model:SaysTheSame", description: Returns one text.}'
OF_A_RUN = {"InputRun", "Run", "RunHandle", "RunSpec", "ServerRun"}


def objects_of_runs() -> Counter[str]:
    """The number of objects of runs that exist, by class."""
    kinds = (type(each) for each in gc.get_objects())
    return Counter(each.__name__ for each in kinds if each.__name__ in OF_A_RUN and "graph_agent" in each.__module__)


@pytest.fixture
def alive() -> Iterator[Callable[[], list[str]]]:
    """Returns the objects of runs that were made since, and exist; nothing is collected meanwhile."""
    gc.collect()
    gc.disable()
    # Other tests of this process may have left runs that do not end.
    before = objects_of_runs()
    yield lambda: [*(objects_of_runs() - before)]
    gc.enable()


async def test_a_run_with_a_call_leaves_no_object_of_its_run(alive: Callable[[], list[str]]) -> None:
    model = ScriptedChatModel([asks(("1", "echo", {"text": "a"})), "Done."], cycle=True)
    session = Session(create_graph_agent(model, tools=[echo], checkpointer=InMemorySaver()), "s")
    await session.run("go")

    answers = [(await session.run("again")).answer for _ in range(3)]

    assert (answers, alive()) == (["Done."] * 3, [])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_served_request_leaves_no_object_of_its_run(
    tmp_path: Path, alive: Callable[[], list[str]], *, stream: bool
) -> None:
    (tmp_path / "agent.yaml").write_text(AGENT)
    app = create_app(of_file(tmp_path / "agent.yaml"), settings=ServerSettings(), db=f"sqlite:///{tmp_path}/s.db")
    body = {"model": "bench", "stream": stream, "messages": [{"role": "user", "content": "Go."}]}
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=120) as http:
            statuses = [(await http.post("/v1/chat/completions", json=body)).status_code for _ in range(3)]
            await until(lambda: not alive())  # the last run may still be at its end

    assert statuses == [200] * 3
