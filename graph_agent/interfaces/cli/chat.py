"""Holds the conversation at a terminal and its commands; the input line stays open while the agent works."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.patch_stdout import patch_stdout

from graph_agent.agent_file.factory import open_agent
from graph_agent.base._internal.secrets import mask_named_secrets
from graph_agent.base._internal.text import text_of
from graph_agent.base.errors import GraphAgentError, InputError, did_you_mean
from graph_agent.interfaces.cli.agent_thread import GRACE_S, STOPPED, AgentThread, leave_at_once
from graph_agent.interfaces.cli.dialog import Dialog, Question, approve_all, questions_of, show_question, signed
from graph_agent.interfaces.cli.editor import LineEditor, open_history
from graph_agent.interfaces.cli.inspection import event_line
from graph_agent.interfaces.cli.one_shot import RUN_CONTEXT, Settings, new_session_id
from graph_agent.interfaces.cli.report import TextReport
from graph_agent.interfaces.cli.screen import PromptScreen
from graph_agent.interfaces.cli.typed_keys import discard_typed_keys
from graph_agent.session.control import SessionControl
from graph_agent.session.results import Done, EventAdded, RunResult, open_interrupts
from graph_agent.session.session import Session
from graph_agent.storage.locks.registry import is_idle

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from langgraph.checkpoint.base import BaseCheckpointSaver

    from graph_agent.session.compiled import CompiledAgentGraph
    from graph_agent.session.results import Part


_EVENTS = 20
"""Events that `/events` shows without a number."""


class Command(NamedTuple):
    """One command."""

    usage: str
    """Its arguments; empty if there are none."""
    help: str
    run: Callable[[Chat, str], Awaitable[None]]
    """Executes it with the text after its name."""


def find_command(text: str) -> Command | None:
    """Return the command of a line that begins with `/`; None if there is none of its name."""
    name = text[1:].strip().partition(" ")[0].lower()
    return COMMANDS.get(_ALIASES.get(name, name))


async def run_command(chat: Chat, text: str) -> None:
    """Execute a line that begins with `/`; errors are printed."""
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
    for name, command in COMMANDS.items():
        chat.out.print(f"  {f'/{name} {command.usage}'.strip():<18} {command.help}")
    chat.out.print(
        "Text without a slash is sent to the agent; while it works, after the current answer.\n"
        "Alt-Enter, or a backslash at the end of a line, starts a new line. Ctrl-X Ctrl-E opens an editor.\n"
        "Ctrl-C stops the run; at an empty input, twice leaves, as Ctrl-D does."
    )


async def _steer(chat: Chat, text: str) -> None:
    if not text:
        chat.err.print("Write the message after /steer.", style="red")
        return
    await chat.call(chat.session.steer(text))
    chat.out.print(f"Sent {'before the next step' if chat.is_running else 'with the next input'}.", style="dim")


async def _abort(chat: Chat, _: str) -> None:
    await chat.abort()


async def _approve(chat: Chat, text: str) -> None:
    if not chat.questions or chat.is_running:
        chat.out.print("Nothing waits for an answer.", style="dim")
    elif text != "all":
        chat.ask()
    elif (answers := await approve_all(chat.questions)) is not None:
        chat.answer(answers)
    else:
        chat.err.print("Not every open question is an approval; /approve asks them one by one.", style="yellow")
        chat.ask()


async def _events(chat: Chat, text: str) -> None:
    count = int(text) if text.isdecimal() else _EVENTS
    for event in (await chat.call(chat.session.events()))[-count:]:
        chat.out.line(event_line(event))


async def _status(chat: Chat, _: str) -> None:
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


async def _resume(chat: Chat, _: str) -> None:
    if chat.is_running:
        chat.out.print("A run is under way.", style="dim")
    elif chat.questions:
        chat.ask()
    else:
        chat.answer(None)


async def _new(chat: Chat, _: str) -> None:
    if chat.is_running:
        chat.out.print("A run is under way; /abort stops it.", style="dim")
        return
    chat.start_session(new_session_id())
    chat.greet()


async def _quit(chat: Chat, _: str) -> None:
    chat.leave()


COMMANDS = {
    "help": Command("", "Lists the commands.", _help),
    "steer": Command("TEXT", "Sends a message before the next step of the run.", _steer),
    "abort": Command("", "Stops the run, or drops the calls that wait for an answer.", _abort),
    "approve": Command("[all]", "Asks the open questions again; with `all`, approves every call that waits.", _approve),
    "resume": Command("", "Continues a run that was interrupted.", _resume),
    "events": Command("[N]", "Shows the newest events of the session, by default 20.", _events),
    "status": Command("", "Shows the session, its calls, and the tokens of the newest input.", _status),
    "new": Command("", "Starts a new session.", _new),
    "quit": Command("", "Leaves; the session can be continued later.", _quit),
}
_ALIASES = {"exit": "quit", "?": "help"}


_WAKE = "\x00wake"
"""Result of the input line when a question of the agent interrupts it."""
_REFRESH_S = 0.25
"""Seconds between two updates of the live region."""
_RETRY_S = 0.01
"""Seconds between two attempts to abort a run that is about to begin."""
_RESPONSE_S = 3.0
"""Seconds in which a run must react to an abort; otherwise it counts as stuck."""


async def chat_with(settings: Settings) -> int:
    """Hold a conversation until the person leaves; return the exit status."""

    def opened() -> Any:
        return open_agent(settings.spec, today=settings.today, db=settings.db)

    agent = AgentThread(opened, GRACE_S)
    async with agent as graph:
        status = await Chat(settings, agent, graph).talk()
    if agent.is_stuck:
        leave_at_once("something of the agent did not end, such as a call that blocks")
    return status


class Chat:
    """One conversation, with the terminal's input line by default."""

    def __init__(
        self, settings: Settings, agent: AgentThread, graph: CompiledAgentGraph, editor: LineEditor | None = None
    ) -> None:
        self.settings = settings
        self.screen = PromptScreen()
        self.out, self.err = self.screen.out, self.screen.err
        self.questions: list[Question] = []
        self.result: RunResult | None = None
        """The result of the newest run of this conversation; None before it."""
        self._agent, self._graph = agent, graph
        self._saver = cast("BaseCheckpointSaver[Any]", graph.checkpointer)
        self._editor = editor or LineEditor(open_history(), self._interrupted, self._signalled)
        self._editor.session.completer = WordCompleter([f"/{name}" for name in COMMANDS], sentence=True)
        self._editor.session.complete_while_typing = False
        self._dialog_editor = LineEditor(read_from=self._editor.session.input, write_to=self._editor.session.output)
        self._dialog: Dialog | None = None
        self._run: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._draft = ""
        """The text that was typed when a question interrupted the input line."""
        self._armed = self._stuck = self._leaving = False
        self.start_session(settings.session_id or new_session_id())

    @property
    def is_running(self) -> bool:
        """Whether a run of this conversation is under way."""
        return self._run is not None and not self._run.done()

    async def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the agent's loop, and return its result; `TimeoutError` if it is blocked for `GRACE_S`."""
        return await asyncio.wait_for(self._agent.call(work), GRACE_S)

    def start_session(self, session_id: str) -> None:
        """Continue with another session."""
        self.session = Session(self._graph, session_id)
        self.questions, self._dialog, self.result = [], None, None
        self._report = TextReport(self.screen)

    def leave(self) -> None:
        """End the conversation after the current command."""
        self._leaving = True

    async def talk(self) -> int:
        """Read and execute inputs until the person leaves; return the exit status."""
        status = 0
        with patch_stdout(raw=True):
            self.greet()
            await self._show_last_exchange()
            await self.load_questions()
            if self.questions:
                # Keys that were typed before the question was shown do not answer it.
                discard_typed_keys()
            while not self._leaving:
                try:
                    await self._take(await self._read())
                except (GraphAgentError, TimeoutError) as error:
                    self.show_error(error)
                except EOFError:
                    self._leaving = True
                except KeyboardInterrupt:
                    # SIGINT while no run is under way.
                    status = STOPPED
                    self._leaving = True
            await self._end_run()
        self.err.line(f"Go on with this conversation: --session {self.session.id}", style="dim")
        return status

    def greet(self) -> None:
        """Print the agent and the session."""
        self.out.line(f"{self.settings.spec.name} - session {self.session.id} - /help lists the commands", style="dim")

    def show_error(self, error: Exception) -> None:
        """Print an error; the conversation continues."""
        text = str(error) or "the agent does not react: something of it blocks"
        self.err.print(mask_named_secrets(f"error: {text}"), style="red")

    async def _show_last_exchange(self) -> None:
        """Print the newest input of a continued session as its run printed it."""
        events = await self.call(self.session.events())
        inputs = [at for at, event in enumerate(events) if event["type"] == "user_message"]
        report = TextReport(self.screen)
        for event in events[inputs[-1] :] if inputs else ():
            if event["type"] == "user_message":
                report.question(text_of(event["content"]))
            else:
                report.take(EventAdded(event))
        report.close()

    async def load_questions(self) -> None:
        """Read the open questions of the session, and ask them."""
        state = await self.call(self._graph.aget_state({"configurable": {"thread_id": self.session.id}}))
        self.questions = questions_of(open_interrupts(state))
        if self.questions:
            self.ask()
        elif state.tasks and not await self.call(is_idle(self._saver, self.session.id)):
            self.err.print("Another process runs this session; /steer and /abort reach it.", style="yellow")
        elif state.tasks:
            self.err.print("The last run of this session was interrupted; /resume continues it.", style="yellow")

    def ask(self) -> None:
        """Ask the open questions, in place of the next input."""
        self._dialog = Dialog(self.questions)

    def answer(self, answers: dict[str, Any] | None) -> None:
        """Resume the session with answers; with None, after a crash."""
        self._dialog = None
        self._report.resume()
        session, given = self.session, None if answers is None else signed(answers)
        self._start(lambda: session.stream_resume(given, context=RUN_CONTEXT))

    def send(self, text: str) -> None:
        """Run an input."""
        self._report = TextReport(self.screen)
        self._report.warn(self._graph.input_warnings)
        session = self.session
        self._start(lambda: session.stream(text, context=RUN_CONTEXT))

    async def abort(self) -> None:
        """Stop the run, or settle the calls that wait."""
        aborting = asyncio.create_task(self._abort_run())
        # Not cancelled after the timeout: the loop may go on later.
        await asyncio.wait([aborting], timeout=_RESPONSE_S)
        if not aborting.done():
            self._stuck = self.is_running
            self.err.print("The run does not react: something of it blocks. Ctrl-C again leaves the program.")
            return
        try:
            stopped = aborting.result()
        except GraphAgentError as error:
            self.show_error(error)
            return
        await self._take_back_follow_ups()
        if self.questions and not self.is_running:
            self.questions, self._dialog = [], None
            self.out.print("The waiting calls are dropped.", style="dim")
        elif not stopped:
            self.out.print("Nothing is running.", style="dim")

    async def _abort_run(self) -> bool:
        """Abort the session's run; repeat this for an input that was just sent, until its run is registered."""
        while True:
            stopped: bool = await self._agent.call(self.session.abort())
            if stopped or not self.is_running:
                return stopped
            await asyncio.sleep(_RETRY_S)

    async def _take_back_follow_ups(self) -> None:
        """Put the queued messages of a stopped run into the input line; they are not sent."""
        control = SessionControl(self._graph, self.session.id)
        if not (texts := await self.call(control.withdraw_follow_ups())):
            return
        self.out.print(f"Not sent: {' | '.join(texts)}", style="dim")
        buffer = self._editor.session.app.current_buffer
        if not buffer.text.strip():
            buffer.text = "\n".join(texts)
            buffer.cursor_position = len(buffer.text)

    async def _read(self) -> str:
        if self._dialog is not None and not self.is_running:
            if not self._armed:
                show_question(self.err, self._dialog)
            try:
                return await self._dialog_editor.read(self._dialog.label, default=self._dialog.default)
            except (EOFError, KeyboardInterrupt) as left:
                if self._dialog.go_back():
                    return _WAKE
                if self._armed or isinstance(left, EOFError):
                    raise EOFError from None
                self._armed = True
                note = "The question stays open. Ctrl-C again, or Ctrl-D, leaves; /abort drops the calls."
                self.err.print(note, style="dim")
                return _WAKE
        draft, self._draft = self._draft, ""
        return await self._editor.read(self.screen.prompt, default=draft)

    async def _take(self, text: str) -> None:
        if text is _WAKE:
            return
        self._armed = False
        accepts = "choice" if self._dialog is None else self._dialog.accepts
        # An answer may begin with a slash, as a path does.
        if text.startswith("/") and (accepts == "choice" or (accepts == "text" and find_command(text))):
            await run_command(self, text)
        elif self._dialog is not None and not self.is_running:
            self._dialog.submit(text)
            if (answers := self._dialog.answers) is not None:
                self.answer(answers)
        elif not text.strip():
            return
        elif self.is_running:
            await self.call(self.session.follow_up(text))
            self.out.print(
                "Queued for after the current answer; /steer sends a message before the next step.", style="dim"
            )
        else:
            self.send(text)

    def _start(self, start: Callable[[], AsyncGenerator[Part]]) -> None:
        self.questions = []
        self._run = asyncio.create_task(self._show(start))

    async def _show(self, start: Callable[[], AsyncGenerator[Part]]) -> None:
        report = self._report
        self.screen.set_busy(True)
        refresh = asyncio.create_task(self._refresh())
        result: RunResult | None = None
        reload = False
        try:
            async for part in self._agent.stream(start):
                report.take(part)
                if isinstance(part, Done):
                    self.result = result = part.result
        except Exception as error:  # noqa: BLE001 - the conversation continues after any failure of a run
            self.show_error(error)
            reload = isinstance(error, InputError)
        finally:
            refresh.cancel()
            report.close()
            self.screen.set_busy(False)
            self._editor.session.app.invalidate()
        self._stuck = False
        if reload:
            # An answer that does not fit leaves the questions open.
            await self.load_questions()
        elif result is not None and result.interrupts:
            self.questions = questions_of(result.interrupts)
            answers = await approve_all(self.questions) if self.settings.approve_all else None
            if answers is None:
                self.ask()
            else:
                self.answer(answers)
        self._wake()

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            self._editor.session.app.invalidate()

    def _wake(self) -> None:
        """Interrupt the input line, so that the question is asked; the typed text is kept."""
        app = self._editor.session.app
        if self._dialog is not None and app.is_running:
            self._draft = app.current_buffer.text
            app.current_buffer.reset()
            app.exit(result=_WAKE)

    def _interrupted(self, typed: str) -> bool:
        """Handle the key Ctrl-C; return whether to clear the typed text."""
        app = self._editor.session.app
        if self.is_running and not self._stuck:
            self._spawn(self.abort())
            return False
        if typed.strip() and not self.is_running:
            self._armed = False
            return True
        if self._armed or self.is_running:
            app.exit(exception=EOFError)
        else:
            self._armed = True
            self.out.print("Ctrl-C again, or Ctrl-D, leaves.", style="dim")
        return False

    def _signalled(self) -> bool:
        """Handle SIGINT, which the key Ctrl-C sends while output is printed; return False to leave the program."""
        if not self.is_running and not self._armed:
            return False
        self._interrupted("")
        return True

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end_run(self) -> None:
        """Abort a run that is under way, and wait for its end."""
        if self._run is None or self._run.done():
            return
        if not self._stuck:
            await self.abort()
            await asyncio.wait([self._run], timeout=_RESPONSE_S)
        if self._stuck:
            self._agent.abandon()
        self._run.cancel()
