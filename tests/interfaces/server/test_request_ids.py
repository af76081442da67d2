"""Both official clients find the request id."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

MESSAGES: Any = [{"role": "user", "content": "hi"}]


def test_openais_client_receives_request_ids(openai_client: openai.OpenAI) -> None:
    answer = openai_client.chat.completions.create(model="parrot", messages=MESSAGES)
    listed = openai_client.models.list()
    with openai_client.chat.completions.create(model="parrot", messages=MESSAGES, stream=True) as stream:
        streamed = stream.response.headers.get("x-request-id")
    with pytest.raises(openai.NotFoundError) as refused:
        openai_client.chat.completions.create(model="banana", messages=MESSAGES)

    ids = [answer._request_id, listed._request_id, streamed, refused.value.request_id]
    assert (len(set(ids)), {str(id_)[:4] for id_ in ids}) == (4, {"req_"})


def test_anthropics_client_receives_request_ids(anthropic_client: anthropic.Anthropic) -> None:
    given: dict[str, Any] = {"model": "parrot", "messages": MESSAGES}
    answer = anthropic_client.messages.create(max_tokens=9, **given)
    counted = anthropic_client.messages.count_tokens(**given)
    with anthropic_client.messages.stream(max_tokens=9, **given) as stream:
        streamed = stream.request_id
    with pytest.raises(anthropic.NotFoundError) as refused:
        anthropic_client.messages.create(max_tokens=9, model="banana", messages=MESSAGES)

    ids = [answer._request_id, counted._request_id, streamed, refused.value.request_id]
    assert (len(set(ids)), {str(id_)[:4] for id_ in ids}) == (4, {"req_"})
    assert refused.value.body["request_id"] == refused.value.request_id  # type: ignore[index]
