"""Define the leader leases and entries of gateways that share a database.

A lease's row is never deleted: epochs only grow.
"""

from sqlalchemy import BigInteger, CheckConstraint, Integer, LargeBinary, Text
from sqlmodel import Field, SQLModel

BigInt = BigInteger().with_variant(Integer(), "sqlite")


class CoordinationLease(SQLModel, table=True):
    """A leader lease. `epoch` is the highest of any holder or fenced transaction."""

    __tablename__ = "coordination_lease"

    name: str = Field(primary_key=True, sa_type=Text)
    epoch: int = Field(sa_type=BigInt)
    holder: str = Field(sa_type=Text)
    expires_ns: int = Field(sa_type=BigInt)


class CoordinationEntry(SQLModel, table=True):
    __tablename__ = "coordination_entry"

    key: str = Field(primary_key=True, sa_type=Text)
    value: bytes = Field(sa_type=LargeBinary)
    revision: int = Field(sa_type=BigInt)
    expires_ns: int | None = Field(default=None, sa_type=BigInt)


class CoordinationClock(SQLModel, table=True):
    """The single row that counts revisions: each writer waits here for the one before."""

    __tablename__ = "coordination_clock"
    __table_args__ = (CheckConstraint("id = 1", name="coordination_clock_one"),)

    id: int = Field(primary_key=True, sa_type=BigInt, sa_column_kwargs={"autoincrement": False})
    revision: int = Field(default=0, sa_type=BigInt)


lease_table = SQLModel.metadata.tables["coordination_lease"]
entry_table = SQLModel.metadata.tables["coordination_entry"]
clock_table = SQLModel.metadata.tables["coordination_clock"]
