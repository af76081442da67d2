"""Starts calls that only read before the plan that makes them is whole: `dispatch="streamed"`.

A planning reply is read while it streams. A call whose JSON is complete, that needs no other call, and whose tool only
reads runs at once; its result waits in memory. When the whole plan has passed all checks, a call with the same tool and
arguments takes that result instead of running; all other results are dropped and counted. The history and the results
are those of a session without it.

Parts in other files:

- `core/planning/ask.py`: `_send`, which reads the reply of a planning request
- `core/execution/run_call.py`: `run_tool`, which takes an early result
- `models/chunk_listener.py`: how the chunks of a reply arrive here
- `base/settings/config.py`: the field `dispatch`
- `core/state/events.py`: `early` of the `plan` event, `early_s` of a `tool_result`
"""
