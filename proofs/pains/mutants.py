"""Faults of the control, one for each scenario, which must fail it: they show that each check can fail.

python -m proofs.pains.mutants          # each fault against its own scenario
python -m proofs.pains.mutants --all    # each fault against every scenario, in about half an hour
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from proofs.pains.runner import Worker, judge
from proofs.pains.scenarios import SCENARIOS


@dataclass(frozen=True)
class Fault:
    """Replacements in the source of `control.py`; each text to replace occurs once there."""

    edits: tuple[tuple[str, str], ...]
    also: tuple[str, ...] = ()
    """Other scenarios that it fails, too."""


_SETTLE = 'self.settle()\n            self.add({"role": "user"'
_RUNS = 'finish in ("stop", "tool_calls")'
_LOADS = 'json.loads(call["function"]["arguments"] or "{}")'
_REPAIR = (_LOADS, 'json.loads((call["function"]["arguments"] or "{").removesuffix("}") + "}")')
_ERROR = 'result = f"Error: {error!r}"'
_THREAD = "asyncio.to_thread(function, **arguments)"
_GATHER = "await asyncio.gather(*(self.call(call, {}) for call in calls if call not in waiting))"
_LOOP = "            return await self.loop(streamed)"
_RESUME = '"""Carry on after a crash."""\n        self.settle()'
_CRASHED = '(self.file.parent / "crashed").exists()'
_OPEN = "zip(self.open_calls(), decisions"


def _fault(before: str, after: str, *also: str) -> Fault:
    return Fault(((before, after),), also)


def _raising(kind: str) -> Fault:
    return _fault(_ERROR, f"if {kind}:\n                raise\n            {_ERROR}")


def _forgetting(kind: str) -> Fault:
    body = f"    return await self.loop(streamed)\n            except {kind}:\n                self.history.clear()\n"
    return _fault(_LOOP, f"            try:\n            {body}                raise")


FAULTS = {
    "killed-during-call": _fault(_SETTLE, f"None if {_CRASHED} else {_SETTLE}"),
    "payment-repeated": _fault(
        _RESUME, _RESUME.replace("self.settle()", "[await self.call(call, {}) for call in self.open_calls()]")
    ),
    "finished-sibling": _fault(
        _RESUME,
        _RESUME + '\n        [await self.call(each, {}) for each in self.history[1]["tool_calls"][:-1]]',
    ),
    "cancelled-call": _fault(_SETTLE, f"{_CRASHED} and {_SETTLE}", "cancelled-payment"),
    "cancelled-payment": _forgetting("asyncio.CancelledError"),
    "failed-run": _forgetting("RuntimeError"),
    "tool-exception": _raising("type(error) is ValueError"),
    "failed-sibling": _fault(
        _GATHER,
        f'{_GATHER}\n            if len(calls) > 1 and "ValueError" in str(self.history[-2:]):\n'
        '                [each.update(content="Cancelled.") for each in self.history if each["role"] == "tool"]',
    ),
    "huge-result": _fault("if len(text) > LONGEST:", "if False:"),
    "unserializable-result": _fault("else repr(result)", "else json.dumps(result)"),
    "broken-text": _fault('text = text.encode(errors="replace").decode()', "pass"),
    "invalid-arguments": _raising("isinstance(error, json.JSONDecodeError)"),
    "wrong-type": _fault("validate_call(each)", "each"),
    "unknown-tool": _raising("isinstance(error, KeyError)"),
    "empty-arguments": _fault(_LOADS, _LOADS.replace(' or "{}"', "")),
    "finished-with-stop": _fault(_RUNS, 'finish == "tool_calls"'),
    "half-call": Fault(((_RUNS, f'({_RUNS} or (finish == "length" and not streamed))'), _REPAIR)),
    "half-call-streamed": Fault(((_RUNS, f'({_RUNS} or (finish == "length" and streamed))'), _REPAIR)),
    "connection-lost-in-call": Fault(((_RUNS, f'({_RUNS} or finish == "lost")'), _REPAIR)),
    "connection-lost": _fault('"lost", 0', '"stop", 0'),
    "token-limit-in-answer": _fault('"" if finish == "stop"', '"" if finish in ("stop", "length")'),
    "duplicate-ids": _fault("enumerate(calls):", 'enumerate(calls := list({c["id"]: c for c in calls}.values())):'),
    "reused-ids": Fault(
        (
            ('call["id"] = f"call_{len(self.history)}_{index}"', "pass"),
            (
                "if call not in waiting)",
                'if call not in waiting and not any(call["id"] == each.get("tool_call_id") for each in self.history))',
            ),
        )
    ),
    "empty-reply": _fault('if finish == "stop" and not text', "if False"),
    "usage-missing": _fault('reply.get("usage") or {}', 'reply["usage"]'),
    "error-in-body": _fault('if "error" in reply:', "if response.status_code >= 400:"),
    "step-limit": _fault(
        "            last = step",
        '            if step >= limits.get("steps", 10):\n'
        '                raise RuntimeError("Too many steps.")\n'
        "            last = step",
    ),
    "limit-loses-work": _fault(
        "                return Reply(text, tokens,",
        '                if step > limits.get("steps", 99):\n'
        "                    self.history.clear()\n"
        "                return Reply(text, tokens,",
    ),
    "endless-loop": _fault('limits.get("steps", 10)', 'limits.get("steps", 1_000)'),
    "token-budget": _fault("0.7 * limits", "1_000 * limits"),
    "hung-tool": _raising("isinstance(error, TimeoutError)"),
    "session-growth": _fault(
        'file.write(json.dumps(message) + "\\n")',
        'file.write(json.dumps(message) + "\\n")\n'
        '        with self.file.with_suffix(".copies").open("a") as file:\n'
        "            file.write(json.dumps(self.history))",
    ),
    "two-inputs-at-once": _fault("async with self.lock:", "if True:"),
    "parallel-calls": _fault(
        _GATHER, "[await self.call(call, {}) for call in calls if call not in waiting]", "parallel-threads"
    ),
    "parallel-threads": Fault(
        (
            (
                "LONGEST = 20_000",
                "LONGEST = 20_000\nfrom concurrent.futures import ThreadPoolExecutor\nONE = ThreadPoolExecutor(1)",
            ),
            (_THREAD, "asyncio.get_running_loop().run_in_executor(ONE, lambda: function(**arguments))"),
        )
    ),
    "blocked-loop": _fault(_THREAD, "asyncio.sleep(0, function(**arguments))", "parallel-threads"),
    "approval-after-restart": _fault(
        "self.lock = asyncio.Lock()",
        "self.lock = asyncio.Lock()\n        self.settle()",
        "approval-of-one-call",
        "approval-twice",
        "approval-with-edit",
    ),
    "approval-of-one-call": _fault(_OPEN, "zip(self.open_calls(), reversed(decisions)"),
    "approval-twice": _fault(
        _OPEN, 'zip((call for each in self.history for call in each.get("tool_calls", ())), decisions'
    ),
    "approval-with-edit": _fault("edits = {} if made is True else", "edits = {} if made else"),
}
"""Scenario → the fault that fails it."""


def run(*, everything: bool) -> list[str]:
    """What is not as declared: faults that pass their scenario or, with `everything`, fail an undeclared one."""
    wrong = []
    with Worker(Path(sys.executable), "proofs.pains.control") as worker:
        for scenario in SCENARIOS:
            fault = FAULTS[scenario.name()]
            expected = {scenario.name(), *fault.also}
            judged = SCENARIOS if everything else [scenario]
            for each in judged:
                verdict = judge(worker, each, edits=fault.edits)
                if (verdict.kind == "fail") != (each.name() in expected):
                    wrong.append(f"The fault of {scenario.name()}: {each.name()} is a {verdict.kind}. {verdict.seen}")
    return wrong


def main() -> None:
    """Print what is not as declared; the status is then 1."""
    wrong = run(everything="--all" in sys.argv)
    print("\n".join(wrong) or f"Each of {len(FAULTS)} faults fails its scenario.")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
