"""Reads the fenced blocks of a Markdown page and runs them in order, as a reader would.

A comment right before a block changes how it is run:

- `<!-- script: [...] -->`: replies of the scripted model from here on, each a string or a JSON object; `[]` for a model
  that receives no request.
- `<!-- file: NAME -->`: the block is also saved under this name in the page's folder.
- `<!-- not run: REASON -->`: the block is not run.
- `<!-- output: REASON -->`: the page does not show what the block prints.

A `text` block is the output of the block before it; `…` in it matches any text of a line, or any lines if alone.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from graph_agent import ScriptedChatModel
from graph_agent.evaluation import read_cases
from graph_agent.models.scripted import mock_model_from_env
from graph_agent.spec import load_spec
from scripts.docs_tabs import CALL_KEYS
from tests.support.warm_process import ONLY_OUR_PLUGIN, Process, start_python, warm_commands, warm_python

ROOT = Path(__file__).parents[2]
_SCRIPTS = Path(sys.executable).parent
POSTGRES = "postgresql://me@db.example/agents"
"""The address of a PostgreSQL database on the pages; the tests run the blocks of a page with one of their own."""
WITHIN_S = 120
"""Seconds that one command or the start of one server may take on a loaded machine."""
_PARTS = re.compile(
    r"^<!-- (?P<key>script|file|not run|output): (?P<value>.*?) -->$"
    r"|^```(?P<language>[^\n]*)\n(?P<text>.*?)^```$",
    re.M | re.S,
)
_SERVER = re.compile(r"^graph-agent (?:serve|a2a)\b(?!.*--list-settings)")
_PORT = re.compile(r"(?:--port|-p)[ =](\d+)")


@dataclass
class Block:
    """One fenced block of a page."""

    line: int
    language: str
    text: str
    directives: dict[str, str]
    """The comments right before it: key → value."""
    output: str | None = None
    """The `text` block after it; None if there is none."""


def read_blocks(page: Path) -> list[Block]:
    """Return the blocks of a page in order; a `text` block that is an output is part of its block."""
    source = page.read_text(encoding="utf-8")
    blocks: list[Block] = []
    directives: dict[str, str] = {}
    for part in _PARTS.finditer(source):
        if part["key"]:
            directives[part["key"]] = part["value"]
            continue
        line = source[: part.start()].count("\n") + 1
        if part["language"] == "text" and not directives:
            assert blocks, f"{page.name}:{line}: a text block is the output of a block before it"
            assert blocks[-1].output is None, f"{page.name}:{line}: the block before has its output already"
            blocks[-1].output = part["text"]
            continue
        blocks.append(Block(line, part["language"], part["text"], directives))
        directives = {}
    assert not directives, f"{page.name}: no block follows {directives}"
    fences = re.findall(r"^\s*```", source, re.M)
    assert len(fences) == 2 * len(re.findall(r"^```[^\n]*\n.*?^```$", source, re.M | re.S)), (
        f"{page.name}: a fence is indented or open"
    )
    return blocks


@dataclass
class PageRun:
    """One run of a page's blocks, in a folder of its own that has a link to the examples.

    Python blocks share one module and one event loop, in this process. Console blocks run in bash. Servers that they
    start listen on a free port, which replaces the port on the page, until the page ends.
    """

    page: Path
    folder: Path
    monkeypatch: pytest.MonkeyPatch
    postgres: str = ""
    """The address of an empty database that takes the place of `POSTGRES`; empty for a page that names none."""
    _ports: dict[str, str] = field(default_factory=dict)
    _models: list[ScriptedChatModel] = field(default_factory=list)

    def run(self) -> None:
        """Run every block, and check that each script of the page's agents was used up."""
        (self.folder / "examples").symlink_to(ROOT / "examples")
        self.monkeypatch.chdir(self.folder)
        self.monkeypatch.syspath_prepend(str(self.folder))
        for name in [name for name in os.environ if name.startswith(("OPENAI_", "LANGSMITH_", "GRAPH_AGENT_"))]:
            self.monkeypatch.delenv(name)
        self.monkeypatch.setattr("graph_agent.models.scripted.mock_model_from_env", self._scripted)
        self.monkeypatch.setattr("graph_agent.agent_file.factory.mock_model_from_env", self._scripted)
        self.monkeypatch.setattr(sys, "executable", warm_python())
        module = types.ModuleType(f"page_{self.page.stem.replace('-', '_')}")
        self.monkeypatch.setitem(sys.modules, module.__name__, module)
        with asyncio.Runner() as runner, contextlib.ExitStack() as servers:
            servers.callback(self._forget_modules)
            for block in read_blocks(self.page):
                try:
                    self._run(block, module, runner, servers)
                except Exception as error:
                    error.add_note(f"in the block at {self.page}:{block.line}")
                    raise
        for model in self._models:
            if model.requests:  # a page may open an agent without running it
                model.assert_spent()

    def _forget_modules(self) -> None:
        """Remove the modules of this page's files, whose names the next page may use for others."""
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file is not None and Path(file).is_relative_to(self.folder):
                del sys.modules[name]

    def _run(self, block: Block, module: types.ModuleType, runner: asyncio.Runner, servers: Any) -> None:
        if "script" in block.directives:
            self._set_script(json.loads(block.directives["script"]))
        text = self._with_ports(block.text)
        if "file" in block.directives:
            file = self.folder / block.directives["file"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        if "not run" in block.directives:
            return
        match block.language:
            case "python":
                printed = "" if "file" in block.directives else self._python(text, module, runner)
            case "console":
                printed = self._console(text, servers)
            case "yaml":
                printed = self._check_yaml(text, block)
            case "json":
                printed = json.loads(text) and ""
            case "markdown" if "file" in block.directives:
                printed = ""
            case other:
                raise AssertionError(f"A block of language {other!r} cannot be run; give the reason: <!-- not run: -->")
        for shown, real in self._ports.items():
            printed = printed.replace(f"127.0.0.1:{real}", f"127.0.0.1:{shown}")
        if self.postgres:
            printed = printed.replace(self.postgres, POSTGRES)
        if "output" not in block.directives:
            assert_shown(printed, block.output)

    def _set_script(self, replies: list[Any]) -> None:
        given = [
            reply if isinstance(reply, str) or reply.keys() & CALL_KEYS else json.dumps(reply) for reply in replies
        ]
        if given:
            self.monkeypatch.setenv("DEBUG_MOCK_RESPONSES", json.dumps(given))
        else:
            self.monkeypatch.delenv("DEBUG_MOCK_RESPONSES", raising=False)

    def _scripted(self) -> ScriptedChatModel | None:
        model = mock_model_from_env()
        if model is not None:
            self._models.append(model)
        return model

    def _python(self, text: str, module: types.ModuleType, runner: asyncio.Runner) -> str:
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(text, str(self.page), "exec", flags=flags, dont_inherit=True)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(_finish(eval(code, module.__dict__)))
            else:
                eval(code, module.__dict__)
        return printed.getvalue()

    def _console(self, text: str, servers: contextlib.ExitStack) -> str:
        commands = text.replace("\\\n", " ").splitlines()
        started = [command.partition(" #")[0].strip() for command in commands if _SERVER.match(command)]
        if not started:
            return self._bash(text)
        for command in started:
            servers.enter_context(self._server(command))
        return self._bash("\n".join(self._with_ports(line) for line in commands if not _SERVER.match(line)))

    def _bash(self, script: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        assert done.returncode == 0, f"exit status {done.returncode}:\n{done.stdout}"
        return done.stdout

    @contextlib.contextmanager
    def _server(self, command: str) -> Iterator[None]:
        shown = found[1] if (found := _PORT.search(command)) else "8000"
        words = [*shlex.split(_PORT.sub("", command)), "--port", "0"][1:]
        log = self.folder / f"server_{shown}.log"
        with log.open("wb") as out:
            process = start_python(
                ["graph_agent.cli", *words],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=out.fileno(),
                stderr=out.fileno(),
            )
        try:
            self._ports[shown] = _listening_port(process, log)
            yield
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.wait()

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(warm_commands()), str(_SCRIPTS), os.environ["PATH"]])
        return {**os.environ, "PATH": path, "NO_COLOR": "1", "COLUMNS": "200", **ONLY_OUR_PLUGIN}

    def _with_ports(self, text: str) -> str:
        for shown, real in self._ports.items():
            text = text.replace(f"127.0.0.1:{shown}", f"127.0.0.1:{real}")
        return text.replace(POSTGRES, self.postgres or POSTGRES)

    def _check_yaml(self, text: str, block: Block) -> str:
        content = yaml.safe_load(text)
        file = self.folder / block.directives.get("file", "shown.yaml")
        if isinstance(content, dict) and "cases" in content:
            file.write_text(text, encoding="utf-8")
            read_cases(file)
            return ""
        if not isinstance(content, dict) or not ({"name", "model"} <= content.keys()):
            file.write_text(f"name: a\nmodel: m\n{text}", encoding="utf-8")  # some keys of an agent file
        else:
            file.write_text(text, encoding="utf-8")
        load_spec(file)
        return ""


def assert_shown(printed: str, shown: str | None) -> None:
    """Check that a page shows what a block printed."""
    expected = _lines(shown or "")
    pattern = "".join(
        "(?:.*\n)*" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + "\n" for line in expected
    )
    actual = "".join(f"{line}\n" for line in _lines(printed))
    if re.fullmatch(pattern, actual) is None:
        raise AssertionError(f"The page shows:\n{shown or 'no output'}\nThe block printed:\n{actual}")


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


async def _finish(work: Any) -> None:
    await work


def _listening_port(process: Process, log: Path) -> str:
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(rb"(?:Uvicorn running on|listens at) http://[^\s:]+:(\d+)", log.read_bytes()):
            return found[1].decode()
        time.sleep(0.01)
    raise AssertionError(f"The server does not listen:\n{log.read_text()}")
