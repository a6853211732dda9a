"""References of statement lines: the requests that an entry settled, the top-up that a payment was for."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sqlalchemy import Select, literal, select
from sqlalchemy.orm import Session

from accounting.payments.tables import dispute_table, refund_table, topup_table
from accounting.tables import usage_table
from gateway.console.access import Visitor
from gateway.console.pages.balance.lines import KINDS, Line, LineFilter, Lines, Place, codes_of, read_lines
from gateway.console.pages.balance.whose import Whose

_AT_ONCE = 500
_BEHIND_MAX = 3

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Seer:
    """The requests that a visitor may see: all, or those of one user, or of one key only."""

    user_id: str = ""
    key_id: str = ""

    @classmethod
    def of(cls, visitor: Visitor) -> "Seer":
        if visitor.is_manager:
            # Only for statements that they may see; the requests' own pages check again.
            return cls()
        return cls(visitor.caller.user_id, visitor.caller.key_id)

    def sees(self, user_id: str, key_id: str) -> bool:
        return self.user_id in ("", user_id) and self.key_id in ("", key_id)


@dataclass(slots=True)
class _Behind:
    """References found for the journal entries of a page."""

    places: dict[int, list[Place]] = field(default_factory=dict)
    more: dict[int, int] = field(default_factory=dict)

    def add(self, event_seq: int, place: Place) -> None:
        known = self.places.setdefault(event_seq, [])
        if place in known:
            return
        if len(known) < _BEHIND_MAX:
            known.append(place)
        else:
            self.more[event_seq] = self.more.get(event_seq, 0) + 1


def lines_of(
    session: Session, visitor: Visitor, whose: Whose, filters: LineFilter, before_seq: int | None, limit: int
) -> Lines:
    """Return a page of a statement with its lines' references. Raises NotFound for an account of another owner."""
    found = read_lines(session, codes_of(session, whose, filters.account), filters, before_seq, limit)
    return replace(found, lines=with_places(session, found.lines, Seer.of(visitor)))


def with_places(session: Session, lines: Sequence[Line], seer: Seer) -> tuple[Line, ...]:
    """Return the lines with the requests and payments that they refer to."""
    found = _Behind()
    _requests_behind(session, lines, seer, found)
    _payments_behind(session, lines, found)
    return tuple(
        replace(
            one,
            behind=tuple(found.places.get(one.line.event_seq, ())),
            more=found.more.get(one.line.event_seq, 0),
        )
        for one in lines
    )


def _requests_behind(session: Session, lines: Sequence[Line], seer: Seer, found: _Behind) -> None:
    """Add the requests that the entry settled, and the request that it concerns."""
    kinds = (*KINDS["requests"][1], "usage_refund", "variance")
    events = {one.line.event_seq: one.line.ref for one in lines if one.line.kind in kinds}
    used = usage_table.c
    columns = select(used.event_seq, used.request_id, used.user_id, used.key_id)
    by_ref: dict[str, list[int]] = {}
    for event_seq, ref in events.items():
        by_ref.setdefault(ref, []).append(event_seq)
    for some in _chunks(events):
        query = columns.where(used.event_seq.in_(some)).order_by(used.event_seq, used.request_id)
        for event_seq, request_id, user_id, key_id in session.execute(query):
            if seer.sees(user_id, key_id):
                found.add(event_seq, _request(request_id))
    for refs in _chunks(by_ref):
        for _, request_id, user_id, key_id in session.execute(columns.where(used.request_id.in_(refs))):
            for event_seq in by_ref[request_id] if seer.sees(user_id, key_id) else ():
                found.add(event_seq, _request(request_id))


def _payments_behind(session: Session, lines: Sequence[Line], found: _Behind) -> None:
    topup, refund, dispute = topup_table.c, refund_table.c, dispute_table.c
    by_kind: dict[str, Callable[[list[str]], Iterable[tuple[str, str]]]] = {
        "topup": lambda refs: _pairs(session, select(topup.intent_id, topup.id).where(topup.intent_id.in_(refs))),
        "topup_refund": lambda refs: _pairs(
            session,
            select(literal("refund-") + refund.id, refund.topup_id).where(
                refund.id.in_([ref.removeprefix("refund-") for ref in refs])
            ),
        ),
        "dispute": lambda refs: _pairs(session, select(dispute.id, dispute.topup_id).where(dispute.id.in_(refs))),
    }
    for kind, look in by_kind.items():
        events: dict[str, list[int]] = {}
        for one in lines:
            if one.line.kind == kind:
                events.setdefault(one.line.ref, []).append(one.line.event_seq)
        for refs in _chunks(events):
            for ref, topup_id in look(refs):
                for event_seq in events.get(ref, ()):
                    found.add(event_seq, Place("top-up", f"/console/balance/topups/{topup_id}"))


def _pairs(session: Session, query: Select[Any]) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in session.execute(query)]


def _request(request_id: str) -> Place:
    return Place(request_id, f"/console/requests/{request_id}")


def _chunks(values: Iterable[T]) -> list[list[T]]:
    every = list(values)
    return [every[begin : begin + _AT_ONCE] for begin in range(0, len(every), _AT_ONCE)]
