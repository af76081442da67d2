"""Responses of a server to LangChain's models for both APIs, as JSON: URL, key."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.support.compat import BOTH, CITY, CITY_SCHEMA, results, write
from tests.support.compat import paint as paint_function

# Not among the project's development dependencies.
ChatAnthropic: Any = import_module("langchain_anthropic").ChatAnthropic
PLACE = {"title": "Place", **CITY_SCHEMA}
paint = tool(paint_function)


def main(url: str, key: str) -> None:
    secret = SecretStr(key)
    models: dict[str, Any] = {
        "openai": ChatOpenAI(model="parrot", base_url=f"{url}/v1", api_key=secret, stream_usage=True, max_retries=0),
        "responses": ChatOpenAI(
            model="parrot", base_url=f"{url}/v1", api_key=secret, use_responses_api=True, max_retries=0
        ),
        "chained": ChatOpenAI(
            model="parrot", base_url=f"{url}/v1", api_key=secret, use_previous_response_id=True, max_retries=0
        ),
        "anthropic": ChatAnthropic(model="parrot", base_url=url, api_key=secret, max_retries=0),
    }
    write({name: report_of(model) for name, model in models.items()})


def report_of(model: Any) -> dict[str, Any]:
    streamed: Any = None
    for chunk in model.stream("hello there"):
        streamed = chunk if streamed is None else streamed + chunk
    shaped = {
        "function_calling": '!call Place {"city": "Bergen"}',
        "json_schema": CITY,
    }
    return {
        "whole": answered(model.invoke([SystemMessage("Be brief."), HumanMessage("hello")])),
        "streamed": answered(streamed),
        "second turn": model.invoke([HumanMessage("one"), model.invoke("one"), HumanMessage("two")]).text,
        "batch": [message.text for message in model.batch(["one", "two"])],
        "tools": handed_back(model.bind_tools([paint])),
        "structured": [model.with_structured_output(PLACE, method=way).invoke(order) for way, order in shaped.items()],
    }


def answered(message: Any) -> list[Any]:
    metadata = message.response_metadata
    ending = metadata.get("finish_reason") or metadata.get("stop_reason") or metadata.get("status")
    return [message.text, ending, message.usage_metadata["total_tokens"]]


def handed_back(model: Any) -> list[Any]:
    messages: list[Any] = [HumanMessage(BOTH)]
    messages.append(first := model.invoke(messages))
    messages += [paint.invoke(call) for call in first.tool_calls]
    return [[call["args"] for call in first.tool_calls], results(model.invoke(messages).text)]


main(*sys.argv[1:])
