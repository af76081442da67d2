"""`max_agentic_loops` in a request body: applied up to the agent's own bound, and refused above it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from graph_agent import LoopHook, LoopPlan
from graph_agent.hooks import HookRequest, HookResponse
from tests.interfaces.server.process import PARROT, Served, serving

TOKENS = 15
"""The usage that the parrot reports for each reply."""
CHAT: dict[str, Any] = {"model": "parrot", "messages": [{"role": "user", "content": "hi"}]}
PATHS: dict[str, dict[str, Any]] = {"/v1/chat/completions": CHAT, "/v1/messages": {**CHAT, "max_tokens": 100}}


class EveryReply(LoopHook):
    """Wants each planning reply again."""

    def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
        return True, None

    def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
        return LoopPlan(run_agentic_loop=True)


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    agent = {**PARROT, "hooks": [f"{__name__}.EveryReply"], "config": {"model_retries": 0, "max_agentic_loops": 4}}
    with serving(tmp_path_factory.mktemp("hooked"), agent=agent) as served:
        yield served


def _tokens(usage: dict[str, int]) -> int:
    return usage.get("total_tokens") or usage["input_tokens"] + usage["output_tokens"]


@pytest.mark.parametrize("session", [None, "kept"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("limit", "reruns"), [(None, 4), (4, 4), (1, 1), (0, 0)])
def test_a_request_may_lower_the_reruns(
    hooked: Served, path: str, session: str | None, limit: int | None, reruns: int
) -> None:
    headers = {"X-Session-Id": f"{session}{path[4:8]}-{limit}"} if session else {}
    body = {**PATHS[path], **({} if limit is None else {"max_agentic_loops": limit})}

    with hooked.http() as http:
        answer = http.post(path, json=body, headers=headers)

    # A plan, its reruns, and the answer.
    assert (answer.status_code, _tokens(answer.json()["usage"])) == (200, (1 + reruns + 1) * TOKENS)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (5, "max_agentic_loops=5: this agent allows at most 4; send 4 or less, or leave it out."),
        (-1, "max_agentic_loops: Input should be greater than or equal to 0"),
        ("2", "max_agentic_loops: Input should be a valid integer"),
        (True, "max_agentic_loops: Input should be a valid integer"),
    ],
)
def test_an_invalid_rerun_limit_is_refused(hooked: Served, path: str, limit: Any, message: str) -> None:
    with hooked.http() as http:
        answer = http.post(path, json={**PATHS[path], "max_agentic_loops": limit})

    assert (answer.status_code, message in answer.json()["error"]["message"]) == (400, True), answer.text


@pytest.mark.parametrize(
    ("path", "body"), [("steer", {"text": "on"}), ("follow_up", {"text": "on"}), ("resume", {"answer": "x"})]
)
def test_the_control_of_sessions_does_not_take_it(hooked: Served, path: str, body: dict[str, str]) -> None:
    with hooked.http() as http:
        http.post("/v1/chat/completions", json=CHAT, headers={"X-Session-Id": "controlled"})

        answer = http.post(f"/sessions/controlled/{path}", json={**body, "max_agentic_loops": 1})

    assert (answer.status_code, answer.json()["error"]) == (
        400,
        "max_agentic_loops: Extra inputs are not permitted",
    ), answer.text
