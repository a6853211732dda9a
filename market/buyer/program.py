"""The buyer's program, as the gateway runs it. A healthy buyer is never replaced: it alone holds the channels."""

import math
from collections.abc import Collection
from pathlib import Path

import msgspec

from accounting.metering.tokenizers import Pinned
from market.buyer.orders import BuyerLimits, Orders
from market.settings.buyer import MarketSettings
from runtime.workers.supervisor import HealthPolicy, Worker
from runtime.workers.worker_process import Program

_NEVER = 2**60


def buyer_worker(settings: MarketSettings, folder: Path, tokenizers: Collection[Pinned] = ()) -> Worker:
    """Return the supervised buyer of this gateway; `folder` is the market's. It may count by `tokenizers`."""

    def orders(socket_path: str) -> bytes:
        return msgspec.json.encode(orders_of(settings, folder, socket_path, tokenizers))

    # The buyer limits its own memory, so running out fails one request instead of killing the whole process.
    rss_bytes_kill = BuyerLimits().memory_bytes_max + 2**30
    health_policy = HealthPolicy(
        requests_max=_NEVER, age_max_s=math.inf, rss_bytes_max=_NEVER, rss_bytes_kill=rss_bytes_kill
    )
    return Worker(Program("buyer", "market.buyer", orders, BuyerLimits().drain_s), health_policy)


def orders_of(
    settings: MarketSettings, folder: Path, socket_path: str, tokenizers: Collection[Pinned] = ()
) -> Orders:
    key = settings.marketplace_key
    return Orders(
        socket_path=socket_path,
        folder=str(folder),
        buy_for=settings.buy_for,
        models=settings.models,
        marketplace_url=settings.marketplace_url or "",
        marketplace_key=key.get_secret_value() if key else "",
        marketplace_id=settings.marketplace_id or "",
        peers=settings.peers,
        allocation_nano=settings.allocation_nano,
        prompt_nano_max=settings.prompt_nano_max,
        completion_nano_max=settings.completion_nano_max,
        trusted_auditors=settings.trusted_auditors,
        partners=settings.partners,
        allows_loopback=settings.allows_loopback,
        audit_nano_per_day=settings.audit_nano_per_day,
        tells_findings=settings.tells_findings,
        tokenizers={each.sha256: str(each.path) for each in tokenizers},
        bounds=BuyerLimits(
            settings.first_byte_s,
            settings.silence_s,
            total_s=settings.total_s,
            audit_pause_s=settings.audit_pause_s,
        ),
    )
