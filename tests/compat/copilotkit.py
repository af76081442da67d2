"""CopilotKit's page in Chromium, over its runtime, with an agent that asks for approvals."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tests.interfaces.server.process import PARROT, Served, eventually, serving
from tests.support.chromium import INSTALL, chromium_program

_PACKAGES = [
    "@copilotkit/runtime@1.75.0",
    "@copilotkit/react-core@1.74.0",
    "@ag-ui/client@0.0.59",
    "react@19",
    "react-dom@19",
    "esbuild@0.28",
]
_BUNDLE = ["--bundle", "--minify", "--format=esm", "--loader:.css=empty", '--define:process.env.NODE_ENV="production"']
_INSTALL_S = 600
_WAIT_MS = 60_000
_ASKING = {**PARROT, "config": {"model_retries": 0, "approve": ["look_up"]}}
_CALL = '!call look_up {"key": "k"}'
_TWO = '!call look_up {"key": "k"}\n!call look_up {"key": "l"}'
_REJECTED = "Not run: a person rejected this call. Reason: no"


def faults(folder: Path) -> dict[str, list[str]]:
    """The differences between what CopilotKit's page shows and what is expected, by case.

    Args:
        folder: A folder for the packages and the served agent, which may be missing.
    """
    if shutil.which("npm") is None:
        return {"CopilotKit": ["npm is not installed; install Node.js 20 or newer."]}
    if (program := chromium_program()) is None:
        return {"CopilotKit": [INSTALL]}
    folder.mkdir(exist_ok=True)
    _install(folder)
    found: dict[str, list[str]] = {}
    with (
        serving(folder, agent=_ASKING) as server,
        _runtime(folder, server.url) as url,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, case in _CASES.items():
            try:
                found[f"CopilotKit: {name}"] = case(browser, url, server)
            except Exception as error:  # noqa: BLE001 - a case that fails is a finding
                found[f"CopilotKit: {name}"] = [f"{type(error).__name__}: {str(error)[:500]}"]
        browser.close()
    return found


def _install(folder: Path) -> None:
    (folder / "package.json").write_text("{}")
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", *_PACKAGES]
    subprocess.run(command, cwd=folder, check=True, timeout=_INSTALL_S)
    # A module is resolved from its own folder.
    for name in ("copilotkit_page.jsx", "copilotkit_server.mjs"):
        shutil.copy(Path(__file__).with_name(name), folder)
    command = ["node_modules/.bin/esbuild", "copilotkit_page.jsx", "--outfile=page.js", *_BUNDLE]
    subprocess.run([*command, "--log-level=error"], cwd=folder, check=True, timeout=_INSTALL_S)


@contextmanager
def _runtime(folder: Path, url: str) -> Iterator[str]:
    """The address of CopilotKit's runtime and page."""
    environment = {**os.environ, "COPILOTKIT_TELEMETRY_DISABLED": "true", "DO_NOT_TRACK": "1"}
    with (folder / "runtime.log").open("w") as log:
        process = subprocess.Popen(
            ["node", "copilotkit_server.mjs", f"{url}/agui"],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()
            process.communicate()


def _opened(browser: Browser, url: str, thread: str) -> Page:
    page = browser.new_page()
    page.set_default_timeout(_WAIT_MS)
    page.goto(f"{url}/?thread={thread}")
    page.wait_for_function("window.isConnected")
    return page


def _send(page: Page, text: str, asks: int = 1) -> None:
    page.evaluate("text => { window.send(text).catch(() => null) }", text)
    page.wait_for_function("count => document.querySelectorAll('.asked').length === count", arg=asks)


def _shown(page: Page) -> list[str]:
    """The results and the answer, when the run has ended."""
    page.wait_for_function("!window.isRunning && window.messages.at(-1)?.role === 'assistant'")
    messages: list[dict[str, Any]] = page.evaluate("window.messages")
    own = [each for each in messages if each["role"] in ("tool", "assistant") and not each.get("toolCalls")]
    return [str(each.get("content")) for each in own]


def _differences(page: Page, *results: str) -> list[str]:
    shown, expected = _shown(page), [*results, "You said"]
    page.close()
    # The parrot's answer repeats all that the model reads.
    found = [*shown[:-1], *(shown[-1][:8] for _ in shown[-1:])]
    return [] if found == expected else [f"{found!r}, not {expected!r}"]


def _answered(answer: str, result: str) -> Callable[[Browser, str, Served], list[str]]:
    def case(browser: Browser, url: str, server: Served) -> list[str]:
        page = _opened(browser, url, f"copilot-{answer}")
        _send(page, _CALL)
        page.click(f".{answer}")
        return _differences(page, result)

    return case


def _two(browser: Browser, url: str, server: Served) -> list[str]:
    page = _opened(browser, url, "copilot-two")
    _send(page, _TWO, 2)
    page.locator(".edit").nth(0).click()
    page.locator(".reject").nth(1).click()
    return _differences(page, "the value of z", _REJECTED)


def _reloaded(browser: Browser, url: str, server: Served) -> list[str]:
    page = _opened(browser, url, "copilot-reload")
    _send(page, _CALL)
    page.reload()
    page.wait_for_function("window.isConnected")
    page.evaluate("() => { window.connect() }")
    page.click(".approve")
    return _differences(page, "the value of k")


def _killed(browser: Browser, url: str, server: Served) -> list[str]:
    page, go = _opened(browser, url, "copilot-killed"), server.log.with_name("go")
    page.evaluate("text => { window.send(text).catch(() => null) }", f'!call wait_for {{"file": "{go}"}}')
    eventually(go.with_name("go.pid").exists)
    server.kill_all()
    page.wait_for_function("!window.isRunning && window.failure")
    page.close()
    return []


_CASES: dict[str, Callable[[Browser, str, Served], list[str]]] = {
    "approve": _answered("approve", "the value of k"),
    "edit": _answered("edit", "the value of z"),
    "reject": _answered("reject", _REJECTED),
    "two approvals in one wave": _two,
    "reload": _reloaded,
    # It ends the server.
    "server killed": _killed,
}
