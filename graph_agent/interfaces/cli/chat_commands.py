"""Implements the commands of the conversation at a terminal, typed as `/NAME`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from graph_agent.base.errors import GraphAgentError, did_you_mean
from graph_agent.interfaces.cli.events import event_line
from graph_agent.interfaces.cli.one_shot import new_session_id

if TYPE_CHECKING:
    from graph_agent.interfaces.cli.chat import Chat

_EVENTS = 20
"""Events that `/events` shows without a number."""

_ALIASES = {"exit": "quit", "?": "help"}


class Command(NamedTuple):
    """One command of the conversation, typed as `/NAME`."""

    usage: str
    """The arguments as the help displays them, e.g. `TEXT`; empty if the command has none."""
    help: str
    """One sentence that the help displays."""
    run: Callable[[Chat, str], Awaitable[None]]
    """Executes the command in a conversation.

    The text is what follows the command's name, without surrounding white space.
    """


def find_command(text: str) -> Command | None:
    """Return the command that a line such as `/steer Hurry` names, ignoring case; None if no command or alias has the
    name.
    """
    name = text[1:].strip().partition(" ")[0].lower()
    return COMMANDS.get(_ALIASES.get(name, name))


async def run_command(chat: Chat, text: str) -> None:
    """Execute a line that begins with `/`.

    An error is printed and not raised: an unknown command, with the most similar one, or a `GraphAgentError` or
    `TimeoutError` of the command.
    """
    name, _, rest = text[1:].strip().partition(" ")
    if (command := find_command(text)) is None:
        hint = did_you_mean(f"/{name}", [f"/{known}" for known in COMMANDS])
        chat.err.print(f"There is no command '/{name}'; {hint} A space before it sends it as a message.", style="red")
        return
    try:
        await command.run(chat, rest.strip())
    except (GraphAgentError, TimeoutError) as error:
        chat.show_error(error)


async def _help(chat: Chat, _: str) -> None:
    """Print the commands and keys."""
    for name, command in COMMANDS.items():
        chat.out.print(f"  {f'/{name} {command.usage}'.strip():<18} {command.help}")
    chat.out.print(
        "Text without a slash is sent to the agent; while it works, after the current answer.\n"
        "Alt-Enter, or a backslash at the end of a line, starts a new line. Ctrl-X Ctrl-E opens an editor.\n"
        "Ctrl-C stops the run; at an empty input, twice leaves, as Ctrl-D does."
    )


async def _steer(chat: Chat, text: str) -> None:
    """Send a message that the run reads before its next step.

    If no run is under way, the next message's run reads it. Without a text, print an error.
    """
    if not text:
        chat.err.print("Write the message after /steer.", style="red")
        return
    await chat.call(chat.session.steer(text))
    chat.out.print(f"Sent {'before the next step' if chat.is_running else 'with the next input'}.", style="dim")


async def _abort(chat: Chat, _: str) -> None:
    """Stop the run, or drop the calls that wait for an answer (see `Chat.abort`)."""
    await chat.abort()


async def _approve(chat: Chat, text: str) -> None:
    """Ask the open questions again, or with the argument `all` approve the waiting calls and resume the session.

    Questions that are not approvals, and calls that no standing approval may cover (each must be decided by a person),
    are not answered by `all`; they are asked, and a note is printed. If nothing waits or a run is under way, only a
    note is printed. Any other argument is ignored.
    """
    if not chat.questions or chat.is_running:
        chat.out.print("Nothing waits for an answer.", style="dim")
    else:
        chat.ask(approves=text == "all")
        if text == "all" and not chat.is_running:
            chat.err.print("Not every question can be answered by `all`; the others are asked.", style="yellow")


async def _events(chat: Chat, text: str) -> None:
    """Print the newest events of the session, oldest first.

    `text` is their number in digits, 0 for all; any other text stands for 20.
    """
    count = int(text) if text.isdecimal() else _EVENTS
    # A number of 0 prints all, as `[-0:]` is the whole list.
    for event in (await chat.call(chat.session.events()))[-count:]:
        chat.out.line(event_line(event))


async def _status(chat: Chat, _: str) -> None:
    """Print the session's status, the state of each of its calls, and the usage of the newest run in this conversation.

    The usage is the number of model calls, the tokens and, if known, the cost; it is left out before the first run.
    """
    doing = "running" if chat.is_running else "waiting for your answer" if chat.questions else "idle"
    status = await chat.call(chat.session.status())
    chat.out.line(f"session {chat.session.id}: {status}, {doing}")
    for call in await chat.call(chat.session.calls()):
        chat.out.line(f"  {call.name}: {call.state}")
    if chat.result is not None:
        usage, cost = chat.result.usage, chat.result.cost
        price = "" if cost is None else f", cost {cost:.4f}"
        chat.out.line(
            f"newest input: {usage['model_calls']} model calls, {usage['input_tokens']} + {usage['output_tokens']} "
            f"tokens{price}"
        )


async def _reasoning(chat: Chat, _: str) -> None:
    """Print the model's newest reasoning as a whole, or that there is none."""
    chat.out.print(chat.reasoning or "The model has shown no reasoning.", style="dim")


async def _resume(chat: Chat, _: str) -> None:
    """Ask the open questions again; if there are none, continue the run that was interrupted.

    While a run is under way, only a note is printed.
    """
    if chat.is_running:
        chat.out.print("A run is under way.", style="dim")
    elif chat.questions:
        chat.ask()
    else:
        chat.answer(None)


async def _new(chat: Chat, _: str) -> None:
    """Start a new session with a random id. While a run is under way, only a note is printed."""
    if chat.is_running:
        chat.out.print("A run is under way; /abort stops it.", style="dim")
        return
    chat.start_session(new_session_id())
    chat.greet()


async def _quit(chat: Chat, _: str) -> None:
    """End the conversation."""
    chat.leave()


COMMANDS = {
    "help": Command("", "Lists the commands.", _help),
    "steer": Command("TEXT", "Sends a message before the next step of the run.", _steer),
    "abort": Command("", "Stops the run, or drops the calls that wait for an answer.", _abort),
    "approve": Command(
        "[all]", "Asks the open questions again; with `all`, approves calls that wait without asking.", _approve
    ),
    "resume": Command("", "Continues a run that was interrupted.", _resume),
    "events": Command("[N]", "Shows the newest events of the session, by default 20.", _events),
    "status": Command("", "Shows the session, its calls, and the tokens of the newest input.", _status),
    "reasoning": Command("", "Shows the model's newest reasoning as a whole.", _reasoning),
    "new": Command("", "Starts a new session.", _new),
    "quit": Command("", "Leaves; the session can be continued later.", _quit),
}
