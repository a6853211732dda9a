"""Finds out, after the database refused an event, what to tell its originator.

The database only says which constraint broke. This reads what stands in the books, inside the transaction that
refused, and turns it into the stored answer of an earlier request or the error that names the reason.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, select
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

# Values that one query may ask for; databases bound the parameters of a statement.
_ASKED_MAX = 500


def explain(connection: Connection, posting: Posting, refusal: DBAPIError) -> Answer:
    """Return the stored answer if the event stands in the books already, else the reason why it cannot."""
    return foreseen(connection, posting) or PostingRefused(
        f"event {posting.idem_key!r} was refused: {refusal.orig}"
    )


def foreseen(connection: Connection, posting: Posting) -> Answer | None:
    """Return the answer to an event that the books hold already or will refuse; None if they may take it."""
    return (
        _earlier_answer(connection, posting)
        or _ended_before(connection, posting)
        or _unresolvable(connection, posting)
        or _not_reaped(connection, posting)
        or _short_of_credit(connection, posting)
    )


def suspects(connection: Connection, postings: Sequence[Posting]) -> list[bool]:
    """Guess for each event of a group, in order, whether the books will refuse it.

    A few queries for the whole group: a key or a request that is known, or less credit than the events before
    leave. Other reasons are not looked for; the books themselves have the last word on every event.
    """
    known = _known(connection, event_table.c.idem_key, [posting.idem_key for posting in postings])
    ended = _known(
        connection, usage_table.c.request_id, [id_ for posting in postings for id_ in _requests(posting)]
    )
    held = _held_amounts(connection, [leg for posting in postings for leg in posting.legs])
    all_needs = [_needs(posting.legs, held) for posting in postings]
    left = available(connection, {code for needs in all_needs for code in needs})
    found = []
    for posting, needs in zip(postings, all_needs, strict=True):
        is_suspect = (
            posting.idem_key in known
            or not ended.isdisjoint(_requests(posting))
            or any(needed > left[code] for code, needed in needs.items())
        )
        if not is_suspect:
            known.add(posting.idem_key)
            ended.update(_requests(posting))
            for code, needed in needs.items():
                left[code] -= needed
        found.append(is_suspect)
    return found


def _requests(posting: Posting) -> list[str]:
    return [usage.request_id for usage in posting.usages]


def _known(connection: Connection, column: ColumnElement[str], values: Sequence[str]) -> set[str]:
    """Return those of the values that stand in the column."""
    found: set[str] = set()
    for start in range(0, len(values), _ASKED_MAX):
        found.update(connection.scalars(select(column).where(column.in_(values[start : start + _ASKED_MAX]))))
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
        if not _matches(_held(connection, leg.pending_seq), leg):
            return HoldNotFound(f"transfer {leg.pending_seq} is no hold that {posting.idem_key!r} could resolve")
        resolved_by = _resolution(connection, leg.pending_seq)
        if resolved_by == "reap":
            return HoldExpired(f"the hold of {posting.ref!r} had expired and was given back")
        if resolved_by is not None:
            return AlreadyResolved(f"the hold of {posting.ref!r} was resolved before, by a {resolved_by}")
    return None


def _not_reaped(connection: Connection, posting: Posting) -> PostingDenied | None:
    """A late capture follows the reaper's release, and no other: whoever released a hold delivered nothing."""
    if posting.kind != "late":
        return None
    kinds = connection.execute(
        select(event_table.c.kind).where(
            event_table.c.idem_key.in_((f"reap:{posting.ref}", f"void:{posting.ref}"))
        )
    ).scalars()
    match kinds.one_or_none():
        case "reap":
            return None
        case "release":
            return AlreadyResolved(f"the hold of {posting.ref!r} was resolved before, by a release")
    return HoldNotFound(f"no hold of {posting.ref!r} was reaped, so nothing is late")


def _held(connection: Connection, pending_seq: int) -> Row[*tuple[Any, ...]] | None:
    debit, credit = account_table.alias("debited"), account_table.alias("credited")
    return connection.execute(
        select(transfer_table.c.amount, debit.c.code.label("debit"), credit.c.code.label("credit"))
        .join(debit, debit.c.id == transfer_table.c.debit)
        .join(credit, credit.c.id == transfer_table.c.credit)
        .where(transfer_table.c.seq == pending_seq, transfer_table.c.phase == "pending")
    ).one_or_none()


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
    held = _held_amounts(connection, posting.legs)
    for code, needed_nano in _needs(posting.legs, held).items():
        available_nano = balance(connection, code).available_nano
        if needed_nano > available_nano:
            return InsufficientCredit(code, needed_nano, available_nano)
    return None


def _held_amounts(connection: Connection, legs: Iterable[Leg]) -> dict[int, int]:
    """Return what the pending transfers that the legs resolve put aside, by their numbers."""
    numbers = [leg.pending_seq for leg in legs if leg.pending_seq is not None]
    query: Select[int, int] = select(transfer_table.c.seq, transfer_table.c.amount)
    found: dict[int, int] = {}
    for start in range(0, len(numbers), _ASKED_MAX):
        some = numbers[start : start + _ASKED_MAX]
        found.update(connection.execute(query.where(transfer_table.c.seq.in_(some))).all())
    return found


def _needs(legs: tuple[Leg, ...], held: Mapping[int, int]) -> Counter[str]:
    """Return how much each guarded account must have for these legs, less what they bring it themselves.

    A post takes from what its hold put aside and frees the rest; what is only pending brings nothing yet.
    """
    needs: Counter[str] = Counter()
    for leg in legs:
        for code, side in ((leg.debit, "D"), (leg.credit, "C")):
            terms = terms_of(code)
            if not terms.guarded:
                continue
            if terms.normal != side:
                freed_nano = 0 if leg.pending_seq is None else held.get(leg.pending_seq, 0)
                needs[code] += leg.amount_nano - freed_nano
            elif terms.normal == side and leg.phase != "pending":
                needs[code] -= leg.amount_nano
    return needs
