"""audits.db: the probes, the state of each listing, and every audit of the last two weeks."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    delete,
    insert,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert as upsert

from market.audits.audit_target import AuditTarget
from market.audits.probes import Probe
from market.protocol.audits.canaries import is_retired
from market.protocol.audits.evidence import LASTS_MS
from market.protocol.audits.verdicts import Audit, Case
from market.protocol.matching.track import Tally
from runtime.database import open_file, writing

T = TypeVar("T")

VERSION = 1
_FAILING_KEPT = 8

metadata = MetaData()

probe_table = Table(
    "probe",
    metadata,
    Column("id", Text, primary_key=True),
    Column("sold_as", Text, nullable=False, index=True),
    Column("content", LargeBinary, nullable=False),
    Column("uses", Integer, nullable=False, default=0),
    Column("failing", LargeBinary, nullable=False),
)
case_table = Table(
    "watched",
    metadata,
    Column("id", Text, primary_key=True),
    Column("seller", Text, nullable=False, index=True),
    Column("ware", LargeBinary, nullable=False),
    Column("content", LargeBinary, nullable=False),
)
audit_table = Table(
    "audit",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("watched", Text, nullable=False, index=True),
    Column("made_ms", BigInteger, nullable=False, index=True),
    Column("content", LargeBinary, nullable=False),
)

tally_table = Table(
    "tally",
    metadata,
    Column("seller", Text, primary_key=True),
    Column("good", Float, nullable=False),
    Column("bad", Float, nullable=False),
    Column("at_s", Float, nullable=False),
)
suspension_table = Table(
    "suspension",
    metadata,
    Column("seller", Text, primary_key=True),
    Column("model", Text, nullable=False),
    Column("made_ms", BigInteger, nullable=False),
    Column("reasons", LargeBinary, nullable=False),
)


class Suspension(NamedTuple):
    """A seller that nothing is bought from, since when, for which model, and why."""

    seller: str
    model: str
    made_ms: int
    reasons: tuple[str, ...]


class ProbeStore:
    """Safe to call from any thread; each call takes a few milliseconds."""

    def __init__(self, path: Path) -> None:
        self._engine = writing(open_file(path, metadata.sorted_tables, VERSION, pool_size=1))

    def close(self) -> None:
        self._engine.dispose()

    def add_probe(self, probe: Probe) -> None:
        """Store a probe, once."""
        values = {"id": probe.id, "sold_as": probe.sold_as, "content": _packed(probe), "failing": _packed([])}
        with self._engine.begin() as connection:
            connection.execute(upsert(probe_table).values(values).on_conflict_do_nothing())

    def probes(self, sold_as: str) -> Sequence[Probe]:
        """Return usable probes for such a listing, the least used first."""
        columns = probe_table.c
        query = select(probe_table).where(columns.sold_as == sold_as).order_by(columns.uses, columns.id)
        with self._engine.connect() as connection:
            rows = connection.execute(query).all()
        usable = (row for row in rows if not is_retired(row.uses, len(_unpacked(row.failing, list[str]))))
        return [_unpacked(row.content, Probe) for row in usable]

    def all_probes(self) -> Sequence[Probe]:
        """Return all probes, including retired ones."""
        with self._engine.connect() as connection:
            found = connection.scalars(select(probe_table.c.content).order_by(probe_table.c.id)).all()
        return [_unpacked(each, Probe) for each in found]

    def note_use(self, probe: str, owner: str, *, has_failed: bool) -> None:
        """Count a use, and who failed: a probe that many owners fail is itself wrong."""
        columns = probe_table.c
        with self._engine.begin() as connection:
            row = connection.execute(select(columns.uses, columns.failing).where(columns.id == probe)).one()
            failing = {*_unpacked(row.failing, list[str]), *((owner,) if has_failed else ())}
            values = {"uses": row.uses + 1, "failing": _packed(sorted(failing)[:_FAILING_KEPT])}
            connection.execute(update(probe_table).where(columns.id == probe).values(values))

    def case(self, watched: str) -> Case | None:
        with self._engine.connect() as connection:
            found = connection.scalar(select(case_table.c.content).where(case_table.c.id == watched))
        return _unpacked(found, Case) if found is not None else None

    def put(self, target: AuditTarget, case: Case, audit: Audit | None = None) -> None:
        """Store a listing's current state, and the audit that led to it."""
        content = {"ware": _packed(target), "content": _packed(case)}
        saved = upsert(case_table).values(id=target.id, seller=target.seller, **content)
        with self._engine.begin() as connection:
            connection.execute(saved.on_conflict_do_update(index_elements=["id"], set_=content))
            if audit is not None:
                values = {"watched": target.id, "made_ms": audit.made_ms, "content": _packed(audit)}
                connection.execute(insert(audit_table).values(values))
                connection.execute(delete(audit_table).where(audit_table.c.made_ms < audit.made_ms - LASTS_MS))

    def audits(self, watched: str) -> Sequence[Audit]:
        """Return a listing's audits, the oldest first."""
        query = select(audit_table.c.content).where(audit_table.c.watched == watched)
        with self._engine.connect() as connection:
            found = connection.scalars(query.order_by(audit_table.c.number)).all()
        return [_unpacked(each, Audit) for each in found]

    def targets(self) -> Sequence[tuple[AuditTarget, Case]]:
        """Return everything that was audited, with its state."""
        columns = case_table.c
        with self._engine.connect() as connection:
            rows = connection.execute(select(columns.ware, columns.content).order_by(columns.id)).all()
        return [(_unpacked(row.ware, AuditTarget), _unpacked(row.content, Case)) for row in rows]

    def tallies(self) -> dict[str, Tally]:
        """Return how audits ended, by seller; old ones weigh less."""
        with self._engine.connect() as connection:
            rows = connection.execute(select(tally_table)).all()
        return {row.seller: Tally(row.good, row.bad, row.at_s) for row in rows}

    def put_tally(self, seller: str, tally: Tally) -> None:
        values = {"seller": seller, "good": tally.good, "bad": tally.bad, "at_s": tally.at_s}
        with self._engine.begin() as connection:
            saved = upsert(tally_table).values(values)
            connection.execute(saved.on_conflict_do_update(index_elements=["seller"], set_=values))

    def suspend(self, suspension: Suspension) -> None:
        """Store a suspension once: the first reasons stay."""
        values = {**suspension._asdict(), "reasons": _packed(suspension.reasons)}
        with self._engine.begin() as connection:
            connection.execute(upsert(suspension_table).values(values).on_conflict_do_nothing())

    def suspensions(self) -> dict[str, Suspension]:
        with self._engine.connect() as connection:
            rows = connection.execute(select(suspension_table)).all()
        return {
            row.seller: Suspension(row.seller, row.model, row.made_ms, _unpacked(row.reasons, tuple[str, ...]))
            for row in rows
        }

    def reinstate(self, seller: str) -> bool:
        """Clear a seller's record, so that nothing is held against it. Return whether it was suspended."""
        with self._engine.begin() as connection:
            gone = connection.execute(delete(suspension_table).where(suspension_table.c.seller == seller))
            connection.execute(delete(case_table).where(case_table.c.seller == seller))
            connection.execute(delete(tally_table).where(tally_table.c.seller == seller))
            return gone.rowcount > 0


def _packed(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


def _unpacked(content: bytes, kind: type[T]) -> T:
    return msgspec.msgpack.decode(content, type=kind)
