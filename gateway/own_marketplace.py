"""Assemble the marketplace from the settings, over the gateway's own ledger."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager

from sqlalchemy import Engine

from accounting.metering.tokenizers import Pinned
from accounting.payments.ledger import Ledger
from accounting.proofs.signing_key import SigningKeyUnusable
from gateway.billing.ledger_service import LedgerService
from gateway.identity.caller import HOME
from gateway.identity.users import Users
from market.errors import IdentityInvalid
from market.marketplace.always import Always
from market.marketplace.context import MS_NS, MarketplaceContext
from market.marketplace.marketplace import Links, Marketplace
from market.marketplace.periodic import PeriodicTasks
from market.marketplace.sellers import SellerRegistry
from market.marketplace.terms import MarketplaceTerms
from market.network.gossip import Gossip
from market.network.identity import OwnIdentity
from market.network.outbound import Outbound
from market.network.record_keeper import KeeperPolicy, RecordKeeper
from market.network.room import OWN
from market.settings.marketplace import MarketplaceSettings
from runtime.data_folder import DataFolder
from runtime.database import read_sessions, write_sessions
from runtime.errors import NotFound
from runtime.settings import SettingsInvalid


def open_marketplace(
    settings: MarketplaceSettings,
    folder: DataFolder,
    ledger: LedgerService,
    engine: Engine,
    tokenizers: Mapping[str, Pinned],
) -> Marketplace:
    """Return the marketplace over the gateway's own ledger and database. It counts by `tokenizers`, given by SHA-256.

    Raises:
        SettingsInvalid: its key cannot be used.
    """
    try:
        identity = OwnIdentity.open(folder.path / "market")
        statements = identity.statements
    except (SigningKeyUnusable, IdentityInvalid, OSError) as error:
        raise SettingsInvalid(f"marketplace: this gateway's identity cannot be used: {error}") from None
    always = Always({identity.id})
    keeping = KeeperPolicy(always=always, allows_loopback=settings.allows_loopback)
    keeper = RecordKeeper(engine, lambda: time.time_ns() // MS_NS, keeping)
    keeper.add([record.raw for record in statements], OWN)
    booking = Ledger(ledger.writer, read_sessions(engine))
    context = MarketplaceContext(
        speaker=identity,
        ledger=booking,
        write=write_sessions(engine),
        terms=terms_of(settings),
        clock_ns=time.time_ns,
        epoch=lambda: ledger.epoch,
        statements_of=keeper.statements_of,
        organization_of=_organizations(engine),
    )
    links = Links(keeper, Outbound(settings.allows_loopback), tokenizers)
    always.sellers = SellerRegistry(context).identities
    return Marketplace.of(context, lambda user_id: ledger.frozen_why(user_id) is not None, links)


def _organizations(engine: Engine) -> Callable[[str], str]:
    users = Users(read_sessions(engine), write_sessions(engine))

    def organization_of(user_id: str) -> str:
        try:
            return users.ever(user_id).organization_id
        except NotFound:
            return HOME  # A user who exists only as a key's owner.

    return organization_of


@asynccontextmanager
async def watched(marketplace: Marketplace, settings: MarketplaceSettings) -> AsyncGenerator[None]:
    """Run the marketplace's background tasks within the block."""
    gossip = Gossip(marketplace.keeper, marketplace.outbound, ())
    tasks = [
        asyncio.create_task(PeriodicTasks(marketplace, settings.tick_s).run(), name="marketplace upkeep"),
        asyncio.create_task(gossip.run(), name="marketplace gossip"),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await marketplace.outbound.aclose()


def terms_of(settings: MarketplaceSettings) -> MarketplaceTerms:
    """Return the marketplace's terms from its settings."""
    return MarketplaceTerms(
        fee_bps=settings.fee_bps,
        allocation_hours_max=settings.allocation_hours_max,
        probation_days=settings.probation_days,
        probation_jobs=settings.probation_jobs,
        probation_buyers=settings.probation_buyers,
        maturity_days_new=settings.maturity_days_new,
        maturity_days=settings.maturity_days,
        reserve_bps=settings.reserve_bps,
    )
