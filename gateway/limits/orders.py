"""Messages between a process and the shared counters of a limit."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Order:
    """A process's report and request for one counter. `left` is the amount that it had at that time.

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
    ledger_age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer.

    `elsewhere` is the unused amount of other processes; `ended_s` is the time since the end of the oldest silent
    lease. `is_ledger_early`: other processes have not reported since the ledger was read.
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
