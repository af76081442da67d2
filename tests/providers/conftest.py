"""Fixtures and reports of the matrix of providers."""

from __future__ import annotations

import pytest

# The assertions of situations are read as those of tests.
pytest.register_assert_rewrite("tests.providers.situations", "tests.providers.lab")
