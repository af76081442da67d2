"""Fail when the package's rooms become more tangled: more rooms, floors or arrows, private names across rooms, names
with several meanings, or seams inside files.

A room is a folder of the package with a folder above it at most, such as `core/planning`; `base` is one room. An arrow
is a pair of rooms with an import from the first to the second, a floor a step of the longest chain of arrows. The
public paths at the root are not counted: they only export names. A name has several meanings if the top levels of two
modules define it differently and both are public by their spelling. A seam is a logger or a constant of a module below
its first class or function, unless its value needs one of these: it often shows that two ideas share a file. `-v` lists
the private names, the homonyms and the seams.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "graph_agent"
ROOMS = (
    *("agent_file", "base", "core", "devtools", "integrations", "interfaces"),
    *("models", "nodes", "session", "storage", "web"),
)
CEILINGS = {
    "rooms": 22,
    "floors": 12,
    "arrows": 83,
    "private names across rooms": 0,
    "names with several meanings": 0,
    "loggers below a definition": 0,
    "constants below a definition": 343,
}
"""Greatest numbers that are accepted, which only sink."""
OF_OTHERS = frozenset({"_agenerate", "_arun", "_astream", "_client", "_get_ls_params", "_replace", "_run"})
"""Private names that LangChain or the standard library defines, and classes of several rooms override."""

ONE_MEANING = frozenset({"logger", "main", "router"})
"""Names that mean the same in each module that defines them: its logger, its entry point, its routes."""
PUBLIC_TWICE = {
    "prune": "the command of `graph-agent`, and `graph_agent.persistence.prune`",
    "Reasoning": "a part of `Session.stream`, and the component of that name in the Responses API's schema",
    "replay": "the command of `graph-agent`, and `graph_agent.testing.replay`",
    "serve": "the command, `graph_agent.server.serve.serve`, and `graph_agent.engines.restate_worker.serve`",
    "steer": "the command of `graph-agent`, and `graph_agent.testing.steer`",
}
"""Names with several meanings that stay, with the reason."""
ROUTES = frozenset({"delete", "get", "patch", "post", "put", "websocket"})
"""Decorators of routes, whose functions' names are their operation ids, and so public."""


def room_of(module: str) -> str | None:
    """Return the room of a module or package; None for a public path at the root."""
    parts = module.split(".")[1:]
    if not parts or parts[0] not in ROOMS:
        return None
    folders = parts if (PACKAGE.joinpath(*parts)).is_dir() else parts[:-1]
    return "base" if parts[0] == "base" else "/".join(folders[:2])


def shape() -> tuple[int, int, int]:
    """Return the numbers of rooms, floors and arrows."""
    graph = grimp.build_graph("graph_agent", exclude_type_checking_imports=True, cache_dir=None)
    below: dict[str, set[str]] = {}
    for module in graph.modules:
        room = room_of(module)
        # A folder that holds only rooms is none: its `__init__` imports nothing.
        if room is None or (graph.find_children(module) and not graph.find_modules_directly_imported_by(module)):
            continue
        others = {room_of(each) for each in graph.find_modules_directly_imported_by(module)}
        below.setdefault(room, set()).update(each for each in others if each not in (None, room))

    @functools.cache
    def floors(room: str, above: frozenset[str] = frozenset()) -> int:
        lower = below.get(room, set()) - above
        return 1 + max((floors(each, above | {room}) for each in lower), default=0)

    return len(below), max(floors(room) for room in below), sum(map(len, below.values()))


def files() -> Iterator[tuple[Path, str]]:
    """Yield each file of a room, and its room."""
    for path in sorted([*PACKAGE.rglob("*.py"), *(ROOT / "nodes").glob("*.py")]):
        relative = path.relative_to(ROOT).with_suffix("")
        module = (
            ".".join(relative.parts)
            if relative.parts[0] == "graph_agent"
            else ".".join(("graph_agent", *relative.parts))
        )
        if (room := room_of(module.removesuffix(".__init__"))) is not None:
            yield path, room


def private(name: str) -> bool:
    """Whether a name is private: one underscore at its begin."""
    return name.startswith("_") and not name.startswith("__")


def private_names() -> Iterator[str]:
    """Yield each place that reads a private attribute, or imports a private name, that only other rooms define."""
    defined: dict[str, set[str]] = {}
    trees = [(path, room, ast.parse(path.read_text(encoding="utf-8"))) for path, room in files()]
    for _, room, tree in trees:
        for node in ast.walk(tree):
            names: list[str] = []
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    names = [name]
                case ast.Attribute(ctx=ast.Store(), attr=name) | ast.Name(ctx=ast.Store(), id=name):
                    names = [name]
            for name in filter(private, names):
                defined.setdefault(name, set()).add(room)
    for path, room, tree in trees:
        if path.is_relative_to(PACKAGE / "base" / "_compat"):
            continue  # the one place of private names of other packages
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(value=ast.Name(id="self" | "cls")):
                    continue
                case ast.Attribute(attr=name, ctx=ast.Load()) if private(name):
                    found = [name]
                case ast.ImportFrom(module=str(module), names=aliases) if module.startswith("graph_agent"):
                    found = [each.name for each in aliases if private(each.name)]
                case _:
                    continue
            for name in found:
                if name in defined.keys() - OF_OTHERS and room not in defined[name]:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: {name} of {', '.join(sorted(defined[name]))}"


def definitions(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the public names that a module's top level defines, each with its definition as text.

    Left out are type variables, which are local, and functions whose name is a route's operation id.
    """
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                called = {each.func for each in node.decorator_list if isinstance(each, ast.Call)}
                if not any(isinstance(each, ast.Attribute) and each.attr in ROUTES for each in called):
                    yield name, ast.dump(node)
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                if not (isinstance(value, ast.Call) and "TypeVar" in ast.dump(value.func)):
                    yield name, ast.dump(value)


def homonyms() -> Iterator[str]:
    """Yield each public name that two modules define differently, with these modules."""
    found: dict[str, dict[str, Path]] = {}
    for path, _ in files():
        for name, definition in dict(definitions(ast.parse(path.read_text(encoding="utf-8")))).items():
            if not name.startswith("_") and name not in ONE_MEANING and name not in PUBLIC_TWICE:
                found.setdefault(name, {})[definition] = path.relative_to(ROOT)
    for name, places in found.items():
        if len(places) > 1:
            yield f"{name}: {', '.join(map(str, places.values()))}"


def seams() -> Iterator[tuple[str, str]]:
    """Yield the names and the place of each logger and constant below a definition that its value does not need."""
    for path, _ in files():
        above: set[str] = set()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    above.add(name)
                case ast.Assign() | ast.AnnAssign() if above:
                    names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
                    stored = {each.id for each in names if isinstance(each.ctx, ast.Store)}
                    if above.intersection(each.id for each in names):
                        above |= stored
                    elif "__all__" not in stored:
                        yield ", ".join(sorted(stored)), f"{path.relative_to(ROOT)}:{node.lineno}"


def main() -> None:
    """Print each number; exit with status 1 if one is above its ceiling."""
    found, twice, below = [*private_names()], [*homonyms()], [*seams()]
    if "-v" in sys.argv[1:]:
        sys.stdout.write("".join(f"{place}\n" for place in (*found, *twice, *map(": ".join, below))))
    loggers = [name for name, _ in below].count("logger")
    numbers = dict(zip(CEILINGS, (*shape(), len(found), len(twice), loggers, len(below) - loggers), strict=True))
    sys.stdout.write(", ".join(f"{number} {name}" for name, number in numbers.items()) + "\n")
    if worse := [name for name, number in numbers.items() if number > CEILINGS[name]]:
        sys.exit(f"More {' and '.join(worse)} than before, at most {[CEILINGS[name] for name in worse]} may be.")


if __name__ == "__main__":
    main()
