"""The work budget of one parse, which bounds its time for any text."""

from __future__ import annotations

REPAIR_SQUARE = 4_000**2
"""Budget of json_repair in one parse, in squared characters: its worst inputs take quadratic time."""
# Even a short text takes json_repair a tenth of a millisecond.
_REPAIR_START = 200


class WorkBudget:
    """A budget in steps, each about half a microsecond, that grows linearly with the text."""

    def __init__(self, size: int) -> None:
        """Allow one step per character of a text of ``size``, several times the need of calls, plus a constant."""
        self.limit = size + 200_000
        self.spent = 0
        self.repair_left = REPAIR_SQUARE

    @property
    def left(self) -> int:
        """Remaining steps; 0 if the budget is spent."""
        return max(0, self.limit - self.spent)

    def take(self, steps: int) -> bool:
        """Spend the steps and return True; spend nothing and return False if fewer remain."""
        if steps > self.limit - self.spent:
            return False
        self.spent += steps
        return True

    def take_repair(self, length: int) -> bool:
        """Like ``take``, for a repair of ``length`` characters by json_repair."""
        cost = (length + _REPAIR_START) ** 2
        if cost > self.repair_left:
            return False
        self.repair_left -= cost
        return True
