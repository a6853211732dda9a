"""What a process and those who know all the others' use of a limit tell each other."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Order:
    """What a process reports of one counter, and wants. `left` is its own note of what it had then.

    `is_again`: Redis did not know the counter; the order reports usage that the ledger does not have yet.
    """

    amount: int
    taken: int
    untaken: int
    taken_before: int
    untaken_before: int
    held: int
    idle: int
    need: int
    least: int
    ahead: int
    ledger: int
    left: int
    is_again: bool = False
    books_age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer. `elsewhere` is what others hold and do not use; `ended_s` how long ago the oldest lease ended of
    which nothing was heard since. `is_ledger_early`: other processes have not reported since the ledger was read.
    """

    is_known: bool
    granted: int
    available: int
    elsewhere: int
    is_lost: bool
    lease_s: float
    age_s: float
    room_s: float
    ended_s: float
    is_ledger_early: bool = False
