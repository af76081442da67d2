"""The coding clients themselves, as npm and PyPI have them, each against a served parrot.

They are installed below `.tools/`, once, and reach loopback only: every other address is behind a proxy that is not
there. Each asks the agent for a call of its shell tool, runs it, and prints the answer with the result.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from scripts.environments import make_environment
from tests.server.process import ROOT

TOOLS = ROOT / ".tools" / "coding-clis"
MADE = "made-here"
_CALL = f'{{"command": "echo {MADE}", "description": "d"}}'
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


def _opencode(provider: str) -> Cli:
    command = ("opencode", "run", "-m", f"{provider}/parrot")
    quiet = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    return Cli("opencode-ai", command, f"!call bash {_CALL}", f"bash said: {MADE}", quiet)


CLIS = {
    "Codex CLI": Cli(
        "@openai/codex",
        ("codex", "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "-"),
        f'!call exec_command {{"cmd": "echo {MADE}"}}',
        expected=f"Output:\n{MADE}",
        environment={"CODEX_HOME": "{home}/.codex", "PARROT_KEY": "{key}"},
    ),
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
                "hello there",
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
    until = time.monotonic() + within_s
    _configure(url, folder)
    found: dict[str, list[str]] = {}
    for name, cli in CLIS.items():
        try:
            program = _install(cli, until - time.monotonic())
            found[name] = _ask(program, cli, url, key, folder, until - time.monotonic())
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
    (folder / ".codex" / "config.toml").write_text(
        'model = "parrot"\nmodel_provider = "served"\n[model_providers.served]\nname = "served"\n'
        f'base_url = "{url}/v1"\nwire_api = "responses"\nenv_key = "PARROT_KEY"\n'
    )
    options = {"baseURL": f"{url}/v1", "apiKey": "{env:PARROT_KEY}"}
    providers = {
        name: {"npm": package, "options": options, "models": {"parrot": {"name": "parrot"}}}
        for name, package in OPENCODE_PROVIDERS.items()
    }
    (folder / "opencode.json").write_text(json.dumps({"share": "disabled", "provider": providers}))


def _ask(program: Path, cli: Cli, url: str, key: str, folder: Path, within_s: float) -> list[str]:
    own = {name: text.format(url=url, key=key, home=folder) for name, text in cli.environment.items()}
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), _NO_PROXY_THERE)
    loopback = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "HOME": str(folder), "PARROT_KEY": key}
    done = subprocess.run(
        [str(program), *cli.command[1:]],
        check=False,
        cwd=folder,
        input=cli.prompt,
        capture_output=True,
        text=True,
        timeout=max(within_s, 0.1),
        env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **proxies, **loopback, **own},
    )
    if done.returncode == 0 and done.stdout.count(cli.expected) == 1:
        return []
    return [f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}\n  and not, once, {cli.expected!r}"]
