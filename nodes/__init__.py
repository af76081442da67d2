"""The four nodes of the graph, one a file.

The folder stands at the top of the repository and is imported as ``graph_agent.nodes`` through a link, so that
there is never a second copy of a node in one process.
"""

if __name__ != "graph_agent.nodes":
    raise ImportError(
        f"Import the nodes as 'graph_agent.nodes', not as {__name__!r}: a second copy would not be the same."
    )
