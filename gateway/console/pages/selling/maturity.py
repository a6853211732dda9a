"""When a seller's earnings become available: each day's sales, the reserve, and amounts on hold."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from accounting import chart
from accounting.ledger.balances import StatementLine
from accounting.rules.earnings import RESERVE_DAYS
from accounting.rules.market import BPS
from accounting.spending.earned import Earned, earned_after, given_back
from gateway.admin import statement
from market.marketplace.marketplace import Marketplace
from market.marketplace.tables import Maturity, Seller, Withheld, maturity_table, withheld_table
from market.marketplace.terms import DAY_NS, MarketplaceTerms

LINES_SHOWN = 50
_PAGE = 1_000
_PAGES_MAX = 20
_maturity, _withheld = maturity_table.c, withheld_table.c

Why = Literal["matures", "reserve", "disputed", "suspended"]


@dataclass(frozen=True, slots=True)
class Portion:
    """A pending amount from the sales of `day` (UTC). `due_ns` is None if the date is unknown."""

    why: Why
    day: str
    amount_nano: int
    sales: int
    due_ns: int | None


@dataclass(frozen=True, slots=True)
class Money:
    """A seller's earnings: pending portions, soonest first, and the newest journal entries."""

    portions: tuple[Portion, ...]
    lines: tuple[tuple[str, StatementLine], ...]


def money_of(marketplace: Marketplace, user_id: str) -> Money:
    """Read the marketplace's tables and ledger: a query or two per thousand pending sales."""
    is_new = not marketplace.earnings.probation_of(user_id).is_over
    with marketplace.context.read() as session:
        seller = session.get(Seller, user_id)
        if seller is None:
            return Money((), ())
        ripening = _ripening(session, user_id, seller.matured_seq)
        back = given_back(session, [sale.charge_id for sale in ripening]) if ripening else {}
        is_barred = bool(seller.suspended_reason)
        found = by_day(ripening, back, marketplace.context.terms, is_new=is_new, is_barred=is_barred)
        found += _withheld_of(session, user_id) + _written_down(session, user_id, is_barred=is_barred)
        return Money(tuple(sorted(found, key=_soonest)), tuple(newest_lines(session, user_id)))


def by_day(
    sales: Iterable[Earned], back: dict[str, int], terms: MarketplaceTerms, *, is_new: bool, is_barred: bool
) -> list[Portion]:
    """Return each day's pending sales; `back` is the refunded amount of each. Pure.

    A day's sales become available together, once the waiting days after that day have passed.
    """
    amounts: dict[int, int] = defaultdict(int)
    counts: dict[int, int] = defaultdict(int)
    for sale in sales:
        left_nano = max(0, sale.amount_nano - back.get(sale.charge_id, 0))
        amounts[sale.created_ns // DAY_NS] += left_nano
        counts[sale.created_ns // DAY_NS] += bool(left_nano)
    days = terms.maturity_days_new if is_new else terms.maturity_days
    found = []
    for day, nano in sorted(amounts.items()):
        # Without waiting days they become available at the next check, seconds away.
        due_ns = None if is_barred else (day + days + 1) * DAY_NS if days else day * DAY_NS
        if nano:
            found.append(Portion("suspended" if is_barred else "matures", day_of(day), nano, counts[day], due_ns))
    return found


def _ripening(session: Session, user_id: str, after_seq: int) -> list[Earned]:
    found: list[Earned] = []
    for _ in range(_PAGES_MAX):
        page = earned_after(session, user_id, after_seq, limit=_PAGE)
        found += page
        if len(page) < _PAGE:
            break
        after_seq = page[-1].transfer_seq
    return found


def _withheld_of(session: Session, user_id: str) -> list[Portion]:
    """Return sales that are old enough but on hold while the buyer's payment is disputed."""
    rows = session.scalars(select(Withheld).where(_withheld.seller_user_id == user_id).limit(_PAGE)).all()
    back = given_back(session, [row.charge_id for row in rows]) if rows else {}
    left = [max(0, row.amount_nano - back.get(row.charge_id, 0)) for row in rows]
    return [Portion("disputed", "", sum(left), sum(map(bool, left)), None)] if any(left) else []


def _written_down(session: Session, user_id: str, *, is_barred: bool) -> list[Portion]:
    """Return matured amounts that are about to be posted or are in reserve; all of it for suspended sellers."""
    query = select(Maturity).where(_maturity.seller_user_id == user_id, _maturity.status.in_(("new", "booked")))
    found = []
    for row in session.scalars(query.order_by(_maturity.created_ns).limit(_PAGE)):
        is_new = row.status == "new"
        nano = row.amount_nano if is_new else row.amount_nano * row.reserve_bps // BPS
        why: Why = "suspended" if is_barred else "matures" if is_new else "reserve"
        due_ns = row.created_ns + (0 if is_new else RESERVE_DAYS * DAY_NS)
        if nano:
            found.append(Portion(why, day_written(row), nano, 0, None if is_barred else due_ns))
    return found


def day_written(row: Maturity) -> str:
    """Return the day of the sales; empty for a sale that was on hold, whose day is not recorded."""
    day = row.label.partition(".")[0]
    return "" if day == "w" else day


def newest_lines(
    session: Session, user_id: str, before_seq: int | None = None, limit: int = LINES_SHOWN
) -> list[tuple[str, StatementLine]]:
    """Return the newest transfers of a seller's accounts, each once, with the account's display name."""
    accounts = {
        "maturing": chart.seller_maturing(user_id),
        "available": chart.seller_payable(user_id),
        "reserve": chart.seller_reserve(user_id),
        "owed": chart.seller_receivable(user_id),
    }
    return statement.newest_lines(session, accounts, before_seq, limit)


def day_of(number: int) -> str:
    """Return a date by its number of days since 1970."""
    return datetime.fromtimestamp(number * DAY_NS // 10**9, UTC).date().isoformat()


def _soonest(portion: Portion) -> tuple[bool, int]:
    return portion.due_ns is None, portion.due_ns or 0
