"""Pages of items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import Query

from graph_agent.server.errors.problems import ProblemError
from graph_agent.server.response_models import ItemPage

Limit: TypeAlias = Annotated[int, Query(ge=1, le=100, description="Maximum number of items.")]
Order: TypeAlias = Annotated[Literal["asc", "desc"], Query(description="Order of the items.")]
After: TypeAlias = Annotated[str | None, Query(description="List only the items after this one.")]


def page_of(
    items: Sequence[dict[str, Any]], *, limit: int, order: Literal["asc", "desc"], after: str | None
) -> ItemPage:
    """Return a page of items.

    Args:
        items: All items, oldest first.
        limit: Maximum number of items of the page.
        order: Order of the page.
        after: Id of the item before the page; None for the first page.

    Raises:
        ProblemError: If there is no item `after`.
    """
    listed = list(items) if order == "asc" else list(reversed(items))
    if after is not None:
        at = next((index for index, item in enumerate(listed) if item["id"] == after), None)
        if at is None:
            raise ProblemError("not_found", f"There is no item {after!r}.", param="after")
        listed = listed[at + 1 :]
    page = listed[:limit]
    return ItemPage(
        object="list",
        data=page,
        first_id=page[0]["id"] if page else None,
        last_id=page[-1]["id"] if page else None,
        has_more=len(listed) > limit,
    )
