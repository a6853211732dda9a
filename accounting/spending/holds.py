"""Reserve money before a cloud request, then capture or release it, in time or late."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from accounting.errors import HoldExpired, PostingInvalid
from accounting.ledger.postings import HOLD_GRACE_NS, Posted, UsageRecord
from accounting.ledger.writer import Writer
from accounting.money import Nano, Price, charge
from accounting.rules import burst
from accounting.rules.held import CloudBill, Hold

HOLD_MAX_NS = 24 * 3600 * 10**9
"""The longest time that credits may be reserved for one request, in nanoseconds."""
LATE_CAPTURE_NS = 24 * 3600 * 10**9
"""Delivered text may be booked on a hold for this time after its end, in nanoseconds."""

T = TypeVar("T")
U = TypeVar("U")


def size(price: Price, prompt_tokens_max: int, completion_tokens_max: int, choices: int = 1) -> Nano:
    """Return the most that a request can cost, in nano-USD, so that any outcome is covered.

    `completion_tokens_max` is per choice. The whole prompt counts at the higher prompt price, because only the
    provider knows which part is cached.

    Raises:
        AmountInvalid: more tokens than any request can have, or more money than one event may move.
    """
    dearest = Price(max(price.prompt_nano, price.cached_nano), 0, price.dearest_completion_nano)
    return charge(dearest, prompt_tokens_max, 0, completion_tokens_max * choices)


class Holds:
    """Place and resolve holds through the poster. Nothing here waits: every answer is a future."""

    def __init__(self, poster: Writer, *, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._poster = poster
        self._clock_ns = clock_ns

    def place(self, request_id: str, user_id: str, amount_nano: int, deadline_ns: int) -> "Future[Hold]":
        """Reserve a user's credits for one request that ends by `deadline_ns` at the latest.

        The future raises `InsufficientCredit` if the user has less, other holds included.

        Raises:
            PostingInvalid: the deadline has passed, or is more than `HOLD_MAX_NS` ahead.
        """
        if not 0 < deadline_ns - self._clock_ns() <= HOLD_MAX_NS:
            raise PostingInvalid(f"the deadline of {request_id!r} has passed, or is too far ahead for a hold")
        expires_ns = deadline_ns + HOLD_GRACE_NS
        posted = self._poster.submit(burst.hold(request_id, user_id, amount_nano, expires_ns))
        return _then(
            posted, lambda answer: Hold(request_id, user_id, amount_nano, answer.transfer_seqs[0], expires_ns)
        )

    def capture(self, held: Hold, bill: CloudBill, usage: UsageRecord | None = None) -> "Future[Posted]":
        """Book what was delivered, at most the hold, and free the rest of the hold.

        The future raises `HoldExpired` if the reaper was faster (`capture_late` then books it), and
        `AlreadyResolved` if the hold was released.
        """
        return self._poster.submit(burst.capture(held, bill, usage))

    def capture_late(
        self, held: Hold, bill: CloudBill, usage: UsageRecord | None = None, *, covered_nano: int = 0
    ) -> "Future[Posted]":
        """Book what was delivered on a hold that the reaper released.

        Only for a capture that raised `HoldExpired`: the user has the text, and no credits are reserved for it.
        `covered_nano` of the charge comes from the user's credits, and the user owes the rest from now on. The
        future raises `InsufficientCredit` if there are fewer credits, `AlreadyResolved` if the hold was released,
        and `HoldNotFound` if nothing was reaped.

        Raises:
            HoldExpired: the hold ended more than `LATE_CAPTURE_NS` ago, and nothing is booked.
        """
        if self._clock_ns() - held.expires_ns > LATE_CAPTURE_NS:
            raise HoldExpired(f"the hold of {held.request_id!r} ended too long ago to post anything on it")
        return self._poster.submit(burst.late_capture(held, bill, usage, covered_nano=covered_nano))

    def release(self, held: Hold, usage: UsageRecord | None = None) -> "Future[Posted]":
        """Release a whole hold: nothing was delivered, and nothing is charged."""
        return self._poster.submit(burst.release(held, usage))


def _then(future: "Future[T]", make: Callable[[T], U]) -> "Future[U]":
    made: Future[U] = Future()
    made.set_running_or_notify_cancel()

    def pass_on(done: "Future[T]") -> None:
        error = done.exception()
        if error is None:
            made.set_result(make(done.result()))
        else:
            made.set_exception(error)

    future.add_done_callback(pass_on)
    return made
