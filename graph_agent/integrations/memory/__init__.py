"""Keeps facts about a user across sessions; needs the extra `memory`.

The facts are items of LangGraph's Store, in a namespace of the authenticated caller. Two tools of langmem let the model
write and search them, and facts that fit a user's message are added to the requests of its input.

Parts in other files:

- `core/extensions/memory.py`: the protocol of a memory
- `core/planning/recall.py`: the recall at the beginning of an input
- `core/planning/next_request.py`: the message with the recalled facts
- `base/history/events.py`: `RecallEvent`; `core/state/schema.py`: the key `recalled` of the loop state
- `interfaces/server/facts.py`, `interfaces/cli/memory.py`: the facts in the hands of the user
"""
