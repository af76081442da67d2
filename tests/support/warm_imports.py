"""The imports of warm processes, see `warm_process`: all modules of the package, and libraries imported on demand.

What a program computes once and keeps is computed here too: schemas of pydantic, the table of commands, and patterns.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import pkgutil
from importlib import import_module

import graph_agent
from graph_agent._internal.extras import defer_packages

_LIBRARIES = (
    "aiosqlite",
    "anyio._backends._asyncio",
    "dateutil.parser",
    "fastapi.telemetry._runtime",
    "holidays",
    "httpcore",
    "langchain.agents",
    "langchain_core.messages.block_translators.langchain_v0",
    "langchain_core.tracers.context",
    "langchain_core.tracers.run_collector",
    "langchain_core.tracers.stdout",
    "langchain_openai",
    "langgraph.store.memory",
    "mcp.server.fastmcp",
    "openai.resources.chat.completions",
    "prompt_toolkit.input.vt100",
    "prompt_toolkit.key_binding.bindings.search",
    "psycopg_pool",
    "rich.logging",
    "rich.scope",
    "rich.traceback",
    "sqlalchemy.dialects.sqlite",
    "truststore",
    "typer._adapters",
    "typer._click.decorators",
    "typer.main",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.loops.uvloop",
)

defer_packages()  # sqlite_vec imports numpy, whose threads do not survive a fork
_MODULES = (module.name for module in pkgutil.walk_packages(graph_agent.__path__, "graph_agent."))
for _name in (*_LIBRARIES, *(name for name in _MODULES if not name.endswith("__main__"))):
    with contextlib.suppress(ImportError):  # an extra that is not installed
        import_module(_name)


def _make_schemas() -> None:
    """Make the schemas that pydantic makes when a model is used for the first time."""
    from pydantic import BaseModel

    models = list(BaseModel.__subclasses__())
    while models:
        model = models.pop()
        models += model.__subclasses__()
        if model.__module__.startswith("graph_agent.") and not model.__pydantic_complete__:
            model.model_rebuild(raise_errors=False)


def _make_commands() -> None:
    """Keep the table of commands, which typer makes from the signatures of all functions at each start."""
    from typer import main

    from graph_agent.cli.app import app

    main.get_command = functools.cache(main.get_command)
    main.get_command(app)


_make_schemas()
with contextlib.suppress(ImportError):
    _make_commands()
    from graph_agent._internal.failure_log import mask_secrets

    mask_secrets("")
gc.collect()
# Collections would write to the pages that the processes share.
gc.freeze()
