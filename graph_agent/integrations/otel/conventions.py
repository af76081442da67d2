"""Defines the names in OpenTelemetry's conventions for generative AI, all of which may still change there."""

from __future__ import annotations

VERSION = "0.1.0"
"""Version of the conventions in the repository `open-telemetry/semantic-conventions-genai`."""
SCHEMA_URL = f"https://opentelemetry.io/schemas/gen-ai/{VERSION}"

OPERATION = "gen_ai.operation.name"
INVOKE_AGENT, CHAT, EXECUTE_TOOL, PLAN, FEEDBACK = "invoke_agent", "chat", "execute_tool", "plan", "feedback"
"""Values of `OPERATION`. The name of a span is one of them, followed by the name of the agent, model or tool."""

AGENT_NAME = "gen_ai.agent.name"
CONVERSATION_ID = "gen_ai.conversation.id"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
TOOL_NAME = "gen_ai.tool.name"
TOOL_CALL_ID = "gen_ai.tool.call.id"
TOOL_TYPE = "gen_ai.tool.type"
ERROR_TYPE = "error.type"
REQUEST_OPTIONS = {
    "temperature": "gen_ai.request.temperature",
    "max_tokens": "gen_ai.request.max_tokens",
    "top_p": "gen_ai.request.top_p",
}
"""Option of a model call → attribute of its span."""

EVALUATION = "gen_ai.evaluation.name"
SCORE = "gen_ai.evaluation.score.value"
SCORE_LABEL = "gen_ai.evaluation.score.label"

# With content only.
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"

INFERENCE_DURATION = "gen_ai.client.inference.duration"
INFERENCE_FIRST_CHUNK = "gen_ai.client.inference.time_to_first_chunk"
INFERENCE_INPUT_TOKENS = "gen_ai.client.inference.usage.input_tokens"
INFERENCE_OUTPUT_TOKENS = "gen_ai.client.inference.usage.output_tokens"
AGENT_DURATION = "gen_ai.invoke_agent.duration"
AGENT_INFERENCE_CALLS = "gen_ai.invoke_agent.inference_calls"
AGENT_TOOL_CALLS = "gen_ai.invoke_agent.tool_calls"
TOOL_DURATION = "gen_ai.execute_tool.duration"

# The conventions have no names for these.
STEP = "graph_agent.step"
STATUS = "graph_agent.status"
CALL_STATUS = "graph_agent.call.status"
CALL_ORIGINS, CALL_TAINTED = "graph_agent.call.origins", "graph_agent.call.tainted"
LINK = "graph_agent.link"
FEEDBACK_COUNT = "graph_agent.feedback"
SPECULATION_COUNT, SPECULATION_SECONDS = "graph_agent.speculation.count", "graph_agent.speculation.duration"
SPECULATION_COST = "graph_agent.speculation.cost"
SOURCE, OUTCOME = "graph_agent.speculation.source", "graph_agent.speculation.outcome"
EVENT = "graph_agent."
"""Prefix of span events and their attributes; the type or field of the session's event follows."""
EVENT_FIELDS = {
    "approval_request": (),
    "approval_decision": ("id", "name", "decision", "waited_s"),
    "limit": ("reason", "limit"),
    "loop_detected": ("pattern", "count", "repeated"),
    "recall": ("facts", "kept"),
    "steering": (),
    "summary": ("messages",),
    "warning": (),
    "error": ("kind",),
}
"""Type of a session's event that becomes a span event → fields that are recorded; none of them has content."""
