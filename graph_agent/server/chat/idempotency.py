"""Runs each request with an `Idempotency-Key` once; a repeated one gets the same answer.

The key is the input id of the request's run. It belongs to the caller and to the session of the request. A request
without a session has a thread of its own, named by caller and key.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from graph_agent.errors import InputError
from graph_agent.inputs.deduplicator import InputDeduplicator
from graph_agent.runs.input_ids import InputId, check_input_id, digest_of
from graph_agent.server.admission.gate import Caller
from graph_agent.server.chat.approvals import pending_question
from graph_agent.server.chat.run_spec import PENDING_ID, RunSpec, as_shown, resolve_run
from graph_agent.server.chat.schemas import ChatRequest, trailing_results
from graph_agent.server.hosting.host import Host
from graph_agent.server.problems import ProblemError
from graph_agent.session.run_result import open_interrupts


def with_key(request: ChatRequest, key: str | None) -> ChatRequest:
    """Return a request with its idempotency key.

    Its content is everything except how the answer is sent: a request that is repeated as a stream gets the same
    answer as one stream.

    Args:
        key: The header's value, with or without quotes; None without the header.

    Raises:
        ProblemError: If the key is not valid.
    """
    if key is None:
        return request
    bare = key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key
    try:
        checked = check_input_id(bare)
    except InputError:
        message = f"Idempotency-Key: {key!r} is not a key; send 1 to 255 printable characters, such as a UUID."
        raise ProblemError("invalid", message, param="Idempotency-Key") from None
    content = [request.messages, request.instructions, request.options, request.client_tools, request.decisions]
    return replace(request, mark=InputId(checked, digest_of(content)))


def token_of_key(caller: Caller, key: str) -> str:
    """Return the name of the thread of a request without a session: 24 hexadecimal digits, equal for each repetition.

    Args:
        key: The key of `with_key`, without quotes.
    """
    return hashlib.sha256(f"{caller.name}\0{key}".encode()).hexdigest()[:24]


async def resolve_once(host: Host, caller: Caller, request: ChatRequest) -> RunSpec:
    """Return the run of a request as `resolve_run`; for a repeated key, the run that resumes or returns the first one.

    Raises:
        ProblemError: Same as for `resolve_run`.
    """
    if (mark := request.mark) is None:
        return await resolve_run(host, caller, request)
    token = token_of_key(caller, mark.id)
    spec = as_shown(_repeated(host, caller, request, token), request)
    seen = await InputDeduplicator(host.saver, host.kept.aget_state, spec.thread).seen(mark)
    if seen is None or (seen == "recorded" and open_interrupts(await host.kept.aget_state(spec.config))):
        spec = await resolve_run(host, caller, request)
        if spec.session_id is None and not spec.is_resume:
            spec = replace(spec, graph=host.kept, thread=caller.pending_thread(token), token=token)
    spec.scope.mark = mark
    return spec


def _repeated(host: Host, caller: Caller, request: ChatRequest, token: str) -> RunSpec:
    """Return the run that resumes the thread that a request belongs to if it was sent before."""
    if request.session_id is not None:
        thread = caller.thread(request.session_id)
        return RunSpec(host.kept, thread, None, request.context(), request.session_id)
    results, _ = trailing_results(request.messages)
    pending = {found[1] for result in results if (found := PENDING_ID.fullmatch(result.tool_call_id))}
    pending |= {question} if (question := pending_question(request.messages)) is not None else set()
    name = pending.pop() if len(pending) == 1 else token
    return RunSpec(host.kept, caller.pending_thread(name), None, request.context(), None, name)
