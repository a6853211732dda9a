"""Record accepted violations: broken rules that an admin has examined. Events never change, so a violation stays.

The admin who accepts a violation states the reason once. Rows are append-only. Spending then resumes, and the
finding stays visible.
"""

from sqlalchemy import BigInteger, Integer, Text, insert, select
from sqlalchemy.orm import Session
from sqlmodel import Field, SQLModel

from accounting.ledger.balances import Reader


class AcceptedViolation(SQLModel, table=True):
    """One place where a rule of events is broken, identified by the first value of the rule's finding."""

    __tablename__ = "accepted_violation"
    __table_args__ = ({"sqlite_strict": True},)

    rule: str = Field(primary_key=True, sa_type=Text)
    location: str = Field(primary_key=True, sa_type=Text)
    reason: str = Field(sa_type=Text)
    accepted_ns: int = Field(sa_type=BigInteger().with_variant(Integer(), "sqlite"))


accepted_table = SQLModel.metadata.tables["accepted_violation"]
_accepted = accepted_table.c


def accepted_places(reader: Reader, rule: str) -> frozenset[str]:
    """Return the places where breaches of a rule have been accepted."""
    return frozenset(reader.scalars(select(_accepted.location).where(_accepted.rule == rule)))


def accept(session: Session, rule: str, place: str, reason: str, now_ns: int) -> bool:
    """Record that a breach is known and why it may stand. Return False if it was accepted before."""
    if place in accepted_places(session, rule):
        return False
    values = {"rule": rule, "location": place, "reason": reason, "accepted_ns": now_ns}
    session.execute(insert(accepted_table).values(values))
    return True
