"""litellm and the `llm` command, as installed, and the hotel agent inside the app of `langgraph dev`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.interfaces.server.process import ROOT, Served, serving

LITELLM = """
import json, sys
import litellm
base, said = sys.argv[1], [{"role": "user", "content": "It's \\"x\\""}]
one = litellm.completion(model="openai/parrot", api_base=base + "/v1", api_key="none", messages=said)
two = litellm.completion(model="anthropic/parrot", api_base=base, api_key="none", messages=said, max_tokens=9)
parts = litellm.completion(model="openai/parrot", api_base=base + "/v1", api_key="none", messages=said, stream=True)
streamed = "".join(part.choices[0].delta.content or "" for part in parts)
print(json.dumps([one.choices[0].message.content, two.choices[0].message.content, streamed, one.usage.total_tokens]))
"""


def run(command: list[str], **environment: str) -> str:
    own = {name: value for name, value in os.environ.items() if name not in ("OPENAI_API_KEY", "OPENAI_BASE_URL")}
    done = subprocess.run(
        command,
        env={**own, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout.strip()


@pytest.mark.thorough  # the import of litellm takes 5 s of CPU time; `make compat` has it too
def test_litellm_uses_both_apis(served: Served) -> None:
    output: Any = json.loads(
        run([sys.executable, "-c", LITELLM, served.url], LITELLM_LOCAL_MODEL_COST_MAP="True").splitlines()[-1]
    )

    assert output == ['You said: It\'s "x"'] * 3 + [30]


def test_the_llm_command_asks_and_streams(served: Served, tmp_path: Path) -> None:
    model = {"model_id": "mine", "model_name": "parrot", "api_base": f"{served.url}/v1", "supports_tools": True}
    (tmp_path / "extra-openai-models.yaml").write_text(yaml.safe_dump([model]))
    command = [str(Path(sys.executable).with_name("llm")), "-m", "mine", "--key", "none", "hello there"]
    outputs = [run(command, LLM_USER_PATH=str(tmp_path)), run([*command, "--no-stream"], LLM_USER_PATH=str(tmp_path))]

    assert outputs == ["You said: hello there"] * 2


def test_the_hotel_agent_answers_and_reports_its_servers(tmp_path: Path) -> None:
    hotel = yaml.safe_load((ROOT / "examples" / "hotel" / "agent.yaml").read_text())
    agent = {
        **hotel,
        "model": "examples.hotel.offline_model:make_model",
        "system_prompt": str(ROOT / "examples" / "hotel" / "prompts" / "system.yaml"),
        "mcp_servers": {"hotel": {**hotel["mcp_servers"]["hotel"], "args": [str(ROOT / "examples/hotel/server.py")]}},
    }
    environment = {"HOTEL_DB": str(tmp_path / "rooms.db"), "GRAPH_AGENT_TODAY": "2026-11-21"}
    with serving(tmp_path, agent=agent, environment=environment) as server, server.http() as http:
        body = {"model": "hotel", "messages": [{"role": "user", "content": "one night in Hanukkah"}]}
        content = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
        ready = http.get("/ready").json()

    assert "from Friday 4 December 2026 to Saturday 5 December 2026 (1 night)" in content
    assert ready == {"ready": True, "checks": {"server": "ok", "model": "ok", "database": "ok", "mcp:hotel": "ok"}}
