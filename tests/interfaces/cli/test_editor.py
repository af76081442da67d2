"""The line editor, with keys from a pipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from graph_agent.interfaces.cli.editor import LineEditor, history_path, open_history


async def read(keys: str, *, default: str = "", on_interrupt: Callable[[str], bool] | None = None) -> str:
    with create_pipe_input() as pipe:
        pipe.send_text(keys)
        editor = LineEditor(on_interrupt=on_interrupt, read_from=pipe, write_to=DummyOutput())
        return await editor.read("> ", default=default)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("hello\r", "hello"),
        ("hello\n", "hello"),
        ("one\x1b\rtwo\r", "one\ntwo"),
        ("one\\\rtwo\r", "one\ntwo"),
        ("\x1b[200~one\ntwo\x1b[201~\r", "one\ntwo"),
    ],
    ids=["enter", "line feed", "Alt-Enter", "backslash", "paste"],
)
async def test_keys_make_one_input(keys: str, text: str) -> None:
    assert await read(keys) == text


async def test_the_default_is_editable() -> None:
    assert await read("\x7f!\r", default="hello?") == "hello!"


async def test_ctrl_c_is_reported_with_the_typed_text_and_clears_it_if_wanted() -> None:
    seen: list[str] = []

    def clear_first(typed: str) -> bool:
        seen.append(typed)
        return len(seen) == 1

    text = await read("one\x03two\x03!\r", on_interrupt=clear_first)

    assert (seen, text) == (["one", "two"], "two!")


@pytest.mark.parametrize(("keys", "error"), [("\x04", EOFError), ("x\x03", KeyboardInterrupt)])
async def test_ctrl_d_and_ctrl_c_end_the_input(keys: str, error: type[BaseException]) -> None:
    with pytest.raises(error):
        await read(keys)


@pytest.mark.parametrize(
    ("variables", "path"),
    [
        ({"XDG_STATE_HOME": "/state"}, "/state/graph-agent/history"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/home/ada"}, "/home/ada/.local/state/graph-agent/history"),
        ({"GRAPH_AGENT_HISTORY": "/elsewhere"}, "/elsewhere"),
        ({"GRAPH_AGENT_HISTORY": ""}, None),
    ],
)
def test_the_history_is_in_the_state_folder(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], path: str | None
) -> None:
    for name in ("XDG_STATE_HOME", "GRAPH_AGENT_HISTORY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    found = history_path()

    assert (str(found) if found else None) == path


def test_a_history_that_cannot_be_written_is_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GRAPH_AGENT_HISTORY", str(tmp_path / "new" / "history"))
    written = open_history()
    monkeypatch.setenv("GRAPH_AGENT_HISTORY", str(tmp_path / "file" / "history"))
    refused = open_history()

    assert (type(written), type(refused)) == (FileHistory, InMemoryHistory)
    assert (tmp_path / "new" / "history").stat().st_mode & 0o777 == 0o600
