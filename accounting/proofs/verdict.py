"""What a verification found: how far it came, and every place where the books are not what the blocks prove."""

from dataclasses import dataclass

from accounting.proofs.blocks import Head


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something that is not as it was when it was proven: in which block, event or account, and what is wrong."""

    where: str
    what: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The books as they were read.

    `blocks` and `events` were checked against their hashes. `tail_events` are in no block, the oldest of them for
    `tail_age_s` seconds: they count towards accounts and are proven by nothing yet. `signed_by` says how many
    blocks each key has signed: whether these are our gateways' keys the books cannot know. Where `is_complete` is
    false time was up or something could not be read, `next_block` is where to go on, and neither accounts nor the
    tail were looked at. A verification that begins later than at block 1 never adds up accounts.
    """

    blocks: int
    events: int
    tail_events: int
    tail_age_s: float | None
    head: Head | None
    signed_by: dict[str, int]
    flaws: tuple[Flaw, ...]
    is_complete: bool
    next_block: int | None
    accounts_checked: bool

    @property
    def is_sound(self) -> bool:
        """Nothing wrong was found in what was read."""
        return not self.flaws
