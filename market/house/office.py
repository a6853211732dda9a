"""What every desk of the house works with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct
from sqlalchemy.orm import Session

from accounting.payments.ledger import Ledger
from market.house.terms import Terms
from market.records.envelope import Kind, Record

MS_NS = 10**6


class Speaker(Protocol):
    """The house's own identity: what it says is signed with the key that speaks for it."""

    @property
    def id(self) -> str: ...

    @property
    def statements(self) -> tuple[Record, ...]: ...

    def say(
        self, kind: Kind, name: str, revision: int, body: Struct, made_ms: int, expires_ms: int | None = None
    ) -> Record: ...


def _nothing(_: str) -> Sequence[bytes]:
    return ()


def _none(_: str) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Office:
    """`epoch` tells how often the books have changed hands; `clock_ns` is the wall clock, or a test's.

    `told` has what an identity has said about its keys, as gateways tell each other. `organization_of` says whose
    pool a user draws from.
    """

    speaker: Speaker
    ledger: Ledger
    write: Callable[[], Session]
    terms: Terms
    clock_ns: Callable[[], int]
    epoch: Callable[[], int]
    told: Callable[[str], Sequence[bytes]] = _nothing
    organization_of: Callable[[str], str] = _none

    @property
    def read(self) -> Callable[[], Session]:
        return self.ledger.read

    @property
    def now_ms(self) -> int:
        return self.clock_ns() // MS_NS
