"""Stored responses, one row each; a conversation is a chain of them."""

from sqlalchemy import BigInteger, Column, Index, Text
from sqlmodel import Field, SQLModel


class ResponseRecord(SQLModel, table=True):
    """Only `owner` can find the response. `privacy` is its label. `input` and `answer` are JSON."""

    __tablename__ = "stored_response"
    __table_args__ = (Index("ix_stored_response_owner", "owner", "created_ns"),)

    id: str = Field(sa_column=Column(Text, primary_key=True))
    owner: str = Field(sa_column=Column(Text, nullable=False))
    previous_id: str | None = Field(default=None, sa_column=Column(Text, nullable=True))
    privacy: str = Field(sa_column=Column(Text, nullable=False))
    created_ns: int = Field(sa_column=Column(BigInteger, nullable=False, index=True))
    size_bytes: int = Field(sa_column=Column(BigInteger, nullable=False))
    input: str = Field(sa_column=Column(Text, nullable=False))
    answer: str = Field(sa_column=Column(Text, nullable=False))


response_table = SQLModel.metadata.tables["stored_response"]
