"""Attacks on sessions: processes that are killed, paused and cut off, skewed clocks, full disks, database restarts.

Worker processes take turns of sessions. Each attack then compares three sources: what the workers acknowledged, what
the sessions' histories hold, and the effects according to a file that the tools write.
They are not part of a plain run. `make attack` runs them; `make attack SCALE=5` makes each five times as long.
`REPORT=docs/reliability.md` writes the page with their figures.
"""
