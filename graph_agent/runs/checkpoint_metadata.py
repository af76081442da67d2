"""What checkpoints keep of a run's `configurable`: LangGraph's own ids, and nothing else.

LangGraph's savers copy every text, number and boolean of `configurable` into a checkpoint's metadata, unless its key
begins with two underscores. A secret that a program passes there, to reach its tools, would be in the database in plain
text. What is to be stored is passed as `config["metadata"]`, which is kept; LangGraph adds to it `run_id`, `task_id`,
`assistant_id`, `graph_id` and `model`, where `configurable` has them.
"""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver

from graph_agent.runs.run import RUN

_WHERE = frozenset({"thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map"})
_MARK = "_keeps_configurable_out"


def keep_configurable_out(saver: BaseCheckpointSaver[Any]) -> None:
    """Have a saver keep nothing of the `configurable` of agents' runs; runs of other graphs are as before."""
    if getattr(saver, _MARK, False):
        return
    put, aput = saver.put, saver.aput

    def storing(config: RunnableConfig, *args: Any, **kwargs: Any) -> RunnableConfig:
        return put(_of_a_run(config), *args, **kwargs)

    async def astoring(config: RunnableConfig, *args: Any, **kwargs: Any) -> RunnableConfig:
        return await aput(_of_a_run(config), *args, **kwargs)

    # On the object itself: what kind of saver it is says where its sessions are, and a wrapper would hide that.
    saver.put = storing  # type: ignore[method-assign]
    saver.aput = astoring  # type: ignore[method-assign]
    setattr(saver, _MARK, True)


def bare(config: RunnableConfig) -> RunnableConfig:
    """A config whose `configurable` holds no more than where a checkpoint is, and what LangGraph never stores."""
    configurable = config.get("configurable", {})
    kept = {name: value for name, value in configurable.items() if name in _WHERE or name.startswith("__")}
    return {**config, "configurable": kept}


def _of_a_run(config: RunnableConfig) -> RunnableConfig:
    return bare(config) if RUN in config.get("configurable", {}) else config
