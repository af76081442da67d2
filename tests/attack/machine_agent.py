"""The agent of the machines under attack; `TEST_ATTACK_EFFECTS` names the file of its tools' effects."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.attack.oracle import Effects
from tests.attack.worker import Kill, TurnsModel, tools

EFFECTS = "TEST_ATTACK_EFFECTS"
AGENT: dict[str, Any] = {
    "name": "cashier",
    "description": "Charges what the user names.",
    "model": "tests.attack.machine_agent:make",
    "tools": ["tests.attack.machine_agent:charge", "tests.attack.machine_agent:ask"],
    "config": {"finalize": "direct", "model_retries": 0},
}
"""The agent file."""

charge, ask = tools(Effects(Path(os.environ.get(EFFECTS, os.devnull))), Kill())


def make() -> TurnsModel:
    """The model."""
    return TurnsModel(responses=[])
