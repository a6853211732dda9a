"""The money behind a paid request: reserved before it is sent, and more of it while its answer streams.

A request has one hold, however many providers are tried. Its budgets' reservations grow with the hold.
"""

from dataclasses import dataclass
from typing import Literal

from accounting.errors import InsufficientCredit, LedgerError
from accounting.payments.errors import PayerFrozen
from accounting.rules.held import Hold
from gateway.billing.ledger_service import LedgerService
from gateway.errors import BudgetUnavailable
from gateway.lanes.allowance import USEFUL_TOKENS, Allowance, allowance_of
from gateway.lanes.base import Offer
from gateway.metrics.metrics import Metrics
from gateway.requests.context import RequestContext
from runtime.errors import BudgetExceeded, ServiceError

CutReason = Literal["credits_exhausted", "budget_exceeded", "payments_frozen", "ledger_unavailable"]
"""The reason why an answer ends at its paid part."""

# Another request may take the available amount before the next try.
_TRIES_MAX = 8


@dataclass(frozen=True, slots=True)
class RequestFunds:
    """Reserves the money of requests in the ledger and in their callers' budgets."""

    ledger: LedgerService
    metrics: Metrics

    async def reserve(self, context: RequestContext, offer: Offer) -> None:
        """Reserve the call's maximum cost at the offer, or the first part of a stream's. Sets `paid_tokens`.

        An amount reserved for an earlier candidate counts. Raises InsufficientCredit, BudgetExceeded,
        BudgetUnavailable, LedgerUnavailable, AmountInvalid, RequestInvalid.
        """
        context.allowance = allowance = allowance_of(context.call, offer)
        if allowance is None:
            return
        held_nano = context.hold.amount_nano if context.hold else 0
        tokens = max(allowance.first_tokens, allowance.tokens_within(held_nano))
        refusal: Exception | None = None
        for _ in range(_TRIES_MAX):
            try:
                await self._cover(context, allowance.amount_nano(tokens))
            except (InsufficientCredit, BudgetExceeded) as error:
                refusal = refusal or error
                tokens = allowance.less_tokens(tokens, _affordable_nano(context, error))
                if not tokens:
                    break
            else:
                context.paid_tokens = tokens
                return
        assert refusal
        raise refusal

    async def reserve_more(self, context: RequestContext, allowance: Allowance) -> CutReason | None:
        """Reserve more for the answer, even if only a little: `paid_tokens` grows, or the reason is returned."""
        paid = context.paid_tokens
        tokens = allowance.next_tokens(paid)
        reason: CutReason = "credits_exhausted"
        for _ in range(_TRIES_MAX):
            try:
                await self._cover(context, allowance.amount_nano(tokens))
            except InsufficientCredit as error:
                reason = "credits_exhausted"
                tokens = min(tokens - 1, allowance.tokens_within(_affordable_nano(context, error) or 0))
            except BudgetExceeded:
                reason = "budget_exceeded"
                tokens = paid + (tokens - paid) // 2
            except PayerFrozen:
                return "payments_frozen"
            except (BudgetUnavailable, LedgerError, ServiceError):
                return "ledger_unavailable"
            else:
                context.paid_tokens = tokens
                return None
            if tokens < min(allowance.tokens_max, paid + USEFUL_TOKENS):
                break
        return reason

    async def reserve_late(self, context: RequestContext, amount_nano: int) -> None:
        """Reserve the cost of a finished answer that exceeds its hold, or as much as the payer has.

        Raises BudgetExceeded, BudgetUnavailable, InsufficientCredit, LedgerUnavailable, AmountInvalid.
        """
        try:
            await self._cover(context, amount_nano)
        except InsufficientCredit as error:
            await self._cover(context, _affordable_nano(context, error) or 0)
            raise

    async def _cover(self, context: RequestContext, amount_nano: int) -> None:
        """Reserve this total: within the caller's budgets first, then from the accounts that pay."""
        held = context.hold
        ticket = context.admitted.ticket
        if ticket is None:
            context.hold = await self._hold(context, amount_nano)
            return
        try:
            await ticket.cover(amount_nano)
            context.hold = await self._hold(context, amount_nano)
        except (ServiceError, LedgerError, PayerFrozen):
            # Other requests of these budgets may spend the amount that the ledger refused.
            ticket.uncover(held.amount_nano if held else 0)
            raise

    async def _hold(self, context: RequestContext, amount_nano: int) -> Hold | None:
        lane, payer = context.offer.lane if context.offer else "", context.caller.payer
        if lane == "market":
            # A user who is both buyer and seller would turn promotional credits into money.
            payer = payer._replace(takes_grants=False)
        elif lane == "cloud":
            # Sellers' earnings are paid out, so only providers may be paid at this gateway's expense.
            payer = payer._replace(is_own_use=context.caller.owns_provider_keys)
        if context.hold and (context.hold.takes_grants, context.hold.is_own_use) != (
            payer.takes_grants,
            payer.is_own_use,
        ):
            # The hold was for an endpoint that was asked before. It belongs to another lease; free it.
            self.ledger.leases.end(context.hold, 0)
            context.hold = None
        if context.hold is None:
            return await self.ledger.hold(context.call.id, payer, amount_nano) if amount_nano else None
        return (
            await self.ledger.grow(context.hold, amount_nano)
            if amount_nano > context.hold.amount_nano
            else context.hold
        )


def _affordable_nano(context: RequestContext, refusal: InsufficientCredit | BudgetExceeded) -> int | None:
    """The total that could be reserved, in nano-USD, if the refusal states it."""
    if isinstance(refusal, BudgetExceeded):
        return None
    return refusal.available_nano + (context.hold.amount_nano if context.hold else 0)
