"""Defines `GraphAgent`, the compiled agent that a program runs without a session, and the builder that compiles to it.

A session is one LangGraph thread. An input is one message of a user with all up to its answer.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from graph_agent.base._internal.sync_bridge import blocking, refuse_running_loop
from graph_agent.base.errors import InputError
from graph_agent.base.types import ContextT, ResponseT, with_parameters_of
from graph_agent.session.compiled import AgentStateGraph, CompiledAgentGraph

if TYPE_CHECKING:
    from langgraph.runtime import RunControl
    from typing_extensions import Unpack

    from graph_agent.base.settings.context_fields import ContextFields
    from graph_agent.session.compile_options import CompileOptions
    from graph_agent.session.driver import RunDriver
    from graph_agent.session.interrupts import OnApproval
    from graph_agent.session.results import Part, RunResult
    from graph_agent.session.session import Given, Session

# The methods import `Session` and its driver: a program that only calls `ainvoke` needs neither.


class GraphAgent(CompiledAgentGraph[ResponseT, ContextT]):
    """The agent that `create_graph_agent` returns: a compiled LangGraph graph that can also run single inputs and open
    sessions.

    `run`, `run_sync` and `run_stream` run one input without a session: nothing is stored, and the next input has no
    access to it. They are for an agent without a checkpointer. With one, `session` opens the session to run in. The
    graph's own methods, such as `ainvoke` and `astream`, are those of `CompiledAgentGraph`.
    """

    def session(
        self, session_id: str, *, configurable: Mapping[str, Any] | None = None, on_approval: OnApproval | None = None
    ) -> Session[ResponseT, ContextT]:
        """Return the session with an id: `Session(agent, session_id)`, with the same arguments and errors.

        Args:
            session_id: The thread's id; a new id begins a new session.
            configurable: Additional keys of the runs' `configurable`.
            on_approval: Decides on each call of a run that waits for approval; None to return to the caller.

        Raises:
            ConfigError: For an empty id; and at the first run, for an agent without a checkpointer.
            InputError: When the id is no Unicode text.
        """
        from graph_agent.session.session import Session

        return Session(self, session_id, configurable=configurable, on_approval=on_approval)

    async def run(
        self,
        given: Given,
        *,
        context: ContextT | ContextFields | None = None,
        state: Mapping[str, Any] | None = None,
        on_approval: OnApproval | None = None,
    ) -> RunResult[ResponseT]:
        """Run one input to its end, without a session, and return its result.

        Args:
            given: The user's input, as text or as messages; the messages of an earlier conversation may come first.
            context: Overrides and credentials for this run.
            state: Values of own state fields (see `state_schema`); None to set none.
            on_approval: Decides on each call that waits for approval: True, False, or a decision of
                `graph_agent.approvals`. Without it, such a call raises `ConfigError`, as nothing could resume the run.

        Raises:
            InputError: When the agent has a checkpointer, the input is empty, or `state` does not fit the agent's own
                fields.
            ConfigError: When a call needs approval and there is no `on_approval`, a tool asks by `interrupt()`, or
                `context` or `on_approval` is invalid.
            RunFailedError: When the input failed, and `on_failure="raise"` is set.
        """
        from graph_agent.session.driver import RunOptions
        from graph_agent.session.session import graph_input

        driver, graph_given = self._driver("run", on_approval), graph_input(self, given, state)
        return await driver.run(graph_given, RunOptions(context))

    @with_parameters_of(run)
    def run_sync(self, given: Given, **options: Any) -> RunResult[ResponseT]:
        """Run one input like `run`, with the same options and errors, and block until its end; for a script.

        Raises:
            SyncInLoopError: In the thread of a running event loop, as in a notebook: use `await agent.run(...)`.
        """
        refuse_running_loop("agent.run_sync", "agent.run")
        return blocking(self.run)(given, **options)

    def run_stream(
        self,
        given: Given,
        *,
        context: ContextT | ContextFields | None = None,
        control: RunControl | None = None,
        state: Mapping[str, Any] | None = None,
        on_approval: OnApproval | None = None,
        reasoning: bool = False,
    ) -> AsyncGenerator[Part[ResponseT]]:
        """Run one input to its end, without a session, and yield the parts of the run as they occur; `Done` is last.

        The parts are those of `Session.stream`. Leaving the loop before the last part stops the run.

        Args:
            given: The user's input, as text or as messages.
            context: Overrides and credentials for this run.
            control: Lets the run be stopped at its next boundary; it then ends with LangGraph's `GraphDrained`. None if
                nothing stops it.
            state: Values of own state fields (see `state_schema`); None to set none.
            on_approval: Decides on each call that waits for approval, as in `run`.
            reasoning: Whether the reasoning of the agent's model is among the parts, as `Reasoning`. Default False.

        Raises:
            InputError: When the agent has a checkpointer, the input is empty, or `state` does not fit the agent's own
                fields; at once, not by the first part.
            ConfigError: In place of `Done`, when a call needs approval and there is no `on_approval`, or a tool asks by
                `interrupt()`; by the first part, when `context` is invalid; at once, when `on_approval` is.
            RunFailedError: In place of `Done`, when the input failed, and `on_failure="raise"` is set.
        """
        from graph_agent.base._internal.closing_stream import ClosingStream, ConsumerTracker
        from graph_agent.session.driver import RunOptions
        from graph_agent.session.session import graph_input

        driver, readership = self._driver("stream", on_approval), ConsumerTracker()
        options = RunOptions(context, control, readership=readership, reasoning=reasoning)
        return ClosingStream(driver.parts(graph_input(self, given, state), options), readership)

    def _driver(self, instead: str, on_approval: OnApproval | None) -> RunDriver:
        """Return the driver of one run without a session, under a new random session id.

        With a callback, the checkpoints of the run are kept in memory, so that it can be resumed with a decision;
        without one, nothing is stored.

        Args:
            instead: Method of `Session` that the error recommends.
            on_approval: Decides on calls that wait for approval; None if nothing decides.

        Raises:
            InputError: The agent has a checkpointer.
            ConfigError: `on_approval` is not callable.
        """
        from graph_agent.session.driver import RunDriver
        from graph_agent.session.interrupts import AutoApproval
        from graph_agent.session.session import check_callback, kept_in_memory

        if isinstance(self.checkpointer, BaseCheckpointSaver):
            raise InputError(
                "This agent has a checkpointer, so its runs belong to sessions. Write "
                f'agent.session("s1").{instead}(…) with an id of your own; the same id continues the conversation. '
                "An agent without a checkpointer runs without an id."
            )
        check_callback(on_approval)
        # False: a run within a tool of another agent must not store its steps in that agent's session.
        graph = self.copy({"checkpointer": False}) if on_approval is None else kept_in_memory(self)
        return RunDriver(graph, uuid.uuid4().hex, approval=AutoApproval(on_approval), in_foreground=True)


class GraphAgentBuilder(AgentStateGraph):
    """The graph that `build_graph` returns: a `StateGraph` that compiles to a `GraphAgent`."""

    compiled_class = GraphAgent

    if TYPE_CHECKING:

        def compile(
            self, checkpointer: BaseCheckpointSaver[Any] | bool | None = None, **options: Unpack[CompileOptions]
        ) -> GraphAgent:
            """Compile the graph with LangGraph's arguments, and prepare the checkpointer for agents."""
            raise NotImplementedError
