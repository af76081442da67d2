"""A new agent's files, the checks of `doctor`, and the drawn graph."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.interfaces.cli.agent_file import APPROVAL_EDGES, EDGES, Template, create, mermaid
from graph_agent.spec import load_spec
from tests.support.agents import echo
from tests.support.cli import run_cli
from tests.support.openai_stub import Failure, Reply, StubFactory, openai_stub
from tests.support.warm_process import ONLY_OUR_PLUGIN, start_python, warm_python

__all__ = ["openai_stub"]

SERVER = Path(__file__).parents[3] / "examples" / "hotel" / "server.py"


def check_results(folder: Path, *options: str, **environment: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """The exit status, and the results by check."""
    done = run_cli(folder, "doctor", "--json", *options, script=None, given="", **environment)
    found: dict[str, list[dict[str, str]]] = {}
    for line in done.stdout.splitlines():
        check_result = json.loads(line)
        found.setdefault(check_result["check"], []).append(check_result)
    return done.returncode, found


@pytest.mark.parametrize(
    ("entry", "environment", "refusal"),
    [
        ("memory: true", {}, "memory: this server has no API keys"),
        ("memory: true", {"GRAPH_AGENT_API_KEYS": "ada:" + "k" * 20}, None),
        ("db: 'memory:'", {"GRAPH_AGENT_WORKERS": "2"}, "--workers 2 with db='memory:'"),
        ("", {"GRAPH_AGENT_HOST": "0.0.0.0"}, "host='0.0.0.0' can be reached from other machines"),
        ("", {"GRAPH_AGENT_DRAIN_S": "soon"}, "GRAPH_AGENT_DRAIN_S=soon"),
    ],
)
def test_doctor_reports_what_serve_refuses(
    tmp_path: Path, entry: str, environment: dict[str, str], refusal: str | None
) -> None:
    (tmp_path / "agent.yaml").write_text(f"name: a\nmodel: openai:gpt-4o-mini\n{entry}\n")
    environment = {"GRAPH_AGENT_API_KEYS": "", "OPENAI_API_KEY": "none", **environment}

    _, found = check_results(tmp_path, **environment)
    summary = run_cli(tmp_path, "doctor", script=None, **environment).stdout.splitlines()[-1]
    started = run_cli(tmp_path, "serve", script=None, **environment) if refusal else None

    (server,) = found["server"]
    if started is None:
        assert (server["status"], server["text"]) == ("ok", "`graph-agent serve` can start, with 1 API key")
    else:
        begin = f"`graph-agent serve` would not start: {refusal}"
        assert (server["status"], server["text"][: len(begin)]) == ("warning", begin)
        assert started.stderr.strip().removeprefix("error: ") in server["text"]
        assert summary.endswith(" warnings."), summary


@pytest.mark.sampled(3)
@pytest.mark.parametrize("template", [None, *Template])
def test_the_tests_of_a_new_agent_pass(tmp_path: Path, template: Template | None) -> None:
    created = run_cli(tmp_path, "new", "my-agent", *(["--template", template] if template else []))

    command = [warm_python(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore"]
    tested = subprocess.run(
        command,
        cwd=tmp_path / "my-agent",
        env={**os.environ, **ONLY_OUR_PLUGIN},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert (created.returncode, tested.returncode, "passed" in tested.stdout) == (0, 0, True), tested.stdout


@pytest.mark.parametrize("template", [None, *Template])
def test_a_new_agent_is_code_that_checkers_accept(tmp_path: Path, template: Template | None) -> None:
    folder = create("mine", tmp_path, template)

    readme = (folder / "README.md").read_text()
    named = {path for path in re.findall(r"`([\w./-]+)`", readme) if path.endswith((".py", ".yaml"))}
    files = {each.relative_to(folder).as_posix() for each in folder.rglob("*.*") if each.is_file()}
    assert named == {path for path in files if path.endswith((".py", ".yaml")) and "/" not in path}
    assert "{{" not in readme
    # Imports are sorted as those of another project.
    ruff = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--no-cache",
        "--line-length",
        "120",
        "--select",
        "E,F,I",
    ]
    checked = [
        subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
        for command in ([*ruff, "."], [str(Path(sys.executable).with_name("hadolint")), "Dockerfile"])
    ]

    assert [each.returncode for each in checked] == [0, 0], [each.stdout for each in checked]
    left = [str(file) for file in folder.rglob("*") if file.is_file() and re.search(r"\{\{\w|MODULE", file.read_text())]
    assert left == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("template", [None, *Template])
def test_a_server_of_a_new_agent_answers(tmp_path: Path, template: Template | None) -> None:
    folder = create("mine", tmp_path, template)
    (folder / ".env").write_text('DEBUG_MOCK_RESPONSES=["Take an umbrella."]\nGRAPH_AGENT_DB=memory:\n')
    is_app = template is Template.FASTAPI
    command = ["uvicorn", "app:app", "--env-file", ".env"] if is_app else ["graph_agent.cli", "serve"]

    with serving_program(folder, *command) as client:
        if is_app:
            answered = client.post("/ask", json={"text": "Umbrella?", "session": "s1"}).json()["text"]
        else:
            body = {"model": "mine", "messages": [{"role": "user", "content": "Umbrella?"}]}
            answered = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]

    assert answered == "Take an umbrella."


@pytest.mark.sampled(3)
@pytest.mark.parametrize("template", [None, *Template])
def test_the_script_of_a_new_agent_calls_its_tool(tmp_path: Path, template: Template | None) -> None:
    folder = create("mine", tmp_path, template)
    example = (folder / ".env.example").read_text()
    (folder / ".env").write_text(example.replace("# DEBUG_MOCK_RESPONSES", "DEBUG_MOCK_RESPONSES"))
    file = re.search(r"of `--config (\S+)`", example)

    done = run_cli(folder, "run", "--config", file[1] if file else "agent.yaml", "How is Bergen?")

    assert (done.returncode, done.stdout.splitlines()[-2:]) == (
        0,
        ["  step 1: tool_call weather", "Take an umbrella."],
    ), done.stderr


@contextmanager
def serving_program(folder: Path, *command: str) -> Iterator[httpx.Client]:
    """Start a server on a free port, and yield a client of it."""
    unwanted = {"DEBUG_MOCK_RESPONSES", "OPENAI_API_KEY", "GRAPH_AGENT_DB"}
    variables = {name: value for name, value in os.environ.items() if name not in unwanted}
    log = folder / "log"
    with log.open("wb") as out:
        streams: dict[str, int] = {"stdin": subprocess.DEVNULL, "stdout": out.fileno(), "stderr": out.fileno()}
        process = start_python([*command, "--port", "0"], cwd=folder, env=variables, **streams)
    try:
        deadline = time.monotonic() + 180
        while (found := re.search(r"Uvicorn running on (http://\S+)", log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.01)
        with httpx.Client(base_url=found[1], trust_env=False, timeout=60) as client:
            yield client
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", ["Yes", "null", "a" * 64, "x_1-y"])
def test_a_new_agent_has_its_name(tmp_path: Path, name: str) -> None:
    folder = create(name, tmp_path)

    assert load_spec(folder / "agent.yaml").name == name


@pytest.mark.parametrize(
    ("name", "complaint"), [("../up", "a name begins with a letter"), ("1st", "a name begins"), ("taken", "exists")]
)
def test_an_invalid_or_existing_name_is_refused(tmp_path: Path, name: str, complaint: str) -> None:
    (tmp_path / "taken").mkdir()

    done = run_cli(tmp_path, "new", name)

    assert (done.returncode, done.stderr.startswith("error: "), complaint in done.stderr) == (2, True, True)


def test_doctor_finds_no_problem_in_an_agent_that_works(tmp_path: Path) -> None:
    folder = create("fine", tmp_path)
    (folder / "agent.yaml").write_text(
        (folder / "agent.yaml").read_text()
        + f"mcp_servers: {{hotel: {{transport: stdio, command: python, args: ['{SERVER}']}}}}\n"
        + "credentials: {token: {env: MY_TOKEN}}\n"
    )
    run_cli(folder, "run", "hi", script=["Hello."], MY_TOKEN="x")

    environment = {"MY_TOKEN": "x", "OPENAI_API_KEY": "y", "HOTEL_DB": str(tmp_path / "hotel.db")}
    # Nothing listens there, which is no problem of the agent.
    status, found = check_results(folder, OPENAI_BASE_URL="http://127.0.0.1:9/v1", **environment)

    assert (status, {check: [each["status"] for each in results] for check, results in found.items()}) == (
        0,
        {
            "versions": ["ok"],
            "agent file": ["ok"],
            "keys": ["ok", "ok"],
            "model": ["warning"],
            "MCP": ["ok"],
            "agent": ["ok"],
            "database": ["ok"],
            "server": ["ok"],
        },
    )
    assert found["database"][0]["text"] == "sqlite:///graph_agent.db: writable, 1 session"


def test_a_damaged_session_is_found_by_doctor_and_continued_by_no_command(tmp_path: Path) -> None:
    folder = create("damaged", tmp_path)
    run_cli(folder, "run", "hi", "-s", "s1", script=["Hello."])
    with closing(sqlite3.connect(folder / "graph_agent.db")) as database, database:
        database.execute(
            "UPDATE checkpoints SET parent_checkpoint_id = 'lost' WHERE json_extract(metadata, '$.step') = 1"
        )

    ran = run_cli(folder, "run", "and now?", "-s", "s1", script=["Hello again."])
    _, found = check_results(folder, OPENAI_API_KEY="y")
    listed = run_cli(folder, "sessions", "--json").stdout

    assert (ran.returncode, "Session 's1' is damaged" in ran.stderr, json.loads(listed)["id"]) == (2, True, "s1")
    assert [(each["status"], each["fix"]) for each in found["sessions"]] == [("problem", "graph-agent sessions rm s1")]


def test_doctor_names_a_fix_for_each_problem(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text(
        "name: a\nmodel: openai:gpt-4o-mini\ntools: ['nowhere:tool']\n"
        "mcp_servers: {gone: {transport: stdio, command: no-such-program}}\n"
        "credentials: {token: {env: MY_TOKEN}}\ndb: sqlite:///missing/x.db\n"
    )

    status, found = check_results(tmp_path)

    problems = {
        check: [each["fix"] != "" for each in results if each["status"] == "problem"]
        for check, results in found.items()
        if check not in ("versions", "agent file", "server")
    }
    assert (status, problems) == (
        1,
        {"keys": [True, True], "model": [True], "MCP": [True], "agent": [True], "database": [True]},
    )
    assert list(tmp_path.glob("*.db*")) == []


def test_doctor_masks_the_password_of_an_address(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text(
        "name: a\nmodel: openai:gpt-4o-mini\ndelegates: [{name: far, url: 'http://me:hidden@127.0.0.1:1/'}]\n"
    )

    done = run_cli(tmp_path, "doctor", "--json")

    assert ("http://***@127.0.0.1:1/" in done.stdout, "hidden" in done.stdout) == (True, False)


class Broken(BaseHTTPRequestHandler):
    """An endpoint whose list of models is broken, and which refuses an empty completion request."""

    def do_GET(self) -> None:
        self._answer(500)

    def do_POST(self) -> None:
        self._answer(400)

    def _answer(self, status: int, page: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("content-type", "text/html" if page else "application/json")
        self.send_header("content-length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *args: Any) -> None: ...


class Page(Broken):
    """The same with a web page in place of the list."""

    def do_GET(self) -> None:
        self._answer(200, b"<html></html>")


OTHER = {
    "name": "b",
    "model": "anthropic:claude-haiku-4-5",
    "config": {"fallback_models": ["openai:gpt-4o"]},
}


@pytest.mark.parametrize(("kind", "fault"), [(Broken, "fails with HTTP 500"), (Page, "answers with no list of models")])
def test_doctor_reports_a_broken_list_of_models_and_a_dead_delegate(
    tmp_path: Path, kind: type[Broken], fault: str
) -> None:
    agent = {"name": "a", "delegates": [{"name": "gone", "url": "http://127.0.0.1:9", "description": "Helps."}]}
    (tmp_path / "agent.yaml").write_text(json.dumps({**agent, "model": "openai:gpt-4o"}))
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as endpoint:
        threading.Thread(target=endpoint.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{endpoint.server_port}/v1"
        status, found = check_results(tmp_path, OPENAI_API_KEY="k", OPENAI_BASE_URL=url)
        endpoint.shutdown()

    [model], [delegate] = found["model"], found["delegate"]
    assert (status, model["status"], model["text"]) == (
        1,
        "warning",
        f"openai:gpt-4o: GET {url}/models {fault}; completion requests are accepted",
    )
    assert (delegate["status"], "gone: http://127.0.0.1:9 cannot be reached: " in delegate["text"]) == ("problem", True)


def test_doctor_reports_the_missing_key_of_each_model(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text(json.dumps(OTHER))

    _, found = check_results(tmp_path, ANTHROPIC_API_KEY="", OPENAI_API_KEY="")

    assert [(key["status"], key["text"]) for key in found["keys"]] == [
        ("problem", "ANTHROPIC_API_KEY is not set, for the model anthropic:claude-haiku-4-5"),
        ("problem", "OPENAI_API_KEY is not set, for the model openai:gpt-4o"),
    ]


def test_doctor_asks_the_model_on_request_only(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("name: a\nmodel: openai:gpt-4o-mini\ndb: 'memory:'\n")
    # Nothing listens there.
    environment = {"OPENAI_API_KEY": "sk-secret-123456789", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}

    built, asked = check_results(tmp_path, **environment), check_results(tmp_path, "--ask-model", **environment)

    assert [(status, found["model"][0]["status"]) for status, found in (built, asked)] == [
        (0, "warning"),
        (1, "problem"),
    ]
    assert "sk-secret" not in json.dumps(asked)


CALL = Reply(tool_calls=(("weather", {"city": "Bergen"}),))
WRITTEN = Reply('{"tool_calls": [{"name": "weather", "arguments": {"city": "Bergen"}}]}')
NO_TOOLS = Failure(400, "stub-model does not support tools")
DROPPED = "dropped: its server accepts tools and leaves them out of the prompt, which has 24 tokens; calls are"


@pytest.mark.parametrize(
    ("replies", "status", "text"),
    [
        ([CALL], "ok", "native: it has called the tool that was offered"),
        ([Reply("Rain.", prompt_tokens=90)], "ok", "native: its server accepts tools; the model has answered without"),
        ([WRITTEN], "ok", "text: it has written the call as text"),
        ([NO_TOOLS, "OK"], "ok", "text: its server refuses tools"),
        ([Reply("Rain.", prompt_tokens=24)], "warning", DROPPED),
    ],
    ids=["native", "uncalled", "written", "refused", "dropped"],
)
def test_doctor_finds_out_how_a_model_calls_tools(
    tmp_path: Path, openai_stub: StubFactory, replies: list[Any], status: str, text: str
) -> None:
    (tmp_path / "agent.yaml").write_text("name: a\nmodel: openai:stub-model\ndb: 'memory:'\n")
    stub = openai_stub(*replies)
    stub.pages["/v1/models"] = {"data": [{"id": "stub-model", "max_model_len": 8192}, {"id": "other"}]}

    _, found = check_results(tmp_path, "--ask-model", OPENAI_API_KEY="k", OPENAI_BASE_URL=stub.base_url)

    [tools] = found["tools"]
    assert (tools["status"], tools["text"][: len(f"openai:stub-model: {text}")]) == (
        status,
        f"openai:stub-model: {text}",
    )
    assert found["window"] == [
        {"check": "window", "status": "ok", "text": "openai:stub-model reads 8,192 tokens", "fix": ""}
    ]


def test_doctor_names_the_rules_that_a_refusal_has_changed(tmp_path: Path, openai_stub: StubFactory) -> None:
    (tmp_path / "agent.yaml").write_text("name: a\nmodel: openai:stub-model\ndb: 'memory:'\n")
    words = "Extra inputs are not permitted: stream_options.include_usage"
    stub = openai_stub(Failure(422, words), CALL)

    _, found = check_results(tmp_path, "--ask-model", OPENAI_API_KEY="k", OPENAI_BASE_URL=stub.base_url)

    text = "openai:stub-model: those of unknown, and a refusal has changed stream_usage"
    fix = 'Write into config: model_rules: {"openai:stub-model": {"stream_usage": false}}'
    assert found["rules"] == [{"check": "rules", "status": "warning", "text": text, "fix": fix}]


@pytest.mark.parametrize(
    ("path", "page"),
    [
        ("/v1/models", {"data": [{"id": "x.gguf", "meta": {"n_ctx": 4096, "n_ctx_train": 131072}}]}),
        ("/props", {"default_generation_settings": {"n_ctx": 4096}}),
        ("/api/v0/models", {"data": [{"id": "m", "loaded_context_length": 4096, "max_context_length": 131072}]}),
    ],
)
def test_doctor_compares_the_servers_window_with_the_agent_files(
    tmp_path: Path, openai_stub: StubFactory, path: str, page: Any
) -> None:
    file = "name: a\nmodel: openai:m\ndb: 'memory:'\nconfig: {context_window: 8192}\n"
    (tmp_path / "agent.yaml").write_text(file)
    stub = openai_stub(CALL)
    stub.pages[path] = page

    status, found = check_results(tmp_path, "--ask-model", OPENAI_API_KEY="k", OPENAI_BASE_URL=stub.base_url)

    text = "openai:m reads 4,096 tokens, and config.context_window is 8,192"
    fix = "Write context_window: 4096 into config, or start the server with a larger window."
    assert (status, found["window"]) == (1, [{"check": "window", "status": "problem", "text": text, "fix": fix}])


def test_doctor_reports_an_invalid_agent_file(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("name: a\nmodle: x\n")

    done = run_cli(tmp_path, "doctor")

    assert (done.returncode, "problem  agent file" in done.stdout, "fix: " in done.stdout) == (1, True, True)


def test_the_drawn_edges_are_those_of_the_compiled_graph() -> None:
    drawn = []
    for config in (LoopConfig(), LoopConfig(approve="echo")):
        graph = create_graph_agent(ScriptedChatModel(["x"]), tools=[echo], config=config).get_graph()
        drawn.append(sorted((edge.source, edge.target, edge.conditional) for edge in graph.edges))

    assert drawn == [sorted(EDGES), sorted([*EDGES, *APPROVAL_EDGES])]


def test_the_drawing_names_tools_servers_and_delegates(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text(
        'name: "a \\\\t \\"b\\""\nmodel: m:x\ntools: ["my_tools:search"]\n'
        'mcp_servers: {files: {transport: stdio, command: x}}\ndelegates: [{name: "r<b>", url: "http://x"}]\n'
    )

    lines = mermaid(load_spec(tmp_path / "agent.yaml")).splitlines()

    assert [line.strip() for line in lines if "title" in line or "[" in line] == [
        'title: "a \\\\t \\"b\\""',
        "__start__([start])",
        "plan[plan]",
        'tools["tools<br/>search<br/>files (MCP)"]',
        'delegate["delegate<br/>r#lt;b#gt;"]',
        "finalize[finalize]",
        "__end__([end])",
    ]


def test_the_compiled_graph_is_drawn_on_request(tmp_path: Path) -> None:
    folder = create("fine", tmp_path)

    done = run_cli(folder, "graph", "--compiled")

    assert (done.returncode, done.stderr, "plan -.-> tools" in done.stdout) == (0, "", True)
