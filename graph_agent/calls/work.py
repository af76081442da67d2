"""How much work one parse may do, counted, so that its time is bounded whatever the text."""

from __future__ import annotations

REPAIR_SQUARE = 4_000**2
"""Square characters that json_repair may be given in one parse: its worst inputs take time by the square of length."""
# Even a short text takes it a tenth of a millisecond.
_REPAIR_START = 200


class WorkBudget:
    """A budget in steps, each about half a microsecond, that grows linearly with the text."""

    def __init__(self, size: int) -> None:
        """Allow a step a character of a text of ``size``, several times what calls need, and a floor for short ones."""
        self.limit = size + 200_000
        self.spent = 0
        self.repair_left = REPAIR_SQUARE

    @property
    def left(self) -> int:
        """Steps that may still be taken; 0 when used up."""
        return max(0, self.limit - self.spent)

    def take(self, steps: int) -> bool:
        """Take the steps and return True, or take nothing and return False when fewer are left."""
        if steps > self.limit - self.spent:
            return False
        self.spent += steps
        return True

    def take_repair(self, length: int) -> bool:
        """As ``take``, for a text of ``length`` characters that json_repair is to read."""
        cost = (length + _REPAIR_START) ** 2
        if cost > self.repair_left:
            return False
        self.repair_left -= cost
        return True
