"""An agent in a Gradio chat: it streams its answers, shows its calls, and asks for approvals."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import gradio as gr
import uvicorn
from fastapi import FastAPI

from graph_agent import LoopConfig, Session, create_graph_agent
from graph_agent.approvals import approve, reject
from graph_agent.compiled import GraphAgent
from graph_agent.errors import InputError, SessionBusyError
from graph_agent.persistence import open_saver
from graph_agent.session.results import EventAdded, Part, Token
from graph_agent.state.events import Event

USERS = [("ada", "ada's password"), ("ben", "ben's password")]
"""Put your own login here: a function of name and password."""
Messages = list[dict[str, Any]]
View = dict[Any, Any]
"""Component → its new value."""


def book(room: str, day: str) -> str:
    """Book a room for a day, such as 2026-12-01."""
    return f"Booked {room} for {day}."


def add(messages: Messages, event: Event) -> None:
    """Add what the chat shows of an event of the session."""
    match event["type"]:
        case "user_message":
            messages.append({"role": "user", "content": event["content"]})
        case "tool_call":
            title = f"{event['name']} {json.dumps(event['arguments'])}"
            call = {"title": title, "id": event["id"], "status": "pending"}
            messages.append({"role": "assistant", "content": "", "metadata": call})
        case "tool_result":
            title = f"{event['name']}: {event['status']}"
            ended = {"title": title, "id": event["id"], "status": "done"}
            shown = {"role": "assistant", "content": str(event["content"]), "metadata": ended}
            calls = [each for each in messages if each.get("metadata", {}).get("id") == event["id"]]
            calls[0].update(shown) if calls else messages.append(shown)
        case "agent_response":
            messages.append({"role": "assistant", "content": event["content"]})


def page(agent: GraphAgent) -> gr.Blocks:
    """Return the page of an agent; each user has a session of their own."""
    with gr.Blocks(title="Rooms", analytics_enabled=False) as blocks:
        chat = gr.Chatbot(label="Chat", buttons=["copy"])
        with gr.Column(visible=False) as waiting:
            question = gr.Markdown()
            with gr.Row():
                yes, no = gr.Button("Approve", variant="primary"), gr.Button("Reject")
        text = gr.Textbox(label="Message", submit_btn=True)
        stop = gr.Button("Stop")

    def session_of(request: gr.Request) -> Session:
        # The name is that of the login; a session hash would be the browser's own choice.
        return agent.session(f"gradio:{request.username}")

    async def view(session: Session) -> View:
        messages: Messages = []
        for event in await session.events():
            add(messages, event)
        waits = await session.interrupts()
        calls = [call for each in waits for call in each.value["action_requests"]]
        asked = "\n".join(f"- {call['name']} `{json.dumps(call['args'])}`" for call in calls)
        return {chat: messages, question: asked, waiting: gr.Column(visible=bool(calls))}

    async def follow(session: Session, parts: AsyncGenerator[Part]) -> AsyncIterator[View]:
        shown, answer = await view(session), ""
        yield {**shown, text: "", waiting: gr.Column(visible=False)}
        try:
            async for part in parts:
                if isinstance(part, EventAdded):
                    add(shown[chat], part.event)
                    answer = "" if part.event["type"] == "agent_response" else answer
                elif isinstance(part, Token):
                    answer += part.text
                else:
                    continue
                streamed = [{"role": "assistant", "content": answer}] if answer else []
                yield {chat: [*shown[chat], *streamed]}
        except (InputError, SessionBusyError) as error:
            gr.Warning(str(error))
        yield await view(session)

    async def load(request: gr.Request) -> View:
        return await view(session_of(request))

    async def send(message: str, request: gr.Request) -> AsyncIterator[View]:
        session = session_of(request)
        async for shown in follow(session, session.stream(message)):
            yield shown

    async def decide(name: str, request: gr.Request) -> AsyncIterator[View]:
        session, decision = session_of(request), approve() if name == "Approve" else reject()
        parts = session.stream_resume(decision, decided_by=request.username)
        async for shown in follow(session, parts):
            yield shown

    with blocks:
        outputs = [chat, question, waiting, text]
        runs: list[dict[str, Any]] = [text.submit(send, text, outputs)]
        runs += [button.click(decide, button, outputs) for button in (yes, no)]
        stop.click(None, cancels=runs).then(load, None, outputs)
        blocks.load(load, None, outputs)
    # One run at a time for all users would be Gradio's default.
    blocks.queue(default_concurrency_limit=None)
    return blocks


async def main() -> None:
    """Serve the page on port 7860, or that in `PORT`."""
    async with open_saver(os.environ.get("CHAT_DB", "sqlite:///chat.db")) as saver:
        config = LoopConfig(approve="book")
        agent = create_graph_agent("openai:gpt-4o-mini", [book], config=config, checkpointer=saver)
        # The session is the history; Gradio's own would be a second one.
        options: dict[str, Any] = {"auth": USERS, "run_history": False, "footer_links": []}
        app = gr.mount_gradio_app(FastAPI(), page(agent), path="", **options)
        port = int(os.environ.get("PORT", "7860"))
        await uvicorn.Server(uvicorn.Config(app, port=port)).serve()


if __name__ == "__main__":
    asyncio.run(main())
