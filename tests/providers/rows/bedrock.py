"""Models of Amazon Bedrock, over Converse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.providers.protocols.bedrock import Bedrock, BedrockShape
from tests.providers.row import Row
from tests.providers.rows.building import from_class
from tests.providers.rule import Rule
from tests.providers.rules import bedrock

CONVERSE = Bedrock()
_IN_THREAD = "The client waits in a thread for the beginning of a reply, and cannot be interrupted there."
_NO_REASONING = "The model does not reason in this row."


def _environment(address: str) -> Mapping[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": "AKIAEMULATOR0000000",
        "AWS_SECRET_ACCESS_KEY": "emulator",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nonexistent",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    }


def _row(
    name: str, model: str, *, more: tuple[Rule, ...] = (), limits: dict[Any, str] | None = None, **arguments: Any
) -> Row:
    return Row(
        name=name,
        protocol=CONVERSE,
        build=from_class(
            "langchain_aws:ChatBedrockConverse", url="endpoint_url", model=model, region_name="us-east-1", **arguments
        ),
        package="langchain-aws",
        model=model,
        rules=(*bedrock.RULES, *more),
        faults=bedrock.FAULTS,
        shape=BedrockShape(thinks="additional_model_request_fields" in arguments),
        answers=("aws-bedrock-16", "aws-bedrock-17", "aws-bedrock-18", "aws-bedrock-19"),
        limits={"abort_in_wait": _IN_THREAD, **(limits or {})},
        host="bedrock-runtime.us-east-1.amazonaws.com",
        environment=_environment,
    )


ROWS = (
    _row("bedrock-claude", "anthropic.claude-sonnet-4-5-20250929-v1:0", limits={"reasoning": _NO_REASONING}),
    _row(
        "bedrock-thinking",
        "anthropic.claude-sonnet-4-5-20250929-v1:0",
        max_tokens=4096,
        additional_model_request_fields={"thinking": {"type": "enabled", "budget_tokens": 1024}},
    ),
    _row(
        "bedrock-mistral",
        "mistral.mistral-large-2407-v1:0",
        more=bedrock.OTHER_FAMILIES,
        limits={
            "reasoning": _NO_REASONING,
            "abort_in_reply": "The client does not stream replies of this model to a request with tools.",
        },
    ),
)
