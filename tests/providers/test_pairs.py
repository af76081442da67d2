"""Two providers in one session: the second continues what the first has begun, and hands it back.

A pair is tested in two ways: by a fallback in the middle of a run, with a call of the first provider already done, and
by the model of a run's context. No request may be refused, and no reasoning may reach another provider.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import pytest_asyncio
from langchain_core.language_models import BaseChatModel
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, Session, create_graph_agent
from graph_agent.models.resolve import resolve_model
from tests.providers.emulator import Emulator
from tests.providers.exchange import Call, Fault, Reply, Request, Usage
from tests.providers.lab import clock, connect, weather
from tests.providers.row import Row
from tests.providers.rows import ROWS

pytestmark = pytest.mark.asyncio(loop_scope="module")

_RESULTS = {"weather": "Sunny in Paris, 21 degrees.", "clock": "It is 12:00 in UTC."}


class Pairs:
    """An emulator and a model for each row, on one event loop."""

    def __init__(self, rows: list[Row], stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.emulators = {row.name: stack.enter_context(Emulator(row, _brain(row))) for row in rows}
        self.models: dict[str, BaseChatModel] = {}
        for name, emulator in self.emulators.items():
            connect(emulator, monkeypatch)
            built = emulator.row.build(emulator.url)
            self.models[name] = resolve_model(built) if isinstance(built, str) else built

    def resolve(self, given: Any) -> BaseChatModel:
        """Return the model of a row by its name."""
        return self.models[given] if isinstance(given, str) else given

    def session(self, first: Row, **config: Any) -> Session[Any, Any]:
        """Return a session of a new agent with the model of a row."""
        agent = create_graph_agent(
            self.models[first.name],
            tools=[weather, clock],
            checkpointer=InMemorySaver(),
            resolve=self.resolve,
            config=LoopConfig(model_retries=0, **config),
        )
        return Session(agent, "s1")


def _brain(row: Row) -> Callable[[Request], Reply | Fault]:
    """A model that looks up what it is asked for; `fail` in a question makes it fail once its tool has run."""

    def brain(request: Request) -> Reply | Fault:
        question = next(message.text for message in reversed(request.messages) if message.role == "user")
        answered = request.messages[-1].role == "tool"
        if answered and f"fail {row.name}." in question and "clock" not in request.calls[-1].name:
            return Fault("server_error")
        if "Thanks" in question:
            return Reply("You are welcome.", reasoning=_thought(row))
        name = "clock" if "time" in question or (answered and "fail" in question) else "weather"
        if answered and request.calls[-1].name == name:
            return Reply(f"Answer of {row.name}.", reasoning=_thought(row))
        arguments = {"zone": "UTC"} if name == "clock" else {"city": "Paris"}
        usage = Usage(input=100, output=20)
        return Reply("I look.", (Call(name, arguments),), reasoning=_thought(row), usage=usage)

    return brain


def _thought(row: Row) -> str:
    return f"Thought of {row.name}." if "reasoning" not in row.limits else ""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pairs(request: pytest.FixtureRequest) -> AsyncIterator[Pairs]:
    """The emulators of all rows that the selected tests name."""
    names = {name for item in request.session.items for name in _rows_of(item)}
    with ExitStack() as stack, pytest.MonkeyPatch.context() as monkeypatch:
        yield Pairs([row for row in ROWS if row.name in names], stack, monkeypatch)


def _rows_of(item: pytest.Item) -> Iterator[str]:
    given = getattr(item, "callspec", None)
    for row in (given.params.get("first"), *given.params.get("others", ())) if given is not None else ():
        if isinstance(row, Row):
            yield row.name


def _cells() -> Iterator[Any]:
    local = [row for row in ROWS if row.in_make_test]
    for row in local:
        yield pytest.param(row, tuple(other for other in local if other is not row), id=f"{row.name}-sample")
    for row in ROWS:
        others = tuple(other for other in ROWS if other is not row)
        yield pytest.param(row, others, id=row.name, marks=pytest.mark.providers)


@pytest.mark.parametrize(("first", "others"), _cells())
async def test_another_provider_continues_by_fallback(pairs: Pairs, first: Row, others: tuple[Row, ...]) -> None:
    """The fallback happens between a call and the answer, and the next run is the first provider's again."""
    failed: dict[str, Any] = {}
    for second in others:
        started = pairs.emulators[first.name], pairs.emulators[second.name]
        for emulator in started:
            emulator.exchanges.clear()
        session = pairs.session(first, fallback_models=[pairs.models[second.name]])

        done = await session.run(f"What is the weather in Paris? Please fail {first.name}.")
        thanks = await session.run("Thanks!")

        seen = (list(done.results.values()), done.answer, thanks.answer)
        wanted = (list(_RESULTS.values()), f"Answer of {second.name}.", "You are welcome.")
        problems = _refused(started, expected=first.faults["server_error"].id) + _leaked(started)
        if seen != wanted or problems:
            failed[second.name] = problems or seen
    assert failed == {}


@pytest.mark.parametrize(("first", "others"), _cells())
async def test_another_provider_continues_by_the_context(pairs: Pairs, first: Row, others: tuple[Row, ...]) -> None:
    """A run with another model follows a whole run of the first provider, which continues after it."""
    failed: dict[str, Any] = {}
    for second in others:
        started = pairs.emulators[first.name], pairs.emulators[second.name]
        for emulator in started:
            emulator.exchanges.clear()
        session = pairs.session(first)

        sunny = await session.run("What is the weather in Paris?")
        noon = await session.run("What time is it?", context={"model": second.name})
        thanks = await session.run("Thanks!")

        seen = (sunny.answer, noon.answer, thanks.answer)
        wanted = (f"Answer of {first.name}.", f"Answer of {second.name}.", "You are welcome.")
        problems = _refused(started) + _leaked(started)
        if seen != wanted or problems:
            failed[second.name] = problems or seen
    assert failed == {}


def _refused(emulators: tuple[Emulator, Emulator], expected: str = "") -> list[str]:
    """Return what the providers refused, and errors of the emulators."""
    return [
        f"{emulator.row.name}: {refusal.rule} {json.dumps(refusal.body)[:300]}"
        for emulator in emulators
        for refusal in emulator.refusals
        if refusal.rule != expected
    ] + [f"{emulator.row.name}: {error!r}" for emulator in emulators for error in emulator.errors]


def _leaked(emulators: tuple[Emulator, Emulator]) -> list[str]:
    """Return the names of providers that were sent the reasoning of the other one."""
    one, other = (emulator.row for emulator in emulators)
    if one.host and one.host == other.host:
        return []
    return [
        f"{emulator.row.name} was sent the reasoning of {maker.name}"
        for emulator, maker in zip(emulators, (other, one), strict=True)
        if any(f"Thought of {maker.name}." in json.dumps(request.body) for request in emulator.requests)
    ]
