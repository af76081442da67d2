"""Reads the delegates and the skills in an agent file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from graph_agent.agent_file.imports import load_attribute, make
from graph_agent.base._internal.extras import needs_extra
from graph_agent.base._internal.validation_text import describe_fields, explain
from graph_agent.base._internal.yaml_files import expand
from graph_agent.base.errors import ConfigError

if TYPE_CHECKING:
    from graph_agent.core.extensions.delegation import Delegate
    from graph_agent.session.graph_agent import GraphAgent


@dataclass(frozen=True, slots=True)
class OpenedAgent:
    """An agent of another agent file that is open as a delegate."""

    name: str
    description: str
    graph: GraphAgent


class DelegateSpec(BaseModel):
    """One delegate of an agent file: another agent file or a graph in this process, or a remote agent."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, json_schema_extra=describe_fields)

    name: str = ""
    """Name of the delegate; the model calls it as `delegate_to_<name>`. Optional for an agent file, which has one."""
    description: str = ""
    """Purpose of the delegate; optional for an agent file and for a remote agent, which have a description."""
    agent: str | None = None
    """Another agent file, relative to this one; the agent runs in this process, in the database of this one."""
    graph: str | None = None
    """`module:factory` of a compiled graph."""
    background: bool = False
    """Whether the model may delegate tasks in the background."""
    source: Literal["trusted", "untrusted"] = "untrusted"
    """Whether outsiders can write the answers; for the setting `origins`."""
    url: str | None = None
    """URL of a remote A2A agent or of its card; `${NAME}` or `${NAME:-default}` is read from the environment."""
    auth: dict[str, str] | None = None
    """Source of a remote agent's secret: `{bearer_env: NAME}`, or `{api_key_env: NAME, header: X-API-Key}`."""
    timeout_s: PositiveFloat | None = None
    """Seconds a remote agent may be silent; 60 by default."""
    max_response_bytes: PositiveInt | None = None
    """Maximum bytes of one response of a remote agent; 10 000 000 by default."""
    allowed_origins: list[str] = []
    """Further origins that a remote agent's card may name."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_text(cls, given: Any) -> Any:
        """Raise `ValueError` for a delegate given as a text, with the forms in which it can be given; return anything
        else.
        """
        if isinstance(given, str):
            raise ValueError(
                "a delegate is a mapping: {agent: other.yaml} for another agent file, {name: …, graph: "
                "'module:factory'} for a compiled graph, or {name: …, url: 'http://127.0.0.1:9000'} for a remote agent"
            )
        return given

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        """Return the delegate itself if exactly one of `agent`, `graph` and `url` is given, with fields that fit it.

        Raises `ValueError` otherwise. Only a delegate with `agent` may have no name, and only one with `url` may have
        settings of a remote agent.
        """
        if sum(given is not None for given in (self.agent, self.graph, self.url)) != 1:
            raise ValueError(
                f"delegate {self.name!r}: give its 'agent' (an agent file), its 'graph' (as 'module:factory') or its "
                "'url'; one of them"
            )
        # Only what the file gives counts, not the defaults.
        if self.url is None and (remote := sorted(self.model_fields_set & _REMOTE)):
            raise ValueError(f"delegate {self.name!r}: {', '.join(remote)} is for a remote agent, with a 'url'")
        if not self.name and self.agent is None:
            raise ValueError("a delegate has a 'name'; only that of an agent file may be left out")
        return self

    def build(self, folder: Path, opened: OpenedAgent | None = None) -> Delegate:
        """Create the delegate; a remote agent is not contacted yet.

        Args:
            folder: The agent file's folder, which is searched first for modules.
            opened: The open agent, for a delegate with `agent`; otherwise None.

        Raises:
            ConfigError: The delegate cannot be created.
        """
        # Imported here: reading an agent file needs no part of LangGraph.
        from graph_agent.integrations.delegates.graph_delegate import GraphDelegate

        if opened is not None:
            name, description = self.name or opened.name, self.description or opened.description
            return GraphDelegate(name, description, opened.graph, self.background, self.source)
        return self._graph(self.graph, folder) if self.graph is not None else self._remote()

    def _graph(self, name: str, folder: Path) -> Delegate:
        """Return a delegate that runs a compiled graph in this process.

        Args:
            name: Dotted name of the graph, or of a factory, which is called without arguments.
            folder: The agent file's folder, which is searched first for modules.

        Raises:
            ConfigError: The name cannot be resolved, the factory fails, or it returns no compiled graph.
        """
        factory = load_attribute(name, folder)
        graph = factory if hasattr(factory, "ainvoke") else make(name, factory, "a compiled graph")
        if not hasattr(graph, "ainvoke"):
            raise ConfigError(f"{name!r} gave {graph!r}; a delegate's factory returns a compiled graph.")
        from graph_agent.integrations.delegates.graph_delegate import GraphDelegate

        return GraphDelegate(self.name, self.description, graph, self.background, self.source)

    def _remote(self) -> Delegate:
        """Return a delegate that sends tasks to a remote agent, which is not contacted yet.

        References to environment variables in its URL are replaced. Raises `ConfigError` if a setting is invalid or a
        variable is not set, and `MissingExtraError` without the extra `server`.
        """
        with needs_extra(f"delegate {self.name!r}", "server"):
            from graph_agent.integrations.delegates.a2a_delegate import A2ADelegate
            from graph_agent.integrations.delegates.a2a_http import A2AAuth
        assert self.url is not None
        # What the file leaves out has the default of `A2ADelegate`, which is not repeated here.
        given: dict[str, Any] = {
            name: value
            for name in ("timeout_s", "max_response_bytes", "allowed_origins", "source")
            if (value := getattr(self, name))
        }
        try:
            auth = A2AAuth(**self.auth) if self.auth is not None else None
        except ValidationError as error:
            raise ConfigError(explain(error, f"delegate {self.name!r}: auth", A2AAuth)) from None
        description = self.description or None
        # Again, because the class imports the SDK only when it is constructed.
        with needs_extra(f"delegate {self.name!r}", "server"):
            try:
                url = expand(self.url)
                return A2ADelegate(self.name, url, description, auth=auth, background=self.background, **given)
            except ValueError as error:
                raise ConfigError(f"delegate {self.name!r}: {_first_fault(error)}") from None


class SkillSpec(BaseModel):
    """One skill in an agent's card."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, json_schema_extra=describe_fields)

    id: str = Field(min_length=1)
    """Identifier of the skill, unique in the card."""
    name: str = ""
    """Name of the skill; empty to use the id."""
    description: str
    """Purpose of the skill."""
    tags: list[str] = []
    """Keywords by which clients find the skill."""
    examples: list[str] = []
    """Example tasks."""


_REMOTE = {"auth", "timeout_s", "max_response_bytes", "allowed_origins"}


def _first_fault(error: ValueError) -> str:
    """Return the text of the first fault in a validation error of pydantic; that of another `ValueError` as it is."""
    faults = getattr(error, "errors", None)
    return str(faults()[0]["msg"]).removeprefix("Value error, ") if faults else str(error)
