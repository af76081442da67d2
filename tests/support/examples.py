"""The number of examples of the properties of speculation, which must hold in more cases than others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

_IS_THOROUGH = settings.get_current_profile_name() == "thorough"
_EXAMPLES = settings(max_examples=10_000 if _IS_THOROUGH else 300)
# An example with many runs takes a quarter of a second, longer than the usual limit allows for all of them.
_MOST_S = 7_200 if _IS_THOROUGH else 600


def many_examples(test: Callable[..., Any]) -> Callable[..., Any]:
    """Run a property with 300 examples, or with 10,000 in `make thorough`."""
    return pytest.mark.timeout(_MOST_S)(_EXAMPLES(test))  # type: ignore[no-any-return]  # as pytest declares it
