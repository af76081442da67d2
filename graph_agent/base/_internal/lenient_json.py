"""Parses JSON values: strictly, else tolerantly in linear time where nothing is guessed, else by json_repair.

The tolerant parser accepts trailing and missing commas, single quotes, bare keys, comments, Python's literals, invalid
escapes, brackets closed out of order, and truncated text. json_repair accepts more but takes quadratic time on some
texts (half a second for 4,000 characters), which rules it out for the content of a file in an argument.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

from graph_agent.base.types import MAX_DEPTH

REPAIR_SQUARE = 4_000**2
"""Budget of json_repair for one text: the sum of the squares of the lengths that it may repair.

Its worst inputs take quadratic time.
"""
# Even a short text takes json_repair a tenth of a millisecond.
_REPAIR_START = 200


class WorkBudget:
    """A budget in steps, each about half a microsecond, that bounds the work of parsing one text.

    Repairs by json_repair have a budget of their own.
    """

    def __init__(self, size: int) -> None:
        """Allow `size` steps for a text of that many characters, several times what calls need, plus 200,000.

        The budget of json_repair is the same for every text.
        """
        self.limit = size + 200_000
        self.spent = 0
        self.repair_left = REPAIR_SQUARE

    @property
    def left(self) -> int:
        """Number of remaining steps; 0 if the budget is used up."""
        return max(0, self.limit - self.spent)

    def take(self, steps: int) -> bool:
        """Spend `steps` and return True; return False, and spend nothing, if fewer remain."""
        if steps > self.limit - self.spent:
            return False
        self.spent += steps
        return True

    def take_repair(self, length: int) -> bool:
        """Spend the cost of repairing `length` characters by json_repair and return True.

        Returns False, and spends nothing, if too little remains.
        """
        cost = (length + _REPAIR_START) ** 2
        if cost > self.repair_left:
            return False
        self.repair_left -= cost
        return True


_TOKEN = re.compile(
    r"""
    [\s,;]*+
    (?: (?P<open>[{\[])
    | (?P<string>"[^"\\]*+(?>(?:\\.[^"\\]*+)*)(?:"|(?P<cut>\\?\Z))
        | '(?>(?:[^'\\]++|\\.|'(?!\s*+(?:[,:}\])]|\Z)))*)(?:'|(?P<cut_single>\\?\Z)))
    | (?P<colon>:)
    | (?P<word>[\w.+$-]++)
    | (?P<close>[}\]])
    | (?P<comment>//[^\n]*+ | \#[^\n]*+ | /\*[^*]*+(?>(?:\*(?!/)[^*]*+)*)(?:\*/)?)
    | (?P<end>\Z) )
    """,
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|(.?))|"', re.DOTALL)
_CUT_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u[0-9a-fA-F]{0,3})?\Z")
_LITERALS: dict[str, Any] = {
    "true": True,
    "false": False,
    "null": None,
    "True": True,
    "False": False,
    "None": None,
    "undefined": None,
    # JSON cannot hold these. They are kept, so that the caller can refuse the call.
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}
_ABSENT: Any = object()


class ParsedValue(NamedTuple):
    """A value parsed from a text."""

    value: Any
    complete: bool
    """False if the text ended before the object or list was closed, or the value was guessed."""
    certain: bool = True
    """False if the value was guessed by a repair, so that the text may not be JSON at all."""
    partial: bool = False
    """True if the text ended inside a string, number or word, or where a value had to follow.

    Then the last value may lack its end.
    """


class _Container:
    """An object or list that is being parsed; of an object, also the key whose value is expected next."""

    def __init__(self, *, is_object: bool) -> None:
        self.is_object = is_object
        self.items: Any = {} if is_object else []
        self.key: Any = _ABSENT
        self.colon = False

    @property
    def wants_key(self) -> bool:
        """Whether the next text is a key."""
        return self.is_object and self.key is _ABSENT

    def add(self, value: Any) -> bool:
        """Add a value, or a key where one is expected; return False if it is invalid there.

        Invalid are a key that is no text, which stays as the key, and a value of an object without a colon before it.
        """
        if not self.is_object:
            self.items.append(value)
            return True
        if self.key is _ABSENT:
            self.key = value
            return isinstance(value, str)
        if not self.colon:
            return False
        self.items[self.key] = value
        self.key, self.colon = _ABSENT, False
        return True


def read_tolerant(text: str, work: WorkBudget) -> ParsedValue | None:
    """Parse the object or list at the start of `text`, tolerating damage that can be read in one way only.

    Parsing spends a step for each token and each 16 characters. A string or number that is cut off is kept as far as it
    goes; a key without a value and a cut-off literal such as `tru` are dropped. A key may be an unquoted word, and
    commas may be missing or repeated. A closing bracket also closes what is open inside its object or list; one without
    an opening one is ignored, and so is text behind the last closing bracket.

    Returns:
        The value. None if the text does not begin with an object or list, if the damage would have to be guessed, if it
        is nested beyond `MAX_DEPTH` levels, or if the budget is used up.
    """
    opening = _TOKEN.match(text)
    if opening is None or opening.lastgroup != "open":
        return None
    root = _Container(is_object=opening["open"] == "{")
    stack = [root]
    objects = int(root.is_object)
    position = opening.end()
    if not work.take(len(text) // _CHARACTERS_A_STEP + _STEPS):
        return None
    partial = True
    while work.take(1) and (token := _TOKEN.match(text, position)) is not None:
        position = token.end()
        kind, top = token.lastgroup, stack[-1]
        if kind == "string" or kind == "word":
            value = token["word"] if kind == "word" and top.wants_key else _scalar(token, depth=len(stack))
            if value is _ABSENT and position == len(text):
                return ParsedValue(root.items, complete=False, partial=True)
            if value is _ABSENT or not top.add(value):
                return None
            partial = kind == "word" or token["cut"] is not None or token["cut_single"] is not None
        elif kind == "colon":
            if top.key is _ABSENT or top.colon:
                return None
            top.colon = partial = True
        elif kind == "open":
            inner = _Container(is_object=token["open"] == "{")
            if top.wants_key or len(stack) >= MAX_DEPTH or not top.add(inner.items):
                return None
            stack.append(inner)
            objects += inner.is_object
            partial = True
        elif kind == "close":
            partial = False
            is_object = token["close"] == "}"
            if (objects if is_object else len(stack) - objects) == 0:
                continue
            # A bracket also closes all open brackets inside it.
            while True:
                closed = stack.pop()
                objects -= closed.is_object
                if closed.is_object == is_object:
                    break
            if not stack:
                return ParsedValue(root.items, complete=True)
        elif kind == "end":
            # A comma ends a number or a word.
            partial = top.key is not _ABSENT or (partial and not token[0].strip())
            return ParsedValue(root.items, complete=False, partial=partial)
    return None


def _scalar(token: re.Match[str], *, depth: int) -> Any:
    """Return the value of a string or word in the text; `_ABSENT` for a word that is no literal and no number.

    A string without its closing quote loses an incomplete escape, and up to `depth` closing brackets, at its end;
    `depth` is the number of open brackets.
    """
    quoted, word = token["string"], token["word"]
    if quoted is not None:
        if token["cut"] is None and token["cut_single"] is None:
            return _string(quoted[1:-1])
        return _string(_CUT_ESCAPE.sub(r"\1", _without_closers(quoted[1:], depth)))
    if word in _LITERALS:
        return _LITERALS[word]
    number = _NUMBER.fullmatch(word)
    if number is None:
        return _ABSENT
    return float(word) if number[1] or number[2] else integer(word)


def _without_closers(body: str, depth: int) -> str:
    """Remove closing brackets at the end of a string whose closing quote is missing, at most `depth` of them.

    They belong to the `depth` open objects and lists.
    """
    for _ in range(depth):
        shorter = body.rstrip()
        if not shorter.endswith(("}", "]")):
            break
        body = shorter[:-1]
    return body


def _string(body: str) -> str:
    """Return the text of a string's content, with invalid escapes and bare quotes made valid before."""
    text: str = json.loads('"' + _ESCAPE.sub(_valid_escape, body) + '"', strict=False)
    return text


def _valid_escape(match: re.Match[str]) -> str:
    """Return a valid JSON escape for one that a model wrote, or for a bare quote.

    A valid escape is returned itself, `'` for an escaped single quote, and for any other escape an escaped backslash
    followed by the character.
    """
    if match[0] == '"':
        return '\\"'
    if match[1] is not None:
        return match[0]
    return match[2] if match[2] == "'" else "\\\\" + match[2]


def integer(digits: str) -> int | float:
    """Return an integer from its digits.

    One with too many digits for the interpreter becomes infinity, or minus infinity, as a float.
    """
    try:
        return int(digits)
    except ValueError:
        return -math.inf if digits.startswith("-") else math.inf


# NaN, Infinity and numbers beyond a float's range become non-finite floats, so that the caller can refuse them.
_DECODER = json.JSONDecoder(strict=False, parse_int=integer)
_MOST_GUESSING = 60_000  # openers times characters; the cost of a repair grows with both
_VALUE_ENDS = ("}", "]", '"', "'", "”", "’", ",", "`")
_STEPS, _CHARACTERS_A_STEP, _STEPS_OF_AN_ERROR = 8, 16, 16


def read_json(text: str, work: WorkBudget) -> ParsedValue | None:
    """Parse `text` as an object or list, even if it is damaged or cut off.

    Valid JSON is returned whatever its type; otherwise `read_tolerant` parses the text. Never raises. A number that
    JSON cannot hold becomes a non-finite float, so that the caller can refuse it. Spends steps of `work`.

    Returns:
        The value. None if the damage would have to be guessed, the text is nested beyond `MAX_DEPTH` levels, or the
        budget is used up.
    """
    if not work.take(len(text) // _CHARACTERS_A_STEP + _STEPS):
        return None
    try:
        return ParsedValue(_DECODER.decode(text), complete=True)
    except (ValueError, RecursionError):
        work.take(_STEPS_OF_AN_ERROR)
    return read_tolerant(text, work)


def repair_json(text: str, work: WorkBudget) -> ParsedValue | None:
    """Repair `text` to an object or list by guessing, with json_repair; never raises.

    None if that fails, if the text has too many brackets, or if it costs more than the budget `work` allows.
    """
    openers = text.count("{") + text.count("[")
    if openers > MAX_DEPTH or openers * len(text) > _MOST_GUESSING or not work.take_repair(len(text)):
        return None
    # Imported here: it loads as slowly as the rest of this package, and most texts never need it.
    import json_repair

    try:
        value: Any = json_repair.repair_json(text, return_objects=True, skip_json_loads=True)
    except Exception:  # noqa: BLE001 - the repair library may raise anything on damaged text; treated as no call
        return None
    if not isinstance(value, dict | list):
        return None
    return ParsedValue(value, complete=False, certain=False, partial=not text.rstrip().endswith(_VALUE_ENDS))


def arguments_of(value: Any, work: WorkBudget, *, strict: bool = False) -> dict[str, Any] | None:
    """Return a call's arguments as a dict.

    A dict is returned itself, text that begins with `{` is parsed and repaired, and None and blank text give an empty
    dict. Any other value, also JSON text of a list, or of an object that cannot be repaired, becomes
    `{"input": value}`.

    Args:
        value: The arguments as the model gave them.
        work: The budget for parsing.
        strict: Whether to return None for any other value.
    """
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("{"):
            read = read_json(text, work) or repair_json(text, work)
            value = value if read is None else read.value
        elif not text:
            value = None
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    return None if strict else {"input": value}


def ends_inside_value(text: str) -> bool:
    """Whether a JSON object or list is cut off inside a string, number or word, or before a value.

    False for text that does not begin with a bracket. Text that cannot be parsed counts as cut off unless its last
    character can end a value.
    """
    text = text.strip()
    read = read_json(text, WorkBudget(len(text)))
    if read is not None:
        return read.partial
    return text.startswith(("{", "[")) and not text.endswith(_VALUE_ENDS)


# json_repair takes half a second for 1,000 characters that begin with 100 braces, and for 3,000 behind one bracket.
# Within these bounds the worst known texts take about a third of that. Common damage is parsed in linear time before.
_LONGEST_GUESS = 2_000
_MOST_WORK = 60_000


def parse_lenient_json(text: str) -> Any:
    """Return the JSON value in a text. The JSON may stand alone, in a fenced block or within prose.

    Tried in this order: valid JSON; damage that can be read in one way only; for short texts, a repair by guessing.

    Raises:
        ValueError: The text has no JSON, or none that can be parsed in bounded time.
    """
    bare = _without_fence(text.strip())
    start, end = _outermost(bare)
    for candidate in (bare, bare[start:end]):
        try:
            return json.loads(candidate)
        except (ValueError, RecursionError):
            pass
    if (read := read_json(bare[start:], WorkBudget(len(bare)))) is not None and isinstance(read.value, dict | list):
        return read.value
    openers = sum(bare.count(opener) for opener in "{[(")
    if openers and len(bare) <= _LONGEST_GUESS and len(bare) * openers <= _MOST_WORK:
        # Imported here: it loads slowly, and most texts never need it.
        from json_repair import repair_json

        try:
            guess: Any = repair_json(bare, return_objects=True)
        except Exception:  # noqa: BLE001 - the repair library may raise anything on damaged text; treated as no JSON
            guess = ""
        if guess != "":
            return guess
    raise ValueError("The text holds no JSON.")


def is_several_objects(text: str) -> bool:
    """Whether a text is a JSON object followed by the begin of another one, as when the arguments of two calls were
    merged.

    White space, commas and semicolons may stand between them. The first object must be strict JSON, without repairs.
    """
    text = text.strip()
    try:
        value, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and text[end:].lstrip(" \t\r\n,;").startswith("{")


def arguments_end_inside_value(text: str) -> bool:
    """Whether a call's arguments are cut off inside a value.

    `text` is JSON, with or without a fence of backticks and prose around it.
    """
    bare = _without_fence(text.strip())
    return ends_inside_value(bare[_outermost(bare)[0] :])


def _without_fence(text: str) -> str:
    """Return the content of a fenced block of Markdown; any other text is returned unchanged."""
    if not text.startswith("```") or "\n" not in text:
        return text
    return text.partition("\n")[2].rstrip().removesuffix("```").strip()


def _outermost(text: str) -> tuple[int, int]:
    """Return the begin and end of the outermost JSON value in a text with prose.

    It begins at the first object that is not in a list, else at the first list, and ends at the last closing bracket.
    """
    brace = text.find("{")
    before = text[:brace] if brace >= 0 else text
    is_object = brace >= 0 and before.count("[") <= before.count("]")
    start = brace if is_object else max(text.find("["), 0)
    return start, text.rfind("}" if is_object else "]") + 1
