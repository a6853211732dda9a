"""Tables of the results of requests, and of the accounting API's idempotency keys."""

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, Text
from sqlmodel import Field, SQLModel


class RequestRecord(SQLModel, table=True):
    """One request: its route with reasons, and its result. `decision` is packed by `decisions`."""

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


_COUNTED = BigInteger().with_variant(Integer(), "sqlite")


class IdempotentRequest(SQLModel, table=True):
    """An idempotency key of the accounting API, its request, and the answer after it exists.

    Until then `claim` names the process that works on it; others wait until `until_ns`.
    """

    __tablename__ = "idempotent_request"
    __table_args__ = (Index("idempotent_request_created", "created_ns"),)

    key_digest: bytes = Field(sa_column=Column(LargeBinary, primary_key=True))
    request_hash: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    claim_token: str = Field(sa_column=Column(Text, nullable=False))
    claimed_until_ns: int = Field(sa_column=Column(_COUNTED, nullable=False))
    created_ns: int = Field(sa_column=Column(_COUNTED, nullable=False))
    status: int | None = Field(default=None, sa_column=Column(Integer, nullable=True))
    response: bytes | None = Field(default=None, sa_column=Column(LargeBinary, nullable=True))


request_table = SQLModel.metadata.tables["request_record"]
idempotent_request_table = SQLModel.metadata.tables["idempotent_request"]
