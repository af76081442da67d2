"""What a person sends on the page: shown at once, queued and withdrawn, with attachments, changed and sent again."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Dialog, FilePayload, Page, Route, expect

from tests.interfaces.server.process import Served, serving
from tests.web.conftest import TRAVEL

pytestmark = pytest.mark.xdist_group("page, second half")
DONE_MS = 60_000
LOOK_MS = 10_000
"""The time after which the page asks for the sessions again."""
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
IMAGE: FilePayload = {"name": "sea.png", "mimeType": "image/png", "buffer": PIXEL}
PDF: FilePayload = {"name": "plan.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.4 plan"}


def send(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def completed(page: Page, *answers: str) -> None:
    """Wait until the session has these answers, and no run."""
    expect(page.locator(".message.agent:not(.live)")).to_have_text([*answers], timeout=DONE_MS)
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_enabled(timeout=DONE_MS)


def test_a_message_and_the_running_model_call_are_shown_before_the_server_answers(page: Page, travel: Served) -> None:
    held: list[Route] = []
    page.route("**/v1/chat/completions", lambda route: held.append(route))  # noqa: PLW0108 - Playwright adds attributes to the function
    page.goto(travel.url)
    send(page, "one")

    expect(page.locator(".message.user")).to_have_text(["one"])
    expect(page.get_by_role("status").first).to_have_text("running")
    expect(page.get_by_role("button", name="working")).to_be_visible()
    held[0].continue_()
    completed(page, "You said: one")
    expect(page.locator(".message.user")).to_have_text(["one"])


def test_a_refused_message_leaves_the_conversation(page: Page, travel: Served) -> None:
    page.goto(travel.url)
    send(page, "one")
    completed(page, "You said: one")
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=429, json={"error": "Too many."}))
    send(page, "two")

    expect(page.get_by_role("alert")).to_contain_text("Too many.")
    expect(page.locator(".message.user")).to_have_text(["one"])
    expect(page.get_by_label("Message", exact=True)).to_have_value("two")


def test_the_reasoning_of_the_model_is_shown_folded(page: Page, travel: Served, tmp_path: Path) -> None:
    page.goto(travel.url)
    send(page, f"!until {tmp_path / 'go'} !think Go by train.")
    summary = page.get_by_text("Reasoning…")
    expect(summary).to_be_visible(timeout=DONE_MS)
    folded = page.get_by_text("I weigh the routes.").is_visible()
    summary.click()
    expect(page.locator(".reasoning strong")).to_have_text("weigh")
    (tmp_path / "go").touch()
    completed(page, "!think Go by train.")

    assert not folded
    expect(page.locator(".reasoning")).to_contain_text("I weigh the routes.")
    expect(page.locator(".message.agent")).not_to_contain_text("weigh")


def test_recorded_reasoning_is_shown_folded_after_a_reload(page: Page, travel: Served) -> None:
    page.goto(travel.url)
    send(page, "Plan a trip to Bergen")
    page.get_by_role("button", name="Send decisions").click(timeout=DONE_MS)
    expect(page.get_by_role("status").first).to_have_text("completed", timeout=DONE_MS)
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_enabled(timeout=DONE_MS)
    places = "[...document.querySelector('.turn').children].map((one) => one.classList[0])"
    arrived = page.evaluate(places)
    page.reload()
    expect(page.locator(".reasoning")).to_have_count(arrived.count("reasoning"), timeout=DONE_MS)

    assert page.evaluate(places) == arrived
    assert arrived.count("reasoning") == 1
    expect(page.get_by_text("I weigh the routes.")).to_be_hidden()
    page.get_by_text("Reasoning", exact=True).first.click()
    expect(page.get_by_text("I weigh the routes.")).to_be_visible()


def test_queued_messages_are_shown_and_withdrawn(page: Page, travel: Served, tmp_path: Path) -> None:
    page.goto(travel.url)
    send(page, f'!call [["wait_for", {{"file": "{tmp_path / "go"}"}}]]')
    page.get_by_role("button", name="wait_for, running", exact=True).wait_for(timeout=DONE_MS)
    send(page, "Be brief.")
    page.get_by_label("Message", exact=True).fill("And then?")
    page.get_by_role("button", name="Follow up").click()
    queue = page.get_by_role("list", name="Queued messages").get_by_role("listitem")
    expect(queue).to_have_text([re.compile("Steering Be brief."), re.compile("Follow-up And then?")])
    follower = page.context.new_page()
    follower.goto(page.url)
    expect(follower.get_by_role("list", name="Queued messages").get_by_role("listitem")).to_have_count(2)
    page.get_by_role("button", name="Withdraw: And then?").click()
    expect(page.get_by_label("Message", exact=True)).to_have_value("And then?")
    (tmp_path / "go").touch()

    completed(page, "You said: While you were working, the user said: Be brief.")
    expect(queue).to_have_count(0)
    expect(page.locator(".message.user.steering")).to_have_count(1)


def test_files_are_attached_by_choice_paste_and_drop(page: Page, travel: Served) -> None:
    page.goto(travel.url)
    page.get_by_label("Files to attach").set_input_files([IMAGE])
    given = """
        (box, [name, type, text, event]) => {
          const data = new DataTransfer();
          data.items.add(new File([text], name, { type }));
          const init = { bubbles: true, cancelable: true };
          box.dispatchEvent(event === "paste" ? new ClipboardEvent("paste", { ...init, clipboardData: data })
            : new DragEvent("drop", { ...init, dataTransfer: data }));
        }
    """
    attached = page.locator(".composer .attachment")
    expect(attached).to_have_count(1)
    box = page.get_by_label("Message", exact=True)
    box.evaluate(given, ["plan.pdf", "application/pdf", "%PDF-1.4", "paste"])
    expect(attached).to_have_count(2)
    box.evaluate(given, ["gone.gif", "image/gif", "GIF89a", "drop"])
    expect(attached).to_have_count(3)
    page.get_by_role("button", name="Remove gone.gif").click()
    send(page, "look")
    completed(page, "You sent: text, image, file")

    # Those of the stored event are shown, too, after the page is read again.
    for _ in range(2):
        message = page.locator(".message.user")
        expect(message.locator("p")).to_have_text("look")
        expect(message.locator("img")).to_have_js_property("naturalWidth", 1)
        expect(message.locator(".attachment").last).to_contain_text("plan.pdf")
        page.reload()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ({"name": "page.svg", "mimeType": "image/svg+xml", "buffer": b"<svg/>"}, "page.svg is no PNG, JPEG"),
        ({**PDF, "buffer": b"%PDF" + bytes(1_500_000)}, "The attachments have 1.5 MB; a message may have"),
    ],
    ids=["type", "bytes"],
)
def test_a_file_that_cannot_be_sent_is_named(page: Page, tmp_path: Path, file: FilePayload, problem: str) -> None:
    with serving(tmp_path, "--set", "max_body_bytes=2000000", agent=TRAVEL) as served:
        page.goto(served.url)
        page.get_by_label("Files to attach").set_input_files([file])

        expect(page.get_by_role("alert")).to_contain_text(problem)
        expect(page.locator(".composer .attachment")).to_have_count(0)


def test_an_answer_is_given_again_in_a_fork(page: Page, travel: Served) -> None:
    page.goto(travel.url)
    send(page, "one")
    completed(page, "You said: one")
    page.get_by_label("Files to attach").set_input_files([IMAGE])
    expect(page.locator(".composer .attachment")).to_have_count(1)
    send(page, "two")
    completed(page, "You said: one", "You sent: text, image")
    origin = page.url
    page.get_by_role("button", name="Regenerate").click()
    expect(page).not_to_have_url(origin)
    completed(page, "You said: one", "You sent: text, image")

    expect(page.locator(".message.user img")).to_have_count(1)
    page.goto(origin)
    completed(page, "You said: one", "You sent: text, image")


def answered(page: Page, button: str, *, accepts: bool) -> str:
    """Click a button, answer the question that follows, and return the question."""
    asked: list[str] = []

    def answer(dialog: Dialog) -> None:
        asked.append(dialog.message)
        (dialog.accept if accepts else dialog.dismiss)()

    page.once("dialog", answer)
    with page.expect_event("dialog"):
        page.get_by_role("button", name=button).click()
    return asked[0]


def test_a_person_is_asked_before_a_call_with_side_effects_may_be_made_again(page: Page, travel: Served) -> None:
    page.goto(travel.url)
    send(page, '!call [["echo", {"text": "paid"}]]')
    completed(page, "Done: 1 results.")
    origin = page.url
    question = answered(page, "Regenerate", accepts=False)
    kept = page.url
    repeated = answered(page, "Regenerate", accepts=True)
    expect(page).not_to_have_url(origin)
    completed(page, "Done: 1 results.")

    expect(page.locator(".sessions li").first).to_contain_text("fork")
    assert (question, kept, repeated) == (
        "This message's run made 1 call that may have side effects:\n\n"
        'echo({"text":"paid"})\n\nA new answer may make it again. Go on?',
        origin,
        question,
    )


def test_a_new_session_makes_no_error_in_the_browsers_console(page: Page, travel: Served) -> None:
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(travel.url)
    send(page, "one")
    completed(page, "You said: one")
    page.get_by_role("button", name="Regenerate").click()
    expect(page).to_have_url(re.compile("-fork-"))
    completed(page, "You said: one")

    assert errors == []


def test_the_graph_has_only_nodes_that_the_agent_can_enter(page: Page, tmp_path: Path) -> None:
    agent = {"name": "plain", "model": TRAVEL["model"], "tools": ["tests.web.travel_agent:echo"]}
    with serving(tmp_path, agent=agent) as served:
        page.goto(served.url)
        send(page, "one")
        completed(page, "You said: one")

        expect(page.locator(".graph text")).to_have_text(["start", "plan", "tools", "finalize", "end"])


def test_a_rating_stays_pressed_in_another_tab_and_a_rename_begins_with_the_title(page: Page, travel: Served) -> None:
    page.goto(travel.url)
    send(page, "one")
    completed(page, "You said: one")
    page.get_by_role("button", name="Good answer").click()
    expect(page.get_by_role("button", name="Good answer")).to_have_attribute("aria-pressed", "true")
    page.evaluate("sessionStorage.clear()")
    page.reload()
    expect(page.get_by_role("button", name="Good answer")).to_have_attribute("aria-pressed", "true")
    given: list[str | None] = []

    def leave(dialog: Dialog) -> None:
        given.append(dialog.default_value)
        dialog.dismiss()

    page.once("dialog", leave)
    page.get_by_role("button", name="Rename").click()

    assert given == ["one"]


def test_the_details_of_a_model_call_name_an_image_in_place_of_its_bytes(page: Page, travel: Served) -> None:
    page.goto(travel.url)
    large: FilePayload = {"name": "sea.png", "mimeType": "image/png", "buffer": PIXEL + bytes(9000)}
    page.get_by_label("Files to attach").set_input_files([large])
    expect(page.locator(".composer .attachment")).to_have_count(1)
    send(page, "two")
    completed(page, "You sent: text, image")
    page.locator(".bar.model").last.click()

    # Parts of the bytes that could be secrets are masked in the recorded request, so that their number is not known.
    expect(page.locator(".detail")).to_contain_text("(image/png)")
    expect(page.locator(".detail")).not_to_contain_text("iVBORw0KGgo")


def test_the_newest_message_is_changed_in_a_fork(page: Page, travel: Served) -> None:
    page.goto(travel.url)
    send(page, "one")
    completed(page, "You said: one")
    first = page.url
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Edited message").fill("uno")
    page.get_by_role("button", name="Send in a fork").click()
    completed(page, "You said: uno")

    expect(page.locator(".message.user")).to_have_text(["uno"])
    assert page.url.startswith(f"{first}-fork-")
    with travel.http() as http:
        events = http.get(f"/memory/sessions/{first.partition('#')[2]}/events").json()["events"]
    assert [each["content"] for each in events if each["type"] == "user_message"] == ["one"]


def test_sessions_are_filtered_and_summed_up(page: Page, tmp_path: Path) -> None:
    with serving(tmp_path, agent=TRAVEL) as served:
        with served.http() as http:
            for id_, text in (("plain", "hello"), ("calls", '!call [["echo", {"text": "x"}]]')):
                message = {"model": "travel", "messages": [{"role": "user", "content": text}]}
                http.post("/v1/chat/completions", json={**message, "metadata": {"session_id": id_}})
        page.goto(served.url)
        page.get_by_text("Filter", exact=True).click()
        listed = page.get_by_role("navigation", name="Sessions").get_by_role("listitem")
        totals = page.get_by_role("status", name="Totals")
        expect(totals).to_have_text("2 sessions · 3 model calls · 2,628 tokens")
        page.get_by_label("Feedback").select_option("rated")
        expect(page.get_by_text("None matches.")).to_be_visible()
        httpx.post(f"{served.url}/sessions/plain/feedback", json={"rating": "up"}).raise_for_status()
        page.get_by_label("Status").select_option("completed")
        expect(listed).to_have_count(1)
        page.get_by_role("button", name="Clear").click()
        page.get_by_label("Tool").fill("echo")
        expect(listed).to_have_count(1)
        expect(totals).to_have_text("1 session · 2 model calls · 1,752 tokens")
        page.get_by_label("Status").select_option("waiting")
        expect(page.get_by_text("None matches.")).to_be_visible()
        page.get_by_role("button", name="Clear").click()
        expect(listed).to_have_count(2)
        page.get_by_label("To", exact=True).fill("2020-01-01")

        expect(listed).to_have_count(0)


NOTIFIED = """
    window.notified = [];
    window.Notification = class {
      static permission = "default";
      static requestPermission = async () => (Notification.permission = "granted");
      constructor(title, { body }) { notified.push(`${title}: ${body}`); }
    };
"""
"""Record the notifications of the browser."""


def test_a_person_is_notified_when_a_session_waits(page: Page, tmp_path: Path) -> None:
    page.add_init_script(NOTIFIED)
    page.clock.install()
    with serving(tmp_path, agent=TRAVEL) as served, served.http() as http:
        page.goto(served.url)
        page.get_by_text("Filter", exact=True).click()
        page.get_by_label("Notify me when a session waits").check()
        question = f"!call {json.dumps([['ask_person', {'question': 'Which?'}]])}"
        body = {"model": "travel", "messages": [{"role": "user", "content": question}]}
        http.post("/v1/chat/completions", json={**body, "metadata": {"session_id": "waits"}}).raise_for_status()
        page.clock.fast_forward(LOOK_MS)
        expect(page).to_have_title("(1) travel", timeout=DONE_MS)
        notified = page.evaluate("notified")
        http.post("/sessions/waits/resume", json={"answer": "This."}).raise_for_status()
        page.clock.fast_forward(LOOK_MS)
        expect(page).to_have_title("travel", timeout=DONE_MS)

    assert notified == [f"A session waits for you: {question}"[: len(notified[0])]]


def test_all_calls_of_a_kind_are_approved_in_a_session(page: Page, travel: Served) -> None:
    def booked(number: int) -> str:
        return f"!call {json.dumps([['book', {'item': f'room {number}'}]])}"

    page.goto(travel.url)
    send(page, booked(1))
    page.get_by_label("approve all of this kind").check()
    page.get_by_role("button", name="Send decision").click()
    completed(page, "Done: 1 results.")
    expect(page.get_by_label("Approved in this session")).to_contain_text("All calls of book are approved, by user")
    send(page, booked(2))
    completed(page, "Done: 1 results.", "Done: 1 results.")
    page.goto(travel.url)
    send(page, booked(3))
    page.get_by_role("button", name="Send decision").wait_for(timeout=DONE_MS)

    with travel.http() as http:
        listed = [each["id"] for each in http.get("/memory/summaries").json()["sessions"]]
        first = next(id_ for id_ in listed[1:])
        events = http.get(f"/memory/sessions/{first}/events", params={"type": "approval_decision"}).json()["events"]
    assert [(each["decision"], each["decided_by"], each.get("always")) for each in events] == [
        ("approve", "user", True),
        ("approve", "always (user)", None),
    ]


def test_a_call_equal_to_one_that_may_have_run_is_asked_about_in_spite_of_an_approval_of_all(
    page: Page, tmp_path: Path
) -> None:
    def waiting_for(name: str) -> str:
        return f"!call {json.dumps([['wait_for', {'file': str(tmp_path / name)}]])}"

    (tmp_path / "there").touch()
    with serving(tmp_path, agent={**TRAVEL, "approve": ["wait_for"]}) as served:
        page.goto(served.url)
        send(page, waiting_for("never"))
        page.get_by_label("approve all of this kind").check()
        page.get_by_role("button", name="Send decision").click()
        page.get_by_role("button", name="wait_for, running").first.wait_for(timeout=DONE_MS)
        page.get_by_role("button", name="Abort").click()
        expect(page.get_by_role("status")).to_have_text("aborted", timeout=DONE_MS)
        send(page, waiting_for("there"))
        expect(page.locator(".message.agent").last).to_have_text("Done: 1 results. ", timeout=DONE_MS)
        # A message during the run would steer it.
        expect(page.get_by_role("status")).to_have_text("completed", timeout=DONE_MS)
        send(page, waiting_for("never"))
        form = page.get_by_role("form", name="Decisions on calls")
        expect(form).to_contain_text("made before, and its outcome is unknown", timeout=DONE_MS)


def test_an_approval_of_all_calls_of_a_kind_is_revoked(page: Page, travel: Served) -> None:
    page.goto(travel.url)
    send(page, f"!call {json.dumps([['book', {'item': 'room 1'}]])}")
    page.get_by_label("approve all of this kind").check()
    page.get_by_role("button", name="Send decision").click()
    completed(page, "Done: 1 results.")
    page.get_by_role("button", name="Revoke: book").click()
    notice = page.locator(".notice.revocation")
    expect(notice).to_have_text("revocation user revoked the approval of all calls of book", timeout=DONE_MS)
    expect(page.get_by_label("Approved in this session")).to_have_count(0)
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.reload()
    expect(notice).to_have_count(1, timeout=DONE_MS)
    expect(page.get_by_label("Approved in this session")).to_have_count(0)
    send(page, f"!call {json.dumps([['book', {'item': 'room 2'}]])}")
    page.get_by_role("button", name="Send decision").wait_for(timeout=DONE_MS)

    session = page.url.partition("#")[2]
    with travel.http() as http:
        events = http.get(f"/memory/sessions/{session}/events", params={"type": "revocation"}).json()["events"]
        again = http.post(f"/sessions/{session}/revoke", json={"name": "book"})
    assert [(each["name"], each["by"]) for each in events] == [("book", "user")]
    assert (again.status_code, again.json()["error"]) == (
        404,
        f"Session '{session}' has no standing approval of 'book'; it has: none.",
    )


def test_a_session_is_renamed(page: Page, travel: Served) -> None:
    page.goto(travel.url)
    send(page, "one")
    completed(page, "You said: one")
    page.once("dialog", lambda dialog: dialog.accept("My <b>trip</b>"))
    page.get_by_role("button", name="Rename").click()
    title = page.locator("header .title")
    expect(title).to_have_text("My <b>trip</b>")
    listed = page.get_by_role("navigation", name="Sessions").get_by_role("listitem").first
    expect(listed).to_contain_text("My <b>trip</b>")
    send(page, "two")
    completed(page, "You said: one", "You said: two")
    page.reload()

    expect(title).to_have_text("My <b>trip</b>")
    with travel.http() as http:
        session = page.url.partition("#")[2]
        events = http.get(f"/memory/sessions/{session}/events", params={"type": "rename"}).json()["events"]
    assert [(each["title"], each["by"]) for each in events] == [("My <b>trip</b>", "user")]
