"""Explain to an event's originator why the database refused it.

The database names only the constraint that failed. This module reads the ledger inside the refusing transaction. It
returns the stored answer of an earlier request, or the error that names the reason.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Connection, Row, select
from sqlalchemy.exc import DBAPIError

from accounting.chart import terms_of
from accounting.errors import (
    AlreadyResolved,
    HoldExpired,
    HoldNotFound,
    IdempotencyConflict,
    InsufficientCredit,
    PostingDenied,
    PostingRefused,
    UsageBooked,
)
from accounting.ledger.balances import available, balance
from accounting.ledger.postings import Answer, Leg, Posted, Posting, request_hash
from accounting.tables import account_table, event_table, transfer_table, usage_table

_debited, _credited = account_table.alias("debited"), account_table.alias("credited")
_resolved_by = transfer_table.alias("resolution")
_HOLDS = (
    select(
        transfer_table.c.seq,
        transfer_table.c.amount,
        _debited.c.code.label("debit"),
        _credited.c.code.label("credit"),
        _resolved_by.c.seq.label("resolution"),
    )
    .join(_debited, _debited.c.id == transfer_table.c.debit)
    .join(_credited, _credited.c.id == transfer_table.c.credit)
    .join(_resolved_by, _resolved_by.c.pending_seq == transfer_table.c.seq, isouter=True)
    .where(transfer_table.c.phase == "pending")
)

_Held: TypeAlias = dict[int, Row[*tuple[Any, ...]]]
"""Pending transfers by their numbers, with the columns of `_HOLDS`."""

# Most values in one query: databases limit the parameters of a statement.
_PER_QUERY_MAX = 500


def explain(connection: Connection, posting: Posting, refusal: DBAPIError) -> Answer:
    """Return the stored answer if the event is already booked, else the reason why it was refused."""
    return foreseen(connection, posting) or PostingRefused(
        f"event {posting.idem_key!r} was refused: {refusal.orig}"
    )


def foreseen(connection: Connection, posting: Posting) -> Answer | None:
    """Return the answer to an event that the ledger already has or will refuse; None if it may take it."""
    return (
        _earlier_answer(connection, posting)
        or _ended_before(connection, posting)
        or _unresolvable(connection, posting)
        or _not_reaped(connection, posting)
        or _short_of_credit(connection, posting)
    )


def suspects(connection: Connection, postings: Sequence[Posting]) -> list[bool]:
    """Guess for each event of a group, in order, whether the ledger will refuse it.

    A few queries check the whole group for known keys, requests and resolutions, missing holds, late captures
    without a reaper's release, and lack of credit after the earlier events. They check no other reason: the
    database decides on every event.
    """
    forecast = _forecast(connection, postings)
    return [not forecast.takes(posting) for posting in postings]


@dataclass(slots=True)
class _Forecast:
    """The ledger's state for a group's events, updated with each event that will be accepted."""

    known: set[str]
    ended: set[str]
    held: _Held
    resolved: set[int]
    left: dict[str, int]

    def takes(self, posting: Posting) -> bool:
        """Return whether the ledger will take this event. If so, count it for the events that follow."""
        needs = _needs(posting.legs, self.held)
        is_taken = (
            posting.idem_key not in self.known
            and self.ended.isdisjoint(_requests(posting))
            and all(self._resolves(leg) for leg in posting.legs if leg.pending_seq is not None)
            and (posting.kind != "late" or f"reap:{posting.ref}" in self.known)
            and all(needed <= self.left[code] for code, needed in needs.items())
        )
        if is_taken:
            self.known.add(posting.idem_key)
            self.ended.update(_requests(posting))
            self.resolved.update(leg.pending_seq for leg in posting.legs if leg.pending_seq is not None)
            for code, needed in needs.items():
                self.left[code] -= needed
        return is_taken

    def _resolves(self, leg: Leg) -> bool:
        return leg.pending_seq not in self.resolved and _matches(self.held.get(leg.pending_seq or 0), leg)


def _forecast(connection: Connection, postings: Sequence[Posting]) -> _Forecast:
    keys = [posting.idem_key for posting in postings]
    keys += [f"reap:{posting.ref}" for posting in postings if posting.kind == "late"]
    legs = [leg for posting in postings for leg in posting.legs]
    held = _holds(connection, [leg.pending_seq for leg in legs if leg.pending_seq is not None])
    guarded = {code for leg in legs for code in (leg.debit, leg.credit) if terms_of(code).guarded}
    return _Forecast(
        _known(connection, event_table.c.idem_key, keys),
        _known(connection, usage_table.c.request_id, [id_ for posting in postings for id_ in _requests(posting)]),
        held,
        {seq for seq, row in held.items() if row.resolution is not None},
        available(connection, guarded),
    )


def _requests(posting: Posting) -> list[str]:
    return [usage.request_id for usage in posting.usages]


def _known(connection: Connection, column: ColumnElement[str], values: Sequence[str]) -> set[str]:
    """Return the values that the column contains."""
    found: set[str] = set()
    for start in range(0, len(values), _PER_QUERY_MAX):
        found.update(connection.scalars(select(column).where(column.in_(values[start : start + _PER_QUERY_MAX]))))
    return found


def _ended_before(connection: Connection, posting: Posting) -> UsageBooked | None:
    known = _known(connection, usage_table.c.request_id, _requests(posting))
    return UsageBooked(frozenset(known)) if known else None


def _earlier_answer(connection: Connection, posting: Posting) -> Answer | None:
    event = connection.execute(
        select(event_table.c.seq, event_table.c.req_hash).where(event_table.c.idem_key == posting.idem_key)
    ).one_or_none()
    if event is None:
        return None
    if event.req_hash != request_hash(posting):
        return IdempotencyConflict(posting.idem_key)
    transfers = connection.execute(
        select(transfer_table.c.seq).where(transfer_table.c.event_seq == event.seq).order_by(transfer_table.c.leg)
    )
    return Posted(event.seq, tuple(transfers.scalars()), replayed=True)


def _unresolvable(connection: Connection, posting: Posting) -> PostingDenied | None:
    for leg in posting.legs:
        if leg.pending_seq is None:
            continue
        if not _matches(_holds(connection, [leg.pending_seq]).get(leg.pending_seq), leg):
            return HoldNotFound(f"transfer {leg.pending_seq} is not a hold that {posting.idem_key!r} can resolve")
        resolved_by = _resolution(connection, leg.pending_seq)
        if resolved_by == "reap":
            return HoldExpired(f"the hold of {posting.ref!r} had expired and was given back")
        if resolved_by is not None:
            return AlreadyResolved(f"the hold of {posting.ref!r} was resolved before, by a {resolved_by}")
    return None


def _not_reaped(connection: Connection, posting: Posting) -> PostingDenied | None:
    """Return an error unless the reaper released the hold: a late capture may follow no other release."""
    if posting.kind != "late":
        return None
    kinds = connection.execute(
        select(event_table.c.kind).where(
            event_table.c.idem_key.in_((f"reap:{posting.ref}", f"void:{posting.ref}"))
        )
    )
    found = set(kinds.scalars())
    if "reap" in found:
        return None
    if "release" in found:
        return AlreadyResolved(f"the hold of {posting.ref!r} was resolved before, by a release")
    return HoldNotFound(f"no hold of {posting.ref!r} was reaped, so nothing is late")


def _holds(connection: Connection, numbers: Sequence[int]) -> _Held:
    """Return pending transfers by their numbers, with the numbers of the transfers that resolved them."""
    found: _Held = {}
    for start in range(0, len(numbers), _PER_QUERY_MAX):
        some = numbers[start : start + _PER_QUERY_MAX]
        found.update({row.seq: row for row in connection.execute(_HOLDS.where(transfer_table.c.seq.in_(some)))})
    return found


def _matches(held: Row[*tuple[Any, ...]] | None, leg: Leg) -> bool:
    return (
        held is not None
        and (held.debit, held.credit) == (leg.debit, leg.credit)
        and held.amount >= leg.amount_nano
    )


def _resolution(connection: Connection, pending_seq: int) -> str | None:
    return connection.execute(
        select(event_table.c.kind)
        .join(transfer_table, transfer_table.c.event_seq == event_table.c.seq)
        .where(transfer_table.c.pending_seq == pending_seq)
    ).scalar_one_or_none()


def _short_of_credit(connection: Connection, posting: Posting) -> InsufficientCredit | None:
    held = _holds(connection, [leg.pending_seq for leg in posting.legs if leg.pending_seq is not None])
    for code, needed_nano in _needs(posting.legs, held).items():
        available_nano = balance(connection, code).available_nano
        if needed_nano > available_nano:
            return InsufficientCredit(code, needed_nano, available_nano)
    return None


def _needs(legs: tuple[Leg, ...], held: _Held) -> Counter[str]:
    """Return the amount that each guarded account must have for these legs, net of what they bring in.

    A post takes from what its hold reserved and frees the rest. A pending leg brings nothing in yet.
    """
    needs: Counter[str] = Counter()
    for leg in legs:
        for code, side in ((leg.debit, "D"), (leg.credit, "C")):
            terms = terms_of(code)
            if not terms.guarded:
                continue
            if terms.normal != side:
                freed = held.get(leg.pending_seq) if leg.pending_seq is not None else None
                needs[code] += leg.amount_nano - (freed.amount if freed else 0)
            elif terms.normal == side and leg.phase != "pending":
                needs[code] -= leg.amount_nano
    return needs
