"""A process dies, or a user gives up, while calls run."""

from __future__ import annotations

from proofs.pains.scenario import Evidence, Scenario, ask, cancel, resume
from proofs.pains.stub import Call, Reply, Request


class KilledDuringCall(Scenario):
    """A session goes on after its process was killed during a call

    The stored history ends with a call that has no result, which providers refuse from then on.
    https://github.com/OpenHands/software-agent-sdk/issues/4487
    """

    tools = ("crash",)
    needs = frozenset({"store"})
    processes = ((ask("Look up Oslo."),), (ask("And what is two plus two?"),))

    def model(self, request: Request) -> Reply:
        if request.inputs[-1] == "Look up Oslo.":
            return Reply(calls=(Call("crash", {"reason": "Oslo"}),))
        return Reply("Four.")

    def check(self, seen: Evidence) -> str | None:
        return seen.unanswered("Four.")


class PaymentRepeated(Scenario):
    """A payment is not repeated when its process was killed before the result was stored

    https://github.com/crewAIInc/crewAI/issues/5802
    """

    tools = ("pay_and_crash",)
    needs = frozenset({"store"})
    processes = ((ask("Pay 10 euros."),), (resume(),))

    def model(self, request: Request) -> Reply:
        if request.results:
            return Reply("Please check the payment.")
        return Reply(calls=(Call("pay_and_crash", {"amount": 10}),))

    def check(self, seen: Evidence) -> str | None:
        paid = seen.count("pay_and_crash")
        return f"It paid {paid} times." if paid != 1 else seen.unanswered("Please check")


class CancelledCall(Scenario):
    """A session goes on after a run was cancelled during a call

    https://github.com/charmbracelet/crush/issues/529
    """

    tools = ("slow",)
    needs = frozenset({"async"})
    processes = ((cancel("Look up Oslo.", at="slow"), ask("And what is two plus two?")),)

    def model(self, request: Request) -> Reply:
        if request.inputs[-1] == "Look up Oslo.":
            return Reply(calls=(Call("slow", {"city": "Oslo"}),))
        return Reply("Four.")

    def check(self, seen: Evidence) -> str | None:
        return seen.unanswered("Four.")


ALL = (KilledDuringCall, PaymentRepeated, CancelledCall)
