"""Keys and who holds them."""

from sqlalchemy import BigInteger, Column, Text
from sqlmodel import Field, SQLModel


class ApiKey(SQLModel, table=True):
    """`digest` is a keyed hash; the key itself is nowhere. `lanes` is a comma-separated list."""

    __tablename__ = "api_key"

    key_id: str = Field(sa_column=Column(Text, primary_key=True))
    name: str = Field(sa_column=Column(Text, nullable=False))
    prefix: str = Field(sa_column=Column(Text, nullable=False))
    digest: str = Field(sa_column=Column(Text, nullable=False, unique=True))
    user_id: str = Field(sa_column=Column(Text, nullable=False))
    department: str = Field(sa_column=Column(Text, nullable=False))
    lanes: str = Field(sa_column=Column(Text, nullable=False))
    created_ns: int = Field(sa_column=Column(BigInteger, nullable=False))
    revoked_ns: int | None = Field(default=None, sa_column=Column(BigInteger, nullable=True))


api_key_table = SQLModel.metadata.tables["api_key"]
