"""The distribution of tests over the workers of pytest-xdist."""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadGroupScheduling


class FileScheduling(LoadGroupScheduling):  # type: ignore[misc]  # xdist has no types
    """Keeps the tests of a file on one worker, unless they have an `xdist_group`.

    Each worker that runs a test of a module starts the servers of the module's fixtures, so that one worker starts them
    once. Groups begin first, because the longest are groups; files follow by their number of tests.
    """

    def _split_scope(self, nodeid: str) -> str:
        scope: str = super()._split_scope(nodeid)
        return nodeid.partition("::")[0] if scope == nodeid else scope

    def _assign_work_unit(self, node: Any) -> None:
        if group := next((scope for scope in self.workqueue if not scope.endswith(".py")), None):
            self.workqueue.move_to_end(group, last=False)
        super()._assign_work_unit(node)
