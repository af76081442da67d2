"""Holiday names as people write them: other spellings, missing words, typing errors, names in the midst of a text."""

from __future__ import annotations

import difflib
import re
import unicodedata
from functools import lru_cache
from typing import NamedTuple

from .holiday_spans import known_names

# Other words for a name that the calendars list.
_ALIASES = {
    "Hanukkah": ("Chanukah", "Chanukkah", "Hanuka", "Hannukah", "Hanukah", "Channukah", "Festival of Lights"),
    "Passover": ("Pesach", "Pesah"),
    "Rosh Hashanah": ("Rosh Hashana", "Jewish New Year"),
    "Sukkot": ("Succot", "Sukkoth", "Feast of Tabernacles"),
    "Simchat Torah / Shemini Atzeret": ("Simchat Torah", "Shemini Atzeret"),
    "Christmas Day": ("Christmas", "Xmas", "X-mas", "Noel"),
    "Christmas Eve": ("Xmas Eve",),
    "New Year's Day": ("New Year", "New Years", "New Year's"),
    "New Year's Eve": ("New Years Eve", "Silvester", "Sylvester", "Hogmanay", "NYE"),
    "Easter Sunday": ("Easter",),
    "Thanksgiving Day": ("Thanksgiving",),
    "Independence Day": ("Fourth of July", "4th of July", "July 4th"),
    "Martin Luther King Jr. Day": ("MLK Day", "Martin Luther King Day"),
    "Washington's Birthday": ("Presidents' Day", "President's Day"),
    "Juneteenth National Independence Day": ("Juneteenth",),
    "Valentine's Day": ("Valentines", "Valentine's"),
    "Saint Patrick's Day": ("St. Patrick's", "St. Paddy's Day", "Paddy's Day"),
    "Chinese New Year (Spring Festival)": ("Chinese New Year", "Lunar New Year"),
    "Eid al-Fitr": ("Eid ul-Fitr", "Id-ul-Fitr", "Eid", "Ramadan Bayram"),
    "Eid al-Adha": ("Eid ul-Adha", "Bakrid", "Kurban Bayram", "Feast of the Sacrifice"),
    "Diwali": ("Deepavali", "Divali"),
    "Pentecost": ("Whitsun", "Whit Sunday"),
    "Pentecost Monday": ("Whit Monday",),
    "Saint Stephen's Day": ("St. Stephen's",),
    "National Day": ("Bastille Day",),
}
# Names that mean a country's own calendar, whichever comes first in the list of countries.
_COUNTRY_OF = {"bastille day": "FR"}
# Words that add nothing to a name: "the Hanukkah holidays".
_EMPTY_WORDS = {"the", "day", "days", "holiday", "holidays", "festival", "celebration", "celebrations"}
_WORD = re.compile(r"[^\W_]+(?:['’.][^\W_]+)*")
_LONGEST_NAME = 8
# Short words are too near to one another to be read as a misspelt name.
_SHORTEST_MISSPELT = 6
_LIKENESS = 0.84


class Mention(NamedTuple):
    """A holiday named in a text."""

    name: str
    """The name as the calendar lists it."""
    text: str
    """The name as it was written."""
    start: int
    end: int


def words_of(name: str) -> tuple[str, ...]:
    """Return the words of a name without case, accents, apostrophes or a plural s."""
    folded = "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c)).lower()
    parts = re.findall(r"[^\W_]+", re.sub(r"['’.]", "", folded))
    return tuple("saint" if part == "st" else _singular(part) for part in parts)


def match_name(name: str) -> str | None:
    """Return the listed name that a name means, or None.

    In this order: the same words; the same but for empty words; the only name within it; the most alike.
    """
    index, wanted = _index(), words_of(name)
    core = _core(wanted)
    mentions = {mention.name for mention in find_names(name)}
    found = index.get(wanted) or _cores().get(core) or (mentions.pop() if len(mentions) == 1 else None)
    if found or not core:
        return found
    near = difflib.get_close_matches(" ".join(core), _joined_cores(), n=1, cutoff=_LIKENESS)
    return _joined_cores()[near[0]] if near else None


def near_names(name: str, count: int = 4) -> list[str]:
    """Return listed names that look like a name, the nearest first; empty where none does."""
    near = difflib.get_close_matches(" ".join(_core(words_of(name))), _joined_cores(), n=count, cutoff=0.45)
    return list(dict.fromkeys(_joined_cores()[one] for one in near))


def country_of(name: str) -> str | None:
    """Return the country whose calendar a name means by itself ("Bastille Day": FR), or None."""
    return _COUNTRY_OF.get(name.strip().lower())


def find_names(text: str) -> list[Mention]:
    """Find the holidays named in a text, in order and without overlaps, the longest name first at each place."""
    index = _index()
    places = [(match.start(), match.end()) for match in _WORD.finditer(text)]
    keys = [words_of(text[start:end]) for start, end in places]
    found: list[Mention] = []
    i = 0
    while i < len(places):
        for length in range(min(_LONGEST_NAME, len(places) - i), 0, -1):
            key = tuple(word for words in keys[i : i + length] for word in words)
            name = index.get(key) or (_misspelt(key[0]) if length == 1 and len(key) == 1 else None)
            if name:
                start, end = places[i][0], places[i + length - 1][1]
                found.append(Mention(name, text[start:end], start, end))
                i += length
                break
        else:
            i += 1
    return found


@lru_cache(maxsize=1024)
def _misspelt(word: str) -> str | None:
    singles = _single_words()
    if len(word) < _SHORTEST_MISSPELT:
        return None
    near = difflib.get_close_matches(word, singles, n=1, cutoff=_LIKENESS)
    return singles[near[0]] if near else None


@lru_cache(maxsize=1)
def _index() -> dict[tuple[str, ...], str]:
    """All names and other names by their words; listed names win over other names."""
    index = {words_of(alias): name for name, aliases in _ALIASES.items() for alias in aliases}
    for name in reversed(known_names()):
        index[words_of(name)] = name
        # "Ganesh Chaturthi / Vinayak Chaturthi", "Dussehra (Saptami)": the part before is a name, too.
        index.setdefault(words_of(re.split(r" [/(]", name)[0]), name)
    return index


@lru_cache(maxsize=1)
def _cores() -> dict[tuple[str, ...], str]:
    cores: dict[tuple[str, ...], str] = {}
    for words, name in _index().items():
        cores.setdefault(_core(words), name)
    return {core: name for core, name in cores.items() if core}


@lru_cache(maxsize=1)
def _joined_cores() -> dict[str, str]:
    return {" ".join(core): name for core, name in _cores().items()}


@lru_cache(maxsize=1)
def _single_words() -> dict[str, str]:
    return {
        words[0]: name for words, name in _index().items() if len(words) == 1 and len(words[0]) >= _SHORTEST_MISSPELT
    }


def _core(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for word in words if word not in _EMPTY_WORDS and _singular(word) not in _EMPTY_WORDS)


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
