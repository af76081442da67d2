"""A person approves calls, in another process than the one that asked."""

from __future__ import annotations

from proofs.pains.scenario import Evidence, Scenario, ask, decide
from proofs.pains.stub import Call, Reply, Request


class _Approved(Scenario):
    """A payment that needs an approval."""

    tools = ("pay",)
    needs = frozenset({"approvals"})
    approve = ("pay",)
    amounts: tuple[int, ...] = (10,)
    paid: tuple[int, ...] = (10,)
    """What may be paid."""

    def model(self, request: Request) -> Reply:
        if request.results:
            return Reply("Done.")
        return Reply(calls=tuple(Call("pay", {"amount": amount}) for amount in self.amounts))

    def check(self, seen: Evidence) -> str | None:
        if len(seen.outcomes) < 2:
            return "It hung, or the process died."
        if len(seen.outcomes[0]["waiting"]) != len(self.amounts):
            return f"{len(seen.outcomes[0]['waiting'])} calls waited: {seen.outcomes[0]}"
        paid = seen.values("pay", "amount")
        if paid != list(self.paid):
            return f"It paid {paid}. {seen.outcomes[1]['error']}"
        return None if "Done." in seen.outcomes[1]["answer"] else seen.unanswered("Done.")


class ApprovalAfterRestart(_Approved):
    """A call waits for its approval, also across a restart of the process

    https://github.com/agno-agi/agno/issues/5661
    """

    processes = ((ask("Pay 10 euros."),), (decide(True),))


class ApprovalOfOneCall(_Approved):
    """Of two calls, the approved one runs, and the rejected one does not

    https://github.com/langchain-ai/langgraph/issues/6533
    """

    amounts = (10, 20)
    processes = ((ask("Pay 10 and 20 euros."),), (decide(True, False),))


class ApprovalTwice(_Approved):
    """An approval that is delivered twice runs the call once

    https://github.com/OWASP/AISVS/issues/272
    """

    processes = ((ask("Pay 10 euros."),), (decide(True),), (decide(True),))


class ApprovalWithEdit(_Approved):
    """A call that a person edited runs with the edited arguments, once

    https://github.com/extra-org/extra/issues/139
    """

    needs = _Approved.needs | {"edits"}
    paid = (5,)
    processes = ((ask("Pay 10 euros."),), (decide(5),))


ALL = (ApprovalAfterRestart, ApprovalOfOneCall, ApprovalTwice, ApprovalWithEdit)
