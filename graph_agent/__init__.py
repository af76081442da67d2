"""Exports the public names of a graph-based agent framework on LangGraph.

The public names are imported on first access, so that `import graph_agent` loads no model provider.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graph_agent.base._internal.inner_paths import explain_inner_paths
from graph_agent.base._internal.lazy import lazy_names

if TYPE_CHECKING:
    from graph_agent.base.calls import idempotency_key
    from graph_agent.base.settings.candidates import Candidate, CandidatePlan, PlanJudge
    from graph_agent.base.settings.config import AgentContext, LoopConfig
    from graph_agent.base.settings.context_fields import ContextFields
    from graph_agent.base.settings.speculation import SpeculationBudget
    from graph_agent.base.types import SessionStatus
    from graph_agent.core.extensions.hook_protocol import LoopHook, LoopPlan, RequestPatch
    from graph_agent.integrations.delegates.a2a_delegate import A2ADelegate
    from graph_agent.integrations.delegates.graph_delegate import GraphDelegate
    from graph_agent.models.scripted import ScriptedChatModel
    from graph_agent.session.agent import build_graph, create_graph_agent
    from graph_agent.session.graph_agent import GraphAgent
    from graph_agent.session.history import SessionMemory
    from graph_agent.session.results import RunResult
    from graph_agent.session.session import Session

__all__ = [
    "A2ADelegate",
    "AgentContext",
    "Candidate",
    "CandidatePlan",
    "ContextFields",
    "GraphAgent",
    "GraphDelegate",
    "LoopConfig",
    "LoopHook",
    "LoopPlan",
    "PlanJudge",
    "RequestPatch",
    "RunResult",
    "ScriptedChatModel",
    "Session",
    "SessionMemory",
    "SessionStatus",
    "SpeculationBudget",
    "build_graph",
    "create_graph_agent",
    "idempotency_key",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "graph_agent.session.agent": "build_graph create_graph_agent",
        "graph_agent.integrations.delegates.a2a_delegate": "A2ADelegate",
        "graph_agent.integrations.delegates.graph_delegate": "GraphDelegate",
        "graph_agent.core.extensions.hook_protocol": "LoopHook LoopPlan RequestPatch",
        "graph_agent.models.scripted": "ScriptedChatModel",
        "graph_agent.base.calls": "idempotency_key",
        "graph_agent.session.graph_agent": "GraphAgent",
        "graph_agent.session.history": "SessionMemory",
        "graph_agent.session.results": "RunResult",
        "graph_agent.session.session": "Session",
        "graph_agent.base.settings.candidates": "Candidate CandidatePlan PlanJudge",
        "graph_agent.base.settings.config": "AgentContext LoopConfig",
        "graph_agent.base.settings.context_fields": "ContextFields",
        "graph_agent.base.settings.speculation": "SpeculationBudget",
        "graph_agent.base.types": "SessionStatus",
    },
)

explain_inner_paths()
