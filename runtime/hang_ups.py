"""Limits how many prompts each payer may leave unpaid by disconnecting before the answer begins."""

import time
from collections import OrderedDict
from collections.abc import Callable

UNPAID_MAX = 10
"""Unpaid prompts that each payer may leave at once."""
EVERY_S = 60.0
"""Seconds after which the payer may leave one more."""
PAYERS_MAX = 10_000


class HangUps:
    """Unpaid prompts by payer. Beyond PAYERS_MAX payers, it forgets those that were quiet longest.

    One event loop owns it. `clock` gives seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # When the count of a payer is back to 0; each unpaid prompt adds EVERY_S to it.
        self._clear_at_s: OrderedDict[str, float] = OrderedDict()

    def wait_s(self, payer: str) -> float:
        """Seconds until the payer may leave a further prompt unpaid; 0 for nearly all payers."""
        if not self._clear_at_s:
            return 0.0
        owed_s = self._clear_at_s.get(payer, 0.0) - self._clock()
        return max(0.0, owed_s - (UNPAID_MAX - 1) * EVERY_S)

    def take(self, payer: str) -> bool:
        """Count a prompt whose client disconnected; returns whether the payer may leave it unpaid."""
        if self.wait_s(payer):
            return False
        self._clear_at_s[payer] = max(self._clock(), self._clear_at_s.get(payer, 0.0)) + EVERY_S
        self._clear_at_s.move_to_end(payer)
        while len(self._clear_at_s) > PAYERS_MAX:
            self._clear_at_s.popitem(last=False)
        return True
