"""Two providers in one session: the second continues what the first has begun, and hands it back.

The second takes over by a fallback in the middle of a run, when a call of the first has been done; the next run is the
first provider's again, and a third run the second's, by its context. No request may be refused, and no reasoning may
reach another provider.
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
from tests.providers.exchange import Call, Fault, Reply, Request
from tests.providers.lab import clock, connect, weather
from tests.providers.row import Row
from tests.providers.rows import PAIRED, ROWS, SAMPLE

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    # The clients of third parties warn, and leave sessions open.
    *(
        pytest.mark.filterwarnings(f"ignore::{name}")
        for name in ("DeprecationWarning", "ResourceWarning", "pytest.PytestUnraisableExceptionWarning")
    ),
]

_WEATHER, _TIME, _THANKS = "What is the weather in Paris?", "What time is it?", "Thanks!"
_SUNNY, _NOON = "Sunny in Paris, 21 degrees.", "It is 12:00 in UTC."


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
    """A model that looks up what it is asked for; one that is asked to fail does, once its tool has run."""

    def brain(request: Request) -> Reply | Fault:
        at, question = max((request.text.rfind(each), each) for each in (_WEATHER, _TIME, _THANKS))
        since = request.text[at:]
        if question == _THANKS:
            return Reply(f"{row.name} thanks too.", reasoning=_thought(row))
        if question == _WEATHER and _SUNNY not in since:
            return _called(row, request, "weather", city="Paris")
        if question == _WEATHER and f"fail {row.name}." in since:
            return Fault("server_error")
        if _NOON not in since:
            return _called(row, request, "clock", zone="UTC")
        return Reply(f"Answer of {row.name}.", reasoning=_thought(row))

    return brain


def _called(row: Row, request: Request, name: str, **arguments: str) -> Reply:
    if request.tools:
        return Reply("I look.", (Call(name, arguments),), reasoning=_thought(row))
    return Reply(json.dumps({"tool_calls": [{"name": name, "arguments": arguments}]}), reasoning=_thought(row))


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


def _cells() -> list[Any]:
    cells: list[Any] = []
    named = [row for name in PAIRED for row in ROWS if row.name == name]
    assert len(named) == len(PAIRED)
    for rows, sample in ((ROWS, True), (named, False)):
        chosen = [row for row in rows if row.name in SAMPLE] if sample else rows
        for row in chosen:
            others = tuple(other for other in chosen if other is not row)
            marks = () if sample else (pytest.mark.providers,)
            cells.append(pytest.param(row, others, id=f"{row.name}-sample" if sample else row.name, marks=marks))
    return cells


@pytest.mark.parametrize(("first", "others"), list(_cells()))
async def test_another_provider_takes_part_in_a_session(pairs: Pairs, first: Row, others: tuple[Row, ...]) -> None:
    failed: dict[str, Any] = {}
    for second in others:
        both = pairs.emulators[first.name], pairs.emulators[second.name]
        for emulator in both:
            emulator.exchanges.clear()
            emulator.errors.clear()
        session = pairs.session(first, fallback_models=[pairs.models[second.name]])

        mixed = await session.run(f"{_WEATHER} Please fail {first.name}.")
        own = await session.run(_TIME)
        thanks = await session.run(_THANKS, context={"model": second.name})

        seen = (list(mixed.results.values()), mixed.answer, own.answer, thanks.answer)
        wanted = (
            [_SUNNY, _NOON],
            f"Answer of {second.name}.",
            f"Answer of {first.name}.",
            f"{second.name} thanks too.",
        )
        problems = _refused(both, expected=first.faults["server_error"].id) + _leaked(both)
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
