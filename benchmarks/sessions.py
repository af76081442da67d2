"""Cost of many concurrent sessions, compared with `create_agent`: `python -m benchmarks.sessions`.

100 sessions of 5 turns each run at the same time on one agent: without a saver, and with SQLite, where this framework
has its own saver and a tool that writes, and `create_agent` has LangGraph's saver.
"""

from __future__ import annotations

import functools

from benchmarks import harness
from benchmarks.harness import RATIO_COLUMNS, Scale, Table, Trial, ratio_row
from benchmarks.work import (
    bare_loop_session,
    create_agent_session,
    graph_agent_session,
    own_saver,
    sessions_trial,
    stock_saver,
)

_TURNS = 5


async def tables(scale: Scale) -> list[Table]:
    """Run both comparisons."""
    turns, sessions = scale.size(_TURNS), scale.size(100)
    theirs = functools.partial(create_agent_session, turns)
    without: dict[str, Trial] = {
        "create_agent": sessions_trial(theirs, sessions=sessions),
        "graph-agent": sessions_trial(functools.partial(graph_agent_session, turns), sessions=sessions),
        "loop": sessions_trial(lambda _: bare_loop_session(turns), sessions=sessions),
    }
    opener = functools.partial(own_saver, url=scale.url)
    writing = functools.partial(graph_agent_session, turns, effect="write")
    saved: dict[str, Trial] = {
        "create_agent": sessions_trial(theirs, opener=stock_saver, sessions=sessions),
        "graph-agent": sessions_trial(writing, opener=opener, sessions=sessions),
    }
    costs, with_saver = await harness.interleaved(without, scale), await harness.interleaved(saved, scale)
    per = sessions * turns
    rows = [
        ratio_row("no saver", costs, "graph-agent", "create_agent", aim="≤ 0.80", per=per),
        ratio_row("no saver, reference: bare loop through LangChain", costs, "loop", "create_agent", per=per),
        ratio_row("no saver, `create_agent`", costs, "create_agent", "create_agent", per=per),
        ratio_row("own SQLite saver, writing tool", with_saver, "graph-agent", "create_agent", aim="≤ 0.40", per=per),
        ratio_row("LangGraph's SQLite saver, `create_agent`", with_saver, "create_agent", "create_agent", per=per),
    ]
    note = "100 sessions at the same time, 5 turns each; ratios to `create_agent` without and with LangGraph's saver."
    return [Table("Concurrent sessions", note, RATIO_COLUMNS, rows)]


if __name__ == "__main__":
    harness.main(tables, __doc__)
