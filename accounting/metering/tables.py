"""Define the tables of price history: each version under its content's hash, and from when a model has it.

Append-only.
"""

from sqlmodel import Field, SQLModel, Text

from accounting.tables import BigInt


class PriceRow(SQLModel, table=True):
    """The prices of a version. The rates are those of `accounting.metering.prices.PricedModel`."""

    __tablename__ = "price"
    __table_args__ = ({"sqlite_strict": True},)

    id: str = Field(primary_key=True, sa_type=Text)
    lane: str = Field(sa_type=Text)
    model: str = Field(sa_type=Text)
    provider: str = Field(sa_type=Text)
    prompt_nano: int = Field(sa_type=BigInt)
    cached_nano: int = Field(sa_type=BigInt)
    completion_nano: int = Field(sa_type=BigInt)
    reasoning_nano: int | None = Field(default=None, sa_type=BigInt)
    long_above_tokens: int | None = Field(default=None, sa_type=BigInt)
    long_prompt_nano: int | None = Field(default=None, sa_type=BigInt)
    long_cached_nano: int | None = Field(default=None, sa_type=BigInt)
    long_completion_nano: int | None = Field(default=None, sa_type=BigInt)
    compute_nano: int | None = Field(default=None, sa_type=BigInt)


class PriceVersionRow(SQLModel, table=True):
    """A price's start. It lasts until the next one of its lane and name: the name that callers or machines use."""

    __tablename__ = "price_version"
    __table_args__ = ({"sqlite_strict": True},)

    lane: str = Field(primary_key=True, sa_type=Text)
    name: str = Field(primary_key=True, sa_type=Text)
    valid_from_ns: int = Field(primary_key=True, sa_type=BigInt)
    price_id: str = Field(sa_type=Text, foreign_key="price.id")
    source: str = Field(sa_type=Text)


price_table = SQLModel.metadata.tables["price"]
version_table = SQLModel.metadata.tables["price_version"]
