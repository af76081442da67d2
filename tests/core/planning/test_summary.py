"""Summaries of conversations that outgrow the model's window."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel, ModelProfile
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import PrivateAttr

from graph_agent import (
    GraphDelegate,
    LoopConfig,
    LoopHook,
    LoopPlan,
    RequestPatch,
    ScriptedChatModel,
    Session,
    create_graph_agent,
)
from graph_agent.hooks import HookRequest, HookResponse
from tests.support.agents import asks, without_examples

REQUEST_START = "Summarize the conversation below"
UNSUMMARIZED = "The older part of the conversation could not be summarized: "
CONFIG: Any = {"configurable": {"thread_id": "s1"}}


class WindowModel(BaseChatModel):
    """A model with a window: it refuses longer requests, counts tokens, and summarizes by copying marked facts.

    Args:
        reply: Returns the reply to a request that is not one for a summary.
        window: Tokens that it can read.
        reports: Whether its replies report their usage; a number for the input tokens that they report.
    """

    reply: Callable[[Sequence[BaseMessage]], AIMessage]
    window: int
    reports: bool | int = True
    summarizes: Callable[[str], str] = lambda text: " ".join(dict.fromkeys(re.findall(r"FACT-\w+", text)))
    _requests: list[list[BaseMessage]] = PrivateAttr(default_factory=list)

    @property
    def requests(self) -> list[list[BaseMessage]]:
        """The requests for plans and answers."""
        return [request for request in self._requests if not _asks_for_summary(request)]

    @property
    def summary_requests(self) -> list[str]:
        """The texts of the requests for summaries."""
        return [request[-1].text for request in self._requests if _asks_for_summary(request)]

    @property
    def _llm_type(self) -> str:
        return "window"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Runnable[Any, AIMessage]:
        return self.bind(tools=tools, **kwargs)

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self._requests.append(messages)
        size = count_tokens_approximately(messages)
        if size > self.window:
            raise ValueError(f"This model's maximum context length is {self.window} tokens; the request has {size}.")
        summary = _asks_for_summary(messages)
        message = AIMessage(self.summarizes(messages[-1].text)) if summary else self.reply(messages)
        if self.reports:
            if not isinstance(self.reports, bool):
                size = self.reports
            output = count_tokens_approximately([message])
            message.usage_metadata = {"input_tokens": size, "output_tokens": output, "total_tokens": size + output}
        return ChatResult(generations=[ChatGeneration(message=message)])


def _asks_for_summary(request: Sequence[BaseMessage]) -> bool:
    return request[-1].text.startswith(REQUEST_START)


@tool
def look(page: int) -> str:
    """Read a page."""
    return f"Page {page}. " + "Words without weight. " * 40


def looking(pages: int) -> Callable[[Sequence[BaseMessage]], AIMessage]:
    """A model that reads so many pages per input, one per turn, then answers."""
    turns = {"page": 0}

    def reply(messages: Sequence[BaseMessage]) -> AIMessage:
        turns["page"] += 1
        page = turns["page"]
        if page % (pages + 1) == 0:
            return AIMessage(f"Answer {page // (pages + 1)}.")
        return AIMessage("", tool_calls=[{"name": "look", "args": {"page": page}, "id": f"call_{page}"}])

    return reply


def agent(model: BaseChatModel, *, saver: InMemorySaver | None = None, **config: Any) -> Any:
    settings = {"max_steps": 10_000, "tool_calling": "native", **config}
    return create_graph_agent(
        model,
        tools=[look],
        system_prompt="Be brief.",
        config=LoopConfig(**settings),
        checkpointer=saver or InMemorySaver(),
    )


def session(model: BaseChatModel, **options: Any) -> Session:
    return Session(agent(model, **options), "s1")


def profile(window: int) -> ModelProfile:
    return {"max_input_tokens": window, "tool_calling": True}


async def test_the_older_part_of_a_long_conversation_is_summarized_and_stays_in_the_history() -> None:
    model = WindowModel(reply=looking(12), window=3_000, profile=profile(3_000))
    talk = session(model)

    result = await talk.run("Remember FACT-ONE and read the pages.")

    events = await talk.events()
    summaries = [event for event in events if event["type"] == "summary"]
    last = model.requests[-1]
    assert {
        "answer": result.answer,
        "summaries": [event["content"] for event in summaries],
        "requests for summaries": len(model.summary_requests),
        "model calls": result.usage["model_calls"],
        "roles of the last request": [message.type for message in last[:4]],
        "note": "FACT-ONE" in last[1].text,
        "input": last[2].text,
        "results in the history": sum(event["type"] == "tool_result" for event in events),
        "warnings": [event for event in events if event["type"] in ("warning", "error")],
    } == {
        "answer": "Answer 1.",
        "summaries": ["FACT-ONE"] * len(summaries),
        "requests for summaries": len(summaries),
        "model calls": 13 + len(summaries),
        "roles of the last request": ["system", "human", "human", "ai"],
        "note": True,
        "input": "Remember FACT-ONE and read the pages.",
        "results in the history": 12,
        "warnings": [],
    }
    assert len(summaries) >= 1


@pytest.mark.parametrize(("reports", "inputs"), [(True, 6), (False, 6), (10, 3)])
async def test_a_session_goes_on_beyond_the_window(reports: bool | int, inputs: int) -> None:
    window, turns = 8_000, 50
    model = WindowModel(reply=looking(turns - 1), window=window, profile=profile(window), reports=reports)
    talk = session(model)

    answers = [(await talk.run(f"Go. FACT-{n}" if n < 3 else "Next.")).answer for n in range(1, inputs + 1)]

    events = await talk.events()
    assert {
        "answers": answers,
        "turns": len(model.requests),
        "summaries": len(model.summary_requests) > inputs,
        "longest request": max(map(count_tokens_approximately, model.requests)) <= window,
        "facts": "FACT-1 FACT-2" in model.requests[-1][1].text,
        "failures": [event for event in events if event["type"] in ("warning", "error")],
        "user messages": sum(event["type"] == "user_message" for event in events),
        "results": sum(event["type"] == "tool_result" for event in events),
    } == {
        "answers": [f"Answer {n}." for n in range(1, inputs + 1)],
        "turns": inputs * turns,
        "summaries": True,
        "longest request": True,
        "facts": True,
        "failures": [],
        "user messages": inputs,
        "results": inputs * (turns - 1),
    }


async def test_another_process_continues_with_the_summary() -> None:
    saver = InMemorySaver()
    before = WindowModel(reply=looking(12), window=3_000, profile=profile(3_000))
    await session(before, saver=saver).run("Remember FACT-ONE and read the pages.")
    after = WindowModel(reply=lambda _: AIMessage("Yes."), window=3_000, profile=profile(3_000))

    await session(after, saver=saver).run("And now?")

    (request,) = after.requests
    assert ("FACT-ONE" in request[1].text, request[-1].text, after.summary_requests) == (True, "And now?", [])


async def test_a_later_summary_contains_the_earlier_one() -> None:
    model = WindowModel(reply=looking(30), window=3_000, profile=profile(3_000))

    await session(model).run("Remember FACT-ONE and read the pages.")

    first, second = model.summary_requests[:2]
    assert ("Earlier summary" in first, "Earlier summary" in second, "FACT-ONE" in second) == (False, True, True)


@pytest.mark.parametrize(
    ("summarizes", "reason"),
    [(lambda _: " ", "The reply was empty."), (None, "The model call failed; see the provider's documentation")],
)
async def test_a_failed_summary_is_replaced_by_a_note(summarizes: Any, reason: str) -> None:
    """A failure deletes nothing and its text is no summary.

    See https://github.com/langchain-ai/langchain/issues/38867 and https://github.com/langchain-ai/langchain/issues/39261.
    """

    def fail(_: str) -> str:
        raise RuntimeError("no time")

    model = WindowModel(reply=looking(12), window=3_000, profile=profile(3_000), summarizes=summarizes or fail)
    talk = session(model, model_retries=0)

    result = await talk.run("Read the pages.")

    warnings = [event["message"] for event in await talk.events() if event["type"] == "warning"]
    stored = (await talk.graph.aget_state(CONFIG)).values["messages"]
    sent = model.requests[-1]
    assert (
        [message.type for message in stored],
        (sent[0].text[:9], sent[2].text, any("no time" in message.text for message in sent)),
        result.answer,
        len(model.summary_requests),
        warnings[0].startswith(UNSUMMARIZED + reason),
        warnings[1:],
    ) == (
        ["human", *["ai", "tool"] * 12, "ai"],
        ("Be brief.", "Read the pages.", False),
        "Answer 1.",
        1,
        True,
        [
            "The conversation is longer than WindowModel can read; requests hold a note in place of its older part. "
            "The history keeps everything."
        ],
    )


async def test_summaries_can_be_switched_off() -> None:
    model = WindowModel(reply=looking(12), window=3_000, profile=profile(3_000))

    result = await session(model).run("Read the pages.", context={"summarize_at": None})
    off = WindowModel(reply=looking(12), window=3_000, profile=profile(3_000))
    without = await session(off, summarize_at=None).run("Read the pages.")

    assert (result.answer, without.answer, bool(model.summary_requests), off.summary_requests) == (
        "Answer 1.",
        "Answer 1.",
        True,
        [],
    )


async def test_the_window_of_a_model_without_a_profile_is_configured() -> None:
    model = WindowModel(reply=looking(12), window=3_000)
    talk = session(model, context_window=3_000)

    result = await talk.run("Read the pages. FACT-ONE")

    kinds = {event["type"] for event in await talk.events()}
    assert (result.answer, "summary" in kinds, "warning" in kinds) == ("Answer 1.", True, False)


@pytest.mark.parametrize("mode", ["text", "wave"])
async def test_every_mode_summarizes(mode: Any) -> None:
    turns = {"page": 0}

    def reply(messages: Sequence[BaseMessage]) -> AIMessage:
        turns["page"] += 1
        page = turns["page"]
        if mode == "wave":
            step = {"id": f"t{page}", "tool": "look", "args": {"page": page}}
            plan = {"status": "continue", "tools": [step]} if page < 12 else {"status": "done", "tools": []}
            return AIMessage(json.dumps(plan) if page < 13 else "Answer.")
        call = {"name": "look", "arguments": {"page": page}}
        return AIMessage(json.dumps({"tool_calls": [call]}) if page < 12 else "Answer.")

    model = WindowModel(reply=reply, window=4_000, profile=profile(4_000))
    talk = session(model, tool_calling=mode)

    result = await talk.run("Remember FACT-ONE and read the pages.")

    events = await talk.events()
    assert {
        "answer": result.answer,
        "summaries": {event["content"] for event in events if event["type"] == "summary"},
        "in the last request": any("FACT-ONE" in message.text for message in without_examples(model.requests[-1])[:3]),
        "warnings": [event for event in events if event["type"] == "warning"],
    } == {"answer": "Answer.", "summaries": {"FACT-ONE"}, "in the last request": True, "warnings": []}


async def test_an_agent_without_tools_summarizes_before_it_answers() -> None:
    model = WindowModel(reply=lambda _: AIMessage("Well. " * 100), window=2_000, profile=profile(2_000))
    graph = create_graph_agent(model, checkpointer=InMemorySaver())
    talk = Session(graph, "s1")

    statuses = [(await talk.run(f"FACT-{n} " + "Tell me more. " * 20)).status for n in range(20)]

    kinds = [event["type"] for event in await talk.events()]
    assert (set(statuses), "summary" in kinds, "warning" in kinds, "FACT-0" in model.requests[-1][1].text) == (
        {"COMPLETED"},
        True,
        False,
        True,
    )


async def test_steering_and_a_long_input_stay_in_requests() -> None:
    model = WindowModel(reply=looking(40), window=3_000, profile=profile(3_000))

    await session(model).run("Read the pages.")

    assert {[message.text for message in request if message.type == "human"][-1] for request in model.requests} == {
        "Read the pages."
    }


async def test_a_history_without_the_first_kept_message_is_sent_whole() -> None:
    model = WindowModel(reply=looking(12), window=3_000, profile=profile(3_000))
    graph = agent(model)
    talk = Session(graph, "s1")
    await talk.run("Remember FACT-ONE and read the pages.")
    state = await graph.aget_state(CONFIG)
    removed = [RemoveMessage(str(message.id)) for message in state.values["messages"][1:]]

    await graph.aupdate_state(CONFIG, {"messages": removed}, as_node="finalize")
    await talk.run("And now?")

    first = next(request for request in model.requests if request[-1].text == "And now?")
    assert [message.text for message in first[1:]] == ["Remember FACT-ONE and read the pages.", "And now?"]


async def test_an_input_that_fills_the_share_is_not_summarized_anew_at_each_step() -> None:
    model = WindowModel(reply=looking(6), window=3_000, profile=profile(3_000))

    result = await session(model).run("Remember FACT-ONE and read the pages. " + "word " * 1_700)

    # A summary replaces at least two pages.
    assert (result.status, len(model.requests), len(model.summary_requests)) == ("COMPLETED", 7, 2)


class Advisor(LoopHook):
    """Adds a note of its own to the request of every second plan, which the rest of the input carries."""

    sees_answers = False

    def __init__(self) -> None:
        self.seen = 0

    def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
        self.seen += 1
        return self.seen % 2 == 1, None

    def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
        note = HumanMessage(f"Advice {self.seen}. " + "Words without weight. " * 30)
        return LoopPlan(run_agentic_loop=True, request_patch=RequestPatch(messages=[*request.messages, note]))


async def test_a_summary_before_a_message_of_a_hook_holds_for_the_next_input() -> None:
    model = WindowModel(reply=looking(24), window=4_000, profile=profile(4_000))
    graph = create_graph_agent(
        model,
        tools=[look],
        hooks=[Advisor()],
        config=LoopConfig(max_steps=10_000, tool_calling="native", max_agentic_loops=100),
        checkpointer=InMemorySaver(),
    )
    talk = Session(graph, "s1")

    statuses = [(await talk.run(text)).status for text in ("Remember FACT-ONE and read.", "Go on.", "And again.")]

    notes = [request[1].text for request in model.requests[-3:]]
    sizes = [count_tokens_approximately(request) for request in model.requests]
    warnings = [event for event in await talk.events() if event["type"] in ("warning", "error")]
    assert (statuses, ["FACT-ONE" in note for note in notes], max(sizes) <= 4_000, warnings) == (
        ["COMPLETED"] * 3,
        [True] * 3,
        True,
        [],
    )


class Redactor(LoopHook):
    """Hides the pages from the model."""

    def rewrite_results(self, results: list[ToolMessage]) -> dict[str, str]:
        return {str(result.id): "Hidden. " + "Words without weight. " * 40 for result in results}


async def test_a_request_for_a_summary_holds_results_as_hooks_rewrite_them() -> None:
    model = WindowModel(reply=looking(14), window=3_000, profile=profile(3_000))
    graph = create_graph_agent(
        model,
        tools=[look],
        hooks=[Redactor()],
        config=LoopConfig(max_steps=10_000, tool_calling="native"),
        checkpointer=InMemorySaver(),
    )

    await Session(graph, "s1").run("Remember FACT-ONE and read the pages.")

    sent = model.summary_requests
    assert (sent != [], ["Hidden." in text for text in sent], ["Page " in text for text in sent]) == (
        True,
        [True] * len(sent),
        [False] * len(sent),
    )


async def test_a_summary_counts_as_a_turn() -> None:
    model = WindowModel(reply=looking(30), window=3_000, profile=profile(3_000))
    talk = session(model)

    result = await talk.run("Read the pages. FACT-ONE", context={"max_turns": 20})

    kinds = [event["type"] for event in await talk.events()]
    assert (result.status, kinds.count("plan") + kinds.count("summary"), "summary" in kinds) == ("TURN_LIMIT", 20, True)


async def test_a_delegate_keeps_its_task_and_its_system_prompt_beyond_the_window() -> None:
    """See https://github.com/langchain-ai/deepagentsjs/issues/748 and https://github.com/bytedance/deer-flow/pull/5454."""
    model = WindowModel(reply=looking(30), window=3_000, profile=profile(3_000))
    caller = ScriptedChatModel([asks(("d", "delegate_to_reader", {"task": "TASK: read all pages."})), "Done."])
    reader = GraphDelegate("reader", "Reads.", agent(model))
    talk = Session(create_graph_agent(caller, delegates=[reader], checkpointer=InMemorySaver()), "s1")

    result = await talk.run("Have it read.", context={"max_steps": 100})

    kept = {(request[0].text[:9], sum("TASK: read" in each.text for each in request) > 0) for request in model.requests}
    assert (result.results, len(model.requests), bool(model.summary_requests), kept) == (
        {"d": "Answer 1."},
        31,
        True,
        {("Be brief.", True)},
    )
