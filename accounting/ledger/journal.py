"""Write a batch of events in one transaction: the accepted events, and a reason for each refused one."""

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal, TypeAlias

from msgspec.structs import astuple
from sqlalchemy import Connection, func, insert, select
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.orm import Session

from accounting.chart import terms_of
from accounting.ledger.bulk_insert import Row, insert_rows
from accounting.ledger.denials import explain, foreseen, suspects
from accounting.ledger.postings import Answer, Leg, Posted, Posting, meta_text, request_hash
from accounting.tables import account_table, event_table, transfer_table, usage_table

Failpoint = Literal[
    "begun",
    "accounts_opened",
    "events_inserted",
    "transfers_inserted",
    "usage_inserted",
    "before_commit",
    "after_commit",
]
"""The places where a test may stop or kill the writer, in the order in which a batch passes them."""

OnFailpoint: TypeAlias = Callable[[Failpoint], None]
Fence: TypeAlias = Callable[[Connection], None]
"""Called at the begin of each transaction. An error that it raises ends the transaction."""
_Writer: TypeAlias = "Callable[[Connection, _Page, Sequence[Posting]], tuple[_Page, list[Answer]]]"

_key_id = itemgetter(usage_table.columns.keys().index("key_id"))

_WRITER_LOCK = 0x626F6F6B
_FROZEN_S = 3
"""Seconds. PostgreSQL ends a writer's transaction that is idle for longer: it takes the writer for frozen."""
_ACCOUNTS_REMEMBERED_MAX = 65_536

_ENTER = select(
    func.pg_advisory_xact_lock(_WRITER_LOCK),
    func.set_config("idle_in_transaction_session_timeout", f"{_FROZEN_S}s", True),
    # Every query here uses a key. A connection keeps plans, including those of foreign key checks, that it made
    # # while the tables were small, until the statistics change.
    func.set_config("enable_seqscan", "off", True),
)
_LAST_NUMBERS = select(
    *(
        select(func.coalesce(func.max(column), 0)).scalar_subquery()
        for column in (event_table.c.seq, transfer_table.c.seq, account_table.c.id)
    )
)


@dataclass(frozen=True, slots=True)
class _Page:
    """The state of the ledger inside the running transaction: the last numbers assigned, and the accounts used so
    far.

    A page is never changed, only followed by the next one. So after a savepoint is rolled back, the writer goes on
    from the page that it had before.
    """

    event_seq: int
    transfer_seq: int
    account_id: int
    account_ids: dict[str, int]


@dataclass(slots=True)
class _Rows:
    events: list[Row] = field(default_factory=list)
    transfers: list[Row] = field(default_factory=list)
    usage: list[Row] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)


class Journal:
    """Book batches, one transaction each. Belongs to one thread: the poster's.

    Args:
        open_session: returns sessions that may write.
        clock_ns: wall-clock time in nanoseconds since 1970, kept with each event.
        failpoint: called at each named place; does nothing outside of tests.
        fence: stops all but one of the processes that share the ledger from writing.
    """

    def __init__(
        self,
        open_session: Callable[[], Session],
        clock_ns: Callable[[], int],
        failpoint: OnFailpoint,
        fence: Fence | None = None,
    ) -> None:
        self._open_session = open_session
        self._clock_ns = clock_ns
        self._failpoint = failpoint
        self._fence = fence
        self._account_ids: dict[str, int] = {}

    def book(self, postings: Sequence[Posting]) -> list[Answer]:
        """Commit the events of a batch that the ledger accepts, and return the answer to each event, in order.

        Raises:
            sqlalchemy.exc.DBAPIError: the database failed as a whole, and the state of every event is unknown.
                Booking the same batch again is safe, because each event has its key.
        """
        try:
            # Refusals are rare, so try without a savepoint: SQLite would copy every page that is written.
            return self._commit(postings, self._insert)
        except (IntegrityError, DataError):
            return self._commit(postings, self._write_suspects if len(postings) == 1 else self._write_apart)

    def _commit(self, postings: Sequence[Posting], write: _Writer) -> list[Answer]:
        with self._open_session() as session, session.begin():
            connection = session.connection()
            page = self._last_page(connection)
            self._failpoint("begun")
            page, answers = write(connection, page, postings)
            self._failpoint("before_commit")
        self._failpoint("after_commit")
        self._remember(page.account_ids)
        return answers

    def _last_page(self, connection: Connection) -> _Page:
        if connection.dialect.name == "postgresql":
            # Allow one writer at a time among processes too. SQLite has its write lock for that.
            connection.execute(_ENTER)
        if self._fence:
            self._fence(connection)
        event_seq, transfer_seq, account_id = connection.execute(_LAST_NUMBERS).one()
        return _Page(event_seq, transfer_seq, account_id, account_ids={})

    def _write(
        self, connection: Connection, page: _Page, postings: Sequence[Posting]
    ) -> tuple[_Page, list[Answer]]:
        """Write events together under one savepoint. If one is refused, write the others without it."""
        try:
            with connection.begin_nested():
                return self._insert(connection, page, postings)
        except (IntegrityError, DataError) as refusal:
            if len(postings) == 1:
                return page, [explain(connection, postings[0], refusal)]
        return self._write_apart(connection, page, postings)

    def _write_apart(
        self, connection: Connection, page: _Page, postings: Sequence[Posting]
    ) -> tuple[_Page, list[Answer]]:
        """Write events of which at least one was refused. Write those without a known objection together."""
        suspected = suspects(connection, postings)
        if not any(suspected):
            # The quick checks found no reason. Bisecting: k such events among n take about k·log2(n/k) attempts.
            suspected = [number < len(postings) // 2 for number in range(len(postings))]
            return self._write_runs(connection, page, postings, suspected, self._write)
        return self._write_runs(connection, page, postings, suspected, self._write_suspects)

    def _write_runs(
        self,
        connection: Connection,
        page: _Page,
        postings: Sequence[Posting],
        marked: list[bool],
        write_marked: _Writer,
    ) -> tuple[_Page, list[Answer]]:
        """Write runs of neighbours with the same mark together, in order."""
        answers: list[Answer] = []
        for is_marked, run in groupby(zip(marked, postings, strict=True), key=itemgetter(0)):
            write = write_marked if is_marked else self._write
            page, some = write(connection, page, [posting for _, posting in run])
            answers += some
        return page, answers

    def _write_suspects(
        self, connection: Connection, page: _Page, postings: Sequence[Posting]
    ) -> tuple[_Page, list[Answer]]:
        """Write events one by one, and only those without a foreseeable refusal."""
        answers: list[Answer] = []
        for posting in postings:
            if answer := foreseen(connection, posting):
                answers.append(answer)
            else:
                page, some = self._write(connection, page, [posting])
                answers += some
        return page, answers

    def _insert(
        self, connection: Connection, page: _Page, postings: Sequence[Posting]
    ) -> tuple[_Page, list[Answer]]:
        page = self._open_accounts(connection, page, postings)
        self._failpoint("accounts_opened")
        rows = self._rows(page, postings)
        insert_rows(connection, event_table, rows.events)
        self._failpoint("events_inserted")
        insert_rows(connection, transfer_table, rows.transfers)
        self._failpoint("transfers_inserted")
        insert_rows(connection, usage_table, rows.usage)
        self._failpoint("usage_inserted")
        numbered = replace(
            page,
            event_seq=page.event_seq + len(rows.events),
            transfer_seq=page.transfer_seq + len(rows.transfers),
        )
        return numbered, rows.answers

    def _open_accounts(self, connection: Connection, page: _Page, postings: Sequence[Posting]) -> _Page:
        """Create the missing accounts of the events. Return the page that has their ids."""
        codes = {code for posting in postings for leg in posting.legs for code in (leg.debit, leg.credit)}
        unknown = sorted(code for code in codes if code not in self._account_ids and code not in page.account_ids)
        if not unknown:
            return page
        found = connection.execute(
            select(account_table.c.code, account_table.c.id).where(account_table.c.code.in_(unknown))
        )
        account_ids = page.account_ids | {row.code: row.id for row in found}
        new = [code for code in unknown if code not in account_ids]
        if new:
            rows = [_account_row(page.account_id + n, code) for n, code in enumerate(new, start=1)]
            connection.execute(insert(account_table), rows)
            account_ids |= {row["code"]: row["id"] for row in rows}
        return replace(page, account_id=page.account_id + len(new), account_ids=account_ids)

    def _rows(self, page: _Page, postings: Sequence[Posting]) -> _Rows:
        rows = _Rows()
        created_ns = self._clock_ns()
        ids = ChainMap(self._account_ids, page.account_ids)
        transfer_seq = page.transfer_seq
        for event_seq, posting in enumerate(postings, start=page.event_seq + 1):
            first_seq = transfer_seq + 1
            rows.events.append(_event_row(event_seq, posting, created_ns))
            for number, leg in enumerate(posting.legs):
                transfer_seq += 1
                rows.transfers.append(_transfer_row(transfer_seq, event_seq, number, leg, ids))
            rows.usage += [(*astuple(usage), event_seq) for usage in posting.usages]
            rows.answers.append(Posted(event_seq, tuple(range(first_seq, transfer_seq + 1))))
        # Sort by key: the index has hundreds of pages, and each is then written once, while it is in memory.
        rows.usage.sort(key=_key_id)
        return rows

    def _remember(self, account_ids: dict[str, int]) -> None:
        if len(self._account_ids) + len(account_ids) > _ACCOUNTS_REMEMBERED_MAX:
            self._account_ids.clear()
        self._account_ids.update(account_ids)


def _account_row(account_id: int, code: str) -> dict[str, Any]:
    terms = terms_of(code)
    return {
        "id": account_id,
        "code": code,
        "currency": terms.currency,
        "kind": terms.kind,
        "normal": terms.normal,
        "guarded": terms.guarded,
        "debits_posted": 0,
        "credits_posted": 0,
        "debits_pending": 0,
        "credits_pending": 0,
        "applied_seq": 0,
    }


# Columns are in the tables' order.
def _event_row(seq: int, posting: Posting, created_ns: int) -> Row:
    meta = meta_text(posting.meta)
    return (seq, posting.idem_key, posting.kind, request_hash(posting), posting.ref, created_ns, meta)


def _transfer_row(seq: int, event_seq: int, number: int, leg: Leg, account_ids: Mapping[str, int]) -> Row:
    debit, credit = account_ids[leg.debit], account_ids[leg.credit]
    return (seq, event_seq, number, debit, credit, leg.amount_nano, leg.phase, leg.pending_seq, leg.expires_ns)
