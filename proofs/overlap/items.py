"""The questions of the hotel example, of a research and of BFCL, each with the calls that answer it."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from examples.hotel.answer import write_answer
from examples.hotel.dates import resolve_phrase
from examples.hotel.holidays_calendar import resolve_holiday
from examples.hotel.planner import AVAILABILITY, BOOKING, DATE_HINT, HOLIDAY, TOOLS, Call, Outcome
from examples.hotel.question import read_questions
from examples.hotel.rooms import CURRENCY, Rooms
from examples.hotel.wave_plan import make_plan

ROOT = Path(__file__).parents[2]
_TODAY = date(2026, 11, 21)
_REFERENCE = re.compile(r"\$\{(\w+)(?:\.(\w+))?\}")
_HOTEL = {
    HOLIDAY: "resolve_holiday",
    DATE_HINT: "resolve_date_hint",
    AVAILABILITY: "get_availability",
    BOOKING: "book_room",
}
HOTEL_QUESTIONS = (
    "Check availability for January 17-19",
    "one night in Hanukkah",
    "Check availability for Hanukkah and also next weekend",
)


@dataclass(frozen=True)
class Step:
    """One call of an item.

    Args:
        id: Its id, unique in the item.
        tool: The name of its tool.
        args: Its arguments, with `${id.field}` for a value of another call's result.
        result: Its result.
        after: Ids of the calls that it needs without a reference.
        reads: Whether its tool only reads.
        slow: Whether it takes the seconds of a slow call.
    """

    id: str
    tool: str
    args: Mapping[str, Any]
    result: Any
    after: Sequence[str] = ()
    reads: bool = True
    slow: bool = False

    @property
    def needs(self) -> list[str]:
        """Ids of the calls that it needs."""
        return list(dict.fromkeys([*self.after, *(id_ for id_, _ in _REFERENCE.findall(json.dumps(self.args)))]))


@dataclass(frozen=True)
class Item:
    """A question with the calls that answer it."""

    suite: str
    question: str
    steps: Sequence[Step]
    answer: str
    values: dict[str, Any] = field(default_factory=dict, init=False)
    """Id of a call → its result."""

    def __post_init__(self) -> None:
        """Index the results."""
        self.values.update((step.id, step.result) for step in self.steps)

    @property
    def levels(self) -> list[list[Step]]:
        """The calls by level: each needs only those of earlier levels."""
        by_id = {step.id: step for step in self.steps}
        order = TopologicalSorter({step.id: step.needs for step in self.steps})
        order.prepare()
        levels: list[list[Step]] = []
        while order.is_active():
            ready = order.get_ready()
            levels.append([step for step in self.steps if step.id in ready])
            order.done(*ready)
        assert sum(map(len, levels)) == len(by_id), self
        return levels

    @property
    def is_chain(self) -> bool:
        """Whether at least three reading calls depend on each other, and all calls read."""
        return len(self.levels) >= 3 and all(step.reads for step in self.steps)

    def arguments(self, step: Step) -> dict[str, Any]:
        """Return the arguments of a call with the values of its references."""
        return filled(step.args, self.values)


def filled(args: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with the values of their references.

    Args:
        args: The arguments; each reference is in a text of the outermost object.
        values: Id of a call → its result.
    """

    def value(found: re.Match[str]) -> Any:
        result = values[found[1]]
        return result if found[2] is None else result[found[2]]

    def fill(given: Any) -> Any:
        if not isinstance(given, str):
            return given
        whole = _REFERENCE.fullmatch(given)
        return _REFERENCE.sub(lambda found: str(value(found)), given) if whole is None else value(whole)

    return {name: fill(given) for name, given in args.items()}


def hotel() -> Iterator[Item]:
    """Yield the demo's questions, with the calls that the example's rules plan for them, and their results."""
    offered = {tool: _HOTEL[tool] for tool in TOOLS}
    with tempfile.TemporaryDirectory() as folder:
        rooms = Rooms(Path(folder) / "hotel.db", lambda: _TODAY)
        for question in HOTEL_QUESTIONS:
            request = read_questions([question], _TODAY)
            plan = make_plan(request, [], offered, "dag", 64, _TODAY)
            item = Item("hotel", question, [], "")
            steps: list[Step] = []
            done: list[Outcome] = []
            for call in plan["tools"]:
                needs = [step.id for step in steps if step.tool != "get_availability"]
                has_dates = call["tool"] == "get_availability" and "${" not in json.dumps(call["args"])
                # The days that the rules have computed themselves are those of the call before.
                after = needs[-1:] if has_dates else []
                step = Step(call["id"], call["tool"], call["args"], None, after)
                arguments = item.arguments(step)
                result = _hotel_result(step.tool, arguments, rooms)
                tool = next(tool for tool, name in _HOTEL.items() if name == step.tool)
                item.values[step.id] = result
                steps.append(Step(step.id, step.tool, step.args, result, after))
                done.append(Outcome(Call(tool, arguments), result, None))
            yield Item("hotel", question, steps, write_answer(request, done))


def _hotel_result(tool: str, arguments: dict[str, Any], rooms: Rooms) -> dict[str, Any]:
    if tool == "resolve_holiday":
        found: dict[str, Any] = resolve_holiday(today=_TODAY, **arguments).model_dump(mode="json")
        return found
    if tool == "resolve_date_hint":
        check_in, check_out = resolve_phrase(today=_TODAY, **arguments)
        return {"check_in": check_in.isoformat(), "check_out": check_out.isoformat()}
    first, last = (date.fromisoformat(arguments[name]) for name in ("check_in", "check_out"))
    free = rooms.free(first, last, arguments.get("guests", 1))
    prices = [{"price_per_night": each.price, "total": each.price * (last - first).days} for each in free]
    offers = [
        {"room": each.id, "name": each.name, "sleeps": each.sleeps, **price}
        for each, price in zip(free, prices, strict=True)
    ]
    return {**arguments, "currency": CURRENCY, "rooms": offers}


def research() -> list[Item]:
    """Return questions whose pages lead to each other."""
    return [
        Item(
            "research",
            "How many people live in the capital of the country where the inventor of the dynamo was born?",
            [
                Step("find", "search", {"query": "inventor of the dynamo"}, {"url": "https://wiki.example/jedlik"}),
                Step("who", "read_page", {"url": "${find.url}"}, {"name": "Ányos Jedlik", "born_in": "Hungary"}),
                Step("land", "search", {"query": "capital of ${who.born_in}"}, {"url": "https://wiki.example/hungary"}),
                Step("city", "read_page", {"url": "${land.url}"}, {"capital": "Budapest"}),
                Step("people", "search", {"query": "population of ${city.capital}"}, {"population": 1685000}),
            ],
            "Ányos Jedlik was born in Hungary, whose capital Budapest has 1,685,000 inhabitants.",
        ),
        Item(
            "research",
            "Does a heat pump pay off against gas in an old house in Germany?",
            [
                Step("energy", "search", {"query": "heat pump energy"}, {"url": "https://grid.example/heat-pumps"}),
                Step("costs", "search", {"query": "heat pump costs"}, {"url": "https://install.example/costs"}),
                Step("gas", "search", {"query": "gas price Germany"}, {"url": "https://prices.example/gas"}),
                Step("a", "read_page", {"url": "${energy.url}"}, {"factor": 3.1}),
                Step("b", "read_page", {"url": "${costs.url}"}, {"eur": 12600}),
                Step("c", "read_page", {"url": "${gas.url}"}, {"eur_kwh": 0.11}),
                Step(
                    "years",
                    "payback",
                    {"factor": "${a.factor}", "eur": "${b.eur}", "eur_kwh": "${c.eur_kwh}"},
                    {"years": 11},
                ),
            ],
            "It pays off after eleven years, at a price of 12,600 EUR after subsidies and of 0.11 EUR a kWh of gas.",
        ),
        Item(
            "research",
            "Which of the two papers that introduced ReAct and LLMCompiler is cited more?",
            [
                Step("r", "search", {"query": "ReAct: reasoning and acting"}, {"id": "2210.03629"}),
                Step("l", "search", {"query": "LLMCompiler parallel function calling"}, {"id": "2312.04511"}),
                Step("rc", "citations", {"paper": "${r.id}"}, {"count": 5210}),
                Step("lc", "citations", {"paper": "${l.id}"}, {"count": 190}),
                Step("more", "compare", {"first": "${rc.count}", "second": "${lc.count}"}, {"larger": 5210}),
                Step("page", "read_page", {"url": "https://arxiv.org/abs/${r.id}"}, {"title": "ReAct"}, ["more"]),
            ],
            "ReAct is cited more: 5,210 times against 190.",
        ),
    ]


def beside_slow_call() -> list[Item]:
    """Return the questions of `research`, each with one slow call more, whose result only the answer needs."""
    slow = Step("slow", "ask_archive", {"topic": "the question"}, {"found": "nothing more"}, slow=True)
    return [Item("research", item.question, [*item.steps, slow], item.answer) for item in research()]


def bfcl(python: Path, most: int | None) -> Iterator[Item]:
    """Yield items of BFCL with several calls, as `proofs.suites.bfcl_calls` prints them.

    Args:
        python: The Python of the environment with BFCL.
        most: Items of each category; None for all.
    """
    command = [str(python), "-m", "proofs.suites.bfcl_calls", *([] if most is None else [str(most)])]
    found = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    for line in found.stdout.splitlines():
        item = json.loads(line)
        steps = [Step(**step) for step in item["steps"]]
        yield Item(item["suite"], item["question"], steps, item["answer"])
