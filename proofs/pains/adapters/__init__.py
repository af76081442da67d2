"""One module for each framework: `Peer(task)` with `ask`, `stream`, `resume` and `decide`, `LACKS` and `OPT_IN`."""
