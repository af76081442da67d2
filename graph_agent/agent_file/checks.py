"""Checks what an agent file needs, for `doctor`: versions, keys, model, MCP servers, delegates and database.

A delegate is another agent that receives tasks. Each check returns results instead of raising; a problem has a fix.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shlex
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from importlib import metadata
from itertools import chain
from typing import TYPE_CHECKING, cast

from packaging.requirements import Requirement

from graph_agent.agent_file.model_check import CheckResult, Status, ask_with_tool
from graph_agent.base._internal.extras import PACKAGE, pip_install, requirements_of
from graph_agent.base._internal.failure_log import exception_text
from graph_agent.base.database_urls import MEMORY, file_of, is_postgres, without_password
from graph_agent.base.errors import ConfigError, McpServerError, OperatorError
from graph_agent.base.settings.candidates import models_in

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from graph_agent.agent_file.delegates import DelegateSpec
    from graph_agent.agent_file.spec import AgentSpec
    from graph_agent.integrations.delegates.a2a_delegate import A2ADelegate
    from graph_agent.models.endpoints import ModelEndpoint

_SHOWN = ("langgraph", "langchain-core", "langchain-openai", "mcp")
"""Packages whose versions are shown."""
_STATES = {"auth": "there, and refuses the key", "permission": "there, and forbids it", "unreachable": "unreachable"}
"""State of an endpoint (`endpoint_state`) → its description."""
_KEYS = {
    "anthropic": ["ANTHROPIC_API_KEY"],
    "azure_openai": ["AZURE_OPENAI_API_KEY"],
    "cohere": ["COHERE_API_KEY", "CO_API_KEY"],
    "deepseek": ["DEEPSEEK_API_KEY"],
    "fireworks": ["FIREWORKS_API_KEY"],
    "google_genai": ["GOOGLE_API_KEY", "GEMINI_API_KEY"],
    "groq": ["GROQ_API_KEY"],
    "mistralai": ["MISTRAL_API_KEY"],
    "openai": ["OPENAI_API_KEY"],
    "openrouter": ["OPENROUTER_API_KEY"],
    "perplexity": ["PERPLEXITY_API_KEY", "PPLX_API_KEY"],
    "together": ["TOGETHER_API_KEY"],
    "xai": ["XAI_API_KEY"],
}
"""Provider → the environment variables of which it needs one."""
_BUILD_FIX = "Set the key of the provider, install its package, or name another model in the agent file."
"""The fix for a model that cannot be built."""
_READ_S = 20.0
"""Seconds for reading the histories of sessions."""


def check_versions() -> Iterator[CheckResult]:
    """Yield a result `ok` with the versions of Python and the main packages and with the installed extras.

    Then one problem follows for each unmet requirement of the package. A requirement is met if the package is installed
    in a permitted version; those of extras are not checked.
    """
    required = [Requirement(each) for each in metadata.requires(PACKAGE) or ()]
    unfit = []
    for requirement in required:
        # Packages of extras are optional, and those for other systems are not needed here.
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = _version(requirement.name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            unfit.append((requirement, version))
    shown = ", ".join(f"{name} {_version(name)}" for name in _SHOWN if _version(name))
    names = metadata.metadata(PACKAGE).get_all("Provides-Extra") or []
    extras = [
        name
        for name in names
        if (added := requirements_of(name)) and all(_version(each.name) is not None for each in added)
    ]
    text = f"Python {platform.python_version()}, {PACKAGE} {metadata.version(PACKAGE)}, {shown}"
    yield CheckResult("versions", "ok", f"{text}; extras: {', '.join(extras) or 'none'}")
    for requirement, version in unfit:
        needed = f"{requirement.name}{requirement.specifier}"
        fix = f"{pip_install()} '{needed}'"
        yield CheckResult("versions", "problem", f"{needed} is needed, and {version or 'nothing'} is installed", fix)


def check_keys(spec: AgentSpec) -> Iterator[CheckResult]:
    """Yield a result for each environment variable with a secret that the agent file needs.

    It is a problem if the variable is unset or blank, else `ok`. The variables are those of credentials, of the
    authentication of delegates, and of models that the file names: with a list in `model`, not those of the list,
    since the first one that can be built is used. If a model accepts several variables, it is the first one that is
    set, or else the first. No variable of a model counts if a script replaces the model. Without any variable, one
    result `ok`.
    """
    variables = {source.env: f"credential {name}" for name, source in spec.credentials.items()}
    for delegate in spec.delegates:
        for kind, variable in (delegate.auth or {}).items():
            if kind.endswith("_env"):
                variables[variable] = f"delegate {delegate.name}"
    # Of a list, the first model that can be built is used; each fallback model must be there when it is needed.
    needed_models = [] if isinstance(spec.model, list) else spec.models
    config = spec.loop_config()
    others = chain(*models_in(config.candidates, config.choose).values())
    for model in [*needed_models, *spec.fallback_models, *others]:
        if (needed := _keys_of(model)) and not _is_scripted():
            given = [each for each in needed if os.environ.get(each, "").strip()]
            variables.setdefault((given or needed)[0], f"model {model}")
    for variable, user in variables.items():
        if os.environ.get(variable, "").strip():
            yield CheckResult("keys", "ok", f"{variable} is set, for the {user}")
        else:
            yield CheckResult("keys", "problem", f"{variable} is not set, for the {user}", f"export {variable}=…")
    if not variables:
        yield CheckResult("keys", "ok", "the agent file needs none")


def check_variables(spec: AgentSpec, faults: Mapping[str, str]) -> Iterator[CheckResult]:
    """Yield a warning for each environment variable that looks like a setting of the package and is none.

    Variables whose name occurs in the agent file are skipped.

    Args:
        spec: The agent file.
        faults: Name of each such variable → what is wrong with it.
    """
    text = spec.path.read_text(encoding="utf-8")
    for variable, fault in faults.items():
        if variable not in text:
            yield CheckResult("environment", "warning", fault, f"unset {variable}")


async def check_model(spec: AgentSpec, *, ask: bool) -> AsyncIterator[CheckResult]:
    """Build the models of the agent file, and yield a result for each that fails, and for the endpoints.

    A model of the list that fails is a warning if another one can be built, else a problem; a fallback model that fails
    is a problem, and so is a missing key of the model that is used from a list. If the environment replaces the model
    by a script, there is only a warning, or a problem if the script is invalid.

    Args:
        spec: The agent file.
        ask: Whether to ask the first model that can be built with a small tool, which may cost money. Otherwise its
            endpoint is only contacted, as are those of the fallback models in both cases.
    """
    from graph_agent.agent_file.factory import model_candidates
    from graph_agent.models.scripted import MOCK_VARIABLE, mock_model_from_env

    try:
        scripted = mock_model_from_env()
    except ConfigError as error:
        yield CheckResult("model", "problem", str(error), f"Correct or unset {MOCK_VARIABLE}.")
        return
    if scripted is not None:
        fix = f"unset {MOCK_VARIABLE}"
        yield CheckResult("model", "warning", f"{MOCK_VARIABLE} replaces the model by a script", fix)
        return
    # In a thread: building a model imports the package of its provider, which takes up to seconds.
    candidates = await asyncio.to_thread(lambda: list(model_candidates(spec)))
    models = [(name, model) for name, model in candidates if not isinstance(model, ConfigError)]
    for name, model in candidates:
        if isinstance(model, ConfigError):
            yield CheckResult("model", "warning" if models else "problem", f"{name}: {model}", _BUILD_FIX)
    for name, model in await asyncio.to_thread(lambda: list(model_candidates(spec, fallbacks=True))):
        if isinstance(model, ConfigError):
            yield CheckResult("model", "problem", f"fallback model {name}: {model}", _BUILD_FIX)
        else:
            yield await _endpoint(f"fallback model {name}", model)
    if models:
        name, first = models[0]
        if (missing := _missing_key(name)) and isinstance(spec.model, list):
            yield CheckResult("keys", "problem", f"{missing} is not set, for the model {name}", f"export {missing}=…")
        if not ask:
            yield await _endpoint(str(name), first)
            return
        async for check_result in ask_with_tool(str(name), first, spec.config):
            yield check_result


async def _endpoint(name: str, model: BaseChatModel) -> CheckResult:
    """Contact the endpoint of a model without a completion, and return the result, which begins with `name`.

    An endpoint that cannot be reached is a warning, and so is one that works with a remark, e.g. because it has no list
    of models. Any other state, such as a refused key, is a problem.
    """
    from graph_agent.base.types import OK
    from graph_agent.models.resolve import endpoint_state

    state, remark = await endpoint_state(model)
    if state != OK:
        fix = "Check the key and the network; `base_url` in the agent file, or OPENAI_BASE_URL, selects another server."
        # Without a network, the agent may still be right; --ask-model makes it a problem.
        status: Status = "warning" if state == "unreachable" else "problem"
        why = f"; {remark}" if remark else ""
        return CheckResult("model", status, f"{name}: its endpoint is {_STATES[state]}{why}", fix)
    if remark:
        fix = "Nothing, if the endpoint has no list of models; --ask-model tries the model."
        return CheckResult("model", "warning", f"{name}: {remark}; completion requests are accepted", fix)
    return CheckResult("model", "ok", f"{name} is used; --ask-model tries it")


async def check_servers(spec: AgentSpec) -> list[CheckResult]:
    """Start or contact each MCP server of the agent file, all at the same time, list its tools, and close it again.

    Returns one result for each server; one `ok` if the file has none.
    """
    if not spec.mcp_servers:
        return [CheckResult("MCP", "ok", "the agent file has no server")]
    return list(await asyncio.gather(*(_server(name, spec) for name in spec.mcp_servers)))


async def _server(name: str, spec: AgentSpec) -> CheckResult:
    """Open one MCP server alone, close it again, and return the result.

    It is `ok`, with the number of tools and the time, or a problem with the reason.
    """
    from graph_agent.agent_file.mcp_connections import mcp_connections
    from graph_agent.integrations.mcp.manager import open_mcp_tools

    fix = f"Check mcp_servers.{name} in the agent file: its command or URL, and what the server prints when it starts."
    begun = time.monotonic()
    try:
        # Each server alone, so that one that fails or is slow does not hide the others.
        alone = spec.model_copy(update={"mcp_servers": {name: spec.mcp_servers[name]}})
        async with open_mcp_tools(mcp_connections(alone, {})) as tools:
            if name in tools.failed:
                return CheckResult("MCP", "problem", f"{name}: {tools.failed[name]}", fix)
            return CheckResult("MCP", "ok", f"{name}: {len(tools)} tools in {time.monotonic() - begun:.1f} s")
    except (ConfigError, McpServerError) as error:
        return CheckResult("MCP", "problem", f"{name}: {error}", fix)


async def check_delegates(spec: AgentSpec) -> list[CheckResult]:
    """Read the agent card of each remote delegate, all at the same time, and return one result for each.

    Delegates in this process are skipped. The list is empty if no delegate is remote.
    """
    return list(await asyncio.gather(*(_remote(each, spec) for each in spec.delegates if each.url is not None)))


async def _remote(delegate: DelegateSpec, spec: AgentSpec) -> CheckResult:
    """Read the agent card of a remote delegate, and return the result: `ok`, or a problem with the reason."""
    fix = f"Start the agent {delegate.name!r}, or correct its url in the agent file."
    try:
        fault = await cast("A2ADelegate", delegate.build(spec.folder, None)).fault()
    except ConfigError as error:
        fault = str(error)
    if fault is not None:
        return CheckResult("delegate", "problem", f"{delegate.name}: {delegate.url} cannot be reached: {fault}", fix)
    return CheckResult("delegate", "ok", f"{delegate.name}: {delegate.url} has a card")


async def check_parts(spec: AgentSpec) -> CheckResult:
    """Build the agent without its model, its MCP servers and its database, and return the result.

    Built are the tools, delegates, hooks, prompts and the response format, for which the modules that the file names
    are imported. Any exception is a problem, and ends the check at the first part that cannot be built.
    """
    from graph_agent.agent_file.factory import open_parts

    try:
        async with open_parts(spec):
            pass
    except Exception as error:  # noqa: BLE001 - modules of the agent may raise anything
        return CheckResult("agent", "problem", exception_text(error), "Correct the named part of the agent file.")
    named = f"{len(spec.tools)} tools, {len(spec.delegates)} delegates, {len(spec.hooks)} hooks"
    return CheckResult("agent", "ok", f"{named} of the file are built")


async def check_database(address: str) -> CheckResult:
    """Open the database at an address, and check that it accepts a write, which is rolled back.

    A missing SQLite file is not created; only its folder is checked. A database in memory is a warning, as its sessions
    end with the process. Any exception is a problem. `address` is `sqlite:///…`, `postgresql://…` or `memory:`.
    """
    from graph_agent.session.history import list_threads
    from graph_agent.storage.checkpoints.open import open_saver

    shown = without_password(address)
    if address == MEMORY:
        return CheckResult(
            "database", "warning", "sessions end with the process", "Write e.g. db: sqlite:///sessions.db"
        )
    try:
        if not is_postgres(address) and not (file := file_of(address)).exists():
            if os.access(file.parent, os.W_OK):
                return CheckResult("database", "ok", f"{shown}: the first run creates it")
            fix = "Give this user write access to the folder, or name another file with `db` or --db."
            return CheckResult("database", "problem", f"{shown}: the folder {file.parent} is not writable", fix)
        async with open_saver(address) as saver:
            # A database can be readable and full, which only a write shows.
            probe = getattr(saver, "aprobe", None)
            if probe is not None:
                await probe()
            count = len(await list_threads(saver))
    except Exception as error:  # noqa: BLE001 - a driver may raise anything
        fix = "Check the address, that the server runs, and that this user may write; free space if the disk is full."
        return CheckResult("database", "problem", f"{shown}: {exception_text(error)}", fix)
    return CheckResult("database", "ok", f"{shown}: writable, {count} session{'' if count == 1 else 's'}")


async def check_sessions(address: str) -> AsyncIterator[CheckResult]:
    """Read the history of each session of a database, newest first, and yield a problem for each that cannot be read.

    Stops after `_READ_S` seconds, with a warning that counts the sessions that were not read. Yields nothing for a
    database in memory or one that does not exist. Raises `ConfigError` if the database cannot be opened.
    """
    if address == MEMORY or (not is_postgres(address) and not file_of(address).exists()):
        return
    from graph_agent.session.history import list_threads
    from graph_agent.session.importing import read_history
    from graph_agent.storage.checkpoints.open import open_saver

    # Limited, as a database may have a hundred thousand sessions.
    until, unread = time.monotonic() + _READ_S, 0
    async with open_saver(address) as saver:
        for session_id in await list_threads(saver):
            if time.monotonic() > until:
                unread += 1
                continue
            try:
                # The newest checkpoint alone may be whole while a part of the history is lost.
                newest = await saver.aget_tuple({"configurable": {"thread_id": session_id, "checkpoint_ns": ""}})
                if newest is not None:
                    await read_history(saver, session_id, newest)
            except OperatorError as error:
                yield CheckResult(
                    "sessions", "problem", str(error), f"graph-agent sessions rm {shlex.quote(session_id)}"
                )
    if unread:
        yield CheckResult("sessions", "warning", f"{unread} older sessions were not read, to save time")


def _keys_of(model: str | ModelEndpoint) -> list[str]:
    """Return the environment variables of which a model needs one; empty if it needs none, or if none is known.

    A model is a name such as `openai:gpt-4o-mini`, or an endpoint, whose own variable counts. An endpoint with a
    `base_url` and no variable needs none; one with neither counts by its name.
    """
    from graph_agent.models.endpoints import endpoint_in

    endpoint = endpoint_in(model) if isinstance(model, str) else model
    if endpoint is not None and (endpoint.api_key_env is not None or endpoint.base_url is not None):
        return [endpoint.api_key_env] if endpoint.api_key_env is not None else []
    name = model if isinstance(model, str) else model.model
    return _KEYS.get(name.partition(":")[0].strip(), [])


def _missing_key(model: str | ModelEndpoint) -> str | None:
    """Return the variable of the key that a model needs if none of its variables is set; None otherwise."""
    variables = _keys_of(model)
    return variables[0] if variables and not any(os.environ.get(each, "").strip() for each in variables) else None


def _is_scripted() -> bool:
    """Whether the environment replaces the model by a script."""
    from graph_agent.models.scripted import MOCK_VARIABLE

    return bool(os.environ.get(MOCK_VARIABLE, "").strip())


def _version(name: str) -> str | None:
    """Return the installed version of a package; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


async def check_all(
    config: str, db: str | None, variables: Mapping[str, str], env_file: str | None = None, *, ask_model: bool
) -> AsyncIterator[CheckResult]:
    """Check an agent file and what it needs, and yield each result as soon as it is known.

    A file that cannot be read ends the checks with a problem. Sessions are read only if the check of the database has
    found no problem.

    Args:
        config: Path of the agent file.
        db: Address of the database; None for the one in the file.
        variables: Environment variables that look like settings and are none → what is wrong with them.
        env_file: What is reported of the file `.env` that was read; None if there is none.
        ask_model: Whether the model is asked with a small tool, which may cost money.
    """
    from graph_agent.agent_file.spec import load_spec

    for check_result in check_versions():
        yield check_result
    try:
        spec = load_spec(config)
    except ConfigError as error:
        fix = "Correct the file, or name another one with --config; `graph-agent new NAME` writes a first one."
        yield CheckResult("agent file", "problem", str(error), fix)
        return
    yield CheckResult("agent file", "ok", f"{spec.path} is valid")
    if env_file is not None:
        yield CheckResult("environment", "ok", env_file)
    for check_result in (*check_keys(spec), *check_variables(spec, variables)):
        yield check_result
    async for check_result in check_model(spec, ask=ask_model):
        yield check_result
    for check_result in await check_servers(spec):
        yield check_result
    for check_result in await check_delegates(spec):
        yield check_result
    yield await check_parts(spec)
    database = await check_database(db or spec.db)
    yield database
    # The same problem would be reported again for each session.
    if database.status != "problem":
        async for check_result in check_sessions(db or spec.db):
            yield check_result
