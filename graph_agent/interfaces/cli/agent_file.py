"""Implements `new`, `doctor` and `graph`: they write, check and draw an agent file."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graph_agent.base._internal.secrets import mask_named_secrets
from graph_agent.base._internal.text import printable
from graph_agent.base.errors import ConfigError, InputError
from graph_agent.interfaces.cli import run_async
from graph_agent.interfaces.cli.env_file import env_file_of
from graph_agent.interfaces.cli.options import AGENT_FILE, ConfigOption, DbOption
from graph_agent.interfaces.cli.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from importlib.resources.abc import Traversable

    from graph_agent.agent_file.model_check import CheckResult
    from graph_agent.agent_file.spec import AgentSpec
    from graph_agent.interfaces.cli.env_file import EnvFile

_STYLES = {"ok": "green", "warning": "yellow", "problem": "red"}


def doctor(
    context: typer.Context,
    config: ConfigOption = AGENT_FILE,
    db: DbOption = None,
    ask_model: Annotated[
        bool, typer.Option("--ask-model", help="Ask the model with one small tool, which may cost money.")
    ] = False,
    json_lines: Annotated[bool, typer.Option("--json", help="Print one JSON object per check.")] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Also write a file for a bug report, without secrets, and print its path.")
    ] = False,
) -> None:
    """Check versions, agent file, keys, model, MCP servers and database; exit status 1 if there is a problem."""
    # Failures are printed by the checks.
    logging.getLogger("graph_agent").setLevel(logging.CRITICAL)
    env_file = env_file_of(context)
    results = run_async(_check(str(config), db, Terminal(), env_file, ask_model=ask_model, as_json=json_lines))
    if report:
        _write_report(str(config), db, results)
    # Warnings do not fail the command: CI would stop for a hint.
    sys.exit(1 if any(each.status == "problem" for each in results) else 0)


async def _check(
    config: str, db: str | None, out: Terminal, env_file: EnvFile | None, *, ask_model: bool, as_json: bool
) -> list[CheckResult]:
    """Run the checks of `doctor`, print each result as soon as it is known, and return all results.

    Args:
        config: Path of the agent file.
        db: URL of another database than the agent file's; None for the file's.
        out: Where to print.
        env_file: The file `.env` that was read; None if there is none.
        ask_model: Also send the model one request, which may cost money.
        as_json: Print each result as a JSON object, and no summary line.
    """
    from graph_agent.agent_file.checks import check_all
    from graph_agent.interfaces.server.settings import unknown_variables

    results: list[CheckResult] = []

    async def checks() -> AsyncIterator[CheckResult]:
        """Yield the results for the agent file, and then that for a server of it if the file is valid."""
        env_text = _summary(env_file) if env_file else None
        is_valid = False
        async for found in check_all(config, db, unknown_variables(), env_text, ask_model=ask_model):
            is_valid = is_valid or (found.check, found.status) == ("agent file", "ok")
            yield found
        if is_valid and (of_server := _server_check(config, db)) is not None:
            yield of_server

    async for check_result in checks():
        results.append(check_result)
        if as_json:
            typer.echo(json.dumps({**asdict(check_result), "text": mask_named_secrets(check_result.text)}))
            continue
        out.line(
            f"{check_result.status:<8} {check_result.check}: {mask_named_secrets(check_result.text)}",
            style=_STYLES[check_result.status],
        )
        if check_result.fix:
            out.line(f"         fix: {check_result.fix}")
    problems = sum(each.status == "problem" for each in results)
    warnings = sum(each.status == "warning" for each in results)
    if not as_json:
        found = f"{problems} problem{'' if problems == 1 else 's'} found" if problems else "No problem found"
        out.line(f"{found}, {warnings} warning{'' if warnings == 1 else 's'}." if warnings else f"{found}.")
    return results


def _server_check(config: str, db: str | None) -> CheckResult | None:
    """Return whether `graph-agent serve` would start with the environment's variables; None without the extra `server`.

    The result is `ok` with the number of API keys, or a warning with the reason. It is not a problem, because the agent
    may be run without a server.
    """
    from graph_agent.agent_file.credentials import sources_from
    from graph_agent.agent_file.model_check import CheckResult

    try:
        from graph_agent.interfaces.server.serve import checked_start
        from graph_agent.interfaces.server.settings import settings_from
    except ImportError:
        return None
    variables = os.environ
    try:
        _, settings = checked_start(
            config,
            host=variables.get("GRAPH_AGENT_HOST") or "127.0.0.1",
            db=db,
            workers=int(variables.get("GRAPH_AGENT_WORKERS") or 1),
            keys_file=Path(file) if (file := variables.get("GRAPH_AGENT_KEYS_FILE")) else None,
            settings=settings_from([]),
            credentials=sources_from(variables.get("GRAPH_AGENT_CREDENTIALS", "").split()),
        )
    except (ConfigError, ValueError) as error:
        fix = "Correct this before `graph-agent serve`; without a server, the agent can be used as it is."
        return CheckResult("server", "warning", f"`graph-agent serve` would not start: {error}", fix)
    count = len(settings.keys)
    keys = f"{count} API key{'' if count == 1 else 's'}" if count else "no API keys, for this machine only"
    return CheckResult("server", "ok", f"`graph-agent serve` can start, with {keys}")


def _write_report(config: str, db: str | None, results: list[CheckResult]) -> None:
    """Write the results and a description of the agent and its environment as `graph-agent-report-TIME.json`.

    The file is in the current folder, and replaces one of the same second. Its path is printed on standard error.
    Raises `OSError` if the file cannot be written.

    Args:
        config: Path of the agent file.
        db: URL of another database than the agent file's; None for the file's.
        results: The results of the checks.
    """
    from graph_agent.agent_file.bug_report import bug_report

    content = run_async(bug_report(config, db, results))
    path = Path(f"graph-agent-report-{datetime.now(UTC):%Y%m%d-%H%M%S}.json")
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    Terminal(stderr=True).line(f"The report is in {path.resolve()}; read it before you send it.")


def _summary(file: EnvFile) -> str:
    """Return a sentence with the path of a file `.env` and the names of the variables it has set, without values.

    Variables that the environment had already, and that the file could not replace, are listed, too.
    """
    used = f"{file.path} sets {', '.join(file.used) or 'nothing'}"
    return f"{used}; the environment has {', '.join(file.overridden)}, and wins" if file.overridden else used


EDGES = (
    ("__start__", "plan", False),
    ("plan", "tools", True),
    ("plan", "delegate", True),
    ("plan", "finalize", True),
    ("tools", "plan", False),
    ("delegate", "plan", False),
    ("finalize", "plan", True),
    ("finalize", "__end__", True),
)
"""Edges of every agent: source, target, and whether the edge is conditional."""
APPROVAL_EDGES = (("plan", "approve", True), ("approve", "plan", False))
"""Edges of an agent whose file asks for approvals."""


def graph(
    config: ConfigOption = AGENT_FILE,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="Build the agent, without its model, and print LangGraph's drawing.")
    ] = False,
) -> None:
    """Print an agent's graph as a Mermaid flowchart, with the tools and delegates that its file names."""
    from graph_agent.agent_file.spec import load_spec

    spec = load_spec(config)
    typer.echo(run_async(_draw_compiled(spec)) if compiled else mermaid(spec))


async def _draw_compiled(spec: AgentSpec) -> str:
    """Build the agent without its model, and return LangGraph's drawing of its graph, in Mermaid."""
    from graph_agent.agent_file.factory import open_parts

    async with open_parts(spec) as agent:
        drawn: str = agent.get_graph().draw_mermaid()
    return drawn


def mermaid(spec: AgentSpec) -> str:
    """Return an agent's graph as a Mermaid flowchart, without a line feed at its end. No tool is imported.

    The node `tools` lists the tools, the tools of the provider and the MCP servers, and the node `delegate` the
    delegates. The node `approve` exists only if the file has approvals (`approve`, also below `config`).
    """
    tools = [tool.replace(":", ".").rpartition(".")[2] for tool in spec.tools if isinstance(tool, str)]
    tools += [
        f"{tool.get('type') or ', '.join(tool)} (of the provider)" for tool in spec.tools if not isinstance(tool, str)
    ]
    tools += [f"{name} (MCP)" for name in spec.mcp_servers]
    # The graph is drawn from the file alone, without importing tools.
    asks = spec.approve is not None or spec.config.get("approve") is not None
    edges = (*EDGES, *APPROVAL_EDGES) if asks else EDGES
    lines = [
        "---",
        f"title: {json.dumps(spec.name)}",  # YAML
        "---",
        "flowchart TD",
        "    __start__([start])",
        "    plan[plan]",
        f"    tools[{_label('tools', tools)}]",
        f"    delegate[{_label('delegate', [each.name or str(each.agent) for each in spec.delegates])}]",
        *(["    approve[approve]"] if asks else []),
        "    finalize[finalize]",
        "    __end__([end])",
        *(f"    {source} {'-.->' if conditional else '-->'} {target}" for source, target, conditional in edges),
    ]
    return "\n".join(lines)


def _label(node: str, names: list[str]) -> str:
    """Return the quoted label of a node: its name, then each name of a tool or delegate on a line of its own.

    Control characters become escapes, and double quotes the entity `#quot;`.
    """
    label = printable("<br/>".join([node, *map(_escaped, names)]))
    return f'"{label.replace(chr(34), "#quot;")}"'


def _escaped(text: str) -> str:
    """Return a text in which `&`, `<` and `>` are replaced by Mermaid's entities, because Mermaid would interpret them
    as HTML.
    """
    return text.replace("&", "#amp;").replace("<", "#lt;").replace(">", "#gt;")


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_PREFIXES = {"MODULE": "{{module}}", "dot-": "."}
"""Beginning of a template's name → that of its file."""


class Template(StrEnum):
    """What `graph-agent new` adds to the files that every new project has."""

    FASTAPI = "fastapi"
    CHAT = "chat"
    MCP = "mcp"
    TEAM = "team"


_STARTS = {
    Template.FASTAPI: "uvicorn app:app --env-file .env   # POST /ask and /stream",
    Template.CHAT: "python chat.py              # a conversation that asks before it books",
    Template.MCP: "graph-agent mcp             # serves the agent as a tool of MCP clients",
    Template.TEAM: "graph-agent run --config forecaster.yaml 'How is Rome?'   # the second agent alone",
}
"""Template → the command that starts what it adds."""


_ADDED = {
    Template.FASTAPI: "`app.py` | the FastAPI application: `POST /ask` and `POST /stream`",
    Template.CHAT: "`chat.py` | the conversation in the terminal, and the question before a call",
    Template.MCP: "`server.py` | the MCP server that has the tool",
    Template.TEAM: "`forecaster.yaml` | the second agent, a delegate of the first",
}
"""Template → the row of the README's table for the file that it adds."""
_CHANGED: dict[Template | None, str] = {
    Template.CHAT: "`agent.yaml`: the names under `tools`, and under `approve` that of a call that a person decides on",
    Template.MCP: "`server.py`: the import and `add_tool`; the agent finds the server by `mcp_servers` in `agent.yaml`",
    Template.TEAM: "`forecaster.yaml`: the name under `tools`; `agent.yaml`: the delegate's task in `system_prompt`",
}
"""Template → where the tool's name stands in its agent files; absent for that of the base."""


def new(
    name: Annotated[str, typer.Argument(help="The agent's name, and its folder: letters, digits, `-` and `_`.")],
    folder: Annotated[
        Path, typer.Option("--in", help="The folder that the new one is created in.", show_default="the current one")
    ] = Path(),
    template: Annotated[
        Template | None,
        typer.Option(
            "--template",
            "-t",
            help="What to add: a FastAPI application, a chat in the terminal, an MCP server, or a second agent.",
        ),
    ] = None,
) -> None:
    """Create a project: agent file, tool, tests that pass without a key, an evaluation case and a Dockerfile."""
    target = create(name, folder, template)
    out = Terminal()
    out.line(f"Created {target}:")
    for file in sorted(each.relative_to(target) for each in target.rglob("*") if each.is_file()):
        out.line(f"  {file}")
    out.line(f"Next: cd {shlex.quote(str(target))}, then")
    out.print("  python -m pytest        # needs no key; `pip install pytest` if it is missing")
    out.print("  cp .env.example .env    # for your key, which every command reads")
    out.print("  graph-agent doctor      # checks the key, the model and the tools")
    out.print("  graph-agent chat        # --web for a page")
    if template is not None:
        out.print(f"  {_STARTS[template]}")


def create(name: str, folder: Path, template: Template | None = None) -> Path:
    """Write the files of a new agent to the folder `folder / name`, which must not exist, and return that folder.

    Missing parents of the folder are created. A file of `template`, unless it is None, replaces the base file of the
    same path. Placeholders such as `{{name}}` are replaced. If a write fails, the files before it remain.

    Raises:
        InputError: The name does not begin with a letter, is longer than 64 characters, or has others than letters,
            digits, `-` and `_`; or the folder exists or cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"name={printable(name)!r}: a name begins with a letter and has letters, digits, '-' and '_', at most 64."
        )
    from importlib import resources

    target = folder / name
    module = name.replace("-", "_").lower()
    values = {
        "{{start}}": f"{_STARTS[template]}\n" if template else "",
        "{{added}}": f"| {_ADDED[template]} |\n" if template else "",
        "{{changed}}": _CHANGED.get(template, "`agent.yaml`: the name under `tools`"),
        "{{trial}}": " of `--config forecaster.yaml`, which has the tool" if template is Template.TEAM else "",
        "{{name}}": name,
        "{{module}}": module,
    }
    skeleton = resources.files("graph_agent.interfaces.cli") / "skeleton"
    try:
        target.mkdir(parents=True)
        for part in ("base", *([template.value] if template else [])):
            for path, template_text in _templates(skeleton / part):
                file = target / path.replace("{{module}}", module)
                # A template may have a file in the folder that the base has made already.
                file.parent.mkdir(exist_ok=True)
                text = template_text
                for placeholder, value in values.items():
                    text = text.replace(placeholder, value)
                file.write_text(text, encoding="utf-8")
    except FileExistsError:
        raise InputError(f"{target} exists; choose another name, or another folder with --in.") from None
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror}; choose another folder with --in.") from None
    return target


def _templates(folder: Traversable, above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the relative target path and the text of each template file in a folder and its subfolders.

    The target path is the template's path without `.txt` at its end, and with the beginning of its name replaced as in
    `_PREFIXES`.

    Args:
        folder: The folder with the templates.
        above: The folders above, each with a slash, which precede each path; empty for the first folder.
    """
    for each in folder.iterdir():
        if each.is_dir():
            yield from _templates(each, f"{above}{each.name}/")
            continue
        path = each.name.removesuffix(".txt")
        for begin, replaced in _PREFIXES.items():
            path = path.replace(begin, replaced, 1) if path.startswith(begin) else path
        yield f"{above}{path}", each.read_text(encoding="utf-8")
