"""Reaches the private names with which clients of providers retry, to leave retries to this package."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any


def without_boto_retries(client: Any, on_response: Callable[[Any], None]) -> Any:
    """Return a copy of a boto3 client that sends each request once, without retries.

    It shares the original's connections.

    Args:
        client: The client, which is not changed.
        on_response: Receives each HTTP response, in the thread of its request, before the body of a streamed one is
            read.
    """
    emitter = copy.copy(client._endpoint._event_emitter)
    service = client.meta.service_model.service_id.hyphenize()
    emitter.unregister(f"needs-retry.{service}", unique_id=f"retry-config-{service}")
    emitter.register(f"after-call.{service}", lambda http_response, **_: on_response(http_response))
    once = _changed(client._endpoint, _event_emitter=emitter)
    return _changed(client, _endpoint=once, meta=_changed(client.meta, events=emitter))


def without_watsonx_retries(model: Any) -> Any:
    """Return a copy of IBM's `ModelInference` that sends each request once; it shares the original's connections."""
    client = model._client
    once: dict[str, Any] = {}
    for name in ("_httpx_client", "_async_httpx_client"):
        http = getattr(client, name, None)
        # Its transport has retries of its own; one that the user gave may have none.
        if hasattr(transport := getattr(http, "_transport", None), "retries"):
            once[name] = _changed(http, _transport=_changed(transport, retries=0))
    return type(model)(
        model_id=model.model_id,
        deployment_id=model.deployment_id,
        params=model.params,
        api_client=_changed(client, **once),
        validate=False,
        max_retries=0,
    )


def _changed(instance: Any, **attributes: Any) -> Any:
    """Return a shallow copy of an object with some attributes replaced, made without calling its class."""
    # Not `copy.copy`: a client of boto3 looks up unknown attributes before it has any.
    other = object.__new__(type(instance))
    vars(other).update({**vars(instance), **attributes})
    return other
