"""Define the tables of the ledger's leader and of the outbox, by which gateways that share a database reach it."""

from sqlalchemy import BigInteger, CheckConstraint, Integer, LargeBinary, Text
from sqlmodel import Field, SQLModel

BigInt = BigInteger().with_variant(Integer(), "sqlite")


class LedgerLeader(SQLModel, table=True):
    """The single row that names the ledger's writer, and its expiry by the database's clock.

    `holder` is the process's name for admins. `epoch` grows with every change of leader. If `expires_ns` has
    passed, no gateway leads.
    """

    __tablename__ = "ledger_leader"
    __table_args__ = (CheckConstraint("id = 1", name="ledger_leader_one"),)

    id: int = Field(primary_key=True, sa_type=BigInt, sa_column_kwargs={"autoincrement": False})
    epoch: int = Field(default=0, sa_type=BigInt)
    holder: str = Field(default="", sa_type=Text)
    expires_ns: int = Field(default=0, sa_type=BigInt)


class LedgerOutbox(SQLModel, table=True):
    """A group of events that a gateway sends to the leader, and the leader's answers once it has decided them.

    `sent_ns` is the database's time. The gateway deletes the row when it has read the reply.
    """

    __tablename__ = "ledger_outbox"
    # A name of a channel has at most 63 bytes.
    __table_args__ = (CheckConstraint("length(gateway) = 12", name="ledger_outbox_gateway"),)

    sent_ns: int = Field(primary_key=True, sa_type=BigInt, sa_column_kwargs={"autoincrement": False})
    gateway: str = Field(primary_key=True, sa_type=Text)
    events: bytes = Field(sa_type=LargeBinary)
    reply: bytes | None = Field(default=None, sa_type=LargeBinary)


leader_table = SQLModel.metadata.tables["ledger_leader"]
outbox_table = SQLModel.metadata.tables["ledger_outbox"]
