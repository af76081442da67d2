"""Checks requests that list tasks."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl

from a2a import types
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import decode_list_tasks_cursor, decode_page_token
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.timestamp_pb2 import Timestamp

from graph_agent.base._internal.text import find_lone_surrogate

_PARAMETERS: dict[str, Any] = {field.json_name: field for field in types.ListTasksRequest.DESCRIPTOR.fields}
"""Name of a query parameter of the request that lists tasks → its field.

Parameters of other requests have the same names.
"""
_OTHER_NAMES = {field.name: name for name, field in _PARAMETERS.items() if field.name != name}
_LEAST = {"pageSize": 1, "historyLength": 0}
"""Name of a numeric query parameter → its minimum."""
MOST_INT32 = 2**31 - 1
TASK_STATES = {*types.TaskState.keys(), *map(str, types.TaskState.values())}
"""The states of tasks in the two forms that a query may have: names, and numbers as text."""


def check_query(query: bytes) -> None:
    """Check the query string of a request, which may be one that lists tasks. Unknown parameters are ignored.

    Raises `InvalidParamsError` if it is not UTF-8, or a known parameter is repeated, invalid, or written in snake case.
    """
    try:
        given = parse_qsl(query.decode("latin-1"), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise InvalidParamsError("The query is not UTF-8.") from None
    names = [name for name, _ in given]
    for name, value in given:
        if (field := _PARAMETERS.get(name)) is None:
            if (known := _OTHER_NAMES.get(name)) is not None:
                raise InvalidParamsError(f"{name}: there is no such parameter; write {known}.")
            continue
        if names.count(name) > 1:
            raise InvalidParamsError(f"{name} is repeated; give it once.")
        if (expected := _expected(field, value)) is not None:
            raise InvalidParamsError(f"{name}={value!r}: give {expected}.")


def _expected(field: Any, value: str) -> str | None:
    """Return a description of the valid values if `value` is invalid for a query parameter; None if it is valid.

    The type of the parameter's field decides: a whole number from its minimum to 2³¹ - 1, `true` or `false` in upper or
    lower case, the name of a state of tasks, a time in the format of RFC 3339, or text without NUL.
    """
    match field.type:
        case FieldDescriptor.TYPE_INT32:
            least = _LEAST[field.json_name]
            valid = re.fullmatch("[0-9]{1,10}", value) is not None and least <= int(value) <= MOST_INT32
            return None if valid else f"a whole number from {least}"
        case FieldDescriptor.TYPE_BOOL:
            return None if value.lower() in ("true", "false") else "true or false"
        case FieldDescriptor.TYPE_ENUM:
            return None if value in TASK_STATES else f"one of {', '.join(types.TaskState.keys())}"
        case FieldDescriptor.TYPE_MESSAGE:
            try:
                Timestamp().FromJsonString(value)
            except ValueError:
                return "a time such as 2026-01-31T12:00:00Z"
            return None
        case _:
            return "text without NUL" if "\x00" in value else None


def check_listing(params: types.ListTasksRequest) -> None:
    """Check a request that lists tasks.

    Raises `InvalidParamsError` for an unknown state or page token, or a conversation id with NUL.
    """
    if params.status not in types.TaskState.values():
        raise unknown_state(params.status)
    if "\x00" in params.context_id:
        raise InvalidParamsError(message="contextId holds a NUL character; send an id without it.")
    if not params.page_token:
        return
    try:
        cursor = decode_list_tasks_cursor(params.page_token)
    # The token is a client's, and may be JSON that is nested too deeply.
    except RecursionError:
        raise _unknown_token() from None
    # An earlier version of the SDK made tokens of the id alone.
    task_id = decode_page_token(params.page_token) if cursor is None else cursor.task_id
    time_ns = 0 if cursor is None or cursor.timestamp_ns is None else cursor.timestamp_ns
    if "\x00" in task_id or find_lone_surrogate(task_id) is not None or not 0 <= time_ns < 2**63:
        raise _unknown_token()


def _unknown_token() -> InvalidParamsError:
    """Return the error for a page token that this server has not issued."""
    return InvalidParamsError("The page token is unknown; send the nextPageToken of an earlier answer.")


def unknown_state(status: object) -> InvalidParamsError:
    """Return the error for a filter by a state that tasks do not have."""
    return InvalidParamsError(f"status={status!r}: give one of {', '.join(types.TaskState.keys())}.")
