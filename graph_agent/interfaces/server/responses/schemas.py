"""Validates request bodies of the Responses API, and converts their options and input items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolCall, ToolMessage
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from graph_agent.base._internal.text import text_of
from graph_agent.base.settings.config import ReasoningEffort
from graph_agent.interfaces.server.chat import content_blocks, function_tools, schemas
from graph_agent.interfaces.server.chat.schemas import check_arguments
from graph_agent.interfaces.server.problems import InvalidRequestError, ProblemError
from graph_agent.interfaces.server.responses.encrypted_content import blocks_of, compaction_note

MetadataText = Annotated[str, Field(max_length=512)]
Metadata = Annotated[dict[Annotated[str, Field(max_length=64)], MetadataText], Field(max_length=16)]
"""Up to 16 pairs of a name and a text, which the response repeats."""

ENCRYPTED_REASONING = "reasoning.encrypted_content"
"""Value of `include` for reasoning items with `encrypted_content`."""
_OUTPUT = ("reasoning", "function_call", "mcp_call", "mcp_approval_request", "mcp_list_tools")
"""Types of items of the assistant, except messages."""
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
"""Types of parts that contain text."""


class _Part(BaseModel):
    """An object in the body. Fields that are not declared are accepted and ignored."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


class InputPart(_Part):
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
    """Return an item with the type `message` if it has none."""
    return {**item, "type": "message"} if isinstance(item, dict) and item.get("type") is None else item


class InputItem(_Part):
    """An item of the input: a message, a call, its output, reasoning, an approval, or a reference to an output item."""

    type: str = Field("message", description="`message` if absent.")
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | schemas.ListOf[InputPart] | None = None
    call_id: schemas.CallId | None = None
    name: str | None = None
    arguments: str | None = Field(None, description="A JSON object as text.")
    output: str | schemas.ListOf[InputPart] | None = None
    error: str | dict[str, Any] | None = None
    summary: schemas.ListOf[InputPart] | None = None
    encrypted_content: str | None = None
    approval_request_id: str | None = None
    approve: bool | None = None
    reason: str | None = None


Item = Annotated[InputItem, BeforeValidator(_with_type)]


class FunctionTool(_Part):
    """A tool of the caller; or, with the type `mcp`, the agent itself, which stands for its own tools."""

    type: str
    server_label: str | None = Field(None, description="Of type `mcp`: the agent's name.")
    server_url: str | None = Field(None, description="Not supported: the server connects to no address of a request.")
    connector_id: str | None = Field(None, description="Not supported.")
    name: str | None = Field(None, pattern=schemas.FUNCTION_NAME)
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


class TextFormat(_Part):
    """Text, any JSON object, or JSON with a schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class Text(_Part):
    """Options of the answer's text."""

    format: TextFormat | None = None


class Reasoning(_Part):
    """Options of the model's reasoning."""

    effort: ReasoningEffort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = Field(
        None, description="The older name of `summary`."
    )


class ResponseStreamOptions(_Part):
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
        """The items of the input, which the server's limits count as messages; empty for text."""
        return self.input if isinstance(self.input, list) else []

    @property
    def tools(self) -> None:
        """None, because the request has no tools."""


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
    stream_options: ResponseStreamOptions | None = None
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
        """The items of the input, which the server's limits count as messages; empty for text."""
        return [] if isinstance(self.input, str) else self.input

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation or session; None if the request names none."""
        return self.conversation.id if isinstance(self.conversation, ConversationId) else self.conversation

    @property
    def is_stored(self) -> bool:
        """Whether the response and its session are stored."""
        return self.store is not False


class CountInputTokens(CreateResponse):
    """A request for a response, of which only the tokens are estimated."""

    model: str = Field("", description="The agent, which is the default.")
    input: str | schemas.ListOf[Item] = Field([], description="Text, or items; nothing by default.")

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        """Return the body without fields that are null, so that they get their defaults."""
        return {name: value for name, value in data.items() if value is not None} if isinstance(data, dict) else data


def check_supported(body: CreateResponse) -> None:
    """Raise `InvalidRequestError` if a request names a stored prompt, forbids to generate, or has a function without a
    name.

    Also if it names both a previous response and a conversation, or is not stored and names a conversation or the
    background.
    """
    if body.prompt is not None:
        raise InvalidRequestError("There are no stored prompts here; send instructions and input.", "prompt")
    if body.generate is False:
        raise InvalidRequestError("generate: nothing is prepared in advance; leave it out.", "generate")
    # They may name two different histories.
    if body.previous_response_id is not None and body.conversation is not None:
        raise InvalidRequestError("previous_response_id and conversation exclude each other; send one.", "conversation")
    if not body.is_stored:
        for name in ("background", "conversation"):
            if getattr(body, name):
                raise InvalidRequestError(f"{name} keeps the response, and store is false; send one of them.", name)
    if any(tool.type == "function" and not tool.name for tool in body.tools or []):
        raise InvalidRequestError("A tool has no name.", "tools")


def is_agent(tool: FunctionTool, name: str) -> bool:
    """Return whether a tool stands for the agent's own tools: an `mcp` server with the agent's `name` as its label."""
    is_own = tool.type == "mcp" and tool.server_label == name
    return is_own and tool.server_url is None and tool.connector_id is None


def options_of(body: CreateResponse) -> dict[str, Any]:
    """Return the fields of the run's context that a request sets: sampling, limits, reasoning effort, the answer's
    schema, and which functions must be called. Those that it leaves out are absent.

    Raises `InvalidRequestError` if the schema or the tool choice is invalid.
    """
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
    """Return the caller's functions that the model may call, in OpenAI's format; empty for the `tool_choice` `none`.

    Raises `InvalidRequestError` if `tool_choice` allows a tool that is not among the request's tools.
    """
    choice = body.tool_choice
    if choice == "none":
        return []
    allowed = _allowed(choice, body) if isinstance(choice, NamedChoice) and choice.type == "allowed_tools" else None
    functions = [tool for tool in body.tools or [] if tool.type == "function"]
    return [
        function_tools.function_tool(tool.name or "", tool.description, tool.parameters)
        for tool in functions
        if allowed is None or tool.name in allowed
    ]


def _allowed(choice: NamedChoice, body: CreateResponse) -> set[str]:
    """Return the names of the functions that a choice allows.

    Raises `InvalidRequestError` if one is not among the request's tools.
    """
    offered = ((tool.type, tool.name) for tool in body.tools or [])
    return function_tools.allowed_functions(((tool.type, tool.name) for tool in choice.tools or []), offered)


def _choice(body: CreateResponse) -> str | None:
    """Return the name of the caller's function that the model must call, `any` if it must call one, or None if it may
    choose. Allowed tools in the mode `required` count as `any`.

    Raises `InvalidRequestError` for an unknown function or an unsupported choice.
    """
    choice = body.tool_choice
    if not isinstance(choice, NamedChoice):
        return "any" if choice == "required" else None
    # Only functions of the caller can be required; the agent chooses among its own tools.
    names = {tool.name for tool in body.tools or [] if tool.type == "function"}
    match choice.type:
        case "function":
            if choice.name not in names:
                raise function_tools.not_among(choice.name)
            return choice.name
        case "allowed_tools":
            _allowed(choice, body)
            return "any" if choice.mode == "required" else None
        case _:
            raise InvalidRequestError(f"tool_choice: type {choice.type!r} is not supported.", "tool_choice")


@dataclass(slots=True)
class Conversation:
    """The content of a request's items, as LangChain messages."""

    messages: list[AnyMessage] = field(default_factory=list)
    """Messages of users, assistants and tools, in order."""
    instructions: list[str] = field(default_factory=list)
    """Texts of system and developer messages."""
    decisions: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Id of an approval request → decision.

    Decisions before an item of the assistant are left out, because they were received with an earlier request.
    """

    def decide(self, id_: str, decision: dict[str, Any]) -> None:
        """Add the decision on an approval request. Raises `InvalidRequestError` if it differs from an earlier one."""
        if self.decisions.setdefault(id_, decision) != decision:
            message = f"The approval request {id_!r} has two different responses; send one."
            raise InvalidRequestError(message, "input")


def read_items(items: Sequence[InputItem]) -> Conversation:
    """Convert items to messages. Consecutive items of the assistant become one message. Decisions before an item of the
    assistant are dropped; approval requests and lists of tools are ignored.

    References must be replaced before. Raises `InvalidRequestError` for an invalid or unsupported item, and
    `ProblemError` (`too_large`) if the arguments of all calls together have too many values.
    """
    # Before any is parsed: one text may hold millions of values.
    check_arguments(((item.call_id, item.arguments) for item in items if item.arguments), "input")
    found = Conversation()
    assistant = _Assistant()
    for item in items:
        if item.role == "assistant" if item.type == "message" else item.type in _OUTPUT:
            # The assistant has answered them: a client that sends its history repeats old decisions.
            found.decisions.clear()
        match item.type:
            case "message" if item.role == "assistant":
                assistant.add_text(_text(item.content))
            case "reasoning":
                assistant.add_reasoning(blocks_of(item.encrypted_content))
            case "function_call":
                assistant.calls.append(_call(item, item.call_id))
            case "mcp_call":
                assistant.calls.append(_call(item, item.id))
                # A result must follow the message with its call.
                assistant.move_to(found.messages)
                found.messages.append(_result(item, item.id, error=item.error))
            case "compaction":
                assistant.move_to(found.messages)
                found.messages.append(compaction_note(item.encrypted_content))
            case "mcp_approval_request" | "mcp_list_tools":
                pass
            case "mcp_approval_response":
                found.decide(*_decision(item))
            case "function_call_output":
                assistant.move_to(found.messages)
                found.messages.append(_result(item, item.call_id))
            case "message":
                assistant.move_to(found.messages)
                _add_message(item, found)
            case _:
                raise InvalidRequestError(f"Items of type {item.type!r} are not supported.", "input")
    assistant.move_to(found.messages)
    return found


class _Assistant:
    """Collects consecutive items of the assistant, which become one message."""

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []
        self._reasoning: list[dict[str, Any]] = []
        self._texts: list[str] = []

    def add_text(self, text: str) -> None:
        """Add a text, without line feeds at its ends, unless it is blank."""
        if text.strip():
            self._texts.append(text.strip("\n"))

    def add_reasoning(self, blocks: Sequence[dict[str, Any]]) -> None:
        """Add content blocks with reasoning."""
        self._reasoning += blocks

    def move_to(self, messages: list[AnyMessage]) -> None:
        """Append the message of the collected items, and begin a new collection. Without text and calls, nothing is
        appended, and collected reasoning is dropped.
        """
        text = "\n\n".join(self._texts)
        if self.calls or text:
            texts = [{"type": "text", "text": text}] if text else []
            # Reasoning first, as providers require it.
            content: Any = [*self._reasoning, *texts] if self._reasoning else text
            messages.append(AIMessage(content, tool_calls=self.calls))
        self.calls, self._reasoning, self._texts = [], [], []


def _add_message(item: InputItem, found: Conversation) -> None:
    """Add a message item of a user, or the text of a system message unless it is empty, to a conversation.

    Raises `InvalidRequestError` if the item has no role, is of a user and has no content, or has an unsupported part.
    """
    match item.role:
        case "system" | "developer":
            if text := _text(item.content):
                found.instructions.append(text)
        case "user":
            content = _content(item.content)
            if not content:
                raise InvalidRequestError("A message of the user's has no content.", "input")
            found.messages.append(HumanMessage(content))
        case _:
            raise InvalidRequestError("An item of type message has no role.", "input")


def _call(item: InputItem, id_: str | None) -> ToolCall:
    """Return the tool call of an item, with the id `id_`; missing arguments are an empty object.

    Raises `InvalidRequestError` without an id or a name, or if the arguments are no JSON object.
    """
    if not id_ or not item.name:
        raise InvalidRequestError(f"An item of type {item.type} has no id or no name.", "input")
    arguments = function_tools.parse_arguments(id_, item.arguments, "input")
    return ToolCall(id=id_, name=item.name, args=arguments, type="tool_call")


def _result(item: InputItem, id_: str | None, *, error: str | dict[str, Any] | None = None) -> ToolMessage:
    """Return the result of the call `id_`: the output of an item or, if it is not None, the error, with the status
    `error`.

    Raises `InvalidRequestError` without an id, and for an unsupported part of the output.
    """
    if not id_:
        raise InvalidRequestError(f"An item of type {item.type} has no call_id.", "input")
    if error is not None:
        # Earlier versions of the API have the text alone.
        text = error if isinstance(error, str) else text_of(error.get("content") or error.get("message", ""))
        return ToolMessage(text, tool_call_id=id_, status="error")
    return ToolMessage(_content(item.output), tool_call_id=id_)


def _decision(item: InputItem) -> tuple[str, dict[str, Any]]:
    """Return the id of an approval request and the decision on it: approve, or reject with the reason if there is one.

    Raises `InvalidRequestError` if the id or the answer is missing.
    """
    if not item.approval_request_id or item.approve is None:
        raise InvalidRequestError(
            "An item of type mcp_approval_response needs approval_request_id and approve.", "input"
        )
    if item.approve:
        return item.approval_request_id, {"type": "approve"}
    reason = {"message": item.reason} if item.reason else {}
    return item.approval_request_id, {"type": "reject", **reason}


def _content(content: str | list[InputPart] | None) -> str | list[Any]:
    """Return the content of a message or an output: a text, or LangChain content blocks if it has several parts, or one
    that is no text.

    None is an empty text. Raises `InvalidRequestError` for an invalid or unsupported part.
    """
    if content is None or isinstance(content, str):
        return content or ""
    return content_blocks.simplify_blocks([_block(part) for part in content])


def _block(part: InputPart) -> dict[str, Any]:
    """Convert a part to a LangChain content block: an image, a file, or else text.

    Raises `InvalidRequestError` for an image or a file without usable data, and a part of an unknown type.
    """
    match part.type:
        case "input_image":
            if part.image_url is None:
                raise InvalidRequestError(
                    "An image is given by image_url; files are not stored, so there is no file_id.", "input"
                )
            return content_blocks.image_at(part.image_url)
        case "input_file":
            return _file(part)
        case _:
            return {"type": "text", "text": _text([part])}


def _file(part: InputPart) -> dict[str, Any]:
    """Convert a file to a LangChain content block. Plain base64, without a `data:` URL, has the type that the file's
    name shows.

    Raises `InvalidRequestError` if it has no data, invalid base64, or an unknown type.
    """
    if part.file_data is None:
        raise InvalidRequestError(
            "A file is given by file_data: a data: URL with base64. No address is fetched, and no file is stored.",
            "input",
        )
    found = content_blocks.DATA_URL.fullmatch(part.file_data)
    # Some clients send plain base64 with a file name.
    mime_type = found[1] if found else content_blocks.media_type_of(part.filename)
    if mime_type is None:
        raise InvalidRequestError(
            "file_data is no data: URL with base64, and filename does not show its type.", "input"
        )
    return content_blocks.document_block(
        mime_type=mime_type, base64=found[2] if found else part.file_data, name=part.filename
    )


def _text(content: str | list[InputPart] | None) -> str:
    """Return the texts and refusals of a content, joined without a separator. None is an empty text.

    Raises `InvalidRequestError` for a part that is not text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for part in content:
        if part.type == "refusal":
            texts.append(part.refusal or "")
        elif part.type in _TEXTS:
            texts.append(part.text or "")
        else:
            raise InvalidRequestError(f"A part of type {part.type!r} is not supported here.", "input")
    return "".join(texts)


def as_items(value: str | Sequence[InputItem]) -> list[InputItem]:
    """Return a request's input as items. A text becomes one user message."""
    return [InputItem.model_validate({"role": "user", "content": value})] if isinstance(value, str) else list(value)


def replace_references(items: Sequence[InputItem], known: Mapping[str, dict[str, Any]]) -> list[InputItem]:
    """Return items in which each reference is replaced by the stored item that it names.

    Args:
        items: Items of a request.
        known: Id → stored item.

    Raises:
        ProblemError: A reference names an unknown item (`not_found`).
    """
    found: list[InputItem] = []
    for item in items:
        if item.type != "item_reference":
            found.append(item)
        elif (named := known.get(item.id or "")) is not None:
            found.append(InputItem.model_validate(named))
        else:
            raise ProblemError(
                "not_found", f"There is no item {item.id!r}: its response is not kept, or was deleted.", param="input"
            )
    return found
