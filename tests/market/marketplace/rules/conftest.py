"""A marketplace over a real ledger, without a gateway, on a clock that tests set."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest
from msgspec import Struct
from sqlalchemy import Engine

from accounting import chart
from accounting.metering.delivered import TokenCounter
from accounting.money import NANO_PER_USD
from accounting.payments.ledger import Ledger
from accounting.rules.held import Payer
from market.marketplace.allocations import AllocationRequest, Allocations
from market.marketplace.context import MS_NS, MarketplaceContext
from market.marketplace.disputes import Disputes
from market.marketplace.earnings import Earnings
from market.marketplace.forfeiture import Forfeiture
from market.marketplace.sellers import SellerRegistry, proof_message
from market.marketplace.settlements import Settled, Settlements
from market.marketplace.terms import MarketplaceTerms
from market.protocol.channels.terms import ChannelTerms, read_allocation
from market.protocol.records.envelope import Kind, Record, open_record
from runtime.database import open_engine, write_sessions
from tests.accounting.ledgers import LedgerService
from tests.market.parties import STANDING, id_of, key_of, signed_record

USD = NANO_PER_USD
HOUR_NS = 3600 * 10**9


class MarketplaceVoice:
    """The marketplace's identity, without files."""

    id = id_of("marketplace")
    statements = ()

    def say(
        self, kind: Kind, name: str, revision: int, body: Struct, made_ms: int, expires_ms: int | None = None
    ) -> Record:
        lasts_ms = None if expires_ms is None else expires_ms - made_ms
        return signed_record("marketplace", kind, body, name, revision, made_ms, lasts_ms)


@dataclass
class Marketplace:
    """All services of the marketplace, and helpers. Ann, Bob and Cem buy, Sam sells as `seller`."""

    ledger: LedgerService
    engine: Engine
    terms: MarketplaceTerms = field(default_factory=MarketplaceTerms)
    disputed: set[str] = field(default_factory=set)
    counters: dict[str, TokenCounter] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self.context = MarketplaceContext(
            MarketplaceVoice(),
            Ledger(self.ledger.poster, self.ledger.read),
            write_sessions(self.engine),
            self.terms,
            lambda: self.ledger.now_ns,
            lambda: 0,
            organization_of=lambda user_id: "lab" if user_id == "sam" else "",
        )
        self.sellers, self.allocations = SellerRegistry(self.context), Allocations(self.context)
        self.settlements = Settlements(self.context)
        self.earnings = Earnings(self.context, self.disputed.__contains__)
        self.forfeiture = Forfeiture(self.context)
        self.disputes = Disputes(self.context, self.counters.get)

    def register(self, user_id: str = "sam", name: str = "seller") -> None:
        proof = key_of(name).sign(proof_message(MarketplaceVoice.id, user_id)).hex()
        self.sellers.register(user_id, id_of(name), key_of(name).public_key.hex(), proof, ())

    def allocate(
        self,
        user_id: str = "ann",
        limit_nano: int = USD,
        *,
        hours: int = 24,
        seller: str = "seller",
        pool: str = "",
        allocation_id: str = "",
    ) -> tuple[Record, ChannelTerms]:
        """An allocation to spend as `buyer`, and the channel that it opens."""
        name = allocation_id or f"a-{next(self._numbers)}"
        request = AllocationRequest(name, Payer(user_id, pool), id_of("buyer"), id_of(seller), limit_nano, hours)
        record = open_record(self.allocations.issue(request))
        return record, read_allocation(record, MarketplaceVoice.id, STANDING)[0]

    def settle(self, allocation: Record, records: list[Record]) -> Settled:
        return self.settlements.submit(allocation.digest, [record.raw for record in records])

    def look(self) -> None:
        """Run the periodic tasks of the marketplace and the ledger."""
        self.ledger.reaper.sweep()
        for digest in self.settlements.due(100):
            self.settlements.submit(digest, ())
        self.earnings.look()

    def wait(self, ns: int) -> None:
        self.ledger.now_ns += ns

    @property
    def now_ms(self) -> int:
        return self.ledger.now_ns // MS_NS

    def held(self, user_id: str = "ann") -> int:
        return self.ledger.balance(chart.user_paid(user_id)).held_nano

    def posted(self, code: str) -> int:
        return self.ledger.balance(code).posted_nano

    def earned(self, user_id: str = "sam") -> int:
        """What a seller has, matured or not."""
        return sum(self.posted(f"seller:{user_id}:{kind}") for kind in ("maturing", "payable", "reserve"))

    def is_sound(self) -> bool:
        assert self.ledger.findings() == []
        return True


@pytest.fixture
def engine(dsn: str) -> Iterator[Engine]:
    engine = open_engine(dsn)
    yield engine
    engine.dispose()


@pytest.fixture
def marketplace(engine: Engine) -> Iterator[Marketplace]:
    with LedgerService(engine) as ledger:
        marketplace = Marketplace(ledger, engine)
        for user_id in ("ann", "bob", "cem"):
            ledger.credit(user_id, 100 * USD)
        marketplace.register()
        yield marketplace
