"""How a value is found in texts: its forms, the longest part, and the work that a search takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_agent.core.planning.origins.index import Author, Place, ReadText, TextIndex
from graph_agent.core.planning.origins.tokens import match_tokens, other_forms

USER, TOOL = ReadText(Author.USER, "user"), ReadText(Author.UNTRUSTED, "result", "1", "read")
WORDS = st.lists(st.text("abcdefghijklmnopqrstuvwxyz", min_size=2, max_size=8), min_size=1, max_size=6)
FILLER = st.lists(st.sampled_from(["ZERO", "ONE", "TWO"]), max_size=5)
GAPS = st.sampled_from([" ", "  ", "\n", "\t", ", ", ". ", " – ", "; "])


def index_of(*texts: tuple[ReadText, object]) -> TextIndex:
    """An index of some texts or results."""
    index = TextIndex()
    for source, value in texts:
        index.add(source, value)
    return index


@given(words=WORDS, before=FILLER, after=FILLER, gap=GAPS, upper=st.booleans())
def test_a_value_is_found_in_prose_in_any_case_and_with_any_white_space(
    words: list[str], before: list[str], after: list[str], gap: str, *, upper: bool
) -> None:
    written = gap.join([*before, *words, *after])
    index = index_of((TOOL, {"body": f"- {written.upper() if upper else written} -", "id": "x9"}))

    found = index.find(match_tokens(" ".join(words)))

    assert found == Place(TOOL, "body", whole=not before and not after)


@given(number=st.integers(0, 10**9), cents=st.integers(0, 99))
def test_a_number_is_found_in_the_forms_that_people_write(number: int, cents: int) -> None:
    value = number + cents / 100
    forms = [f"{number}.{cents:02d}", f"{number:,}.{cents:02d}", f"$ {number}.{cents:02d}0"]
    if cents == 0:
        forms += [str(number), f"{number:,}"]

    found = [index_of((TOOL, f"Pay {form} now.")).find(match_tokens(value)) for form in forms]

    assert found == [Place(TOOL, "", whole=False)] * len(forms)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("DE02120300000000202051", "to DE02 1203 0000 0000 2020 51 now"),
        ("DE02 1203 0000 0000 2020 51", "to DE02120300000000202051 now"),
        ("DE021203 00000000 202051", "to DE02-1203-0000-0000-2020-51 now"),
        ("+491701234567", "call +49 (170) 123 4567 now"),
        (1200.5, "Bitte 1.200,50 EUR"),
        (1200.5, "Bitte 1200,5 EUR"),
        (1200.5, "Bitte 1'200.50 CHF"),
        (12000, "Payez 12\u202f000 EUR"),
        (1200, "Bitte 1.200 EUR"),
        ("1.200,50", "pay 1200.50 now"),
        (1200.5, "pay 1200.50EUR now"),
        (1200, "pay 1.2k now"),
        ("1.2M", "pay 1,200,000 EUR now"),
        (1250000, "pay 1.25 million now"),
        (2_000_000_000, "pay 2bn now"),
        (500, "pay 0.5K now"),
        ("eve@mail.example", "https://pay.example/?to=eve%40mail.example"),
        ("eve%40mail.example", "to eve@mail.example now"),
        ("eve@mail.example", "to eve&#64;mail.example now"),
        ("eve@mail.example", "to eve&#x40;mail&period;example now"),
        ("https://pay.example/a b", "https://pay.example/a%20b"),
        (1200, "pay \u0661\u0662\u0660\u0660 now"),
        ("caf\u00e9@mail.example", "to cafe\u0301@mail.example now"),
        ("eve@mail.example", "to \uff45\uff56\uff45\uff20mail.example now"),
        ("eve@mail.example", "to e\u200bve@ma\u00adil.example now"),
        ("STRASSE 5", "zur Stra\u00dfe 5"),
        ("\u5317\u4eac", "\u8bf7\u4ed8\u7ed9\u5317\u4eac\u94f6\u884c"),
    ],
)
def test_a_value_is_found_in_other_forms_of_it(value: object, text: str) -> None:
    tokens = match_tokens(value)
    forms = [form for form, first, end in other_forms(value) if (first, end) == (0, len(tokens))]

    assert index_of((TOOL, text)).find(tokens, forms) == Place(TOOL, "", whole=False)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("12", "rooms 1 2 3"),
        ("20240501", "2024, 05, 01"),
        (1, "version 1.2.3"),
        (50, "order AB50CD"),
        (50, "1500 people"),
        (5, "version 5.1"),
        (1200, "1.2kg"),
        (1200, "1.2 km"),
        ("eve@mail.example", "100%eve &copymail"),
        ("ann", "joanne"),
        ("anna@corp.example", "bert@corp.org"),
        ("2024-05-01", "2024-05-02"),
        (True, "True"),
    ],
)
def test_a_value_is_not_found_inside_of_another_word_or_number(value: object, text: str) -> None:
    assert index_of((TOOL, text)).find(match_tokens(value)) is None


@given(words=WORDS.filter(lambda words: len(words) > 1), count=st.integers(1, 5))
def test_the_longest_part_of_a_value_wins(words: list[str], count: int) -> None:
    count = min(count, len(words) - 1)
    index = index_of((USER, " ".join(words[:count])), (TOOL, " ".join(words)))

    assert index.find(match_tokens(" ".join(words))) == Place(TOOL, "", whole=False)


def test_of_equally_long_parts_the_users_wins() -> None:
    index = index_of((TOOL, "to eve@mail.example"), (USER, "for Eve@Mail.example"))

    assert index.find(match_tokens("eve@mail.example")) == Place(USER, "", whole=False)


def test_a_part_counts_if_it_has_more_than_half_of_the_characters() -> None:
    index = index_of((TOOL, "see www.black.example for more"))

    found = [index.find(match_tokens(link)) for link in ("https://www.black.example/", "www.white-and-grey.example")]

    assert found == [Place(TOOL, "", whole=False, part=(1, 4)), None]


@given(st.text(max_size=200))
def test_any_text_is_found_in_itself(text: str) -> None:
    tokens = match_tokens(text)

    found = index_of((TOOL, text)).find(tokens)

    assert (found is not None) == bool(tokens)


def test_a_value_is_unknown_if_it_was_not_found_and_not_all_text_was_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("graph_agent.core.planning.origins.index.MOST_INDEXED_TOKENS", 10)
    index = index_of((TOOL, "one two three"), (TOOL, "four " * 20), (USER, "five"))

    found = [index.find(match_tokens(value)) for value in ("two three", "seven")]

    assert [place.source.kind if place else None for place in found] == ["result", "unknown"]


def test_the_work_of_an_index_grows_with_its_text_alone() -> None:
    def steps(count: int) -> tuple[int, int]:
        index = TextIndex()
        for number in range(count):
            index.add(TOOL, {"id": number, "body": f"Mail {number} of a long list, please pay the sum to ab{number}."})
        added = index.steps
        for value in ("ab7", "Mail 3 of a long list", "please pay cd to the sum of it", 5, "nowhere at all"):
            index.find(match_tokens(value))
        return added, index.steps - added

    (added, searched), (added_10, searched_10) = steps(2_000), steps(20_000)

    # The number of places that are compared with a value is bounded, whatever the length of the session.
    assert (added_10 / added < 10.5, searched_10 / searched < 1.05) == (True, True)


def test_an_untrusted_text_that_has_the_value_of_a_record_is_its_origin() -> None:
    records = [{"name": "Anna Black", "id": 13}, {"name": "Bert", "id": 14}]
    index = index_of((TOOL, records), (TOOL, {"body": "Tell Anna Black about room 13."}))

    found = [index.find(match_tokens(value)) for value in ("anna black", 13, "Bert")]

    # A number is in texts by chance, and then is still that of the record.
    assert found == [
        Place(TOOL, "body", whole=False),
        Place(TOOL, "[0].id", whole=True),
        Place(TOOL, "[1].name", whole=True),
    ]


def test_a_date_has_no_parts() -> None:
    assert index_of((TOOL, {"at": "2024-05-13 11:30"})).find(match_tokens("13")) is None
