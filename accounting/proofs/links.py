"""Check blocks next to each other: which can be read together, and what is wrong with one after another."""

from collections.abc import Iterator, Mapping, Sequence

from accounting.proofs.blocks import SignedBlock, what_is_signed
from accounting.proofs.signing_key import is_signed
from accounting.proofs.tables import BLOCK_EVENTS_MAX


def runs(found: Sequence[SignedBlock]) -> Iterator[list[SignedBlock]]:
    """Yield runs of blocks with consecutive events. A block with impossible numbers is a run of its own."""
    run: list[SignedBlock] = []
    for block in found:
        if run and not (is_sane(run[-1]) and is_sane(block) and block.from_seq == run[-1].to_seq + 1):
            yield run
            run = []
        run.append(block)
    if run:
        yield run


def is_sane(block: SignedBlock) -> bool:
    """Return whether its numbers allow its events to be read."""
    return 1 <= block.from_seq <= block.to_seq < block.from_seq + BLOCK_EVENTS_MAX


def flaws_of(block: SignedBlock, last: SignedBlock, content: bytes | None, keys: Mapping[str, bytes]) -> list[str]:
    """Return everything that is wrong with a block, given the block before it.

    `content` is the hash of what it covers, or None if that could not be read. `keys` are the public keys that may
    have signed it.
    """
    wrong = []
    if block.n != last.n + 1:
        wrong.append(f"blocks {last.n + 1} to {block.n - 1} are missing")
    if block.from_seq != last.to_seq + 1:
        wrong.append(f"it begins with event {block.from_seq}; the block before ends with {last.to_seq}")
    if block.prev != last.hash:
        wrong.append("prev is not the hash of the block before")
    if content != block.hash or block.events != block.to_seq - block.from_seq + 1:
        wrong.append(
            f"its hash does not match what it covers: events {block.from_seq} to {block.to_seq} with their "
            "transfers and usage rows, accounts' codes, or the block itself"
        )
    key = keys.get(block.signed_by)
    if key is None:
        wrong.append(f"the key that signed it is unknown: {block.signed_by}")
    elif not is_signed(key, block.signature, what_is_signed(block.hash)):
        wrong.append(f"its signature is not that of key {block.signed_by}")
    return wrong
