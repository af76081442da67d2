"""Records the files that this process's agents are loaded from, so that their tools can refuse to change them.

The code that reads such a file records it. Imported modules are found without a record.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import threading
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

_SQLITE_SUFFIXES = ("-journal", "-shm", "-wal")
_DATABASE_SUFFIXES = ("", *_SQLITE_SUFFIXES, ".sessions-lock")
_MODULE_SUFFIXES = (".py", ".pyc", ".pyd", ".so")

_DATABASE = "the database of this agent"

_given: dict[str, tuple[str, bool]] = {}
"""Path as recorded → what it is, and whether it counts only if it is a file. Made real later, because that blocks."""
_resolved: dict[str, str] = {}
"""Real path of a recorded file or folder → what it is."""
_resolving = threading.Lock()
_import_folders: set[str] = set()
"""Real paths of the folders that Python searches before its usual import path."""


def record_file(path: str | Path, what: str, *, only_file: bool = False) -> None:
    """Record a file or folder of the agents, which may not exist yet. Does not access the disk.

    Args:
        what: What it is, as the end of the sentence "it is …".
        only_file: Whether it counts only if it is a file when it is first looked up.
    """
    _given[str(path)] = what, only_file


def _recorded() -> dict[str, str]:
    """Return real path → what it is, for all recorded files. Files recorded since the last call are resolved first;
    one recorded with `only_file` that is no file at that time is dropped for good."""
    # Calls of a wave look files up in several threads: none may see a file that another one is resolving as foreign.
    with _resolving:
        while _given:
            path, (what, only_file) = _given.popitem()
            if not only_file or os.path.isfile(path):
                _resolved[os.path.realpath(path)] = what
        return {**_resolved}


def record_database(path: str | Path) -> None:
    """Record an SQLite file of the agents, and the files that SQLite and the session locks create next to it."""
    for suffix in _DATABASE_SUFFIXES:
        record_file(f"{path}{suffix}", _DATABASE)


def record_import_folder(path: str | Path) -> None:
    """Record a folder that Python searches before the import path, where a new file may replace a module."""
    _import_folders.add(os.path.realpath(path))


def describe_file(path: str) -> str | None:
    """Return what a file is to the agents of this process, as the end of the sentence "it is …"; None for other files.

    A file below a recorded folder is what the folder is. Upper and lower case are not distinguished.

    Args:
        path: The real path; the file may not exist.
    """
    folded = path.casefold()  # some file systems do not distinguish case
    for own, what in [*_recorded().items(), *_environment().items()]:
        if f"{folded}/".startswith(f"{own}/".casefold()):
            return what
    is_module = _is_module(folded, {each.casefold() for each in _module_files()}) or _replaces_module(path)
    return "a module that this process imports" if is_module else None


def files_below(root: str) -> list[str]:
    """Return the real paths of the agents' files and folders below a folder, sorted; some of them may not exist.

    Includes imported modules, folders of compiled modules, and files that the next import would load instead of a
    module. `root` is the real path of the folder.
    """
    found = {path for path in [*_recorded(), *_environment(), *_module_files()] if path.startswith(f"{root}/")}
    found |= replacements_below(root)
    # Compiled modules are loaded in the place of their source.
    found |= {os.path.join(os.path.dirname(path), "__pycache__") for path in found if path.endswith(".py")}
    return sorted(found)


def is_of_database(path: str) -> bool:
    """Whether a path returned by `files_below` was recorded by `record_database`.

    That is a database, or a file that SQLite or the locks create next to one, whatever its suffix.
    """
    return _recorded().get(path) == _DATABASE


def make_placeholders(paths: Iterable[str]) -> None:
    """Create, as empty files, the missing ones of SQLite's files next to a database, and folders for compiled modules.

    A missing file cannot be made read-only, and SQLite would apply changes in one that a command creates. SQLite treats
    an empty file as missing. Errors are ignored.

    Args:
        paths: Paths returned by `files_below`; other files are not created.
    """
    for path in paths:
        with suppress(OSError):
            if path.endswith("/__pycache__"):
                os.mkdir(path)
            for suffix in _SQLITE_SUFFIXES:
                if path.endswith(suffix) and os.path.isfile(path.removesuffix(suffix)):
                    os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))


def replacements_below(root: str) -> set[str]:
    """Return the files below a folder that the next import would load in place of a module that is imported already.

    Only folders for imports, and their direct subfolders, are searched.
    """
    found = set[str]()
    for folder in _import_folders:
        if not f"{folder}/".startswith(f"{root}/"):
            continue
        for entry in _entries(folder):
            inner = _entries(entry.path) if entry.is_dir() else []
            found |= {each.path for each in (entry, *inner) if _replaces_module(each.path)}
    return found


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """Return the entries of a folder; empty if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


@functools.cache
def _environment() -> dict[str, str]:
    """Return the folders of the Python environment, which may lie inside a workspace: real path → what it is."""
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")]
    return dict.fromkeys(
        map(os.path.realpath, [*folders, f"{sys.prefix}/pyvenv.cfg"]), "this agent's Python environment"
    )


def _module_files() -> set[str]:
    """Return the real paths of the source files of all modules that are imported now."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {_real(file) for file in files if isinstance(file, str)}


@functools.cache
def _real(path: str) -> str:
    return os.path.realpath(path)


def _is_module(path: str, modules: Collection[str]) -> bool:
    """Whether a file is one of `modules`, which are paths of source files, or the compiled form of one."""
    folder, name = os.path.split(path)
    if os.path.basename(folder) == "__pycache__":
        path = os.path.join(os.path.dirname(folder), f"{name.partition('.')[0]}.py")
    return path in modules


def _replaces_module(path: str) -> bool:
    """Whether the next import may load this file in place of a module that is loaded now.

    That is so for a file in a folder of `record_import_folder`, with the name of a loaded module or of its package.
    """
    folder, name = os.path.split(path)
    if not name.endswith(_MODULE_SUFFIXES):
        return False
    module = name.partition(".")[0]
    if module == "__init__":
        folder, module = os.path.split(folder)
    return folder in _import_folders and module in sys.modules
