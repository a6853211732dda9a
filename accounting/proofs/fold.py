"""What accounts must hold, added up from their transfers one by one and compared with what stands on them."""

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
    """Totals of every account after all transfers so far, and the holds among them that are open."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        """What cannot be about the transfers so far."""
        self._totals: dict[int, list[int]] = {}
        self._open: dict[int, tuple[int, int, int]] = {}
        self._last_seq = 0

    def add(self, transfers: Iterable[Row]) -> None:
        """Take the transfers of the next event, by their legs."""
        for _, seq, _, debit, credit, amount, phase, pending_seq, _ in transfers:
            if seq != self._last_seq + 1:
                self.problems.append(f"transfer {seq} comes after transfer {self._last_seq}")
            self._last_seq = seq
            held = 0 if pending_seq is None else self._resolve(seq, pending_seq, debit, credit, amount)
            if phase == "pending":
                self._open[seq] = (debit, credit, amount)
            self._move(seq, debit, credit, amount, phase, held)

    def _resolve(self, seq: int, pending_seq: int, debit: int, credit: int, amount: int) -> int:
        """Close a hold; return how much it had put aside."""
        held_debit, held_credit, held = self._open.pop(pending_seq, (0, 0, 0))
        if (held_debit, held_credit) != (debit, credit) or amount > held:
            self.problems.append(f"transfer {seq} resolves transfer {pending_seq}, which is no such open hold")
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
        """Tell every account that is not what the chart and its transfers say; with nothing booked in between."""
        missing = set(self._totals)
        for account in connection.execute(select(*(account_table.c[name] for name in _COLUMNS))):
            missing.discard(account.id)
            if not _is_in_chart(*account[1:6]):
                yield f"account {account.id} ({account.code}) is not what the chart of accounts says"
            totals = self._totals.get(account.id, [0, 0, 0, 0, 0])
            if list(account[6:]) != totals:
                stands, folded = ", ".join(map(str, account[6:])), ", ".join(map(str, totals))
                yield f"account {account.id} ({account.code}) has {stands}; its transfers make {folded}"
        yield from (f"account {account_id} has transfers and is not there" for account_id in sorted(missing))


def _is_in_chart(code: str, currency: str, kind: str, normal: str, guarded: int) -> bool:
    try:
        terms = terms_of(code)
    except AccountUnknown:
        return False
    return (terms.currency, terms.kind, terms.normal, terms.guarded) == (currency, kind, normal, guarded)
