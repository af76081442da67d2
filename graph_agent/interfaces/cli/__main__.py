"""Runs the program `graph-agent`, also as `python -m graph_agent.interfaces.cli`."""

import sys

from graph_agent.interfaces.cli.typed_keys import hide_typed_keys


def main() -> None:
    """Run the command line; without the echo of typed keys from the start, if the command holds a conversation."""
    # The argument `-` reads standard input itself.
    if sys.argv[1:2] in (["run"], ["chat"], ["resume"]) and "-" not in sys.argv:
        hide_typed_keys()
    try:
        from graph_agent.interfaces.cli.app import main as run_commands
    except KeyboardInterrupt:
        sys.exit(130)
    run_commands()


if __name__ == "__main__":
    main()
