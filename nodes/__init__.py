"""Holds the nodes of the graph, one per file.

The folder is at the top of the repository and is imported as ``graph_agent.nodes`` through a symbolic link. Any other
name raises `ImportError`, so that a process never holds two copies of a node.
"""

if __name__ != "graph_agent.nodes":
    raise ImportError(
        f"Import the nodes as 'graph_agent.nodes', not as {__name__!r}: a second copy would not be the same."
    )
