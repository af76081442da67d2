"""Selects the calls that wait for a person, builds the request to the person, and reads the decisions.

Parts of approvals in other files:

- `nodes/plan.py`: the rules `take_input_or_wave`, which applies decisions, and `continue_wave`, which asks what
  delegations ask
- `core/planning/plan_edits.py`: `start_calls` holds calls of a plan
- `core/planning/approval_decisions.py`: `apply_decisions` applies the decisions, `report_edits` shows them to the model
- `nodes/approve.py`: `approve_node` asks a person
- `core/execution/approvals.py`: `held_calls`, the part at a call; `answered_approvals`, for requests of middleware
- `core/state/schema.py`: the keys `awaiting_approval` and `approve` of the loop
- `base/history/events.py`: `ApprovalRequestEvent`, `ApprovalDecisionEvent`, `RevocationEvent`
- `base/history/approval_events.py`: makes the first two
- `session/standing_approvals.py`: approvals of all calls of a kind, and their revocation
- `session/routing.py`: `after_plan` leads to the node; `session/interrupts.py` reads the open questions
"""
