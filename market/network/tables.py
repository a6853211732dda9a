"""Signed records of others, as they arrived: which of them to believe is decided again at every start."""

from sqlalchemy import BigInteger, Integer, LargeBinary, Text
from sqlmodel import Field, SQLModel

BigInt = BigInteger().with_variant(Integer(), "sqlite")


class MarketRecord(SQLModel, table=True):
    """One record. `source` is who sent it first, as the keeper names it; `seq` grows with every record kept."""

    __tablename__ = "market_record"

    seq: int | None = Field(default=None, primary_key=True, sa_type=BigInt)
    digest: str = Field(sa_type=Text, unique=True)
    source: str = Field(sa_type=Text)
    raw: bytes = Field(sa_type=LargeBinary)


record_table = SQLModel.metadata.tables["market_record"]
