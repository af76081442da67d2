"""The checks of `graph-agent doctor`."""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import AsyncIterator, Iterator
from importlib import metadata
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from graph_agent._internal.exception_text import exception_text
from graph_agent.cli.verdict import Verdict
from graph_agent.errors import ConfigError
from graph_agent.persistence.open import open_saver
from graph_agent.persistence.urls import MEMORY, file_of, is_postgres, without_password
from graph_agent.session.history import list_threads

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from graph_agent.spec.agent_file import AgentSpec

_PACKAGE = "graph-agent"
_SHOWN = ("langgraph", "langchain-core", "langchain-openai", "mcp")
_ANSWER_S = 60.0
"""Maximum seconds for the model's answer."""


def check_versions() -> Iterator[Verdict]:
    """Compare the installed packages with the requirements."""
    required = [Requirement(each) for each in metadata.requires(_PACKAGE) or ()]
    unfit = []
    for requirement in required:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = _version(requirement.name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            unfit.append((requirement, version))
    shown = ", ".join(f"{name} {_version(name)}" for name in _SHOWN if _version(name))
    extras = [name for name in _extras(required) if _is_installed(name, required)]
    text = f"Python {platform.python_version()}, {_PACKAGE} {metadata.version(_PACKAGE)}, {shown}"
    yield Verdict("versions", "ok", f"{text}; extras: {', '.join(extras) or 'none'}")
    for requirement, version in unfit:
        needed = f"{requirement.name}{requirement.specifier}"
        fix = f"pip install '{needed}'"
        yield Verdict("versions", "problem", f"{needed} is needed, and {version or 'nothing'} is installed", fix)


def check_keys(spec: AgentSpec) -> Iterator[Verdict]:
    """Check that the environment variables of secrets are set."""
    variables = {source.env: f"credential {name}" for name, source in spec.credentials.items()}
    for delegate in spec.delegates:
        for kind, variable in (delegate.auth or {}).items():
            if kind.endswith("_env"):
                variables[variable] = f"delegate {delegate.name}"
    for name in [spec.model] if isinstance(spec.model, str) else spec.model:
        if name.partition(":")[0] == "openai" and isinstance(spec.model, str) and not _is_scripted():
            variables.setdefault("OPENAI_API_KEY", f"model {name}")
    for variable, user in variables.items():
        if os.environ.get(variable, "").strip():
            yield Verdict("keys", "ok", f"{variable} is set, for the {user}")
        else:
            yield Verdict("keys", "problem", f"{variable} is not set, for the {user}", f"export {variable}=…")
    if not variables:
        yield Verdict("keys", "ok", "the agent file needs none")


async def check_model(spec: AgentSpec, *, ask: bool) -> AsyncIterator[Verdict]:
    """Build the models of the file; send one request to the first if wanted."""
    from graph_agent.models.mock import MOCK_VARIABLE, mock_model_from_env
    from graph_agent.spec.opening import model_candidates

    try:
        scripted = mock_model_from_env()
    except ConfigError as error:
        yield Verdict("model", "problem", str(error), f"Correct or unset {MOCK_VARIABLE}.")
        return
    if scripted is not None:
        fix = f"unset {MOCK_VARIABLE}"
        yield Verdict("model", "warning", f"{MOCK_VARIABLE} replaces the model by a script", fix)
        return
    candidates = await asyncio.to_thread(model_candidates, spec)
    models = [(name, model) for name, model in candidates if not isinstance(model, ConfigError)]
    for name, model in candidates:
        if isinstance(model, ConfigError):
            fix = "Set the key of the provider, install its package, or name another model in the agent file."
            yield Verdict("model", "warning" if models else "problem", f"{name}: {model}", fix)
    if models:
        name, first = models[0]
        yield await _ask(name, first) if ask else Verdict("model", "ok", f"{name} is used; --ask-model tries it")


async def _ask(name: str, model: BaseChatModel) -> Verdict:
    from graph_agent.models.errors import describe_model_error

    begun = time.monotonic()
    try:
        await asyncio.wait_for(model.ainvoke("Reply with the word OK."), _ANSWER_S)
    except Exception as error:  # noqa: BLE001 - a provider may raise anything
        fix = "Check the key, the model's name and the network; OPENAI_BASE_URL selects another server."
        return Verdict("model", "problem", f"{name} did not answer: {describe_model_error(error)}", fix)
    return Verdict("model", "ok", f"{name} answered in {time.monotonic() - begun:.1f} s")


async def check_servers(spec: AgentSpec) -> list[Verdict]:
    """Start each MCP server, and list its tools."""
    if not spec.mcp_servers:
        return [Verdict("MCP", "ok", "the agent file has no server")]
    return list(await asyncio.gather(*(_server(name, spec) for name in spec.mcp_servers)))


async def _server(name: str, spec: AgentSpec) -> Verdict:
    from graph_agent.mcp import open_mcp_tools
    from graph_agent.spec.opening import mcp_connections

    fix = f"Check mcp_servers.{name} in the agent file: its command or URL, and what the server prints when it starts."
    begun = time.monotonic()
    try:
        alone = spec.model_copy(update={"mcp_servers": {name: spec.mcp_servers[name]}})
        async with open_mcp_tools(mcp_connections(alone, {})) as tools:
            if name in tools.failed:
                return Verdict("MCP", "problem", f"{name}: {tools.failed[name]}", fix)
            return Verdict("MCP", "ok", f"{name}: {len(tools)} tools in {time.monotonic() - begun:.1f} s")
    except ConfigError as error:
        return Verdict("MCP", "problem", f"{name}: {error}", fix)


async def check_parts(spec: AgentSpec) -> Verdict:
    """Build the agent with a stand-in model: tools, delegates, hooks, prompts and the response format."""
    from graph_agent.models.mock import MockChatModel
    from graph_agent.spec.opening import open_parts

    try:
        async with open_parts(spec, MockChatModel(responses=["OK"])):
            pass
    except Exception as error:  # noqa: BLE001 - modules of the agent may raise anything
        return Verdict("agent", "problem", exception_text(error), "Correct the named part of the agent file.")
    named = f"{len(spec.tools)} tools, {len(spec.delegates)} delegates, {len(spec.hooks)} hooks"
    return Verdict("agent", "ok", f"{named} of the file are built")


async def check_database(address: str) -> Verdict:
    """Open the database, and write to it."""
    shown = without_password(address)
    if address == MEMORY:
        return Verdict("database", "warning", "sessions end with the process", "Write e.g. db: sqlite:///sessions.db")
    try:
        if not is_postgres(address) and not (file := file_of(address)).exists():
            if os.access(file.parent, os.W_OK):
                return Verdict("database", "ok", f"{shown}: the first run creates it")
            fix = "Give this user write access to the folder, or name another file with `db` or --db."
            return Verdict("database", "problem", f"{shown}: the folder {file.parent} is not writable", fix)
        async with open_saver(address) as saver:
            probe = getattr(saver, "aprobe", None)
            if probe is not None:
                await probe()
            count = len(await list_threads(saver))
    except Exception as error:  # noqa: BLE001 - a driver may raise anything
        fix = "Check the address, that the server runs, and that this user may write; free space if the disk is full."
        return Verdict("database", "problem", f"{shown}: {exception_text(error)}", fix)
    return Verdict("database", "ok", f"{shown}: writable, {count} session{'' if count == 1 else 's'}")


def _is_scripted() -> bool:
    from graph_agent.models.mock import MOCK_VARIABLE

    return bool(os.environ.get(MOCK_VARIABLE, "").strip())


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _extras(required: list[Requirement]) -> list[str]:
    names = metadata.metadata(_PACKAGE).get_all("Provides-Extra") or []
    return [name for name in names if any(_belongs(each, name) for each in required)]


def _is_installed(extra: str, required: list[Requirement]) -> bool:
    return all(_version(each.name) is not None for each in required if _belongs(each, extra))


def _belongs(requirement: Requirement, extra: str) -> bool:
    marker = requirement.marker
    return marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})
