"""A model or its server replies with something unexpected."""

from __future__ import annotations

from proofs.pains.scenario import Evidence, Scenario, ask
from proofs.pains.stub import Call, Reply, Request


class InvalidArguments(Scenario):
    """Arguments that are no valid JSON are reported to the model, which corrects them

    https://github.com/run-llama/llama_index/issues/11921
    """

    tools = ("pay",)
    processes = ((ask("Pay 10 euros."),),)

    def model(self, request: Request) -> Reply:
        if any("Paid" in result for result in request.results):
            return Reply("It is paid.")
        return Reply(calls=(Call("pay", {"amount": 10} if request.number else "amount = 10 euros"),))

    def check(self, seen: Evidence) -> str | None:
        amounts = [each["amount"] for each in seen.effects]
        return seen.unanswered("It is paid.") or (f"It paid {amounts}." if amounts != [10] else None)


class UnknownTool(Scenario):
    """A call of a tool that does not exist is reported to the model

    https://github.com/openai/openai-agents-python/issues/3459
    """

    tools = ("search",)
    processes = ((ask("Find cats."),),)

    def model(self, request: Request) -> Reply:
        if any("Three pages" in result for result in request.results):
            return Reply("Three pages.")
        return Reply(calls=(Call("search" if request.number else "browse", {"query": "cats"}),))

    def check(self, seen: Evidence) -> str | None:
        return seen.unanswered("Three pages.")


ALL = (InvalidArguments, UnknownTool)
