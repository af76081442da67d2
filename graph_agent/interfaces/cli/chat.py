"""Holds the conversation at a terminal; the input line stays open while the agent works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.patch_stdout import patch_stdout

from graph_agent.agent_file.factory import open_agent
from graph_agent.base._internal.secrets import mask_named_secrets
from graph_agent.base._internal.text import text_of
from graph_agent.base.errors import GraphAgentError, InputError
from graph_agent.interfaces.cli.agent_thread import EXIT_S, STOPPED, AgentThread, leave_at_once
from graph_agent.interfaces.cli.chat_commands import COMMANDS, find_command, run_command
from graph_agent.interfaces.cli.dialog import Dialog, Question, questions_of, show_question, signed, user_name
from graph_agent.interfaces.cli.editor import LineEditor, open_history
from graph_agent.interfaces.cli.one_shot import RUN_CONTEXT, Settings, new_session_id
from graph_agent.interfaces.cli.report import TextReport
from graph_agent.interfaces.cli.screen import PromptScreen
from graph_agent.interfaces.cli.typed_keys import discard_typed_keys
from graph_agent.session.control import SessionControl
from graph_agent.session.results import Done, EventAdded, RunResult, open_interrupts
from graph_agent.session.session import Session

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from graph_agent.session.compiled import CompiledAgentGraph
    from graph_agent.session.results import Part


_WAKE = "\x00wake"
"""Result of the input line when a question of the agent interrupts it."""
_REFRESH_S = 0.25
"""Seconds between two updates of the live region."""
_RETRY_S = 0.01
"""Seconds between two attempts to abort a run that is about to begin."""
_RESPONSE_S = 3.0
"""Seconds in which a run must react to an abort; otherwise it counts as stuck."""


async def chat_with(settings: Settings) -> int:
    """Open the agent in a thread of its own, hold a conversation at the terminal until the user leaves, and close the
    agent.

    Returns the exit status: 0, or 130 if SIGINT arrived while no run was under way. If the agent does not close within
    10 s (`EXIT_S`), the process is ended at once with status 130.
    """

    def opened() -> Any:
        """Open the agent; called in its thread."""
        return open_agent(settings.spec, today=settings.today, db=settings.db, caller=user_name())

    agent = AgentThread(opened, EXIT_S)
    async with agent as graph:
        status = await Chat(settings, agent, graph).talk()
    if agent.is_stuck:
        leave_at_once("something of the agent did not end, such as a call that blocks")
    return status


class Chat:
    """One conversation at the terminal, whose input line stays open while the agent works.

    Args:
        settings: The agent, the session to continue, and whether to approve every call.
        agent: The thread that the agent runs in.
        graph: The open agent.
        editor: The input line; None for one that reads from the terminal and has the user's history.
    """

    def __init__(
        self, settings: Settings, agent: AgentThread, graph: CompiledAgentGraph, editor: LineEditor | None = None
    ) -> None:
        self.settings = settings
        self.screen = PromptScreen()
        self.out, self.err = self.screen.out, self.screen.err
        self.questions: list[Question] = []
        """The open questions of the session, such as approvals that are waited for."""
        self.result: RunResult | None = None
        """The result of the newest run of this conversation; None before it."""
        self._agent, self._graph = agent, graph
        self._editor = editor or LineEditor(open_history(), self._interrupted, self._signalled)
        self._editor.session.completer = WordCompleter([f"/{name}" for name in COMMANDS], sentence=True)
        # A menu below the input would cover the live region.
        self._editor.session.complete_while_typing = False
        self._dialog_editor = LineEditor(read_from=self._editor.session.input, write_to=self._editor.session.output)
        self._dialog: Dialog | None = None
        """Asks the open questions and collects the answers; None while nothing is asked."""
        self._run: asyncio.Task[None] | None = None
        """The task that prints the newest run."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._draft = ""
        """The text that was typed when a question interrupted the input line."""
        self._armed = self._stuck = self._leaving = False
        """`_armed`: Ctrl-C was pressed at an empty line, and pressing it again leaves.

        `_stuck`: the run did not react to an abort. `_leaving`: the conversation ends after the current line.
        """
        self.start_session(settings.session_id or new_session_id())

    @property
    def is_running(self) -> bool:
        """Whether a run of this conversation is under way."""
        return self._run is not None and not self._run.done()

    @property
    def reasoning(self) -> str:
        """The model's newest reasoning, whole, of which only the beginning was printed; empty before any."""
        return self._report.reasoning

    async def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the agent's loop, and return its result.

        Raises what the coroutine raises, and `TimeoutError` after 10 s (`EXIT_S`), e.g. if code of the agent blocks
        the loop.
        """
        return await asyncio.wait_for(self._agent.call(work), EXIT_S)

    def start_session(self, session_id: str) -> None:
        """Continue the conversation in the session of this id, which need not exist.

        Open questions and the newest result of the former session are forgotten.
        """
        # The report and questions of another session must not leak into this one.
        self.session = Session(self._graph, session_id)
        self.questions, self._dialog, self.result = [], None, None
        self._report = TextReport(self.screen)

    def leave(self) -> None:
        """End the conversation once the current line is executed."""
        self._leaving = True

    async def talk(self) -> int:
        """Read lines and execute them until the user leaves, then abort a run that is under way; return the exit
        status.

        First the greeting, the newest exchange of a continued session and its open questions are printed, and at the
        end the option that continues the session. The status is 0, or 130 if SIGINT arrived while no run was under way.
        A `GraphAgentError` or `TimeoutError` of a line is printed, and does not end the conversation.
        """
        status = 0
        # Output of the run appears above the open input line.
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
        """Print a line with the agent's name and the session's id."""
        self.out.line(f"{self.settings.spec.name} - session {self.session.id} - /help lists the commands", style="dim")

    def show_error(self, error: Exception) -> None:
        """Print an error in red with secrets masked.

        An error without a text, such as a timeout, is printed as a hint that code of the agent blocks.
        """
        text = str(error) or "the agent does not react: something of it blocks"
        self.err.print(mask_named_secrets(f"error: {text}"), style="red")

    async def _show_last_exchange(self) -> None:
        """Print the newest user message of a continued session and the events after it, in the form in which a run
        prints them.

        Prints nothing if the session has no user message.
        """
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
        """Read the open questions of the session from its newest checkpoint into `questions`, and begin to ask them.

        If there are none but the run is not complete, a note is printed: another process runs it, or it was interrupted
        and `/resume` continues it. Nothing is printed for a session without an unfinished run.
        """
        state = await self.call(self._graph.aget_state({"configurable": {"thread_id": self.session.id}}))
        self.questions = questions_of(open_interrupts(state))
        if self.questions:
            self.ask()
        elif state.tasks and await self.call(self.session.is_running()):
            self.err.print("Another process runs this session; /steer and /abort reach it.", style="yellow")
        elif state.tasks:
            self.err.print("The last run of this session was interrupted; /resume continues it.", style="yellow")

    def ask(self, *, approves: bool = False) -> None:
        """Begin to ask the open questions; the next lines that are typed answer them.

        Args:
            approves: Whether calls that a standing approval may cover are approved without asking. The session is
                resumed at once if no question is left.
        """
        self._dialog = Dialog(self.questions, approves)
        if (answers := self._dialog.answers) is not None:
            self.answer(answers)

    def answer(self, answers: dict[str, Any] | None) -> None:
        """Start a run that resumes the session with the answers to its open questions; return before the run ends.

        Args:
            answers: Interrupt id → answer; decisions receive this process's login name. None continues a run that was
                interrupted.
        """
        self._dialog = None
        self._report.resume()
        session, given = self.session, None if answers is None else signed(answers)
        self._start(lambda: session.stream_resume(given, context=RUN_CONTEXT, reasoning=True))

    def send(self, text: str) -> None:
        """Print the agent's warnings, and start the run of a new message; return before the run ends."""
        self._report = TextReport(self.screen)
        self._report.warn(self._graph.input_warnings)
        session = self.session
        self._start(lambda: session.stream(text, context=RUN_CONTEXT, reasoning=True))

    async def abort(self) -> None:
        """Stop the run, or drop the calls that wait for an answer; print if calls were dropped or nothing was running.

        Messages that are queued behind the run are withdrawn and put back into the input line. If the run does not
        react within 3 s (`_RESPONSE_S`), a note is printed, nothing is withdrawn, and the run counts as stuck: the next
        Ctrl-C leaves the program. A `GraphAgentError` of the abort is printed, and nothing is withdrawn.
        """
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
        """Abort the session's run, and return whether something was stopped.

        If nothing was stopped although this conversation has started a run, the abort is repeated every 10 ms, because
        the run is registered only some time after it was started.
        """
        while True:
            stopped: bool = await self._agent.call(self.session.abort())
            # A run that has just been created may not be registered yet.
            if stopped or not self.is_running:
                return stopped
            await asyncio.sleep(_RETRY_S)

    async def _take_back_follow_ups(self) -> None:
        """Withdraw the messages that were queued behind a stopped run, print them, and offer them again in the input
        line.

        The input line receives them, one per line, only if it is blank. Does nothing if no message was queued.
        """
        control = SessionControl(self._graph, self.session.id)
        if not (texts := await self.call(control.withdraw_follow_ups())):
            return
        self.out.print(f"Not sent: {' | '.join(texts)}", style="dim")
        # The messages are offered again, because their run will not read them.
        buffer = self._editor.session.app.current_buffer
        if not buffer.text.strip():
            buffer.text = "\n".join(texts)
            buffer.cursor_position = len(buffer.text)

    async def _read(self) -> str:
        """Read one line: an answer if questions are open and no run is under way, otherwise a message or a command.

        Returns `_WAKE` if there is nothing to execute, because the question must be shown again. In the text that a
        choice needs, such as a reason, Ctrl-C or Ctrl-D goes back to the choice. At a choice or an answer, Ctrl-D
        leaves, and so does Ctrl-C if it follows another one; a first Ctrl-C prints that the question stays open.

        Raises:
            EOFError: The user leaves.
            KeyboardInterrupt: SIGINT arrived while neither a question was open nor a run under way.
        """
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
        """Execute one line: a command, an answer to the open question, or a message.

        `_WAKE` and a blank message do nothing.

        A line with a slash is a command; at a question that is no approval only if it names a known command, and never
        in the text that a choice needs. An answer after which no question is open resumes the session. A message during
        a run is queued behind the current answer, otherwise it starts a run.
        """
        if text is _WAKE:
            return
        # Any other input shows that the person stays.
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
        """Start the task that prints a new run, and forget the open questions.

        Args:
            start: Called on the agent's loop; returns the stream of the run.
        """
        self.questions = []
        self._run = asyncio.create_task(self._show(start))

    async def _show(self, start: Callable[[], AsyncGenerator[Part]]) -> None:
        """Print a run to its end, then begin to ask the questions that it ended with.

        With `--approve-all`, the approvals among them are answered at once. An exception of the run is printed. If it
        is an `InputError`, because the session refused an answer or a message, the open questions are read and asked
        again. The result of the run becomes `result`.

        Args:
            start: Called on the agent's loop; returns the stream of the run.
        """
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
            # The last frame of the live region would stay otherwise.
            self._editor.session.app.invalidate()
        self._stuck = False
        if reload:
            # An answer that does not fit leaves the questions open.
            await self.load_questions()
        elif result is not None and result.interrupts:
            self.questions = questions_of(result.interrupts)
            self.ask(approves=self.settings.approve_all)
        self._wake()

    async def _refresh(self) -> None:
        """Redraw the live region four times a second, until cancelled."""
        while True:
            await asyncio.sleep(_REFRESH_S)
            self._editor.session.app.invalidate()

    def _wake(self) -> None:
        """End the input line if a question is to be asked, so that it is shown.

        The typed text is kept for the next input line.
        """
        app = self._editor.session.app
        if self._dialog is not None and app.is_running:
            self._draft = app.current_buffer.text
            app.current_buffer.reset()
            app.exit(result=_WAKE)

    def _interrupted(self, typed: str) -> bool:
        """Handle the key Ctrl-C, and return whether the caller must clear the typed text.

        During a run it aborts the run; if that run is stuck, it leaves the conversation. Without a run, True is
        returned for a text that is not blank. In a blank line, the first Ctrl-C prints a note, and a second one leaves.

        Args:
            typed: The text of the input line.
        """
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
        """Handle SIGINT, which Ctrl-C sends while output is printed, as the key Ctrl-C in an empty line; return True.

        Returns False and does nothing if no run is under way and Ctrl-C was not pressed before; the caller then leaves
        the conversation.
        """
        if not self.is_running and not self._armed:
            return False
        self._interrupted("")
        return True

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task, and keep a reference to the task until it ends."""
        task = asyncio.create_task(work)
        # asyncio holds tasks weakly only.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end_run(self) -> None:
        """Abort a run that is under way, wait up to 6 s for its end, and stop printing it.

        Does nothing if no run is under way. If the run is stuck, the agent's thread is abandoned, so that closing the
        agent waits for nothing.
        """
        if self._run is None or self._run.done():
            return
        if not self._stuck:
            await self.abort()
            await asyncio.wait([self._run], timeout=_RESPONSE_S)
        if self._stuck:
            self._agent.abandon()
        self._run.cancel()
