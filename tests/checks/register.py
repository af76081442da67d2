"""Count words of everyday speech in docstrings and comments, and fail above the bound; refuse them in names.

Docstrings and comments are read at speed, so they use the verbs of the field with the thing as subject or object.
`python tests/checks/register.py [FOLDER ...]` prints the rate per 1,000 words and the files with the most; without a
folder it checks the package's own code and its tests. No function, class, argument, variable or attribute may have
such a word in its name.

No docstring or comment may contain a formula in place of a sentence (`FORMULA`). The headline of a module of the
package begins with a verb whose subject is the module, such as "Parses calls".
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
OWN = ("graph_agent", "nodes", "tests", "benchmarks", "deploy", "examples", "scripts")
BOUND = 0.1
"""Occurrences per 1,000 words at most."""
MOST_LISTED = 15

SPEECH = (
    "say|says|said|saying|tell|tells|told|telling|hear|hears|heard|hearing|speak|speaks|spoke|spoken|speaking"
    "|whoever|nobody|somebody|beside|besides"
)
DIALECT = re.compile(
    rf"""\b(?:
        {SPEECH}
        |what\ (?:is|was|are|were|has\ been|have\ been|had\ been)\ (?:\w+\ )?\w+ed
    )\b""",
    re.VERBOSE | re.IGNORECASE,
)
FORMULA = re.compile(
    r"""\b(?:none|empty|absent)\ for\ none\b|\bin\ force\b|^As\ `|(?:^|:\ )As\ (?:for|in)\ (?:an?\ )?`""",
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
PACKAGE = ("graph_agent", "nodes")
HEADLINE = re.compile(r"[A-Z][a-z]+s (?!(?:of|that|which|whose|from|in|on|at|by|with|for|to|over|behind)\b)")
"""A third-person verb and its object; a plural noun is followed by one of these words, or by a mark."""
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
IN_NAME = re.compile(rf"(?:^|_)(?:{SPEECH})(?:_|$)", re.IGNORECASE)
KEPT = {"says"}
"""Names that are not refused: the helper of the tests for an input."""


def prose(source: str) -> Iterator[str]:
    """Yield every docstring (attribute docstrings included) and every comment of a module."""
    for node in ast.walk(ast.parse(source)):
        for statement in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            value = getattr(statement, "value", None)
            if isinstance(statement, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def count(path: Path) -> tuple[int, Counter[str]]:
    """Count the words of a module's prose, and the dialect's words among them."""
    words, found = 0, Counter[str]()
    for text in prose(path.read_text(encoding="utf-8")):
        words += len(WORD.findall(text))
        found.update(" ".join(match.lower().split()) for match in DIALECT.findall(text))
    return words, found


def names(path: Path) -> Iterator[str]:
    """Yield each name with a word of everyday speech that a module defines, with its path and line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                pass
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                pass
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                pass
            case ast.MatchMapping(rest=str(name)) | ast.alias(asname=str(name)):
                pass
            case _:
                continue
        if IN_NAME.search(name) and name not in KEPT:
            yield f"{path}:{node.lineno}: {name}"


def formulas(path: Path) -> Iterator[str]:
    """Yield each formula of a module, and its headline if that begins with no verb."""
    source = path.read_text(encoding="utf-8")
    for text in prose(source):
        yield from (f"{path}: {match.group()!r} is not a sentence" for match in FORMULA.finditer(text))
    if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in PACKAGE:
        headline = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
        if not HEADLINE.match(headline):
            yield f"{path}: the headline begins with no verb: {headline}"


def main(folders: list[str]) -> None:
    """Print the counts; exit with status 1 above the bound, or for a name, a formula or a headline."""
    roots = [Path(folder) for folder in folders] or [ROOT / name for name in OWN]
    counts = {path: count(path) for root in roots for path in sorted(root.rglob("*.py")) if not path.is_symlink()}
    words = sum(number for number, _ in counts.values())
    found: Counter[str] = sum((each for _, each in counts.values()), Counter())
    rate = 1000 * found.total() / max(words, 1)
    sys.stdout.write(
        f"{found.total()} of {words} words of docstrings and comments are everyday speech: {rate:.2f} per 1,000.\n"
    )
    if named := [each for path in counts for each in names(path)]:
        sys.exit("\n".join(["Names with a word of everyday speech:", *named]))
    if found_formulas := [each for path in counts for each in formulas(path)]:
        sys.exit("\n".join(["Write sentences, as CONTRIBUTING.md describes:", *found_formulas]))
    if rate <= BOUND:
        return
    worst = sorted(counts.items(), key=lambda item: -item[1][1].total())[:MOST_LISTED]
    lines = [f"  {each.total():4} {path}" for path, (_, each) in worst]
    frequent = ", ".join(f"{word} {number}" for word, number in found.most_common(12))
    sys.exit(
        "\n".join([*lines, f"Most frequent: {frequent}.", f"The bound is {BOUND:g} per 1,000; see CONTRIBUTING.md."])
    )


if __name__ == "__main__":
    main(sys.argv[1:])
