"""The tables of `selling.db`: what was signed on each channel, and which sales were reported."""

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, LargeBinary, MetaData, String, Table

VERSION = 2
"""Stored as `user_version`; a file of an unknown version is not opened."""

metadata = MetaData()

facts = Table(
    "facts",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

channels = Table(
    "channels",
    metadata,
    Column("channel", String(64), primary_key=True),
    Column("is_allocated", Boolean, nullable=False),
    Column("backing", LargeBinary, nullable=False),
    Column("statements", LargeBinary, nullable=False),
    # When its credit ends, by the marketplace's clock; NULL for credit without an end.
    Column("ends_ms", BigInteger),
    # Incremented with each change of the channel's records; `submitted` is the count that the marketplace knows.
    Column("changes", Integer, nullable=False),
    Column("submitted", Integer, nullable=False),
    # Refusals by the marketplace in a row, and the earliest time of the next try.
    Column("refusals", Integer, nullable=False, server_default="0"),
    Column("again_ms", BigInteger, nullable=False, server_default="0"),
    # The delivered amount that the buyer has not signed for, and that we forgave.
    Column("forgiven_nano", BigInteger, nullable=False, server_default="0"),
)
Index("channels_by_end", channels.c.ends_ms)
Index("channels_to_submit", channels.c.is_allocated, channels.c.submitted, channels.c.changes)

lanes = Table(
    "lanes",
    metadata,
    Column("channel", String(64), primary_key=True),
    Column("lane", Integer, primary_key=True),
    Column("evidence", LargeBinary, nullable=False),
    Column("is_final", Boolean, nullable=False),
)

sales = Table(
    "sales",
    metadata,
    Column("channel", String(64), primary_key=True),
    Column("lane", Integer, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("model", String(200), nullable=False),
    Column("amount_nano", BigInteger, nullable=False),
    Column("made_ms", BigInteger, nullable=False),
    Column("is_booked", Boolean, nullable=False),
)
Index("sales_to_book", sales.c.is_booked)
