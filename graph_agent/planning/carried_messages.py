"""The messages that hooks put into requests and that the history does not hold: where they stand, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from uuid import uuid4

from langchain_core.messages import AnyMessage

from graph_agent.planning.additions import Addition, additions, without_equals
from graph_agent.state.schema import Carried


class CarriedMessages:
    """What later requests of an input hold beside its history, for the reruns of one plan.

    Args:
        before: What earlier plans of the input have left.
        history: The conversation.
        request: The messages of the plan's first request.
    """

    def __init__(self, before: Sequence[Carried], history: Sequence[AnyMessage], request: Sequence[AnyMessage]) -> None:
        self._before = before
        self._history = history
        self._request = request
        self._kept: list[AnyMessage] = []

    def of(self, patched: Sequence[AnyMessage], keep: Sequence[AnyMessage]) -> list[Carried]:
        """What later requests hold after a rerun, in order of their places.

        Args:
            patched: The messages of the rerun; what they add to the plan's first request stays, and takes the place of
                what an earlier rerun of the plan has added.
            keep: Further messages to keep, beside those that were given for earlier reruns of the plan.
        """
        self._kept += keep
        found = additions(self._request, patched)
        rest = without_equals(self._kept, [message for addition in found for message in addition.messages])
        if rest:
            found.append(Addition(len(self._request), rest))
        pieces: list[Carried] = [{"at": self._at(one.before), "messages": self._named(one.messages)} for one in found]
        return sorted([*self._before, *pieces], key=itemgetter("at"))

    def _at(self, before: int) -> int:
        """The place in the history of what stands before one of the request's messages."""
        if before < len(self._request):
            places = {message.id: place for place, message in enumerate(self._history)}
            for message in self._request[before:]:
                if message.id in places:
                    return places[message.id]
        return len(self._history)

    def _named(self, messages: Sequence[AnyMessage]) -> list[AnyMessage]:
        """The messages with an id each that no other of the request has: requests may be cut at any message, by id."""
        taken = {message.id for message in self._request}
        return [
            one if one.id and one.id not in taken else one.model_copy(update={"id": str(uuid4())}) for one in messages
        ]
