"""The money behind a paid request: reserved before it is sent, and more of it while its answer streams.

A request has one hold, however many providers are tried. Its budgets' reservations grow with the hold.
"""

from typing import Literal

from accounting.errors import InsufficientCredit, LedgerError
from accounting.payments.errors import PayerFrozen
from accounting.rules.held import Hold
from gateway.errors import BudgetUnavailable
from gateway.lanes.allowance import USEFUL_TOKENS, Allowance, allowance_of
from gateway.lanes.base import Offer
from gateway.requests.context import Trip
from gateway.services import Services
from runtime.errors import BudgetExceeded, ServiceError

Ended = Literal["credits_exhausted", "budget_exceeded", "payments_frozen", "books_unavailable"]
"""Why an answer gets no further than what is paid for."""

# Another request may take the amount that a refusal reports as available before the next try.
_TRIES_MAX = 8


async def reserve_funds(services: Services, trip: Trip, offer: Offer) -> None:
    """Reserve the call's maximum cost there, or the first part of a stream's. Sets `trip.paid_tokens`.

    An amount reserved for an earlier candidate counts. Raises InsufficientCredit, BudgetExceeded,
    BudgetUnavailable, BooksUnavailable, AmountInvalid, RequestInvalid.
    """
    trip.allowance = allowance = allowance_of(trip.call, offer)
    if allowance is None:
        return
    held_nano = trip.hold.amount_nano if trip.hold else 0
    tokens = max(allowance.first_tokens, allowance.tokens_within(held_nano))
    refusal: Exception | None = None
    for _ in range(_TRIES_MAX):
        try:
            await _cover(services, trip, allowance.amount_nano(tokens))
        except (InsufficientCredit, BudgetExceeded) as error:
            refusal = refusal or error
            tokens = allowance.less_tokens(tokens, _affordable_nano(trip, error))
            if not tokens:
                break
        else:
            trip.paid_tokens = tokens
            return
    assert refusal
    raise refusal


async def reserve_more_funds(services: Services, trip: Trip, allowance: Allowance) -> Ended | None:
    """Have more of the answer paid for, if only a little: `trip.paid_tokens` grows, or the reason is returned."""
    paid = trip.paid_tokens
    tokens = allowance.next_tokens(paid)
    reason: Ended = "credits_exhausted"
    for _ in range(_TRIES_MAX):
        try:
            await _cover(services, trip, allowance.amount_nano(tokens))
        except InsufficientCredit as error:
            reason = "credits_exhausted"
            tokens = min(tokens - 1, allowance.tokens_within(_affordable_nano(trip, error) or 0))
        except BudgetExceeded:
            reason = "budget_exceeded"
            tokens = paid + (tokens - paid) // 2
        except PayerFrozen:
            return "payments_frozen"
        except (BudgetUnavailable, LedgerError, ServiceError):
            return "books_unavailable"
        else:
            trip.paid_tokens = tokens
            return None
        if tokens < min(allowance.tokens_max, paid + USEFUL_TOKENS):
            break
    return reason


async def reserve_funds_late(services: Services, trip: Trip, amount_nano: int) -> None:
    """Reserve the cost of a finished answer that exceeds its hold, or as much as the payer has.

    Raises BudgetExceeded, BudgetUnavailable, InsufficientCredit, BooksUnavailable, AmountInvalid.
    """
    try:
        await _cover(services, trip, amount_nano)
    except InsufficientCredit as error:
        await _cover(services, trip, _affordable_nano(trip, error) or 0)
        raise


async def _cover(services: Services, trip: Trip, amount_nano: int) -> None:
    """Reserve this total: within the caller's budgets first, then from the accounts that pay."""
    held = trip.hold
    if trip.ticket is None:
        trip.hold = await _hold(services, trip, amount_nano)
        return
    try:
        await trip.ticket.cover(amount_nano)
        trip.hold = await _hold(services, trip, amount_nano)
    except (ServiceError, LedgerError, PayerFrozen):
        # Other requests of these budgets may spend the amount that the ledger refused.
        trip.ticket.uncover(held.amount_nano if held else 0)
        raise


async def _hold(services: Services, trip: Trip, amount_nano: int) -> Hold | None:
    lane, payer = trip.offer.lane if trip.offer else "", trip.caller.payer
    if lane == "market":
        # A user who is both buyer and seller would turn promotional credits into money.
        payer = payer._replace(takes_lots=False)
    elif lane == "cloud":
        # Sellers' earnings are paid out, so only providers may be paid at this gateway's expense.
        payer = payer._replace(is_own_use=trip.caller.owns_provider_keys)
    if trip.hold and (trip.hold.takes_lots, trip.hold.is_own_use) != (payer.takes_lots, payer.is_own_use):
        # The hold was for an endpoint that was asked before. It belongs to another lease; free it.
        services.books.leases.end(trip.hold, 0)
        trip.hold = None
    if trip.hold is None:
        return await services.books.hold(trip.call.id, payer, amount_nano) if amount_nano else None
    return await services.books.grow(trip.hold, amount_nano) if amount_nano > trip.hold.amount_nano else trip.hold


def _affordable_nano(trip: Trip, refusal: InsufficientCredit | BudgetExceeded) -> int | None:
    """The total that could be reserved, in nano-USD, if the refusal states it."""
    if isinstance(refusal, BudgetExceeded):
        return None
    return refusal.available_nano + (trip.hold.amount_nano if trip.hold else 0)
