"""Validates request bodies of the Responses API, and converts their options."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from graph_agent.server.chat import schemas
from graph_agent.server.problems import ProblemError
from graph_agent.settings.config import ReasoningEffort

MetadataText = Annotated[str, Field(max_length=512)]
Metadata = Annotated[dict[Annotated[str, Field(max_length=64)], MetadataText], Field(max_length=16)]
"""Up to 16 pairs of a name and a text, returned unchanged."""


class _Part(BaseModel):
    """An object inside the body; fields that are not declared are accepted and ignored."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


class Part(_Part):
    """A piece of a message or of a call's output."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = Field(None, description="A URL, or a `data:` URL with base64.")
    file_data: str | None = Field(None, description="A `data:` URL with base64.")
    file_url: str | None = Field(None, description="Not supported: the server connects to no address of a request.")
    file_id: str | None = Field(None, description="Not supported: files are not stored.")
    filename: str | None = None


def _with_type(item: Any) -> Any:
    return {**item, "type": "message"} if isinstance(item, dict) and item.get("type") is None else item


class InputItem(_Part):
    """An item of the input: a message, a call, its output, reasoning, an approval, or a reference to an output item."""

    type: str = Field("message", description="`message` if absent.")
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | schemas.ListOf[Part] | None = None
    call_id: schemas.CallId | None = None
    name: str | None = None
    arguments: str | None = Field(None, description="A JSON object as text.")
    output: str | schemas.ListOf[Part] | None = None
    error: str | dict[str, Any] | None = None
    summary: schemas.ListOf[Part] | None = None
    encrypted_content: str | None = None
    approval_request_id: str | None = None
    approve: bool | None = None
    reason: str | None = None


Item = Annotated[InputItem, BeforeValidator(_with_type)]


class FunctionTool(_Part):
    """A tool of the caller, or the agent itself as the MCP server of its own tools."""

    type: str
    server_label: str | None = Field(None, description="Of type `mcp`: the agent's name.")
    server_url: str | None = Field(None, description="Not supported: the server connects to no address of a request.")
    connector_id: str | None = Field(None, description="Not supported.")
    name: str | None = Field(None, pattern=schemas.TOOL_NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class AllowedTool(_Part):
    """A tool that the model may call."""

    type: str
    name: str | None = None


class NamedChoice(_Part):
    """The tool that the model must call, or the tools that it may call."""

    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: schemas.ListOf[AllowedTool] | None = None


class Format(_Part):
    """Text, any JSON object, or JSON with a schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class Text(_Part):
    """Options of the answer's text."""

    format: Format | None = None


class Reasoning(_Part):
    """Options of the model's reasoning."""

    effort: ReasoningEffort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = Field(None, description="As `summary`.")


class StreamOptions(_Part):
    """Options of a stream."""

    include_obfuscation: bool | None = Field(None, description="Without effect: streams are not obfuscated.")


class ConversationId(_Part):
    """A conversation."""

    id: str = Field(pattern=schemas.SESSION_ID)


class CompactResponse(schemas.RequestObject):
    """A request to compact a conversation. Fields that are not listed are accepted and have no effect."""

    model: str
    input: str | schemas.ListOf[Item] | None = Field(None, description="Text, or items.")
    previous_response_id: str | None = Field(None, description="The response whose conversation precedes the input.")
    instructions: str | None = Field(None, description="A system message for the compaction.")

    _clean = model_validator(mode="before")(schemas.clean_body)

    @property
    def messages(self) -> list[InputItem]:
        """The items, which count as messages for the server's limits; empty for text."""
        return self.input if isinstance(self.input, list) else []

    @property
    def tools(self) -> None:
        """No tools."""


class CreateResponse(schemas.RequestObject):
    """A request for a response. Fields that are not listed are accepted and have no effect."""

    model: str
    input: str | schemas.ListOf[Item] = Field(description="Text, or items.")
    instructions: str | None = None
    previous_response_id: str | None = Field(None, description="The response to continue; an older one is branched.")
    conversation: Annotated[str, Field(pattern=schemas.SESSION_ID)] | ConversationId | None = Field(
        None, description="The conversation, or session, to continue."
    )
    store: bool | None = Field(None, description="Whether to keep the response and its session; true by default.")
    background: bool | None = Field(None, description="Answer at once, and run on; read the result by the id.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include: schemas.ListOf[str] | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    max_output_tokens: int | None = Field(None, ge=1)
    reasoning: Reasoning | None = None
    text: Text | None = None
    tools: schemas.ListOf[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    metadata: Metadata | None = None
    max_agentic_loops: schemas.AgenticLoops = None
    show_calls: bool | None = Field(
        None, description="Whether the agent's own calls are `mcp_call` items; the server's `show_calls` by default."
    )
    # Repeated in the response, without further effect.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    # Refused, because the answer would be to another request.
    prompt: dict[str, Any] | None = Field(None, description="Not supported: there are no stored prompts.")
    generate: bool | None = Field(None, description="Only true: nothing is prepared in advance.")

    _clean = model_validator(mode="before")(schemas.clean_body)

    @property
    def messages(self) -> list[InputItem]:
        """The items, which count as messages for the server's limits; empty for text."""
        return [] if isinstance(self.input, str) else self.input

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation; None if there is none."""
        return self.conversation.id if isinstance(self.conversation, ConversationId) else self.conversation

    @property
    def is_stored(self) -> bool:
        """Whether the response and its session are kept."""
        return self.store is not False


class CountInputTokens(CreateResponse):
    """A request for a response, of which only the tokens are estimated."""

    model: str = Field("", description="The agent, which is the default.")
    input: str | schemas.ListOf[Item] = Field([], description="Text, or items; nothing by default.")

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        return {name: value for name, value in data.items() if value is not None} if isinstance(data, dict) else data


ENCRYPTED_REASONING = "reasoning.encrypted_content"


def check_supported(body: CreateResponse) -> None:
    """Check that a request has no field whose effect this server cannot provide; raise `ProblemError` if it has one."""
    if body.prompt is not None:
        raise ProblemError("invalid", "There are no stored prompts here; send instructions and input.", param="prompt")
    if body.generate is False:
        raise ProblemError("invalid", "generate: nothing is prepared in advance; leave it out.", param="generate")
    if body.previous_response_id is not None and body.conversation is not None:
        raise ProblemError(
            "invalid", "previous_response_id and conversation exclude each other; send one.", param="conversation"
        )
    if not body.is_stored:
        for name in ("background", "conversation"):
            if getattr(body, name):
                raise ProblemError(
                    "invalid", f"{name} keeps the response, and store is false; send one of them.", param=name
                )
    if any(tool.type == "function" and not tool.name for tool in body.tools or []):
        raise ProblemError("invalid", "A tool has no name.", param="tools")


def unsupported_tools_of(body: CreateResponse) -> list[str]:
    """Return the types of the tools that are neither functions of the caller nor the agent's own."""
    return [tool.type for tool in body.tools or [] if tool.type != "function" and not is_agent(tool, body.model)]


def is_agent(tool: FunctionTool, name: str) -> bool:
    """Whether a tool stands for the agent's own tools; clients declare the server of the items that they accept."""
    is_own = tool.type == "mcp" and tool.server_label == name
    return is_own and tool.server_url is None and tool.connector_id is None


def options_of(body: CreateResponse) -> dict[str, Any]:
    """Return the fields of `AgentContext` that a request sets; raise `ProblemError` if one is invalid."""
    answer_format = body.text.format if body.text else None
    kind, schema = (answer_format.type, answer_format.schema_) if answer_format else (None, None)
    options: dict[str, Any] = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "max_output_tokens": body.max_output_tokens,
        "reasoning_effort": body.reasoning.effort if body.reasoning else None,
        "response_schema": schemas.answer_schema(kind, schema, "text.format", "schema"),
        "client_tool_choice": _choice(body),
        "parallel_client_calls": body.parallel_tool_calls,
        "max_agentic_loops": body.max_agentic_loops,
    }
    return {name: value for name, value in options.items() if value is not None}


def client_tools_of(body: CreateResponse) -> list[dict[str, Any]]:
    """Return the caller's tools that the model may call, as OpenAI functions."""
    choice = body.tool_choice
    if choice == "none":
        return []
    allowed = None
    if isinstance(choice, NamedChoice) and choice.type == "allowed_tools":
        allowed = {tool.name for tool in choice.tools or []}
    functions = [tool for tool in body.tools or [] if tool.type == "function"]
    return [
        schemas.function_tool(tool.name or "", tool.description, tool.parameters)
        for tool in functions
        if allowed is None or tool.name in allowed
    ]


def _choice(body: CreateResponse) -> str | None:
    choice = body.tool_choice
    if not isinstance(choice, NamedChoice):
        return "any" if choice == "required" else None
    names = {tool.name for tool in body.tools or [] if tool.type == "function"}
    match choice.type:
        case "function":
            if choice.name not in names:
                raise _not_among(choice.name)
            return choice.name
        case "allowed_tools":
            for tool in choice.tools or []:
                if tool.type != "function" or tool.name not in names:
                    raise _not_among(tool.name)
            return "any" if choice.mode == "required" else None
        case _:
            raise ProblemError("invalid", f"tool_choice: type {choice.type!r} is not supported.", param="tool_choice")


def _not_among(name: str | None) -> ProblemError:
    return ProblemError("invalid", f"tool_choice names {name!r}, which is not among the tools.", param="tool_choice")
