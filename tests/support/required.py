"""Programs that tests need and a machine may lack."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

VARIABLE = "TEST_REQUIRE_SERVICES"
"""Set by the make targets whose purpose is such a program, and where every change is checked."""


def unavailable(reason: str) -> NoReturn:
    """Skip the test, or fail it if the services are required.

    Args:
        reason: What is missing, and the command that installs it.
    """
    (pytest.fail if os.environ.get(VARIABLE) else pytest.skip)(reason)
