"""Runs that are too long, too expensive, or that would never end."""

from __future__ import annotations

from proofs.pains.scenario import Evidence, Scenario, ask
from proofs.pains.stub import Call, Reply, Request


class _AllAboutCats(Scenario):
    """A model that searches for as long as it may, and as its searches are run."""

    tools = ("search",)
    needs = frozenset({"steps"})
    limits = {"steps": 3}

    def model(self, request: Request) -> Reply:
        found = all("Three pages" in each for each in request.results)
        asked = "What did you find?" in request.inputs
        if found and not asked and "search" in request.offered and request.number < 20:
            return Reply(calls=(Call("search", {"query": f"cats, page {request.number}"}),))
        return Reply("Cats are small." if any("Three pages" in each for each in request.results) else "Nothing.")


class StepLimit(_AllAboutCats):
    """A run that reaches its limit of steps ends with an answer from what it has found

    https://github.com/openai/openai-agents-python/issues/844
    """

    processes = ((ask("Find all about cats."),),)

    def check(self, seen: Evidence) -> str | None:
        made = len(seen.requests)
        return f"It made {made} requests." if made > 8 else seen.unanswered("Cats are small.")


class LimitLosesWork(_AllAboutCats):
    """What a run found before its limit of steps is there for the next input

    https://github.com/openai/openai-agents-python/issues/719
    """

    processes = ((ask("Find all about cats."), ask("What did you find?")),)

    def check(self, seen: Evidence) -> str | None:
        return seen.unanswered("Cats are small.")


class EndlessLoop(Scenario):
    """A model that repeats one call is stopped within 60 requests, without any setting

    https://github.com/langchain-ai/langgraph/pull/6889
    """

    tools = ("search",)
    processes = ((ask("Find cats."),),)

    def model(self, request: Request) -> Reply:
        if request.number < 60:
            return Reply(calls=(Call("search", {"query": "cats"}),))
        return Reply("I give up.")

    def check(self, seen: Evidence) -> str | None:
        return f"It made {len(seen.requests)} requests." if len(seen.requests) > 60 else None


class TokenBudget(_AllAboutCats):
    """A token budget stops a run

    https://github.com/langchain-ai/langchain/issues/38842
    """

    needs = frozenset({"tokens"})
    limits = {"tokens": 500, "steps": 30}
    processes = ((ask("Find all about cats."),),)

    def check(self, seen: Evidence) -> str | None:
        made = len(seen.requests)
        return f"It made {made} requests of 120 tokens each." if made > 6 else "It hung." if seen.hung else None


class HungTool(Scenario):
    """A tool that never returns is given up after its time limit

    https://github.com/mastra-ai/mastra/issues/18594
    """

    tools = ("hang",)
    needs = frozenset({"tool_timeout_s", "async"})
    limits = {"tool_timeout_s": 1}
    processes = ((ask("How large is Oslo?"),),)

    def model(self, request: Request) -> Reply:
        return Reply("I do not know.") if request.results else Reply(calls=(Call("hang", {"city": "Oslo"}),))

    def check(self, seen: Evidence) -> str | None:
        return seen.unanswered("I do not know.")


class SessionGrowth(Scenario):
    """A session of twice as many inputs takes about twice the space

    https://github.com/langchain-ai/langgraph/issues/7843
    """

    needs = frozenset({"store"})
    processes = (tuple(ask(f"{number}: {'word ' * 800}") for number in range(40)),) * 2

    def model(self, request: Request) -> Reply:
        return Reply("Noted.")

    def check(self, seen: Evidence) -> str | None:
        first, second = seen.stored
        return f"It grew from {first:,} to {second:,} bytes." if second > 3 * first else seen.unanswered("Noted.")


ALL = (StepLimit, LimitLosesWork, EndlessLoop, TokenBudget, HungTool, SessionGrowth)
