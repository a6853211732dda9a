"""Represent a verification's result: how far it got, and every place where the ledger differs from its proof."""

from dataclasses import dataclass

from accounting.proofs.blocks import Checkpoint


@dataclass(frozen=True, slots=True)
class Flaw:
    """A difference from what was proven: in which block, event or account, and what is wrong."""

    where: str
    what: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for the ledger as it was read.

    `blocks` and `events` were checked against their hashes. `tail_events` are in no block, the oldest of them for
    `tail_age_s` seconds: accounts include them, but nothing proves them yet. `signed_by` is the number of blocks
    that each key has signed. The ledger cannot tell whether these are our gateways' keys. If not `is_complete`,
    time was up or something could not be read: `next_block` is where to continue, and neither accounts nor the
    tail were checked. A verification that starts after block 1 never adds up accounts.
    """

    blocks: int
    events: int
    tail_events: int
    tail_age_s: float | None
    checkpoint: Checkpoint | None
    signed_by: dict[str, int]
    flaws: tuple[Flaw, ...]
    is_complete: bool
    next_block: int | None
    accounts_checked: bool

    @property
    def is_sound(self) -> bool:
        """Return whether the verification found no problem in what it read."""
        return not self.flaws
