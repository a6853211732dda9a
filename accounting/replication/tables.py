"""Define the tables of the ledger's leader and of the gateways that share a database."""

from sqlalchemy import BigInteger, CheckConstraint, Integer, Text
from sqlmodel import Field, SQLModel

BigInt = BigInteger().with_variant(Integer(), "sqlite")


class LedgerLeader(SQLModel, table=True):
    """The single row that names the ledger's writer, its address, and its expiry by the database's clock.

    `epoch` grows with every change of leader. If `expires_ns` has passed, no gateway leads.
    """

    __tablename__ = "ledger_leader"
    __table_args__ = (CheckConstraint("id = 1", name="ledger_leader_one"),)

    id: int = Field(primary_key=True, sa_type=BigInt, sa_column_kwargs={"autoincrement": False})
    epoch: int = Field(default=0, sa_type=BigInt)
    holder: str = Field(default="", sa_type=Text)
    address: str = Field(default="", sa_type=Text)
    fingerprint: str = Field(default="", sa_type=Text)
    expires_ns: int = Field(default=0, sa_type=BigInt)


class LedgerGateway(SQLModel, table=True):
    """A process that may send events. Any process that may write to the database may register its certificate."""

    __tablename__ = "ledger_gateway"

    fingerprint: str = Field(primary_key=True, sa_type=Text)
    certificate: str = Field(sa_type=Text)
    expires_ns: int = Field(sa_type=BigInt)


leader_table = SQLModel.metadata.tables["ledger_leader"]
gateway_table = SQLModel.metadata.tables["ledger_gateway"]
