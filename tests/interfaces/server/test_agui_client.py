"""AG-UI's published client, at its newest version and at the one that CopilotKit uses, in random conversations.

`make compat` holds more of them; `make compat AGUI=1000` as many as that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.interfaces.server.process import Served
from tests.support.agui_conversations import LEGACY, NEWEST, converse, node_client, serving_parrot

_SAMPLE = 10


@pytest.fixture(scope="module")
def parrot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving_parrot(tmp_path_factory.mktemp("agui")) as server:
        yield server


@pytest.mark.sampled(2)
@pytest.mark.parametrize("version", [NEWEST, LEGACY])
def test_random_conversations_break_no_rule_of_the_client(parrot: Served, version: str) -> None:
    ends: Counter[str] = Counter()
    with node_client(version, parrot.url) as client:
        for seed in range(_SAMPLE):
            ends.update(converse(client, seed, prefix=f"v{version}"))

    assert {"success", "interrupt"} < ends.keys()
    assert not {"error invalid", "error conflict", "error busy", "error internal"} & ends.keys(), ends
