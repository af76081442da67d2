"""Proposes the calls that followed in earlier inputs of the agent, without a model: `predict="table"`.

What followed the tools of a wave is counted by the shape of each call: its tool, and for each argument where its value
stood, in the user's message or in an earlier result. If a shape has followed in most inputs, and all its values are
known now, the call is proposed while the model is asked for the plan.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from langgraph.store.base import BaseStore

from graph_agent.base.calls import new_call_id
from graph_agent.base.history.call_events import value_of
from graph_agent.base.history.events import SUCCESSES, StoredEvent
from graph_agent.base.types import Call
from graph_agent.core.execution.overlap.call_table import CallTable, Context
from graph_agent.core.execution.overlap.value_references import Reference, ValueReferences, for_every, is_for_every

MOST_ARGUMENT_VALUES = 20
"""Maximum values in the arguments of a call; a call with more is not learned."""
MOST_CONSTANT_CHARS = 64
"""Maximum characters of an argument that stands nowhere in the input; a call with a longer one is not learned."""
_NO_SHAPE: Any = object()
"""Result of `_shape` for a call that is not learned."""


class LearnedCalls:
    """Learns which calls follow in one input, and proposes calls that the table of earlier inputs makes likely.

    Args:
        table: Counts of the calls that followed in earlier inputs.
        store: The Store that keeps the table; None without one.
        agent: Name of the agent.
    """

    def __init__(self, table: CallTable, store: BaseStore | None, agent: str) -> None:
        self._table = table
        self.where = (store, agent)
        """The Store that keeps the table, and the name of the agent in it."""
        self._step = -1
        """Number of plans of the input whose results were read.

        -1 if its begin was not seen, so that nothing is learned.
        """
        self._context: Context = ()
        self._values = ValueReferences()

    async def propose(self, step: int, texts: Sequence[str], wave: Callable[[], Sequence[StoredEvent]]) -> list[Call]:
        """Take in the results of the newest wave, count its calls, and return the calls that are likely to follow.

        Empty if this step was proposed before, e.g. because a request is repeated, if a step was missed, or if another
        run began the input, which is then not learned.

        Args:
            step: Number of plans of the input so far.
            texts: The user's messages; used only at step 0.
            wave: Returns the events of the newest plan and of its calls; not called at step 0.
        """
        if step == 0 and self._step != 0:
            self._step, self._context, self._values = 0, (), ValueReferences()
            for text in texts:
                self._values.add_text(text, "user")
        elif step > 0 and self._step == step - 1:
            self._step = step
            await self._read(wave())
        else:
            # The same request once more, or an input that another run has begun.
            return []
        followers = await self._table.followers(self._context, *self.where)
        return [call for shape in followers.likely() for call in self._calls_of(shape)]

    async def end(self, step: int) -> None:
        """Count that the input ended without a further call, if `step` is the step that was proposed last.

        Then learn no more from this input.
        """
        if step == self._step:
            self._step = -1
            await self._table.count(self._context, (), *self.where)

    async def _read(self, wave: Sequence[StoredEvent]) -> None:
        """Count the calls of a wave as followers of the wave before it, and add its successful results to the known
        values. Calls that waited for others of the same wave are not counted. The names of the tools that succeeded
        become the context of the next wave.
        """
        waits = {call["id"] for entry in wave if entry["type"] == "plan" for call in entry["calls"] if "needs" in call}
        # A call that waited has values of the same wave, which cannot be known before it.
        made = [entry for entry in wave if entry["type"] == "tool_call" and entry["id"] not in waits]
        await self._table.count(self._context, self._shapes_of(made), *self.where)
        numbers = Counter[str]()
        tools: set[str] = set()
        for entry in wave:
            if entry["type"] == "tool_result" and entry["status"] in SUCCESSES:
                name = entry["name"]
                tools.add(name)
                self._values.add_result(name, numbers[name], value_of(entry))
                numbers[name] += 1
        # Sorted, because the calls of a wave end in any order.
        self._context = tuple(sorted(tools))

    def _shapes_of(self, calls: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the different shapes of calls (with places of the input in place of values) as texts, without calls
        that are not learned.

        Calls that differ only in which element of a list they use have one shape, which stands for every element. So
        has a call that uses the only element of a list.
        """
        shapes = [(call["name"], self._shape(call["arguments"])) for call in calls]
        single = dict.fromkeys(_as_text(name, shape) for name, shape in shapes if shape is not _NO_SHAPE)
        general: dict[str, list[str]] = {}
        for text in single:
            name, shape = json.loads(text)
            general.setdefault(_as_text(name, _for_every(shape)), []).append(text)
        return [every if len(ones) > 1 or self._has_one(every) else ones[0] for every, ones in general.items()]

    def _has_one(self, text: str) -> bool:
        """Whether a shape for every element of a list has a list of one element now; `text` is the shape."""
        every = [each for each in _references(json.loads(text)[1]) if is_for_every(each)]
        return bool(every) and all(len(self._values.values_at(each)) == 1 for each in every)

    def _shape(self, arguments: Any) -> Any:
        """Return arguments with each value replaced by the place where it stands in the input: `{"at": <reference>}`,
        or `{"constant": <value>}` for a value that stands nowhere. Objects become `{"object": …}`, lists `{"list": …}`.

        `_NO_SHAPE` for too many values, or for a constant text that is too long.
        """
        count = itertools.count()

        def shaped(value: Any) -> Any:
            if isinstance(value, dict):
                return {"object": {key: shaped(item) for key, item in value.items()}}
            if isinstance(value, list):
                return {"list": [shaped(item) for item in value]}
            if next(count) >= MOST_ARGUMENT_VALUES:
                raise _TooLongError
            if (reference := self._values.reference_to(value)) is not None:
                return {"at": reference}
            if isinstance(value, str) and len(value) > MOST_CONSTANT_CHARS:
                raise _TooLongError
            return {"constant": value}

        try:
            return shaped(arguments)
        except _TooLongError:
            return _NO_SHAPE

    def _calls_of(self, text: str) -> Iterator[Call]:
        """Yield the calls that a shape (a call with places of the input in place of values) stands for now, with the
        values at its places; none if a place has no value.

        A shape with references to every element of a list gives one call for each element; with several lists, as many
        as the shortest has.

        Args:
            text: The shape.
        """
        name, shape = json.loads(text)
        references = dict.fromkeys(_references(shape))
        found = {reference: self._values.values_at(reference) for reference in references}
        count = min((len(values) for reference, values in found.items() if is_for_every(reference)), default=1)
        if all(found.values()):
            for at in range(count):
                values = {each: of[at] if is_for_every(each) else of[0] for each, of in found.items()}
                yield Call(id=new_call_id(), name=name, arguments=_filled(shape, values))


class _TooLongError(Exception):
    """Raised within `_shape` for a call with too many values, or one that is too long."""


def _as_text(name: str, shape: Any) -> str:
    """Return a shape as the text by which it is counted: JSON of the tool's name and the shape of its arguments."""
    return json.dumps([name, shape], sort_keys=True)


def _references(shape: Any) -> Iterator[Reference]:
    """Yield the places (references) that occur in the shape of arguments, in order."""
    if "at" in shape:
        yield tuple(shape["at"])
    elif "constant" not in shape:
        for inner in shape["object"].values() if "object" in shape else shape["list"]:
            yield from _references(inner)


def _for_every(shape: Any) -> Any:
    """Return the shape of arguments with each reference to one element of a list replaced by one to every element."""
    if "object" in shape:
        return {"object": {key: _for_every(item) for key, item in shape["object"].items()}}
    if "list" in shape:
        return {"list": [_for_every(item) for item in shape["list"]]}
    return {"at": for_every(tuple(shape["at"]))} if "at" in shape else shape


def _filled(shape: Any, values: Mapping[Reference, Any]) -> Any:
    """Return arguments made from their shape; `values` is reference → the value that stands there."""
    if "object" in shape:
        return {key: _filled(item, values) for key, item in shape["object"].items()}
    if "list" in shape:
        return [_filled(item, values) for item in shape["list"]]
    return values[tuple(shape["at"])] if "at" in shape else shape["constant"]
