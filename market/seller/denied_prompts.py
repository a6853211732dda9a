"""Show prompts that their buyers deny to the marketplace, which counts them and books their cost.

We show a prompt only if we hold the buyer's own signature under the denial: the marketplace's word alone is not enough.
The buyer must also admit an answer: a buyer that signs for none may have got none, and then owes nothing.
"""

import asyncio
import base64
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy.exc import SQLAlchemyError

from market.errors import MarketError
from market.marketplace.dispute_state import admitted_word, claim_of
from market.marketplace.statements import open_statements, standing_to_settle
from market.network.identity import OwnIdentity
from market.network.marketplace import MarketplaceRefused
from market.network.outbound import Unreachable
from market.protocol.audits.disputes import Dispute
from market.protocol.channels.channel import Lane, due
from market.protocol.channels.evidence import read_evidence
from market.protocol.channels.terms import Allocation, ChannelTerms
from market.protocol.identity.lineage import Identities
from market.protocol.records.envelope import Record, open_record
from market.seller.marketplace_client import AllocationLanes, LaneReport, SellerMarketplaceClient
from market.seller.proofs import Proof, Proofs
from market.seller.store import SellingStore

log = structlog.get_logger(__name__)

_NEVER = (400, 404, 413, 422)
"""Statuses that the marketplace would return again."""


@dataclass(frozen=True, slots=True)
class DeniedPrompts:
    """`proofs` is None if no prompt is ever shown."""

    marketplace: SellerMarketplaceClient | None
    own: OwnIdentity
    store: SellingStore
    proofs: Proofs | None
    every_s: float

    async def run(self) -> None:
        """Run until cancelled."""
        while self.marketplace is not None and self.proofs is not None:
            await asyncio.sleep(self.every_s)
            try:
                await self.look()
            except SQLAlchemyError as error:
                log.warning("disputes not checked yet", why=str(error))

    async def look(self) -> None:
        """Forget what is settled and show what is denied; failures are retried next time."""
        if self.marketplace is None or self.proofs is None:
            return
        for channel in self.proofs.channels:
            try:
                await self._look_at(self.marketplace, self.proofs, channel)
            except Unreachable as error:
                log.warning("marketplace not reachable: disputes not checked", why=str(error))
                return
            except (MarketplaceRefused, MarketError) as error:
                log.error("disputes of a channel not known", channel=channel, why=str(error))

    async def _look_at(self, marketplace: SellerMarketplaceClient, proofs: Proofs, channel: str) -> None:
        backing = await self.store.backing(channel)
        if backing is None:
            return
        allocation = open_record(backing.records[0])
        report = await marketplace.lanes(allocation.digest)
        by_lane = {each.lane: each for each in report.lanes}
        for proof in proofs.of(channel):
            lane = by_lane.get(proof.lane)
            if lane is not None and _is_over(proof, lane):
                proofs.forget(channel, proof.lane)
            elif lane is not None and await asyncio.to_thread(self._is_denied, proof, lane, report, allocation):
                await self._show(marketplace, proofs, proof, allocation)

    async def _show(
        self, marketplace: SellerMarketplaceClient, proofs: Proofs, proof: Proof, allocation: Record
    ) -> None:
        """Show one proof to the marketplace; a refusal does not stop others from being shown."""
        about = {"channel": proof.channel, "lane": proof.lane}
        try:
            await marketplace.dispute(_dispute(proof, allocation))
        except MarketplaceRefused as refused:
            log.error("the marketplace rejected the proof of a denied prompt", **about, why=str(refused))
            if refused.status not in _NEVER:
                return
        else:
            log.info("a buyer denies its prompt; the marketplace has counted it", **about)
        proofs.forget(proof.channel, proof.lane)

    def _is_denied(self, proof: Proof, report: LaneReport, reports: AllocationLanes, allocation: Record) -> bool:
        """Return whether the buyer has signed for an answer to another prompt.

        Raises MarketError on an invalid record.
        """
        if (report.standing, report.receipt) != ("disputed", proof.receipt):
            return False
        named = allocation.read("allocation", Allocation)
        terms = ChannelTerms(named.buyer, named.seller, allocation.digest)
        statements = open_statements((raw.encode() for raw in reports.statements), (terms.buyer,))
        standing = standing_to_settle(Identities((*self.own.statements, *statements)), terms.buyer)
        records = [open_record(raw.encode()) for raw in report.records]
        lane = read_evidence(records, terms, standing).lanes.get(proof.lane, Lane())
        if not due(lane).disputed_nano or claim_of(lane).digest != proof.receipt:
            return False
        dispute = Dispute(claim_of(lane), admitted_word(lane), opened_by="seller")
        return dispute.is_about_prompt and dispute.by_buyer.receipt.completion_tokens > 0


def _is_over(proof: Proof, report: LaneReport) -> bool:
    """Return whether this request can no longer be disputed."""
    return report.seq > proof.seq or (report.receipt == proof.receipt and report.standing == "settled")


def _dispute(proof: Proof, allocation: Record) -> dict[str, Any]:
    shown = proof.shown
    return {
        "allocation": allocation.raw.decode(),
        "lane": proof.lane,
        "prompt": {
            "sealed": base64.b64encode(shown.sealed).decode(),
            "key": shown.keys.key.hex(),
            "nonce": shown.keys.nonce.hex(),
        },
    }
