"""A caller's sessions, looked at and acted on from outside their runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack
from typing import Any

from langgraph.types import Command, StateSnapshot
from pydantic import SecretStr

from graph_agent._internal.text import plain
from graph_agent.errors import InputError, SessionBusyError
from graph_agent.runs.registry import inbox_of, kept_idle
from graph_agent.server.admission.keys import Caller
from graph_agent.server.admission.problems import ProblemError
from graph_agent.server.chat.active_runs import Runs
from graph_agent.server.chat.run import Ended, Part, Running
from graph_agent.server.chat.turns import Turn
from graph_agent.server.process.host import Host
from graph_agent.server.sessions.following import follow
from graph_agent.session.history import SessionMemory, list_threads
from graph_agent.session.interrupts import answers_by_id
from graph_agent.session.results import open_interrupts, run_result
from graph_agent.session.session import Session
from graph_agent.tools.client import CLIENT_CALL


class Sessions:
    """One caller's sessions.

    Args:
        runs: The server's runs.
        caller: Whose sessions they are; any other's are not there.
    """

    def __init__(self, runs: Runs, caller: Caller) -> None:
        self._runs = runs
        self._host: Host = runs.host
        self._caller = caller
        self._memory = SessionMemory(self._host.kept)

    async def ids(self, limit: int | None, after: str | None) -> list[str]:
        """The caller's sessions, the one begun last first.

        Args:
            limit: How many at most; None for all.
            after: Only those behind this one; None to begin with the first.

        Raises:
            ProblemError: When there is no session `after`.
        """
        behind = self._caller.thread(after) if after is not None else None
        try:
            threads = await list_threads(self._host.saver, group=self._caller.thread(""), after=behind, limit=limit)
        except KeyError:
            raise ProblemError("not_found", f"There is no session {after!r}.", param="after") from None
        return [id_ for thread in threads if (id_ := self._caller.session(thread)) is not None]

    async def events(self, session_id: str, types: list[str], after: int) -> list[dict[str, Any]]:
        """Events of a session, oldest first.

        Args:
            session_id: The session.
            types: Types of events; empty for all.
            after: Only those with a higher `seq`.

        Raises:
            ProblemError: When there is no such session.
        """
        await self._check(session_id)
        return await self._events(session_id, types, after)

    async def follow(
        self, session_id: str, types: list[str], after: int, keepalive_s: float
    ) -> AsyncGenerator[str, None]:
        """Events of a session as server-sent events, those to come included (see `following`).

        Raises:
            ProblemError: When there is no such session.
        """
        await self._check(session_id)
        thread = self._caller.thread(session_id)
        return follow(self._host.feeds, thread, session_id, types=types, after=after, keepalive_s=keepalive_s)

    async def info(self, session_id: str) -> dict[str, Any]:
        """Where a session is.

        Raises:
            ProblemError: When there is no such session.
        """
        return self._info(session_id, await self._state(session_id))

    @staticmethod
    def _info(session_id: str, state: StateSnapshot) -> dict[str, Any]:
        result = run_result(state)
        return {
            "id": session_id,
            "status": result.status.value,
            "stop_reason": result.stop_reason,
            "answer": result.answer,
            "events": len(state.values.get("events", [])),
            "pending": plain(result.pending),
            "interrupts": [{"id": asked.id, "value": plain(asked.value)} for asked in result.interrupts],
        }

    async def steer(self, session_id: str, text: str) -> None:
        """Say something to a session while it works.

        Raises:
            ProblemError: When there is no such session.
        """
        await self._check(session_id)
        await self._session(session_id).steer(text)

    async def follow_up(self, session_id: str, text: str) -> None:
        """Give a session its next input, for when it has answered the one it works on.

        Raises:
            ProblemError: When there is no such session.
        """
        await self._check(session_id)
        await self._session(session_id).follow_up(text)

    async def abort(self, session_id: str) -> bool:
        """Stop what a session works on; False when it works on nothing.

        Raises:
            ProblemError: When there is no such session.
        """
        await self._check(session_id)
        return await self._session(session_id).abort()

    async def resume(
        self,
        session_id: str,
        answer: Any,
        *,
        credentials: Mapping[str, SecretStr] | None = None,
        place: ExitStack | None = None,
    ) -> dict[str, Any]:
        """Go on where a session stopped, and say where it is then.

        Args:
            session_id: The session.
            answer: What it waits for, or a mapping of interrupt id → answer; None after a stop or a crash.
            credentials: What this request brings for the tools of its run.
            place: As for `Runs.run`.

        Raises:
            ProblemError: When there is no such session, nothing to go on with, an answer that is to nothing it waits
                for, or it is running.
        """
        state = await self._state(session_id)
        # Where its process died between a step's last write and its checkpoint, `next` is empty, and there is a task.
        if not state.tasks:
            raise ProblemError(
                "conflict", f"The session {session_id!r} has nothing to resume: its last input was answered."
            )
        waiting = open_interrupts(state)
        if answer is None and waiting:
            raise ProblemError("conflict", f"The session {session_id!r} waits for an answer; send it as 'answer'.")
        try:
            given: Any = None if answer is None else Command(resume=answers_by_id(answer, waiting))
        except InputError as error:
            raise ProblemError("conflict", str(error), param="answer") from None
        thread = self._caller.thread(session_id)
        names = {
            asked.value["name"]
            for asked in waiting
            if isinstance(asked.value, Mapping) and asked.value.get("type") == CLIENT_CALL
        }
        functions = [{"name": name, "parameters": {"type": "object", "properties": {}}} for name in sorted(names)]
        context: dict[str, Any] = {"credentials": dict(credentials)} if credentials else {}
        if functions:
            context["client_tools"] = [{"type": "function", "function": function} for function in functions]
        turn = Turn(self._host.kept, thread, given, context, session_id)
        async with self._runs.run(turn, streams=False, place=place) as running:
            while not isinstance(await self._part(running), Ended):
                pass
        assert running.state is not None, "a run that comes to its end reports it"
        return self._info(session_id, running.state)

    async def delete(self, session_id: str) -> None:
        """Throw a session away.

        Raises:
            ProblemError: When there is no such session, or it is running.
        """
        await self._check(session_id)
        thread = self._caller.thread(session_id)
        try:
            async with kept_idle(self._host.saver, thread):
                await self._host.saver.adelete_thread(thread)
                # What was said to it and not heard is part of it, and no word to the next session of its name.
                inbox = await inbox_of(self._host.saver, self._host.kept.store)
                await inbox.forget(thread, [note.key for note in await inbox.read(thread)])
        except SessionBusyError:
            raise ProblemError("conflict", f"The session {session_id!r} is running; abort it first.") from None
        self._host.news.tell(thread)

    @staticmethod
    async def _part(running: Running) -> Part | None:
        try:
            return await running.part()
        except ProblemError as problem:
            raise ProblemError("conflict", problem.message) if problem.kind == "busy" else problem from None

    def _session(self, session_id: str) -> Session:
        return Session(self._host.kept, self._caller.thread(session_id))

    async def _check(self, session_id: str) -> None:
        """Raise `ProblemError` if there is no such session; one row is read."""
        if await self._host.saver.aget_tuple({"configurable": {"thread_id": self._caller.thread(session_id)}}) is None:
            raise _unknown(session_id)

    async def _state(self, session_id: str) -> Any:
        thread = self._caller.thread(session_id)
        state = await self._host.kept.aget_state({"configurable": {"thread_id": thread}})
        if not state.values and not state.next:
            raise _unknown(session_id)
        return state

    async def _events(self, session_id: str, types: list[str], after: int) -> list[dict[str, Any]]:
        found = await self._memory.get_session_events(self._caller.thread(session_id))
        return [
            {**event, "session_id": session_id}
            for event in found
            if event["seq"] > after and (not types or event["type"] in types)
        ]


def _unknown(session_id: str) -> ProblemError:
    return ProblemError("not_found", f"There is no session {session_id!r}.")
