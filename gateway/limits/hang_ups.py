"""Callers who hang up before a paid provider has begun to answer: how many prompts each payer may leave unpaid."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from gateway.errors import TooManyHangUps

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

    def check(self, payer: str) -> None:
        """Raises TooManyHangUps if the payer may leave no further prompt unpaid."""
        wait_s = self._wait_s(payer)
        if wait_s > 0:
            raise TooManyHangUps(
                f"{UNPAID_MAX} requests were left before their provider had begun to answer, and nobody pays for "
                "their prompts. Wait for the first event of an answer before you close the connection, or use a "
                "model of your own machines.",
                math.ceil(wait_s),
            )

    def take(self, payer: str) -> bool:
        """A caller has hung up: whether the payer could leave this prompt unpaid."""
        if self._wait_s(payer) > 0:
            return False
        self._clear_at_s[payer] = max(self._clock(), self._clear_at_s.get(payer, 0.0)) + EVERY_S
        self._clear_at_s.move_to_end(payer)
        while len(self._clear_at_s) > PAYERS_MAX:
            self._clear_at_s.popitem(last=False)
        return True

    def _wait_s(self, payer: str) -> float:
        if not self._clear_at_s:
            return 0.0
        owed_s = self._clear_at_s.get(payer, 0.0) - self._clock()
        return owed_s - (UNPAID_MAX - 1) * EVERY_S
