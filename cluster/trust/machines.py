"""The book of admitted machines: their names, and which of them are drained or removed."""

import itertools
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from cluster.errors import MachineUnknown, NameTaken
from cluster.trust.identity import NodeId
from runtime.files import replace_file

# The limit for machines that were not removed. An admin has removed each of the other machines by hand.
MACHINES_MAX = 4096
# The time beyond its certificate's end for which a machine stays removed: clocks may be slow.
CLOCK_MARGIN_S = 24 * 3600.0
# The least digits of an id that identify a machine.
_ID_MIN = 6


class MachineRecord(msgspec.Struct, kw_only=True):
    """One machine. Times are in seconds since the epoch; `removed_s` is 0 for a machine that may take part.

    `own_name` is the machine's own name if `name` differs from it. They differ if an admin renamed the machine, or
    if another machine has the same name and `name` got a number.
    """

    name: str
    joined_s: float
    certified_until_s: float
    removed_s: float = 0.0
    draining: bool = False
    own_name: str = ""


def _is_numbered(record: MachineRecord) -> bool:
    """Tell whether the machine itself chose its name, apart from a number that makes it unique."""
    return re.fullmatch(re.escape(record.own_name or record.name) + r"(-\d+)?", record.name) is not None


@dataclass(slots=True)
class MachineBook:
    """Stored in a file of the authority's folder; only one process writes it.

    `clock` gives seconds since the epoch.
    """

    file: Path
    clock: Callable[[], float] = time.time
    _records: dict[NodeId, MachineRecord] = field(default_factory=dict)

    @classmethod
    def open(cls, file: Path, clock: Callable[[], float] = time.time) -> "MachineBook":
        """Load the book, or begin an empty one. `clock` gives seconds since the epoch."""
        book = cls(file, clock)
        if file.is_file():
            book._records = msgspec.json.decode(file.read_bytes(), type=dict[NodeId, MachineRecord])
        return book

    @property
    def records(self) -> dict[NodeId, MachineRecord]:
        return dict(self._records)

    @property
    def removed(self) -> frozenset[NodeId]:
        """Machines that no process may talk to, because their certificates may still be valid somewhere."""
        return frozenset(node_id for node_id, record in self._live() if record.removed_s)

    @property
    def draining(self) -> frozenset[NodeId]:
        """Machines that take part in no new plan."""
        return frozenset(node_id for node_id, record in self._records.items() if record.draining)

    def certified(self, node_id: NodeId, name: str, until_s: float) -> None:
        """Note that a machine has received a certificate, valid until `until_s` (seconds since the epoch)."""
        record = self._records.get(node_id)
        if record is None:
            called = self._unique(node_id, name)
            self._records[node_id] = MachineRecord(
                name=called,
                joined_s=self.clock(),
                certified_until_s=until_s,
                own_name="" if called == name else name,
            )
        else:
            record.certified_until_s = max(until_s, record.certified_until_s)
        self._save()

    def note_present(self, node_id: NodeId, name: str, until_s: float) -> None:
        """Note that a machine is connected under its own name. `until_s` is for machines older than the book.

        A name that an admin gave the machine stays.
        """
        record = self._records.get(node_id)
        if record is None:
            self.certified(node_id, name, until_s)
            return
        before = record.name, record.own_name
        if not _is_numbered(record):
            record.own_name = name
        else:
            called = self._unique(node_id, name)
            record.name, record.own_name = called, "" if called == name else name
        if (record.name, record.own_name) != before:
            self._save()

    def find(self, name: str) -> NodeId:
        """Return the machine with this name, id or beginning of an id. Raise MachineUnknown for none or several.

        Machines choose their names: a name that equals the beginning of another machine's id must not select the
        wrong one.
        """
        admitted = {node_id: record for node_id, record in self._records.items() if not record.removed_s}
        if name in admitted:
            return NodeId(name)
        is_id = len(name) >= _ID_MIN
        matches = [
            node_id
            for node_id, record in admitted.items()
            if record.name == name or (is_id and node_id.startswith(name))
        ]
        if not matches:
            raise MachineUnknown(f"machine {name} not found; list machines with `millrace machines list`")
        if len(matches) > 1:
            raise MachineUnknown(
                f"{len(matches)} machines match {name}; choose one by its ID, {' or '.join(matches)}"
            )
        return matches[0]

    def called(self, node_id: NodeId, own_name: str) -> str:
        """Return the displayed name of a machine with this own name."""
        record = self._records.get(node_id)
        return record.name if record and record.own_name else own_name

    def check_name(self, node_id: NodeId, name: str) -> None:
        """Raise NameTaken if `find` could mean another machine by this name."""
        for other_id, other in self._records.items():
            if other_id == node_id or other.removed_s:
                continue
            if other.name.casefold() == name.casefold() or (len(name) >= _ID_MIN and other_id.startswith(name)):
                raise NameTaken(f"{other.name} ({other_id}) already has this name. Choose another name.")

    def _unique(self, node_id: NodeId, name: str) -> str:
        """Return the name if no other machine has it; otherwise the name with the least free number."""
        taken = {
            record.name.casefold()
            for other_id, record in self._records.items()
            if other_id != node_id and not record.removed_s
        }
        numbered = (f"{name}-{number}" for number in itertools.count(2))
        return next(each for each in itertools.chain([name], numbered) if each.casefold() not in taken)

    def rename(self, node_id: NodeId, name: str) -> None:
        """Give a machine another name than its own; its own name ends the override.

        Raise NameTaken if another machine has the name.
        """
        self.check_name(node_id, name)
        record = self._records[node_id]
        own_name = record.own_name or record.name
        record.name, record.own_name = name, "" if name == own_name else own_name
        self._save()

    def remove(self, node_id: NodeId) -> None:
        """Remove a machine for good. To come back it needs a new key and a new token."""
        self._records[node_id].removed_s = self.clock()
        self._records[node_id].draining = False
        self._save()

    def drain(self, node_id: NodeId, *, draining: bool) -> None:
        """Drain a machine, or let it take part again. Raise OSError if that cannot be stored."""
        self._records[node_id].draining = draining
        self._save()

    def _live(self) -> list[tuple[NodeId, MachineRecord]]:
        """Return the machines with a valid certificate.

        The others need a new token, so their records no longer matter.
        """
        now_s = self.clock()
        return [
            (node_id, record)
            for node_id, record in self._records.items()
            if record.certified_until_s + (CLOCK_MARGIN_S if record.removed_s else 0.0) > now_s
        ]

    def _save(self) -> None:
        live = sorted(self._live(), key=lambda item: item[1].joined_s)
        removed = [item for item in live if item[1].removed_s]
        self._records = dict(removed + [item for item in live if not item[1].removed_s][-MACHINES_MAX:])
        replace_file(self.file, msgspec.json.encode(self._records))
