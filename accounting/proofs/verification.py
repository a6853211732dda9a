"""Read the ledger from the first block to the last event, and report where it differs from its proof.

Each slice of blocks is read in its own transaction. Proven events do not change, so only the last slice, which is
compared with the accounts, must see one moment of the ledger.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from sqlalchemy import Connection, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from accounting.ledger.accepted import accepted_places
from accounting.ledger.health import EVENTS_AS_REQUESTED
from accounting.proofs.blocks import (
    NOTHING_YET,
    Checkpoint,
    SignedBlock,
    blocks_after,
    every_key,
    is_there,
    public_keys,
)
from accounting.proofs.canonical import digest, event_line, header_line
from accounting.proofs.entries import LAST_NUMBER, AccountCodes, Entries, Entry, RowsUnreadable
from accounting.proofs.fold import Fold
from accounting.proofs.links import flaws_of, is_sane, runs
from accounting.proofs.signing_key import fingerprint_of
from accounting.proofs.suspects import matches_request
from accounting.proofs.tables import BLOCK_EVENTS_MAX
from accounting.proofs.tail import UNPROVEN_MAX_S, Tail
from accounting.proofs.verdict import Flaw, Verdict
from accounting.tables import event_table, transfer_table, usage_table

SLICE_BLOCKS = 128
FLAWS_MAX = 100
_PROBLEMS_MAX = 20
_SHOWN_MAX = 5


class BlockUnknown(LookupError):
    """Raised when there is no block of this number."""


def verify(
    read: Callable[[], Session],
    *,
    from_block: int = 1,
    known: Sequence[Checkpoint] = (),
    signers: Collection[str] = (),
    unproven_max_s: float = UNPROVEN_MAX_S,
    go_on: Callable[[], bool] = lambda: True,
    clock_ns: Callable[[], int] = time.time_ns,
) -> Verdict:
    """Check every block from `from_block` on, then the accounts and the events without a block.

    Args:
        read: returns sessions that see one moment of the ledger.
        from_block: where to start; earlier blocks are trusted, and accounts are not added up.
        known: blocks that an admin kept earlier: they must be the same now.
        signers: fingerprints of all keys that may have signed; empty allows any key.
        unproven_max_s: how old an event may be that is in no block, in seconds.
        go_on: called before each block; if it returns False, the verdict covers what was read so far.
        clock_ns: wall-clock time in nanoseconds since 1970, by which events are old or young.

    Raises:
        BlockUnknown: there is no block before `from_block`.
        sqlalchemy.exc.SQLAlchemyError: the database does not answer at all.
    """
    expected = _Expected(tuple(known), frozenset(signers), unproven_max_s)
    return _Verification(read, from_block, expected, go_on, clock_ns).verdict()


@dataclass(frozen=True, slots=True)
class _Expected:
    """Facts about the ledger that are known from elsewhere; see `verify`."""

    known: tuple[Checkpoint, ...]
    signers: frozenset[str]
    unproven_max_s: float


class _Verification:
    def __init__(
        self,
        read: Callable[[], Session],
        from_block: int,
        expected: _Expected,
        go_on: Callable[[], bool],
        clock_ns: Callable[[], int],
    ) -> None:
        self._read = read
        self._go_on = go_on
        self._clock_ns = clock_ns
        self._expected = expected
        self._fold = Fold() if from_block == 1 else None
        self._last = NOTHING_YET if from_block == 1 else self._block_before(from_block)
        self._read_to = self._last.to_seq
        self._codes = AccountCodes()
        self._keys: dict[str, bytes] = {}
        self._signed_by: dict[str, int] = {}
        self._flaws: list[Flaw] = []
        self._suspects: list[int] = []
        self._blocks = self._events = 0
        self._tail = Tail(0)

    def _block_before(self, n: int) -> SignedBlock:
        with self._read() as session:
            found = blocks_after(session, n - 2, limit=1)
        if not found or found[0].n != n - 1:
            raise BlockUnknown(f"there is no block {n - 1} to continue from")
        return found[0]

    def verdict(self) -> Verdict:
        is_complete = False
        while self._may_go_on() and not is_complete:
            try:
                is_complete = self._next_slice()
            except RowsUnreadable as error:
                self._note(f"block {self._last.n + 1} or after it", f"the ledger cannot be read: {error}")
                break
        return Verdict(
            blocks=self._blocks,
            events=self._events,
            tail_events=self._tail.events,
            tail_age_s=self._tail.age_s,
            checkpoint=self._last.checkpoint if self._last.n else None,
            signed_by=self._signed_by,
            flaws=tuple(self._flaws),
            is_complete=is_complete,
            next_block=None if is_complete else self._last.n + 1,
            accounts_checked=is_complete and self._fold is not None,
        )

    def _may_go_on(self) -> bool:
        return len(self._flaws) < FLAWS_MAX and self._go_on()

    def _note(self, where: str, what: str) -> None:
        self._flaws.append(Flaw(where, what))

    def _next_slice(self) -> bool:
        """Check the next blocks. Return True once everything is checked, including what follows the last block."""
        with self._read() as session:
            connection = session.connection()
            self._codes.connection = connection
            try:
                return self._check_slice(connection)
            except DBAPIError as error:
                if error.connection_invalidated:
                    raise
                raise RowsUnreadable(str(error.orig)) from error
            except (TypeError, AttributeError, ValueError) as error:
                # Bytes in place of a text, or an invalid text: none of our databases accepted this row.
                raise RowsUnreadable(f"a row has an unexpected type: {error}") from error

    def _check_slice(self, connection: Connection) -> bool:
        found = blocks_after(connection, self._last.n, limit=SLICE_BLOCKS)
        self._keys = public_keys(connection, found)
        if not all(self._check_run(connection, run) for run in runs(found)):
            return False
        return len(found) < SLICE_BLOCKS and self._check_end(connection)

    def _check_run(self, connection: Connection, run: Sequence[SignedBlock]) -> bool:
        """Check consecutive blocks together. Return False if that was interrupted."""
        if not is_sane(run[0]):
            self._check_block(run[0], None)
            return True
        self._read_between(connection, run[0].from_seq - 1)
        with Entries(connection, run[0].from_seq, run[-1].to_seq) as entries:
            following = iter(entries)
            entry = next(following, None)
            for block in run:
                if not self._may_go_on():
                    return False
                content, entry = self._read_block(block, entry, following)
                self._check_block(block, content)
                self._note_suspects(connection)
        for event_seq in entries.strays:
            self._note(f"event {event_seq}", "is missing, but its transfers or usage rows exist")
        return True

    def _read_block(
        self, block: SignedBlock, entry: Entry | None, following: Iterator[Entry]
    ) -> tuple[bytes, Entry | None]:
        """Read a block's events, starting with `entry`. Return their hash and the event after them."""
        content = digest(block.prev)
        content.update(header_line(block.n, block.from_seq, block.to_seq, block.made_ns, block.signed_by))
        codes = self._codes
        expected = block.from_seq
        while entry is not None and entry[0][0] <= block.to_seq:
            event, transfers, usages = entry
            if event[0] != expected:
                self._note_missing(expected, event[0] - 1)
            expected = event[0] + 1
            content.update(event_line(event, transfers, usages, codes))
            self._pass(entry)
            entry = next(following, None)
        self._events += block.events
        self._note_missing(expected, block.to_seq)
        return content.digest(), entry

    def _read_between(self, connection: Connection, last_seq: int) -> None:
        """Read events of missing blocks, because the accounts include them."""
        if last_seq > self._read_to:
            with Entries(connection, self._read_to + 1, last_seq) as entries:
                for entry in entries:
                    self._pass(entry)
            self._note_suspects(connection)

    def _pass(self, entry: Entry) -> None:
        """Count an event once, even if overlapping blocks read it twice."""
        (event_seq, *_), transfers, _ = entry
        if event_seq > self._read_to:
            self._read_to = event_seq
            if len(self._suspects) < _PROBLEMS_MAX and not matches_request(entry, self._codes):
                self._suspects.append(event_seq)
            if self._fold is not None:
                self._fold.add(transfers)

    def _check_block(self, block: SignedBlock, content: bytes | None) -> None:
        """Report everything wrong with a block as one flaw. `content` is the hash of what it covers, if known."""
        self._note_signer(block)
        if wrong := flaws_of(block, self._last, content, self._keys):
            self._note(f"block {block.n}", "; ".join(wrong))
        self._blocks += 1
        self._last = block
        self._take_problems()

    def _note_signer(self, block: SignedBlock) -> None:
        signed = self._signed_by.get(block.signed_by, 0)
        self._signed_by[block.signed_by] = signed + 1
        if not signed and self._expected.signers and block.signed_by not in self._expected.signers:
            self._note(f"block {block.n}", f"key {block.signed_by}, which signed it, is not an expected one")

    def _take_problems(self) -> None:
        if self._fold is not None and self._fold.problems:
            for problem in self._fold.problems[:_PROBLEMS_MAX]:
                self._note("transfers", problem)
            self._fold.problems.clear()

    def _note_suspects(self, connection: Connection) -> None:
        """Report the events whose rows differ from their request hash, except accepted ones."""
        if self._suspects:
            accepted = accepted_places(connection, EVENTS_AS_REQUESTED)
            for event_seq in self._suspects:
                if str(event_seq) not in accepted:
                    self._note(f"event {event_seq}", "differs from what was requested under its key")
            self._suspects.clear()

    def _note_missing(self, first_seq: int, last_seq: int) -> None:
        if first_seq == last_seq:
            self._note(f"event {first_seq}", "is missing")
        elif first_seq < last_seq:
            self._note(f"events {first_seq} to {last_seq}", "are missing")

    def _check_end(self, connection: Connection) -> bool:
        if not self._check_tail(connection):
            return False
        self._check_keys(connection)
        for known in self._expected.known:
            if not is_there(connection, known):
                self._note(f"block {known.n}", "it differs from the kept one: the past was rewritten")
        if self._fold is not None:
            for problem in islice(self._fold.compare(connection), _PROBLEMS_MAX):
                self._note("accounts", problem)
            for problem in storage_problems(connection):
                self._note("storage", problem)
        return True

    def _check_keys(self, connection: Connection) -> None:
        for fingerprint, key in every_key(connection):
            if len(self._flaws) >= FLAWS_MAX:
                return
            if fingerprint_of(key) != fingerprint:
                self._note(f"key {fingerprint}", "the public key is not the one with this fingerprint")
            # A key is stored with its first block, in one transaction.
            if self._fold is not None and fingerprint not in self._signed_by:
                self._note(f"key {fingerprint}", "it has signed blocks, but none of them exists")

    def _check_tail(self, connection: Connection) -> bool:
        """Read the events without a block: the accounts already include them."""
        expected = self._read_to + 1
        self._tail = tail = Tail(self._clock_ns())
        with Entries(connection, expected, LAST_NUMBER) as entries:
            for entry in entries:
                event_seq = entry[0][0]
                self._note_missing(expected, event_seq - 1)
                expected = event_seq + 1
                tail.add(entry)
                self._pass(entry)
                if tail.events % BLOCK_EVENTS_MAX == 0 and not self._may_go_on():
                    return False
        for event_seq in (*entries.strays, *before_first(connection)):
            self._note(f"event {event_seq}", "cannot exist, but it has rows")
        self._note_suspects(connection)
        self._flaws += tail.flaws(self._expected.unproven_max_s, is_all=not self._last.n)
        self._take_problems()
        return True


def before_first(connection: Connection) -> list[int]:
    """Return the first few event numbers below 1 that rows have."""
    found: list[int] = []
    for column in (event_table.c.seq, transfer_table.c.event_seq, usage_table.c.event_seq):
        found += connection.scalars(select(column).where(column < 1).limit(_SHOWN_MAX))
    return found


def storage_problems(connection: Connection) -> Iterator[str]:
    """Yield SQLite's findings about its file: an index that differs from its table, a torn page.

    Rows are read by indexes, and a wrong index would show rows that the table does not have. PostgreSQL reads the
    table for every row that an index finds; its own program `pg_amcheck` checks the rest.
    """
    if connection.dialect.name == "sqlite":
        for line in connection.exec_driver_sql(f"PRAGMA integrity_check({_SHOWN_MAX})").scalars():
            if line != "ok":
                yield str(line)
