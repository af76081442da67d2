"""The page renders the Markdown of answers as elements, also while they stream, and never as markup."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Dialog, Page, expect

import graph_agent.web.page
from tests.interfaces.server.process import Served
from tests.web.travel_agent import HOSTILE

pytestmark = pytest.mark.xdist_group("page")
DONE_MS = 60_000
ANSWER = """# Trip to *Bergen*

A **short** trip, ~~long~~, with `NA 112`, [the map](https://map.example/a?b=1) &amp; http://plain.example/x

- pack
  1. coat
- [x] book

| City | Price |
|:-----|------:|
| Voss | 45 |

> Take care.

```python
print("a  b")
```

---
"""
OUTLINE = """
    (node) => {
      const outline = (one) => {
        if (one.nodeType === Node.TEXT_NODE) return one.data.trim() ? [one.data.trim()] : [];
        return [[one.localName, ...[...one.childNodes].flatMap(outline)]];
      };
      return outline(node)[0];
    }
"""
"""Return an element as its name and its parts, texts without white space around them."""
GROWN = """
    async (text) => {
      const { blocksOf, GrowingText } = await import("/markdown.js");
      const { Lexer } = await import("/vendor/marked.js");
      let calls = 0;
      for (const name of ["blockTokens", "inlineTokens"]) {
        const lex = Lexer.prototype[name];
        Lexer.prototype[name] = function (source, ...others) {
          calls += source.length;
          return lex.call(this, source, ...others);
        };
      }
      const whole = blocksOf(text);
      const once = calls;
      const growing = new GrowingText();
      for (const piece of text.match(/[^ ]* ?/g)) {
        growing.append(piece);
        growing.read();
      }
      const raws = (blocks) => blocks.map(({ raw }) => raw).join("") + growing.added;
      const kept = raws([...growing.ended, ...growing.open]).length === text.length;
      return [(calls - once) / once, kept, growing.ended.length / whole.length];
    }
"""
"""Let a text grow by words; return the characters that were lexed in proportion to those of the whole text, whether
nothing is lost, and the part of the blocks that are not read again."""
STATIC = Path(graph_agent.web.page.__file__).with_name("static")


def send(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def answered(page: Page, served: Served, folder: Path, answer: str) -> None:
    """Let the agent give this answer."""
    (folder / "go").touch()
    page.goto(served.url)
    send(page, f"!until {folder / 'go'} {answer}")
    page.locator(".message.agent:not(.live)").wait_for(timeout=DONE_MS)


def test_an_answer_is_drawn_as_elements(page: Page, travel: Served, tmp_path: Path) -> None:
    answered(page, travel, tmp_path, ANSWER)

    code: Any = ["div", ["header", ["span", "python"], ["button", "Copy"]], ["pre", ["code", 'print("a  b")']]]
    assert page.locator(".message.agent .markdown").evaluate(OUTLINE) == [
        "div",
        ["h4", "Trip to", ["em", "Bergen"]],
        ["p", "A", ["strong", "short"], "trip,", ["del", "long"], ", with", ["code", "NA 112"], ",",
         ["a", "the map"], "&", ["a", "http://plain.example/x"]],
        ["ul", ["li", "pack", ["ol", ["li", "coat"]]], ["li", ["input"], "book"]],
        ["div", ["table", ["thead", ["tr", ["th", "City"], ["th", "Price"]]],
                 ["tbody", ["tr", ["td", "Voss"], ["td", "45"]]]]],
        ["blockquote", ["p", "Take care."]],
        code,
        ["hr"],
    ]  # fmt: skip
    links = page.locator(".message.agent a").evaluate_all("links => links.map(a => [a.href, a.target, a.rel])")
    away = ["_blank", "noopener noreferrer nofollow"]
    assert links == [["https://map.example/a?b=1", *away], ["http://plain.example/x", *away]]


def test_a_code_block_is_copied(page: Page, travel: Served, tmp_path: Path) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answered(page, travel, tmp_path, ANSWER)
    page.get_by_role("button", name="Copy code").click()
    expect(page.get_by_role("status")).to_contain_text("Copied.")

    assert page.evaluate("navigator.clipboard.readText()") == 'print("a  b")'


def test_an_answer_is_drawn_as_elements_while_it_streams(page: Page, travel: Served, tmp_path: Path) -> None:
    page.goto(travel.url)
    send(page, f"!until {tmp_path / 'go'} # Plan\n\nA **short** one:\n\n- walk\n- swim\n\n```python\nx = 1\ny = 2 end")
    live = page.locator(".message.agent.live .markdown")
    expect(live).to_contain_text("y = 2", timeout=DONE_MS)
    outline = live.evaluate(OUTLINE)
    live.evaluate("node => node.querySelector('strong').kept = true")
    (tmp_path / "go").touch()
    stored = page.locator(".message.agent:not(.live) .markdown")
    expect(stored).to_contain_text("y = 2 end", timeout=DONE_MS)

    assert outline == [
        "div",
        ["h4", "Plan"],
        ["p", "A", ["strong", "short"], "one:"],
        ["ul", ["li", "walk"], ["li", "swim"]],
        ["div", ["header", ["span", "python"], ["button", "Copy"]], ["pre", ["code", "x = 1\ny = 2"]]],
    ]
    # The stored answer takes the elements of the streamed one.
    assert stored.evaluate("node => node.querySelector('strong').kept")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("block", "ends"),
    [("Some *words* of a paragraph.\n\n", True), ("- an `item` of a list\n", False), ("a line of code\n", False)],
    ids=["paragraphs", "list", "code"],
)
def test_the_work_of_a_stream_grows_with_its_length_only(page: Page, block: str, ends: bool) -> None:
    text = ("```\n" if "code" in block else "") + block * 2000
    page.route(
        "http://page.test/**",
        lambda route: route.fulfill(path=STATIC / urlsplit(route.request.url).path[1:], content_type="text/javascript"),
    )
    page.goto("http://page.test/html.js")
    work, is_whole, ended = page.evaluate(GROWN, text)

    # Reading the whole text with each of its 10,000 words would be 5,000 times the work.
    assert (work < 60, is_whole, ended > 0.9) == (True, True, ends)


LINKS = [
    "[a](javascript:alert(1))",
    "[b](JaVaScRiPt&colon;alert(1))",
    "[c](data:text/html;base64,PHNjcmlwdD4=)",
    "[d](vbscript:x)",
    "[e](//evil.example)",
    "[f](/sessions)",
    "[g](file:///etc/passwd)",
    "<javascript:alert(1)>",
    "[h]: javascript:alert(1)\n\n[h]",
    '[i](https://ok.example/"onmouseover="alert(1) "title\\" onfocus=alert(1)")',
    "![j](https://tracker.example/x.png)",
    "![k](javascript:alert(1))",
    "&#106;avascript&#58;alert(1)",
]
HOSTILE_MARKDOWN = "\n\n".join([
    *LINKS,
    HOSTILE,
    f"# {HOSTILE}",
    f"- {HOSTILE}\n- `{HOSTILE}`",
    f"| {HOSTILE} | b |\n|---|---|\n| {HOSTILE} | [x](javascript:alert(1)) |",
    f"**{HOSTILE}**",
    "<style>*{display:none}</style>",
    "<svg/onload=alert(1)>",
    "<iframe src=javascript:alert(1)></iframe>",
    "<form action=https://evil.example><input name=key></form>",
    "&lt;img src=x onerror=alert(1)&gt;",
    "\u202etxt.exe",
    # A stream has code in an unknown language only once it is whole, because it may be a call.
    f"```{HOSTILE}\n{HOSTILE}\n</code></pre>{HOSTILE}\n```",
])  # fmt: skip
STRANGE = """
    [...document.querySelectorAll(".message.agent *")].flatMap((one) => [
      ...(/^(img|script|style|svg|iframe|form|object|link)$/.test(one.localName) ? [one.localName] : []),
      ...one.getAttributeNames().filter((name) => /^on|^src|^style|^action/.test(name)),
    ])
"""
"""Elements and attributes that no answer may lead to."""


def test_no_markdown_is_ever_markup(page: Page, travel: Served, tmp_path: Path) -> None:
    dialogs: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        """Note the dialog, which would stop the page."""
        dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", dismiss)
    page.goto(travel.url)
    send(page, f"!until {tmp_path / 'go'} {HOSTILE_MARKDOWN} end")
    expect(page.locator(".message.agent.live")).to_contain_text("<style>", timeout=DONE_MS)
    live = page.evaluate(STRANGE)
    (tmp_path / "go").touch()
    expect(page.locator(".message.agent:not(.live) code").last).to_contain_text("</code></pre>", timeout=DONE_MS)

    links = page.locator(".message.agent a").evaluate_all("links => links.map(a => a.getAttribute('href'))")
    assert (live, page.evaluate(STRANGE), page.title(), dialogs) == ([], [], "travel", [])
    assert [re.sub(r"(example/).*", r"\1", link) for link in links] == [
        "https://ok.example/",
        "https://tracker.example/",
    ]


HARD = ("> " * 3000, "[" * 60_000, "a." * 30_000 + "@", "**x" * 20_000, "- " * 3000, "| a " * 3000 + "|")
"""Texts whose reading takes a time that grows with the square of their length, or one level of the stack a character,
without bounds."""


def test_texts_that_are_hard_to_read_do_not_stop_the_page(page: Page, travel: Served, tmp_path: Path) -> None:
    joined = "\n\n".join(HARD)
    answered(page, travel, tmp_path, f"{joined} end")
    send(page, "one")

    expect(page.locator(".message.agent:not(.live)").last).to_have_text("You said: one", timeout=DONE_MS)
