"""Lines of a statement: debit and credit of each, and the account's balance after it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from accounting import chart
from accounting.ledger.balances import StatementLine, statement
from accounting.spending.credit_grants import grants_of
from accounting.tables import account_table, event_table, transfer_table
from gateway.admin.fields import Text
from gateway.billing.usage_report import DAY_NS
from gateway.console.pages.balance.whose import Whose
from runtime.errors import NotFound

KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "requests": ("Requests", ("hold", "lease", "capture", "late", "owed", "release", "reap", "purchase", "draw")),
    "topups": ("Top-ups", ("topup",)),
    "given": ("Given by this gateway", ("credit", "promo", "goodwill")),
    "pool": ("Organization balance", ("pool",)),
    "refunds": ("Refunds", ("topup_refund", "usage_refund")),
    "debts": ("Debts and disputes", ("dispute", "settlement", "write_off", "variance")),
    "ended": ("Expired credits", ("expiry",)),
    "corrections": ("Adjustments", ("correction",)),
}
"""The types to which a statement can be filtered: their label, and the kinds of journal entries."""
WORDS = {
    "topup": "top-up",
    "topup_refund": "refund of a top-up",
    "usage_refund": "refund of a request",
    "credit": "given by this gateway",
    "promo": "promotional credit",
    "expiry": "expired",
    "lease": "requests",
    "capture": "request",
    "late": "request, posted late",
    "owed": "request, owed",
    "hold": "held",
    "release": "released",
    "reap": "released automatically",
    "purchase": "market request",
    "draw": "market requests",
    "settlement": "debt settled",
    "write_off": "debt forgiven",
    "variance": "billed later",
}
"""Labels of kinds whose own name is unclear."""

Kind = Literal["requests", "topups", "given", "pool", "refunds", "debts", "ended", "corrections"]
ALL = "all"
"""Every account of the owner."""
_MOVES = ("single", "post")
_AT_ONCE = 500
_LOOKS_MAX = 20
_GRANTS_MAX = 100


class LineFilter(BaseModel):
    """Selects lines, as the statement's address and form do: `account` is `all`, `paid`, `owed` or a grant's id."""

    model_config = ConfigDict(frozen=True)

    account: Text = ALL
    kind: Kind | None = None
    since: date | None = None
    until: date | None = None
    moved: bool = False
    """Without lines that only hold or release."""

    @field_validator("until")
    @classmethod
    def _comes_after(cls, until: date | None, others: ValidationInfo) -> date | None:
        since = others.data.get("since")
        if until is not None and since is not None and until < since:
            raise ValueError("The end date is before the start date.")
        return until

    def said(self) -> dict[str, object]:
        """Return the filters that differ from their defaults, for addresses."""
        return self.model_dump(mode="json", exclude_defaults=True, exclude_none=True)

    @property
    def kinds(self) -> tuple[str, ...]:
        return KINDS[self.kind][1] if self.kind else ()

    @property
    def since_ns(self) -> int | None:
        return None if self.since is None else _begin_ns(self.since)

    @property
    def until_ns(self) -> int | None:
        """The end of the last day, in nanoseconds."""
        return None if self.until is None else _begin_ns(self.until) + DAY_NS

    def passes(self, line: StatementLine) -> bool:
        if (self.kinds and line.kind not in self.kinds) or (self.moved and line.phase not in _MOVES):
            return False
        return self.until_ns is None or line.created_ns < self.until_ns

    def ends_before(self, line: StatementLine) -> bool:
        """Whether this line and all older ones are left out."""
        return self.since_ns is not None and line.created_ns < self.since_ns


@dataclass(frozen=True, slots=True)
class Place:
    """A page of the console that a line refers to."""

    label: str
    path: str


@dataclass(frozen=True, slots=True)
class Line:
    """A double-entry transfer; `balance_nano` is the account's balance after it.

    `moved_nano` is 0 for holds and releases. `more` counts the requests that `behind` leaves out.
    """

    line: StatementLine
    account: str
    debit: str
    credit: str
    balance_nano: int
    behind: tuple[Place, ...] = ()
    more: int = 0

    @property
    def moves(self) -> bool:
        return self.line.phase in _MOVES

    @property
    def moved_nano(self) -> int:
        return self.line.amount_nano if self.moves else 0

    @property
    def words(self) -> str:
        return WORDS.get(self.line.kind, self.line.kind.replace("_", " "))


@dataclass(frozen=True, slots=True)
class _Standing:
    """An account's current balance on its normal side, and the last transfer that touched it."""

    posted_nano: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class Lines:
    """A page of lines, newest first; the next page is `before` this transfer, or None."""

    lines: tuple[Line, ...]
    before: int | None


def accounts_of(session: Session, whose: Whose) -> dict[str, tuple[tuple[str, ...], str]]:
    """Return the statement's accounts by their name in addresses, each with its codes and display name."""
    if whose.pool_id:
        return {ALL: ((chart.pool_paid(whose.pool_id),), "Organization balance")}
    user_id = whose.user_id
    found = {
        "paid": ((chart.user_paid(user_id),), "Own credits"),
        "owed": ((chart.user_receivable(user_id),), "Owed"),
    }
    for left in grants_of(session, user_id, limit=_GRANTS_MAX):
        ends = datetime.fromtimestamp(left.grant.expires_ns / 1e9, UTC)
        name = f"{left.grant.reason or 'Promotional'}, expires {ends:%Y-%m-%d}"
        found[left.grant.id] = ((chart.user_promo(user_id, left.grant.id),), name)
    return {ALL: (tuple(code for codes, _ in found.values() for code in codes), "All accounts")} | found


def codes_of(session: Session, whose: Whose, account: str) -> tuple[str, ...]:
    """Return the account's codes. Raises NotFound for an account of another owner."""
    known = accounts_of(session, whose)
    if account not in known:
        raise NotFound(f"{whose.name} has no account {account}.")
    return known[account][0]


def read_lines(
    session: Session, codes: Sequence[str], filters: LineFilter, before_seq: int | None, limit: int
) -> Lines:
    """Return the newest lines of these accounts combined; a transfer between two of them is a line of the first.

    For long accounts with few matching lines, the page ends early and can be continued.
    """
    before_seq = _begin(session, filters, before_seq)
    standings = _standings(session, codes)
    found: dict[int, Line] = {}
    read_to = 0
    # Accounts with the newest transfer first: most of many accounts, expired grants, appear on no page shown.
    for code in sorted(standings, key=lambda code: -standings[code].last_seq):
        end = max(read_to, sorted(found, reverse=True)[limit - 1] if len(found) >= limit else 0)
        if standings[code].last_seq < end:
            read_to = end
            break
        read = _read_one(session, code, standings[code], filters, before_seq, limit)
        for line in read.lines:
            known = found.get(line.line.transfer_seq)
            if known is None or codes.index(code) < codes.index(known.account):
                found[line.line.transfer_seq] = line
        # Lines older than the end of one account's page are not complete yet.
        read_to = max(read_to, read.before or 0)
    lines = [found[seq] for seq in sorted(found, reverse=True) if seq >= read_to][:limit]
    if len(lines) == limit:
        read_to = lines[-1].line.transfer_seq if read_to or len(found) > limit else 0
    return Lines(tuple(lines), read_to or None)


def _standings(session: Session, codes: Sequence[str]) -> dict[str, _Standing]:
    """Return the accounts that have entries."""
    rows = session.execute(select(account_table).where(account_table.c.code.in_(codes)))
    return {
        row.code: _Standing(
            (row.debits_posted - row.credits_posted) * (1 if row.normal == "D" else -1), row.applied_seq
        )
        for row in rows
    }


def _begin(session: Session, filters: LineFilter, before_seq: int | None) -> int | None:
    if filters.until_ns is None:
        return before_seq
    ends = _transfer_at(session, filters.until_ns)
    return min((seq for seq in (before_seq, ends) if seq is not None), default=None)


def _read_one(
    session: Session, code: str, standing: _Standing, filters: LineFilter, before_seq: int | None, limit: int
) -> Lines:
    """Return one account's lines, each with the balance after it; `before` is set if there may be more."""
    standing_nano = standing.posted_nano
    if before_seq is not None and before_seq <= standing.last_seq:
        standing_nano -= _moved_since(session, code, before_seq)
    found: list[Line] = []
    # Usually the first query is enough; pages repeat it often.
    size = min(2 * limit + 2, _AT_ONCE)
    for _ in range(_LOOKS_MAX):
        read = statement(session, code, before_seq=before_seq, limit=size)
        for line in read:
            if filters.ends_before(line):
                return Lines(tuple(found), None)
            if len(found) == limit:
                return Lines(tuple(found), before_seq)
            shown = entry(code, line, standing_nano)
            before_seq, standing_nano = line.transfer_seq, standing_nano - shown.moved_nano
            if filters.passes(line):
                found.append(shown)
        if len(read) < size:
            return Lines(tuple(found), None)
        size = _AT_ONCE
    return Lines(tuple(found), before_seq)


def entry(code: str, line: StatementLine, balance_nano: int) -> Line:
    """Return an account's line with debit and credit. An account grows on its normal side. Pure."""
    grows = line.amount_nano >= 0
    is_debited = grows == (chart.terms_of(code).normal == "D")
    if line.amount_nano == 0:
        # A release of nothing takes the side of the hold that it releases: out of the owner's credits.
        is_debited = chart.terms_of(code).normal == "C"
    sides = (code, line.counterpart) if is_debited else (line.counterpart, code)
    return Line(line, code, *sides, balance_nano)


def _moved_since(session: Session, code: str, seq: int) -> int:
    """Return the account's growth by this transfer and all later ones; each side uses its own index."""
    account_id = session.scalar(select(account_table.c.id).where(account_table.c.code == code))
    if account_id is None:
        return 0
    transfer = transfer_table.c
    moved = transfer.phase.in_(_MOVES), transfer.seq >= seq
    total = 0
    for side, name in ((transfer.debit, "D"), (transfer.credit, "C")):
        query = select(func.sum(transfer.amount)).where(side == account_id, *moved)
        sign = 1 if chart.terms_of(code).normal == name else -1
        total += sign * int(session.scalar(query) or 0)
    return total


def _transfer_at(session: Session, at_ns: int) -> int | None:
    """Return the first transfer at or after this time, or None. Entries are numbered in time order."""
    event = event_table.c
    low, high = 1, (session.scalar(select(func.max(event.seq))) or 0) + 1
    end = high
    while low < high:
        middle = (low + high) // 2
        made_ns = session.scalar(select(event.created_ns).where(event.seq == middle)) or 0
        low, high = (low, middle) if made_ns >= at_ns else (middle + 1, high)
    if low == end:
        return None
    transfer = transfer_table.c
    query = select(transfer.seq).where(transfer.event_seq >= low).order_by(transfer.event_seq, transfer.leg)
    return session.scalar(query.limit(1))


def _begin_ns(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 10**9
