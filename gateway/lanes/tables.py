"""Model settings that operators made at run time: aliases, and prices of providers' models."""

from sqlalchemy import BigInteger, Text
from sqlmodel import Field, SQLModel


class AliasRow(SQLModel, table=True):
    """One name more for models of the pool; `models` is a JSON list, the first that a backend has is meant."""

    __tablename__ = "model_alias"

    alias: str = Field(primary_key=True, sa_type=Text)
    models: str = Field(sa_type=Text)
    since_ns: int = Field(sa_type=BigInteger)
    actor: str = Field(sa_type=Text)


class OwnPriceRow(SQLModel, table=True):
    """The price of a million tokens of a cloud model, by the name that callers use."""

    __tablename__ = "model_price"

    model: str = Field(primary_key=True, sa_type=Text)
    prompt_nano: int = Field(sa_type=BigInteger)
    completion_nano: int = Field(sa_type=BigInteger)
    since_ns: int = Field(sa_type=BigInteger)
    actor: str = Field(sa_type=Text)


alias_table = SQLModel.metadata.tables["model_alias"]
own_price_table = SQLModel.metadata.tables["model_price"]
