"""A model or its server replies with something unexpected."""

from __future__ import annotations

from proofs.pains.scenario import Evidence, Scenario, ask, stream
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


class WrongType(Scenario):
    """A tool does not run with an argument of the wrong type, and the model corrects it

    https://github.com/google/adk-python/issues/4612
    """

    tools = ("pay",)
    processes = ((ask("Pay ten euros."),),)

    def model(self, request: Request) -> Reply:
        if any("Paid" in result for result in request.results):
            return Reply("It is paid.")
        return Reply(calls=(Call("pay", {"amount": 10 if request.number else "ten"}),))

    def check(self, seen: Evidence) -> str | None:
        paid = seen.values("pay", "amount")
        return f"It ran with {paid}." if paid not in ([], [10]) else seen.unanswered("It is paid.")


class EmptyArguments(Scenario):
    """A tool without parameters runs if the server sends no arguments

    https://github.com/camel-ai/camel/issues/4338
    """

    tools = ("now",)
    processes = ((ask("What time is it?"),),)

    def model(self, request: Request) -> Reply:
        if any("noon" in result for result in request.results):
            return Reply("Noon.")
        return Reply("I cannot tell.") if request.number > 5 else Reply(calls=(Call("now", ""),))

    def check(self, seen: Evidence) -> str | None:
        return seen.unanswered("Noon.")


class FinishedWithStop(Scenario):
    """Calls of a reply run if its finish reason is `stop`

    https://github.com/sgl-project/sglang/issues/2877
    """

    tools = ("search",)
    processes = ((ask("Find cats."),),)

    def model(self, request: Request) -> Reply:
        if request.results:
            return Reply("Three pages.")
        return Reply(calls=(Call("search", {"query": "cats"}),), finish="stop")

    def check(self, seen: Evidence) -> str | None:
        return seen.unanswered("Three pages.")


class _HalfCall(Scenario):
    """A payment of 1,000 whose last digit and brace were cut off."""

    tools = ("pay",)

    def model(self, request: Request) -> Reply:
        if request.number:
            return Reply("The call was cut off.")
        return Reply(calls=(Call("pay", '{"amount": 100'),), finish="length")

    def check(self, seen: Evidence) -> str | None:
        paid = seen.values("pay", "amount")
        return f"It paid {paid}." if paid else "It hung." if seen.hung else None


class HalfCall(_HalfCall):
    """A call that was cut off by the token limit does not run

    https://github.com/Yeachan-Heo/gajae-code/pull/1025
    """

    processes = ((ask("Pay 1000 euros."),),)


class HalfCallStreamed(_HalfCall):
    """A streamed call that was cut off by the token limit does not run

    https://github.com/langchain-ai/langchain/issues/39275
    """

    needs = frozenset({"stream"})
    processes = ((stream("Pay 1000 euros."),),)


class ConnectionLostInCall(_HalfCall):
    """A streamed call that was cut off by a lost connection does not run

    https://github.com/CommandCodeAI/command-code/issues/785
    """

    needs = frozenset({"stream"})
    processes = ((stream("Pay 1000 euros."),),)

    def model(self, request: Request) -> Reply:
        if request.number:
            return Reply("The call was cut off.")
        # The first half ends after three digits.
        return Reply(calls=(Call("pay", '{"amount": 100' + "0" * 13 + "}"),), cut=True)


class ConnectionLost(Scenario):
    """An answer that was cut off by a lost connection is not presented as complete

    https://github.com/dotflow-io/pycodeloop/issues/64
    """

    needs = frozenset({"stream"})
    processes = ((stream("May I eat this mushroom?"),),)
    whole = "It is edible only if it has no ring; this one has a ring."

    def model(self, request: Request) -> Reply:
        return Reply(self.whole, cut=not request.number)

    def check(self, seen: Evidence) -> str | None:
        if seen.hung or not seen.outcomes:
            return "It hung, or the process died."
        last = seen.outcomes[-1]
        reported = last["error"] or last["cut_off"] or self.whole in last["answer"]
        return None if reported else f"Answered {last['answer']!r}."


class TokenLimitInAnswer(Scenario):
    """An answer that was cut off by the token limit is not presented as complete

    https://github.com/openbraininstitute/neuroagent/issues/47
    """

    processes = ((ask("May I eat this mushroom?"),),)

    def model(self, request: Request) -> Reply:
        if request.number:
            return Reply("It is edible only if it has no ring.")
        return Reply("It is edible", finish="length")

    def check(self, seen: Evidence) -> str | None:
        if seen.hung or not seen.outcomes:
            return "It hung, or the process died."
        last = seen.outcomes[-1]
        reported = last["error"] or last["cut_off"] or "no ring" in last["answer"]
        return None if reported else f"Answered {last['answer']!r}."


class DuplicateIds(Scenario):
    """Two calls with the same id both run, and both results reach the model

    https://github.com/huggingface/smolagents/pull/2684
    """

    tools = ("pay",)
    processes = ((ask("Pay 10 and 20 euros."), ask("Sure?")),)

    def model(self, request: Request) -> Reply:
        both = all(any(f"Paid {amount}" in each for each in request.results) for amount in (10, 20))
        if request.results:
            return Reply("Both are paid." if both else "One is missing.")
        return Reply(calls=(Call("pay", {"amount": 10}, id="call"), Call("pay", {"amount": 20}, id="call")))

    def check(self, seen: Evidence) -> str | None:
        paid = seen.values("pay", "amount")
        failure = seen.unanswered("Both are paid.")
        return f"It paid {paid}. {failure or ''}" if paid != [10, 20] else failure


class ReusedIds(Scenario):
    """A call runs although an earlier reply used its id, and its result reaches the model

    https://github.com/open-webui/open-webui/issues/28305
    """

    tools = ("pay",)
    processes = ((ask("Pay 10 euros, then 20."),),)

    def model(self, request: Request) -> Reply:
        unpaid = [amount for amount in (10, 20) if not any(f"Paid {amount}" in each for each in request.results)]
        if not unpaid or request.number > 5:
            return Reply("Both are paid." if not unpaid else "One is missing.")
        return Reply(calls=(Call("pay", {"amount": unpaid[0]}, id="pay:0"),))

    def check(self, seen: Evidence) -> str | None:
        paid = seen.values("pay", "amount")
        failure = seen.unanswered("Both are paid.")
        return f"It paid {paid}. {failure or ''}" if paid != [10, 20] else failure


class EmptyReply(Scenario):
    """An empty reply is requested again or reported, and no empty answer

    https://github.com/google/adk-python/pull/5006
    """

    tools = ("search",)
    processes = ((ask("Find cats."),),)

    def model(self, request: Request) -> Reply:
        if not request.results:
            return Reply(calls=(Call("search", {"query": "cats"}),))
        return Reply("Three pages.") if request.number > 1 else Reply("", raw=True)

    def check(self, seen: Evidence) -> str | None:
        failure = seen.unanswered("Three pages.")
        return failure if failure == "It hung." or (seen.outcomes and not seen.outcomes[-1]["error"]) else None


class UsageMissing(Scenario):
    """A reply without token counts does not end the run

    https://github.com/strands-agents/harness-sdk/issues/308
    """

    tools = ("search",)
    processes = ((ask("Find cats."),),)

    def model(self, request: Request) -> Reply:
        if request.results:
            return Reply("Three pages.", usage=None)
        return Reply(calls=(Call("search", {"query": "cats"}),), usage=None)

    def check(self, seen: Evidence) -> str | None:
        return seen.unanswered("Three pages.")


class ErrorInBody(Scenario):
    """An error that a server sends with status 200 is retried, or reported in the server's words

    https://github.com/openai/openai-agents-python/pull/2850
    """

    processes = ((ask("What is two plus two?"),),)

    def model(self, request: Request) -> Reply:
        if request.number:
            return Reply("Four.")
        return Reply(body={"error": {"message": "The upstream model is overloaded.", "code": 502}})

    def check(self, seen: Evidence) -> str | None:
        failure = seen.unanswered("Four.")
        return None if failure and "overloaded" in failure else failure


ALL = (
    InvalidArguments,
    WrongType,
    UnknownTool,
    EmptyArguments,
    FinishedWithStop,
    HalfCall,
    HalfCallStreamed,
    ConnectionLostInCall,
    ConnectionLost,
    TokenLimitInAnswer,
    DuplicateIds,
    ReusedIds,
    EmptyReply,
    UsageMissing,
    ErrorInBody,
)
