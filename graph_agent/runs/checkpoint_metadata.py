"""Removal of a run's `configurable` from checkpoint metadata, except for LangGraph's own ids.

LangGraph's savers copy every text, number and boolean of `configurable` into a checkpoint's metadata, unless its key
begins with two underscores. A secret that a program passes there, to reach its tools, would be in the database in plain
text. `config["metadata"]` is stored unchanged; LangGraph adds `run_id`, `task_id`, `assistant_id`, `graph_id` and
`model` to it, if `configurable` has them.
"""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver

from graph_agent.runs.run import RUN

_ADDRESS = frozenset({"thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map"})
_MARK = "_strips_configurable"


def strip_configurable(saver: BaseCheckpointSaver[Any]) -> None:
    """Patch a saver to store nothing of the `configurable` of agents' runs; runs of other graphs are not affected."""
    if getattr(saver, _MARK, False):
        return
    put, aput = saver.put, saver.aput

    def storing(config: RunnableConfig, *args: Any, **kwargs: Any) -> RunnableConfig:
        return put(_without_configurable(config), *args, **kwargs)

    async def astoring(config: RunnableConfig, *args: Any, **kwargs: Any) -> RunnableConfig:
        return await aput(_without_configurable(config), *args, **kwargs)

    # Patched in place: `database_identity` reads the saver's connection, which a wrapper would hide.
    saver.put = storing  # type: ignore[method-assign]
    saver.aput = astoring  # type: ignore[method-assign]
    setattr(saver, _MARK, True)


def bare(config: RunnableConfig) -> RunnableConfig:
    """Return a config whose `configurable` has the checkpoint's address and keys that LangGraph never stores."""
    configurable = config.get("configurable", {})
    kept = {name: value for name, value in configurable.items() if name in _ADDRESS or name.startswith("__")}
    return {**config, "configurable": kept}


def _without_configurable(config: RunnableConfig) -> RunnableConfig:
    return bare(config) if RUN in config.get("configurable", {}) else config
