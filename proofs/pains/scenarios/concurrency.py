"""Calls, inputs and other work at the same time."""

from __future__ import annotations

from proofs.pains.scenario import Evidence, Scenario, ask, together
from proofs.pains.stub import Call, Reply, Request


class TwoInputsAtOnce(Scenario):
    """Two inputs at once leave a session that goes on, and forgets none that it accepted

    https://github.com/strands-agents/harness-sdk/issues/1176
    """

    tools = ("read_page",)
    needs = frozenset({"async", "store"})
    processes = ((together(ask("Read page 1."), ask("Read page 2.")), ask("What did I ask?")),)

    def model(self, request: Request) -> Reply:
        if request.inputs[-1] == "What did I ask?":
            return Reply(" ".join(request.inputs))
        if request.fresh_results:
            return Reply("Done.")
        page = 1 if request.inputs[-1] == "Read page 1." else 2
        return Reply(calls=(Call("read_page", {"page": page}),))

    def check(self, seen: Evidence) -> str | None:
        if seen.refused:
            return f"The server refused a request: {seen.refused[0]}"
        asked = ("Read page 1.", "Read page 2.")
        accepted = [text for text, outcome in zip(asked, seen.outcomes, strict=False) if not outcome["error"]]
        failures = [failure for text in (*accepted, "What did I ask?") if (failure := seen.unanswered(text))]
        return failures[0] if failures else None if accepted else "It refused both."


class _TwoCalls(Scenario):
    """Two calls that wait for each other."""

    needs = frozenset({"async"})
    processes = ((ask("Meet."),),)

    def model(self, request: Request) -> Reply:
        if request.results:
            return Reply(" ".join(request.results))
        return Reply(calls=(Call(self.tools[0], {"name": "Ann"}), Call(self.tools[0], {"name": "Bob"})))

    def check(self, seen: Evidence) -> str | None:
        failures = [failure for name in ("Ann", "Bob") if (failure := seen.unanswered(f"{name} met the other."))]
        return failures[0] if failures else None


class ParallelCalls(_TwoCalls):
    """Asynchronous calls of one reply run at the same time

    https://github.com/OpenHands/software-agent-sdk/pull/2390
    """

    tools = ("meet",)


class ParallelThreads(_TwoCalls):
    """Synchronous calls of one reply run at the same time

    https://github.com/openai/openai-agents-python/pull/2387
    """

    tools = ("meet_in_thread",)


class BlockedLoop(Scenario):
    """A synchronous tool does not block the event loop

    https://github.com/microsoft/agent-framework/issues/5741
    """

    tools = ("block",)
    needs = frozenset({"async"})
    processes = ((ask("Work."),),)

    def model(self, request: Request) -> Reply:
        return Reply(request.results[-1]) if request.results else Reply(calls=(Call("block", {"seconds": 1}),))

    def check(self, seen: Evidence) -> str | None:
        return seen.unanswered("The loop ran.")


ALL = (TwoInputsAtOnce, ParallelCalls, ParallelThreads, BlockedLoop)
