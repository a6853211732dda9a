"""What became of every request."""

from sqlalchemy import BigInteger, Column, Index, Text
from sqlmodel import Field, SQLModel


class RequestRecord(SQLModel, table=True):
    """One request: where it went and why, how it ended. `decision` is packed by `decisions`."""

    __tablename__ = "request_record"
    __table_args__ = (Index("ix_request_record_key_id", "key_id", "started_ns"),)

    request_id: str = Field(sa_column=Column(Text, primary_key=True))
    started_ns: int = Field(sa_column=Column(BigInteger, nullable=False, index=True))
    key_id: str = Field(sa_column=Column(Text, nullable=False))
    model: str = Field(sa_column=Column(Text, nullable=False))
    kind: str = Field(sa_column=Column(Text, nullable=False))
    lane: str = Field(sa_column=Column(Text, nullable=False))
    backend: str = Field(sa_column=Column(Text, nullable=False))
    decision: str = Field(sa_column=Column(Text, nullable=False))
    status: int = Field(sa_column=Column(BigInteger, nullable=False))
    outcome: str = Field(sa_column=Column(Text, nullable=False))
    error: str = Field(sa_column=Column(Text, nullable=False))
    prompt_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    completion_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    ttft_ms: int | None = Field(default=None, sa_column=Column(BigInteger, nullable=True))
    duration_ms: int = Field(sa_column=Column(BigInteger, nullable=False))
    charge_nano: int = Field(sa_column=Column(BigInteger, nullable=False))
    event_seq: int | None = Field(default=None, sa_column=Column(BigInteger, nullable=True))
    served_model: str | None = Field(default=None, sa_column=Column(Text, nullable=True))


request_table = SQLModel.metadata.tables["request_record"]
