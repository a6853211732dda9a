"""Hold what every part of the marketplace works with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct
from sqlalchemy.orm import Session

from accounting.payments.ledger import Ledger
from market.marketplace.terms import MarketplaceTerms
from market.protocol.records.envelope import Kind, Record

MS_NS = 10**6


class Speaker(Protocol):
    """The marketplace's own identity, which signs with its current key."""

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
class MarketplaceContext:
    """The marketplace's context. `epoch` counts changes of the ledger's leader; `clock_ns` is the wall clock, or a
    test's.

    `statements_of` returns an identity's statements about its keys, as gateways exchange them. `organization_of`
    returns the organization whose balance a user draws from.
    """

    speaker: Speaker
    ledger: Ledger
    write: Callable[[], Session]
    terms: MarketplaceTerms
    clock_ns: Callable[[], int]
    epoch: Callable[[], int]
    statements_of: Callable[[str], Sequence[bytes]] = _nothing
    organization_of: Callable[[str], str] = _none

    @property
    def read(self) -> Callable[[], Session]:
        return self.ledger.read

    @property
    def now_ms(self) -> int:
        return self.clock_ns() // MS_NS
