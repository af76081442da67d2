"""Determines where the arguments of calls come from, and holds calls whose destination comes from untrusted text.

The part of origins in other files:

- `base/settings/config.py`: the fields `origins` and `on_tainted`; `base/marks.py`: the marks `source` and `sinks`
- `base/origins.py`: `ArgumentOrigin` and `TracedCall`, the fields of calls, events and approval requests
- `core/planning/plan_edits.py`: `start_calls` has the calls of a plan traced, by `core/planning/traced_calls.py`
- `core/execution/approvals.py`: `held_calls` asks a reviewer about the tainted calls
- `core/execution/delegate_call.py`: hands a delegate the untrusted parts of its task
- `core/extensions/source_marks.py` reads and checks the marks
- `session/agent_parts.py`: `with_approvals` has them checked, and adds the node `approve`
"""
