"""An agent before the emulator of one row, for the situations."""

from __future__ import annotations

import json
import logging
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, RunResult, Session, create_graph_agent
from graph_agent.calls import parse_tool_calls
from graph_agent.models.resolve import resolve_model
from graph_agent.models.wire.examples import INVENTED_NAMES
from tests.providers.emulator import Emulator
from tests.providers.exchange import Brain, Call, Fault, Raw, Refusal, Reply, Request
from tests.providers.row import Ability, Row

ANSWER = "It is sunny in Paris."
WEATHER = "What is the weather in Paris?"


@tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"Sunny in {city}, 21 degrees."


@tool
def clock(zone: str) -> str:
    """Return the time in a zone."""
    return f"It is 12:00 in {zone}."


_EXAMPLE = re.compile(f"(?:example |(?:{'|'.join(INVENTED_NAMES)})$)")
"""Matches arguments and results of example turns in text mode."""
Step = Reply | Fault | Refusal | Raw | Callable[[Request], Reply]


def in_order(*replies: Step) -> Brain:
    """Return a model that gives these replies, one to each request that its provider accepts."""
    left = list(replies)

    def brain(request: Request) -> Reply | Fault | Refusal | Raw:
        assert left, f"no reply is left for {request.messages[-1].text[:300]!r}"
        reply = left.pop(0)
        return reply(request) if callable(reply) else reply

    return brain


def connect(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the host name of an emulator's row lead to this machine, and set the row's environment."""
    for name, value in emulator.row.environment(emulator.url).items():
        monkeypatch.setenv(name, value)
    if emulator.row.host:
        real, host = socket.getaddrinfo, emulator.row.host

        def getaddrinfo(name: Any, *args: Any, **options: Any) -> Any:
            shown = name.decode() if isinstance(name, bytes) else name
            return real("127.0.0.1" if shown == host else name, *args, **options)

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


class _ListHandler(logging.Handler):
    def __init__(self, texts: list[str]) -> None:
        super().__init__()
        self._texts = texts

    def emit(self, record: logging.LogRecord) -> None:
        self._texts.append(record.getMessage())


class Lab:
    """Builds agents whose model is the row's, and reads what its provider received."""

    def __init__(self, row: Row, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.row = row
        self.folder = folder
        """An empty folder of the test's own."""
        self.emulator = Emulator(row, in_order())
        self.expected: set[str] = set()
        """Ids of the rules and failures that the situation itself causes."""
        self.saver = InMemorySaver()
        """A saver for several agents of the same session."""
        self._monkeypatch = monkeypatch
        self.log: list[str] = []
        """What the developer reads in the log."""
        self._handler = _ListHandler(self.log)

    def __enter__(self) -> Lab:
        logging.getLogger("graph_agent").addHandler(self._handler)
        self.emulator.__enter__()
        self.connect(self.emulator)
        return self

    def __exit__(self, *given: Any) -> None:
        self.emulator.__exit__(None, None, None)
        logging.getLogger("graph_agent").removeHandler(self._handler)

    def connect(self, emulator: Emulator) -> None:
        """Let the host name of an emulator's row lead to this machine, and set the row's environment."""
        connect(emulator, self._monkeypatch)

    def model(self, *, whole: bool = False) -> BaseChatModel:
        """Return the row's model; with `whole`, its replies are not streamed."""
        model = self.model_of(self.emulator)
        if whole:
            model.disable_streaming = True
        return model

    def model_of(self, emulator: Emulator) -> BaseChatModel:
        """Return the model of an emulator's row."""
        self.connect(emulator)
        built = emulator.row.build(emulator.url)
        return resolve_model(built) if isinstance(built, str) else built

    def session(
        self,
        *replies: Step,
        brain: Brain | None = None,
        model: Any = None,
        whole: bool = False,
        config: Mapping[str, Any] | None = None,
        session_id: str = "s1",
        **agent: Any,
    ) -> Session[Any, Any]:
        """Return a session of a new agent, whose model gives the replies in order, or those of a function."""
        if replies or brain is not None:
            given = brain or in_order(*replies)
            self.emulator.brain = given if self.can("tools") else _writing_calls(given)
        agent.setdefault("checkpointer", InMemorySaver())
        settings = LoopConfig(**{"model_retries": 1, **(config or {})})
        chosen = self.model(whole=whole) if model is None else model
        return Session(create_graph_agent(chosen, config=settings, **agent), session_id)

    def can(self, ability: Ability) -> bool:
        """Whether the provider has an ability."""
        return self.row.can(ability)

    @property
    def requests(self) -> list[Request]:
        """The requests that the provider accepted."""
        return self.emulator.requests

    def check(self) -> None:
        """Fail if the provider refused a request that the situation did not want refused, or the emulator failed."""
        assert self.emulator.errors == []
        learned = set(self.row.learned)
        refused = []
        for refusal in self.emulator.refusals:
            if refusal.rule in learned:
                learned.remove(refusal.rule)
            elif refusal.rule not in self.expected:
                refused.append(f"{refusal.rule} (HTTP {refusal.status}): {refusal.body}")
        assert refused == []


def calls(*given: tuple[str, Mapping[str, Any]], text: str = "", **fields: Any) -> Reply:
    """Return a reply with calls, each a name and its arguments."""
    return Reply(text, tuple(Call(name, arguments) for name, arguments in given), **fields)


def asks_for_answer(request: Request) -> bool:
    """Whether a request is for the final answer, in which no calls are wanted."""
    return any("provide your final response to the user" in message.text for message in request.messages[-2:])


async def streamed(session: Session[Any, Any], text: Any, **options: Any) -> tuple[str, RunResult[Any]]:
    """Return the joined tokens of a run, and its result."""
    tokens: list[str] = []
    result: RunResult[Any] | None = None
    async for part in session.stream(text, **options):
        if part.type == "token":
            tokens.append(part.text)
        elif part.type == "done":
            result = part.result
    assert result is not None
    return "".join(tokens), result


def outcome(result: RunResult[Any]) -> tuple[str, str, list[Any]]:
    """Return status, answer and results of a run."""
    return str(result.status), result.answer, list(result.results.values())


def called(requests: Sequence[Request]) -> list[tuple[str, Any]]:
    """Return name and arguments of each call in the history of the newest request, native or written as text.

    The calls of example turns are left out.
    """
    if native := requests[-1].calls:
        return [(call.name, call.parsed()) for call in native]
    texts = [message.text for message in requests[-1].messages if message.role == "assistant"]
    written = [(call["name"], call["arguments"]) for text in texts for call in parse_tool_calls(text)]
    return [(name, given) for name, given in written if not any(_EXAMPLE.match(str(value)) for value in given.values())]


def results_in(request: Request) -> list[str]:
    """Return the texts of the results in a request, native or written as text; without those of example turns."""
    if native := request.results:
        return [message.text for message in native]
    written = re.compile(r"<tool_result[^>]*>\n?(.*?)\n?</tool_result>", re.DOTALL)
    texts = [text for message in request.messages if message.role == "user" for text in written.findall(message.text)]
    return [text for text in texts if not _EXAMPLE.match(text)]


def _writing_calls(brain: Brain) -> Brain:
    """Return the same model for a server that takes no tools: it writes its calls as text."""

    def writes(request: Request) -> Reply | Fault | Refusal | Raw:
        reply = brain(request)
        if not isinstance(reply, Reply) or not reply.calls:
            return reply
        listed = [{"name": call.name, "arguments": call.parsed()} for call in reply.calls]
        return replace(reply, text=json.dumps({"tool_calls": listed}), calls=())

    return writes
