"""Defines the session's history: one append-only list of small dictionaries, and the values of results in it.

A stored event has ``type``, ``ts`` (ISO 8601, UTC) and ``step``. ``seq`` (its index) and ``session_id`` follow from its
position and are added on reading.
"""

from __future__ import annotations

from graph_agent.base._internal.text import decode as decode
from graph_agent.base.history.approval_events import decision_event as decision_event
from graph_agent.base.history.approval_events import request_event as request_event
from graph_agent.base.history.call_events import as_json as as_json
from graph_agent.base.history.call_events import as_value as as_value
from graph_agent.base.history.call_events import is_text as is_text
from graph_agent.base.history.call_events import stored_value as stored_value
from graph_agent.base.history.call_events import structured_content as structured_content
from graph_agent.base.history.call_events import value_of as value_of
from graph_agent.base.history.events import NOT_RUN as NOT_RUN
from graph_agent.base.history.events import SUCCESSES as SUCCESSES
from graph_agent.base.history.events import AgentResponseEvent as AgentResponseEvent
from graph_agent.base.history.events import ApprovalDecisionEvent as ApprovalDecisionEvent
from graph_agent.base.history.events import ApprovalRequestEvent as ApprovalRequestEvent
from graph_agent.base.history.events import BackgroundResultEvent as BackgroundResultEvent
from graph_agent.base.history.events import DelegationProgressEvent as DelegationProgressEvent
from graph_agent.base.history.events import DelegationRequestEvent as DelegationRequestEvent
from graph_agent.base.history.events import DelegationResponseEvent as DelegationResponseEvent
from graph_agent.base.history.events import ErrorEvent as ErrorEvent
from graph_agent.base.history.events import Event as Event
from graph_agent.base.history.events import FeedbackEvent as FeedbackEvent
from graph_agent.base.history.events import ForkEvent as ForkEvent
from graph_agent.base.history.events import HookEvent as HookEvent
from graph_agent.base.history.events import LimitEvent as LimitEvent
from graph_agent.base.history.events import LoopDetectedEvent as LoopDetectedEvent
from graph_agent.base.history.events import MiddlewareEvent as MiddlewareEvent
from graph_agent.base.history.events import ModelRequestEvent as ModelRequestEvent
from graph_agent.base.history.events import PlanEvent as PlanEvent
from graph_agent.base.history.events import PlannedCall as PlannedCall
from graph_agent.base.history.events import Rating as Rating
from graph_agent.base.history.events import RecallEvent as RecallEvent
from graph_agent.base.history.events import RenameEvent as RenameEvent
from graph_agent.base.history.events import ResultStatus as ResultStatus
from graph_agent.base.history.events import RevocationEvent as RevocationEvent
from graph_agent.base.history.events import StatusEvent as StatusEvent
from graph_agent.base.history.events import SteeringEvent as SteeringEvent
from graph_agent.base.history.events import StoredEvent as StoredEvent
from graph_agent.base.history.events import SummaryEvent as SummaryEvent
from graph_agent.base.history.events import ToolCallEvent as ToolCallEvent
from graph_agent.base.history.events import ToolResultEvent as ToolResultEvent
from graph_agent.base.history.events import UserMessageEvent as UserMessageEvent
from graph_agent.base.history.events import WarningEvent as WarningEvent
from graph_agent.base.history.events import append_events as append_events
from graph_agent.base.history.events import event as event
from graph_agent.base.history.events import is_approval as is_approval
from graph_agent.base.history.events import is_own as is_own
from graph_agent.base.history.events import read_events as read_events
from graph_agent.base.history.events import seconds_since as seconds_since
from graph_agent.base.history.plan_parts import ModelCallRecord as ModelCallRecord
from graph_agent.base.history.plan_parts import Purpose as Purpose

__all__ = []
