"""What a checkpoint holds: plain JSON types and LangChain messages, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated, Any, NotRequired, Self, cast

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, BaseMessageChunk, RemoveMessage
from langgraph.channels import DeltaChannel, EphemeralValue
from langgraph.checkpoint.base import PendingWrite
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.managed import RemainingSteps
from langgraph.types import Overwrite
from typing_extensions import TypedDict

from graph_agent._compat import messages_delta_reducer
from graph_agent.events.types import StoredEvent, append_events
from graph_agent.state.channels import StatusChannel
from graph_agent.state.usage import add_usage
from graph_agent.types import Call, StopReason, Usage

# A delta channel writes a full copy every N updates; a small N would bring the quadratic growth back.
SNAPSHOT_EVERY = 1000


_ID = attrgetter("id")


class MessagesChannel(DeltaChannel[list[AnyMessage]]):
    """The delta channel of ``messages``: add, replace by id, remove by id, and remove all.

    LangGraph's own message reducer leaves ``REMOVE_ALL_MESSAGES`` out and indexes the whole history at each write; the
    reducer stays on the channel because LangGraph stamps message ids where it finds it (see ``_compat``).
    """

    def __init__(
        self,
        reducer: Any = messages_delta_reducer,
        typ: type[list[AnyMessage]] | None = None,
        *,
        snapshot_frequency: int = SNAPSHOT_EVERY,
    ) -> None:
        super().__init__(reducer, typ, snapshot_frequency=snapshot_frequency)

    def copy(self) -> Self:
        """A channel of its own with the same history, which no write ever changes in place.

        LangGraph copies every channel for each conditional edge, and copying a long history is what it need not do.
        """
        new = self.__class__(self.reducer, self.typ, snapshot_frequency=self.snapshot_frequency)
        new.key, new.value = self.key, self.value
        return new

    def update(self, values: Sequence[Any]) -> bool:
        """Fold one superstep's writes into the history; True when there were any."""
        if isinstance(self.value, list) and (new := _only_new(self.value, values)) is not None:
            self.value = [*self.value, *new]
            return bool(values)
        return super().update(_resets(values))

    def replay_writes(self, writes: Sequence[PendingWrite]) -> None:
        """Rebuild the history from stored writes, oldest first."""
        values = _resets([value for _, _, value in writes], live=False)
        super().replay_writes([("", self.key, value) for value in values])


def _only_new(state: list[AnyMessage], values: Sequence[Any]) -> list[AnyMessage] | None:
    """The written messages when every one is plainly new; None when a fold is needed."""
    new: list[Any] = []
    for value in values:
        new.extend(value) if isinstance(value, list) else new.append(value)
    ids = set()
    for message in new:
        if not isinstance(message, BaseMessage) or isinstance(message, BaseMessageChunk | RemoveMessage):
            return None
        ids.add(message.id)
    if None in ids or len(ids) != len(new) or not ids.isdisjoint(map(_ID, state)):
        return None
    return new


def _resets(values: Sequence[Any], *, live: bool = True) -> list[Any]:
    """Turn each "remove all" into an overwrite by what came after it, which the base channel knows."""
    folded: list[Any] = []
    for value in values:
        items = value if isinstance(value, list) else [value]
        cut = max((i for i, item in enumerate(items) if _removes_all(item)), default=None)
        if cut is None:
            folded.append(value)
            continue
        if live:
            # In one superstep the base channel keeps an overwrite alone, so earlier writes end here.
            folded.clear()
        folded.append(Overwrite(messages_delta_reducer([], [items[cut + 1 :]])))
    if live and len(folded) > 1 and isinstance(folded[0], Overwrite):
        return [Overwrite(messages_delta_reducer(folded[0].value, folded[1:]))]
    return folded


def _removes_all(item: Any) -> bool:
    return isinstance(item, RemoveMessage) and item.id == REMOVE_ALL_MESSAGES


class Outcome(TypedDict):
    """Why planning is over: what ``finalize`` is told by ``plan``."""

    stop_reason: StopReason
    limit: NotRequired[float]
    """The size of the limit that was met; absent where there is none."""
    limit_name: NotRequired[str]
    """The limit, where it is another than the stop reason names; see `RECURSION_LIMIT`."""
    draft: NotRequired[AIMessage]
    """The answer, where planning gave it; where planning was cut short, what of the answer was streamed."""
    shown: NotRequired[bool]
    """The draft has been streamed; absent for no."""
    unguarded: NotRequired[bool]
    """The draft has not been shown to hooks and middleware; absent for no."""
    unfit: NotRequired[bool]
    """The planning reply was streamed, and does not fit the response format; absent for no."""
    empty: NotRequired[bool]
    """The planning reply that was to be the answer was empty: the model is asked for it once more; absent for no."""


class Recovery(TypedDict, total=False):
    """What was done for one input so that a model answers."""

    fallback: int
    """Which model is asked: 0 or absent for the first, then the fallbacks from 1."""
    compacted: bool
    """The user was told that the older part of the history is left out of requests."""
    cut: bool
    """The user was told that results are cut further in requests."""
    crowded: bool
    """The user was told that the model's context window is nearly full."""
    asked_in_text: bool
    """A planning request was sent once more in text, as its reply hinted that tools are ignored."""
    free_choice: bool
    """The user was told that the tool which the caller wants called is withheld."""


class HookWork(TypedDict):
    """What loop hooks have done for one input; it bounds what they may still do."""

    reruns: int
    """Times they had the model asked again."""
    calls: list[str]
    """Fingerprints of the replies that reruns have replaced; a reply without calls has none."""
    ended: list[int]
    """Places, among the agent's hooks, of those whose rerun was refused: they have no more reruns."""


class Carried(TypedDict):
    """Messages that requests hold and the history does not."""

    at: int
    """How many messages of the history stand before them."""
    messages: list[AnyMessage]


class Bookkeeping(TypedDict):
    """Where the loop is. One field of the state, because each field costs bytes in every checkpoint."""

    step: int
    """Plans made for this input; 0 at its start."""
    waves: int
    """Waves run for this input; 0 at its start."""
    turn: int
    """Phase-1 model calls of the session; 0 at its start."""
    last_input_id: str
    """Id of the newest user message whose event is written; empty before the first."""
    text_tools: list[str]
    """Models whose provider turned tools down, so that this session calls them in text; empty until then."""
    native_tools: NotRequired[list[str]]
    """Models that have called a tool through their provider, where their profile does not say that they can."""
    outcome: Outcome | None
    """Why planning is over; None while it is not."""
    waiting: list[Call]
    """Calls of the wave that wait for others of it; empty outside structured planning."""
    last_wave: bool
    """The model has said that nothing is to be planned after this wave; False until then."""
    taken: NotRequired[list[str]]
    """Keys of the notes taken in that the inbox may still hold; absent for none."""
    changed: NotRequired[dict[str, Any]]
    """Fields of the configuration that were changed while the session went on; absent for none."""
    worked_s: NotRequired[float]
    """Seconds this input had been worked on at the last step; only under a deadline."""
    loops: NotRequired[dict[str, int]]
    """Pattern of calls → how often it went on with equal results in this input; absent for none."""
    withheld: NotRequired[list[str]]
    """Tools not offered until the next input, because their calls and results repeated; absent for none."""
    unchanging: NotRequired[list[str]]
    """Tools reported in this input for equal results of different arguments; absent for none."""
    ledger: NotRequired[bool]
    """Each writing call of the wave is noted right before it runs; absent where none is."""
    recovery: NotRequired[Recovery]
    """What it took so far to have this input's requests answered; absent at its start."""
    carried: NotRequired[list[Carried]]
    """What hooks keep before the model for the rest of this input; absent or empty for nothing."""
    hooks: NotRequired[HookWork]
    """What hooks have done for this input; absent for nothing."""
    kept_from: NotRequired[str]
    """Id of the first message that requests still hold in full; absent while they hold them all."""
    cuts: NotRequired[dict[str, int]]
    """Id of a result's message → characters of it that requests hold; absent while none is cut further."""


NOT_BEGUN: Bookkeeping = {
    "step": 0,
    "waves": 0,
    "turn": 0,
    "last_input_id": "",
    "text_tools": [],
    "outcome": None,
    "waiting": [],
    "last_wave": False,
}


class AgentInput(TypedDict):
    """What a run takes."""

    messages: Annotated[list[AnyMessage], MessagesChannel()]
    """New messages, usually one from the user. Anything LangChain can read as a message."""


class AgentOutput(TypedDict, total=False):
    """What a run returns."""

    messages: Annotated[list[AnyMessage], MessagesChannel()]
    """The whole conversation as a chat window shows it."""
    status: Annotated[str, StatusChannel]
    """A `SessionStatus`; absent before the first input. A change that the session's states do not have is refused."""
    stop_reason: str | None
    """A `StopReason`; None while running."""
    structured_response: Any
    """The answer as plain JSON after ``response_format``; None where none was asked for or it could not be had."""


class AgentState(AgentOutput, total=False):
    """Everything a checkpoint holds."""

    events: Annotated[list[StoredEvent], DeltaChannel(append_events, snapshot_frequency=SNAPSHOT_EVERY)]
    """The history; empty before the first input. Read it through `SessionMemory`."""
    loop: Bookkeeping
    """Where the loop is; absent before the first input."""
    ready: list[Call]
    """The calls to run next; empty when planning is over."""
    usage: Annotated[Usage, add_usage]
    """Tokens and model calls of this input; zeros at its start."""
    remote: Annotated[RemoteState | None, change_remote]
    """Tasks and conversations that other agents hold for this session; absent before the first."""
    arrived: Annotated[bool, EphemeralValue(bool, guard=False)]
    """True only in the superstep after a wave: what tells a continued run from a new input."""


class PlanState(AgentState, total=False):
    """What ``plan`` reads: the state, and how many supersteps LangGraph still allows."""

    remaining_steps: RemainingSteps


class RemoteTask(TypedDict):
    """A task of another agent that waits for a person."""

    delegate: str
    """The delegate's name."""
    task_id: str
    """The task's id, as the other agent gave it."""
    context_id: str
    """The conversation it belongs to there; empty where the agent keeps none."""
    question: str
    """What the other agent wants to know."""
    usage: NotRequired[dict[str, Any]]
    """What the task had used when it asked, as a `Usage`, which is counted by then; absent where nobody told."""


class RemoteState(TypedDict):
    """What a session keeps of other agents."""

    contexts: dict[str, str]
    """Delegate name → the conversation this session has with it."""
    open: dict[str, RemoteTask]
    """Call id → the task behind it that waits for a person."""


class RemoteChange(TypedDict):
    """A write: what is new."""

    contexts: dict[str, str]
    open: dict[str, RemoteTask | None]
    """None for a task that waits no longer."""


NOTHING_REMOTE: RemoteState = {"contexts": {}, "open": {}}


def change_remote(state: RemoteState | None, change: RemoteChange | None) -> RemoteState | None:
    """Reducer of `remote`: the change laid over what is kept."""
    if not change:
        return state
    state = state or NOTHING_REMOTE
    tasks = {**state["open"], **change["open"]}
    return {
        "contexts": {**state["contexts"], **change["contexts"]},
        "open": cast("dict[str, RemoteTask]", {id_: task for id_, task in tasks.items() if task is not None}),
    }
