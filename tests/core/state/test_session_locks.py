"""Session locks of SQLite files: errors if they cannot be acquired, and access for all users of the database."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.core.state.locks import SessionLocks
from graph_agent.core.state.registry import is_idle
from graph_agent.errors import SessionLockError
from graph_agent.persistence import open_saver

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes two other users, which only root may")


def lock_file(database: Path) -> Path:
    return database.with_name(database.name + ".sessions-lock")


def raising(number: int) -> Any:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.EIO, errno.EDEADLK])
def test_a_lock_that_the_system_cannot_give_is_an_error(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks, place = SessionLocks(), tmp_path / "s.db"
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(fcntl, "lockf", raising(number))

    with pytest.raises(SessionLockError, match=errno.errorcode[number]):
        locks.take(place, "s1")
    monkeypatch.undo()

    assert (locks.take(place, "s1").result(), len(os.listdir("/proc/self/fd")) - before) == (True, 1)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EIO])
async def test_no_run_begins_where_the_lock_file_cannot_be_opened(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ScriptedChatModel(["One."])
    async with open_saver(f"sqlite:///{tmp_path}/s.db") as saver:
        graph = create_graph_agent(model, checkpointer=saver)
        monkeypatch.setattr(os, "open", raising(number))
        with pytest.raises(SessionLockError, match=errno.errorcode[number]):
            await Session(graph, "s1").run("hi")
        asked = len(model.requests)
        monkeypatch.undo()

        assert (asked, (await Session(graph, "s1").run("hi")).answer) == (0, "One.")


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 40, hard))
    taken: list[int] = []
    try:
        while True:
            try:
                taken.append(os.dup(0))
            except OSError:
                break
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_without_file_descriptors_takes_no_session(tmp_path: Path) -> None:
    locks, place = SessionLocks(), tmp_path / "s.db"

    with no_descriptor_left(), pytest.raises(SessionLockError, match=r"EMFILE.*ulimit -n"):
        locks.take(place, "s1")

    assert locks.take(place, "s1").result()


async def test_a_session_without_a_lock_file_is_idle(tmp_path: Path) -> None:
    async with open_saver(f"sqlite:///{tmp_path}/s.db") as saver:
        await saver.aget_tuple({"configurable": {"thread_id": "s1"}})

        assert (await is_idle(saver, "s1"), lock_file(tmp_path / "s.db").exists()) == (True, False)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o660, 0o666])
def test_the_lock_file_has_the_mode_of_the_database(mode: int, tmp_path: Path) -> None:
    place = tmp_path / "s.db"
    place.touch()
    place.chmod(mode)
    umask = os.umask(0o077)
    try:
        SessionLocks().take(place, "s1")
    finally:
        os.umask(umask)

    assert stat.S_IMODE(lock_file(place).stat().st_mode) == mode


def test_a_new_lock_file_appears_with_its_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, seen = tmp_path / "s.db", list[int | None]()
    place.touch()
    place.chmod(0o660)
    fchmod = os.fchmod

    def observed(descriptor: int, mode: int) -> None:
        path = lock_file(place)
        seen.append(stat.S_IMODE(path.stat().st_mode) if path.exists() else None)
        fchmod(descriptor, mode)

    monkeypatch.setattr(os, "fchmod", observed)
    umask = os.umask(0o022)
    try:
        SessionLocks().take(place, "s1")
    finally:
        os.umask(umask)

    mode = stat.S_IMODE(lock_file(place).stat().st_mode)
    assert (seen, mode, sorted(file.name for file in tmp_path.iterdir())) == (
        [None],
        0o660,
        [place.name, lock_file(place).name],
    )


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_links_has_lock_files(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "s.db"
    place.touch()
    monkeypatch.setattr(os, "link", raising(number))

    taken = SessionLocks().take(place, "s1").result()

    assert (taken, sorted(file.name for file in tmp_path.iterdir())) == (True, [place.name, lock_file(place).name])


def test_an_older_lock_file_is_given_the_mode_of_the_database(tmp_path: Path) -> None:
    place = tmp_path / "s.db"
    place.touch()
    place.chmod(0o660)
    lock_file(place).touch(0o600)

    SessionLocks().take(place, "s1")

    assert stat.S_IMODE(lock_file(place).stat().st_mode) == 0o660


@pytest.mark.parametrize("kind", ["symbolic link", "hard link"])
def test_a_link_in_place_of_the_lock_file_opens_no_other_file(kind: str, tmp_path: Path) -> None:
    place, other = tmp_path / "s.db", tmp_path / "secret"
    place.touch()
    place.chmod(0o666)
    other.write_text("")
    other.chmod(0o600)
    (lock_file(place).symlink_to if kind == "symbolic link" else lock_file(place).hardlink_to)(other)

    if kind == "symbolic link":
        with pytest.raises(SessionLockError, match="ELOOP"):
            SessionLocks().take(place, "s1")
    else:
        SessionLocks().take(place, "s1")

    assert stat.S_IMODE(other.stat().st_mode) == 0o600


_TAKE = """
import json, os, sys
from pathlib import Path
from graph_agent.errors import SessionLockError
from graph_agent.core.state.locks import SessionLocks
user, group, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
os.umask(0o022)
# Only now: the interpreter's own files may be out of the other user's reach.
os.setgroups([group]), os.setgid(user), os.setuid(user)
locks = SessionLocks()
try:
    taken = locks.take(Path(place), "s1").result()
except SessionLockError as error:
    taken = str(error)
print(json.dumps(taken), flush=True)
sys.stdin.readline()
"""


def taking(user: int, group: int, place: Path) -> subprocess.Popen[str]:
    """A process of a user that takes the session and keeps it until its standard input ends."""
    return subprocess.Popen(
        [sys.executable, "-c", _TAKE, str(user), str(group), str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "PYTHONDONTWRITEBYTECODE": "1"},
    )


def outcome_of(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


@pytest.fixture
def shared() -> Iterator[Path]:
    """A database of user 3001 that the group 4000 may write, in a folder open to all users.

    The folder is outside of pytest's own, which each start of pytest closes to other users.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chown(folder, -1, 4000)
        folder.chmod(0o2775)
        place = folder / "s.db"
        place.touch()
        os.chown(place, 3001, 4000)
        place.chmod(0o660)
        yield place


@as_root
@pytest.mark.parametrize("first", [3001, 0])
def test_two_users_of_a_group_do_not_run_one_session(first: int, shared: Path) -> None:
    with taking(first, 4000, shared) as holder:
        held = outcome_of(holder)
        with taking(3002, 4000, shared) as other:
            refused = outcome_of(other)
            other.communicate()
        holder.communicate()
    with taking(3002, 4000, shared) as later:
        after = outcome_of(later)
        later.communicate()

    assert (held, refused, after) == (True, False, True)


@as_root
def test_a_lock_file_of_another_user_that_cannot_be_opened_is_an_error(shared: Path) -> None:
    lock_file(shared).touch(0o600)
    os.chown(lock_file(shared), 3001, 4000)

    with taking(3002, 4000, shared) as other:
        refused = outcome_of(other)
        other.communicate()

    assert refused == (
        f"The lock file {lock_file(shared)} could not be opened: Permission denied (EACCES). Give this user read and "
        "write access to the file, as to the database, e.g. with chmod g+rw. No run was started."
    )


def test_a_lock_file_that_is_removed_guards_again_from_the_next_run_on(tmp_path: Path) -> None:
    lost: list[tuple[str, str]] = []
    locks, other = SessionLocks(lambda place, session_id, why: lost.append((session_id, why))), SessionLocks()
    place = tmp_path / "s.db"
    held = [locks.take(place, session_id).result() for session_id in ("s1", "s2")]
    lock_file(place).unlink()
    # Locks of one process do not conflict: another process has to hold one.
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as thief:
        assert thief.stdout is not None
        stolen = thief.stdout.readline().strip()
        held.append(locks.take(place, "s3").result())
        thief.communicate()

    assert (held, stolen, [session_id for session_id, _ in lost], other.is_free(place, "s9").result()) == (
        [True] * 3,
        "True",
        ["s2"],
        True,
    )


_HOLD = """
import sys
from pathlib import Path
from graph_agent.core.state.locks import SessionLocks
locks = SessionLocks()
print(locks.take(Path(sys.argv[1]), "s2").result(), flush=True)
sys.stdin.readline()
"""
