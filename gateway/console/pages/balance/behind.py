"""References of statement lines: the requests that an entry settled, the top-up that a payment was for."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
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


_Behind = dict[int, dict[Place, None]]
"""The references found for each journal entry, in order and each once."""


def lines_of(
    session: Session, visitor: Visitor, whose: Whose, filters: LineFilter, before_seq: int | None, limit: int
) -> Lines:
    """Return a page of a statement with its lines' references. Raises NotFound for an account of another owner."""
    found = read_lines(session, codes_of(session, whose, filters.account), filters, before_seq, limit)
    behind: _Behind = defaultdict(dict)
    _requests_behind(session, found.lines, visitor, behind)
    _payments_behind(session, found.lines, behind)
    return replace(found, lines=tuple(_with_places(one, tuple(behind[one.line.event_seq])) for one in found.lines))


def _with_places(line: Line, places: tuple[Place, ...]) -> Line:
    return replace(line, behind=places[:_BEHIND_MAX], more=max(0, len(places) - _BEHIND_MAX))


def _sees(visitor: Visitor, user_id: str, key_id: str) -> bool:
    """Whether the visitor may see a request of this key, on a statement that they may see."""
    caller = visitor.caller
    # For admins the requests' own pages check again.
    return visitor.is_manager or (caller.user_id == user_id and caller.key_id in ("", key_id))


def _requests_behind(session: Session, lines: Sequence[Line], visitor: Visitor, found: _Behind) -> None:
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
            if _sees(visitor, user_id, key_id):
                found[event_seq][_request(request_id)] = None
    for refs in _chunks(by_ref):
        for _, request_id, user_id, key_id in session.execute(columns.where(used.request_id.in_(refs))):
            for event_seq in by_ref[request_id] if _sees(visitor, user_id, key_id) else ():
                found[event_seq][_request(request_id)] = None


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
                    found[event_seq][Place("top-up", f"/console/balance/topups/{topup_id}")] = None


def _pairs(session: Session, query: Select[Any]) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in session.execute(query)]


def _request(request_id: str) -> Place:
    return Place(request_id, f"/console/requests/{request_id}")


def _chunks(values: Iterable[T]) -> list[list[T]]:
    every = list(values)
    return [every[begin : begin + _AT_ONCE] for begin in range(0, len(every), _AT_ONCE)]
