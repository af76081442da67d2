"""The conversation on a pseudo-terminal."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.support.agents import asks
from tests.support.cli import run_cli
from tests.support.terminal import APPROVED_TOOLS, GATED_TOOLS, agent_folder, leave, terminal, wait_for

WRITE = asks(("w", "write_file", {"path": "a.txt", "text": "hi"}))


def events_of(folder: Path, session: str) -> list[dict[str, object]]:
    listed = run_cli(folder, "events", session, "--json").stdout
    return [json.loads(line) for line in listed.splitlines()]


def test_a_running_conversation_takes_steering_follow_ups_and_ctrl_c(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, GATED_TOOLS, "work", "fail")
    both = asks(("1", "work", {"n": 1}), ("2", "fail", {"n": 1}))
    script = [both, "No more actions.", "First answer.", asks(("3", "work", {"n": 2})), "never"]
    with terminal(folder, "chat", "--session", "mine", script=script) as chat:
        chat.expect("session mine")
        chat.expect("> ")
        chat.send("go\r")
        wait_for(folder / "began1")
        chat.expect("2 calls in parallel")
        chat.send("/steer be brief\r")
        chat.expect("Sent before the next step")
        chat.send("and then?\r")
        chat.expect("Queued for after the current answer")
        (folder / "go1").touch()
        chat.expect("steering: be brief")
        chat.expect("First answer")
        chat.expect("> and then")
        wait_for(folder / "began2")
        chat.send("one more\r")
        chat.expect("Queued for after the current answer")
        chat.sendintr()
        seen = {chat.expect(["Not sent: one more", "Stopped on request"]) for _ in range(2)}  # in either order
        chat.sendintr()  # clears the message, which is in the input line again
        chat.send("/quit\r")
        status = leave(chat)

    history = events_of(folder, "mine")
    messages = [event["content"] for event in history if event["type"] in ("user_message", "steering")]
    assert (status, seen, messages, history[-1]["to"]) == (0, {0, 1}, ["go", "be brief", "and then?"], "ABORTED")


def test_ctrl_c_at_an_empty_input_leaves_when_pressed_twice(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, GATED_TOOLS)
    with terminal(folder, "run", script=["never"]) as chat:
        chat.expect("> ")
        chat.send("half a message")
        chat.expect("half a message")
        chat.sendintr()  # clears the text
        chat.sendintr()
        chat.expect("Ctrl-C again")
        chat.sendintr()
        chat.expect("Go on with this conversation")
        status = leave(chat)

    assert status == 0


def test_the_signal_of_ctrl_c_stops_the_run_and_not_the_conversation(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, GATED_TOOLS, "work")
    with terminal(folder, "chat", "--session", "mine", script=[asks(("1", "work", {"n": 1})), "never"]) as chat:
        chat.expect("> ")
        chat.send("go\r")
        wait_for(folder / "began1")
        chat.kill(signal.SIGINT)
        chat.expect("Stopped on request")
        chat.send("/quit\r")
        status = leave(chat)

    assert (status, events_of(folder, "mine")[-1]["to"]) == (0, "ABORTED")


def test_ctrl_c_immediately_after_enter_stops_the_run(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, GATED_TOOLS, "work")
    with terminal(folder, "chat", "--session", "mine", script=[asks(("1", "work", {"n": 1})), "never"]) as chat:
        chat.expect("> ")
        chat.send("go\r\x03")
        seen = chat.expect(["Stopped on request", "Nothing is running"])
        chat.send("/quit\r")
        status = leave(chat)

    assert (seen, status, events_of(folder, "mine")[-1]["to"]) == (0, 0, "ABORTED")


def test_a_tool_that_blocks_its_event_loop_does_not_block_the_terminal(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, GATED_TOOLS, "block")
    with terminal(folder, "chat", script=[asks(("1", "block", {})), "never"]) as chat:
        chat.expect("> ")
        chat.send("go\r")
        wait_for(folder / "blocking")
        chat.sendintr()
        chat.expect("does not react")
        chat.sendintr()
        chat.expect("Stopped at once")
        status = leave(chat)

    assert status == 130


def test_a_call_is_edited_at_the_terminal(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, APPROVED_TOOLS, "write_file")
    with terminal(folder, "chat", "--session", "mine", script=[WRITE, "No more actions.", "Done."]) as chat:
        chat.expect("> ")
        chat.send("write\r")
        chat.expect("Approve this call")
        chat.expect("ways: ")
        chat.send("maybe\r")
        chat.expect("none of the choices")
        chat.send("e\r")
        chat.expect("arguments")
        chat.send("\x15" * 9)  # Ctrl-U deletes a line, and at its beginning the line feed before it
        chat.send("{path: b.txt}\r")
        chat.expect("Done\\.")
        chat.sendeof()
        status = leave(chat)

    [result] = [event for event in events_of(folder, "mine") if event["type"] == "tool_result"]
    decision = {"type": "edit", "edited_action": {"name": "write_file", "args": {"path": "b.txt"}}}
    assert (status, result["content"]) == (0, f"decided: {decision}")


def test_arguments_are_edited_in_the_users_editor(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, APPROVED_TOOLS, "write_file")
    editor = folder / "editor"
    editor.write_text("#!/bin/sh\nprintf 'path: c.txt\\n' > \"$1\"\n")
    editor.chmod(0o755)
    script = [WRITE, "No more actions.", "Done."]
    command = ["run", "--session", "mine", "write"]
    with terminal(folder, *command, script=script, EDITOR=str(editor), VISUAL=str(editor)) as run:
        run.expect("ways: ")
        run.send("e\r")
        run.expect('"text": "hi"')
        run.send("\x18\x05")  # Ctrl-X Ctrl-E
        run.expect("path: c.txt")
        run.send("\r")
        run.expect("Done\\.")
        status = leave(run)

    [result] = [event["content"] for event in events_of(folder, "mine") if event["type"] == "tool_result"]
    decision = {"type": "edit", "edited_action": {"name": "write_file", "args": {"path": "c.txt"}}}
    assert (status, result) == (0, f"decided: {decision}")


def test_always_approves_later_calls_of_the_tool(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, APPROVED_TOOLS, "write_file")
    again = asks(("x", "write_file", {"path": "b.txt", "text": "ho"}))
    with terminal(
        folder, "run", "--session", "mine", "write", script=[WRITE, again, "No more actions.", "Done."]
    ) as run:
        run.expect("ways: ")
        run.send("a\r")
        run.expect("Done\\.")
        status = leave(run)

    results = [event["content"] for event in events_of(folder, "mine") if event["type"] == "tool_result"]
    assert (status, results) == (0, ["decided: {'type': 'approve', 'always': True}", "decided: {'type': 'approve'}"])


def test_ctrl_c_leaves_an_approval_open_with_its_keys(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, APPROVED_TOOLS, "write_file")
    with terminal(folder, "chat", "--session", "mine", script=[WRITE, "No more actions.", "Done."]) as chat:
        chat.expect("> ")
        chat.send("write\r")
        chat.expect("ways: ")
        chat.sendintr()
        chat.expect("The question stays open")
        chat.expect("ways: ")
        chat.send("e\r")
        chat.expect("Ctrl-C goes back")
        chat.sendintr()
        chat.expect("Approve this call")
        chat.send("n\r")
        chat.expect("reason")
        chat.send("too risky\r")
        chat.expect("Done\\.")
        chat.send("/quit\r")
        status = leave(chat)

    [result] = [event["content"] for event in events_of(folder, "mine") if event["type"] == "tool_result"]
    assert (status, result) == (0, "decided: {'type': 'reject', 'message': 'too risky'}")


def test_a_continued_conversation_shows_its_last_exchange_and_asks_again(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, APPROVED_TOOLS, "write_file", "ask")
    question = asks(("a", "ask", {"question": "Which folder?"}))
    run_cli(folder, "run", "--session", "mine", "hello", script=["Good day."])
    with terminal(folder, "chat", "--session", "mine", script=[question]) as chat:
        chat.expect("> hello")
        chat.expect("Good day\\.")
        chat.expect("> ")
        chat.send("write\r")
        chat.expect("answer: ")
        chat.send("/quit\r")  # a command, also where any text is an answer
        left = leave(chat)
    with terminal(folder, "chat", "--session", "mine", script=["No more actions.", "Done."]) as chat:
        chat.expect("> write")
        chat.expect("answer: ")
        chat.sendintr()
        chat.expect("answer: ")
        chat.send("/srv/files\r")
        chat.expect("Done\\.")
        chat.send("/quit\r")
        status = leave(chat)

    [result] = [event for event in events_of(folder, "mine") if event["type"] == "tool_result"]
    assert (left, status, result["content"]) == (0, 0, "answered: /srv/files")


def test_keys_typed_before_the_input_line_are_shown_there_only(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, APPROVED_TOOLS, "write_file")
    run_cli(folder, "run", "--session", "waits", "write", script=[WRITE])
    (folder / "my_tools.py").write_text(
        f"from pathlib import Path\nimport time\nPath('opening').touch()\n"
        f"while not Path('go').exists(): time.sleep(0.01)\n{APPROVED_TOOLS}"
    )
    shown, statuses = [], []
    for session, keys, prompt in (("new", "early", "> "), ("waits", "y\r", "ways: ")):
        with terminal(folder, "chat", "--session", session, script=["never"]) as chat:
            wait_for(folder / "opening")
            chat.send(keys)
            (folder / "go").touch()
            chat.expect(prompt)
            shown.append(chat.before.startswith(keys.strip()))
            chat.sendintr()
            chat.send("/quit\r")
            statuses.append(leave(chat))
        for name in ("opening", "go"):
            (folder / name).unlink()

    assert (shown, statuses, len(events_of(folder, "waits"))) == ([False, False], [0, 0], 4)


def test_another_process_resumes_a_session_that_waits(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, APPROVED_TOOLS, "write_file")
    run_cli(folder, "run", "--session", "mine", "write", script=[WRITE])

    with terminal(folder, "resume", "mine", script=["No more actions.", "Done."]) as resume:
        resume.expect("Approve this call")
        resume.send("y\r")
        resume.expect("Done\\.")
        status = leave(resume)

    assert status == 0


def test_the_history_of_inputs_is_kept_for_the_next_conversation(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, GATED_TOOLS)
    for answer, keys in (("One.", "first\r"), ("Two.", "\x1b[A\x1b[A\r")):
        with terminal(folder, "chat", script=["No more actions.", answer]) as chat:
            chat.expect("> ")
            chat.send(keys)
            chat.expect(answer)
            chat.send("/quit\r")
            leave(chat)

    history = folder / "state" / "graph-agent" / "history"
    assert (history.stat().st_mode & 0o777, history.read_text().count("+first")) == (0o600, 2)
