"""The marketplace's records about selling: allocations, disputes, and a seller's history; and submitting a text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Select, func, or_, select

from gateway.admin.marketplace import bring
from gateway.admin.marketplace_requests import DisputedText, NewDispute
from market.errors import MarketError
from market.marketplace.dispute_history import conduct_of
from market.marketplace.dispute_state import LaneStanding, claim_of, disputed_lane, signed_counts, standings
from market.marketplace.disputes import ANSWER_NS
from market.marketplace.marketplace import Marketplace
from market.marketplace.settlements import found as allocation_found
from market.marketplace.tables import AllocationRow, DisputeRow, allocation_table, dispute_table
from market.protocol.audits.conduct import Conduct, fee_nano
from market.protocol.audits.findings import AuditFinding

R = TypeVar("R")

SHOWN_MAX = 50
_LANES_LOOKED_AT = 20
_allocation, _dispute = allocation_table.c, dispute_table.c


@dataclass(frozen=True, slots=True)
class DisputeView:
    """A dispute. `is_overdue` means that the time to answer is over."""

    row: DisputeRow
    mine: str
    is_overdue: bool

    @property
    def is_open(self) -> bool:
        return self.row.status == "open"

    @property
    def outcome(self) -> str:
        if self.row.status != "decided":
            return ""
        if self.row.loser is None:
            return "no loser"
        return "you lost" if self.row.loser == self.mine else f"the {self.row.loser} lost"


@dataclass(frozen=True, slots=True)
class OpenLane:
    """A sub-channel on which buyer and seller signed different counts, without a dispute so far."""

    digest: str
    standing: LaneStanding


@dataclass(frozen=True, slots=True)
class Record:
    """The marketplace's history of a seller; it is not a rating."""

    jobs: int
    buyers: int
    since_ns: int | None
    conduct: Conduct


def trades(
    marketplace: Marketplace, seller: str | None = None, *, is_open: bool | None = None
) -> list[AllocationRow]:
    """Return the newest allocations. They name the buyer, whom sellers do not see."""
    now_ns = marketplace.context.clock_ns()
    query = select(AllocationRow).order_by(_allocation.created_ns.desc()).limit(SHOWN_MAX)
    if seller is not None:
        query = query.where(_allocation.seller_user_id == seller)
    if is_open is not None:
        query = query.where(_allocation.expires_ns > now_ns if is_open else _allocation.expires_ns <= now_ns)
    return rows_of(marketplace, query)


def first_drawn(marketplace: Marketplace, seller: str) -> AllocationRow | None:
    """Return the oldest allocation that paid the seller, None before the first sale."""
    query = select(AllocationRow).where(_allocation.seller_user_id == seller, _allocation.drawn_nano > 0)
    return next(iter(rows_of(marketplace, query.order_by(_allocation.created_ns).limit(1))), None)


def rows_of(marketplace: Marketplace, query: Select[R]) -> list[R]:
    """Return the query's rows, detached from their session."""
    with marketplace.context.read() as session:
        rows = session.scalars(query).all()
        session.expunge_all()
    return list(rows)


def dispute_views(marketplace: Marketplace, user_id: str | None = None) -> list[DisputeView]:
    """Return disputes, open ones first: those with the user as a party, or all."""
    now_ns = marketplace.context.clock_ns()
    query = select(DisputeRow).where(_dispute.status != "new")
    if user_id is not None:
        query = query.where(or_(_dispute.seller_user_id == user_id, _dispute.buyer_user_id == user_id))
    query = query.order_by((_dispute.status == "decided"), _dispute.opened_ns.desc()).limit(SHOWN_MAX)
    return [
        DisputeView(
            row,
            "" if user_id is None else "seller" if row.seller_user_id == user_id else "buyer",
            row.status == "open" and row.opened_ns + ANSWER_NS <= now_ns,
        )
        for row in rows_of(marketplace, query)
    ]


def open_lanes(marketplace: Marketplace, user_id: str) -> list[OpenLane]:
    """Return what a seller could dispute. Reads the newest channels' records, which takes some ms each."""
    query = select(AllocationRow).where(_allocation.seller_user_id == user_id, _allocation.evidence != "[]")
    query = query.order_by(_allocation.created_ns.desc()).limit(_LANES_LOOKED_AT)
    with marketplace.context.read() as session:
        rows = session.scalars(query).all()
        digests = [row.digest for row in rows]
        taken = select(_dispute.allocation_digest, _dispute.sub_channel, _dispute.seq).where(
            _dispute.allocation_digest.in_(digests)
        )
        known = {tuple(row) for row in session.execute(taken)}
        session.expunge_all()
    found = []
    for row in rows:
        try:
            lanes = standings(marketplace.context, row, ())
        except MarketError:
            continue  # Its records can no longer be read, so it cannot be disputed.
        found += [
            OpenLane(row.digest, lane)
            for lane in lanes
            if lane.standing == "disputed" and (row.digest, lane.lane, lane.seq) not in known
        ]
    return found


def allocation_raw(marketplace: Marketplace, digest: str, user_id: str) -> str | None:
    """Return an allocation's record for its seller or buyer; None for anyone else."""
    with marketplace.context.read() as session:
        row = session.scalar(select(AllocationRow).where(_allocation.digest == digest))
        return row.raw if row is not None and user_id in (row.seller_user_id, row.buyer_user_id) else None


def record_of(marketplace: Marketplace, user_id: str) -> Record:
    """Return the marketplace's counts of a seller, and their disputes of the last thirty days."""
    now_ns = marketplace.context.clock_ns()
    with marketplace.context.read() as session:
        row = session.execute(
            select(
                func.coalesce(func.sum(_allocation.jobs), 0),
                func.count(func.distinct(_allocation.buyer_user_id)),
                func.min(_allocation.created_ns),
            ).where(_allocation.seller_user_id == user_id, _allocation.drawn_nano > 0)
        ).one()
        return Record(int(row[0]), int(row[1]), row[2], conduct_of(session, user_id, now_ns))


def findings_about(marketplace: Marketplace, identities: Sequence[str]) -> list[tuple[str, AuditFinding]]:
    """Return auditors' findings about these identities, with the auditor; self-reports are excluded."""
    known_findings = marketplace.keeper.findings(marketplace.context.now_ms)
    sellers = frozenset(identities)
    return [
        (auditor, each)
        for auditor, findings in known_findings
        for each in findings.entries
        if each.seller in sellers and each.seller != auditor
    ]


async def bring_text(
    marketplace: Marketplace, user_id: str, raw: str, lane: int, content: str, reasoning: str
) -> DisputeRow:
    """Submit a text as `POST /market/v1/disputes` does, with its errors; `raw` is the allocation's record."""
    text = DisputedText(content=content.replace("\r\n", "\n"), reasoning=reasoning.replace("\r\n", "\n"))
    return await bring(marketplace, user_id, NewDispute(allocation=raw, lane=lane, texts={0: text}))


def facts_of_lane(marketplace: Marketplace, user_id: str, allocation: str, lane: int) -> dict[str, Any]:
    """Return the sub-channel's state and both sides' counts. Raises NotRegistered."""
    known = {standing.lane: (standing, row) for standing, row in marketplace.disputes.of(user_id, allocation)}
    standing: LaneStanding | None
    standing, row = known.get(lane, (None, None))
    if standing is None or standing.standing != "disputed":
        return {"standing": standing, "row": row, "claim": None, "signed": None, "fee_nano": 0}
    with marketplace.context.read() as session:
        about = disputed_lane(marketplace.context, allocation_found(session, allocation), lane)
    claim, signed = claim_of(about), signed_counts(about)
    return {
        "standing": standing,
        "row": row,
        "claim": claim.receipt,
        "signed": signed.receipt if signed else None,
        "fee_nano": fee_nano(standing.nano),
    }
