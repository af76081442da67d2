"""Converts open interrupts to questions to a person, asks them, and reads the answers.

An interrupt is an open question of a session. Approvals have LangChain's shape: the interrupt's value is a
`HITLRequest`, its answer a `HITLResponse`. A decision is what a person decided on one call: `approve`, `reject`, `edit`
(run with other arguments) or `respond` (use a given text as the result).
"""

from __future__ import annotations

import getpass
import json
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import yaml

from graph_agent.base._internal.text import printable, visible, visible_json
from graph_agent.base._internal.yaml_files import load_yaml
from graph_agent.base.approvals.decisions import DEFAULT_DECIDER, standing_approval, standing_approval_covers
from graph_agent.base.approvals.elicitation import elicitation_text, is_elicitation, read_elicitation_answer
from graph_agent.base.approvals.requests import DECISIONS, calls_of_request, is_single_call, request_of
from graph_agent.base.approvals.text import parse_answer
from graph_agent.base.database_urls import MEMORY
from graph_agent.base.errors import InputError
from graph_agent.base.origins import origins_text
from graph_agent.interfaces.cli.terminal import Terminal
from graph_agent.interfaces.cli.typed_keys import discard_typed_keys

if TYPE_CHECKING:
    from langgraph.types import Interrupt


DecisionFields = dict[str, Any]
"""One decision of a `HITLResponse`, e.g. `{"type": "approve"}` or `{"type": "reject", "message": "too expensive"}`."""

_WORDS = {
    **dict.fromkeys(("y", "yes", "approve"), "approve"),
    **dict.fromkeys(("n", "no", "reject"), "reject"),
    **dict.fromkeys(("e", "edit"), "edit"),
    **dict.fromkeys(("a", "always"), "always"),
    **dict.fromkeys(("r", "respond"), "respond"),
}
"""What can be typed as a choice → the kind of decision; `always` approves later calls of the same tool, too."""
_DETAILS = {
    "edit": "Enter submits, Ctrl-C goes back. Alt-Enter starts a new line, Ctrl-X Ctrl-E opens an editor.\narguments: ",
    "reject": "Enter submits, Ctrl-C goes back.\nreason (may be empty): ",
    "respond": "Enter submits, Ctrl-C goes back. Alt-Enter starts a new line.\nresult: ",
}
"""Prompts of the text that a choice needs."""
_LABELS = {"approve": "[y]es", "reject": "[n]o", "edit": "[e]dit", "respond": "[r]espond"}
WAITING = 4
"""Exit status of a command whose session waits for an answer."""


@dataclass(frozen=True, slots=True)
class ReviewedCall:
    """One call that waits for a decision; a call may allow only some kinds of decisions."""

    name: str
    args: dict[str, Any]
    description: str
    """Text for the reviewer; empty if there is none."""
    allowed: tuple[str, ...]
    """The kinds of decisions that the call allows, in the order of `DECISIONS`."""
    delegate: str = ""
    """Name of the delegate (another agent) that planned the call; empty for a call of the agent itself."""
    origins: tuple[str, ...] = ()
    """One line for each argument whose origin is known: the path of the argument, and where its value comes from."""
    may_be_covered: bool = True
    """Whether `always`, chosen for an earlier call of the same title, or `--approve-all` decides on this one, too.

    False for a call that may have run before, or whose destination is from untrusted text.
    """

    @property
    def title(self) -> str:
        """The name of the tool, and of the delegate that planned the call, if any, e.g. `book` or `book (delegate
        travel)`.
        """
        return f"{self.name} (delegate {self.delegate})" if self.delegate else self.name


@dataclass(frozen=True, slots=True)
class Question:
    """One open interrupt: an approval of one or more calls, or a question of another kind."""

    id: str
    """Id of the interrupt."""
    value: Any
    """The interrupt's value."""
    actions: tuple[ReviewedCall, ...]
    """The calls that wait for a decision, in order; empty for a question of another kind."""

    def answer(self, decisions: Sequence[DecisionFields]) -> Any:
        """Return the value that resumes the interrupt.

        It is `{"decisions": […]}`, or the one decision alone if the interrupt's value has the shape of a single call.

        Args:
            decisions: One decision for each of `actions`, in order.
        """
        return decisions[0] if is_single_call(self.value) else {"decisions": [*decisions]}


def user_name() -> str:
    """Return the login name of this process, which is recorded with decisions; `user` if the process has none."""
    try:
        return getpass.getuser()
    # A container may run with a user id that has no name.
    except (OSError, KeyError):
        return DEFAULT_DECIDER


def signed(answers: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of answers in which each decision has this process's login name as `decided_by`.

    Decisions that have a name already, and answers that are not decisions, are unchanged.

    Args:
        answers: Interrupt id → answer.
    """
    return {id_: _signed(answer, user_name()) for id_, answer in answers.items()}


def _signed(answer: Any, user: str) -> Any:
    """Return an answer to an interrupt, with `decided_by: user` in each of its decisions that has no `decided_by`.

    `answer` may be one decision, or have a list of them under `decisions`. Any other value is returned unchanged.
    """
    if not isinstance(answer, dict):
        return answer
    if isinstance(decisions := answer.get("decisions"), list):
        return {**answer, "decisions": [_signed(each, user) for each in decisions]}
    # A decision that was made for the person has a name already.
    return {"decided_by": user, **answer} if "decisions" in answer or answer.get("type") in DECISIONS else answer


def questions_of(interrupts: Sequence[Interrupt]) -> list[Question]:
    """Return the questions of open interrupts, in order. A question that is not an approval has no actions."""
    return [Question(each.id, each.value, _actions(each)) for each in interrupts]


def describe_question(question: Question) -> list[str]:
    """Return a question as printable lines.

    An approval has one line for each of its calls, e.g. `book {"city": "Rome"}`, with the origins of the arguments in
    brackets if they are known. Any other question has one line with the interrupt's value.
    """
    if question.actions:
        lines = [f"{visible(action.title)} {visible_json(action.args)}" for action in question.actions]
        origins = [visible("; ".join(action.origins)) for action in question.actions]
        return [f"{line} ({origin})" if origin else line for line, origin in zip(lines, origins, strict=True)]
    value = question.value
    return [visible(value) if isinstance(value, str) else visible_json(value)]


def parse_decision(text: str, action: ReviewedCall) -> DecisionFields:
    """Parse a decision of the command line on a call, and return its fields.

    `text` is `approve`, `reject`, `reject:REASON`, `edit:ARGUMENTS` (an object as JSON or YAML) or `respond:TEXT`; the
    word before the colon may be in upper case. Raises `InputError` for another form, or if the call does not allow the
    decision.
    """
    kind, colon, rest = text.partition(":")
    kind, rest = kind.strip().lower(), rest.strip()
    if kind not in DECISIONS or (kind == "approve" and colon) or (kind in ("edit", "respond") and not rest):
        raise InputError(
            f"The decision {text!r} has another form; write approve, reject, reject:REASON, "
            "edit:{arguments as JSON} or respond:TEXT."
        )
    check_decision(kind, action)
    if kind == "edit":
        return edit_decision(action, parse_typed_arguments(rest))
    return {"type": kind, "message": rest} if rest else {"type": kind}


def check_decision(kind: str, action: ReviewedCall) -> None:
    """Raise `InputError` if a call does not allow a kind of decision."""
    if kind not in action.allowed:
        raise InputError(f"The call {action.name} does not allow {kind!r}; allowed: {', '.join(action.allowed)}.")


def edit_decision(action: ReviewedCall, arguments: dict[str, Any]) -> DecisionFields:
    """Return the decision to run a call's tool with other arguments."""
    return {"type": "edit", "edited_action": {"name": action.name, "args": arguments}}


def parse_typed_arguments(text: str) -> dict[str, Any]:
    """Parse the arguments of a call: a JSON or YAML object with text keys; an empty text or null is an empty object.

    Raises `InputError` for anything else.
    """
    try:
        value = json.loads(text)
    except ValueError:
        try:
            value = load_yaml(text)
        except yaml.YAMLError as error:
            raise InputError(f"The arguments are not JSON or YAML: {' '.join(str(error).split())}.") from None
    # An empty text is a call without arguments.
    if value is None:
        value = {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise InputError(f'The arguments must be an object, such as {{"path": "a.txt"}}; got {value!r}.')
    return value


def _actions(interrupt: Interrupt) -> tuple[ReviewedCall, ...]:
    """Return the calls of an approval request, in order; empty if the interrupt is not an approval request.

    Each call has its allowed decisions, the origins of its arguments, and the delegate that asks (empty for the agent).
    """
    if (request := request_of(interrupt)) is None:
        return ()
    delegate = request["delegate"] if isinstance(request.get("delegate"), str) else ""
    return tuple(
        ReviewedCall(
            call["name"],
            call["arguments"],
            call.get("description", ""),
            tuple(kind for kind in DECISIONS if kind in call["allowed_decisions"]),
            delegate,
            tuple(origins_text(call)),
            standing_approval_covers(call),
        )
        for call in calls_of_request(request)
    )


@dataclass(slots=True)
class Dialog:
    """Asks the open questions one by one, without input or output of its own, and collects the answers.

    The caller repeats, until `answers` is not None: print `text` if it is not empty, read one line with `label` as the
    prompt and `default` as its editable beginning, and pass the line to `submit`. A choice may need a second line, e.g.
    the reason of a rejection.
    """

    questions: Sequence[Question]
    """The open questions; not empty."""
    approves: bool = False
    """Whether calls that a standing approval may cover are approved without asking, as with `--approve-all`."""
    error: str = ""
    """Why the last line was refused; empty if it was accepted."""
    _at: int = 0
    """Index of the open question in `questions`."""
    _decisions: list[DecisionFields] = field(default_factory=list)
    """Decisions on the calls of the open question, in order, so far."""
    _answers: dict[str, Any] = field(default_factory=dict)
    """Interrupt id → answer, for the questions before the open one."""
    _awaits: str = ""
    """The kind of text that the next line is, `edit`, `reject` or `respond`; empty if a choice is expected."""
    _draft: str = ""
    """The editable beginning of the next line of `edit`: the arguments, or the text that was refused."""
    _always: set[str] = field(default_factory=set)
    """Titles of the calls for which `always` was chosen.

    Further calls with these titles are approved without asking; calls of later requests are approved by the session.
    """

    def __post_init__(self) -> None:
        """Approve the first calls if they are approved without asking."""
        self._skip_approved()

    @property
    def answers(self) -> dict[str, Any] | None:
        """Interrupt id → answer; None while a question is open."""
        return self._answers if self._at == len(self.questions) else None

    @property
    def text(self) -> str:
        """The text to print before the next line is read: the open question, for an approval with its call and
        arguments.

        Empty if the next line continues a question that was printed, or all questions are answered.
        """
        if self.answers is not None or self._awaits:
            return ""
        action = self._action
        if action is None:
            value = self._question.value
            if is_elicitation(value):
                return elicitation_text(value)
            return value if isinstance(value, str) else _as_yaml(value)
        total = len(self._question.actions)
        number = f" ({len(self._decisions) + 1} of {total})" if total > 1 else ""
        lines = [f"Approve this call?{number}", f"  {visible(action.title)}"]
        lines += [f"    {visible(line)}" for line in _as_yaml(action.args).split("\n")]
        lines += [f"  {visible(line)}" for line in action.origins]
        return "\n".join([*lines, *(f"  {visible(line)}" for line in _news(action).splitlines())])

    @property
    def label(self) -> str:
        """The prompt of the next line, for a call with the decisions that it allows: `[y]es, [n]o, [a]lways: `."""
        if self._awaits:
            return _DETAILS[self._awaits]
        if (action := self._action) is None:
            return "answer: "
        options = [_LABELS[kind] for kind in ("approve", "reject", "edit", "respond") if kind in action.allowed]
        if "approve" in action.allowed:
            options.append("[a]lways")
        return f"{', '.join(options)}: "

    @property
    def default(self) -> str:
        """The editable beginning of the next line: the arguments of a call that is edited, otherwise empty."""
        return self._draft if self._awaits == "edit" else ""

    @property
    def accepts(self) -> Literal["choice", "text", "detail"]:
        """What the next line is: a `choice` among decisions, the `text` that answers a question, or the `detail` that a
        choice needs, such as a reason.
        """
        return "detail" if self._awaits else "text" if self._action is None else "choice"

    def go_back(self) -> bool:
        """Return from the text that a choice needs to the choice itself, and clear `error`.

        Returns False if a choice or an answer is expected already, so that there is nothing to go back from.
        """
        returns, self._awaits, self.error = bool(self._awaits), "", ""
        return returns

    def submit(self, given: str) -> None:
        """Process one line: answer the question, decide on its call, or expect the text that a choice needs in the next
        line.

        A line that is refused sets `error` and becomes the `default` of the next line; the same question stays open.
        Any other line clears `error`.
        """
        self.error = ""
        try:
            self._take(given)
        except InputError as error:
            self.error = str(error)
            # The refused text can be corrected instead of being typed again.
            self._draft = given

    def _take(self, given: str) -> None:
        """Process one line as what the dialog expects: an answer, the new arguments of a call, a reason, a result, or a
        choice.

        A blank reason rejects without one. A blank result is permitted, a blank answer is not. Raises `InputError` if
        the line is refused; nothing is decided then.
        """
        action = self._action
        if action is None:
            if not given.strip():
                raise InputError("An answer is needed.")
            answer, value = parse_answer(given), self._question.value
            self._close_question(read_elicitation_answer(value, answer).as_value() if is_elicitation(value) else answer)
        elif self._awaits == "edit":
            self._decide(edit_decision(action, parse_typed_arguments(given)))
        elif self._awaits == "reject":
            self._decide({"type": "reject", "message": given.strip()} if given.strip() else {"type": "reject"})
        elif self._awaits == "respond":
            self._decide({"type": "respond", "message": given})
        else:
            self._choose(given.strip().lower(), action)

    def _choose(self, given: str, action: ReviewedCall) -> None:
        """Process a choice, e.g. `y` or `edit`: decide on the call, or expect the text that the choice needs.

        Raises `InputError` for an unknown choice, or one that the call does not allow.

        Args:
            given: The choice, in lower case.
            action: The call that it decides on.
        """
        kind = _WORDS.get(given)
        if kind is None:
            raise InputError(f"{given!r} is none of the choices: {self.label.rstrip(': ')}.")
        check_decision("approve" if kind == "always" else kind, action)
        if kind == "always":
            self._always.add(action.title)
            self._decide({"type": "approve", "always": True})
        elif kind == "approve":
            self._decide({"type": "approve"})
        else:
            self._awaits = kind
            # The person edits the planned arguments.
            self._draft = visible_json(action.args, indent=2)

    def _decide(self, decision: DecisionFields) -> None:
        """Record the decision on the current call, and then approve following calls that need no question.

        After the decision on a question's last call, the question is closed with its decisions, and the next one is
        open.
        """
        self._awaits = ""
        self._decisions.append(decision)
        if len(self._decisions) == len(self._question.actions):
            self._close_question(self._question.answer(self._decisions))
        self._skip_approved()

    def _close_question(self, answer: Any) -> None:
        """Store the answer of the open question, and open the next one."""
        self._answers[self._question.id] = answer
        self._at += 1
        self._decisions = []

    def _skip_approved(self) -> None:
        """Approve the next call, and the ones after it, for as long as `approves` or the reviewer's `always` covers
        them.

        A call that no standing approval may cover, a question that is no approval, and the end of the questions stop
        it.
        """
        action = self._action
        if action is None or not action.may_be_covered:
            return
        if self.approves:
            self._decide({"type": "approve"})
        elif action.title in self._always:
            self._decide({**standing_approval(user_name())})

    @property
    def _question(self) -> Question:
        """The open question. Raises `IndexError` if all are answered."""
        return self.questions[self._at]

    @property
    def _action(self) -> ReviewedCall | None:
        """The call that the next decision is about; None if the open question is not an approval, or all are
        answered.
        """
        if self._at == len(self.questions) or not self._question.actions:
            return None
        return self._question.actions[len(self._decisions)]


def _news(action: ReviewedCall) -> str:
    """Return the description of a call; empty if it ends with the arguments, as LangChain's default description."""
    is_known = action.description == f"Delegate {action.delegate}" or action.description.endswith(str(action.args))
    return "" if is_known else action.description


def _as_yaml(value: Any) -> str:
    """Return a value as YAML text, or as JSON text if YAML cannot write one of its types; without a line feed at the
    end.
    """
    try:
        text: str = yaml.safe_dump(value, allow_unicode=True, sort_keys=False, default_flow_style=False)
    except yaml.representer.RepresenterError:  # an interrupt may have any value
        text = json.dumps(value, ensure_ascii=False, indent=2, default=str)
    # YAML ends a single value with a document marker.
    return text.removesuffix("...\n").rstrip()


AskPerson = Callable[[Sequence[Question]], Awaitable[dict[str, Any] | None]]
"""Asks questions, and returns interrupt id → answer; None leaves the session waiting."""


async def ask_at_terminal(err: Terminal, questions: Sequence[Question]) -> dict[str, Any] | None:
    """Ask questions at the terminal, and return interrupt id → answer.

    Keys that were typed before are dropped first. In the text that a choice needs, such as a reason, Ctrl-C or Ctrl-D
    goes back to the choice; at a choice or an answer, the function returns None. Questions and errors are printed to
    `err`.
    """
    # Imported here: commands without a terminal need no editor.
    from graph_agent.interfaces.cli.editor import LineEditor

    dialog = Dialog(questions)
    editor = LineEditor()
    discard_typed_keys()
    while (answers := dialog.answers) is None:
        show_question(err, dialog)
        try:
            dialog.submit(await editor.read(dialog.label, default=dialog.default, handle_signal=False))
        except (EOFError, KeyboardInterrupt):
            if not dialog.go_back():
                return None
    return answers


async def approve_all(questions: Sequence[Question]) -> dict[str, Any] | None:
    """Return answers that approve every call without asking, as interrupt id → answer.

    Returns None if a question is not an approval, a call does not allow `approve`, or a person must decide on a call
    because it may have run before or its destination is from untrusted text.
    """
    return Dialog(questions, approves=True).answers


async def leave_waiting(questions: Sequence[Question]) -> dict[str, Any] | None:
    """Return None, so that the session keeps waiting; used if there is no terminal to ask at."""
    return None


@dataclass(frozen=True, slots=True)
class GivenAnswers:
    """The decisions and answers that options of `graph-agent resume` give in advance."""

    approve_all: bool = False
    """Approve every call."""
    reject_all: bool = False
    """Reject every call."""
    message: str = ""
    """The reason of `reject_all`, for the model; empty if there is none."""
    decisions: Sequence[str] = field(default=())
    """One text for each waiting call, in order, in the form that `parse_decision` reads."""
    answers: Sequence[str] = field(default=())
    """One text for each question that is not an approval, in order."""

    @property
    def is_empty(self) -> bool:
        """Whether neither decisions nor answers are given."""
        return not (self.approve_all or self.reject_all or self.decisions or self.answers)

    def resolve(self, questions: Sequence[Question]) -> dict[str, Any]:
        """Return interrupt id → answer for all questions.

        Raises:
            InputError: More than one of `approve_all`, `reject_all` and `decisions` is given; there is not one decision
                for each call and one answer for each other question; or a decision is invalid or not allowed.
        """
        # Together they could contradict each other.
        if self.approve_all + self.reject_all + bool(self.decisions) > 1:
            raise InputError("Give one of --approve-all, --reject-all and --decision.")
        calls = [action for question in questions for action in question.actions]
        others = [question for question in questions if not question.actions]
        given = self._texts(len(calls))
        if len(given) != len(calls) or len(self.answers) != len(others):
            raise InputError(
                f"The options have {len(given)} decisions and {len(self.answers)} answers for {len(calls)} calls and "
                f"{len(others)} questions; give one --decision for each call and one --answer for each question, in "
                f"this order: {'; '.join(line for question in questions for line in describe_question(question))}"
            )
        decisions = [parse_decision(text, action) for text, action in zip(given, calls, strict=True)]
        return _by_id(questions, decisions, self.answers)

    def _texts(self, calls: int) -> Sequence[str]:
        """Return the given decisions as texts that `parse_decision` reads.

        For `approve_all` and `reject_all` there is one for each of `calls` calls, otherwise the list is `decisions`,
        whatever its length.
        """
        if self.approve_all:
            return ["approve"] * calls
        if self.reject_all:
            return [f"reject:{self.message}" if self.message else "reject"] * calls
        return self.decisions


def _by_id(
    questions: Sequence[Question], decisions: Sequence[DecisionFields], answers: Sequence[str]
) -> dict[str, Any]:
    """Distribute decisions to calls and answers to the other questions, both in order; return interrupt id → answer.

    There must be one decision for each call, and one answer for each question without calls. An answer that is a JSON
    object or array is parsed, any other stays text.
    """
    remaining, texts = iter(decisions), iter(answers)
    return {
        question.id: question.answer([next(remaining) for _ in question.actions])
        if question.actions
        else parse_answer(next(texts))
        for question in questions
    }


def show_question(err: Terminal, dialog: Dialog) -> None:
    """Print what must be shown before the next line: why the last line was refused, or else the next question.

    Prints nothing if the line continues a question that was printed, or all questions are answered.
    """
    if dialog.error:
        err.print(dialog.error, style="red")
    elif dialog.text:
        err.print(f"\n{dialog.text}", style="yellow")


def show_how_to_go_on(
    err: Terminal, session_id: str, questions: Sequence[Question], options: Sequence[str], db: str
) -> None:
    """Print the open questions of a session, numbered, and the `graph-agent resume` command that answers them.

    Args:
        err: Where to print.
        session_id: Id of the session.
        questions: The open questions.
        options: Options for the command that select the same agent and database.
        db: URL of the database. For `memory:` a note is printed in place of the command, because the session ends with
            the process.
    """
    err.print(f"Session {printable(session_id)} waits for an answer:", style="yellow")
    for number, line in enumerate((line for question in questions for line in describe_question(question)), 1):
        err.line(f"  {number}. {line}", style="yellow")
    # The command that is printed below could not find the session.
    if db == MEMORY:
        err.print("Its database ends with this process, so nothing can answer it.", style="dim")
        return
    answer = "--approve-all" if all(question.actions for question in questions) else "--answer TEXT"
    command = shlex.join(["graph-agent", "resume", session_id, *options])
    err.line(f"Go on with: {command} [{answer}]", style="dim")
