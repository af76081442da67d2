"""Runs the program `graph-agent`, also as `python -m graph_agent.interfaces.cli`."""

import sys

from graph_agent.interfaces.cli.typed_keys import hide_typed_keys


def main() -> None:
    """Run the command line of this process, and exit with the status of its command.

    For `run`, `chat` and `resume`, which may read from the terminal, the terminal's echo of typed keys is stopped
    first, because imports take a second in which keys would be shown twice. The echo is not stopped if an argument is
    `-`, for which the command reads standard input. Ctrl-C during the imports exits with status 130.
    """
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
