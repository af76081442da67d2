"""x."""


def new() -> None:
    """x."""
