"""Run the maker of blocks: a thread that reads committed events, independent of the writer, and proves them.

Every event is in a block about a second after it was booked, with up to a thousand others. A ledger at rest gets no
blocks. After a long absence a gateway catches up at half its pace, so that requests are served meanwhile.

A maker never proves a changed past. It makes no block if the newest one that it has seen is gone or different
(`accounting.proofs.kept`), or if an event's rows differ from what was requested under its key. Its `witness` then
breaks a rule of the ledger (`accounting.ledger.health`).
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from accounting.ledger.accepted import accepted_places
from accounting.ledger.health import EVENTS_AS_REQUESTED
from accounting.ledger.scope import Witness
from accounting.proofs import blocks
from accounting.proofs.blocks import NOTHING_YET, Checkpoint, SignedBlock
from accounting.proofs.canonical import digest, event_line, header_line
from accounting.proofs.entries import AccountCodes, Entries
from accounting.proofs.kept import KeptCheckpoint
from accounting.proofs.signing_key import KeyFile, Signer
from accounting.proofs.suspects import matches_request
from accounting.proofs.tables import BLOCK_EVENTS_MAX
from accounting.tables import event_table
from runtime.database import no_commits

Failpoint = Literal["begun", "hashed", "signed", "key_registered", "block_inserted", "committed"]
"""The places where a test may stop or kill the maker, in the order in which a block passes them."""

OnFailpoint: TypeAlias = Callable[[Failpoint], None]

EVERY_S = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Unproven:
    """Events that are in no block, the oldest booked at `since_ns`, and why no block can be made, if so."""

    events: int = 0
    since_ns: int | None = None
    trouble: str = ""

    def age_s(self, now_ns: int) -> float:
        """Return how long the oldest has waited for its block, in seconds; 0 if none waits."""
        return 0.0 if self.since_ns is None else max(0, now_ns - self.since_ns) / 1e9


class EventsMissing(RuntimeError):
    """Raised when numbers of events have a gap: events were deleted, and no block can cover it."""


class BlocksGone(RuntimeError):
    """Raised when the newest block that this gateway has seen is no longer in the ledger, or differs."""


class EventsAltered(RuntimeError):
    """Raised when rows of unsigned events differ from what was requested under their keys."""


class BlockMaker:
    """Run one thread that makes blocks and signs them with one gateway's key.

    Any number of makers may work on the same ledger. If two make the same block, one is refused and continues with
    the next.

    Args:
        read: returns sessions that see one moment of the ledger.
        write: returns sessions that may write.
        key: the signing key; the newest block is kept beside it.
        clock_ns: wall-clock time in nanoseconds since 1970, kept with each block.
        every_s: how long events may wait for their block.
        commit: that of `runtime.database.Commits`; once all events are in blocks, a commit must come before the
            ledger and the key's file are read again.
        failpoint: called at each named place; does nothing outside of tests.

    Raises:
        CheckpointUnusable: the file of the newest block cannot be read or understood.
    """

    def __init__(
        self,
        read: Callable[[], Session],
        write: Callable[[], Session],
        key: KeyFile,
        *,
        clock_ns: Callable[[], int] = time.time_ns,
        every_s: float = EVERY_S,
        commit: Callable[[], int | None] = no_commits,
        failpoint: OnFailpoint = lambda _: None,
    ) -> None:
        self._read = read
        self._write = write
        self._key = key
        self._clock_ns = clock_ns
        self._every_s = every_s
        self._commit = commit
        self._sealed_at: int | None = None
        self._failpoint = failpoint
        self._newest = NOTHING_YET
        self._kept = KeptCheckpoint(key.path)
        self._altered: tuple[int, ...] = ()
        self._registered = ""
        self._codes = AccountCodes()
        self._unproven = Unproven()
        self._stopping = threading.Event()
        self._late = threading.Event()
        self._thread = threading.Thread(target=self._run, name="block maker", daemon=True)

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest block that this maker has seen, a second old at most if others make blocks too."""
        kept = self._kept.checkpoint
        return kept if kept and kept.n else None

    @property
    def witness(self) -> Witness:
        """The witness for checks of the ledger's rules."""
        checkpoint = self.checkpoint
        return Witness((checkpoint.n, checkpoint.hash) if checkpoint else None, self._altered)

    @property
    def unproven(self) -> Unproven:
        """The events left to prove, a second old at most."""
        return self._unproven

    def start(self) -> None:
        """Start to make blocks. A maker can be started once."""
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Prove what is booked by now and end the thread. What is not done in time waits for the next start."""
        self._stopping.set()
        if self._thread.ident is None:
            return
        self._thread.join(timeout_s)
        self._late.set()

    def seal(self) -> int:
        """Make blocks until every event is in one, and return their number.

        Raises:
            EventsMissing: there is a gap.
            BlocksGone: the newest block seen is no longer in the ledger.
            EventsNotAsked: an event was changed before it was proven.
            CheckpointUnusable: the newest block cannot be kept.
            SigningKeyUnusable: there is no key to sign with.
            sqlalchemy.exc.SQLAlchemyError: the database does not answer, or refuses.
        """
        made = 0
        while not self._late.is_set():
            began_s = time.monotonic()
            signer = self._key.signer()
            block = self._next(signer)
            if block is None:
                break
            made += self._append(block, signer)
            if block.events == BLOCK_EVENTS_MAX:
                self._count()
                self._stopping.wait(time.monotonic() - began_s)
        return made

    def _run(self) -> None:
        while not self._late.is_set():
            is_last = self._stopping.wait(self._every_s)
            self._seal_if_possible()
            if is_last:
                return

    def _seal_if_possible(self) -> None:
        try:
            commit = self._commit()
            if commit is not None and commit == self._sealed_at:
                return
            self.seal()
        except Exception as error:  # noqa: BLE001  the thread's edge: it survives every error
            self._sealed_at = None
            self._complain(error)
        else:
            self._sealed_at = commit
            self._unproven = Unproven()

    def _complain(self, error: Exception) -> None:
        """Log a problem once while it lasts."""
        trouble = f"{type(error).__name__}: {getattr(error, 'orig', error)}"
        if trouble != self._unproven.trouble:
            _log.error("no block can be made: %s", trouble)
            self._unproven = replace(self._unproven, trouble=trouble)
        # If the database is away, keep the last count, which only grows older.
        with suppress(SQLAlchemyError):
            self._count()

    def _count(self) -> None:
        """Count the events left to prove."""
        with self._read() as session:
            proven_seq = blocks.newest(session).to_seq
            last_seq = session.execute(select(func.max(event_table.c.seq))).scalar() or 0
            oldest = select(event_table.c.created_ns).where(event_table.c.seq > proven_seq)
            since_ns = session.execute(oldest.order_by(event_table.c.seq).limit(1)).scalar()
        events = max(0, last_seq - proven_seq)
        self._unproven = replace(self._unproven, events=events, since_ns=since_ns)

    def _next(self, signer: Signer) -> SignedBlock | None:
        """Return the next block of unproven events, signed; None if there are none."""
        with self._read() as session:
            connection = session.connection()
            self._newest = self._following(connection)
            to_seq = self._last_of_next(connection)
            if to_seq is None:
                return None
            self._failpoint("begun")
            return self._block(connection, to_seq, signer)

    def _following(self, connection: Connection) -> SignedBlock:
        """Return the newest block of the ledger and keep it. Raises BlocksGone, CheckpointUnusable."""
        newest = blocks.newest(connection)
        kept = self._kept.checkpoint
        if kept and kept.n and kept != newest.checkpoint and not blocks.is_there(connection, kept):
            accepted = self._kept.accepted()
            if accepted is None or (accepted.n and not blocks.is_there(connection, accepted)):
                raise BlocksGone(
                    f"block {kept} was made and is missing: blocks were removed, or the database was restored"
                )
        if newest.n or kept:
            self._kept.keep(newest.checkpoint)
        return newest

    def _last_of_next(self, connection: Connection) -> int | None:
        """Return the number of the last event of the next block; None if there are no events."""
        after = self._newest.to_seq
        seq = event_table.c.seq
        found = connection.scalars(select(seq).where(seq > after).order_by(seq).limit(BLOCK_EVENTS_MAX)).all()
        if not found:
            return None
        if found[-1] != after + len(found):
            missing = next(number for number, there in enumerate(found, after + 1) if number != there)
            raise EventsMissing(f"event {missing} is missing")
        return int(found[-1])

    def _block(self, connection: Connection, to_seq: int, signer: Signer) -> SignedBlock:
        last = self._newest
        n, from_seq, made_ns = last.n + 1, last.to_seq + 1, self._clock_ns()
        codes = self._codes
        codes.connection = connection
        content = digest(last.hash)
        content.update(header_line(n, from_seq, to_seq, made_ns, signer.fingerprint))
        altered: list[int] = []
        with Entries(connection, from_seq, to_seq) as entries:
            for entry in entries:
                event, transfers, usages = entry
                content.update(event_line(event, transfers, usages, codes))
                if not matches_request(entry, codes):
                    altered.append(event[0])
        self._refuse(connection, altered)
        self._failpoint("hashed")
        block_hash = content.digest()
        signature = signer.sign(blocks.what_is_signed(block_hash))
        self._failpoint("signed")
        return SignedBlock(
            n,
            from_seq,
            to_seq,
            to_seq - from_seq + 1,
            last.hash,
            block_hash,
            made_ns,
            signer.fingerprint,
            signature,
        )

    def _refuse(self, connection: Connection, altered: Sequence[int]) -> None:
        """Raises EventsNotAsked unless all of these events have been accepted."""
        accepted = accepted_places(connection, EVENTS_AS_REQUESTED) if altered else frozenset[str]()
        self._altered = tuple(seq for seq in altered if str(seq) not in accepted)
        if self._altered:
            raise EventsAltered(f"event {self._altered[0]} differs from what was requested under its key")

    def _append(self, block: SignedBlock, signer: Signer) -> bool:
        """Append a block. Return False if another maker was first."""
        try:
            with self._write() as session, session.begin():
                connection = session.connection()
                self._register(connection, signer)
                blocks.append(connection, block)
                self._failpoint("block_inserted")
        except IntegrityError:
            if self._is_taken(block.n):
                return False
            raise
        self._failpoint("committed")
        self._newest, self._registered = block, block.signed_by
        self._kept.keep(block.checkpoint)
        return True

    def _register(self, connection: Connection, signer: Signer) -> None:
        if self._registered != signer.fingerprint:
            blocks.register(connection, signer)
            self._failpoint("key_registered")

    def _is_taken(self, n: int) -> bool:
        with self._read() as session:
            return blocks.newest(session).n >= n
