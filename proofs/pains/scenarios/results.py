"""Tools fail, or return what a request cannot carry."""

from __future__ import annotations

from proofs.pains.scenario import Evidence, Scenario, ask
from proofs.pains.stub import Call, Reply, Request


class ToolException(Scenario):
    """The exception of a tool becomes a result that the model reads

    https://github.com/langchain-ai/deepagents/issues/138
    """

    tools = ("fail",)
    processes = ((ask("How large is Atlantis?"),),)

    def model(self, request: Request) -> Reply:
        return Reply("There is none.") if request.results else Reply(calls=(Call("fail", {"city": "Atlantis"}),))

    def check(self, seen: Evidence) -> str | None:
        return seen.unanswered("There is none.")


class FailedSibling(Scenario):
    """The results of parallel calls reach the model, although one call fails

    https://github.com/langchain-ai/deepagents/issues/694
    """

    tools = ("fail", "pay")
    processes = ((ask("Pay 10, and look up Atlantis."), ask("Go on.")),)

    def model(self, request: Request) -> Reply:
        if any("Paid 10" in result for result in request.results):
            return Reply("Paid, and there is no Atlantis.")
        if not any("Pay 10" in each for each in request.inputs):
            return Reply("What do you mean?")
        return Reply(calls=(Call("pay", {"amount": 10}), Call("fail", {"city": "Atlantis"})))

    def check(self, seen: Evidence) -> str | None:
        paid = seen.count("pay")
        return f"It paid {paid} times." if paid != 1 else seen.unanswered("Paid, and")


class HugeResult(Scenario):
    """A result of a million characters does not end the run

    It exceeds the context window of the model.
    https://github.com/huggingface/smolagents/pull/2379
    """

    tools = ("huge",)
    processes = ((ask("What is the first row?"),),)

    def model(self, request: Request) -> Reply:
        return Reply("A row.") if request.results else Reply(calls=(Call("huge", {"table": "cities"}),))

    def check(self, seen: Evidence) -> str | None:
        return seen.unanswered("A row.")


class UnserializableResult(Scenario):
    """A result with a date, a set and bytes reaches the model as text

    https://github.com/microsoft/agent-framework/issues/2219
    """

    tools = ("record",)
    processes = ((ask("Since when is Ann a member?"), ask("Sure?")),)

    def model(self, request: Request) -> Reply:
        known = any("Ann" in result and "2020" in result for result in request.results)
        if not request.results:
            return Reply(calls=(Call("record", {"name": "Ann"}),))
        return Reply("Since 2020." if known else "I cannot read the record.")

    def check(self, seen: Evidence) -> str | None:
        return seen.unanswered("Since 2020.")


class BrokenText(Scenario):
    """A result with half of an emoji does not end the run

    Python cannot encode the lone surrogate for the next request.
    https://github.com/Aider-AI/aider/issues/3693
    """

    tools = ("broken_text",)
    processes = ((ask("What is the page about?"), ask("Sure?")),)

    def model(self, request: Request) -> Reply:
        return Reply("Cats.") if request.results else Reply(calls=(Call("broken_text", {"page": "cats"}),))

    def check(self, seen: Evidence) -> str | None:
        return seen.unanswered("Cats.")


ALL = (ToolException, FailedSibling, HugeResult, UnserializableResult, BrokenText)
