"""The tables of `selling.db`: what was signed about each channel, and which sales have been told to whom."""

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, LargeBinary, MetaData, String, Table

VERSION = 2
"""Kept as `user_version`; a file of another version is not opened."""

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
    # When its credit ends, by the house's clock; none for a credit without an end.
    Column("ends_ms", BigInteger),
    # Counted up with each change of what is known of the channel; `submitted` is where the house has followed to.
    Column("changes", Integer, nullable=False),
    Column("submitted", Integer, nullable=False),
    # How often in a row the house has refused it, and not before when it is told again.
    Column("refusals", Integer, nullable=False, server_default="0"),
    Column("again_ms", BigInteger, nullable=False, server_default="0"),
    # How much the buyer has signed for less than was delivered, and was let pass.
    Column("forgiven_nano", BigInteger, nullable=False, server_default="0"),
)
SINCE_1 = ("refusals", "again_ms", "forgiven_nano")
"""Columns of `channels` that a file of version 1 lacks."""
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
