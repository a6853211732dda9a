"""Signed records of others, as they came: what is believed of them is found out anew at every start."""

from sqlalchemy import BigInteger, Integer, LargeBinary, Text
from sqlmodel import Field, SQLModel

BigInt = BigInteger().with_variant(Integer(), "sqlite")


class MarketRecord(SQLModel, table=True):
    """`source` is who told it first, in the keeper's words; `seq` grows with every record kept."""

    __tablename__ = "market_record"

    seq: int | None = Field(default=None, primary_key=True, sa_type=BigInt)
    digest: str = Field(sa_type=Text, unique=True)
    source: str = Field(sa_type=Text)
    raw: bytes = Field(sa_type=LargeBinary)


record_table = SQLModel.metadata.tables["market_record"]
