"""Attacks on sessions: processes whose clocks differ, that are paused or cut off, full disks, a database that restarts.

Each attack lets workers, which are processes of their own, take turns of sessions. Then three sources are compared:
what the workers acknowledged, what the sessions' histories hold, and what happened according to a file of effects.
They are not part of a plain run: `pytest -m attack tests/attack`. `GRAPH_AGENT_ATTACK_SCALE=5` makes each of them five
times as long.
"""
