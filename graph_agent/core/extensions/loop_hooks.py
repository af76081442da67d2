"""Sorts the objects of `hooks=`, and wraps loop hooks around model requests: a rerun calls the handler again.

A rerun is a further request to the model, whose reply replaces the one that a hook inspected.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar, get_args

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage

from graph_agent.base._internal.text import common_length
from graph_agent.base.calls import fingerprint
from graph_agent.base.errors import ConfigError
from graph_agent.base.types import Call
from graph_agent.base.usage import LimitMet, LimitMetError
from graph_agent.core.extensions.hook_copies import LazyRequestCopy, copied
from graph_agent.core.extensions.hook_failures import fail_or_skip
from graph_agent.core.extensions.hook_protocol import (
    HookAction,
    HookRequest,
    HookResponse,
    LoopHook,
    LoopPlan,
    OnError,
    RequestPatch,
    sees_answers,
    tool_schema,
)
from graph_agent.core.extensions.request_messages import without_open_calls
from graph_agent.core.state.schema import HookWork
from graph_agent.models.retry import run_side_call

_METHODS = ("should_run", "build_plan")
"""Methods that every loop hook has."""


class HookList(NamedTuple):
    """The hooks of an agent, sorted by kind."""

    hooks: tuple[LoopHook, ...]
    """Loop hooks that inspect replies, in call order."""
    rewriters: tuple[LoopHook, ...]
    """Loop hooks that rewrite the tool results of requests, in call order."""
    middleware: tuple[Any, ...]
    """`AgentMiddleware`, outermost first."""
    offered: list[dict[str, Any]]
    """OpenAI schemas of the tools that hooks offer."""


def sort_hooks(given: Sequence[Any]) -> HookList:
    """Sort the objects given as `hooks=` into loop hooks and LangChain middleware, keeping the order within each kind.

    A loop hook that rewrites results is a rewriter, and also a reviewer (`hooks`) only if it overrides `should_run`, so
    that replies can otherwise be streamed. The schemas of tools that loop hooks offer are copied.

    Args:
        given: The objects.

    Raises:
        ConfigError: An object is neither, is a class instead of an instance, or has an invalid `on_error` or tool.
    """
    hooks: list[LoopHook] = []
    middleware: list[Any] = []
    offered: list[dict[str, Any]] = []
    for hook in given:
        if _is_middleware(hook):
            middleware.append(hook)
            continue
        if isinstance(hook, type):
            raise ConfigError(f"hooks: {hook.__name__} is a class; give an object of it: {hook.__name__}(…).")
        if not all(callable(getattr(hook, method, None)) for method in _METHODS):
            raise ConfigError(
                f"hooks: {hook!r} is no hook; give a LoopHook, with should_run and build_plan, or an AgentMiddleware."
            )
        on_error = getattr(hook, "on_error", "fail")
        if on_error not in get_args(OnError):
            raise ConfigError(f"hooks: {type(hook).__name__}.on_error={on_error!r}; write 'fail' or 'skip'.")
        try:
            offered += [copied(tool_schema(tool)) for tool in getattr(hook, "tools", ())]
        except ValueError as error:
            raise ConfigError(f"hooks: {type(hook).__name__}.tools: {error}") from error
        hooks.append(hook)
    rewriters = tuple(hook for hook in hooks if _overrides(hook, "rewrite_results"))
    # Pure rewriters are excluded, since a reply that no hook inspects can be streamed.
    reviewers = tuple(hook for hook in hooks if hook not in rewriters or _overrides(hook, "should_run"))
    return HookList(reviewers, rewriters, tuple(middleware), offered)


def _overrides(hook: Any, method: str) -> bool:
    """Whether a hook overrides a method of `LoopHook`, whose own methods do nothing."""
    own = getattr(type(hook), method, None)
    return own is not None and own is not getattr(LoopHook, method)


def _is_middleware(hook: Any) -> bool:
    """Whether a hook is LangChain's `AgentMiddleware`. If LangChain's module was not imported, nothing can be one."""
    types = sys.modules.get("langchain.agents.middleware.types")
    return types is not None and isinstance(hook, types.AgentMiddleware)


R = TypeVar("R", bound=HookResponse)
SendRequest = Callable[[HookRequest | None, Sequence[AnyMessage]], Awaitable[tuple[R, HookRequest]]]
"""Sends a request, or the original one for None.

The second argument is messages to keep for later requests. Returns the reply, and the request with the model that
answered.
"""


@dataclass(eq=False)
class LoopHooks(Generic[R]):
    """Passes the replies of one pass through `plan` or `finalize` to the agent's loop hooks, which may rerun the model.

    A rerun is refused, with a warning, if the input has had `max_agentic_loops` reruns, or if the reply repeats calls
    of a reply that was rerun before. The hook that requested it then gets no more reruns in this input, and receives
    only replies without calls; the reply passes on to the next hook. If a limit forbids a rerun, the input ends at that
    limit without this reply; only an answer is used in spite of it.

    Args:
        hooks: The agent's hooks, in order.
        work: The record of what hooks did in this input; it is not modified.
        record: Receives the record after each change.
        limit: Returns the limit that forbids another model call after a reply, and its value; None if there is none.
        check_model: Raises an exception for a patch's model that cannot be built.
        warn: Receives warnings for the user.
        count_reply: Receives each reply of a model that a hook calls itself.
        report: Receives each decision: the hook's name, its action, the text and the calls of the reply, and the
            messages that the hook adds.
    """

    hooks: Sequence[LoopHook]
    work: HookWork
    record: Callable[[HookWork], None]
    limit: Callable[[R], LimitMet | None]
    check_model: Callable[[Any], Awaitable[object]]
    warn: Callable[[str], None]
    count_reply: Callable[[AIMessage], None]
    report: Callable[[str, HookAction, tuple[str, Sequence[Call]], Sequence[AnyMessage]], None]

    async def wrap(self, handler: SendRequest[R]) -> tuple[R, HookRequest, tuple[str, LoopPlan] | None]:
        """Send a request and pass its reply to the hooks in order. Return the reply that counts, its request, and a
        decision of a hook.

        After a rerun, the new reply is passed to the first hook again. A refused rerun is a warning, once for each
        hook, and the hooks after it are asked. Each decision is reported as `rerun`, `replaced` or `ended`.

        Args:
            handler: Sends a request and returns the reply; called once, and once for each rerun.

        Returns:
            The final reply; its request; and the hook's name with the decision that replaces the reply or ends the
            loop, which the caller must carry out, or None.

        Raises:
            HookError: A hook with `on_error = "fail"` failed.
            LimitMetError: A limit forbids a rerun of a planning reply.
            Exception: The handler raised it.
        """
        reply, request = await handler(None, ())
        first = 0
        while (found := await self._first_plan(first, reply, request)) is not None:
            index, plan, patched = found
            name = type(self.hooks[index]).__name__
            if plan.response_override is not None or plan.terminate:
                action: HookAction = "ended" if plan.response_override is None else "replaced"
                self.report(name, action, (reply.message.text, reply.calls), ())
                return reply, request, (name, plan)
            calls = "\n".join(sorted(map(fingerprint, reply.calls)))
            if (refused := self._refusal(index, calls, reply, request)) is None:
                made = self.work["calls"]
                self._change(reruns=self.work["reruns"] + 1, calls=[*made, calls] if calls else made)
                kept = common_length(patched.messages, request.messages)
                added = [*patched.messages[kept:], *plan.keep_messages]
                self.report(name, "rerun", (reply.message.text, reply.calls), added)
                reply, request = await handler(replace(patched, depth=request.depth + 1), plan.keep_messages)
                first = 0
                continue
            if index not in self.work["ended"]:
                self.warn(f"The hook {name} wants the model asked again, but {refused}.")
                self._change(ended=[*self.work["ended"], index])
            first = index + 1
        return reply, request, None

    def _refusal(self, index: int, calls: str, reply: R, request: HookRequest) -> str | None:
        """Return why a hook may not rerun the model, as a clause for the warning; None if it may.

        It may not after an equal set of calls, after `max_agentic_loops` reruns of the input, or at a limit.

        Args:
            index: Index of the hook.
            calls: Text that identifies the reply's calls, independent of order and ids; empty if it has none.
            reply: The reply that the hook wants to replace; the limit is checked with its usage.
            request: The request that the reply answers.

        Raises:
            LimitMetError: A limit forbids a rerun of a planning reply; for an answer, a clause is returned. The warning
                is given before, and the hook gets no more reruns.
        """
        work, most = self.work, request.settings.max_agentic_loops
        counts = "its last reply counts"
        if index in work["ended"] or calls in work["calls"]:
            return f"the model makes the same calls again; {counts}"
        # A hook may never be content with a reply.
        if work["reruns"] >= most:
            asked = f"the model was asked again {work['reruns']} times"
            return f"{asked}, which is all that max_agentic_loops allows; {counts}"
        if (met := self.limit(reply)) is None:
            return None
        if request.phase == "answer":
            # There is no other answer to end the input with.
            return f"a limit forbids it; {counts}"
        name = type(self.hooks[index]).__name__
        self.warn(
            f"The hook {name} wants the model asked again, but a limit forbids it; its last reply is not followed."
        )
        self._change(ended=[*work["ended"], index])
        raise LimitMetError(*met)

    def _change(self, **keys: Any) -> None:
        """Set keys of the hooks' record in the loop state, and pass the record to `record` at once.

        A hook that fails later then does not undo the change.
        """
        self.work = {**self.work, **keys}  # type: ignore[typeddict-item]  # keys of HookWork
        self.record(self.work)

    async def _first_plan(self, first: int, reply: R, request: HookRequest) -> tuple[int, LoopPlan, HookRequest] | None:
        """Ask the hooks in order, and return the first decision that changes something; None if no hook requests a
        change.

        A reply without calls is passed only to hooks that inspect answers, one with calls only to hooks that have
        reruns left. A hook that fails is skipped with a warning, or ends the input, by its `on_error`; an unusable
        value and a model that cannot be built count as failures.

        Args:
            first: Index of the first hook to ask.
            reply: The reply.
            request: The request that the reply answers.

        Returns:
            Index of the hook, its decision, and the patched request, without calls that have no result.

        Raises:
            HookError: A hook with `on_error = "fail"` failed.
        """
        for index, hook in enumerate(self.hooks[first:], first):
            # A hook without reruns left may still replace an answer.
            if index in self.work["ended"] if reply.calls else not sees_answers(hook):
                continue
            try:
                plan = await self._plan_of(hook, reply, request)
                if plan is None:
                    continue
                if not isinstance(plan.response_override, str | AIMessage | None):
                    raise TypeError(f"response_override is {plan.response_override!r}; give text or an AIMessage")
                patched = (plan.request_patch or RequestPatch()).apply(request)
                for message in [*patched.messages, *plan.keep_messages]:
                    if not isinstance(message, BaseMessage):
                        raise TypeError(f"A patch's messages hold {message!r}; give LangChain messages")
                # Copied, because the hook may change its own objects later.
                messages = copied(without_open_calls(patched.messages))
                patched = replace(patched, messages=messages, tools=copied(patched.tools))
                plan = replace(plan, keep_messages=copied(list(plan.keep_messages)))
                if patched.model is not request.model:
                    await self.check_model(patched.model)
            except BaseException as error:  # noqa: BLE001 - a hook may raise anything; its `on_error` selects the response
                fail_or_skip(hook, error, self.warn)
            else:
                return index, plan, patched
        return None

    async def _plan_of(self, hook: LoopHook, reply: R, request: HookRequest) -> LoopPlan | None:
        """Call a hook's `should_run` and `build_plan` with copies of reply and request.

        Returns None if it requests no change.

        Raises:
            TypeError: A method returned a value of another type.
            Exception: The hook raised it.
        """
        response = HookResponse(copied(reply.message), copied(reply.calls), copied(reply.usage))
        # One copy for both methods, so that a hook finds its own changes.
        lent = LazyRequestCopy.of(request)
        returned = await run_side_call(hook.should_run, response, lent, on_reply=self.count_reply)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise TypeError(f"should_run returned {returned!r}; return a pair (bool, context)")
        wanted, context = returned
        if not wanted:
            return None
        plan = await run_side_call(hook.build_plan, context, response, lent, on_reply=self.count_reply)
        if not isinstance(plan, LoopPlan):
            raise TypeError(f"build_plan returned {plan!r}; return a LoopPlan")
        return plan if plan.response_override is not None or plan.terminate or plan.run_agentic_loop else None
