"""Locks sessions of an SQLite database in a lock file, with one byte per session.

A session is one LangGraph thread. Windows has no such locks.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from graph_agent.base.database_urls import check_names
from graph_agent.base.errors import SessionLockError

if sys.platform != "win32":
    import fcntl

SUFFIX = ".sessions-lock"
"""Suffix that the name of a database gets for its lock file."""

HAS_LOCKS = sys.platform != "win32"
"""Whether the system has record locks."""
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of `link` on a file system without hard links."""

_FIXES: dict[int, str] = {
    errno.EMFILE: "This process has no file descriptor left; raise its limit (ulimit -n).",
    errno.ENFILE: "The system has no file descriptor left; raise its limit (fs.file-max).",
    errno.EACCES: "Give this user read and write access to the file, as to the database, e.g. with chmod g+rw.",
    errno.EPERM: "Give this user read and write access to the file, as to the database, e.g. with chmod g+rw.",
    errno.EROFS: "A run writes to its database; keep it where this process may write.",
    errno.ENOSPC: "Free some space on the disk.",
    errno.EDQUOT: "Free some space within the user's quota.",
}
"""Number of a system error → what the user can do."""
_WITHOUT_LOCKS = (
    "The file system has no record locks, or its lock service does not answer, and without them two processes could "
    "run one session. Keep the database on a local disk, turn the locks of the file system on, or use PostgreSQL."
)
_FIXES |= dict.fromkeys((errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS), _WITHOUT_LOCKS)


class LockFile:
    """An open lock file: each session is one byte of it, by a hash of its id. Two ids may share a byte.

    The system drops all locks of a process on a file when the process closes any descriptor of the file, so a process
    must have one object per file at a time. Not thread-safe. `descriptor` is the open file at `path`.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self.locked: set[str] = set()
        """Ids of the sessions whose bytes this process has locked."""

    @classmethod
    def open(cls, database: Path) -> LockFile:
        """Open the lock file of a database; create it with the database's mode and group if it is missing.

        For a database that does not exist yet, only the user may read and write the new file. An empty lock file of
        this user gets the mode and group, too. Raises `ConfigError` if the database has hard links, and
        `SessionLockError` if the lock file cannot be opened or is a symbolic link.
        """
        path = _lock_path(database)
        check_names(database)
        try:
            try:
                source = os.stat(database)
            except FileNotFoundError:
                source = None
            mode = stat.S_IMODE(source.st_mode) & 0o666 if source is not None else 0o600
            if source is not None:
                _create(path, source, mode)
            # No symbolic link: its target would get the database's mode.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
            if source is not None:
                _give_access(descriptor, source, mode)
        except OSError as error:
            _refuse(path, "opened", error)
        return cls(path, descriptor)

    @classmethod
    def open_read_only(cls, database: Path) -> LockFile | None:
        """Open the lock file of a database to inspect its locks; None if there is no file, and so no lock.

        Raises `SessionLockError` if it exists and cannot be opened.
        """
        path = _lock_path(database)
        try:
            return cls(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
        except FileNotFoundError:
            return None
        except OSError as error:
            _refuse(path, "opened", error)

    @property
    def is_current(self) -> bool:
        """Whether the path still refers to this open file: other processes do not see locks on a file that was
        removed.
        """
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(self._path))
        except FileNotFoundError:
            return False

    def lock(self, session_id: str) -> bool:
        """Lock the byte of a session; return False if another process has locked it. Does not wait.

        Raises `SessionLockError` if the system call fails for another reason.
        """
        if not self._set(fcntl.LOCK_EX | fcntl.LOCK_NB, session_id):
            return False
        self.locked.add(session_id)
        return True

    def is_free(self, session_id: str) -> bool:
        """Whether no other process has locked the byte of a session, which this process must not have locked.

        Holds the byte for a moment. Raises `SessionLockError` if the system call fails.
        """
        if not self._set(fcntl.LOCK_SH | fcntl.LOCK_NB, session_id):
            return False
        self._set(fcntl.LOCK_UN, session_id)
        return True

    def unlock(self, session_id: str) -> None:
        """Unlock the byte of a session; nothing happens if this object has not locked it.

        Raises `SessionLockError` if the system call fails.
        """
        if session_id in self.locked:
            self.locked.discard(session_id)
            self._set(fcntl.LOCK_UN, session_id)

    def close(self) -> None:
        """Close the file, which releases every lock of this process on it."""
        os.close(self._descriptor)

    def _set(self, operation: int, session_id: str) -> bool:
        """Apply a lock operation of `fcntl` to the byte of a session; return False if another process has a lock, else
        True.

        Raises `SessionLockError` for another error of the system call.
        """
        digest = hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).digest()
        try:
            fcntl.lockf(self._descriptor, operation, 1, int.from_bytes(digest[:8], "big") >> 2)
        except (BlockingIOError, PermissionError):
            return False  # POSIX allows either error for a lock of another process
        except OSError as error:
            _refuse(self._path, "locked", error)
        return True


def create_if_missing(database: Path) -> None:
    """Create the lock file of a database, with its mode and group; do nothing if it exists, cannot be created, or the
    database is missing.
    """
    # A failure shows again when the file is opened, and is reported there.
    with suppress(OSError):
        found = os.stat(database)
        _create(_lock_path(database), found, stat.S_IMODE(found.st_mode) & 0o666)


def is_missing(database: Path) -> bool:
    """Whether a database has no lock file yet; False if the system has no record locks."""
    return HAS_LOCKS and not os.path.lexists(_lock_path(database))


def _lock_path(database: Path) -> Path:
    """Return the path of the lock file of a database."""
    return database.with_name(database.name + SUFFIX)


def _create(path: Path, database: os.stat_result, mode: int) -> None:
    """Create a missing lock file with its mode and group in one step; does nothing if it exists, or on a file system
    without hard links.

    Raises `OSError` if the file cannot be created for another reason.

    Args:
        path: Path of the lock file.
        database: The status of the database file.
        mode: The file's mode.
    """
    if os.path.lexists(path):
        return
    # Another user may open the file as soon as it exists, and the umask limits the mode of a new file. So the mode is
    # set under another name, from which the file is linked.
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            _give_access(descriptor, database, mode)
        finally:
            # Before the link: to close it later would release locks that this process takes under the other name.
            os.close(descriptor)
        os.link(draft, path)
    except OSError as error:
        # Another process may have created the file meanwhile.
        if error.errno not in (errno.EEXIST, *_NO_LINKS):
            raise
    finally:
        draft.unlink()


def _give_access(descriptor: int, database: os.stat_result, mode: int) -> None:
    """Give an empty lock file of this user the group and mode of the database, so that all its users can lock sessions.

    Other files are left as they are, such as one of another user or with a second name.
    """
    found = os.fstat(descriptor)
    user = os.geteuid()
    if not stat.S_ISREG(found.st_mode) or found.st_size or found.st_nlink != 1 or found.st_uid != user:
        return
    if found.st_gid != database.st_gid or (user == 0 and database.st_uid != 0):
        # Not permitted to a user outside the database's group; the mode is set all the same.
        with suppress(PermissionError):
            os.fchown(descriptor, database.st_uid if user == 0 else -1, database.st_gid)
    if stat.S_IMODE(found.st_mode) != mode:
        os.fchmod(descriptor, mode)


def _refuse(path: Path, action: str, error: OSError) -> NoReturn:
    """Raise `SessionLockError` for a failed `action` on a lock file, such as `opened`, with what the user can do."""
    number = error.errno or 0
    name = errno.errorcode.get(number, str(number))
    fix = _FIXES.get(number, "See the system's log.")
    raise SessionLockError(
        f"The lock file {path} could not be {action}: {os.strerror(number)} ({name}). {fix} No run was started."
    ) from error
