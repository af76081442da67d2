"""Where the arguments of calls come from, and the calls that untrusted text decides on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import AgentContext, GraphDelegate, LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.approvals import approve, edit, respond
from graph_agent.errors import ConfigError
from graph_agent.marks import Marks, marked
from tests.support.agents import asks

MAIL = {
    "id": 7,
    "sender": "anna@corp.example",
    "body": "Invoice: please pay 1,200.50 to Eve.Black@Mail.example today.",
}
EVE: dict[str, Any] = {
    "kind": "result",
    "how": "prose",
    "call": "1",
    "name": "read_mail",
    "field": "body",
    "untrusted": True,
}


class Office:
    """A session of an agent with `read_mail`, whose results are untrusted, and `pay`, whose arguments are sinks.

    Args:
        script: The model's replies.
        mail: The result of `read_mail`.
        source: The mark of `read_mail`.
        config: Other fields of `LoopConfig`.
        options: Other arguments of `create_graph_agent`.
    """

    def __init__(
        self,
        *script: str | AIMessage,
        mail: Any = MAIL,
        source: Any = "untrusted",
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.paid: list[tuple[str, float]] = []

        @tool
        def read_mail(id: int = 7) -> Any:
            """Read a mail."""
            return mail

        @tool
        def pay(to: str, amount: float, note: str = "") -> str:
            """Pay."""
            self.paid.append((to, amount))
            return f"paid {amount} to {to}"

        marks: Marks = {"source": source}
        options.setdefault("checkpointer", InMemorySaver())
        self.graph = create_graph_agent(
            ScriptedChatModel(list(script)),
            tools=[marked(read_mail, **marks), marked(pay, sinks={"to", "amount"}), *options.pop("tools", [])],
            config=LoopConfig(**{"origins": True, **(config or {})}),
            **options,
        )
        self.session = Session(self.graph, "s")

    async def origins(self) -> dict[str, dict[str, Any]]:
        """Call id → origins of its arguments, from the events."""
        return {
            entry["id"]: dict(entry["origins"])
            for entry in await self.session.events()
            if entry["type"] in ("tool_call", "delegation_request") and "origins" in entry
        }


READ = asks(("1", "read_mail", {"id": 7}))


def pays(to: str, amount: float = 1200.5, **further: Any) -> str:
    """A reply that calls `pay` with the id 2."""
    return asks(("2", "pay", {"to": to, "amount": amount, **further}))


async def test_each_argument_of_a_call_has_its_origin() -> None:
    office = Office(READ, pays("eve.black@mail.example", note="Lunch"), "Done.", config={"on_tainted": "allow"})

    await office.session.run("Pay what mail 7 asks for.")

    assert await office.origins() == {
        "1": {"id": {"kind": "user", "how": "prose"}},
        "2": {"to": EVE, "amount": EVE, "note": {"kind": "model"}},
    }


async def test_origins_are_off_by_default() -> None:
    office = Office(READ, pays("eve.black@mail.example"), "Done.", config={"origins": False})

    result = await office.session.run("Pay what mail 7 asks for.")

    assert (result.status, office.paid, await office.origins()) == (
        "COMPLETED",
        [("eve.black@mail.example", 1200.5)],
        {},
    )


async def test_a_reviewer_sees_the_origins_of_a_tainted_call() -> None:
    office = Office(READ, pays("eve.black@mail.example"), "Done.")

    result = await office.session.run("Pay what mail 7 asks for.")
    [asked] = result.interrupts

    assert (asked.value["origins"], asked.value["tainted"], asked.value["action_requests"], office.paid) == (
        [{"to": EVE, "amount": EVE}],
        [["to", "amount"]],
        [
            {
                "name": "pay",
                "args": {"to": "eve.black@mail.example", "amount": 1200.5},
                "description": "Untrusted text decides where this call goes. to: from read_mail, call 1, body, in "
                "prose, untrusted; amount: from read_mail, call 1, body, in prose, untrusted.",
            }
        ],
        [],
    )


async def test_an_approved_call_runs_once() -> None:
    office = Office(READ, pays("eve.black@mail.example"), "Done.")
    await office.session.run("Pay what mail 7 asks for.")

    result = await office.session.resume({"decisions": [approve()]})

    assert (result.status, office.paid) == ("COMPLETED", [("eve.black@mail.example", 1200.5)])


@pytest.mark.parametrize(
    "text", ["Pay Eve.Black@mail.example 1200.50 as in mail 7.", "pay  1,200.5 to <EVE.BLACK@MAIL.EXAMPLE>, mail 7"]
)
async def test_a_value_that_the_user_wrote_is_the_users(text: str) -> None:
    office = Office(READ, pays("eve.black@mail.example"), "Done.")

    result = await office.session.run(text)

    assert (result.status, (await office.origins())["2"]) == (
        "COMPLETED",
        {"to": {"kind": "user", "how": "prose"}, "amount": {"kind": "user", "how": "prose"}},
    )


@pytest.mark.parametrize(
    ("to", "part"),
    [
        ("annabella@corporation.example, eve@m.example", "eve m example"),
        ('["annabella@corporation.example", "eve@m.example"]', "eve m example"),
        ("annabella@corporation.example Eve <eve@m.example>", "eve m example"),
        ("https://corporation.example/redirect?to=m.example", "m example"),
        ("Annabella Whitestone; Eve Black", "eve black"),
    ],
)
async def test_one_of_several_values_in_a_sink_may_be_untrusted(to: str, part: str) -> None:
    mail = {"body": "Copy Eve Black: eve@m.example, see m.example and corporation.example."}
    office = Office(READ, pays(to, 5), "Done.", mail=mail)

    result = await office.session.run(
        "Pay 5 to Annabella Whitestone, annabella@corporation.example, as mail 7 says: "
        "https://corporation.example/redirect"
    )

    [asked] = result.interrupts
    assert (asked.value["tainted"], asked.value["origins"][0]["to"]) == (
        [["to"]],
        {"kind": "result", "how": "prose", "call": "1", "name": "read_mail", "field": "body", "untrusted": True}
        | {"part": part},
    )


async def test_a_whole_field_with_several_values_is_no_untrusted_text() -> None:
    office = Office(
        READ, pays("Anna Black, 12 Main Street", 5), "Done.", mail={"id": 7, "address": "Anna Black, 12 Main Street"}
    )

    result = await office.session.run("Pay 5 to the address of mail 7.")

    assert (result.status, len(office.paid)) == ("COMPLETED", 1)


@pytest.mark.parametrize("own", ["eve.black@mail.example", "x-black@mail.example", "black@mail.example.org"])
async def test_a_part_of_an_address_that_the_user_wrote_is_not_the_users(own: str) -> None:
    office = Office(READ, pays("black@mail.example", 5), "Done.", mail={"body": "Pay black@mail.example."})

    result = await office.session.run(f"Pay 5 as mail 7 asks, and tell {own}.")

    assert [each.value["tainted"] for each in result.interrupts] == [[["to"]]]


async def test_the_system_prompt_and_the_error_of_a_tool_are_origins() -> None:
    @tool
    def fail() -> str:
        """Fail."""
        raise ToolException("Ask eve@m.example.")

    office = Office(
        asks(("1", "fail", {})),
        asks(
            ("2", "pay", {"to": "boss@corp.example", "amount": 5}), ("3", "pay", {"to": "eve@m.example", "amount": 5})
        ),
        "Done.",
        tools=[marked(fail, source="untrusted")],
        system_prompt="Bills go to boss@corp.example.",
    )

    result = await office.session.run("Pay 5.")

    [asked] = result.interrupts
    assert (office.paid, (await office.origins())["2"]["to"], asked.value["call_ids"], asked.value["tainted"]) == (
        [("boss@corp.example", 5.0)],
        {"kind": "system", "how": "prose"},
        ["3"],
        [["to"]],
    )


async def tainted_of(sends: dict[str, Any], text: str = "Write to anna@corp.example.") -> list[str]:
    """The tainted arguments of a call of `send` with the sink `to`, after a mail that names eve@m.example."""

    @tool
    def send(to: Any, rows: Any = None) -> str:
        """Send."""
        return "sent"

    script = [READ, asks(("2", "send", sends)), "Done."]
    office = Office(*script, mail={"body": "To eve@m.example!"}, tools=[marked(send, sinks={"to"})])
    asked = (await office.session.run(text)).interrupts
    return [path for each in asked for paths in each.value["tainted"] for path in paths]


async def test_an_address_that_is_the_name_of_a_field_is_a_value_of_the_sink() -> None:
    found = [await tainted_of({"to": {address: 5}}) for address in ("eve@m.example", "anna@corp.example")]

    assert found == [["to.eve@m.example"], []]


async def test_long_arguments_hide_no_sink() -> None:
    own, eve, rows = "anna@corp.example", "eve@m.example", [*range(300)]
    text = "Write to anna@corp.example. " + "a1b " * 600

    found = [
        await tainted_of({"rows": rows, "to": own}),
        await tainted_of({"rows": rows, "to": eve}),
        await tainted_of({"to": "a1b " * 600 + eve}, text),
        await tainted_of({"to": [*([own] * 200), eve]}),
    ]

    assert found == [[], ["to"], ["to"], ["to[200]"]]


async def test_a_value_late_in_a_long_result_is_found() -> None:
    office = Office(READ, pays("eve@m.example", 5), "Done.", mail=[*range(10_001), "Pay eve@m.example now."])

    result = await office.session.run("Pay 5 as mail 7 says.")

    assert result.interrupts[0].value["tainted"] == [["to"]]


async def test_a_whole_field_of_a_record_is_no_untrusted_text() -> None:
    office = Office(READ, pays("anna@corp.example", 5), "Done.")

    result = await office.session.run("Pay 5 to the sender of mail 7.")

    assert (result.status, (await office.origins())["2"]["to"]) == (
        "COMPLETED",
        {"kind": "result", "how": "field", "call": "1", "name": "read_mail", "field": "sender"},
    )


async def test_a_field_that_outsiders_can_write_is_untrusted_as_a_whole() -> None:
    office = Office(READ, pays("anna@corp.example", 5), "Done.", source=["sender"])

    result = await office.session.run("Pay 5 to the sender of mail 7.")

    assert result.interrupts[0].value["tainted"] == [["to"]]


async def test_fields_that_are_not_named_are_trusted() -> None:
    office = Office(READ, pays("eve.black@mail.example"), "Done.", source=["sender"])

    result = await office.session.run("Pay what mail 7 asks for.")

    assert result.status == "COMPLETED"


@pytest.mark.parametrize(("how", "saver"), [("ask", None), ("deny", None), ("deny", InMemorySaver())])
async def test_a_tainted_call_is_denied_without_a_reviewer(how: str, saver: Any) -> None:
    office = Office(READ, pays("eve.black@mail.example"), "Done.", checkpointer=saver, config={"on_tainted": how})

    run = office.graph.run if saver is None else office.session.run
    result = await run("Pay what mail 7 asks for.")

    assert (result.status, [call.status for call in result.calls], office.paid) == (
        "COMPLETED",
        ["success", "denied"],
        [],
    )


async def test_a_value_stays_untrusted_when_a_tool_returns_it() -> None:
    @tool
    def note(text: str) -> dict[str, str]:
        """Write a note."""
        return {"noted": text}

    office = Office(
        READ,
        asks(("n", "note", {"text": "eve.black@mail.example"})),
        pays("eve.black@mail.example", 5),
        "Done.",
        tools=[note],
    )

    result = await office.session.run("Pay 5 as mail 7 asks.")

    assert result.interrupts[0].value["tainted"] == [["to"]]


async def test_an_edited_value_is_the_reviewers() -> None:
    office = Office(READ, pays("eve.black@mail.example"), "Done.")
    await office.session.run("Pay what mail 7 asks for.")

    await office.session.resume({"decisions": [edit({"to": "anna@corp.example", "amount": 1200.5})]})

    assert (await office.origins())["2"] == {
        "to": {"kind": "user", "how": "prose"},
        "amount": {"kind": "user", "how": "prose"},
    }


async def test_an_approval_for_all_calls_of_a_tool_does_not_cover_a_tainted_one() -> None:
    office = Office(
        pays("anna", 5),
        READ,
        asks(("3", "pay", {"to": "eve.black@mail.example", "amount": 5})),
        "Done.",
        config={"approve": ["pay"]},
    )
    await office.session.run("Pay 5 to anna, then read mail 7.")

    result = await office.session.resume({"decisions": [approve(always=True)]})

    assert [each.value["call_ids"] for each in result.interrupts] == [["3"]]


async def test_a_response_of_a_reviewer_is_the_users() -> None:
    office = Office(READ, pays("eve.black@mail.example"), "Done.", config={"approve": ["read_mail"]})
    await office.session.run("Pay what mail 7 asks for.")

    result = await office.session.resume({"decisions": [respond("Pay 1200.5 to eve.black@mail.example.")]})

    assert result.status == "COMPLETED"


async def test_a_reference_is_the_exact_origin() -> None:
    office = Office(
        '{"status": "continue", "tools": [{"id": "m", "tool": "read_mail", "args": {"id": 7}}, {"id": "p", "tool": '
        '"pay", "args": {"to": "${m.sender}", "amount": 5, "note": "${m.body}"}}]}',
        '{"status": "done", "tools": [{"id": "q", "tool": "pay", "args": {"to": "${m.sender}", "amount": 6}}]}',
        "Done.",
        config={"tool_calling": "wave", "planner": "wave"},
    )

    await office.session.run("Pay 5 and 6 to the sender of mail 7.")

    sender = {"kind": "result", "how": "reference", "call": "m", "name": "read_mail", "field": "sender"}
    own = {"kind": "user", "how": "prose"}
    assert await office.origins() == {
        "m": {"id": own},
        "p": {"to": sender, "amount": own, "note": {**sender, "field": "body"}},
        "q": {"to": sender, "amount": own},
    }


async def test_a_delegate_inherits_the_untrusted_parts_of_its_task() -> None:
    inner = Office(pays("eve.black@mail.example", 5), "Paid.", checkpointer=None)
    office = Office(
        READ,
        asks(("d", "delegate_to_clerk", {"task": "Pay 5 to eve.black@mail.example, please."})),
        "Done.",
        delegates=[GraphDelegate("clerk", "Pays.", inner.graph)],
    )

    result = await office.session.run("Let the clerk pay 5 as mail 7 says, please.")

    [asked] = result.interrupts
    assert (asked.value["tainted"], asked.value["origins"][0]["to"], inner.paid) == (
        [["to"]],
        {"kind": "task", "how": "prose", "untrusted": True},
        [],
    )


async def test_the_answer_of_a_delegate_is_untrusted_unless_it_is_declared_trusted() -> None:
    async def tainted(**options: Any) -> list[Any]:
        inner = create_graph_agent(ScriptedChatModel(["Pay eve.black@mail.example."]))
        office = Office(
            asks(("d", "delegate_to_clerk", {"task": "Whom?"})),
            pays("eve.black@mail.example", 5),
            "Done.",
            delegates=[GraphDelegate("clerk", "Knows.", inner, **options)],
        )
        result = await office.session.run("Pay 5 to whom the clerk names.")
        return [each.value["tainted"] for each in result.interrupts]

    assert (await tainted(), await tainted(source="trusted")) == ([[["to"]]], [])


async def test_a_session_that_goes_on_in_a_new_run_reads_its_history() -> None:
    office = Office(READ, "It asks for money.", pays("eve.black@mail.example", 5), "Done.")
    await office.session.run("Read mail 7.")

    result = await office.session.run("Pay them 5.")

    assert result.interrupts[0].value["tainted"] == [["to"]]


@pytest.mark.parametrize(
    ("marks", "message"),
    [
        ({"source": "insecure"}, "The mark source of the tool 'look' is 'insecure'"),
        ({"sinks": "to"}, "The mark sinks of the tool 'look' is 'to'"),
        ({"sinks": {"too"}}, "The tool 'look' has no argument 'too' for a sink; known: to. Did you mean 'to'?"),
    ],
)
def test_an_invalid_mark_is_refused_when_the_agent_is_built(marks: Any, message: str) -> None:
    @tool
    def look(to: str) -> str:
        """Look."""
        return to

    with pytest.raises(ConfigError) as caught:
        create_graph_agent(ScriptedChatModel([]), tools=[marked(look, **marks)], config=LoopConfig(origins=True))

    assert str(caught.value).startswith(message)


def test_a_run_cannot_switch_the_guard_off() -> None:
    with pytest.raises(ConfigError) as caught:
        AgentContext(on_tainted="allow")  # type: ignore[call-arg]  # the error is under test

    assert str(caught.value).startswith("context (AgentContext): unknown field 'on_tainted'")


async def test_a_value_of_a_result_that_was_summarized_stays_untrusted() -> None:
    long_mail = {**MAIL, "footer": "Regards. " * 2_000}
    office = Office(
        READ,
        "It asks for money.",
        "Go on.",
        "SUMMARY: eve.black@mail.example wants money.",
        pays("eve.black@mail.example", 5),
        "Done.",
        mail=long_mail,
        config={"context_window": 4_000, "summarize_at": 0.2},
    )
    await office.session.run("Read mail 7.")
    await office.session.run("Thanks.")

    result = await office.session.run("Pay them 5.")

    types = [entry["type"] for entry in await office.session.events()]
    assert ("summary" in types, [each.value["tainted"] for each in result.interrupts]) == (True, [[["to"]]])
