"""Settlements that the ledger could not accept, in a file of the data directory until it accepts them."""

import os
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from accounting.ledger.postings import UsageRecord
from accounting.rules.held import CloudBill, Hold
from runtime.files import replace_file, sync_folder

log = structlog.get_logger(__name__)

BYTES_MAX = 64 * 2**20


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """The entries to book for an ended request: its usage row, the end of its hold, and the bill, if any."""

    usage: UsageRecord
    hold: Hold | None = None
    bill: CloudBill | None = None

    @property
    def charge_nano(self) -> int:
        """The caller's charge, in nano-USD: never more than the hold."""
        return min(self.bill.charge_nano, self.hold.amount_nano) if self.bill and self.hold else 0

    @property
    def spent_nano(self) -> int:
        """The amount that counts against budgets, in nano-USD: the charge, or the cost of an unpaid prompt."""
        return self.charge_nano or (self.bill.cost_nano if self.bill else 0)


@dataclass(frozen=True, slots=True)
class SpooledSettlement:
    """A settlement with its line in the file."""

    line: bytes
    settlement: Settlement


class Spool:
    """One JSON line for each settlement, on disk when `add_all` returns. One process owns the file, on any thread.

    A line has ids, counts and amounts: no prompt, no key, nothing that is not in the ledger.
    """

    def __init__(self, path: Path, bytes_max: int = BYTES_MAX) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._writing = threading.Lock()

    def add_all(self, settlements: Sequence[Settlement]) -> bool:
        """Write all of them with one sync. If some are not written, log them and return False."""
        lines = [msgspec.json.encode(settlement) + b"\n" for settlement in settlements]
        try:
            with self._writing, open(self._path, "ab", opener=_open_private) as file:
                size = file.tell()
                was_empty = not size
                if not was_empty and not self._ends_whole():
                    # A partial line, left by a crash, must not corrupt the next one.
                    lines[0] = b"\n" + lines[0]
                fitting = self._fitting(lines, size)
                file.write(b"".join(lines[:fitting]))
                file.flush()
                os.fsync(file.fileno())
                if was_empty:
                    sync_folder(self._path.parent)
        except OSError as error:
            reason = str(error)
            for line in lines:
                log.error("spool not writable: settlement lost", line=line.decode(), reason=reason)
            return False
        for line in lines[fitting:]:
            log.error("spool full: settlement lost", line=line.decode())
        return fitting == len(lines)

    def _fitting(self, lines: Sequence[bytes], size: int) -> int:
        """Return how many of the lines fit within the bound."""
        for number, line in enumerate(lines):
            size += len(line)
            if size > self._bytes_max:
                return number
        return len(lines)

    def read(self) -> list[SpooledSettlement]:
        """Return everything kept, oldest first. Unreadable lines stay in the file for an admin."""
        found: list[SpooledSettlement] = []
        unreadable = 0
        for line in self._lines():
            try:
                found.append(SpooledSettlement(line, msgspec.json.decode(line, type=Settlement)))
            except (msgspec.DecodeError, UnicodeDecodeError):
                unreadable += 1
        if unreadable:
            log.error("spool has unreadable lines", path=str(self._path), lines=unreadable)
        return found

    def remove(self, lines: Collection[bytes]) -> None:
        """Remove booked lines; the file is replaced as a whole, so that no crash loses the rest."""
        with self._writing:
            rest = [line for line in self._lines() if line not in lines]
            if not rest:
                self._path.unlink(missing_ok=True)
                return
            replace_file(self._path, b"".join(line + b"\n" for line in rest))

    @property
    def is_empty(self) -> bool:
        """Return whether the file has no lines, readable or not."""
        return not self._path.exists()

    def _lines(self) -> list[bytes]:
        try:
            return [line for line in self._path.read_bytes().split(b"\n") if line]
        except FileNotFoundError:
            return []

    def _ends_whole(self) -> bool:
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
