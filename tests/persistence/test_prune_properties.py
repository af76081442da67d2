"""Pruning of random sessions: what remains reads as before, and continues as before."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from graph_agent.persistence import open_saver, prune
from tests.support.pruning import STEPS, continuation, differences, read_all, take_step

SCALE = int(os.environ.get("GRAPH_AGENT_ATTACK_SCALE", "0"))

_steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(STEPS), st.integers(0, 40)),
        st.tuples(st.just("prune"), st.integers(1, 6)),
    ),
    min_size=2,
    max_size=9,
)


@settings(
    max_examples=12 + 100 * SCALE,
    deadline=None,
    derandomize=not SCALE,
    # The examples are short; each one takes too long to shrink them by thousands.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(steps=_steps, keep=st.integers(1, 4), position=st.integers(0, 40))
async def test_a_pruned_session_reads_and_continues_as_before(
    steps: list[tuple[str, int]], keep: int, position: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = f"sqlite:///{folder / 'a.db'}"
        found: list[Any] = []
        async with open_saver(url) as saver:
            await take_step(saver, "answer", 0)
            for number, (step, choice) in enumerate(steps, 1):
                before = await read_all(saver)
                if step != "prune":
                    ids = sorted(id_ for namespace, id_ in before if not namespace)
                    await take_step(saver, step, number, ids[choice % len(ids)])
                    continue
                await prune(url, keep_last=choice)
                found += differences(before, await read_all(saver))
            before = await read_all(saver)
        shutil.copytree(folder, folder / "twin")
        planned = await prune(url, keep_last=keep, dry_run=True)
        done = await prune(url, keep_last=keep)
        async with open_saver(url) as saver:
            after = await read_all(saver)
            found += differences(before, after)
            ids = sorted(id_ for namespace, id_ in after if not namespace)
            at = ids[position % len(ids)]
            pruned = await continuation(saver, at)
        async with open_saver(f"sqlite:///{folder / 'twin' / 'a.db'}") as twin:
            unpruned = await continuation(twin, at)

        assert (found, done.sessions, pruned) == ([], planned.sessions, unpruned)
