"""The seller, assembled: everything that lives as long as its process, and the order in which it stops."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog
from fastapi import FastAPI, Request
from sqlalchemy.exc import SQLAlchemyError

from market.credit_lines.balance import Balances
from market.credit_lines.listing_exchange import exchange_with_partners
from market.credit_lines.partners import AlwaysKept, Partners
from market.errors import IdentityInvalid, MarketError
from market.network.gossip import Gossip
from market.network.gossip_routes import peer_of, router
from market.network.identity import OwnIdentity
from market.network.marketplace import MarketplaceRefused
from market.network.outbound import Outbound, Unreachable
from market.network.record_keeper import KeeperPolicy, RecordKeeper
from market.network.room import OWN, Sources
from market.protocol.channels.statements import Delivery, read_receipt
from market.seller.accounts import ChannelAccount, ChannelAccounts
from market.seller.app import AgentApp
from market.seller.callers import Callers, address_of
from market.seller.carrier import JobRefused
from market.seller.channel_submitter import ChannelSubmitter
from market.seller.credit import Creditor, knowing_ourselves
from market.seller.delivery import ReceiptSigner
from market.seller.denied_prompts import DeniedPrompts
from market.seller.gateway_request import Blocked
from market.seller.job_handler import JobAdmission, JobHandler
from market.seller.live_listings import LiveListings
from market.seller.marketplace_client import SellerMarketplaceClient
from market.seller.own_gateway import GatewayAway, OwnGateway, UpstreamRefused
from market.seller.proofs import Proofs
from market.seller.publisher import Publisher
from market.seller.reach import Reaches
from market.seller.sellable_models import SellableModels
from market.seller.store import RecordedSale, SellingStore
from market.seller.watch import Watch
from market.settings.seller import SellingSettings
from runtime.data_folder import DataFolder
from runtime.times import now_ms

log = structlog.get_logger(__name__)

FLUSH_S = 10.0
"""Seconds that shutdown waits for the marketplace and our own ledger; the rest is sent after the next start."""
_MODEL = "unknown"
"""Receipts do not name the model."""
_REPORT_EVERY_S = 5.0
_SWEEP_EVERY_S = 3600.0
_REPORT_PAUSE_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class SaleReporter:
    """Reports sales to our own gateway's ledger until they are booked, and again if a sale has grown."""

    store: SellingStore
    gateway: OwnGateway
    clock_ms: Callable[[], int] = now_ms

    async def run(self) -> None:
        """Run until cancelled."""
        pause_s, swept_s = _REPORT_EVERY_S, -_SWEEP_EVERY_S
        while True:
            try:
                if time.monotonic() - swept_s >= _SWEEP_EVERY_S:
                    await self.store.sweep(self.clock_ms())
                    swept_s = time.monotonic()
                await self.book()
                pause_s = _REPORT_EVERY_S
            except (GatewayAway, SQLAlchemyError) as error:
                log.warning("sales not posted yet", why=str(error))
                pause_s = min(2 * pause_s, _REPORT_PAUSE_S_MAX)
            await asyncio.sleep(pause_s)

    async def book(self) -> None:
        """Report all sales there are now. Raises GatewayAway."""
        while waiting := await self.store.unbooked():
            for sale in waiting:
                try:
                    await self.gateway.book(sale)
                except UpstreamRefused as error:
                    log.error("sale not posted", channel=sale.channel, seq=sale.seq, why=str(error))
                await self.store.note_booked(sale)


@dataclass(frozen=True, slots=True)
class Agent:
    """A seller that can serve. Cancel `run` only after `drain`."""

    app: AgentApp
    own: OwnIdentity
    job_handler: JobHandler
    watch: Watch
    gossip: Gossip
    partners: Partners
    submitting: ChannelSubmitter
    disputing: DeniedPrompts
    booking: SaleReporter
    reaches: Reaches
    outbound: Outbound
    drain_s: float

    @property
    def marketplace_identity(self) -> str | None:
        """Return the marketplace's pinned identity; None before the first contact."""
        marketplace = self.submitting.marketplace
        return marketplace.identity if marketplace else None

    async def run(self) -> None:
        """Run listings, gossip, and delivery of signed records to marketplace and ledger, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.watch.run(), name="watch")
            tasks.create_task(self.gossip.run(), name="gossip")
            tasks.create_task(exchange_with_partners(self.partners, self.gossip), name="partners")
            tasks.create_task(self.submitting.run(), name="submitting")
            tasks.create_task(self.disputing.run(), name="disputing")
            tasks.create_task(self.booking.run(), name="booking")

    async def drain(self) -> None:
        """Unlist, let answers finish or end them at a block, and send what was signed."""
        admission = self.job_handler.admission
        await self.watch.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.drain_s):
                await admission.is_empty.wait()
        admission.stop.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await admission.is_empty.wait()
        await self._flush_on_shutdown()

    async def _flush_on_shutdown(self) -> None:
        try:
            async with asyncio.timeout(FLUSH_S):
                await self.booking.book()
                await self.submitting.submit()
        except (TimeoutError, GatewayAway, Unreachable, MarketplaceRefused, SQLAlchemyError) as error:
            log.warning(
                "sales and receipts not sent: they are sent after the next start",
                why=str(error) or type(error).__name__,
            )


@asynccontextmanager
async def open_agent(
    settings: SellingSettings,
    folder: DataFolder,
    own: OwnIdentity,
    gateway: OwnGateway,
    clock_ms: Callable[[], int] = now_ms,
) -> AsyncGenerator[Agent]:
    """Yield a seller on this data directory, for the length of the block.

    Raises:
        SettingsInvalid: its files cannot be used.
        IdentityInvalid: its own key is known to be revoked.
    """
    async with AsyncExitStack() as stack:
        market = folder.path / "market"
        store = SellingStore(market / "selling.db")
        stack.push_async_callback(store.close)
        stack.push_async_callback(gateway.aclose)
        partners = Partners(market, own)
        keeper = _keeper(market / "selling-records.db", settings, own, partners, clock_ms)
        stack.callback(keeper.close)
        await asyncio.to_thread(keeper.add, [record.raw for record in own.statements], OWN)
        check_speaks(own, keeper)
        named = [url for url in (settings.marketplace_url, *settings.peers) if url]
        outbound = await stack.enter_async_context(Outbound(settings.allows_loopback, named=named))
        marketplace = _marketplace(settings, own, outbound, keeper, store)
        if marketplace:
            await marketplace.remember()
        agent = _agent(settings, market, own, partners, gateway, store, keeper, outbound, marketplace, clock_ms)
        await finish_leftovers(store, agent.job_handler)
        yield agent


def check_speaks(own: OwnIdentity, keeper: RecordKeeper) -> None:
    """Raises IdentityInvalid if the network knows that our key is revoked: its signatures would be rejected."""
    if keeper.standing(own.id, own.signer.public_key.hex()) == "revoked":
        raise IdentityInvalid("this identity's key is revoked. Run `millrace identity recover` for another.")


def _peer(request: Request) -> str:
    """Return the client's address. Behind a tunnel cloudflared names it in a header."""
    return request.headers.get("cf-connecting-ip") or peer_of(request)


def _keeper(
    path: Path, settings: SellingSettings, own: OwnIdentity, partners: Partners, clock_ms: Callable[[], int]
) -> RecordKeeper:
    sources = Sources(trusted=tuple(filter(None, [settings.marketplace_url])), peers=settings.peers)
    keeping = KeeperPolicy(
        sources, always=AlwaysKept((own.id,), partners), allows_loopback=settings.allows_loopback
    )
    return RecordKeeper(path, clock_ms, keeping)


def _marketplace(
    settings: SellingSettings, own: OwnIdentity, outbound: Outbound, keeper: RecordKeeper, store: SellingStore
) -> SellerMarketplaceClient | None:
    if settings.marketplace_url is None:
        return None
    key = settings.marketplace_key.get_secret_value() if settings.marketplace_key else None
    return SellerMarketplaceClient(settings.marketplace_url, key, own, outbound, keeper, store)


def _agent(
    settings: SellingSettings,
    folder: Path,
    own: OwnIdentity,
    partners: Partners,
    gateway: OwnGateway,
    store: SellingStore,
    keeper: RecordKeeper,
    outbound: Outbound,
    marketplace: SellerMarketplaceClient | None,
    clock_ms: Callable[[], int],
) -> Agent:
    live_listings, admission, reaches, sellable_models = (
        LiveListings(),
        JobAdmission(),
        Reaches(),
        SellableModels(settings.models),
    )
    proofs = Proofs() if marketplace and marketplace.has_key and settings.shows_denied_prompts else None
    receipt_signer = ReceiptSigner(
        own,
        ChannelAccounts(store),
        lambda: marketplace.ledger_checkpoint if marketplace else None,
        clock_ms,
        proofs,
    )
    creditor = Creditor(
        own.id,
        knowing_ourselves(own, keeper.standing),
        lambda: marketplace.identity if marketplace else None,
        partners,
        Balances(folder),
    )
    job_handler = JobHandler(
        own.id,
        creditor,
        live_listings,
        admission,
        gateway,
        Blocked.of(settings.refuses),
        receipt_signer,
        lambda: marketplace.tokenizers if marketplace else frozenset(),
    )
    peers = (*filter(None, [settings.marketplace_url]), *settings.peers)
    gossip = Gossip(keeper, outbound, peers)
    publisher = Publisher(own, settings, reaches, live_listings, store, gossip, clock_ms=clock_ms)
    watch = Watch(settings, own, keeper, gateway, sellable_models, publisher, admission, reaches, clock_ms)
    routes = FastAPI(openapi_url=None)
    routes.include_router(router(keeper, _peer if settings.tunnel in ("quick", "named") else peer_of))
    app = AgentApp(job_handler, own, routes, Callers(address_of(settings)))
    submitting = ChannelSubmitter(marketplace, own, store, keeper, settings.submit_s)
    return Agent(
        app,
        own,
        job_handler,
        watch,
        gossip,
        partners,
        submitting,
        DeniedPrompts(marketplace, own, store, proofs, settings.submit_s),
        SaleReporter(store, gateway),
        reaches,
        outbound,
        settings.drain_s,
    )


async def finish_leftovers(store: SellingStore, job_handler: JobHandler) -> None:
    """Sign final receipts of requests that a crash interrupted, as of the newest interim ones.

    This frees their lanes.
    """
    for channel in await store.unfinished():
        backing = await store.backing(channel)
        assert backing is not None, "a lane has its channel"
        try:
            credited = job_handler.creditor.read(backing.records, backing.statements)
            async with job_handler.receipt_signer.accounts.using(credited) as account:
                for lane in account.channel.lanes.values():
                    if lane.claim and not lane.claim.receipt.is_final:
                        await _finish(account, lane.claim, job_handler.receipt_signer)
        except (MarketError, JobRefused) as error:
            log.warning("channel not finished", channel=channel, why=str(error))


async def _finish(account: ChannelAccount, claim: Delivery, receipt_signer: ReceiptSigner) -> None:
    receipt = msgspec.structs.replace(claim.receipt, part=claim.receipt.part + 1, is_final=True)
    terms, voucher = account.channel.terms, claim.promise.voucher
    name = f"{terms.channel}-{voucher.lane}"
    record = receipt_signer.own.say("receipt", name, receipt.part, receipt, receipt_signer.clock_ms())
    delivery = read_receipt(record, claim.promise, terms, account.credited.standing)
    amount_nano = min(delivery.request_nano, int(voucher.ceiling_nano - voucher.base_nano))
    sale = RecordedSale(terms.channel, voucher.lane, voucher.seq, _MODEL, amount_nano, receipt_signer.clock_ms())
    await receipt_signer.accounts.keep(account, delivery, sale)
