"""Keep test money and real money in separate ledgers: payments of Stripe's test mode never mix with live ones.

One ledger also belongs to one account at Stripe, because another account's objects are not in these rows.
"""

import json
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from accounting.payments.errors import WrongAccount, WrongMode
from accounting.payments.ledger import OpenSession
from accounting.payments.tables import (
    PaymentJob,
    account_at_stripe_table,
    payer_table,
    payout_table,
    stripe_call_table,
    topup_table,
)

_MODE, _ACCOUNT = "mode", "account"
_TRACES: tuple[Select[Any], ...] = (
    select(stripe_call_table.c.key),
    select(payer_table.c.user_id).where(payer_table.c.customer_id.is_not(None)),
    select(account_at_stripe_table.c.seller_id),
    select(topup_table.c.id),
    select(payout_table.c.id),
)
"""Traces of earlier requests to Stripe: ids that are void in another mode or account."""


def keep_mode(write: OpenSession, *, is_live: bool) -> None:
    """Bind this ledger to this mode from now on.

    Raises:
        WrongMode: objects were created at Stripe in the other mode.
    """
    with write() as session, session.begin():
        if not _keep(session, _MODE, {"live": is_live}):
            raise WrongMode(was_live=not is_live)


def keep_account(write: OpenSession, account_id: str) -> None:
    """Bind this ledger to this account at Stripe from now on.

    Raises:
        WrongAccount: objects were created in another account.
    """
    with write() as session, session.begin():
        if not _keep(session, _ACCOUNT, {"id": account_id}):
            raise WrongAccount(json.loads(session.get_one(PaymentJob, _ACCOUNT).details)["id"], account_id)


def _keep(session: Session, name: str, note: dict[str, Any]) -> bool:
    row = session.get(PaymentJob, name, with_for_update=True)
    if row is None:
        row = PaymentJob(name=name)
        session.add(row)
    elif json.loads(row.details) != note and any(session.scalar(trace.limit(1)) is not None for trace in _TRACES):
        return False
    row.details = json.dumps(note)
    return True
