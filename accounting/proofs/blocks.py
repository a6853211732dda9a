"""Read and append blocks: the newest, a page of them, and the keys that signed them."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, Row, insert, select

from accounting.ledger.balances import Reader
from accounting.proofs.canonical import DOMAIN, NO_BLOCK
from accounting.proofs.signing_key import Signer
from accounting.proofs.tables import block_key_table, block_table

PAGE_MAX = 1_000

_HASH = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The newest block. Anyone who keeps its hash elsewhere can later tell whether the past was rewritten."""

    n: int
    hash: bytes

    def __str__(self) -> str:
        return f"{self.n}:{self.hash.hex()}"

    @classmethod
    def parse(cls, text: str) -> "Checkpoint":
        """Parse the text of `str`. Raises ValueError."""
        n, _, digits = text.partition(":")
        if not (n.isascii() and n.isdigit() and len(n) < 19 and _HASH.fullmatch(digits)):
            raise ValueError("a block is given by its number and hash, as in 12:6c1f... with 64 hex digits")
        return cls(int(n), bytes.fromhex(digits))


@dataclass(frozen=True, slots=True)
class SignedBlock:
    """A row of the table `block`."""

    n: int
    from_seq: int
    to_seq: int
    events: int
    prev: bytes
    hash: bytes
    made_ns: int
    signed_by: str
    signature: bytes

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.n, self.hash)


NOTHING_YET = SignedBlock(0, 0, 0, 0, NO_BLOCK, NO_BLOCK, 0, "", b"")
"""The predecessor of the first block."""


def newest(reader: Reader) -> SignedBlock:
    """Return the last block, or `NOTHING_YET` if there is none."""
    row = reader.execute(select(block_table).order_by(block_table.c.n.desc()).limit(1)).one_or_none()
    return NOTHING_YET if row is None else _block(row)


def is_there(reader: Reader, checkpoint: Checkpoint) -> bool:
    """Return whether the ledger has this block, with this hash."""
    found = reader.execute(select(block_table.c.hash).where(block_table.c.n == checkpoint.n)).scalar()
    return found is not None and bytes(found) == checkpoint.hash


def blocks_after(reader: Reader, n: int, *, limit: int) -> list[SignedBlock]:
    """Return the blocks after block `n`, in their order; at most `PAGE_MAX`."""
    following = select(block_table).where(block_table.c.n > n).order_by(block_table.c.n)
    return [_block(row) for row in reader.execute(following.limit(min(limit, PAGE_MAX)))]


def public_keys(reader: Reader, signed: Iterable[SignedBlock]) -> dict[str, bytes]:
    """Return the known public keys of those that claim to have signed these blocks, by fingerprint."""
    named = {block.signed_by for block in signed}
    found = reader.execute(select(block_key_table).where(block_key_table.c.fingerprint.in_(named)))
    return {row.fingerprint: row.public_key for row in found}


def every_key(reader: Reader) -> Iterator[tuple[str, bytes]]:
    """Yield fingerprint and public key of every gateway that ever signed."""
    for row in reader.execute(select(block_key_table).order_by(block_key_table.c.fingerprint)):
        yield row.fingerprint, row.public_key


def append(connection: Connection, block: SignedBlock) -> None:
    """Append a block. Raises sqlalchemy.exc.IntegrityError if it does not follow the last one."""
    connection.execute(insert(block_table), asdict(block))


def register(connection: Connection, signer: Signer) -> None:
    """Store a public key, so that anyone who has the ledger can check its signatures."""
    known = select(block_key_table.c.fingerprint).where(block_key_table.c.fingerprint == signer.fingerprint)
    if connection.scalar(known) is None:
        connection.execute(
            insert(block_key_table), {"fingerprint": signer.fingerprint, "public_key": signer.public_key}
        )


def what_is_signed(block_hash: bytes) -> bytes:
    return DOMAIN + block_hash


def _block(row: Row[*tuple[Any, ...]]) -> SignedBlock:
    return SignedBlock(*row)
