"""What identities have said about their keys, as far as the house was told."""

from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from accounting.payments.rows import put_if_new
from market.errors import StatementInvalid
from market.house.tables import KeyStatement, statement_table
from market.identity.connected import connected, keys_reached
from market.identity.lineage import Identities
from market.identity.statements import check_statement
from market.records.envelope import Record, open_record
from market.records.standing import Standing, StandingOf

STATEMENTS_MAX = 64
"""Of one request."""
_KINDS = ("founding", "rotation", "revocation")
_column = statement_table.c


def open_statements(raws: Iterable[bytes], issuers: Collection[str]) -> list[Record]:
    """Read statements that came from anywhere, as far as they are by one of these.

    Raises:
        RecordInvalid, IdentityInvalid: one is not to be believed.
        StatementInvalid: one is of another kind.
    """
    records = []
    for raw in raws:
        record = open_record(raw)
        if record.kind not in _KINDS:
            raise StatementInvalid(f"a {record.kind} says nothing about keys")
        check_statement(record)
        if record.issuer in issuers:
            records.append(record)
    return records


def keep_statements(session: Session, records: Sequence[Record]) -> None:
    """Keep what is new of them and matters to their identities; strangers cannot fill an identity's place."""
    for issuer in sorted({record.issuer for record in records}):
        kept = _kept(session, (issuer,))
        said = {record.digest: record for record in records if record.issuer == issuer}
        mattering = {record.digest: record for record in connected(issuer, [*(kept | said).values()])}
        for digest in mattering.keys() - kept.keys():
            record = mattering[digest]
            raw = record.raw.decode()
            put_if_new(session, KeyStatement(digest=digest, issuer=issuer, kind=record.kind, raw=raw))
        if gone := kept.keys() - mattering.keys():
            session.execute(delete(statement_table).where(_column.digest.in_(gone)))


def identities_known(session: Session, issuers: Collection[str], said: Sequence[Record] = ()) -> Identities:
    """What is known of these identities, `said` and all that was kept."""
    records = _kept(session, issuers) | {record.digest: record for record in said}
    return Identities(records.values())


def standing_to_settle(identities: Identities, buyer: str) -> StandingOf:
    """Whose signatures count when a channel is settled.

    A buyer's count also after it has revoked its key. Its credits are put aside for this one seller: whoever stole
    the key could have spent no more than that, but a buyer could revoke its own to pay for nothing. Neither could
    it say to the seller that one key follows another, and to the house that a third one does.
    """
    reached = keys_reached(buyer, identities.statements_of(buyer))

    def standing(identity: str, key: str) -> Standing:
        found = identities.standing(identity, key)
        is_its_own = identity == buyer and (found == "revoked" or key in reached)
        return "retired" if is_its_own and found != "current" else found

    return standing


def _kept(session: Session, issuers: Collection[str]) -> dict[str, Record]:
    kept = session.scalars(select(_column.raw).where(_column.issuer.in_(issuers)))
    return {record.digest: record for record in (open_record(raw.encode()) for raw in kept)}
