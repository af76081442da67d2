"""Guards an agent: some questions never reach the model, and some answers never leave it."""

import re
from typing import Any

from langchain.agents.middleware import AgentState, PIIMiddleware, before_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.runtime import Runtime

from graph_agent import GraphAgent, LoopHook, LoopPlan, RequestPatch, create_graph_agent
from graph_agent.hooks import HookRequest, HookResponse
from graph_agent.marks import marked

PROMPT = """\
You answer questions about medicines that are sold without a prescription.

- Read the leaflet before you answer. Quote doses exactly, with their unit and their limit.
- If the leaflet does not answer the question, advise to ask a pharmacist.
"""
LEAFLETS = {"ibuprofen": "Adults take 200 mg to 400 mg every 6 hours, at most 1200 mg a day."}
EMERGENCY = re.compile(r"overdose|chest pain|unconscious|cannot breathe", re.IGNORECASE)
NUMBER = re.compile(r"\d+(?:[.,]\d+)?")


@before_agent(can_jump_to=["end"])
def refer_emergencies(state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
    """Answer an emergency with a fixed text; the model is not asked."""
    if EMERGENCY.search(state["messages"][-1].text):
        return {"messages": [AIMessage("Call 112 now.")], "jump_to": "end"}
    return None


class ReportedNumbers(LoopHook):
    """Refuses an answer with a number that neither a tool nor the user has given."""

    def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
        """Find the numbers of an answer that have no source."""
        sources = [each.text for each in request.messages if not isinstance(each, AIMessage)]
        unknown = set(NUMBER.findall(response.text)) - set(NUMBER.findall(" ".join(sources)))
        return bool(unknown) and not response.calls, unknown

    def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
        """Ask once more; then answer in place of the model."""
        if request.depth > 0:
            return LoopPlan(response_override="I am not sure. Please ask a pharmacist.")
        rule = HumanMessage(f"The leaflet does not have {', '.join(context)}. Correct your answer.")
        patch = RequestPatch(messages=[*request.messages, response.message, rule])
        return LoopPlan(run_agentic_loop=True, request_patch=patch)


def leaflet(medicine: str) -> str:
    """Return the leaflet of a medicine."""
    return LEAFLETS[medicine.lower()]


def make_agent(model: BaseChatModel | str) -> GraphAgent:
    """Return the agent."""
    return create_graph_agent(
        model,
        tools=[marked(leaflet, effect="read")],
        hooks=[refer_emergencies, PIIMiddleware("email", strategy="redact"), ReportedNumbers()],
        system_prompt=PROMPT,
        checkpointer=InMemorySaver(),
    )


def main(model: BaseChatModel | str = "openai:gpt-4o-mini") -> None:
    """Ask two questions."""
    session = make_agent(model).session("ada")
    for text in (
        "How much ibuprofen can I take? Write to ada@example.com.",
        "My father is unconscious after 20 pills!",
    ):
        print(f"user: {text}")
        print(f"agent: {session.run_sync(text).answer}")


if __name__ == "__main__":
    main()
