"""Model settings that operators made at run time: aliases, and prices of providers' models."""

from sqlalchemy import BigInteger, Text
from sqlmodel import Field, SQLModel


class AliasRow(SQLModel, table=True):
    """An alias for models; `models` is a JSON list, and each backend uses the first that it has."""

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
