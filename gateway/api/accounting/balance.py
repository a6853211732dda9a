"""/accounting/v1/balance: a user's available and reserved credits, and their debt."""

from fastapi import APIRouter

from accounting.ledger.balances import Balance
from accounting.money import format_usd
from accounting.spending.credit_grants import GrantLeft
from gateway.admin.balance import UserBalance, organization_balance, user_balance
from gateway.admin.fields import Facts
from gateway.api.authority import AnyCaller
from gateway.app_state import Ledger
from gateway.parameters import OptionalText
from runtime.times import at

router = APIRouter(prefix="/accounting/v1")


@router.get("/balance")
async def show_balance(
    authority: AnyCaller, ledger: Ledger, user: OptionalText = None, organization: OptionalText = None
) -> Facts:
    """Show the caller's credits; for admins those of a user (`user`) or an organization balance (`organization`).

    A saved `ledger_checkpoint`, the newest block of the ledger, shows later whether the past was rewritten.
    """
    if organization is not None:
        found = _of_pool(*await organization_balance(authority, ledger, organization))
    else:
        found = _of_user(await user_balance(authority, ledger, user))
    checkpoint = ledger.checkpoint
    return found | {"ledger_checkpoint": str(checkpoint) if checkpoint else None}


def _of_user(found: UserBalance) -> Facts:
    return {
        "user": found.user_id,
        "organization": found.organization_id,
        "available": format_usd(found.available_nano),
        "held": format_usd(found.held_nano),
        "owed": format_usd(found.owed_nano),
        "paid": _amounts(found.paid),
        "promo": [_of_grant(grant) for grant in found.grants],
        "pool": _of_pool(found.organization_id, found.pool) if found.pool else None,
    }


def _of_pool(pool_id: str, found: Balance) -> Facts:
    return {"organization": pool_id, **_amounts(found)}


def _of_grant(left: GrantLeft) -> Facts:
    grant = left.grant
    facts = {"id": grant.id, "scope": grant.scope, "reason": grant.reason, "expires": at(grant.expires_ns)}
    return facts | _amounts(left)


def _amounts(found: GrantLeft | Balance) -> Facts:
    return {
        "credits": format_usd(found.posted_nano),
        "held": format_usd(found.held_nano),
        "available": format_usd(found.available_nano),
    }
