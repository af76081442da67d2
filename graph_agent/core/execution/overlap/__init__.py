"""Starts calls that only read before a plan of the model asks for them: those of a plan that is still streamed, those
that all candidates for a plan agree on, and those that followed in earlier inputs.

With `dispatch="streamed"`, a planning reply is read while it streams. A call whose JSON is complete, whose needs are
met by early results, and whose tool only reads runs at once; its result waits in memory. When the whole plan has passed
all checks, a call with the same tool and arguments takes that result instead of running; all other results are dropped
and counted. The history and the results are those of a session without it.

With `predict="table"`, calls that followed in earlier inputs run in the same way while the plan is asked for; with
`predict=True`, so do those of a plan that is asked for while the slowest call of the wave before still runs.

Parts of this folder:

- `rules.py`: the table of reasons for which a call waits for its plan
- `speculation.py`: the account of one input, which keeps to the budget and reports to events and metrics
- `early_calls.py`: the calls that run, and their results
- `streamed_calls.py`, `streamed_objects.py`: the reply as it streams
- `learned_calls.py`: the calls that are likely to follow; `call_table.py`: what has followed in earlier inputs;
  `past_inputs.py`: those of sessions that were stored before
- `value_references.py`: where the values of arguments stand

Parts in other files:

- `core/planning/overlap.py`: what begins while a plan is asked for; `core/planning/streamed_dispatch.py`: the calls of
  the reply, and which of them wait for results of others; `core/planning/ask.py`: `_send`, which asks
- `core/planning/predicted_plan.py`: the plan that is asked for while a call of the wave before still runs
- `session/past_sessions.py`: `PastSessionReader`, which reads stored sessions for the table
- `core/execution/run_call.py`: `run_tool`, which takes an early result
- `core/planning/answer.py`: `update`, which ends the speculation of the input; `Run.release` does so, too
- `models/chunk_listener.py`: how the chunks of a reply arrive here
- `base/settings/`: the fields `dispatch`, `predict` and `speculation_budget`
- `base/history/events.py`: `early` of events, `early_s` of a `tool_result`; `session/early_work.py` sums them
"""
