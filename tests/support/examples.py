"""The number of examples of the properties of speculation, which must hold in more cases than others."""

from __future__ import annotations

from hypothesis import settings

many_examples = settings(max_examples=10_000 if settings.get_current_profile_name() == "thorough" else 300)
