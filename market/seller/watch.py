"""When this machine sells: turn the gateway's idleness and the owner's rules into listings and admission."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from sqlalchemy.exc import SQLAlchemyError

from market.errors import ListingInvalid, RecordInvalid
from market.network.identity import OwnIdentity
from market.network.record_keeper import RecordKeeper
from market.network.room import OWN
from market.protocol.listings.hours import is_open
from market.protocol.listings.idle import MachineCondition, hindrance
from market.seller.job_handler import JobAdmission
from market.seller.own_gateway import GatewayAway, Idle, OwnGateway, UpstreamRefused
from market.seller.publisher import Publisher
from market.seller.reach import Reaches
from market.seller.sellable_models import SellableModels, rule_of, windows_of
from market.seller.states import SELLING, UNREACHED
from market.settings.seller import SellingSettings
from runtime.times import now_ms

log = structlog.get_logger(__name__)

LOOK_S = 10.0
"""Time-based rules are checked this often, whatever the gateway reports."""
AWAY_S = 5.0


@dataclass(slots=True, eq=False)
class Watch:
    """The one task that opens and closes `place` and publishes matching listings."""

    settings: SellingSettings
    own: OwnIdentity
    keeper: RecordKeeper
    gateway: OwnGateway
    sellable_models: SellableModels
    publisher: Publisher
    admission: JobAdmission
    reaches: Reaches
    clock_ms: Callable[[], int] = now_ms
    _idle: Idle | None = None
    _heard_s: float = 0.0
    _heard: asyncio.Event = field(default_factory=asyncio.Event)
    _state: str = ""
    _statements_sent: int = 0
    _deciding: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen(), name="idle gateway")
            tasks.create_task(self._follow_reaches(), name="way in")
            while True:
                self._heard.clear()
                try:
                    await self.look(self._idle)
                except SQLAlchemyError as error:
                    log.warning("listings cannot be changed now", why=str(error))
                try:
                    async with asyncio.timeout(LOOK_S):
                        await self._heard.wait()
                except TimeoutError:
                    continue

    async def _listen(self) -> None:
        """Follow the gateway's idle state as it changes."""
        version: int | None = None
        while True:
            try:
                found = await self.gateway.idle(version, self._state)
            except (GatewayAway, UpstreamRefused) as error:
                self._hear(None)
                log.warning("gateway does not report whether it is idle", why=str(error))
                version = None
                await asyncio.sleep(AWAY_S)
                continue
            version = found.version
            self._hear(found)

    async def _follow_reaches(self) -> None:
        async for _ in self.reaches.changes():
            self._heard.set()

    def _hear(self, idle: Idle | None) -> None:
        self._idle, self._heard_s = idle, time.monotonic()
        self._heard.set()

    async def look(self, idle: Idle | None) -> None:
        """Open or close, and list accordingly."""
        async with self._deciding:
            if self.admission.closed != "draining":
                await self._tell_own_statements()
                await self._decide(idle)

    async def drain(self) -> None:
        """Stop admitting jobs, and withdraw the listings."""
        self.admission.closed = "draining"
        async with self._deciding:
            self.admission.closed = "draining"
            try:
                await self.publisher.withdraw()
            except SQLAlchemyError as error:
                log.warning("listings not withdrawn: they expire", why=str(error))

    async def _decide(self, idle: Idle | None) -> None:
        against = self._rule_against(idle)
        why = against or self._why_unready(idle) or await self._why_no_jobs()
        spares = await self.sellable_models.spare(idle) if idle and why is None else []
        if why is None and not spares:
            why = "the gateway has none of the models that are sold"
        self._say(why or SELLING)
        if why is not None:
            # Close first: no job may come in on a listing that is just being withdrawn.
            self.admission.closed = "not_idle"
            # The gateway itself puts its own requests first; it does not know the other rules.
            if against not in (None, "own_requests"):
                self.admission.stop.set()
            await self.publisher.withdraw()
            return
        if self.admission.stop.is_set():
            # Answers that were told to end keep their event.
            self.admission.stop = asyncio.Event()
        self.admission.slots = {spare.sellable.sold.market_id: spare.slots for spare in spares}
        self.admission.closed = None
        try:
            await self.publisher.show(spares)
        except (ListingInvalid, RecordInvalid) as error:
            self.admission.closed = "not_idle"
            self._say(f"this cannot be listed: {error}")

    async def _tell_own_statements(self) -> None:
        """Publish our own statements: another process may have given this identity a new key."""
        statements = self.own.statements
        if len(statements) > self._statements_sent:
            await asyncio.to_thread(self.keeper.add, [record.raw for record in statements], OWN)
            self._statements_sent = len(statements)

    def _why_unready(self, idle: Idle | None) -> str | None:
        if idle is None:
            return "the gateway has not answered"
        if idle.is_paused:
            return "an operator has paused selling"
        return None if self.reaches.now.is_open else UNREACHED

    def _rule_against(self, idle: Idle | None) -> str | None:
        """Return the owner's rule that currently forbids selling or continuing answers, if any."""
        if self.keeper.standing(self.own.id, self.own.signer.public_key.hex()) == "revoked":
            return "this identity's key is revoked"
        if not is_open(windows_of(self.settings), self.clock_ms()):
            return "outside of the owner's hours"
        if idle is None:
            return None
        # The accelerator use of preemptible requests must not drive them out again.
        percent = 0.0 if idle.preemptible_jobs else idle.gpu_percent
        return hindrance(
            rule_of(self.settings), MachineCondition(self._queue_empty_s(idle), percent, idle.is_on_battery)
        )

    async def _why_no_jobs(self) -> str | None:
        """Return why the gateway admits no preemptible requests, if so; it must then not be listed."""
        try:
            await self.gateway.preemptible_key()
        except (GatewayAway, UpstreamRefused) as error:
            return f"the gateway gives no key for preemptible requests: {error}"
        return None

    def _queue_empty_s(self, idle: Idle) -> float:
        """Return how long the queue has been empty by now: the gateway reports at once when that ends."""
        is_busy = idle.own_in_flight or idle.own_batches
        return 0.0 if is_busy else idle.queue_empty_s + time.monotonic() - self._heard_s

    def _say(self, state: str) -> None:
        if state != self._state:
            self._state = state
            log.info("selling", state=state)
