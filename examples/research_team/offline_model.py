"""Rule-based substitutes for language models, so that the team works without a key and without a network.

Each covers its agent's subject and nothing else. They work as models do: given the messages and the tools, they
reply with calls until they need no more, and then with text.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput, ModelProfile
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable

_NAMES = "mercury|venus|earth|mars|jupiter|saturn|uranus|neptune"
_PLANET = re.compile(rf"\b({_NAMES})\b", re.IGNORECASE)
_WORDS = {
    "mass": r"\b(mass|heav\w+|weigh\w*|light\w*)\b",
    "diameter": r"\b(diameter|big\w*|wide\w*|large\w*|size)\b",
    "day": r"\b(day|rotat\w+)\b",
    "moons": r"\bmoons?\b",
}
_NUMBER = r"(-?\d+(?:\.\d+)?)"
_CALCULATION = re.compile(rf"{_NUMBER}\s*([-+*/])\s*{_NUMBER}")
_FOUND = re.compile(rf"\b({_NAMES}): (\w+) {_NUMBER}", re.IGNORECASE)

Wanted = tuple[str, dict[str, Any]]
"""A tool's name, and its arguments."""
Rules = Callable[[str, list[str]], "list[Wanted] | str"]
"""Return the next calls or the answer for a question and the results so far."""


class RuleModel(BaseChatModel):
    """A chat model that follows a few rules."""

    rules: Rules

    @property
    def _llm_type(self) -> str:
        return "offline-rules-of-the-research-team"

    def _resolve_model_profile(self) -> ModelProfile:
        return ModelProfile(tool_calling=True, structured_output=False)

    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: str | None = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Return the model itself: its rules know the tools by name."""
        return self.bind(**kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._reply(messages))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        reply = self._reply(messages)
        for word in re.findall(r"\s*\S+", reply.text):
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))
        calls = [
            tool_call_chunk(name=call["name"], args=_json(call["args"]), id=call["id"], index=at)
            for at, call in enumerate(reply.tool_calls)
        ]
        yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=calls, chunk_position="last"))

    def _reply(self, messages: list[BaseMessage]) -> AIMessage:
        closing = _contains(messages[-1:], "provide your final response")
        asked = [at for at, each in enumerate(messages) if isinstance(each, HumanMessage) and not _results(each)]
        question = asked[-2] if closing and len(asked) > 1 else asked[-1]
        found = [result for each in messages[question:] for result in _results(each)]
        wanted = self.rules(messages[question].text, found)
        if isinstance(wanted, list) and not closing:
            return AIMessage("", tool_calls=[_call(name, arguments) for name, arguments in wanted])
        if isinstance(wanted, list):
            # A limit came before the last of the calls.
            wanted = " ".join(_sentences(found)) or "Nobody could tell."
        planning = not closing and not _contains(messages, "when you need no further tools, answer the user")
        return AIMessage("No more actions." if planning else wanted)


def make_coordinator() -> RuleModel:
    """The coordinator's model, which only delegates."""
    return RuleModel(rules=_coordinate)


def make_librarian() -> RuleModel:
    """The model of the agent that looks facts up."""
    return RuleModel(rules=_look_up)


def make_analyst() -> RuleModel:
    """The model of the agent that calculates."""
    return RuleModel(rules=_calculate)


def _coordinate(question: str, found: list[str]) -> list[Wanted] | str:
    planets, facts = _planets(question), _facts(question)
    sums = [_written(match) for match in _CALCULATION.finditer(question)]
    if not found:
        asking = [f"The {fact} of {planet}" for fact in facts for planet in planets]
        calls = [("delegate_to_librarian", {"task": f"{'; '.join(asking)}."})] if asking else []
        calls += [("delegate_to_analyst", {"task": f"Calculate {each}."}) for each in sums]
        return calls or "I only know about planets: ask for the mass, the diameter, the day or the moons of one."
    numbers = [match[3] for match in _FOUND.finditer("\n".join(found))]
    compares = len(planets) == 2 and len(facts) == 1 and re.search(r"\bthan\b|\btimes\b|\bcompare", question)
    if compares and len(numbers) == 2 and not _CALCULATION.search("\n".join(found)):
        return [("delegate_to_analyst", {"task": f"Calculate {numbers[0]} / {numbers[1]}."})]
    return " ".join(_sentences(found)) or "Nobody could tell."


def _look_up(task: str, found: list[str]) -> list[Wanted] | str:
    if found:
        return "\n".join(found)
    # Only the last line is the task; what stands above it is the conversation so far.
    wanted = [
        (planet, fact)
        for part in task.splitlines()[-1].split(";")
        for fact in _facts(part)
        for planet in _planets(part)
    ]
    return [("look_up", {"planet": planet, "fact": fact}) for planet, fact in wanted] or "No planet was named."


def _calculate(task: str, found: list[str]) -> list[Wanted] | str:
    if found:
        return "\n".join(found)
    sums = _CALCULATION.findall(task.splitlines()[-1])
    return [
        ("calculate", {"left": float(left), "operation": operation, "right": float(right)})
        for left, operation, right in sums
    ] or "There is nothing to calculate."


def _planets(text: str) -> list[str]:
    return list(dict.fromkeys(name.title() for name in _PLANET.findall(text)))


def _facts(text: str) -> list[str]:
    return [fact for fact, words in _WORDS.items() if re.search(words, text, re.IGNORECASE)]


def _results(message: BaseMessage) -> list[str]:
    """The results that a message holds: natively, written out as text, or by call id as JSON; none in any other."""
    if isinstance(message, ToolMessage):
        return [message.text]
    if not isinstance(message, HumanMessage) or not message.text.startswith(("<tool_result ", '{"results": ')):
        return []
    if message.text.startswith("<"):
        return re.findall(r"<tool_result [^\n]*>\n(.*?)\n</tool_result>", message.text, re.DOTALL)
    return [value if isinstance(value, str) else _json(value) for value in json.loads(message.text)["results"].values()]


def _sentences(found: list[str]) -> list[str]:
    """The specialists' answers, without the fences around them."""
    lines = [line for text in found for line in text.splitlines()]
    return [f"{line}." for line in lines if _FOUND.search(line) or re.search(rf"= {_NUMBER}", line)]


def _written(found: re.Match[str]) -> str:
    return f"{found[1]} {found[2]} {found[3]}"


def _contains(messages: Sequence[BaseMessage], words: str) -> bool:
    return any(isinstance(each, HumanMessage | SystemMessage) and words in each.text.lower() for each in messages)


def _call(name: str, arguments: dict[str, Any]) -> ToolCall:
    return ToolCall(name=name, args=arguments, id=f"call_{uuid.uuid4().hex[:12]}", type="tool_call")


def _json(value: Any) -> str:
    return json.dumps(value)
