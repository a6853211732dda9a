"""Store identities' statements about their keys, as far as the marketplace has received them."""

from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from accounting.payments.rows import put_if_new
from market.errors import StatementInvalid
from market.marketplace.tables import KeyStatement, statement_table
from market.protocol.identity.connected import connected, keys_reached
from market.protocol.identity.lineage import Identities
from market.protocol.identity.statements import check_statement
from market.protocol.records.envelope import Record, open_record
from market.protocol.records.key_status import Standing, StandingOf

STATEMENTS_MAX = 64
"""Most statements in one request."""
_KINDS = ("founding", "rotation", "revocation")
_column = statement_table.c


def open_statements(raws: Iterable[bytes], issuers: Collection[str]) -> list[Record]:
    """Read statements from an untrusted source, and keep those by one of the issuers.

    Raises:
        RecordInvalid, IdentityInvalid: one cannot be trusted.
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
    """Store new statements that matter to their identities. Third parties cannot fill an identity's space."""
    for issuer in sorted({record.issuer for record in records}):
        kept = _kept(session, (issuer,))
        given = {record.digest: record for record in records if record.issuer == issuer}
        mattering = {record.digest: record for record in connected(issuer, [*(kept | given).values()])}
        for digest in mattering.keys() - kept.keys():
            record = mattering[digest]
            raw = record.raw.decode()
            put_if_new(session, KeyStatement(digest=digest, issuer=issuer, kind=record.kind, raw=raw))
        if gone := kept.keys() - mattering.keys():
            session.execute(delete(statement_table).where(_column.digest.in_(gone)))


def identities_known(session: Session, issuers: Collection[str], more: Sequence[Record] = ()) -> Identities:
    """Return what is known of these identities, from `more` and everything stored."""
    records = _kept(session, issuers) | {record.digest: record for record in more}
    return Identities(records.values())


def standing_to_settle(identities: Identities, buyer: str) -> StandingOf:
    """Return whose signatures count when a channel is settled.

    A buyer's signature counts even after it has revoked its key. Its credits are reserved for this one seller, so
    a thief of the key could have spent no more. But a buyer could revoke its own key to avoid payment. It could
    also name one successor to the seller and another to the marketplace.
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
