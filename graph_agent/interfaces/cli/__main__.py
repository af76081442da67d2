"""Runs the program `graph-agent`, also as `python -m graph_agent.interfaces.cli`."""

import sys

from graph_agent.interfaces.cli.typed_keys import hide_typed_keys


def main() -> None:
    """Run the command line of this process, and exit with the status of its command.

    The commands `run`, `chat` and `resume` may read from the terminal. Without an argument `-`, which reads standard
    input itself, they first stop the terminal's echo of typed keys, because imports take a second in which keys would
    be shown twice. Ctrl-C during the imports exits with status 130.
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
