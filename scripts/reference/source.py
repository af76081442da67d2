"""The parsed source of the package."""

from __future__ import annotations

import functools
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[2]


@functools.cache
def loaded() -> griffe.GriffeLoader:
    """Return a loader that has parsed every module of the package, which takes seconds."""
    loader = griffe.GriffeLoader(search_paths=[ROOT])
    loader.load("graph_agent")
    return loader
