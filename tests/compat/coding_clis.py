"""The coding clients themselves, as npm and PyPI have them, each against a served parrot and an agent that fails.

They are installed below `.tools/`, once, and reach loopback only: every other address is behind a proxy that is not
there. Each asks the parrot for a call of its shell tool, runs it, and prints the answer with the result. The other
agent books a room, and then fails, or its process ends: although the clients repeat their requests, it books once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from scripts.environments import make_environment
from tests.interfaces.server.booking import BOOKER, bookings
from tests.interfaces.server.process import ROOT, serving

TOOLS = ROOT / ".tools" / "coding-clis"
MADE = "made-here"
_CALL = f'{{"command": "echo {MADE}", "description": "d"}}'
_GREETING = "hello there"
_FAILED = "This request failed."
_NO_PROXY_THERE = "http://127.0.0.1:9"
OPENCODE_PROVIDERS = {
    "chat": "@ai-sdk/openai-compatible",
    "responses": "@ai-sdk/openai",
    "messages": "@ai-sdk/anthropic",
}


@dataclass(frozen=True)
class Cli:
    """A client: how it is installed and asked."""

    package: str
    command: tuple[str, ...]
    prompt: str
    """What it is asked, on its standard input."""
    expected: str = MADE
    """Text that its output must hold once."""
    environment: dict[str, str] = field(default_factory=dict)
    """Further variables; `{url}` and `{key}` are replaced."""

    def asking(self, text: str) -> Cli:
        """The client, with another question."""
        command = tuple(text if each == _GREETING else each for each in self.command)
        return replace(self, command=command, prompt=text if self.prompt else "")


def _opencode(provider: str) -> Cli:
    command = ("opencode", "run", "-m", f"{provider}/parrot")
    quiet = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    return Cli("opencode-ai", command, f"!call bash {_CALL}", f"bash said: {MADE}", quiet)


def _codex(provider: str) -> Cli:
    options = ("--skip-git-repo-check", "--sandbox", "danger-full-access", "-c", f'model_provider="{provider}"')
    return Cli(
        "@openai/codex",
        ("codex", "exec", *options, "-"),
        f'!call exec_command {{"cmd": "echo {MADE}"}}',
        expected=f"Output:\n{MADE}",
        environment={"CODEX_HOME": "{home}/.codex", "PARROT_KEY": "{key}"},
    )


CLIS = {
    "Codex CLI": _codex("served"),
    "Codex CLI over a WebSocket": _codex("socket"),
    "Claude Code": Cli(
        "@anthropic-ai/claude-code",
        ("claude", "-p", "--allowedTools", "Bash"),
        f"!call Bash {_CALL}",
        f"Bash said: {MADE}",
        {
            "ANTHROPIC_BASE_URL": "{url}",
            "ANTHROPIC_API_KEY": "{key}",
            "ANTHROPIC_MODEL": "parrot",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": "parrot",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        },
    ),
    **{f"OpenCode, {name}": _opencode(name) for name in OPENCODE_PROVIDERS},
    "aider": Cli(
        "aider-chat",
        (
            *(
                "aider",
                "--model",
                "openai/parrot",
                "--no-git",
                "--yes-always",
                "--no-pretty",
                "--message",
                _GREETING,
            ),
            *("--no-check-update", "--no-show-model-warnings", "--no-analytics", "--no-show-release-notes"),
        ),
        "",
        "/ hello there",
        {"OPENAI_API_BASE": "{url}/v1", "OPENAI_API_KEY": "{key}", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    ),
}


def faults(url: str, key: str, folder: Path, within_s: float) -> dict[str, list[str]]:
    """Ask each client, if there is time to install it; return the faults by client, and print the skipped ones.

    Args:
        url: The server.
        key: Its API key.
        folder: A new home for the clients.
        within_s: Seconds that installing and asking may take together; clients for which they do not suffice are
            skipped.
    """
    _configure(url, folder)

    def ask(name: str, program: Path, within_s: float) -> list[str]:
        done = _run(program, CLIS[name], url, key, folder, within_s)
        fits = done.returncode == 0 and done.stdout.count(CLIS[name].expected) == 1
        return [] if fits else _report(done, f"and not, once, {CLIS[name].expected!r}")

    return _each(ask, within_s)


def faults_of_repeats(key: str, folder: Path, within_s: float) -> dict[str, list[str]]:
    """Ask each client for a booking whose run fails, or whose server ends, after the write; arguments as for `faults`.

    A client may repeat its request as it likes: there must be one booking for each question.
    """
    folder.mkdir()
    agent = {**BOOKER, "name": "parrot"}
    with serving(folder, "--workers", "2", agent=agent, environment={"GRAPH_AGENT_API_KEYS": key}) as server:
        _configure(server.url, home := folder / "home")

        def ask(name: str, program: Path, within_s: float) -> list[str]:
            found: list[str] = []
            for cause in ("fail", "die"):
                place = folder / cause / "".join(filter(str.isalnum, name))
                place.mkdir(parents=True)
                (place / cause).touch()
                done = _run(program, CLIS[name].asking(f"book {place}"), server.url, key, home, within_s)
                if (count := bookings(place)) != 1:
                    found += _report(done, f"{count} bookings of a run that should {cause}")
                elif cause == "fail" and _FAILED not in done.stdout:
                    found += _report(done, f"and not {_FAILED!r}")
            return found

        return {f"{name}, repeating": faults for name, faults in _each(ask, within_s).items()}


def _each(ask: Callable[[str, Path, float], list[str]], within_s: float) -> dict[str, list[str]]:
    """Install and ask each client, and print the ones that are skipped; return the faults by client."""
    until = time.monotonic() + within_s
    found: dict[str, list[str]] = {}
    for name, cli in CLIS.items():
        try:
            program = _install(cli, until - time.monotonic())
            found[name] = ask(name, program, until - time.monotonic())
        except subprocess.TimeoutExpired:
            print(f"{name}: skipped, because {within_s:g} seconds did not suffice to install and ask it.")  # noqa: T201 - a check prints its findings
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{name}: skipped, because it cannot be installed: {error}")  # noqa: T201 - as above
    return found


def _install(cli: Cli, within_s: float) -> Path:
    """Install a client, unless it is there; return its program."""
    home = TOOLS / cli.package.replace("/", "-")
    is_npm = cli.package != "aider-chat"
    program = home / ("node_modules/.bin" if is_npm else "bin") / cli.command[0]
    if (home / "ready").exists():
        return program
    if is_npm and shutil.which("npm") is None:
        raise FileNotFoundError("npm is missing; install Node.js 20 or newer")
    home.mkdir(parents=True, exist_ok=True)
    if is_npm:
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(home), cli.package]
        subprocess.run(command, check=True, capture_output=True, timeout=max(within_s, 0.1))
    else:
        make_environment(home, [cli.package], within_s=max(within_s, 0.1))
    (home / "ready").touch()
    return program


def _configure(url: str, folder: Path) -> None:
    (folder / ".codex").mkdir(parents=True)
    served = f'base_url = "{url}/v1"\nwire_api = "responses"\nenv_key = "PARROT_KEY"\n'
    (folder / ".codex" / "config.toml").write_text(
        f'model = "parrot"\n[model_providers.served]\nname = "served"\n{served}'
        f'[model_providers.socket]\nname = "socket"\nsupports_websockets = true\n{served}'
    )
    options = {"baseURL": f"{url}/v1", "apiKey": "{env:PARROT_KEY}"}
    providers = {
        name: {"npm": package, "options": options, "models": {"parrot": {"name": "parrot"}}}
        for name, package in OPENCODE_PROVIDERS.items()
    }
    (folder / "opencode.json").write_text(json.dumps({"share": "disabled", "provider": providers}))


def _run(
    program: Path, cli: Cli, url: str, key: str, folder: Path, within_s: float
) -> subprocess.CompletedProcess[str]:
    own = {name: text.format(url=url, key=key, home=folder) for name, text in cli.environment.items()}
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), _NO_PROXY_THERE)
    loopback = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "HOME": str(folder), "PARROT_KEY": key}
    return subprocess.run(
        [str(program), *cli.command[1:]],
        check=False,
        cwd=folder,
        input=cli.prompt,
        capture_output=True,
        text=True,
        timeout=max(within_s, 0.1),
        env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **proxies, **loopback, **own},
    )


def _report(done: subprocess.CompletedProcess[str], what: str) -> list[str]:
    return [f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}\n  {what}"]
