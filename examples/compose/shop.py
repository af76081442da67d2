"""The tool of the agent."""


def order(article: str, count: int) -> str:
    """Order a number of an article."""
    return f"Ordered {count} of {article}."
