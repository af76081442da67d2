"""Garbage collection is paused while many objects are made, which later collections do not traverse."""

from __future__ import annotations

import gc

from graph_agent.base._internal.garbage import paused_collection


def test_many_objects_made_at_once_are_not_traversed_by_the_next_collections() -> None:
    gc.unfreeze()
    try:
        with paused_collection():
            made = [{"entry": [number]} for number in range(30_000)]

        oldest = {id(each) for each in gc.get_objects(generation=2)}
    finally:
        gc.freeze()  # as in `conftest.py`, so that the collections of later tests do not traverse the modules
    assert (gc.isenabled(), sum(id(each) in oldest for each in made)) == (True, len(made))


def test_a_program_that_has_disabled_collection_keeps_it_disabled() -> None:
    gc.disable()
    try:
        with paused_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
