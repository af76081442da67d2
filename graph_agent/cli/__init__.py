"""The command line: the commands, control of sessions, and how Ctrl-C ends a run."""
