"""Resume stalled rows one after the other. A failing row is logged and does not hold up those behind it."""

import logging
from collections.abc import Callable, Iterable, Iterator

from sqlalchemy import literal, select
from sqlalchemy.orm import Session

from accounting import chart
from accounting.errors import LedgerError, LedgerUnavailable
from accounting.payments.errors import StripeUnavailable
from accounting.payments.tables import payer_table
from accounting.tables import account_table

_log = logging.getLogger(__name__)
_PAGE = 500
_payer, _account = payer_table.c, account_table.c


def go_on(
    what: str,
    names: Iterable[str],
    step: Callable[[str], object],
    touch: Callable[[str], object] = lambda _: None,
) -> None:
    """Take a step with each name, then touch it, whatever the outcome, so that other rows come first next time.

    If Stripe or the ledger does not answer at all, the remaining names are left for the next time.
    """
    for name in names:
        try:
            step(name)
        except (StripeUnavailable, LedgerUnavailable) as error:
            _log.warning("%s %s waits: %s", what, name, error)
            if not getattr(error, "is_kept", False):
                return
        except LedgerError as error:
            _log.warning("%s %s waits: %s", what, name, error)
        except Exception:  # noqa: BLE001  the task's edge: one unexpected failure does not stop the others
            _log.exception("%s %s could not be resumed", what, name)
        finally:
            touch(name)


def below_threshold(read: Callable[[], Session]) -> Iterator[str]:
    """Yield the users with automatic top-ups and fewer credits than their threshold, page after page."""
    before, after = chart.user_paid("@").split("@")
    code = literal(before).concat(_payer.user_id).concat(after)
    available = _account.credits_posted - _account.debits_posted - _account.debits_pending
    query = (
        select(_payer.user_id)
        .outerjoin(account_table, _account.code == code)
        .where(_payer.auto_below_nano > 0, _account.code.is_(None) | (available < _payer.auto_below_nano))
        .order_by(_payer.user_id)
        .limit(_PAGE)
    )
    last = ""
    while True:
        with read() as session:
            found = session.scalars(query.where(_payer.user_id > last)).all()
        yield from found
        if len(found) < _PAGE:
            return
        last = found[-1]
