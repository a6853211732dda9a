"""Define the tables of proofs: blocks of events, signed and chained, and the keys that signed them.

Both are append-only. Triggers also make sure that a block is the next one and follows the last
(migrations/first_schema). If two makers make the same block, one is refused.
"""

from sqlalchemy import BigInteger, CheckConstraint, Integer, LargeBinary, Text, UniqueConstraint
from sqlmodel import Field, SQLModel

BigInt = BigInteger().with_variant(Integer(), "sqlite")

BLOCK_EVENTS_MAX = 1_000
"""The most events that one block covers."""


class BlockKey(SQLModel, table=True):
    """A public Ed25519 key, 32 bytes, under its SHA-256 in hex. It stays when another key replaces it."""

    __tablename__ = "block_key"
    __table_args__ = ({"sqlite_strict": True},)

    fingerprint: str = Field(primary_key=True, sa_type=Text)
    public_key: bytes = Field(sa_type=LargeBinary)


class Block(SQLModel, table=True):
    """Events `from_seq` to `to_seq`. `hash` covers them, `prev`, and all other columns except the signature of it.

    `n` runs from 1 without gaps. `prev` is the hash of the block before, or 32 zero bytes in the first.
    """

    __table_args__ = (
        UniqueConstraint("from_seq", name="block_from_seq"),
        UniqueConstraint("to_seq", name="block_to_seq"),
        CheckConstraint(
            f"events = to_seq - from_seq + 1 AND events BETWEEN 1 AND {BLOCK_EVENTS_MAX}", name="block_events"
        ),
        CheckConstraint(
            "length(prev) = 32 AND length(hash) = 32 AND length(signature) = 64", name="block_lengths"
        ),
        {"sqlite_strict": True},
    )

    n: int = Field(primary_key=True, sa_type=BigInt, sa_column_kwargs={"autoincrement": False})
    from_seq: int = Field(sa_type=BigInt)
    to_seq: int = Field(sa_type=BigInt)
    events: int = Field(sa_type=Integer)
    prev: bytes = Field(sa_type=LargeBinary)
    hash: bytes = Field(sa_type=LargeBinary)
    made_ns: int = Field(sa_type=BigInt)
    signed_by: str = Field(sa_type=Text, foreign_key="block_key.fingerprint")
    signature: bytes = Field(sa_type=LargeBinary)


block_table = SQLModel.metadata.tables["block"]
block_key_table = SQLModel.metadata.tables["block_key"]
