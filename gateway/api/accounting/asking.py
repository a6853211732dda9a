"""What every route of payments asks first: are there payments, who wants it, and under which key."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Depends, Header, Request

from accounting.errors import IdempotencyConflict
from accounting.payments.errors import PaymentInvalid, PaymentNotFound, StripeRefused, StripeUnavailable
from accounting.payments.payments import Payments
from gateway.api.authority import Somebody
from gateway.errors import Conflict, FeatureUnsupported, NotFound, Overloaded, RequestInvalid
from gateway.identity.caller import Caller

T = TypeVar("T")

_THREADS = 4
_HEADER = "Idempotency-Key"
_KEY = re.compile(r"[!-~]{1,200}")


@dataclass(frozen=True, slots=True)
class Till:
    """Payments, asked in a few threads of their own: Stripe takes its time. One per gateway, `app.state.till`."""

    payments: Payments
    threads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(_THREADS))

    @property
    def mode(self) -> str:
        return "live" if self.payments.inbox.is_live else "test: no money moves"

    async def ask(self, question: Callable[..., T], *arguments: Any) -> T:
        """Return the answer, or say what went wrong in this API's terms."""
        try:
            return await anyio.to_thread.run_sync(question, *arguments, limiter=self.threads)
        except PaymentInvalid as error:
            raise RequestInvalid(str(error), param=error.field) from error
        except PaymentNotFound as error:
            raise NotFound(str(error)) from error
        except IdempotencyConflict as error:
            raise Conflict("This Idempotency-Key was used for another request.", param=_HEADER) from error
        except StripeRefused as error:
            raise RequestInvalid(f"Stripe refuses this: {error}", code="stripe_refused") from error
        except StripeUnavailable as error:
            raise Overloaded("Stripe has not answered yet. Ask again with the same Idempotency-Key.") from error


def _till(request: Request) -> Till:
    till: Till | None = getattr(request.app.state, "till", None)
    if till is None:
        raise FeatureUnsupported("This gateway takes no payments: its owner has not set up Stripe.")
    return till


def _person(authority: Somebody) -> Caller:
    if authority.caller is None:
        raise RequestInvalid("The machine is nobody; send a person's key as 'Authorization: Bearer YOUR_KEY'.")
    return authority.caller


def _key(idempotency_key: Annotated[str | None, Header()] = None) -> str:
    if idempotency_key is None or not _KEY.fullmatch(idempotency_key):
        raise RequestInvalid(
            "Send an Idempotency-Key header of 1 to 200 visible ASCII characters, the same on every retry.",
            param=_HEADER,
        )
    return idempotency_key


Paying = Annotated[Till, Depends(_till)]
Person = Annotated[Caller, Depends(_person)]
Key = Annotated[str, Depends(_key)]


def id_of(what: str, user_id: str, key: str) -> str:
    """Return the id of what somebody asks for under a key: asked for again, it is the same, with its answer."""
    return hashlib.sha256("\0".join((what, user_id, key)).encode()).hexdigest()[:32]
