"""Applies `Command`s that tools return: own state fields, further messages, commands to the parent graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command, Send

from graph_agent.state.call_events import CallResult, Handoff
from graph_agent.state.custom_state import NO_OWN_FIELDS, RESERVED, CustomState
from graph_agent.state.messages import CONTEXT_MARK, first_unplain
from graph_agent.types import Call

_OF_ANOTHER_AGENT = ("status", "stop_reason", "structured_response")
"""Fields in the output of an agent of this package, which a tool may give on as a whole; they are not written."""


@dataclass(frozen=True, slots=True)
class CommandScope:
    """The effects that a call's commands may have."""

    own: CustomState = NO_OWN_FIELDS
    nested: bool = False
    """Whether the agent runs as a node of another graph."""

    @classmethod
    def of(cls, own: CustomState, config: RunnableConfig) -> CommandScope:
        """Return the scope of a task of an agent.

        Args:
            own: The agent's own state fields.
        """
        return cls(own, "|" in config.get("configurable", {}).get("checkpoint_ns", ""))


NO_COMMANDS = CommandScope()


@dataclass(slots=True)
class CommandEffects:
    """The effects of the messages and commands that one call returned."""

    result: ToolMessage | None = None
    """The message that answers the call; None if there is none yet."""
    writes: list[tuple[str, Any]] = field(default_factory=list)
    messages: list[AnyMessage] = field(default_factory=list)
    goto: list[Any] = field(default_factory=list)
    parent_update: list[tuple[str, Any]] = field(default_factory=list)
    hands_off: bool = False
    refused: list[str] = field(default_factory=list)
    """Requested changes that are not allowed."""

    @classmethod
    def read(cls, returned: Any, call: Call, scope: CommandScope) -> CommandEffects:
        """Read the messages and commands that a call returned."""
        effects = cls()
        for item in returned if isinstance(returned, list) else [returned]:
            if not isinstance(item, Command):
                effects._add_message(item, call)
            elif item.graph == Command.PARENT:
                effects._add_handoff(item, call, scope)
            else:
                effects._add_update(item, call, scope)
        return effects

    def _add_message(self, message: Any, call: Call) -> None:
        if isinstance(message, ToolMessage):
            if self.result is None and message.tool_call_id == call["id"]:
                self.result = message
                return
        elif isinstance(message, HumanMessage | SystemMessage):
            if isinstance(message, HumanMessage):
                marks = {**message.additional_kwargs, CONTEXT_MARK: True}
                message = message.model_copy(update={"additional_kwargs": marks})
            self.messages.append(message)
            return
        self.refused.append(f"it adds an object of type {type(message).__name__}")

    def _add_update(self, command: Command[Any], call: Call, scope: CommandScope) -> None:
        if command.goto or command.graph is not None:
            self.refused.append("it has a `goto`")
        for name, value in _pairs(command.update):
            if name == "messages":
                for message in value if isinstance(value, list) else [value]:
                    self._add_message(message, call)
            elif name in _OF_ANOTHER_AGENT:
                continue
            elif (fault := scope.own.fault(name, value)) is not None:
                self.refused.append(fault)
            else:
                self.writes.append((name, value))

    def _add_handoff(self, command: Command[Any], call: Call, scope: CommandScope) -> None:
        if not scope.nested:
            self.refused.append("it has a `goto` in a parent graph, and this agent runs on its own")
            return
        self.hands_off = True
        targets = command.goto if isinstance(command.goto, Sequence) and not isinstance(command.goto, str) else None
        for target in targets if targets is not None else [command.goto]:
            self.goto.append([target.node, target.arg] if isinstance(target, Send) else target)
        for name, value in _pairs(command.update):
            if name in RESERVED:
                continue  # state given on whole, as handoff tools do; these fields are the agent's own
            if name == "messages":
                for message in reversed(value if isinstance(value, list) else [value]):
                    if isinstance(message, ToolMessage) and message.tool_call_id == call["id"]:
                        self.result = self.result or message
                        break
            if (found := first_unplain(value)) is not None:
                self.refused.append(f"the value of {name!r} for the parent graph ({found[1]} is not plain)")
            self.parent_update.append((name, value))
        if self.result is None:
            nodes = ", ".join(target if isinstance(target, str) else target[0] for target in self.goto)
            self.result = ToolMessage(f"Handed off to {nodes or 'the parent graph'}.", tool_call_id=call["id"])

    @property
    def handoff(self) -> Handoff | None:
        """The command to the parent graph; None if there is none."""
        return {"goto": self.goto, "update": self.parent_update} if self.hands_off else None

    def fields(self) -> dict[str, Any]:
        """Return the fields of a `CallResult` that hold the effects."""
        return {"writes": tuple(self.writes), "messages": tuple(self.messages), "handoff": self.handoff}


def parent_command(handoffs: Sequence[Handoff]) -> Command[Any]:
    """Return one command to the parent graph for the handoffs of a wave, in call order."""
    goto = [
        Send(*target) if isinstance(target, list | tuple) else target for each in handoffs for target in each["goto"]
    ]
    update = [(name, value) for each in handoffs for name, value in each["update"]]
    return Command(graph=Command.PARENT, update=update, goto=goto)


def as_command(message: ToolMessage, output: CallResult) -> ToolMessage | Command[Any]:
    """Return a call's result as middleware receives it: a command if it has further effects than its message."""
    if output.handoff is not None:
        return parent_command([output.handoff])
    if not output.writes and not output.messages:
        return message
    return Command(update={**dict(output.writes), "messages": [message, *output.messages]})


def _pairs(update: Any) -> list[tuple[str, Any]]:
    if isinstance(update, Mapping):
        return list(update.items())
    if isinstance(update, list | tuple):
        return [(name, value) for name, value in update]
    return [] if update is None else [(name, value) for name, value in vars(update).items()]
