"""`python -m graph_agent.cli`."""

from graph_agent.cli.app import main

if __name__ == "__main__":
    main()
