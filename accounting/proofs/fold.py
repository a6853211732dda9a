"""Add up the transfers of each account one by one, and compare the sums with the account's totals."""

from collections.abc import Iterable, Iterator

from sqlalchemy import Connection, select

from accounting.chart import terms_of
from accounting.errors import AccountUnknown
from accounting.proofs.canonical import Row
from accounting.tables import account_table

_DEBITS_POSTED, _CREDITS_POSTED, _DEBITS_PENDING, _CREDITS_PENDING, _APPLIED = range(5)

_COLUMNS = (
    "id",
    "code",
    "currency",
    "kind",
    "normal",
    "guarded",
    "debits_posted",
    "credits_posted",
    "debits_pending",
    "credits_pending",
    "applied_seq",
)


class Fold:
    """Totals of every account after the transfers so far, and the open holds among them."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        """Contradictions in the transfers so far."""
        self._totals: dict[int, list[int]] = {}
        self._open: dict[int, tuple[int, int, int]] = {}
        self._last_seq = 0

    def add(self, transfers: Iterable[Row]) -> None:
        """Add the transfers of the next event, by their legs."""
        for _, seq, _, debit, credit, amount, phase, pending_seq, _ in transfers:
            if seq != self._last_seq + 1:
                self.problems.append(f"transfer {seq} comes after transfer {self._last_seq}")
            self._last_seq = seq
            held = 0 if pending_seq is None else self._resolve(seq, pending_seq, debit, credit, amount)
            if phase == "pending":
                self._open[seq] = (debit, credit, amount)
            self._move(seq, debit, credit, amount, phase, held)

    def _resolve(self, seq: int, pending_seq: int, debit: int, credit: int, amount: int) -> int:
        """Close a hold and return its amount."""
        held_debit, held_credit, held = self._open.pop(pending_seq, (0, 0, 0))
        if (held_debit, held_credit) != (debit, credit) or amount > held:
            self.problems.append(
                f"transfer {seq} resolves transfer {pending_seq}, which is not an open hold of these accounts"
            )
        return held

    def _move(self, seq: int, debit: int, credit: int, amount: int, phase: str, held: int) -> None:
        posted = amount if phase in ("single", "post") else 0
        pending = amount if phase == "pending" else -held
        debited, credited = self._of(debit), self._of(credit)
        debited[_DEBITS_POSTED] += posted
        debited[_DEBITS_PENDING] += pending
        credited[_CREDITS_POSTED] += posted
        credited[_CREDITS_PENDING] += pending
        debited[_APPLIED] = credited[_APPLIED] = seq

    def _of(self, account_id: int) -> list[int]:
        totals = self._totals.get(account_id)
        if totals is None:
            totals = self._totals[account_id] = [0, 0, 0, 0, 0]
        return totals

    def compare(self, connection: Connection) -> Iterator[str]:
        """Yield every account that differs from the chart or its transfers. Nothing may be booked meanwhile."""
        missing = set(self._totals)
        for account in connection.execute(select(*(account_table.c[name] for name in _COLUMNS))):
            missing.discard(account.id)
            if not _is_in_chart(*account[1:6]):
                yield f"account {account.id} ({account.code}) differs from the chart of accounts"
            totals = self._totals.get(account.id, [0, 0, 0, 0, 0])
            if list(account[6:]) != totals:
                stands, folded = ", ".join(map(str, account[6:])), ", ".join(map(str, totals))
                yield f"account {account.id} ({account.code}) has {stands}; its transfers make {folded}"
        yield from (f"account {account_id} has transfers but does not exist" for account_id in sorted(missing))


def _is_in_chart(code: str, currency: str, kind: str, normal: str, guarded: int) -> bool:
    try:
        terms = terms_of(code)
    except AccountUnknown:
        return False
    return (terms.currency, terms.kind, terms.normal, terms.guarded) == (currency, kind, normal, guarded)
