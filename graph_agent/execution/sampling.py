"""Answers a tool call's requests to the agent's model, within the budgets of the input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from langchain_core.messages import AIMessage, BaseMessage

from graph_agent._compat import read_state
from graph_agent.deps import Task, spent
from graph_agent.models.client import ModelClient
from graph_agent.models.sampling import current_sampler
from graph_agent.types import NO_USAGE, Usage
from graph_agent.usage import LimitMetError, add_usage, budget_met, has_budget, usage_of


class TaskSampler:
    """The current model of a task's run; see `Sampler`."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.usage: Usage = NO_USAGE
        """Usage of the requests so far."""

    async def sample(
        self,
        request: Sequence[BaseMessage],
        *,
        max_tokens: int,
        temperature: float | None = None,
        stop: Sequence[str] | None = None,
    ) -> AIMessage:
        """Send one request; see `Sampler`."""
        task, settings = self._task, self._task.settings
        if has_budget(settings):
            state = read_state(task.config, ["usage", "messages"])
            usage = add_usage(state.get("usage"), self.usage)
            if (
                met := budget_met(spent(task.run, task.loop, usage, state["messages"], settings), settings)
            ) is not None:
                raise LimitMetError(*met)
        limit = min(max_tokens, settings.max_output_tokens or max_tokens)
        narrowed = {"max_output_tokens": limit}
        if temperature is not None:
            narrowed["temperature"] = temperature
        settings = settings.model_copy(update=narrowed)
        model = (await task.deps.models.chain(settings))[0].client.model
        client = ModelClient(model, [])
        if stop:
            client.options = {"stop": [*stop]}
        reply = await client.ask("answer", list(request), settings, mode="native", quiet=True)
        self.usage = add_usage(self.usage, usage_of(reply, settings.prices))
        return reply


@contextmanager
def sampling(task: Task) -> Iterator[TaskSampler]:
    """Offer the agent's model to the tool call that runs in the context."""
    sampler = TaskSampler(task)
    token = current_sampler.set(sampler)
    try:
        yield sampler
    finally:
        current_sampler.reset(token)
