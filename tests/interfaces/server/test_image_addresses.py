"""Image addresses are refused if the model's client would fetch them from this process."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.interfaces.server.problems import ProblemError
from graph_agent.models.capabilities import may_download_images
from tests.interfaces.server.hosting import answered, ask, running

GOOGLE = type("ChatGoogleGenerativeAI", (ScriptedChatModel,), {"__module__": "langchain_google_genai.chat_models"})
XAI = type("ChatXAI", (ChatOpenAI,), {"__module__": "langchain_xai.chat_models"})
BY_ADDRESS = HumanMessage([{"type": "image", "url": "http://169.254.169.254/latest"}])
BY_BYTES = HumanMessage([{"type": "image", "base64": "AAAA", "mime_type": "image/png"}])


@pytest.mark.parametrize(
    ("model", "downloads"),
    [
        (GOOGLE(responses=["x"]), True),
        (ScriptedChatModel(["x"]), False),
        (ChatOpenAI(model="m", api_key=SecretStr("none")), False),
        (XAI(model="m", api_key=SecretStr("none")), False),
        ("google_genai:gemini", True),
        ("bedrock_converse:claude", True),
        ("openai:gpt-4o", False),
        ("my.models:make", False),
    ],
)
def test_clients_that_may_download_are_known(model: Any, downloads: bool) -> None:
    assert may_download_images(model) == downloads


@pytest.mark.parametrize("config", [None, "fallback"])
async def test_address_of_an_image_is_refused_for_a_client_that_downloads(config: str | None) -> None:
    other = GOOGLE(responses=["Seen."], cycle=True)
    if config is None:
        graph = create_graph_agent(other)
    else:
        settings = LoopConfig(fallback_models=(other,))
        graph = create_graph_agent(ScriptedChatModel(["Seen."], cycle=True), config=settings)
    async with running(graph) as runs:
        with pytest.raises(ProblemError, match="Send the image's bytes in base64"):
            await answered(runs.host, ask(BY_ADDRESS))
        seen = await answered(runs.host, ask(BY_BYTES))

    assert seen.text == "Seen."


async def test_address_of_an_image_is_passed_on_by_other_clients() -> None:
    async with running(create_graph_agent(ScriptedChatModel(["Seen."]))) as runs:
        seen = await answered(runs.host, ask(BY_ADDRESS))

    assert seen.text == "Seen."
