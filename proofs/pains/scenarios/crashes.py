"""A process dies, a user gives up, or the model's server fails, while an input runs."""

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


class FinishedSibling(Scenario):
    """A finished payment is not repeated when a parallel call killed the process

    https://github.com/GEMISIS/leviath/issues/96
    """

    tools = ("pay", "crash")
    needs = frozenset({"store"})
    processes = ((ask("Pay 10 euros, and look up Oslo."),), (resume(),))

    def model(self, request: Request) -> Reply:
        if request.results:
            return Reply("Done.")
        return Reply(calls=(Call("pay", {"amount": 10}), Call("crash", {"reason": "Oslo"})))

    def check(self, seen: Evidence) -> str | None:
        paid = seen.count("pay")
        return f"It paid {paid} times." if paid != 1 else seen.unanswered("Done.")


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


class _DidYouPay(Scenario):
    """A model that pays, and is asked about it by the next input."""

    def after_payment(self) -> Reply:
        """The reply once it is paid."""
        raise NotImplementedError

    def model(self, request: Request) -> Reply:
        paid = any("Paid 10" in each for each in request.results)
        if request.inputs[-1] == "Did you pay?":
            return Reply("Yes, I paid." if paid else "I know of no payment.")
        return self.after_payment() if paid else Reply(calls=(Call("pay", {"amount": 10}),))

    def check(self, seen: Evidence) -> str | None:
        return seen.unanswered("Yes, I paid.")


class CancelledPayment(_DidYouPay):
    """A payment is remembered after the run was cancelled in a later step

    https://github.com/NousResearch/hermes-agent/pull/102238
    """

    tools = ("pay", "slow")
    needs = frozenset({"async"})
    processes = ((cancel("Pay 10 euros, and look up Oslo.", at="slow"), ask("Did you pay?")),)

    def after_payment(self) -> Reply:
        return Reply(calls=(Call("slow", {"city": "Oslo"}),))


class FailedRun(_DidYouPay):
    """A payment is remembered after the model's server failed in a later step

    https://github.com/openai/openai-agents-python/issues/719
    """

    tools = ("pay",)
    processes = ((ask("Pay 10 euros."), ask("Did you pay?")),)

    def after_payment(self) -> Reply:
        return Reply(status=403, body={"error": {"message": "Your account has no credit.", "type": "billing"}})


ALL = (KilledDuringCall, PaymentRepeated, FinishedSibling, CancelledCall, CancelledPayment, FailedRun)
