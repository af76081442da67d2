"""Runs the program `graph-agent`, also as `python -m graph_agent.cli`."""

from graph_agent.interfaces.cli.__main__ import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
