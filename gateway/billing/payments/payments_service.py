"""Payments for routes: calls run in separate threads, and errors become the API's."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter

from accounting.errors import IdempotencyConflict
from accounting.payments.errors import (
    PaymentInvalid,
    PaymentNotFound,
    StripeRefused,
    StripeUnavailable,
)
from accounting.payments.fresh import Move
from accounting.payments.frozen import FrozenUsers
from accounting.payments.inbox import Source
from accounting.payments.keeper import Keeper
from accounting.payments.payments import Payments
from gateway.billing.asked import HEADER
from gateway.errors import PaymentRefused
from runtime.errors import Conflict, NotFound, Overloaded, RequestInvalid

T = TypeVar("T")

_THREADS = 4
# Separate threads, so that Stripe's messages are accepted even if its answers are slow.
_INBOX_THREADS = 2
_STOP_S = 25.0


@dataclass(frozen=True, slots=True)
class PaymentsService:
    """Payments and the thread that keeps them going. One per gateway."""

    payments: Payments
    keeper: Keeper
    frozen: FrozenUsers
    threads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(_THREADS))
    inbox_threads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(_INBOX_THREADS))

    @property
    def is_live(self) -> bool:
        return self.payments.inbox.is_live

    @property
    def mode(self) -> str:
        return "live" if self.is_live else "test: no money moves"

    async def ask(self, question: Callable[..., T], *arguments: Any) -> T:
        """Run `question` in a thread and return its result.

        Errors of payments become errors of this API. Raises RequestInvalid for a wrong field, NotFound for an
        unknown object, PaymentRefused if Stripe refuses, and Overloaded if it does not answer. Raises Conflict if
        payments are stopped or the idempotency key was used for another request.
        """
        if self.keeper.wrong:
            raise Conflict(f"Payments are stopped: {self.keeper.wrong}.")
        try:
            return await anyio.to_thread.run_sync(question, *arguments, limiter=self.threads)
        except PaymentInvalid as error:
            raise RequestInvalid(str(error), param=error.field) from error
        except PaymentNotFound as error:
            raise NotFound(str(error)) from error
        except IdempotencyConflict as error:
            raise Conflict(f"This {HEADER} was used for another request.", param=HEADER) from error
        except StripeRefused as error:
            raise PaymentRefused(f"Stripe rejected this: {error}") from error
        except StripeUnavailable as error:
            raise Overloaded(f"Stripe has not answered yet. Try again with the same {HEADER}.") from error

    async def hear(self, source: Source, body: bytes, signature: str) -> bool:
        """Accept a message of Stripe; return False for a repeated one. Raises WebhookRefused."""
        receive = self.payments.inbox.receive
        is_new = await anyio.to_thread.run_sync(receive, source, body, signature, limiter=self.inbox_threads)
        if is_new:
            self.keeper.wake()
        return is_new

    def moving(self, user_id: str, amount_nano: int) -> Move:
        """Return a transfer of a user's credits, which excludes recently bought ones."""
        return Move(self.payments.topups.context, user_id, amount_nano)

    def stop(self) -> bool:
        return self.keeper.stop(_STOP_S)
