"""Each rule that a request can break is checked: its sample is refused with its status, and a plain request is not."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest

from tests.providers.emulator import Emulator
from tests.providers.exchange import Reply
from tests.providers.row import Row
from tests.providers.rows import ROWS
from tests.providers.rule import MISSING, Rule


def _rules() -> list[object]:
    seen: set[tuple[str, str]] = set()
    found: list[object] = []
    for row in ROWS:
        for rule in row.rules:
            if (rule.id, row.protocol.name) not in seen and rule.check is not None:
                seen.add((rule.id, row.protocol.name))
                found.append(pytest.param(row, rule, id=f"{row.protocol.name}-{rule.id}"))
    return found


@pytest.mark.parametrize(("row", "rule"), _rules())
def test_sample_of_a_rule_is_refused(row: Row, rule: Rule) -> None:
    assert rule.sample is not None
    path, plain = row.protocol.plain(row.model)
    # Some APIs name the model in the path.
    other_path, _ = row.protocol.plain(rule.sample.get("model", row.model))
    broken = {key: value for key, value in {**plain, **rule.sample}.items() if value is not MISSING}
    alone = replace(row, rules=(rule,))
    with Emulator(alone, lambda request: Reply("Hello!")) as emulator, httpx.Client(verify=False) as client:
        url = f"http://127.0.0.1:{emulator.port}"

        accepted = client.post(url + path, json=plain if row.can("whole") else {**plain, "stream": True})
        refused = client.post(url + other_path, json=broken)

    assert (accepted.status_code, refused.status_code) == (200, rule.status)
    assert [refusal.rule for refusal in emulator.refusals] == [rule.id]
    assert refused.text == "" or "{" + "index}" not in refused.text
