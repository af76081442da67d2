"""Attacks on sessions: processes whose clocks differ, that are paused or cut off, full disks, a database that restarts.

Worker processes take turns of sessions. Each attack then compares three sources: what the workers acknowledged, what
the sessions' histories hold, and the effects according to a file that the tools write.
They are not part of a plain run: `pytest -m attack tests/attack`. `GRAPH_AGENT_ATTACK_SCALE=5` makes each of them five
times as long.
"""
