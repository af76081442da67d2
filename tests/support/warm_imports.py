"""The imports of warm processes, see `warm_process`: all modules of the package, and libraries imported on demand."""

from __future__ import annotations

import contextlib
import gc
import pkgutil
from importlib import import_module

import graph_agent
from graph_agent._internal.extras import defer_packages

_LIBRARIES = ("aiosqlite", "langchain.agents", "langchain_openai", "mcp.server.fastmcp", "psycopg_pool", "uvicorn")

defer_packages()  # sqlite_vec imports numpy, whose threads do not survive a fork
_MODULES = (module.name for module in pkgutil.walk_packages(graph_agent.__path__, "graph_agent."))
for _name in (*_LIBRARIES, *(name for name in _MODULES if not name.endswith("__main__"))):
    with contextlib.suppress(ImportError):  # an extra that is not installed
        import_module(_name)
gc.collect()
# Collections would write to the pages that the processes share.
gc.freeze()
