"""Cost of optional parts per turn, relative to the same agent without them: `python -m benchmarks.options`.

Hooks without a saver; on the own saver a deadline, a token budget, the effect ledger, a Store, recorded requests and
spans; and the check of each write against the newest checkpoint, which is always on and is disabled here as a
reference.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from benchmarks import harness
from benchmarks.harness import RATIO_COLUMNS, Scale, Table, Trial, Work, ratio_row
from benchmarks.work import graph_agent_session, own_saver, sessions_trial
from graph_agent import LoopHook
from graph_agent.core.extensions.hook_protocol import HookRequest, HookResponse
from graph_agent.otel import instrument, uninstrument
from graph_agent.storage.checkpoints.open import open_store

_TURNS = 50
_GUARDS: dict[str, Any] = {"deadline_s": 3600, "max_tokens_total": 10**9, "effect_ledger": True}
_PLAIN = "none"


class ReplyHook(LoopHook):
    """Reads the reply, and never acts."""

    async def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
        """Return False."""
        return len(response.calls) > 1, None


class RequestHook(LoopHook):
    """Reads every message and tool of the request, which are copied for it, and never acts."""

    async def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
        """Return False."""
        return not request.messages or not request.tools, None


async def hooks(scale: Scale) -> Table:
    """Compare an agent without hooks with two that have one."""
    variants: dict[str, tuple[LoopHook, ...]] = {
        _PLAIN: (),
        "a hook that reads the reply": (ReplyHook(),),
        "a hook that reads the request": (RequestHook(),),
    }
    turns = scale.size(_TURNS)
    trials: dict[str, Trial] = {
        name: sessions_trial(functools.partial(graph_agent_session, turns, hooks=given))
        for name, given in variants.items()
    }
    return _table("Hooks", "50 turns without a saver.", await harness.interleaved(trials, scale), turns)


async def guards(scale: Scale) -> Table:
    """Compare sessions with budgets, the effect ledger, and a Store to be steered through."""
    turns = scale.size(_TURNS)
    trials: dict[str, Trial] = {
        _PLAIN: functools.partial(_stored, turns, {}, scale.url, store=False),
        "deadline, token budget and effect ledger": functools.partial(_stored, turns, _GUARDS, scale.url, store=False),
        "a Store": functools.partial(_stored, turns, {}, scale.url, store=True),
        "all of them": functools.partial(_stored, turns, _GUARDS, scale.url, store=True),
    }
    note = "50 turns on the own saver, reading tool."
    return _table("Guards of a session", note, await harness.interleaved(trials, scale), turns)


@asynccontextmanager
async def _stored(turns: int, settings: dict[str, Any], url: str, *, store: bool) -> AsyncIterator[Work]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        saver = await stack.enter_async_context(own_saver(folder, url))
        parts: dict[str, Any] = {}
        if store:
            database: Any = await stack.enter_async_context(open_store(url or f"sqlite:///{folder / 'bench.db'}"))
            await database.setup()
            parts["store"] = database
        session = graph_agent_session(turns, saver, settings=settings, **parts)
        yield functools.partial(session, folder.name)


async def seen(scale: Scale) -> Table:
    """Compare sessions that record what the model receives, or export spans, with those that do neither."""
    turns = scale.size(_TURNS)
    trials: dict[str, Trial] = {
        _PLAIN: functools.partial(_stored, turns, {}, scale.url, store=False),
        "record_requests": functools.partial(_stored, turns, {"record_requests": True}, scale.url, store=False),
        "OpenTelemetry": functools.partial(_traced, turns, scale.url),
    }
    note = "50 turns on the own saver, reading tool; spans and metrics go to an exporter that drops them."
    return _table("Record and telemetry", note, await harness.interleaved(trials, scale), turns)


class _NoExporter(SpanExporter):
    """Drops all spans."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Succeed."""
        return SpanExportResult.SUCCESS


@asynccontextmanager
async def _traced(turns: int, url: str) -> AsyncIterator[Work]:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(_NoExporter()))
    async with _stored(turns, {}, url, store=False) as session:

        async def traced() -> None:
            instrument(tracer_provider=provider)
            try:
                await session()
            finally:
                uninstrument()

        yield traced
    provider.shutdown()


async def fence(scale: Scale) -> Table:
    """Compare the saver with and without its check of each write."""
    turns = scale.size(_TURNS)
    trials: dict[str, Trial] = {
        _PLAIN: functools.partial(_unfenced, turns),
        "the check of each write": _writing(turns),
    }
    note = "50 turns on the own SQLite saver, writing tool; the reference is without the check."
    return _table("Check of each write", note, await harness.interleaved(trials, scale), turns)


def _writing(turns: int) -> Trial:
    return sessions_trial(functools.partial(graph_agent_session, turns, effect="write"), opener=own_saver)


@asynccontextmanager
async def _unfenced(turns: int) -> AsyncIterator[Work]:
    def no_fence(_: Any) -> None:
        """Replace the function; a call of a mock object would cost more than the check."""

    with mock.patch("graph_agent.storage.checkpoints.sqlite_saver.fence_of", no_fence):
        async with _writing(turns)() as work:
            yield work


def _table(title: str, note: str, costs: harness.Costs, turns: int) -> Table:
    rows = [ratio_row(name, costs, name, _PLAIN, per=turns) for name in costs]
    columns = [column for column in RATIO_COLUMNS if column != "aim"]
    at = RATIO_COLUMNS.index("aim")
    return Table(title, note, columns, [[*row[:at], *row[at + 1 :]] for row in rows])


async def tables(scale: Scale) -> list[Table]:
    """Run all comparisons of this module."""
    return [await hooks(scale), await guards(scale), await seen(scale), await fence(scale)]


if __name__ == "__main__":
    harness.main(tables, __doc__)
