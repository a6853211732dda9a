"""The tables of buying.db."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)

VERSION = 2

metadata = MetaData()

channel_table = Table(
    "channel",
    metadata,
    Column("id", Text, primary_key=True),
    Column("seller", Text, nullable=False, index=True),
    Column("buyer", Text, nullable=False),
    Column("backing", Text, nullable=False),
    Column("records", LargeBinary, nullable=False),
    Column("limit_nano", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
)
job_table = Table(
    "job",
    metadata,
    Column("channel", Text, primary_key=True),
    Column("lane", Integer, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("request_id", Text, nullable=False, index=True),
    Column("model", Text, nullable=False),
    Column("ceiling_nano", BigInteger, nullable=False),
    Column("voucher", LargeBinary, nullable=False),
    Column("receipt", LargeBinary),
    Column("claim", LargeBinary),
    Column("progress", LargeBinary),
    Column("amount_nano", BigInteger),
    Column("is_reported", Boolean, nullable=False, default=False),
    Column("flags", Text, nullable=False, default=""),
    Column("began_ms", BigInteger, nullable=False),
)
track_table = Table(
    "track",
    metadata,
    Column("seller", Text, primary_key=True),
    Column("good", Float, nullable=False),
    Column("bad", Float, nullable=False),
    Column("at_s", Float, nullable=False),
    Column("anomalies", Integer, nullable=False, default=0),
    Column("tokens", Float),
    Column("since_s", Float),
)
unbooked_table = Table("unbooked_request", metadata, Column("request_id", Text, primary_key=True))
# Channels whose newest receipts the marketplace may lack; `changes` counts receipts since it had all of them.
unsubmitted_table = Table(
    "unsubmitted_channel",
    metadata,
    Column("channel", Text, primary_key=True),
    Column("changes", BigInteger, nullable=False),
)
fact_table = Table("fact", metadata, Column("name", Text, primary_key=True), Column("value", Text, nullable=False))
