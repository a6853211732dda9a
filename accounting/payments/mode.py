"""Books hold play money or real money, never both: payments of Stripe's test mode stay apart from live ones.

And they are about one account at Stripe: what another one's key says of money is not about these rows.
"""

import json
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from accounting.payments.errors import WrongAccount, WrongMode
from accounting.payments.ledger import OpenSession
from accounting.payments.tables import (
    Chore,
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
"""What is left of anything that was ever asked of Stripe: ids that mean nothing in another mode or account."""


def keep_mode(write: OpenSession, *, is_live: bool) -> None:
    """Let these be books of this mode from now on.

    Raises:
        WrongMode: something was made at Stripe in the other one.
    """
    with write() as session, session.begin():
        if not _keep(session, _MODE, {"live": is_live}):
            raise WrongMode(was_live=not is_live)


def keep_account(write: OpenSession, account_id: str) -> None:
    """Let these be books of this account at Stripe from now on.

    Raises:
        WrongAccount: something was made in another one.
    """
    with write() as session, session.begin():
        if not _keep(session, _ACCOUNT, {"id": account_id}):
            raise WrongAccount(json.loads(session.get_one(Chore, _ACCOUNT).note)["id"], account_id)


def _keep(session: Session, name: str, note: dict[str, Any]) -> bool:
    row = session.get(Chore, name, with_for_update=True)
    if row is None:
        row = Chore(name=name)
        session.add(row)
    elif json.loads(row.note) != note and any(session.scalar(trace.limit(1)) is not None for trace in _TRACES):
        return False
    row.note = json.dumps(note)
    return True
