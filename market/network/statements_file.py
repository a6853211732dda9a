"""An identity's statements about its keys: raw records, one a line; each change replaces the whole file."""

from pathlib import Path

from market.errors import IdentityInvalid, MarketError
from market.protocol.identity.statements import check_statement
from market.protocol.records.envelope import Record, open_record
from runtime.files import replace_file

BYTES_MAX = 2**20


class StatementsFile:
    """The file's records, read again when it was replaced. Methods raise OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int] | None = None
        self._records: tuple[Record, ...] = ()

    def records(self) -> tuple[Record, ...]:
        """Return the records in the order they were made, all of one issuer.

        Raises:
            IdentityInvalid: the file is damaged.
        """
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return ()
        stamp = found.st_mtime_ns, found.st_ino
        if stamp != self._stamp:
            self._records, self._stamp = self._read(), stamp
        return self._records

    def add(self, record: Record) -> None:
        """Add a record; durable when this returns."""
        lines = [each.raw for each in self.records() if each.digest != record.digest]
        replace_file(self.path, b"".join(line + b"\n" for line in [*lines, record.raw]))

    def _read(self) -> tuple[Record, ...]:
        with self.path.open("rb") as file:
            content = file.read(BYTES_MAX)
        try:
            records = tuple(map(open_record, content.splitlines()))
            for record in records:
                check_statement(record)
        except MarketError as error:
            raise IdentityInvalid(f"{self.path}: {error}") from None
        if len({record.issuer for record in records}) > 1:
            raise IdentityInvalid(f"{self.path} belongs to several identities")
        return records
