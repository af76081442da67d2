"""Models with an address of their own on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli import run_cli
from tests.support.openai_stub import OpenAIStub, StubFactory, openai_stub

__all__ = ["openai_stub"]


def folder_of(tmp_path: Path, stub: OpenAIStub, *more: str) -> Path:
    lines = ["name: helper", f"model: {{model: 'openai:main', base_url: '{stub.base_url}'}}", *more]
    (tmp_path / "agent.yaml").write_text("\n".join(lines))
    return tmp_path


def named(stub: OpenAIStub) -> list[tuple[str, str]]:
    return [(each.body["model"], each.headers["authorization"]) for each in stub.requests]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", ["short", "mapping", "name"])
def test_a_replay_asks_a_model_at_another_address(tmp_path: Path, openai_stub: StubFactory, form: str) -> None:
    stub, other = openai_stub("Hi."), openai_stub("Hello.")
    endpoint = f"{{model: 'openai:spare', base_url: '{other.base_url}', api_key_env: MY_KEY}}"
    folder = folder_of(tmp_path, stub, f"config: {{fallback_models: [{endpoint}]}}")
    model = {"short": f"openai:spare@{other.base_url}", "mapping": endpoint, "name": "openai:spare"}[form]

    run = run_cli(folder, "run", "--session", "s", "Hello", MY_KEY="key-of-the-spare")
    replay = run_cli(folder, "replay", "s", "--model", model, "--json", MY_KEY="key-of-the-spare")

    key = "Bearer not-needed" if form == "short" else "Bearer key-of-the-spare"
    assert (run.stdout.split()[-1], json.loads(replay.stdout)["equal"], named(stub), named(other)) == (
        "Hi.",
        True,
        [("main", "Bearer not-needed")],
        [("spare", key)],
    )
    assert "key-of-the-spare" not in replay.stdout + replay.stderr


def test_an_evaluation_compares_models_at_two_addresses(tmp_path: Path, openai_stub: StubFactory) -> None:
    stub, other = openai_stub("Hi."), openai_stub("Hello.")
    folder = folder_of(tmp_path, stub)
    (folder / "cases.yaml").write_text("agent: agent.yaml\ncases:\n- {name: hello, input: Hello}\n")

    done = run_cli(folder, "eval", "cases.yaml", "--vs", f"model=openai:spare@{other.base_url}", "--json")

    assert (done.returncode, named(stub), named(other)) == (
        0,
        [("main", "Bearer not-needed")],
        [("spare", "Bearer not-needed")],
    ), done.stderr


def test_doctor_checks_the_address_and_the_key_of_each_model(tmp_path: Path, openai_stub: StubFactory) -> None:
    stub = openai_stub()
    spare = "{model: 'openai:spare', base_url: 'http://127.0.0.1:1/v1', api_key_env: MY_KEY}"
    folder = folder_of(tmp_path, stub, f"config: {{fallback_models: [{spare}]}}")

    missing = run_cli(folder, "doctor", "--json")
    given = run_cli(folder, "doctor", "--json", MY_KEY="key-of-the-spare")

    def checked(output: str) -> list[tuple[str, str, str]]:
        lines = [json.loads(line) for line in output.splitlines()]
        return [(each["check"], each["status"], each["text"]) for each in lines if each["check"] in ("keys", "model")]

    spare_name = "openai:spare at http://127.0.0.1:1/v1"
    assert checked(missing.stdout)[:1] == [("keys", "problem", f"MY_KEY is not set, for the model {spare_name}")]
    assert checked(given.stdout)[:2] == [
        ("keys", "ok", f"MY_KEY is set, for the model {spare_name}"),
        ("model", "warning", f"fallback model {spare_name}: its endpoint is unreachable"),
    ]
    assert f"openai:main at {stub.base_url}" in given.stdout
