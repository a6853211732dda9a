"""Deletes old and excess responses in small portions, because on SQLite the ledger waits for each."""

import time
from collections.abc import Callable

import structlog
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from gateway.dialects.stored_responses.tables import response_table
from gateway.settings.responses import ResponsesSettings

log = structlog.get_logger(__name__)

PORTION = 500
PORTIONS_MAX = 200
_DAY_NS = 86_400 * 10**9

_rows = response_table.c
_oldest = select(_rows.id).order_by(_rows.created_ns)


def prune(write: Callable[[], Session], keep: ResponsesSettings) -> None:
    """Delete in portions until nothing is left. Never raises: failed deletions are retried next time."""
    try:
        for _ in range(PORTIONS_MAX):
            if not _prune_once(write, keep):
                return
    except Exception as error:  # noqa: BLE001 - a thread's edge
        log.error("stored responses not pruned", reason=str(error.__cause__ or error))


def _prune_once(write: Callable[[], Session], keep: ResponsesSettings) -> bool:
    """Delete one portion; return whether there may be more to delete."""
    with write() as session, session.begin():
        ids = [*_too_old(session, keep), *_too_many(session, keep)] or _too_large(session, keep)
        session.execute(delete(response_table).where(_rows.id.in_(ids)))
    return bool(ids)


def _too_old(session: Session, keep: ResponsesSettings) -> list[str]:
    last_ns = time.time_ns() - keep.days_max * _DAY_NS
    return list(session.scalars(_oldest.where(_rows.created_ns < last_ns).limit(PORTION)))


def _too_many(session: Session, keep: ResponsesSettings) -> list[str]:
    """Return the responses beyond each user's maximum number."""
    beyond = select(_rows.owner).group_by(_rows.owner).having(func.count() > keep.per_user_max)
    found: list[str] = []
    for owner in session.scalars(beyond.limit(PORTION)).all():
        newest = select(_rows.created_ns).where(_rows.owner == owner).order_by(_rows.created_ns.desc())
        last_ns = session.scalar(newest.offset(keep.per_user_max).limit(1))
        found += session.scalars(_oldest.where(_rows.owner == owner, _rows.created_ns <= last_ns).limit(PORTION))
    return found[:PORTION]


def _too_large(session: Session, keep: ResponsesSettings) -> list[str]:
    """Return the oldest responses, as many as needed for the rest to fit."""
    excess_bytes = (session.scalar(select(func.sum(_rows.size_bytes))) or 0) - keep.bytes_max
    sizes = select(_rows.id, _rows.size_bytes).order_by(_rows.created_ns).limit(PORTION)
    found: list[str] = []
    for response_id, size_bytes in session.execute(sizes).all() if excess_bytes > 0 else ():
        if excess_bytes <= 0:
            break
        found.append(response_id)
        excess_bytes -= size_bytes
    return found
