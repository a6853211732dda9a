"""All credit lines of a gateway: one file each under `market/partners`, read by all processes when it changes."""

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from msgspec import Struct

from market.credit_lines.export import CreditLineExport
from market.credit_lines.partnership import Partnership, read_partnership
from market.errors import MarketError, StatementInvalid
from market.network.identity import OwnIdentity
from market.protocol.records.envelope import Record
from runtime.files import replace_file

LINES_MAX = 1024
_FILE_BYTES_MAX = 2**20
_SUFFIX = ".line"
_SEEN_S = 1.0


class _StoredLine(Struct, frozen=True):
    telling: CreditLineExport
    is_ended: bool


class Partners:
    """Safe to use from several threads and processes.

    Args:
        folder: the market's, in the data directory.

    Raises:
        OSError: by any method.
        StatementInvalid: by any method, if a file is damaged.
    """

    def __init__(self, folder: Path, own: OwnIdentity) -> None:
        self._folder = folder / "partners"
        self._own = own
        self._read: dict[str, tuple[tuple[int, int], Partnership]] = {}
        self._identities: frozenset[str] = frozenset()
        self._identities_until_s = 0.0

    @property
    def own_id(self) -> str:
        return self._own.id

    def __iter__(self) -> Iterator[Partnership]:
        """Iterate over every line, including ended ones, the oldest first."""
        names = sorted(path.stem for path in self._folder.glob(f"*{_SUFFIX}"))[:LINES_MAX]
        found = [each for name in names if (each := self.find(name))]
        return iter(sorted(found, key=lambda each: (each.line.opened_ms, each.line.id)))

    def __contains__(self, identity: object) -> bool:
        """Return whether we have a line with this identity, to the second; False if it cannot be read."""
        now_s = time.monotonic()
        if now_s >= self._identities_until_s:
            try:
                self._identities = frozenset(each.partner for each in self if each.is_open)
            except (MarketError, OSError):
                self._identities = frozenset()
            self._identities_until_s = now_s + _SEEN_S
        return identity in self._identities

    @property
    def urls(self) -> list[str]:
        """Return where partners sell, each once."""
        return list(dict.fromkeys(each.url for each in self if each.url and not each.is_ended))

    def find(self, line: str) -> Partnership | None:
        path = self._folder / f"{line}{_SUFFIX}"
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        stamp = found.st_mtime_ns, found.st_ino
        known = self._read.get(line)
        if known is None or known[0] != stamp:
            known = self._read[line] = stamp, self._open(path)
        return known[1]

    def named(self, name: str) -> Partnership:
        """Return the newest line with this id, or with an identity that starts so, of at least eight digits.

        Raises:
            StatementInvalid: none matches, or several partners do.
        """
        fitting = [each for each in self if len(name) >= 8 and name in (each.line.id, each.partner[: len(name)])]
        if len({each.partner for each in fitting}) != 1:
            found = "several partners' ids begin" if fitting else "no partner's id begins"
            raise StatementInvalid(f"{found} with {name[:64]}")
        return fitting[-1]

    def heard(self, telling: CreditLineExport) -> Partnership:
        """Return what a partner sent, checked. Nothing is stored.

        Raises:
            MarketError: it is invalid.
        """
        standing = self._own.lineage.standing
        partnership = read_partnership(
            self.own_id, telling.records, telling.statements, lambda _, key: standing(key)
        )
        return replace(partnership, url=telling.url)

    def export(self, partnership: Partnership, url: str = "") -> CreditLineExport:
        """Return everything that the partner should know; `url` is where we sell."""
        records = (*partnership.records, *partnership.payments)
        return CreditLineExport(_raw(records), _raw(self._own.statements), url)

    def keep(self, partnership: Partnership) -> Partnership:
        """Merge into what is known of this line; on disk when this returns.

        Raises StatementInvalid for a new line beyond LINES_MAX.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._folder / "partners.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            known = self.find(partnership.line.id)
            if known is None and len(list(self._folder.glob(f"*{_SUFFIX}"))) >= LINES_MAX:
                raise StatementInvalid(f"there are {LINES_MAX} credit lines already, which is the maximum")
            merged = known.merged(partnership) if known else partnership
            if merged != known:
                self._write(merged)
            return merged
        finally:
            os.close(descriptor)

    def _open(self, path: Path) -> Partnership:
        with path.open("rb") as file:
            content = file.read(_FILE_BYTES_MAX)
        try:
            kept = msgspec.json.decode(content, type=_StoredLine)
            stored = kept.telling
            partnership = read_partnership(self.own_id, stored.records, stored.statements, None)
        except (msgspec.MsgspecError, MarketError) as error:
            raise StatementInvalid(f"{path}: {error}") from None
        return replace(partnership, url=stored.url, is_ended=kept.is_ended)

    def _write(self, partnership: Partnership) -> None:
        path = self._folder / f"{partnership.line.id}{_SUFFIX}"
        records = (*partnership.records, *partnership.payments)
        kept = _StoredLine(
            CreditLineExport(_raw(records), _raw(partnership.statements), partnership.url), partnership.is_ended
        )
        replace_file(path, _packed(kept))


@dataclass(frozen=True, slots=True)
class AlwaysKept:
    """Identities whose records always have room: those named by the admin or ours, and partners, who may change."""

    named: tuple[str, ...]
    partners: Partners

    def __contains__(self, identity: object) -> bool:
        return identity in self.named or identity in self.partners


def _packed(kept: _StoredLine) -> bytes:
    """Pack a line. Raises StatementInvalid if it could not be read again, as a partner may send any amount."""
    content = msgspec.json.encode(kept)
    try:
        msgspec.json.decode(content, type=_StoredLine)
    except msgspec.ValidationError as error:
        raise StatementInvalid(f"the line has more data than can be stored: {error}") from None
    return content


def _raw(records: Sequence[Record]) -> tuple[str, ...]:
    return tuple(record.raw.decode() for record in records)
