"""The dialog in which a person answers a session's open questions, one line of input after the other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from graph_agent.approvals.text import parse_answer
from graph_agent.cli.questions import Action, Decision, Question, check_allowed, edit, parse_arguments
from graph_agent.errors import InputError

_WORDS = {
    "y": "approve",
    "yes": "approve",
    "approve": "approve",
    "n": "reject",
    "no": "reject",
    "reject": "reject",
    "e": "edit",
    "edit": "edit",
    "a": "always",
    "always": "always",
    "r": "respond",
    "respond": "respond",
}
_LABELS = {"approve": "[y]es", "reject": "[n]o", "edit": "[e]dit", "respond": "[r]espond"}


@dataclass(slots=True)
class Dialog:
    """Asks for each decision and collects the answers.

    The caller prints `text` before each new question, reads one input with `label` as its prompt and `default` as its
    editable beginning, and passes it to `submit`, until `answers` is not None.
    """

    questions: Sequence[Question]
    """The open questions; not empty."""
    always: set[str] = field(default_factory=set)
    """Titles of the calls that are approved without a question; the dialog adds to it."""
    error: str = ""
    """Why the last input was refused; empty if it was accepted."""
    _at: int = 0
    _decisions: list[Decision] = field(default_factory=list)
    _answers: dict[str, Any] = field(default_factory=dict)
    _awaits: str = ""
    """The text that the next input is: `edit`, `reject` or `respond`; empty for a choice."""
    _draft: str = ""

    def __post_init__(self) -> None:
        self._skip_approved()

    @property
    def answers(self) -> dict[str, Any] | None:
        """Interrupt id → answer; None while a question is open."""
        return self._answers if self._at == len(self.questions) else None

    @property
    def text(self) -> str:
        """The open question, as lines of text; empty if the next input belongs to the same question."""
        if self.answers is not None or self._awaits:
            return ""
        action = self._action
        if action is None:
            value = self._question.value
            return value if isinstance(value, str) else _as_yaml(value)
        total = len(self._question.actions)
        number = f" ({len(self._decisions) + 1} of {total})" if total > 1 else ""
        lines = [f"Approve this call?{number}", f"  {action.title}"]
        lines += [f"    {line}" for line in _as_yaml(action.args).splitlines()]
        return "\n".join([*lines, *([f"  {action.description}"] if _is_news(action) else [])])

    @property
    def label(self) -> str:
        """The prompt of the next input."""
        if self._awaits:
            return {"edit": "arguments: ", "reject": "reason (may be empty): ", "respond": "result: "}[self._awaits]
        if (action := self._action) is None:
            return "answer: "
        options = [_LABELS[kind] for kind in ("approve", "reject", "edit", "respond") if kind in action.allowed]
        if "approve" in action.allowed:
            options.append("[a]lways")
        return f"{', '.join(options)}: "

    @property
    def default(self) -> str:
        """The editable beginning of the next input."""
        return self._draft if self._awaits == "edit" else ""

    @property
    def is_long(self) -> bool:
        """Whether the next input may have several lines."""
        return bool(self._awaits) or self._action is None

    def submit(self, given: str) -> None:
        """Take in one input; sets `error` if it is refused, and the same question stays open."""
        self.error = ""
        try:
            self._take(given)
        except InputError as error:
            self.error = str(error)
            self._draft = given

    def _take(self, given: str) -> None:
        action = self._action
        if action is None:
            if not given.strip():
                raise InputError("An answer is needed.")
            self._close_question(parse_answer(given))
        elif self._awaits == "edit":
            self._decide(edit(action, parse_arguments(given)))
        elif self._awaits == "reject":
            self._decide({"type": "reject", "message": given.strip()} if given.strip() else {"type": "reject"})
        elif self._awaits == "respond":
            self._decide({"type": "respond", "message": given})
        else:
            self._choose(given.strip().lower(), action)

    def _choose(self, given: str, action: Action) -> None:
        kind = _WORDS.get(given)
        if kind is None:
            raise InputError(f"{given!r} is none of the choices: {self.label.rstrip(': ')}.")
        check_allowed("approve" if kind == "always" else kind, action)
        if kind == "always":
            self.always.add(action.title)
        if kind in ("approve", "always"):
            self._decide({"type": "approve"})
        else:
            self._awaits = kind
            self._draft = json.dumps(action.args, ensure_ascii=False, indent=2)

    def _decide(self, decision: Decision) -> None:
        self._awaits = ""
        self._decisions.append(decision)
        if len(self._decisions) == len(self._question.actions):
            self._close_question(self._question.answer(self._decisions))
        self._skip_approved()

    def _close_question(self, answer: Any) -> None:
        self._answers[self._question.id] = answer
        self._at += 1
        self._decisions = []

    def _skip_approved(self) -> None:
        action = self._action
        if action is not None and action.title in self.always and "approve" in action.allowed:
            self._decide({"type": "approve"})

    @property
    def _question(self) -> Question:
        return self.questions[self._at]

    @property
    def _action(self) -> Action | None:
        """The call that the next decision is for; None for a question of another kind, and after the last."""
        if self._at == len(self.questions) or not self._question.actions:
            return None
        return self._question.actions[len(self._decisions)]


def _is_news(action: Action) -> bool:
    """Whether the description has more than the name and the arguments, as LangChain's default has."""
    described = action.description not in ("", f"Delegate {action.delegate}")
    return described and str(action.args) not in action.description


def _as_yaml(value: Any) -> str:
    try:
        text: str = yaml.safe_dump(value, allow_unicode=True, sort_keys=False, default_flow_style=False)
    except yaml.representer.RepresenterError:  # an interrupt may have any value
        text = json.dumps(value, ensure_ascii=False, indent=2, default=str)
    return text.removesuffix("...\n").rstrip()
