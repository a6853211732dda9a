"""/accounting/v1/balance: a user's available and reserved credits, and their debt."""

import time

from fastapi import APIRouter
from sqlalchemy.orm import Session

from accounting import chart
from accounting.ledger.balances import Balance, balance
from accounting.money import format_usd
from accounting.rules.held import Payer
from accounting.spending.credit_grants import GrantLeft, grants_of
from accounting.spending.funding_sources import credits_of
from gateway.api.accounting.dependencies import Facts, organization_of, user_of
from gateway.api.authority import AnyCaller, Authority
from gateway.api.fields import OptionalText
from runtime.times import at

router = APIRouter(prefix="/accounting/v1")


@router.get("/balance")
async def show_balance(
    authority: AnyCaller, user: OptionalText = None, organization: OptionalText = None
) -> Facts:
    """Show the caller's credits; for admins those of a user (`user`) or an organization balance (`organization`).

    A saved `ledger_checkpoint`, the newest block of the ledger, shows later whether the past was rewritten.
    """
    ledger = authority.services.ledger
    if organization is not None:
        found = await ledger.look(lambda session: _of_pool(session, organization_of(authority, organization)))
    else:
        found = await ledger.look(lambda session: _of_user(session, authority, user_of(authority, user)))
    return found | {"ledger_checkpoint": str(ledger.checkpoint) if ledger.checkpoint else None}


def _of_pool(session: Session, pool_id: str) -> Facts:
    return {"organization": pool_id, **_amounts(balance(session, chart.pool_paid(pool_id)))}


def _of_user(session: Session, authority: Authority, user_id: str) -> Facts:
    """`available` may pay for a cloud request now: credit grants, organization balance, own credits."""
    user = authority.directory.users.ever(user_id)
    now_ns = time.time_ns()
    grants = grants_of(session, user_id)
    paid = balance(session, chart.user_paid(user_id))
    shares_pool = user.removed_ns is None
    lasting = [left for left in grants if left.grant.expires_ns > now_ns]
    payer = Payer(user_id, user.organization_id if shares_pool else "")
    available_nano = sum(share.amount_nano for share in credits_of(session, payer, now_ns))
    held_nano = sum(left.held_nano for left in grants) + paid.held_nano
    return {
        "user": user_id,
        "organization": user.organization_id,
        "available": format_usd(available_nano),
        "held": format_usd(held_nano),
        "owed": format_usd(balance(session, chart.user_receivable(user_id)).posted_nano),
        "paid": _amounts(paid),
        "promo": [_grant_facts(left) for left in lasting],
        "pool": _of_pool(session, user.organization_id) if shares_pool else None,
    }


def _amounts(amounts: Balance) -> Facts:
    return {
        "credits": format_usd(amounts.posted_nano),
        "held": format_usd(amounts.held_nano),
        "available": format_usd(amounts.available_nano),
    }


def _grant_facts(left: GrantLeft) -> Facts:
    return {
        "id": left.grant.id,
        "scope": left.grant.scope,
        "reason": left.grant.reason,
        "expires": at(left.grant.expires_ns),
        "credits": format_usd(left.posted_nano),
        "held": format_usd(left.held_nano),
        "available": format_usd(left.posted_nano - left.held_nano),
    }
