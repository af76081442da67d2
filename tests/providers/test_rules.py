"""Each rule that a request can break is checked: its sample is refused with its status, and a plain request is not."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.providers.emulator import Emulator
from tests.providers.exchange import Reply
from tests.providers.row import Row
from tests.providers.rows import ROWS
from tests.providers.rule import Rule


def _rules() -> list[object]:
    seen: set[str] = set()
    found: list[object] = []
    for row in ROWS:
        for rule in row.rules:
            if rule.id not in seen and rule.check is not None and row.protocol.name == "openai_chat":
                seen.add(rule.id)
                found.append(pytest.param(row, rule, id=rule.id))
    return found


@pytest.mark.parametrize(("row", "rule"), _rules())
def test_sample_of_a_rule_is_refused(row: Row, rule: Rule) -> None:
    assert rule.sample is not None
    plain: dict[str, Any] = {"model": row.model, "messages": [{"role": "user", "content": "hi"}]}
    with Emulator(row, lambda request: Reply("Hello!")) as emulator, httpx.Client(verify=False) as client:
        url = f"http://127.0.0.1:{emulator.port}/v1/chat/completions"

        accepted = client.post(url, json=plain)
        refused = client.post(url, json={**plain, **rule.sample})

    assert (accepted.status_code, refused.status_code) == (200, rule.status)
    assert [refusal.rule for refusal in emulator.refusals] == [rule.id]
    assert refused.text == "" or "{" + "index}" not in refused.text
