"""Define what a check of the ledger looks at, and what a gateway knows about it from elsewhere."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import Select

Query: TypeAlias = Select[*tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Witness:
    """The part of the ledger that a gateway with blocks has seen.

    `block` is a block's number and hash. `altered` are events that it does not prove, because their rows differ
    from what was requested.
    """

    block: tuple[int, bytes] | None = None
    altered: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Scope:
    """The time of the check in nanoseconds, the last event that need not be checked, and the witness."""

    now_ns: int
    since_seq: int = 0
    witness: Witness = Witness()
