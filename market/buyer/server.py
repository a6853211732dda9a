"""The buyer's process: open everything, serve the application, end everything in order."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy.exc import SQLAlchemyError

from accounting.metering.tokenizers import Pinned, Tokenizers
from market.audits.audit_client import AuditClient
from market.audits.findings_publisher import FindingsPublisher
from market.audits.probe_store import ProbeStore
from market.buyer.app import BuyingApp
from market.buyer.audits import Audits
from market.buyer.buyer import Buyer
from market.buyer.credit import BuyerCredit
from market.buyer.dispute_responder import EVERY_S as DISPUTES_EVERY_S
from market.buyer.dispute_responder import DisputeResponder
from market.buyer.flow import GatewayProtocol
from market.buyer.lines import Lines
from market.buyer.marketplace_client import BuyerMarketplaceClient
from market.buyer.orders import Orders
from market.buyer.purchase import PurchaseServices
from market.buyer.receipt_submitter import EVERY_S as SUBMITTED_EVERY_S
from market.buyer.receipt_submitter import ReceiptSubmitter
from market.buyer.sellers import SellerTracker
from market.buyer.shop import Shop
from market.buyer.store import BuyingStore
from market.buyer.tokenizers import PurchaseTokenizers
from market.credit_lines.balance import Balances
from market.credit_lines.listing_exchange import exchange_with_partners
from market.credit_lines.partners import AlwaysKept, Partners
from market.errors import IdentityInvalid
from market.network.gossip import Gossip
from market.network.identity import OwnIdentity
from market.network.marketplace import MarketplaceRefused
from market.network.outbound import Outbound, Unreachable
from market.network.record_keeper import KeeperPolicy, RecordKeeper
from market.network.room import Sources
from runtime.files import replace_file
from runtime.times import now_ms
from runtime.workers.lifecycle import WorkerServer
from runtime.workers.logbook import note

SECRET_BYTES = 32
_KEPT_EVERY_S = 5.0
_REMINDED_EVERY_S = 30.0
_PRUNED_EVERY_S = 24 * 3600.0
_MEET_EVERY_S = 30.0
_MET_EVERY_S = 3600.0


def serve(orders: Orders) -> None:
    """Serve until told to stop."""
    asyncio.run(_serve(orders))


async def _serve(orders: Orders) -> None:
    async with opened(orders) as app:
        server = WorkerServer(app, app.health, orders.bounds.drain_s, GatewayProtocol)
        await server.serve_at(orders.socket_path)


@asynccontextmanager
async def opened(orders: Orders) -> AsyncGenerator[BuyingApp]:
    """Open the application with everything behind it and its background tasks."""
    folder = _made(orders.folder)
    async with AsyncExitStack() as stack:
        named = [url for url in (orders.marketplace_url, *orders.peers) if url]
        outbound = await stack.enter_async_context(Outbound(orders.allows_loopback, named=named))
        store = BuyingStore(folder / "buying.db")
        stack.callback(store.close)
        trusted = (orders.marketplace_url,) if orders.marketplace_url else ()
        own = OwnIdentity.open(folder)
        partners = Partners(folder, own)
        keeping = KeeperPolicy(
            Sources(trusted, orders.peers),
            always=AlwaysKept((*orders.partners, *orders.trusted_auditors), partners),
            allows_loopback=orders.allows_loopback,
        )
        keeper = RecordKeeper(folder / "known.db", now_ms, keeping)
        stack.callback(keeper.close)
        marketplace = None
        if orders.marketplace_url:
            marketplace = BuyerMarketplaceClient(
                orders.marketplace_url, orders.marketplace_key, orders.marketplace_id, outbound, store, keeper
            )
        secret = _secret(folder / "buyer.secret")
        lines = Lines(partners, Balances(folder), own, store, keeper)
        await lines.refresh()
        credit = BuyerCredit(store, marketplace, secret, keeper.standing, orders.allocation_nano, lines)
        stack.push_async_callback(credit.stop)
        sellers = SellerTracker(store)
        named_files = {sha256: Pinned(Path(path), sha256) for sha256, path in orders.tokenizers.items()}
        tokenizers = PurchaseTokenizers(
            Tokenizers(named_files), lambda: marketplace.tokenizers if marketplace else frozenset()
        )
        shop = Shop(keeper, orders, sellers, credit, tokenizers, own.id)
        means = PurchaseServices(outbound, store, keeper.standing, orders.bounds)
        buyer = Buyer(means, shop, sellers, credit, tokenizers)
        stack.push_async_callback(buyer.stop)
        app = BuyingApp(buyer, shop, orders.bounds)
        audits = await _auditing(app, store, shop, sellers, orders, stack)
        await _prune(store)
        gossip = Gossip(keeper, outbound, named)
        work: dict[str, Coroutine[Any, Any, None]] = {
            "gossip": gossip.run(),
            "partners": exchange_with_partners(partners, gossip),
            "lines": lines.run(),
            "audits": audits.run(),
            "tracks": again("tracks", _KEPT_EVERY_S, partial(asyncio.to_thread, sellers.keep)),
            "receipts": again("receipts", _REMINDED_EVERY_S, buyer.remind),
            "pruning": again("pruning", _PRUNED_EVERY_S, partial(_prune, store)),
        }
        if marketplace is not None:
            submitting = ReceiptSubmitter(marketplace, store)
            stack.push_async_callback(submitting.flush_on_shutdown)
            work["marketplace"] = meet(marketplace, shop)
            work["submitting"] = again("submitting", SUBMITTED_EVERY_S, submitting.submit)
            disputing = DisputeResponder(marketplace, store, now_ms)
            work["disputes"] = again("disputes", DISPUTES_EVERY_S, disputing.look)
        if orders.tells_findings:
            work["findings"] = FindingsPublisher(own, audits.probe_store, gossip.publish, now_ms).run()
        stack.callback(sellers.keep)
        stack.push_async_callback(_end, [_begun(name, each) for name, each in work.items()])
        yield app


async def _auditing(
    app: BuyingApp, store: BuyingStore, shop: Shop, sellers: SellerTracker, orders: Orders, stack: AsyncExitStack
) -> Audits:
    """Set up audits. They go through the application like callers' requests, so sellers cannot tell them apart."""
    probe_store = ProbeStore(Path(orders.folder) / "audits.db")
    stack.callback(probe_store.close)
    asking = AuditClient(httpx.ASGITransport(app))
    stack.push_async_callback(asking.close)
    audits = Audits(probe_store, store, shop, sellers, orders, asking)
    await audits.load()
    stack.push_async_callback(audits.stop)
    app.buyer.served = audits.served
    app.audits = audits
    return audits


def _made(path: str) -> Path:
    folder = Path(path)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


async def _prune(store: BuyingStore) -> None:
    await asyncio.to_thread(store.prune, now_ms())


def _begun(name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a background task and log its error if it ends by a bug, as no caller awaits it."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_say_why)
    return task


def _say_why(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        note("ended", work=task.get_name(), error=repr(error))


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _secret(path: Path) -> bytes:
    """Return the secret behind all pseudonyms, created once with mode 0600."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        replace_file(path, secrets.token_bytes(SECRET_BYTES))
        return path.read_bytes()


async def again(name: str, every_s: float, work: Callable[[], Awaitable[object]]) -> None:
    """Run `work` every `every_s` seconds until cancelled; `work` may raise SQLAlchemyError."""
    while True:
        await asyncio.sleep(every_s)
        try:
            await work()
        except SQLAlchemyError as error:
            note("held_up", work=name, error=type(error).__name__)


async def meet(marketplace: BuyerMarketplaceClient, shop: Shop) -> None:
    """Keep the marketplace's identity and keys up to date, until cancelled."""
    while True:
        pause_s = _MET_EVERY_S
        try:
            await marketplace.meet()
            shop.trusted |= {marketplace.identity or ""}
        except (Unreachable, MarketplaceRefused, IdentityInvalid, SQLAlchemyError) as error:
            note("marketplace_away", error=str(error))
            pause_s = _MEET_EVERY_S
        await asyncio.sleep(pause_s)
