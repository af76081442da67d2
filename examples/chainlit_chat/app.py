"""An agent in a Chainlit chat: tokens, calls as steps, and approvals as buttons."""

import json
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

import chainlit as cl

from graph_agent import LoopConfig, Session, create_graph_agent
from graph_agent.approvals import approve, reject
from graph_agent.compiled import GraphAgent
from graph_agent.errors import InputError, SessionBusyError
from graph_agent.persistence import open_saver
from graph_agent.session.results import EventAdded, Part, Token
from graph_agent.state.events import Event

PASSWORDS = {"ada": "ada's password", "ben": "ben's password"}
"""Put your own login here."""
opened = AsyncExitStack()
agents: list[GraphAgent] = []


def book(room: str, day: str) -> str:
    """Book a room for a day, such as 2026-12-01."""
    return f"Booked {room} for {day}."


@cl.on_app_startup
async def start() -> None:
    """Open the database and make the agent."""
    database = open_saver(os.environ.get("CHAT_DB", "sqlite:///chat.db"))
    saver, config = await opened.enter_async_context(database), LoopConfig(approve="book")
    model = "openai:gpt-4o-mini"
    agents.append(create_graph_agent(model, [book], config=config, checkpointer=saver))


@cl.on_app_shutdown
async def stop() -> None:
    """Close the database."""
    await opened.aclose()


@cl.password_auth_callback
async def log_in(name: str, password: str) -> cl.User | None:
    """Return the user; None if the password is wrong."""
    return cl.User(name) if PASSWORDS.get(name) == password else None


def user_session() -> tuple[Session, str]:
    """Return the session and the name of the user of this tab."""
    name = cl.user_session.get("user").identifier
    return agents[0].session(f"chainlit:{name}"), name


@cl.on_chat_start
async def show() -> None:
    """Show the session's history, also after a reload, and what waits for the user."""
    session, _ = user_session()
    steps: dict[str, cl.Step] = {}
    for event in await session.events():
        match event["type"]:
            case "user_message":
                text = str(event["content"])
                await cl.Message(text, type="user_message", created_at=event["ts"]).send()
            case "agent_response":
                await cl.Message(str(event["content"]), created_at=event["ts"]).send()
            case _:
                await show_call(event, steps)
    await ask(session)


@cl.on_message
async def answer(message: cl.Message) -> None:
    """Answer a message; Chainlit's stop button ends the run."""
    session, _ = user_session()
    await follow(session, session.stream(message.content, input_id=message.id))


async def decide(action: cl.Action) -> None:
    """Run the calls of a question, or not; the button may be as old as the question."""
    session, name = user_session()
    decision = approve() if action.name == "approve" else reject()
    await cl.Message(f"{action.label}d.", type="user_message").send()
    answers = {action.payload["question"]: decision}
    await follow(session, session.stream_resume(answers, decided_by=name))


for each in ("approve", "reject"):
    cl.action_callback(each)(decide)


async def follow(session: Session, parts: AsyncGenerator[Part]) -> None:
    """Show the parts of a run as they come."""
    steps: dict[str, cl.Step] = {}
    reply = cl.Message("")
    try:
        async for part in parts:
            match part:
                case EventAdded(event=event):
                    await show_call(event, steps)
                case Token(text=text):
                    await reply.stream_token(text)
    except (InputError, SessionBusyError) as error:
        await cl.ErrorMessage(str(error)).send()
    if reply.content:
        await reply.update()
    await ask(session)


async def show_call(event: Event, steps: dict[str, cl.Step]) -> None:
    """Show a call, or its result, as a step."""
    # Chainlit puts messages below the run of their callback; a step without it would come last.
    run = cl.context.current_run
    parent = run.id if run else None
    match event["type"]:
        case "tool_call":
            steps[event["id"]] = step = cl.Step(event["name"], "tool", parent_id=parent)
            step.input, step.created_at = event["arguments"], event["ts"]
            await step.send()
        case "tool_result":
            step = steps.get(event["id"]) or cl.Step(event["name"], "tool", parent_id=parent)
            step.output, step.is_error = str(event["content"]), event["status"] != "success"
            await (step.update() if event["id"] in steps else step.send())


async def ask(session: Session) -> None:
    """Ask about the calls that wait, with two buttons."""
    for interrupt in await session.interrupts():
        payload: dict[str, Any] = {"question": interrupt.id}
        buttons = [cl.Action(each, payload, label=each.title()) for each in ("approve", "reject")]
        calls = interrupt.value["action_requests"]
        lines = ["May this run?", *(f"{call['name']} {json.dumps(call['args'])}" for call in calls)]
        await cl.Message("\n\n".join(lines), actions=buttons).send()
