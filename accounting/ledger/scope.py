"""What a check of the books looks at."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import Select

Query: TypeAlias = Select[*tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Scope:
    """The time of the check in nanoseconds, and the last event that need not be looked at."""

    now_ns: int
    since_seq: int = 0
