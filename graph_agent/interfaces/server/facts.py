"""Lets the caller list, edit and forget the facts that the agent's memory holds about them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import Response

from graph_agent.base.errors import InputError
from graph_agent.integrations.memory.facts import MAX_CHARS, Fact, Memory, UnknownFactError
from graph_agent.interfaces.server import response_models as models
from graph_agent.interfaces.server.admission.body import BodyRoute
from graph_agent.interfaces.server.chat.schemas import VISIBLE, clean_body
from graph_agent.interfaces.server.parameters import RequestServices, Sender, Services
from graph_agent.interfaces.server.problems import InvalidRequestError, ProblemError

_ERRORS = models.control_errors({404: "The agent has no memory, or the caller no such fact"})
router = APIRouter(tags=["Memory"], responses=_ERRORS, route_class=BodyRoute)
_FactId = Annotated[str, Path(min_length=1, max_length=100, description="The fact.")]


class FactText(BaseModel):
    """The new text of a fact."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    content: str = Field(min_length=1, max_length=MAX_CHARS, pattern=VISIBLE)

    _clean = model_validator(mode="before")(clean_body)


def memory_of(server: Services, name: str) -> tuple[Memory, str]:
    """Return the agent's memory, and the name of the user whose facts the caller may reach: the caller's own name or,
    on a server without keys, the user of the agent.

    Args:
        server: The open server.
        name: Name of the caller's API key; empty on a server without keys.

    Raises:
        ProblemError: The agent has no memory, or one of the program's own whose facts cannot be listed, or the user is
            unknown (`not_found`).
    """
    host = server.chat.runs.host
    memory = host.kept.builder.deps.memory
    # On a server without keys, all requests have one user, who starts it.
    caller = name or host.kept.builder.caller
    # A memory of the program's own has no facts that could be listed.
    if not isinstance(memory, Memory) or not caller:
        raise ProblemError("not_found", "This agent has no memory; write 'memory: true' in its agent file.")
    return memory, caller


def _reply_of(fact: Fact) -> models.FactReply:
    """Return a fact in the form of the API."""
    return models.FactReply(id=fact.id, content=fact.content, updated=fact.updated, forgotten=fact.forgotten)


@router.get("/memory/facts")
async def list_facts(
    sender: Sender,
    server: RequestServices,
    search: Annotated[str, Query(max_length=2_000, description="Text that the facts fit; all by default.")] = "",
    id: Annotated[
        list[str] | None,
        Query(
            max_length=100, description="Ids of facts, such as those of a `recall` event; forgotten ones are marked."
        ),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1_000, description="Maximum number of facts.")] = 100,
    offset: Annotated[int, Query(ge=0, le=2**31, description="Number of facts to leave out first.")] = 0,
) -> models.FactList:
    """List the facts that the agent remembers about the caller: the best matches for `search` first, or else the
    newest.

    With `id`, exactly these facts are listed, also forgotten ones.
    """
    memory, caller = memory_of(server, sender.name)
    if id:
        found = [*(await memory.get(caller, id)).values()]
    else:
        found = await memory.facts(caller, search, limit=limit, offset=offset)
    return models.FactList(facts=[_reply_of(fact) for fact in found])


@router.patch("/memory/facts/{fact_id}")
async def edit_fact(fact_id: _FactId, body: FactText, sender: Sender, server: RequestServices) -> models.FactReply:
    """Replace the text of a fact of the caller. The status is 404 if there is no such fact."""
    memory, caller = memory_of(server, sender.name)
    try:
        return _reply_of(await memory.edit(caller, fact_id, body.content))
    except UnknownFactError as unknown:
        raise ProblemError("not_found", str(unknown)) from None
    except InputError as error:
        raise InvalidRequestError(str(error), "content") from None


@router.delete("/memory/facts/{fact_id}", status_code=204)
async def forget_fact(fact_id: _FactId, sender: Sender, server: RequestServices) -> Response:
    """Delete a fact of the caller, with its vectors. The status is 404 if there is no such fact.

    Its id remains in recorded events, where it is marked as forgotten.
    """
    memory, caller = memory_of(server, sender.name)
    try:
        await memory.forget(caller, fact_id)
    except UnknownFactError as unknown:
        raise ProblemError("not_found", str(unknown)) from None
    return Response(status_code=204)
