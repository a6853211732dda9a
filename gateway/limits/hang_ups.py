"""Prompts that nobody pays for, since somebody hung up before the answer began: how many each payer may leave."""

import time
from collections import OrderedDict
from collections.abc import Callable

UNPAID_MAX = 10
"""So many at once..."""
EVERY_S = 60.0
"""...and one more each time that so long has passed."""
PAYERS_MAX = 10_000


class HangUps:
    """Unpaid prompts by payer. Of more than PAYERS_MAX payers those that were quiet longest are forgotten.

    One event loop owns it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # When a payer will have nothing on the account any more; each unpaid prompt adds EVERY_S to it.
        self._clear_at_s: OrderedDict[str, float] = OrderedDict()

    def wait_s(self, payer: str) -> float:
        """How long until the payer may leave a further prompt unpaid; 0 for nearly all."""
        if not self._clear_at_s:
            return 0.0
        owed_s = self._clear_at_s.get(payer, 0.0) - self._clock()
        return max(0.0, owed_s - (UNPAID_MAX - 1) * EVERY_S)

    def take(self, payer: str) -> bool:
        """Somebody has hung up: whether the payer could leave this prompt unpaid."""
        if self.wait_s(payer):
            return False
        self._clear_at_s[payer] = max(self._clock(), self._clear_at_s.get(payer, 0.0)) + EVERY_S
        self._clear_at_s.move_to_end(payer)
        while len(self._clear_at_s) > PAYERS_MAX:
            self._clear_at_s.popitem(last=False)
        return True
